//! Patterns for names of tasks.

/// Returns whether a name matches a pattern with `*` and `?`.
#[must_use]
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // After the last `*`: where the pattern goes on, and where its part of the name ends.
    let mut star: Option<(usize, usize)> = None;
    while in_name < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                star = Some((at, in_name));
            }
            Some(expected) if *expected == b'?' || *expected == name[in_name] => {
                at += 1;
                in_name += 1;
            }
            _ => {
                let Some((after, end)) = star else { return false };
                star = Some((after, end + 1));
                (at, in_name) = (after, end + 1);
            }
        }
    }
    pattern[at..].iter().all(|rest| *rest == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "abcb", false),
            ("*ab*ab", "aabxab", true),
            ("?b", "ab", true),
            ("?b", "b", false),
            ("ab", "abc", false),
            ("a**", "a", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }
}
