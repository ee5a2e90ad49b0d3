//! Words for the DAG and for shells.

use std::borrow::Cow;

/// A word quoted for the DAG; plain words stay as they are.
pub(crate) fn quote(word: &str) -> Cow<'_, str> {
    match pmc_dag::words::quote(word.as_bytes()) {
        Cow::Borrowed(_) => Cow::Borrowed(word),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// A text and blanks around it, as one word of a line.
pub(super) fn push_word(line: &mut String, before: &str, word: &str, after: &str) {
    line.push_str(before);
    line.push_str(&quote(word));
    line.push_str(after);
}

/// A text that begins with a blank.
pub(super) fn spaced(text: &str) -> Cow<'_, str> {
    if text.starts_with(' ') {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!(" {text}"))
    }
}

/// A word for a shell.
pub(crate) fn shell_quote(word: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        Cow::Borrowed(word)
    } else {
        Cow::Owned(format!("'{}'", word.replace('\'', "'\\''")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_words() {
        assert_eq!(shell_quote("/a/b-c"), "/a/b-c");
        assert_eq!(shell_quote("it's"), r"'it'\''s'");
        assert_eq!(shell_quote(""), "''");
    }
}
