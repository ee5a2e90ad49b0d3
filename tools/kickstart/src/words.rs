//! Expansion of variables in the arguments of the main job, and splitting of command strings.
//!
//! Arguments of the main job keep their boundaries and quotes; only `$NAME`, `${NAME}` and backslashes are
//! replaced. Command strings (side jobs, the wrapper, names of lists) are split as a simple shell does.

/// Bytes of values that the words of a command can have in all. The system takes fewer.
pub const MAX_VALUES: usize = 16 << 20;

/// Why a text cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    /// The variable does not exist.
    #[error("variable {name} in {text} is not set")]
    Unset {
        /// Name of the variable.
        name: String,
        /// The argument it is in.
        text: String,
    },
    /// `${` without `}`.
    #[error("missing `}}` after `${{` in {0}")]
    OpenBrace(String),
    /// `$(`.
    #[error("command substitution is not available: {0}; write \\$ for a dollar sign")]
    Substitution(String),
    /// A few letters can ask for a large text many times.
    #[error("the values of the variables have more than {} MiB", MAX_VALUES >> 20)]
    TooLong,
    /// A command string ends inside quotes.
    #[error("missing closing {1} in {0}")]
    OpenQuote(String, char),
}

/// Returns the value of a variable.
pub type Lookup<'a> = dyn Fn(&[u8]) -> Option<Vec<u8>> + 'a;

/// Expands one argument of the main job.
///
/// Outside quotes, a backslash makes the next character literal. Quotes stay. Single quotes protect their
/// text; double quotes protect all but variables. An unmatched quote is an ordinary character, and so is a
/// dollar sign without a name. Values are not expanded again.
///
/// `left` is the number of bytes of values that the words may still have.
///
/// # Errors
/// The variable is not set, the text has an unsupported form, or the values are too long.
pub fn expand_argument(
    argument: &[u8],
    lookup: &Lookup<'_>,
    left: &mut usize,
) -> Result<Vec<u8>, ExpandError> {
    if !argument.iter().any(|byte| matches!(byte, b'$' | b'\\')) {
        return Ok(argument.to_vec());
    }
    let mut out = Vec::with_capacity(argument.len());
    let mut rest = argument;
    let mut in_double = false;
    while let [byte, tail @ ..] = rest {
        rest = match byte {
            b'\\' if !in_double => match tail {
                [next, tail @ ..] => {
                    out.push(*next);
                    tail
                }
                [] => {
                    out.push(b'\\');
                    tail
                }
            },
            b'\\' => {
                let kept = tail.len().min(1);
                out.push(b'\\');
                out.extend_from_slice(&tail[..kept]);
                &tail[kept..]
            }
            b'\'' if !in_double => {
                let kept = find_closing(tail, b'\'').map_or(0, |at| at + 1);
                out.push(b'\'');
                out.extend_from_slice(&tail[..kept]);
                &tail[kept..]
            }
            b'"' => {
                in_double = !in_double && find_closing(tail, b'"').is_some();
                out.push(b'"');
                tail
            }
            b'$' => expand_variable(tail, &mut out, (lookup, left), argument)?,
            byte => {
                out.push(*byte);
                tail
            }
        };
    }
    Ok(out)
}

/// Finds the next `quote` that no backslash precedes.
fn find_closing(text: &[u8], quote: u8) -> Option<usize> {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\\' => at += 2,
            _ if byte == quote => return Some(at),
            _ => at += 1,
        }
    }
    None
}

/// Appends the value of the variable whose name starts `text`, after the dollar sign. Returns the text after
/// the name.
fn expand_variable<'t>(
    text: &'t [u8],
    out: &mut Vec<u8>,
    (lookup, left): (&Lookup<'_>, &mut usize),
    whole: &[u8],
) -> Result<&'t [u8], ExpandError> {
    let shown = || String::from_utf8_lossy(whole).into_owned();
    let (name, rest) = match text {
        [b'(', ..] => return Err(ExpandError::Substitution(shown())),
        [b'{', inner @ ..] => {
            let end = inner
                .iter()
                .position(|&byte| byte == b'}')
                .ok_or_else(|| ExpandError::OpenBrace(shown()))?;
            (&inner[..end], &inner[end + 1..])
        }
        text => {
            let end = text.iter().position(|byte| !is_name(*byte)).unwrap_or(text.len());
            text.split_at(end)
        }
    };
    if name.is_empty() && rest.len() == text.len() {
        out.push(b'$');
        return Ok(text);
    }
    let value = lookup(name).ok_or_else(|| ExpandError::Unset {
        name: String::from_utf8_lossy(name).into_owned(),
        text: shown(),
    })?;
    *left = left.checked_sub(value.len()).ok_or(ExpandError::TooLong)?;
    out.extend_from_slice(&value);
    Ok(rest)
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Splits a command string into words.
///
/// Blanks separate words, quotes are removed, and a backslash makes the next character literal. In double
/// quotes, `\a \b \n \r \t \v` are control characters. Variables are expanded outside single quotes; values
/// are not split.
///
/// # Errors
/// As [`expand_argument`], or a quote is not closed.
pub fn split_command(text: &[u8], lookup: &Lookup<'_>) -> Result<Vec<Vec<u8>>, ExpandError> {
    let mut left = MAX_VALUES;
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote: Option<u8> = None;
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match (*byte, quote) {
            (b'\'' | b'"', None) => {
                quote = Some(*byte);
                word.get_or_insert_default();
            }
            (byte, Some(open)) if byte == open => quote = None,
            (b'\\', quote) => {
                if let [next, tail @ ..] = tail {
                    rest = tail;
                    let next = if quote == Some(b'"') {
                        control_character(*next)
                    } else {
                        *next
                    };
                    word.get_or_insert_default().push(next);
                } else {
                    word.get_or_insert_default().push(b'\\');
                }
            }
            (b'$', None | Some(b'"')) => {
                rest = expand_variable(tail, word.get_or_insert_default(), (lookup, &mut left), text)?
            }
            (byte, None) if byte.is_ascii_whitespace() => words.extend(word.take()),
            (byte, _) => word.get_or_insert_default().push(byte),
        }
    }
    if let Some(open) = quote {
        return Err(ExpandError::OpenQuote(
            String::from_utf8_lossy(text).into_owned(),
            char::from(open),
        ));
    }
    words.extend(word);
    Ok(words)
}

