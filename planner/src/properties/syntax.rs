//! Syntax of Java properties files.

use std::path::Path;

use crate::error::InputError;
use crate::model::Position;

/// A key with its value and first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: String,
    pub(super) position: Position,
}

/// Reads a whole text.
pub(super) fn parse(file: &Path, text: &str) -> Result<Vec<Setting>, Vec<InputError>> {
    let mut settings = Vec::new();
    let mut problems = Vec::new();
    // In Java, lines end at `\n`, `\r` and `\r\n`.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines = text.split('\n').enumerate();
    while let Some((n, first)) = lines.next() {
        let start = first.trim_start();
        if start.is_empty() || start.starts_with(['#', '!']) {
            continue;
        }
        let position = Position {
            line: u32::try_from(n + 1).unwrap_or(u32::MAX),
            column: u32::try_from(first.len() - start.len() + 1).unwrap_or(u32::MAX),
        };
        let mut whole = start.to_owned();
        while continues(&whole) {
            whole.pop();
            match lines.next() {
                Some((_, next)) => whole.push_str(next.trim_start()),
                None => break,
            }
        }
        match setting(&whole) {
            Ok((key, value)) => settings.push(Setting {
                key,
                value: value.trim().to_owned(),
                position,
            }),
            Err(message) => problems.push(InputError::at(file, position, message)),
        }
    }
    if problems.is_empty() {
        Ok(settings)
    } else {
        Err(problems)
    }
}

/// Returns whether a line continues: it ends with an odd number of backslashes.
fn continues(line: &str) -> bool {
    let backslashes = line.len() - line.trim_end_matches('\\').len();
    backslashes % 2 == 1
}

/// Splits a logical line: the key ends at the first unescaped `=`, `:` or white space.
fn setting(line: &str) -> Result<(String, String), String> {
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

fn unescape(text: &str) -> Result<String, String> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    // High surrogate: Java writes such characters as two escapes_are_replaced.
    let mut high: Option<u32> = None;
    while let Some(c) = chars.next() {
        let unit =
            match c {
                '\\' => match chars.next() {
                    Some('u') => {
                        let digits: String = chars.by_ref().take(4).collect();
                        let code = u32::from_str_radix(&digits, 16)
                            .ok()
                            .filter(|_| digits.len() == 4);
                        Some(code.ok_or_else(|| {
                            format!("`\\u{digits}` is no character, four digits are expected")
                        })?)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        let settings = parse(Path::new("p"), text).expect("valid");
        settings.into_iter().map(|s| (s.key, s.value)).collect()
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
        let problems = parse(Path::new("p"), "a=1\nb = \\u12g4").expect_err("bad");
        assert_eq!(
            problems[0].to_string(),
            "p:2:1: `\\u12g4` is no character, four digits are expected"
        );
    }
}
