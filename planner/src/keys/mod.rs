//! Every property and every profile key: what it does, or why it has no effect.
//!
//! The names are those of the configuration reference of Pegasus 5.1, those that its planner reads
//! besides, and our own. All keys of input files are checked against these tables, and the manual page
//! is made from them.

mod check;
mod page;
mod profiles;
mod properties;

#[cfg(test)]
mod tests;

use crate::error::near_spelling;
use crate::profiles::{Namespace, OLD_KEYS, stored_key};

pub(crate) use check::{Checker, is_about_key, is_without_effect, new_name, of_properties};
pub use page::page;
pub use profiles::PROFILES;
pub use properties::PROPERTIES;

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It changes the plan, or how it runs; the text says what it sets.
    Effective(&'static str),
    /// It changes the plan, but only these values do, separated by `|`, in lower case. Others have no
    /// effect, which is reported once.
    EffectiveFor {
        /// The values.
        values: &'static str,
        /// What they set.
        what: &'static str,
        /// Why others have no effect.
        why: &'static str,
    },
    /// Only another program reads it, from the copy of the properties in the submit directory; the text
    /// says which program.
    Copied(&'static str),
    /// It has no effect, which is reported once, with this reason.
    Ignored {
        /// Values that need no warning, because the behaviour is the same: words separated by `|`, in
        /// lower case.
        idle: &'static str,
        /// Why it has no effect.
        why: &'static str,
    },
    /// Other values than those of the text end the planning with an error.
    Refused(&'static str),
    /// Another name of this key.
    OldName(&'static str),
}

/// A key and what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The name; `*` stands for any text.
    pub name: &'static str,
    /// What it does.
    pub state: State,
    /// What it does in plans for HTCondor, if that is something else.
    pub for_htcondor: Option<&'static str>,
}

const fn on(name: &'static str, what: &'static str) -> Key {
    let state = State::Effective(what);
    Key::new(name, state)
}

const fn on_for(name: &'static str, values: &'static str, what: &'static str, why: &'static str) -> Key {
    let state = State::EffectiveFor { values, what, why };
    Key::new(name, state)
}

const fn copied(name: &'static str, reader: &'static str) -> Key {
    let state = State::Copied(reader);
    Key::new(name, state)
}

const fn off(name: &'static str, idle: &'static str, why: &'static str) -> Key {
    let state = State::Ignored { idle, why };
    Key::new(name, state)
}

const fn refused(name: &'static str, but: &'static str) -> Key {
    let state = State::Refused(but);
    Key::new(name, state)
}

const fn old(name: &'static str, new: &'static str) -> Key {
    let state = State::OldName(new);
    Key::new(name, state)
}

/// The reason of inputs that bypass the work directory.
pub(crate) const BYPASS: &str = "with a shared file system all inputs come into the work directory; \
                                 pegasus.transfer.links = true links those that are on the site instead of \
                                 copying them";

/// The reason of keys that only HTCondor reads.
const CONDOR: &str = "there is no HTCondor, the executor starts the tasks";

impl Key {
    const fn new(name: &'static str, state: State) -> Self {
        Key {
            name,
            state,
            for_htcondor: None,
        }
    }

    /// The same key with an effect in plans for HTCondor.
    const fn htcondor(self, what: &'static str) -> Self {
        Key {
            for_htcondor: Some(what),
            ..self
        }
    }

    /// Returns whether the key has an effect in plans for HTCondor, and none in others.
    #[must_use]
    pub fn is_for_condor(&self) -> bool {
        self.for_htcondor.is_some() && matches!(self.state, State::Ignored { .. })
    }
}

/// Returns whether a warning says that a key has no effect, which has one in plans for HTCondor.
pub(crate) fn is_wrong_for_condor(message: &str) -> bool {
    if message.contains("only HTCondor knows expressions") {
        return true;
    }
    let Some((subject, _)) = message.split_once(" has no effect: ") else {
        return false;
    };
    let key = match subject.strip_prefix("the profile ") {
        Some(name) => name.split_once("::").and_then(|(namespace, key)| {
            let namespace = Namespace::parse(namespace)?;
            profile(namespace, key)
        }),
        None => subject
            .strip_prefix("the property ")
            .and_then(|text| property(text.split_once(" = ").map_or(text, |(key, _)| key))),
    };
    key.is_some_and(Key::is_for_condor)
}

/// Returns the entry of a name: that of the name itself, else that of the longest pattern which matches.
fn find(keys: &'static [Key], name: &str) -> Option<&'static Key> {
    match keys.binary_search_by(|key| key.name.cmp(name)) {
        Ok(n) => Some(&keys[n]),
        Err(_) => keys
            .iter()
            .filter(|key| is_pattern(key) && matches(key.name, name))
            .max_by_key(|key| key.name.len()),
    }
}

/// Returns whether a key is a pattern. The `*` in an old name is literal if the new name has none.
fn is_pattern(key: &Key) -> bool {
    let is_literal = matches!(key.state, State::OldName(new) if !new.contains('*'));
    key.name.contains('*') && !is_literal
}

/// Returns whether a name matches a pattern in which `*` stands for any text that is not empty.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|tail| {
            let ends = tail.char_indices().map(|(at, c)| at + c.len_utf8());
            ends.into_iter().any(|end| matches(rest, &tail[end..]))
        }),
    }
}

/// Returns the keys of a namespace.
fn of_namespace(namespace: Namespace) -> &'static [Key] {
    let known = PROFILES.iter().find(|(known, _)| *known == namespace);
    known.map_or(&[], |(_, keys)| keys)
}

/// Returns the entry of a profile key. Old names have that of the new one.
pub fn profile(namespace: Namespace, key: &str) -> Option<&'static Key> {
    find(of_namespace(namespace), &stored_key(namespace, key))
}

/// Returns whether a key is an old name.
fn is_old(namespace: Namespace, key: &str) -> bool {
    let is = |old: &str| old.eq_ignore_ascii_case(key);
    OLD_KEYS.iter().any(|(of, old, _)| *of == namespace && is(old))
}

/// Returns whether the planner knows a key of the namespace `pegasus`, under whatever name.
pub fn is_pegasus_key(key: &str) -> bool {
    profile(Namespace::Pegasus, key).is_some()
}

/// Returns whether a profile needs no check: its key is effective for every value.
pub(crate) fn is_plain(namespace: Namespace, key: &str) -> bool {
    let is_number = |key: &str| key.starts_with("request_") || matches!(key, "memory" | "diskspace");
    let is_effective = |key: &Key| matches!(key.state, State::Effective(_)) && !is_number(key.name);
    !is_old(namespace, key) && profile(namespace, key).is_some_and(is_effective)
}

/// Returns the entry of a property. Profile keys are properties, too: `pegasus.runtime`, `env.PATH`.
pub fn property(key: &str) -> Option<&'static Key> {
    find(PROPERTIES, key).or_else(|| {
        let (namespace, key) = key.split_once('.')?;
        profile(Namespace::parse(namespace)?, key)
    })
}

/// Returns the name of a property that is similar to this one.
fn similar_property(key: &str) -> Option<String> {
    let properties = PROPERTIES.iter().map(|key| key.name.to_owned());
    let profiles = PROFILES.iter().flat_map(|(namespace, keys)| {
        keys.iter()
            .map(move |key| format!("{}.{}", namespace.as_str(), key.name))
    });
    let known: Vec<String> = properties
        .chain(profiles)
        .filter(|name| !name.contains('*'))
        .collect();
    near_spelling(key, known.iter().map(String::as_str)).map(str::to_owned)
}
