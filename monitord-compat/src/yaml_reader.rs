//! Values of a YAML mapping by their path, without a tree in memory.

use std::borrow::Cow;

use saphyr_parser::{Event, Parser, ScalarStyle};

/// What stands between the beginning of a document and a scalar.
enum Level {
    Sequence,
    /// `true` while a value is awaited; the last element of the path is its key.
    Mapping(bool),
}

/// Gives every scalar that is the value of a mapping, with the keys that lead to it. Sequences add
/// nothing to the path. A plain `null`, `~` or nothing is `None`.
///
/// # Errors
/// Line (counted from 1) and message where the text is no YAML; what stands before has been given.
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
                value_ended(&mut levels, &mut path);
            }
            Event::Scalar(value, style, ..) => match levels.last_mut() {
                Some(Level::Mapping(awaited @ false)) => {
                    *awaited = true;
                    path.push(value.into_owned());
                }
                Some(Level::Mapping(true)) => {
                    let absent = style == ScalarStyle::Plain && matches!(&*value, "" | "~" | "null");
                    take(&path, (!absent).then_some(&*value));
                    value_ended(&mut levels, &mut path);
                }
                _ => {}
            },
            Event::Alias(_) => match levels.last_mut() {
                // An alias as a key: the value is nobody's.
                Some(Level::Mapping(awaited @ false)) => {
                    *awaited = true;
                    path.push(String::new());
                }
                _ => value_ended(&mut levels, &mut path),
            },
            _ => {}
        }
    }
    Ok(())
}

/// A value is complete: its key leaves the path. A collection in place of a key stands for one.
fn value_ended(levels: &mut [Level], path: &mut Vec<String>) {
    if let Some(Level::Mapping(awaited)) = levels.last_mut() {
        if *awaited {
            path.pop();
        } else {
            path.push(String::new());
        }
        *awaited = !*awaited;
    }
}

/// Reads a double-quoted scalar, `text` being what follows its first quote: the value and the number
/// of bytes up to and with the last quote. `None` without a last quote.
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

/// A line break and the empty lines after it: one break is a blank, each further one a line feed.
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
    fn paths() {
        let text =
            "- a: 1\n  b:\n    c: \"x\"\n    l:\n    - p\n    - q: r\n    d: ~\n- [z]: {y: 2}\n- e: null\n";
        let expected = [
            ("a", Some("1")),
            ("b/c", Some("x")),
            ("b/l/q", Some("r")),
            ("b/d", None),
            ("/y", Some("2")),
            ("e", None),
        ];
        let expected: Vec<_> = expected.map(|(k, v)| (k.to_owned(), v.map(str::to_owned))).into();
        assert_eq!(all(text), expected);
    }

    #[test]
    fn quoted() {
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
