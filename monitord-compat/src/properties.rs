//! Reader of Java properties files, the format of Pegasus' settings.
//!
//! `key = value`, `key: value` or `key value`. Comments start with `#` or `!`. A backslash continues a line
//! or escapes a character (`\t \n \r \f \uXXXX`).

use std::collections::HashMap;

/// A key with its value and position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Key.
    pub key: String,
    /// Value without white space at both ends.
    pub value: String,
    /// Line of the key, from 1.
    pub line: u32,
    /// Byte column of the key, from 1.
    pub column: u32,
}

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}:{column}: {message}")]
pub struct SyntaxError {
    /// Line of the key, from 1.
    pub line: u32,
    /// Byte column of the key, from 1.
    pub column: u32,
    /// Description of the problem.
    pub message: String,
}

/// Reads the settings of a text in order. `${name}` in values is not replaced.
#[must_use]
pub fn settings(text: &str) -> Vec<Result<Setting, SyntaxError>> {
    let mut settings = Vec::new();
    // In Java, lines end at `\n`, `\r` and `\r\n`.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines = text.split('\n').enumerate();
    while let Some((n, first)) = lines.next() {
        let start = first.trim_start();
        if start.is_empty() || start.starts_with(['#', '!']) {
            continue;
        }
        let line = u32::try_from(n + 1).unwrap_or(u32::MAX);
        let column = u32::try_from(first.len() - start.len() + 1).unwrap_or(u32::MAX);
        let mut whole = start.to_owned();
        while continues(&whole) {
            whole.pop();
            match lines.next() {
                Some((_, next)) => whole.push_str(next.trim_start()),
                None => break,
            }
        }
        settings.push(match split(&whole) {
            Ok((key, value)) => Ok(Setting {
                key,
                value: value.trim().to_owned(),
                line,
                column,
            }),
            Err(error) => Err(SyntaxError {
                line,
                column,
                message: error.to_string(),
            }),
        });
    }
    settings
}

/// Returns whether a line continues: it ends with an odd number of backslashes.
fn continues(line: &str) -> bool {
    let backslashes = line.len() - line.trim_end_matches('\\').len();
    backslashes % 2 == 1
}

/// `\u` without four hexadecimal digits after it.
#[derive(Debug, thiserror::Error)]
#[error("`\\u{0}` is no character, four digits are expected")]
struct BadEscape(String);

/// Splits a logical line: the key ends at the first unescaped `=`, `:` or white space.
fn split(line: &str) -> Result<(String, String), BadEscape> {
    let mut escaped = false;
    let mut key_end = line.len();
    for (n, c) in line.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if matches!(c, '=' | ':') || c.is_whitespace() {
            key_end = n;
            break;
        }
    }
    let rest = line[key_end..].trim_start();
    let value = match rest.strip_prefix(['=', ':']) {
        Some(value) => value.trim_start(),
        None => rest,
    };
    Ok((unescape(&line[..key_end])?, unescape(value)?))
}

fn unescape(text: &str) -> Result<String, BadEscape> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    // High surrogate: Java writes such characters as two escapes.
    let mut high: Option<u32> = None;
    while let Some(c) = chars.next() {
        let unit = match c {
            '\\' => match chars.next() {
                Some('u') => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let code = u32::from_str_radix(&digits, 16)
                        .ok()
                        .filter(|_| digits.len() == 4);
                    Some(code.ok_or(BadEscape(digits))?)
                }
                Some('t') => Some(u32::from('\t')),
                Some('n') => Some(u32::from('\n')),
                Some('r') => Some(u32::from('\r')),
                Some('f') => Some(0x0c),
                Some(c) => Some(u32::from(c)),
                None => None,
            },
            c => Some(u32::from(c)),
        };
        let Some(unit) = unit else { continue };
        let code = match (high.take(), unit) {
            (None, 0xd800..0xdc00) => {
                high = Some(unit);
                continue;
            }
            (Some(first), 0xdc00..0xe000) => 0x1_0000 + ((first - 0xd800) << 10) + (unit - 0xdc00),
            (_, unit) => unit,
        };
        out.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
    }
    Ok(out)
}

/// Maximum bytes that references in a file may become. Each may double the text, so a small file could
/// otherwise fill the memory.
const MAX_EXPANDED: usize = 1 << 20;

