//! Regular expressions of users, for the replica catalog and the replica selector. Pegasus accepts those of
//! Java. Most of them run on an engine with linear time. Look-around and back-references need a backtracking
//! engine, which gives up after a million steps and then does not match.

/// A pattern that no engine understands: a short description of the problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PatternError(String);

/// A pattern for whole texts.
#[derive(Clone, Debug)]
pub(crate) enum Pattern {
    /// In time linear in the text.
    Linear(regex::Regex),
    /// Look-around or back-references.
    Trying(Box<fancy_regex::Regex>),
}

impl Pattern {
    /// Compiles a pattern that has to match the whole text.
    ///
    /// # Errors
    /// An invalid pattern.
    pub(crate) fn whole(pattern: &str) -> Result<Self, PatternError> {
        let anchored = format!("^(?:{pattern})$");
        let linear = match regex::Regex::new(&anchored) {
            Ok(regex) => return Ok(Pattern::Linear(regex)),
            Err(error) => error.to_string(),
        };
        if let Ok(regex) = fancy_regex::Regex::new(&anchored) {
            return Ok(Pattern::Trying(Box::new(regex)));
        }
        // The last line of the engine's message names the problem.
        let reason = linear.lines().last().unwrap_or_default();
        Err(PatternError(reason.trim_start_matches("error: ").to_owned()))
    }
    /// Returns whether a text matches.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        match self {
            Pattern::Linear(regex) => regex.is_match(text),
            Pattern::Trying(regex) => regex.is_match(text).unwrap_or(false),
        }
    }
    /// The text and what its groups have matched, an empty text for a group that took no part; `None` if the
    /// text does not match.
    pub(crate) fn groups<'t>(&self, text: &'t str) -> Option<Vec<&'t str>> {
        match self {
            Pattern::Linear(regex) => {
                let found = regex.captures(text)?;
                Some(
                    found
                        .iter()
                        .map(|group| group.map_or("", |m| m.as_str()))
                        .collect(),
                )
            }
            Pattern::Trying(regex) => {
                let found = regex.captures(text).ok().flatten()?;
                Some(
                    found
                        .iter()
                        .map(|group| group.map_or("", |m| m.as_str()))
                        .collect(),
                )
            }
        }
    }
    /// The expression, if the engine in linear time knows it.
    pub(crate) fn linear(&self) -> Option<&str> {
        match self {
            Pattern::Linear(regex) => Some(regex.as_str()),
            Pattern::Trying(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_texts_and_groups() -> Result<(), PatternError> {
        let plain = Pattern::whole("a(b)?|c(d)")?;
        assert_eq!(plain.groups("ab"), Some(vec!["ab", "b", ""]));
        assert_eq!(plain.groups("cd"), Some(vec!["cd", "", "d"]));
        assert!(!plain.is_match("abc") && plain.linear().is_some());
        let ahead = Pattern::whole(r"file://(?!.*\.tmp$)/([^/]+)/(?:x\1)")?;
        assert_eq!(ahead.groups("file:///a/xa"), Some(vec!["file:///a/xa", "a"]));
        assert!(!ahead.is_match("file:///a/xb") && ahead.linear().is_none());
        Ok(())
    }

    #[test]
    fn bad_patterns_have_a_reason() {
        let reason = Pattern::whole("a(").expect_err("an invalid pattern").to_string();
        assert!(reason.contains("unclosed group"), "{reason}");
    }

    #[test]
    fn a_pattern_that_backtracks_too_long_does_not_match() -> Result<(), PatternError> {
        let slow = Pattern::whole(r"(?=x)((x+)+)+y\1")?;
        assert!(!slow.is_match(&"x".repeat(4000)));
        Ok(())
    }
}
