//! Words of a command for a POSIX shell.

use std::borrow::Cow;

/// Quotes a word for a shell, if it needs that.
#[must_use]
pub fn shell_quote(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        Cow::Borrowed(word)
    } else {
        Cow::Owned(always_quoted(word))
    }
}

/// Quotes a word for a shell in any case: that of another host may take `%` or `=` for its own.
#[must_use]
pub fn always_quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_command_are_quoted_if_they_need_it() {
        assert_eq!(shell_quote("/a-b/x.dag"), "/a-b/x.dag");
        assert_eq!(shell_quote(""), "''");
        assert_eq!(shell_quote("a $b"), "'a $b'");
        assert_eq!(shell_quote("it's"), "'it'\\''s'");
        assert_eq!(always_quoted("a"), "'a'");
    }
}
