//! Lines and words.

use std::borrow::Cow;

/// A line, with those that continue it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line<'t> {
    /// Number of its first part, from 1.
    pub(crate) number: u32,
    /// Text without blanks at its ends.
    pub(crate) text: Cow<'t, str>,
}

/// Lines that are neither empty nor comments. A backslash at the end of a line continues it.
#[derive(Clone, Debug)]
pub(crate) struct Lines<'t> {
    lines: std::iter::Enumerate<std::str::Lines<'t>>,
}

impl<'t> Lines<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Lines {
            lines: text.lines().enumerate(),
        }
    }
}

impl<'t> Iterator for Lines<'t> {
    type Item = Line<'t>;

    fn next(&mut self) -> Option<Line<'t>> {
        loop {
            let (n, line) = self.lines.next()?;
            let number = u32::try_from(n + 1).unwrap_or(u32::MAX);
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some(begin) = line.strip_suffix('\\') else {
                let text = Cow::Borrowed(line);
                return Some(Line { number, text });
            };
            let mut text = begin.to_owned();
            for (_, more) in self.lines.by_ref() {
                let more = more.trim();
                match more.strip_suffix('\\') {
                    Some(part) => text.push_str(part),
                    None => {
                        text.push_str(more);
                        break;
                    }
                }
            }
            let text = text.trim().to_owned();
            if !text.is_empty() {
                let text = Cow::Owned(text);
                return Some(Line { number, text });
            }
        }
    }
}

/// Takes the first word from a text. A word may be in double quotes.
pub(crate) fn take_word<'t>(rest: &mut &'t str) -> Option<&'t str> {
    let text = rest.trim_start();
    if text.is_empty() {
        *rest = text;
        return None;
    }
    if let Some(quoted) = text.strip_prefix('"')
        && let Some((word, after)) = quoted.split_once('"')
        && after.chars().next().is_none_or(char::is_whitespace)
    {
        *rest = after;
        return Some(word);
    }
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    let (word, after) = text.split_at(end);
    *rest = after;
    Some(word)
}

/// Takes the first word if it is this keyword, in upper or lower case.
pub(crate) fn take_keyword(rest: &mut &str, keyword: &str) -> bool {
    let mut after = *rest;
    let found = take_word(&mut after).is_some_and(|word| word.eq_ignore_ascii_case(keyword));
    if found {
        *rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(u32, String)> {
        Lines::new(text)
            .map(|line| (line.number, line.text.into_owned()))
            .collect()
    }

    #[test]
    fn lines_are_joined() {
        let text = "# comment \\\n\n  JOB a \\\n  a.sub\\\n\nPARENT a\r\nx \\";
        let expected = [(3, "JOB a a.sub"), (6, "PARENT a"), (7, "x")];
        assert_eq!(lines(text), expected.map(|(n, line)| (n, line.to_owned())));
        assert_eq!(lines("\\\n\\\n"), []);
    }

    #[test]
    fn words_may_be_quoted() {
        let mut rest = " a \"b c\"  d\"e f\" \"g";
        let mut words = Vec::new();
        while let Some(word) = take_word(&mut rest) {
            words.push(word);
        }
        assert_eq!(words, ["a", "b c", "d\"e", "f\"", "\"g"]);
        let mut rest = "Dir x";
        assert!(take_keyword(&mut rest, "DIR") && !take_keyword(&mut rest, "DIR"));
        assert_eq!(rest, " x");
    }
}
