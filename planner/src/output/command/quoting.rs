//! Quoting of words for the DAG.

use std::borrow::Cow;

/// Quotes a word for the DAG. Plain words are unchanged.
pub(crate) fn quote(word: &str) -> Cow<'_, str> {
    match pmc_dag::words::quote(word.as_bytes()) {
        Cow::Borrowed(_) => Cow::Borrowed(word),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

/// Appends a quoted word with a text before and after it.
pub(in crate::output) fn push_word(line: &mut String, before: &str, word: &str, after: &str) {
    line.push_str(before);
    line.push_str(&quote(word));
    line.push_str(after);
}

/// Returns a text that starts with a space.
pub(super) fn spaced(text: &str) -> Cow<'_, str> {
    if text.starts_with(' ') {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!(" {text}"))
    }
}