/// Properties by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Properties {
    values: HashMap<String, String>,
    /// Bytes that references have become.
    expanded: usize,
}

impl Properties {
    /// Reads properties. Skips invalid lines; the planner reports them. `${name}` in a value is the value of
    /// an earlier property. After 1 MiB of such values, references stay as they are.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut properties = Self::default();
        for setting in settings(text).into_iter().flatten() {
            properties.set(&setting.key, &setting.value);
        }
        properties
    }
    /// Sets a property and replaces `${name}` in the value.
    pub fn set(&mut self, key: &str, value: &str) {
        let value = self.expand(value.trim());
        self.values.insert(key.to_owned(), value);
    }

    /// Returns the value of a property unless it is empty.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values
            .get(key)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    fn expand(&mut self, value: &str) -> String {
        let mut out = String::new();
        let mut rest = value;
        while let Some(start) = rest.find("${") {
            out.push_str(&rest[..start]);
            let Some(length) = rest[start..].find('}') else {
                rest = &rest[start..];
                out.push_str(rest);
                return out;
            };
            let new = self.get(&rest[start + 2..start + length]).unwrap_or_default();
            let expanded = self.expanded + new.len();
            if expanded > MAX_EXPANDED {
                rest = &rest[start..];
                break;
            }
            out.push_str(new);
            self.expanded = expanded;
            rest = &rest[start + length + 1..];
        }
        out.push_str(rest);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        settings(text)
            .into_iter()
            .map(|setting| setting.map(|s| (s.key, s.value)).expect("valid"))
            .collect()
    }

    fn pair(text: &str) -> (String, String) {
        let mut all = pairs(text);
        assert_eq!(all.len(), 1, "{text}");
        all.remove(0)
    }

    fn of(key: &str, value: &str) -> (String, String) {
        (key.into(), value.into())
    }

    #[test]
    fn separators_are_recognized() {
        for text in ["a=b", "a: b", "a b", " a  =  b  ", "a\t=\tb", "a : b\r\n"] {
            assert_eq!(pair(text), of("a", "b"), "{text:?}");
        }
        assert_eq!(pair("a"), of("a", ""));
        assert_eq!(pair("a=="), of("a", "="));
        assert_eq!(pair("a = b = c:d"), of("a", "b = c:d"));
    }

    #[test]
    fn escapes_are_replaced() {
        assert_eq!(pair(r"a\:b\=c\ d = \u00e9\t\\x\q"), of("a:b=c d", "é\t\\xq"));
        assert_eq!(pair(r"a = \ud83d\ude00"), of("a", "😀"));
    }

    #[test]
    fn comments_and_continued_lines_are_read() {
        let text = "# c = d\n  ! e\n\na = one,\\\n    two\\\\\nb = 2\\\n";
        assert_eq!(pairs(text), [of("a", "one,two\\"), of("b", "2")]);
    }

    #[test]
    fn a_bad_escape_is_an_error_with_its_line() {
        let settings = settings("a=1\nb = \\u12g4");
        let error = settings[1].as_ref().expect_err("bad");
        assert_eq!(
            error.to_string(),
            "2:1: `\\u12g4` is no character, four digits are expected"
        );
    }

    #[test]
    fn references_name_earlier_properties() {
        let text = "base=/data\npath=${base}/x${none}\nempty\nbad=\\u12\nopen=a${base\n";
        let properties = Properties::parse(text);
        assert_eq!(properties.get("path"), Some("/data/x"));
        assert_eq!(properties.get("open"), Some("a${base"));
        assert_eq!(properties.get("empty"), None);
        assert_eq!(properties.get("bad"), None);
    }

    #[test]
    fn references_that_double_a_value_are_bounded() {
        let mut text = "a0 = 0123456789\n".to_owned();
        for n in 1..60 {
            text.push_str(&format!("a{n} = ${{a{}}}${{a{}}}\n", n - 1, n - 1));
        }
        let properties = Properties::parse(&text);
        assert_eq!(properties.get("a2"), Some("0123456789".repeat(4).as_str()));
        let bytes: usize = properties.values.values().map(String::len).sum();
        assert!(bytes <= MAX_EXPANDED + text.len(), "{bytes}");
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_text_causes_no_panic(text in "([a-z=:\\\\u0-9{}$ #!\n]|\\PC){0,80}") {
            let _ = Properties::parse(&text);
        }
    }
}
