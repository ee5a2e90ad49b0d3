//! Arguments and environments of submit descriptions, in both syntaxes.
//!
//! The new syntax stands in double quotes. In it, blanks separate words, single quotes enclose blanks, and
//! each kind of quote is doubled to stand for itself. In the old syntax, blanks separate arguments,
//! and `\"` is a double quote; semicolons separate variables, and quotes in them have no meaning.

use std::collections::BTreeMap;

/// A value that cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable(pub(crate) &'static str);

const OPEN: Unreadable = Unreadable("a quote is not closed");
const LONE_QUOTE: Unreadable = Unreadable("a double quote within must be written twice");
const OLD_QUOTE: Unreadable = Unreadable(
    "a double quote within must be written \\\"; in the new syntax, the whole value stands in double quotes",
);
const NO_VARIABLE: Unreadable = Unreadable("an entry must be NAME=VALUE");

/// Splits the value of `arguments`.
pub fn arguments(value: &str) -> Result<Vec<String>, Unreadable> {
    match new_syntax(value)? {
        Some(text) => words(&text),
        None => Ok(old(value)?
            .split([' ', '\t', '\n', '\r'])
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect()),
    }
}

/// Splits the value of `environment`.
pub fn environment(value: &str) -> Result<BTreeMap<String, String>, Unreadable> {
    let entries = match new_syntax(value)? {
        Some(text) => words(&text)?,
        None => value
            .split(';')
            .map(|entry| entry.trim_start().to_owned())
            .collect(),
    };
    let mut all = BTreeMap::new();
    for entry in entries.iter().filter(|entry| !entry.is_empty()) {
        let (name, value) = entry.split_once('=').ok_or(NO_VARIABLE)?;
        if name.is_empty() {
            return Err(NO_VARIABLE);
        }
        all.insert(name.to_owned(), value.to_owned());
    }
    Ok(all)
}

/// Returns the text inside the double quotes of the new syntax, with doubled ones resolved.
fn new_syntax(value: &str) -> Result<Option<String>, Unreadable> {
    let Some(inner) = value.trim().strip_prefix('"') else {
        return Ok(None);
    };
    let inner = inner.strip_suffix('"').ok_or(OPEN)?;
    let mut text = String::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((before, after)) = rest.split_once('"') {
        text.push_str(before);
        text.push('"');
        rest = after.strip_prefix('"').ok_or(LONE_QUOTE)?;
    }
    text.push_str(rest);
    Ok(Some(text))
}

/// Resolves `\"` of the old syntax.
fn old(value: &str) -> Result<String, Unreadable> {
    let text = value.replace("\\\"", "\0");
    if text.contains('"') {
        return Err(OLD_QUOTE);
    }
    Ok(text.replace('\0', "\""))
}

/// Splits a text of the new syntax.
fn words(text: &str) -> Result<Vec<String>, Unreadable> {
    let mut all = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or(OPEN)? {
                        '\'' if chars.next_if_eq(&'\'').is_some() => word.push('\''),
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            ' ' | '\t' | '\n' | '\r' => all.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    all.extend(word);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn examples_of_the_manual() {
        let split = |value| arguments(value).unwrap();
        assert_eq!(split(r#"one \"two\" 'three'"#), ["one", "\"two\"", "'three'"]);
        assert_eq!(split(r#""3 simple arguments""#), ["3", "simple", "arguments"]);
        assert_eq!(
            split(r#""one 'two with spaces' 3""#),
            ["one", "two with spaces", "3"]
        );
        assert_eq!(
            split(r#""one ""two"" 'spacey ''quoted'' argument'""#),
            ["one", "\"two\"", "spacey 'quoted' argument"]
        );
        let new = environment(r#""one=1 two=""2"" three='spacey ''quoted'' value'""#).unwrap();
        let expected = [("one", "1"), ("three", "spacey 'quoted' value"), ("two", "\"2\"")];
        assert!(new.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
        let old = environment(r#"one=1;two=2;three="quotes have no 'special' meaning""#).unwrap();
        assert_eq!(old["three"], "\"quotes have no 'special' meaning\"");
    }

    #[test]
    fn values_that_end_early_are_refused() {
        for value in ["\"a", "\"a \"b\"", "\"'a\"", "a\"b", "\""] {
            assert!(arguments(value).is_err(), "{value}");
        }
        for value in ["a", "\"=b\"", "\"a b=c\""] {
            assert!(environment(value).is_err(), "{value}");
        }
        assert_eq!(arguments("\"'' ''\"").unwrap(), ["", ""]);
        assert_eq!(arguments("\\ a\\b").unwrap(), ["\\", "a\\b"]);
    }

    /// Quotes words as the manual says.
    fn quote(words: &[String]) -> String {
        let words: Vec<String> = words
            .iter()
            .map(|word| format!("'{}'", word.replace('\'', "''").replace('"', "\"\"")))
            .collect();
        format!("\"{}\"", words.join(" "))
    }

    proptest! {
        #[test]
        fn quoted_words_are_split_again(words in proptest::collection::vec("\\PC*|[ '\"\\\\a]*", 0..5)) {
            prop_assert_eq!(arguments(&quote(&words)).unwrap(), words);
        }

        #[test]
        fn any_value_is_split_or_refused(value in "[ '\"\\\\a=;]*") {
            let _ = (arguments(&value), environment(&value));
        }
    }
}
