//! Environment variables of an invocation and its jobs.

use std::ffi::{CStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

use pmc_spawn::CStrings;

/// Environment variables by name. Copies share the texts.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Sorted by name.
    variables: Vec<Variable>,
}

/// One variable.
#[derive(Clone, Debug)]
struct Variable {
    /// `NAME=value`.
    text: Arc<CStr>,
    name_length: usize,
}

impl Variable {
    fn name(&self) -> &[u8] {
        &self.text.to_bytes()[..self.name_length]
    }

    fn value(&self) -> &[u8] {
        &self.text.to_bytes()[self.name_length + 1..]
    }
}

impl Environment {
    fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.variables
            .binary_search_by(|variable| variable.name().cmp(name))
    }

    /// Returns the value of `name`.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.find(name).ok().map(|at| self.variables[at].value())
    }

    /// Returns the value of `name` as a path, if it is set and not empty.
    #[must_use]
    pub fn path(&self, name: &[u8]) -> Option<PathBuf> {
        let value = self.get(name).filter(|value| !value.is_empty())?;
        Some(OsString::from_vec(value.to_vec()).into())
    }

    /// Returns the value of `KICKSTART_name`, or else of `GRIDSTART_name`.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&[u8]> {
        ["KICKSTART_", "GRIDSTART_"]
            .iter()
            .find_map(|prefix| self.get([prefix, name].concat().as_bytes()))
    }

    /// Sets `name` to `value`. A value ends before its first zero byte, as in every program that receives it.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        let text = [name, b"=", value, b"\0"].concat();
        let Ok(text) = CStr::from_bytes_until_nul(&text) else {
            return;
        };
        if text.count_bytes() <= name.len() {
            return;
        }
        let variable = Variable {
            text: text.into(),
            name_length: name.len(),
        };
        match self.find(name) {
            Ok(at) => self.variables[at] = variable,
            Err(at) => self.variables.insert(at, variable),
        }
    }

    /// Returns all variables, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.variables
            .iter()
            .map(|variable| (variable.name(), variable.value()))
    }

    /// Returns all variables in the form that programs receive.
    #[must_use]
    pub fn to_c_strings(&self) -> CStrings {
        self.variables.iter().map(|variable| &*variable.text).collect()
    }
}

impl FromIterator<(OsString, OsString)> for Environment {
    /// Collects variables; the last of equal names counts.
    fn from_iter<I: IntoIterator<Item = (OsString, OsString)>>(variables: I) -> Self {
        let mut environment = Self::default();
        for (name, value) in variables {
            environment.set(name.as_bytes(), value.as_bytes());
        }
        environment
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn pairs(environment: &Environment) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        environment
            .iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect()
    }

    proptest! {
        #[test]
        fn variables_are_found_and_sorted(
            variables in proptest::collection::vec(("[A-C_]{0,4}", "[a-b]{0,2}"), 0..20),
            name in "[A-C_]{0,4}",
        ) {
            let environment: Environment =
                variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
            let expected: BTreeMap<String, String> = variables.into_iter().collect();
            let found = environment.get(name.as_bytes());
            prop_assert_eq!(found, expected.get(&name).map(String::as_bytes));
            prop_assert_eq!(pairs(&environment), expected.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn changes_of_a_copy_do_not_change_the_original() {
        let inherited = [("B", "1"), ("GRIDSTART_X", "2"), ("A", "3"), ("A", "4")];
        let original = Environment::from_iter(inherited.map(|(name, value)| (name.into(), value.into())));
        let mut copy = original.clone();
        for (name, value) in [("C", "5"), ("A", "6"), ("AA", ""), ("C", "7=8"), ("N", "1\0x")] {
            copy.set(name.as_bytes(), value.as_bytes());
        }
        let text = |environment: &Environment| {
            let variables = pairs(environment).into_iter();
            variables
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(text(&copy), "A=6 AA= B=1 C=7=8 GRIDSTART_X=2 N=1");
        assert_eq!(text(&original), "A=4 B=1 GRIDSTART_X=2");
        assert_eq!(copy.get(b"D"), None);
        assert_eq!(copy.path(b"AA"), None);
    }

    #[test]
    fn settings_have_two_prefixes() {
        let mut environment = Environment::default();
        environment.set(b"GRIDSTART_X", b"2");
        assert_eq!(environment.setting("X"), Some(&b"2"[..]));
        environment.set(b"KICKSTART_X", b"9");
        assert_eq!(environment.setting("X"), Some(&b"9"[..]));
    }
}
