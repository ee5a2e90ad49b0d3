//! Reads Java properties files, which hold the settings of Pegasus.
//!
//! `key = value`, `key: value` or `key value`; comments start with `#` or `!`; a backslash continues a line
//! or escapes a character (`\t \n \r \f \uXXXX`). `${name}` in a value is the value of an earlier property.

use std::collections::HashMap;

/// Properties by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties(HashMap<String, String>);

impl Properties {
    /// Reads the text of a file. Every text is valid.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut properties = Self::default();
        for line in logical_lines(text) {
            let (key, value) = split(&line);
            properties.set(&key, &value);
        }
        properties
    }

    /// Sets a property. Replaces `${name}` in the value.
    pub fn set(&mut self, key: &str, value: &str) {
        let value = self.expand(value.trim());
        self.0.insert(key.to_owned(), value);
    }

    /// Returns the value of a property, if it is set and not empty.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    fn expand(&self, value: &str) -> String {
        let mut out = String::new();
        let mut rest = value;
        while let Some(start) = rest.find("${") {
            out.push_str(&rest[..start]);
            let Some(length) = rest[start..].find('}') else {
                rest = &rest[start..];
                out.push_str(rest);
                return out;
            };
            out.push_str(self.get(&rest[start + 2..start + length]).unwrap_or(""));
            rest = &rest[start + length + 1..];
        }
        out.push_str(rest);
        out
    }
}

/// Returns the lines with continuations joined, without comments and blank lines.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        let line = line.trim_start();
        if open.is_none() && (line.is_empty() || line.starts_with(['#', '!'])) {
            continue;
        }
        let mut whole = open.take().unwrap_or_default();
        whole.push_str(line);
        let backslashes = whole.len() - whole.trim_end_matches('\\').len();
        if backslashes % 2 == 1 {
            whole.pop();
            open = Some(whole);
        } else {
            lines.push(whole);
        }
    }
    lines.extend(open);
    lines
}

/// Splits at the first unescaped `=`, `:` or blank, and resolves escapes.
fn split(line: &str) -> (String, String) {
    let mut escaped = false;
    let end = line.find(|c: char| {
        let ends = !escaped && (c == '=' || c == ':' || c.is_whitespace());
        escaped = c == '\\' && !escaped;
        ends
    });
    let Some(end) = end else {
        return (unescape(line), String::new());
    };
    let rest = line[end..].trim_start();
    let value = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (unescape(&line[..end]), unescape(value.trim_start()))
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('t') => out.push('\t'),
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('f') => out.push('\u{c}'),
            Some('u') => {
                let digits = chars
                    .as_str()
                    .get(..4)
                    .and_then(|hex| u32::from_str_radix(hex, 16).ok());
                match digits.and_then(char::from_u32) {
                    Some(unicode) => {
                        out.push(unicode);
                        chars = chars.as_str()[4..].chars();
                    }
                    None => out.push('u'),
                }
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_of_a_line_are_read() {
        let text = "# comment\n! comment\n\na=1\nb : 2\nc\t3\n d = x\\\n   y\ne\\ f=jdbc\\:sqlite\\:/p/a\\=b \n\
                    base=/data\npath=${base}/x${none}\nu=\\u00e9\\u12\nempty\nhash=a#b\\\\\n";
        let p = Properties::parse(text);
        for (key, value) in [
            ("a", "1"),
            ("b", "2"),
            ("c", "3"),
            ("d", "xy"),
            ("e f", "jdbc:sqlite:/p/a=b"),
            ("path", "/data/x"),
            ("u", "éu12"),
            ("hash", "a#b\\"),
        ] {
            assert_eq!(p.get(key), Some(value), "{key}");
        }
        assert_eq!(p.get("empty"), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text in "([a-z=:\\\\u0-9{}$ #!\n]|\\PC){0,80}") {
            let _ = Properties::parse(&text);
        }
    }
}
