//! Words of a command line.

use std::borrow::Cow;

/// Words of a command line, not quoted, and the blanks between them.
///
/// Blanks mean nothing. They are those that Pegasus' planner writes, so that lines of a DAG stay equal byte
/// for byte. All words are parts of one text, so that a million commands need few allocations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words {
    text: String,
    spans: Vec<Span>,
}

/// A part of the text that is not blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: usize,
    end: usize,
    is_quoted: bool,
}

impl Words {
    /// Removes all words and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.spans.clear();
    }

    /// Adds blanks.
    pub(crate) fn blanks(&mut self, blanks: &str) -> &mut Self {
        self.text.push_str(blanks);
        self
    }

    /// Adds a word.
    pub(crate) fn word(&mut self, word: &str) -> &mut Self {
        self.parts(&[word])
    }

    /// Adds a blank and a word.
    pub(crate) fn next(&mut self, word: &str) -> &mut Self {
        self.blanks(" ").word(word)
    }

    /// Adds a word that consists of parts.
    pub(crate) fn parts(&mut self, parts: &[&str]) -> &mut Self {
        self.with(|text| parts.iter().for_each(|part| text.push_str(part)))
    }

    /// Adds a word that is written by a function.
    pub(crate) fn with(&mut self, write: impl FnOnce(&mut String)) -> &mut Self {
        let start = self.text.len();
        write(&mut self.text);
        self.push(start, false)
    }

    /// Adds an option and its value, with a blank after each.
    pub(crate) fn option(&mut self, name: &str, value: &str) -> &mut Self {
        self.word(name).blanks(" ").word(value).blanks(" ")
    }

    /// Adds words that the user has quoted, in the syntax of a DAG file.
    pub(crate) fn quoted(&mut self, text: &str) -> &mut Self {
        let start = self.text.len();
        self.text.push_str(text);
        self.push(start, true)
    }

    /// Adds all words of a line.
    pub(crate) fn append(&mut self, other: &Words) -> &mut Self {
        let offset = self.text.len();
        self.text.push_str(&other.text);
        self.spans.extend(other.spans.iter().map(|span| Span {
            start: span.start + offset,
            end: span.end + offset,
            ..*span
        }));
        self
    }

    /// Adds all words of a line, after exactly one blank or the blanks with which the line begins.
    pub(crate) fn append_after_blank(&mut self, other: &Words) -> &mut Self {
        if !other.text.starts_with(' ') {
            self.blanks(" ");
        }
        self.append(other)
    }

    fn push(&mut self, start: usize, is_quoted: bool) -> &mut Self {
        let end = self.text.len();
        self.spans.push(Span {
            start,
            end,
            is_quoted,
        });
        self
    }

    /// Appends the line to a text. Each word is quoted by `quote`, but not what the user has quoted.
    pub(crate) fn write(&self, line: &mut String, quote: impl Fn(&str) -> Cow<'_, str>) {
        // Most words need no quotes. What is between those that do is copied at once.
        let mut copied = 0;
        for span in self.spans.iter().filter(|span| !span.is_quoted) {
            if let Cow::Owned(word) = quote(&self.text[span.start..span.end]) {
                line.push_str(&self.text[copied..span.start]);
                line.push_str(&word);
                copied = span.end;
            }
        }
        line.push_str(&self.text[copied..]);
    }

    /// Returns the bytes of the line in a DAG file.
    pub(crate) fn line_length(&self) -> usize {
        let words = self.spans.iter().filter(|span| !span.is_quoted);
        let more = words.map(|span| {
            let word = &self.text.as_bytes()[span.start..span.end];
            pmc_dag::words::quote(word).len() - word.len()
        });
        self.text.len() + more.sum::<usize>()
    }

    /// Returns the words as the program gets them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Cow<'_, str>> {
        self.iter_with_origin().map(|(word, _)| word)
    }

    /// Returns the words, and whether each one stands for itself, unlike those that the user has quoted.
    pub(crate) fn iter_with_origin(&self) -> impl Iterator<Item = (Cow<'_, str>, bool)> {
        self.spans.iter().flat_map(|span| {
            let text = &self.text[span.start..span.end];
            let word = (!span.is_quoted).then_some((Cow::Borrowed(text), true));
            let quoted = if span.is_quoted { text } else { "" };
            word.into_iter().chain(split(quoted).map(|word| (word, false)))
        })
    }
}

/// Splits words that the user has quoted, in the syntax of a DAG file.
pub(crate) fn split(text: &str) -> impl Iterator<Item = Cow<'_, str>> {
    // The splitting cuts no character.
    pmc_dag::words::Words::new(text.as_bytes()).map(|word| match word {
        Cow::Borrowed(word) => String::from_utf8_lossy(word),
        Cow::Owned(word) => Cow::Owned(String::from_utf8_lossy(&word).into_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_blanks_are_kept_apart() {
        let mut words = Words::default();
        words.blanks(" ").option("-n", "a b").quoted("x 'y  z'");
        let mut all = Words::default();
        all.word("").append_after_blank(&words).append_after_blank(&words);
        let each = ["-n", "a b", "x", "y  z"];
        let expected: Vec<_> = [""].into_iter().chain(each).chain(each).collect();
        assert_eq!(all.iter().collect::<Vec<_>>(), expected);
        let mut line = String::new();
        all.write(&mut line, |word| match word.contains(' ') || word.is_empty() {
            true => Cow::Owned(format!("[{word}]")),
            false => Cow::Borrowed(word),
        });
        assert_eq!(line, "[] -n [a b] x 'y  z' -n [a b] x 'y  z'");
    }
}
