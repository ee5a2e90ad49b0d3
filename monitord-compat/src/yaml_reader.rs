//! Reads the values of YAML mappings by their paths, without a tree in memory.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle};

/// Last element of the path of an item that is a scalar.
pub(crate) const ITEM: &str = "-";

/// A collection around the current position.
enum Level {
    Sequence,
    /// `true` while a value is expected; the last element of the path is its key.
    Mapping(bool),
}

/// Calls `take` for every scalar with the keys that lead to it. Mappings in a sequence have the path of the
/// sequence; its scalars have [`ITEM`] added. A plain `null`, `~` or nothing is `None`.
///
/// # Errors
/// Line (counted from 1) and message of the first syntax error; `take` has got the values before it.
pub(crate) fn walk(text: &str, mut take: impl FnMut(&[String], Option<&str>)) -> Result<(), (usize, String)> {
    let mut levels: Vec<Level> = Vec::new();
    let mut path: Vec<String> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, _) = event.map_err(|error| (error.marker().line(), error.info().to_owned()))?;
        match event {
            Event::SequenceStart(..) => levels.push(Level::Sequence),
            Event::MappingStart(..) => levels.push(Level::Mapping(false)),
            Event::SequenceEnd | Event::MappingEnd => {
                levels.pop();
                end_value(&mut levels, &mut path);
            }
            Event::Scalar(value, style, ..) => match levels.last_mut() {
                Some(Level::Mapping(expected @ false)) => {
                    *expected = true;
                    path.push(value.into_owned());
                }
                Some(Level::Mapping(true)) => {
                    let absent = style == ScalarStyle::Plain && matches!(&*value, "" | "~" | "null");
                    take(&path, (!absent).then_some(&*value));
                    end_value(&mut levels, &mut path);
                }
                Some(Level::Sequence) => {
                    path.push(ITEM.to_owned());
                    take(&path, Some(&*value));
                    path.pop();
                }
                None => {}
            },
            Event::Alias(_) => match levels.last_mut() {
                // An alias as a key is not resolved.
                Some(Level::Mapping(expected @ false)) => {
                    *expected = true;
                    path.push(String::new());
                }
                _ => end_value(&mut levels, &mut path),
            },
            _ => {}
        }
    }
    Ok(())
}

/// Removes the key of a complete value from the path. A collection used as a key becomes an empty key.
fn end_value(levels: &mut [Level], path: &mut Vec<String>) {
    if let Some(Level::Mapping(expected)) = levels.last_mut() {
        if *expected {
            path.pop();
        } else {
            path.push(String::new());
        }
        *expected = !*expected;
    }
}

/// Reads a double-quoted scalar. `text` begins after the opening quote. Returns the value and the number of
/// bytes up to and including the closing quote; `None` without one.
pub(crate) fn double_quoted(text: &str) -> Option<(Cow<'_, str>, usize)> {
    let bytes = text.as_bytes();
    let mut simple = true;
    let mut at = 0;
    let end = loop {
        at += memchr::memchr3(b'"', b'\\', b'\n', &bytes[at..])?;
        match bytes[at] {
            b'"' => break at,
            b'\n' => at += 1,
            _ => at += 2,
        }
        simple = false;
        if at > bytes.len() {
            return None;
        }
    };
    let inside = &text[..end];
    let value = if simple {
        Cow::Borrowed(inside)
    } else {
        Cow::Owned(unescape(inside))
    };
    Some((value, end + 1))
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr2(b'\\', b'\n', rest.as_bytes()) {
        out.push_str(&rest[..at]);
        if rest.as_bytes()[at] == b'\n' {
            rest = fold(&mut out, &rest[at..]);
            continue;
        }
        let mut after = rest[at + 1..].chars();
        let Some(code) = after.next() else {
            return out;
        };
        rest = after.as_str();
        let plain = match code {
            '0' => '\0',
            'a' => '\x07',
            'b' => '\x08',
            't' => '\t',
            'n' => '\n',
            'v' => '\x0b',
            'f' => '\x0c',
            'r' => '\r',
            'e' => '\x1b',
            'N' => '\u{85}',
            '_' => '\u{a0}',
            'L' => '\u{2028}',
            'P' => '\u{2029}',
            'x' | 'u' | 'U' => {
                let digits = match code {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let value = rest
                    .get(..digits)
                    .and_then(|hex| u32::from_str_radix(hex, 16).ok());
                rest = rest.get(digits..).unwrap_or_default();
                value
                    .and_then(char::from_u32)
                    .unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            '\n' => {
                rest = rest.trim_start_matches([' ', '\t']);
                continue;
            }
            other => other,
        };
        out.push(plain);
    }
    out.push_str(rest);
    out
}

/// Folds a line break and the empty lines after it: one break is a blank, each further one a line feed.
fn fold<'a>(out: &mut String, text: &'a str) -> &'a str {
    out.truncate(out.trim_end_matches([' ', '\t']).len());
    let rest = text.trim_start_matches([' ', '\t', '\n']);
    let breaks = text[..text.len() - rest.len()].matches('\n').count();
    if breaks == 1 {
        out.push(' ');
    }
    (1..breaks).for_each(|_| out.push('\n'));
    rest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(text: &str) -> Vec<(String, Option<String>)> {
        let mut found = Vec::new();
        walk(text, |path, value| {
            found.push((path.join("/"), value.map(str::to_owned)))
        })
        .unwrap();
        found
    }

    #[test]
    fn values_come_with_their_paths() {
        let text =
            "- a: 1\n  b:\n    c: \"x\"\n    l:\n    - p\n    - q: r\n    d: ~\n- [z]: {y: 2}\n- e: null\n";
        let expected = [
            ("a", Some("1")),
            ("b/c", Some("x")),
            ("b/l/-", Some("p")),
            ("b/l/q", Some("r")),
            ("b/d", None),
            ("-", Some("z")),
            ("/y", Some("2")),
            ("e", None),
        ];
        let expected: Vec<_> = expected.map(|(k, v)| (k.to_owned(), v.map(str::to_owned))).into();
        assert_eq!(all(text), expected);
    }

    #[test]
    fn quoted_values_are_unescaped() {
        assert_eq!(double_quoted("ab\" x"), Some((Cow::Borrowed("ab"), 3)));
        assert_eq!(double_quoted("ab"), None);
        assert_eq!(double_quoted("ab\\"), None);
        assert_eq!(double_quoted("\\x41\\\n   b  \n \n c\"").unwrap().0, "Ab\nc");
    }

    proptest! {
        #[test]
        fn reads_what_the_emitter_writes(text in "([ \t\n\r#:\"\\\\a-c\u{85}\u{2028}]|\\PC){0,40}") {
            let mut emitter = crate::yaml::Emitter::new(Vec::new());
            emitter.quoted(crate::yaml::KeyStyle::Auto, b"k", text.as_bytes()).unwrap();
            let yaml = String::from_utf8(emitter.into_inner()).unwrap();
            let (value, length) = double_quoted(yaml.strip_prefix("k: \"").unwrap()).unwrap();
            prop_assert_eq!(&*value, &*text);
            prop_assert_eq!(length + 4, yaml.trim_end_matches('\n').len());
        }

        #[test]
        fn never_panics(text in "([a-c:\"'\n>|&*\\-\\[\\]{}? \\\\]|\\PC){0,80}") {
            let _ = walk(&text, |_, _| {});
            let _ = double_quoted(&text);
        }
    }
}
