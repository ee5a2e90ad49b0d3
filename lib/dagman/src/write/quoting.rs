//! Arguments, environments and strings in submit descriptions, in the new syntax.

use super::WriteError;

/// When HTCondor replaces `$$(NAME)` in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dollars {
    /// When the job is matched with a machine: all universes but scheduler.
    AtMatch,
    /// Never: the universe scheduler.
    Never,
}

/// Appends a text as the value of a command, so that HTCondor replaces no macro in it.
pub fn literal(text: &str, dollars: Dollars, out: &mut String) {
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let run = from.len() - from.trim_start_matches('$').len();
        let (signs, after) = from.split_at(run);
        rest = after;
        let name = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        if !name.is_some_and(|end| after[end..].starts_with('(')) {
            out.push_str(signs);
            continue;
        }
        // HTCondor takes signs in pairs, from the first one. A single one that is left begins a macro.
        let (before, last) = signs.split_at(if run % 2 == 1 { run - 1 } else { run - 2 });
        out.push_str(before);
        out.push_str(match (last, dollars) {
            ("$", _) => "$(DOLLAR)",
            // The last pair belongs to the parenthesis.
            (_, Dollars::AtMatch) if after.starts_with('(') => "$$(DOLLARDOLLAR)",
            _ => last,
        });
    }
    out.push_str(rest);
}

/// Returns the value of `arguments` for these words. `is_literal` words keep their dollar signs; in others,
/// HTCondor replaces macros.
///
/// # Errors
/// Words with line breaks.
pub fn arguments<'w>(
    words: impl Iterator<Item = (impl AsRef<str> + 'w, bool)>,
    dollars: Dollars,
) -> Result<String, WriteError> {
    let mut out = String::from("\"");
    for (n, (word, is_literal)) in words.enumerate() {
        if n > 0 {
            out.push(' ');
        }
        push_word(
            "arguments",
            word.as_ref(),
            is_literal.then_some(dollars),
            &mut out,
        )?;
    }
    out.push('"');
    Ok(out)
}

/// Returns the value of `environment` for these variables: names, values, and whether they are literal, as
/// for [`arguments`].
///
/// # Errors
/// Values with line breaks, names that are none.
pub fn environment<'w>(
    variables: impl Iterator<Item = (&'w str, &'w str, bool)>,
    dollars: Dollars,
) -> Result<String, WriteError> {
    let (mut out, mut entry) = (String::from("\""), String::new());
    for (n, (name, value, is_literal)) in variables.enumerate() {
        if name.is_empty() || name.contains(['=', '$']) || name.contains(char::is_whitespace) {
            return Err(WriteError::Name {
                what: "the name of an environment variable",
                text: name.to_owned(),
            });
        }
        if n > 0 {
            out.push(' ');
        }
        entry.clear();
        entry.push_str(name);
        entry.push('=');
        entry.push_str(value);
        push_word("environment", &entry, is_literal.then_some(dollars), &mut out)?;
    }
    out.push('"');
    Ok(out)
}

/// Appends a word. Without `dollars`, macros stay.
fn push_word(what: &str, word: &str, dollars: Option<Dollars>, out: &mut String) -> Result<(), WriteError> {
    if word.contains(['\n', '\r', '\0']) {
        return Err(WriteError::LineBreak {
            what: what.to_owned(),
            text: word.to_owned(),
        });
    }
    let is_enclosed = word.is_empty() || word.contains(|c: char| c == '\'' || c.is_ascii_whitespace());
    let escaped;
    let word = match dollars {
        Some(dollars) if word.contains('$') => {
            let mut text = String::with_capacity(word.len() + 16);
            literal(word, dollars, &mut text);
            escaped = text;
            &escaped
        }
        _ => word,
    };
    if is_enclosed {
        out.push('\'');
    }
    for c in word.chars() {
        // Each kind of quote is doubled to stand for itself.
        if c == '"' || c == '\'' {
            out.push(c);
        }
        out.push(c);
    }
    if is_enclosed {
        out.push('\'');
    }
    Ok(())
}

/// Returns a text as a string of ClassAds, with its quotes.
#[must_use]
pub fn class_ad_string(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quoting;

    fn written(words: &[&str]) -> String {
        arguments(words.iter().map(|word| (*word, true)), Dollars::AtMatch).unwrap()
    }

    #[test]
    fn words_are_quoted_as_the_manual_says() {
        assert_eq!(written(&["3", "simple", "arguments"]), "\"3 simple arguments\"");
        assert_eq!(
            written(&["one", "\"two\"", "spacey 'quoted' argument", ""]),
            "\"one \"\"two\"\" 'spacey ''quoted'' argument' ''\""
        );
        assert_eq!(written(&["it's", "a\tb", "\\"]), "\"'it''s' 'a\tb' \\\"");
    }

    #[test]
    fn dollar_signs_stand_for_themselves() {
        assert_eq!(
            written(&["$HOME", "$(x)", "$$(x)", "$$x(", "5$", "$ENV(a)", "$$$(x)"]),
            "\"$HOME $(DOLLAR)(x) $$(DOLLARDOLLAR)(x) $$x( 5$ $(DOLLAR)ENV(a) $$$(DOLLAR)(x)\""
        );
        let macros = arguments([("$(x)", false)].into_iter(), Dollars::AtMatch).unwrap();
        assert_eq!(macros, "\"$(x)\"");
        let never = arguments([("$$(x) $(x)", true)].into_iter(), Dollars::Never).unwrap();
        assert_eq!(never, "\"'$$(x) $(DOLLAR)(x)'\"");
    }

    #[test]
    fn what_a_line_cannot_hold_is_refused() {
        assert!(arguments([("a\nb", true)].into_iter(), Dollars::AtMatch).is_err());
        for name in ["", "a=b", "a b", "$(x)"] {
            assert!(
                environment([(name, "v", true)].into_iter(), Dollars::AtMatch).is_err(),
                "{name}"
            );
        }
        assert_eq!(class_ad_string("a\"b\\"), "\"a\\\"b\\\\\"");
    }

    proptest! {
        #[test]
        fn written_words_are_read_again(
            words in proptest::collection::vec("[^\n\r\0$]*|[ \t'\"\\\\a=;#,]*", 0..6),
        ) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            prop_assert_eq!(quoting::arguments(&written(&words)).unwrap(), words);
        }

        #[test]
        fn written_variables_are_read_again(
            variables in proptest::collection::btree_map("[A-Za-z_][A-Za-z0-9_.]*", "[^\n\r\0$]*|[ \t'\"\\\\=;]*", 0..6),
        ) {
            let pairs = variables.iter().map(|(name, value)| (name.as_str(), value.as_str(), true));
            let text = environment(pairs, Dollars::AtMatch).unwrap();
            prop_assert_eq!(quoting::environment(&text).unwrap(), variables);
        }
    }
}
