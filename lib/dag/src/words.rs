//! Word splitting of a command, and its inverse.
//!
//! Variables and patterns are not expanded. `'` and `"` are equivalent: the first one opens a quote, the next
//! one of either kind closes it. Opening does not end the current word, but closing does, even if the word is
//! empty: `pre"a b"post` gives `prea b` and `post`. A backslash makes the next character literal, inside and
//! outside quotes. Blanks outside quotes separate words. A quote that is not closed contains the rest of the
//! line as one word, unless the rest is empty.

use std::borrow::Cow;

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0b | 0x0c)
}

/// An iterator over the words of a text.
///
/// [`Words::rest`] returns the unread part, so that a parser of options can take words from the front and
/// keep the rest unchanged.
#[derive(Clone, Debug)]
pub struct Words<'a> {
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    /// Creates an iterator over the words of `text`.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Self {
        Self { rest: text }
    }

    /// Returns the unread part without leading blanks.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        let start = self
            .rest
            .iter()
            .position(|b| !is_blank(*b))
            .unwrap_or(self.rest.len());
        &self.rest[start..]
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = Cow<'a, [u8]>;

    fn next(&mut self) -> Option<Cow<'a, [u8]>> {
        let text = self.rest();
        // Most words have no quotes and need no copy.
        let plain = text
            .iter()
            .position(|b| is_blank(*b) || matches!(b, b'\'' | b'"' | b'\\'));
        let plain = plain.unwrap_or(text.len());
        if text.get(plain).is_none_or(|b| is_blank(*b)) {
            self.rest = &text[plain..];
            return (plain > 0).then(|| Cow::Borrowed(&text[..plain]));
        }
        let mut word = text[..plain].to_vec();
        let mut quoted = false;
        let mut at = plain;
        while let Some(&byte) = text.get(at) {
            at += 1;
            match byte {
                b'\\' => {
                    // At the end of the text, the backslash is literal.
                    word.push(text.get(at).copied().unwrap_or(b'\\'));
                    at = text.len().min(at + 1);
                }
                b'\'' | b'"' if quoted => {
                    self.rest = &text[at..];
                    return Some(Cow::Owned(word));
                }
                b'\'' | b'"' => quoted = true,
                _ if is_blank(byte) && !quoted => {
                    self.rest = &text[at..];
                    return Some(Cow::Owned(word));
                }
                _ => word.push(byte),
            }
        }
        self.rest = &[];
        (!word.is_empty()).then_some(Cow::Owned(word))
    }
}

/// Returns all words of a text.
#[must_use]
pub fn split(text: &[u8]) -> Vec<Vec<u8>> {
    Words::new(text).map(Cow::into_owned).collect()
}

/// Returns whether a quote in the text is never closed.
#[must_use]
pub fn has_open_quote(text: &[u8]) -> bool {
    Scan::default().end(text).quoted
}

/// Replaces each line break by a space, so that the words stay the same on one line. Returns `None` if a line
/// break is part of a word: it is inside quotes or follows a backslash.
#[must_use]
pub fn on_one_line(text: &str) -> Option<Cow<'_, str>> {
    const BREAKS: [char; 2] = ['\n', '\r'];
    if !text.contains(BREAKS) {
        return Some(Cow::Borrowed(text));
    }
    let mut scan = Scan::default();
    for part in text.split_inclusive(BREAKS) {
        scan = scan.end(&part.as_bytes()[..part.trim_end_matches(BREAKS).len()]);
        if part.ends_with(BREAKS) && (scan.quoted || scan.escaped) {
            return None;
        }
    }
    Some(Cow::Owned(text.replace(BREAKS, " ")))
}

/// Where a text ends.
#[derive(Clone, Copy, Debug, Default)]
struct Scan {
    /// Inside quotes.
    quoted: bool,
    /// After a backslash.
    escaped: bool,
}

impl Scan {
    /// Reads on.
    fn end(mut self, text: &[u8]) -> Self {
        for byte in text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'\'' | b'"' => self.quoted = !self.quoted,
                _ => {}
            }
        }
        self
    }
}

