//! `${NAME}` in the text of workflows and catalogs.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use crate::diagnostic::{Diagnostic, position_of};
use crate::error::{InputErrors, near_spelling};

/// Variables for `${NAME}`, case-insensitive.
#[derive(Clone, Debug, Default)]
pub struct ExpandEnv {
    variables: BTreeMap<String, String>,
    off: bool,
    /// A name without a value stays as it is.
    keeps_unknown: bool,
}

impl ExpandEnv {
    /// Creates variables from an environment.
    pub fn new<K: AsRef<str>, V: Into<String>>(variables: impl IntoIterator<Item = (K, V)>) -> Self {
        let mut all = BTreeMap::new();
        for (name, value) in variables {
            all.insert(name.as_ref().to_lowercase(), value.into());
        }
        ExpandEnv {
            variables: all,
            ..ExpandEnv::default()
        }
    }
    /// Expands nothing (`pegasus.catalog.….expand = false`).
    pub fn off() -> Self {
        ExpandEnv {
            off: true,
            ..ExpandEnv::default()
        }
    }
    /// Adds variables that override earlier ones, such as those of the properties `env.NAME`.
    #[must_use]
    pub fn with_variables<'v>(mut self, variables: impl IntoIterator<Item = (&'v str, &'v str)>) -> Self {
        for (name, value) in variables {
            self.variables.insert(name.to_lowercase(), value.to_owned());
        }
        self
    }
    /// If `keeps`, a name without a value stays as it is, as in a plan of another user.
    #[must_use]
    pub fn keeping_unknown(mut self, keeps: bool) -> Self {
        self.keeps_unknown = keeps;
        self
    }
    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(&name.to_lowercase()).map(String::as_str)
    }
}

/// Replaces `${NAME}`; `\${NAME}` becomes the literal `${NAME}`. Text without `${` is not copied.
///
/// # Errors
/// All variables without a value, with their positions.
pub fn expand<'a>(file: &Path, text: &'a str, env: &ExpandEnv) -> Result<Cow<'a, str>, InputErrors> {
    let mut marks = memchr::memmem::find_iter(text.as_bytes(), b"${").peekable();
    if env.off || marks.peek().is_none() {
        return Ok(Cow::Borrowed(text));
    }
    let mut problems = Vec::new();
    let mut out = String::with_capacity(text.len() + 256);
    let mut copied = 0;
    for mark in marks {
        if mark < copied {
            continue;
        }
        // A name ends on its line, else the two characters mean themselves.
        let rest = &text[mark + 2..];
        let Some(length) = rest.find(['}', '\n']).filter(|&n| rest.as_bytes()[n] == b'}') else {
            continue;
        };
        let name = &rest[..length];
        if text[copied..mark].ends_with('\\') {
            out.push_str(&text[copied..mark - 1]);
            out.push_str(&text[mark..mark + length + 3]);
        } else {
            out.push_str(&text[copied..mark]);
            match env.get(name) {
                Some(value) => out.push_str(value),
                None if env.keeps_unknown => out.push_str(&text[mark..mark + length + 3]),
                None => problems.push(undefined(file, text, mark, name, env)),
            }
        }
        copied = mark + length + 3;
    }
    out.push_str(&text[copied..]);
    InputErrors::check(problems)?;
    Ok(Cow::Owned(out))
}

fn undefined(file: &Path, text: &str, mark: usize, name: &str, env: &ExpandEnv) -> Diagnostic {
    let near = near_spelling(name, env.variables.keys().map(String::as_str));
    let error = Diagnostic::at(
        file,
        position_of(text, mark),
        format!("the variable `${{{name}}}` has no value"),
    );
    match near {
        Some(near) => error.with_hint(format!(
            "did you mean `${{{}}}`? write `\\${{{name}}}` for the literal text",
            near.to_uppercase()
        )),
        None => error.with_hint(format!(
            "set {name} in the environment, or write `\\${{{name}}}` for the literal text"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env() -> ExpandEnv {
        ExpandEnv::new([("HOME", "/home/me"), ("Word", "harbour")])
    }

    fn expanded(text: &str) -> String {
        expand(Path::new("f"), text, &env())
            .expect("expands")
            .into_owned()
    }

    #[test]
    fn names_match_in_any_case() {
        assert_eq!(expanded("a ${home}/x ${WORD}"), "a /home/me/x harbour");
    }

    #[test]
    fn names_in_a_plan_of_another_user_stay() {
        let env = env().keeping_unknown(true);
        let expanded = expand(Path::new("f"), "${home} ${NOPE}/x", &env).expect("expands");
        assert_eq!(expanded, "/home/me ${NOPE}/x");
    }

    #[test]
    fn a_backslash_keeps_the_text() {
        assert_eq!(expanded(r"\${HOME} $HOME ${HOME"), "${HOME} $HOME ${HOME");
        assert_eq!(expanded("${\nHOME}"), "${\nHOME}");
    }

    #[test]
    fn values_are_not_expanded_again() {
        let env = ExpandEnv::new([("A", "${B}"), ("B", "x")]);
        assert_eq!(expand(Path::new("f"), "${A}", &env).expect("expands"), "${B}");
    }

    #[test]
    fn all_undefined_variables_are_reported() {
        let problems = expand(Path::new("w.yml"), "a\n é ${HOMES}\n${NOPE}", &env()).expect_err("undefined");
        let text: Vec<String> = problems.problems().iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "w.yml:2:4: the variable `${HOMES}` has no value\n  hint: did you mean `${HOME}`? write `\\${HOMES}` for the literal text",
                "w.yml:3:1: the variable `${NOPE}` has no value\n  hint: set NOPE in the environment, or write `\\${NOPE}` for the literal text",
            ]
        );
    }
}