fn control_character(letter: u8) -> u8 {
    match letter {
        b'a' => 0x07,
        b'b' => 0x08,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0b,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lookup(name: &[u8]) -> Option<Vec<u8>> {
        match name {
            b"HOME" => Some(b"/home/u".to_vec()),
            b"A" => Some(b"$HOME x".to_vec()),
            _ => None,
        }
    }

    fn expand(text: &str) -> Result<String, ExpandError> {
        expand_argument(text.as_bytes(), &lookup, &mut { MAX_VALUES })
            .map(|bytes| String::from_utf8(bytes).unwrap())
    }

    fn split(text: &str) -> Result<Vec<String>, ExpandError> {
        let words = split_command(text.as_bytes(), &lookup)?;
        Ok(words
            .into_iter()
            .map(|word| String::from_utf8(word).unwrap())
            .collect())
    }

    #[test]
    fn arguments_keep_quotes_and_lose_backslashes() {
        for (text, expected) in [
            ("$HOME/x", "/home/u/x"),
            ("${HOME}x$HOME", "/home/ux/home/u"),
            (r"\$HOME", "$HOME"),
            (r"a\\b\x", r"a\bx"),
            ("'$HOME'", "'$HOME'"),
            ("\"$HOME/x\"", "\"/home/u/x\""),
            (r#""\$HOME \n""#, r#""\$HOME \n""#),
            ("$A", "$HOME x"),
            ("it's $HOME", "it's /home/u"),
            ("6\" $HOME", "6\" /home/u"),
            ("cost $ 5, $?", "cost $ 5, $?"),
            ("tail\\", "tail\\"),
            ("", ""),
        ] {
            assert_eq!(expand(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn unset_variables_are_errors() {
        assert!(matches!(expand("$NOSUCH"), Err(ExpandError::Unset { name, .. }) if name == "NOSUCH"));
        assert!(matches!(expand("$1"), Err(ExpandError::Unset { .. })));
        assert!(matches!(expand("${}"), Err(ExpandError::Unset { .. })));
        assert!(matches!(expand("${HOME"), Err(ExpandError::OpenBrace(_))));
        assert!(matches!(expand("$(date)"), Err(ExpandError::Substitution(_))));
    }

    #[test]
    fn command_strings_are_split() {
        for (text, expected) in [
            ("/bin/echo setup", vec!["/bin/echo", "setup"]),
            ("  a  'b c' \"d e\" f\\ g ", vec!["a", "b c", "d e", "f g"]),
            ("\"$HOME b\" $HOME b", vec!["/home/u b", "/home/u", "b"]),
            ("\"it's\" '' \"\\-\\t\"", vec!["it's", "", "-\t"]),
            ("'$HOME' $A", vec!["$HOME", "$HOME x"]),
            (" \t ", vec![]),
        ] {
            assert_eq!(split(text).unwrap(), expected, "{text}");
        }
        assert!(matches!(split("a 'b"), Err(ExpandError::OpenQuote(_, '\''))));
    }

    #[test]
    fn many_large_values_are_refused() {
        let large = |_: &[u8]| Some(vec![b'x'; 1 << 20]);
        let mut left = MAX_VALUES;
        for _ in 0..MAX_VALUES >> 20 {
            expand_argument(b"$A", &large, &mut left).unwrap();
        }
        assert_eq!(
            expand_argument(b"$A", &large, &mut left),
            Err(ExpandError::TooLong)
        );
        let command = b"$A ".repeat(1 << 16);
        assert_eq!(split_command(&command, &large), Err(ExpandError::TooLong));
    }

    proptest! {
        #[test]
        fn escaped_text_expands_to_itself(text in any::<Vec<u8>>()) {
            let escaped: Vec<u8> = text.iter().flat_map(|byte| [b'\\', *byte]).collect();
            prop_assert_eq!(expand_argument(&escaped, &lookup, &mut { MAX_VALUES }).unwrap(), text.clone());
            prop_assert_eq!(split_command(&escaped, &lookup).unwrap(), if text.is_empty() { vec![] } else { vec![text] });
        }

        #[test]
        fn any_text_is_expanded_or_refused(text in any::<Vec<u8>>()) {
            let _ = expand_argument(&text, &|_| Some(Vec::new()), &mut { MAX_VALUES });
            let _ = split_command(&text, &|_| Some(Vec::new()));
        }
    }
}
