//! Lists of commands, as `pegasus-cluster` reads them: one command a line, quoted as in a shell.
//!
//! `'…'` quotes everything. `"…"` quotes everything except backslashes before `"`, `\`, `$` and `` ` ``,
//! which make the next character literal. Outside quotes, a backslash makes any next character literal.
//! Variables and patterns are not expanded. A `#` at the start of a word begins a comment. Unlike in a DAG
//! ([`crate::words`]), text next to a quoted part belongs to the same word, and the two quotes differ.

use std::borrow::Cow;

use thiserror::Error;

/// Why a line is not a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ListError {
    /// A quote is not closed.
    #[error("the quote {0} is never closed")]
    Unclosed(char),
}

fn is_blank(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// Splits a line into words. An empty line or comment has none.
///
/// # Errors
/// A quote is not closed.
pub fn split(line: &[u8]) -> Result<Vec<Vec<u8>>, ListError> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'#' if word.is_none() => break,
            _ if is_blank(byte) => words.extend(word.take()),
            b'\\' => {
                // At the end of the line, the backslash is literal.
                let next = bytes.next().unwrap_or(b'\\');
                word.get_or_insert_default().push(next);
            }
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next() {
                        Some(b'\'') => break,
                        Some(byte) => word.push(byte),
                        None => return Err(ListError::Unclosed('\'')),
                    }
                }
            }
            b'"' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next() {
                        Some(b'"') => break,
                        Some(b'\\') => match bytes.next_if(|b| matches!(b, b'"' | b'\\' | b'$' | b'`')) {
                            Some(byte) => word.push(byte),
                            None => word.push(b'\\'),
                        },
                        Some(byte) => word.push(byte),
                        None => return Err(ListError::Unclosed('"')),
                    }
                }
            }
            _ => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Quotes a word for [`split`] and for the quoting rules of a POSIX shell. Plain words are unchanged. A line
/// feed cannot be quoted.
#[must_use]
pub fn quote(word: &[u8]) -> Cow<'_, [u8]> {
    let is_special = |b: &u8| is_blank(*b) || matches!(b, b'\'' | b'"' | b'\\' | b'#');
    if word.is_empty() {
        return Cow::Borrowed(b"\"\"");
    }
    if !word.iter().any(is_special) {
        return Cow::Borrowed(word);
    }
    let mut quoted = Vec::with_capacity(word.len() + 4);
    if word.iter().any(|b| matches!(b, b'\'' | b'"' | b'\\')) {
        // A backslash outside quotes means the same to every reader.
        for &byte in word {
            if is_special(&byte) {
                quoted.push(b'\\');
            }
            quoted.push(byte);
        }
    } else {
        quoted.push(b'"');
        quoted.extend_from_slice(word);
        quoted.push(b'"');
    }
    Cow::Owned(quoted)
}

/// Appends a command in the syntax of a DAG ([`crate::words`]) as a line of a list.
pub fn translate(command: &str, out: &mut String) {
    for (n, word) in crate::words::Words::new(command.as_bytes()).enumerate() {
        if n > 0 {
            out.push(' ');
        }
        out.push_str(&String::from_utf8_lossy(&quote(&word)));
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn strings(line: &str) -> Vec<String> {
        split(line.as_bytes())
            .unwrap()
            .into_iter()
            .map(|word| String::from_utf8(word).unwrap())
            .collect()
    }

    #[test]
    fn quoting_follows_the_shell() {
        let cases: &[(&str, &[&str])] = &[
            ("a  b\tc", &["a", "b", "c"]),
            (r#"'a b'"c d"e\ f"#, &["a bc de f"]),
            (r#""it's" 'say "x"' """#, &["it's", "say \"x\"", ""]),
            (r#""\"\\\$\`\n" '\n' \n"#, &[r#""\$`\n"#, r"\n", "n"]),
            ("  # a comment", &[]),
            ("a #b", &["a"]),
            ("a#b '#c' \\#d", &["a#b", "#c", "#d"]),
            ("a\\", &["a\\"]),
            ("", &[]),
        ];
        for (line, expected) in cases {
            assert_eq!(strings(line), *expected, "{line}");
        }
        assert_eq!(split(b"a 'b"), Err(ListError::Unclosed('\'')));
        assert_eq!(split(b"a \"b"), Err(ListError::Unclosed('"')));
    }

    #[test]
    fn commands_of_a_dag_are_translated() {
        let mut text = String::new();
        translate(r#"/bin/echo "a b" it\'s "" #5 pre"x y""#, &mut text);
        assert_eq!(text, "/bin/echo \"a b\" it\\'s \"\" \"#5\" \"prex y\"\n");
    }

    proptest! {
        #[test]
        fn quoted_words_are_split_again(words in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..8), 1..6)) {
            let words: Vec<Vec<u8>> = words
                .into_iter()
                .map(|word| word.into_iter().filter(|b| *b != b'\n' && *b != 0).collect())
                .collect();
            let line = words.iter().map(|w| quote(w)).collect::<Vec<_>>().join(&b' ');
            prop_assert_eq!(split(&line).unwrap(), words);
        }

        #[test]
        fn arbitrary_lines_do_not_panic(line in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = split(&line);
        }
    }
}
