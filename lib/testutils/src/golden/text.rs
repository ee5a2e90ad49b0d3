//! Helpers for texts.

use regex::Regex;

/// A regular expression that is compiled once.
macro_rules! regex {
    ($pattern:expr) => {{
        static REGEX: std::sync::LazyLock<regex::Regex> =
            std::sync::LazyLock::new(|| regex::Regex::new($pattern).expect("a regular expression"));
        &*REGEX
    }};
}
pub(super) use regex;

/// Returns the regular expression of a shell pattern. `*` matches slashes, too.
///
/// # Panics
/// Never: a pattern cannot be malformed.
pub fn glob(pattern: &str) -> Regex {
    let pattern = regex::escape(pattern).replace(r"\*", ".*").replace(r"\?", ".");
    Regex::new(&format!("(?s)^{pattern}$")).expect("a regular expression")
}

/// Returns whether one of the shell patterns matches the path.
pub fn matches_any(patterns: &[String], path: &str) -> bool {
    patterns.iter().any(|pattern| glob(pattern).is_match(path))
}

/// Replaces a text where the characters around it allow it.
pub fn replace_where(
    text: &str,
    from: &str,
    to: &str,
    allowed: impl Fn(Option<char>, Option<char>) -> bool,
) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = (!from.is_empty()).then(|| rest.find(from)).flatten() {
        let (before, after) = (&rest[..at], &rest[at + from.len()..]);
        let previous = before.chars().next_back().or_else(|| result.chars().next_back());
        result.push_str(before);
        result.push_str(if allowed(previous, after.chars().next()) {
            to
        } else {
            from
        });
        rest = after;
    }
    result + rest
}

/// Replaces a path, but not where it is the beginning of a longer name.
pub fn replace_path(text: &str, from: &str, to: &str) -> String {
    replace_where(text, from, to, |_, next| !next.is_some_and(is_name))
}

/// Returns whether a character can be part of a name.
pub fn is_name(character: char) -> bool {
    character.is_alphanumeric() || "_.-".contains(character)
}

/// Returns the name of this machine.
pub fn host_name() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_paths() {
        assert!(glob("*.dag.*").is_match("a/b.dag.out"));
        assert!(!glob("*.dag").is_match("a.dag.out"));
        assert!(glob("a?(x)").is_match("ab(x)"));
    }

    #[test]
    fn paths_are_replaced_as_a_whole() {
        assert_eq!(
            replace_path("/a/b /a/bc /a/b/c /a/b.d '/a/b'", "/a/b", "X"),
            "X /a/bc X/c /a/b.d 'X'"
        );
        assert_eq!(replace_path("/a/b/a/b", "/a/b", "X"), "XX");
    }
}