/// Quotes a word so that [`split`] returns exactly this word, also between other words and at the end of a
/// trimmed line.
///
/// Words without blanks, quotes and backslashes are unchanged. A DAG file cannot contain line feeds in words;
/// [`crate::write`] refuses them.
#[must_use]
pub fn quote(word: &[u8]) -> Cow<'_, [u8]> {
    let special = |b: u8| is_blank(b) | matches!(b, b'\'' | b'"' | b'\\' | b'\r' | b'\n');
    // Most words are plain. Without an early exit, the compiler can vectorize the loop.
    if !word.is_empty() && !word.iter().fold(false, |found, &b| found | special(b)) {
        return Cow::Borrowed(word);
    }
    let mut quoted = Vec::with_capacity(word.len() + 4);
    quoted.push(b'"');
    for &byte in word {
        if matches!(byte, b'\'' | b'"' | b'\\') {
            quoted.push(b'\\');
        }
        quoted.push(byte);
    }
    quoted.push(b'"');
    Cow::Owned(quoted)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn strings(text: &str) -> Vec<String> {
        split(text.as_bytes())
            .into_iter()
            .map(|w| String::from_utf8(w).unwrap())
            .collect()
    }

    #[test]
    fn splits_as_the_original() {
        let cases: &[(&str, &[&str])] = &[
            (
                r#""one two" 'three four' five"#,
                &["one two", "three four", "five"],
            ),
            (r#"pre"fix and"post"#, &["prefix and", "post"]),
            ("pre'fix'", &["prefix"]),
            (r#""" '' end"#, &["", "", "end"]),
            (
                r#""it's closed" by the other quote'"#,
                &["it", "s", "closed by the other quote"],
            ),
            (
                r#"\"literal\" quo\"te back\\slash \n \t x\ y"#,
                &["\"literal\"", "quo\"te", "back\\slash", "n", "t", "x y"],
            ),
            (
                r#""esc \"inside\" quotes" '\'single\''"#,
                &["esc \"inside\" quotes", "'single'"],
            ),
            ("'never closed   to the end", &["never closed   to the end"]),
            ("ends with backslash \\", &["ends", "with", "backslash", "\\"]),
            (r#""closed""again""#, &["closed", "again"]),
            (
                "$HOME `date` *.dag ; > #z",
                &["$HOME", "`date`", "*.dag", ";", ">", "#z"],
            ),
            (r#""a"'b'"c""#, &["a", "b", "c"]),
            ("x''y", &["x", "y"]),
            ("a\x0bb\x0cc\td", &["a", "b", "c", "d"]),
            ("a \"", &["a"]),
            ("a\r b", &["a\r", "b"]),
            ("  ", &[]),
            ("", &[]),
        ];
        for (text, words) in cases {
            assert_eq!(&strings(text), words, "{text:?}");
        }
    }

    #[test]
    fn open_quotes_are_found() {
        for text in ["it's", "a \"b' c\" d", r"\\'", "'"] {
            assert!(has_open_quote(text.as_bytes()), "{text}");
        }
        for text in ["", "plain", "'a' \"b\"", "'a\"", r"it\'s", r"'a\'b'"] {
            assert!(!has_open_quote(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn line_breaks_between_words_become_spaces() {
        for (text, joined) in [
            ("a b", Some("a b")),
            ("a\n  b\r\nc\n", Some("a   b  c ")),
            ("'a b'\nc", Some("'a b' c")),
            ("a 'b\nc'", None),
            ("a \\\n b", None),
            ("a\n'b\nc'", None),
            (r"a\'b", Some(r"a\'b")),
        ] {
            assert_eq!(on_one_line(text).as_deref(), joined, "{text:?}");
        }
    }

    #[test]
    fn the_rest_is_unchanged() {
        let mut words = Words::new(br#"-m  "1 2"   prog  'a  b' "#);
        assert_eq!(words.next().as_deref(), Some(&b"-m"[..]));
        assert_eq!(words.next().as_deref(), Some(&b"1 2"[..]));
        assert_eq!(words.rest(), br#"prog  'a  b' "#);
    }

    #[test]
    fn plain_words_are_not_quoted() {
        for word in ["-a", "/bin/echo", "a=b", "$x", "ü€", "#"] {
            assert_eq!(quote(word.as_bytes()), word.as_bytes());
        }
        assert_eq!(quote(b""), &b"\"\""[..]);
        assert_eq!(quote(b"a b"), &b"\"a b\""[..]);
        assert_eq!(quote(b"it's"), &b"\"it\\'s\""[..]);
    }

    proptest! {
        #[test]
        fn quoted_words_are_split_again(words in proptest::collection::vec(any::<Vec<u8>>(), 0..6)) {
            let line = words.iter().map(|w| quote(w).into_owned()).collect::<Vec<_>>().join(&b' ');
            prop_assert_eq!(split(&line), words);
        }

        #[test]
        fn quoting_survives_the_trimming_of_lines(word in any::<Vec<u8>>()) {
            let quoted = quote(&word);
            prop_assert_eq!(crate::text::trim(&quoted), &quoted[..]);
        }

        #[test]
        fn splitting_ends_and_reads_the_whole_text(text in any::<Vec<u8>>()) {
            let mut words = Words::new(&text);
            let mut count = 0;
            while words.next().is_some() {
                count += 1;
                prop_assert!(count <= text.len());
            }
            prop_assert!(words.rest().is_empty());
        }
    }
}
