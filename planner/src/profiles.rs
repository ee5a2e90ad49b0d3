//! Profiles: settings by namespace and key (section 5 of the planner's specification).

use std::collections::BTreeMap;

/// Namespace of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Namespace {
    /// Behaviour of the planner; keys are case-insensitive and kept in lower case.
    Pegasus,
    /// Environment of the job.
    Env,
    /// DAGMan.
    Dagman,
    /// HTCondor.
    Condor,
    /// Globus.
    Globus,
    /// Pins for site selection; `hints` is its old name.
    Selector,
    /// Metadata.
    Metadata,
    /// Accepted and ignored.
    Stat,
}

/// Profiles of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profiles {
    entries: BTreeMap<(Namespace, String), String>,
}

impl Profiles {
    /// The value of a key.
    pub fn get(&self, namespace: Namespace, key: &str) -> Option<&str> {
        // A BTreeMap keyed by an owned pair cannot be asked with a borrowed one; keys are short.
        self.entries.get(&(namespace, key.to_owned())).map(String::as_str)
    }
    /// The value of a key of the namespace `pegasus`.
    pub fn pegasus(&self, key: &str) -> Option<&str> {
        self.get(Namespace::Pegasus, key)
    }
    /// Sets a key; an empty value in the namespace `pegasus` removes it.
    pub fn set(&mut self, namespace: Namespace, key: &str, value: &str) {
        let key = if namespace == Namespace::Pegasus {
            key.to_lowercase()
        } else {
            key.to_owned()
        };
        if namespace == Namespace::Pegasus && value.is_empty() {
            self.entries.remove(&(namespace, key));
        } else {
            self.entries.insert((namespace, key), value.to_owned());
        }
    }
    /// Lays `other` over these profiles: its values win.
    pub fn overlay(&mut self, other: &Profiles) {
        for ((namespace, key), value) in &other.entries {
            self.entries.insert((*namespace, key.clone()), value.clone());
        }
    }
    /// Takes from `other` only what is absent here.
    pub fn fill_from(&mut self, other: &Profiles) {
        for ((namespace, key), value) in &other.entries {
            self.entries
                .entry((*namespace, key.clone()))
                .or_insert_with(|| value.clone());
        }
    }
    /// All entries of a namespace, by key.
    pub fn of(&self, namespace: Namespace) -> impl Iterator<Item = (&str, &str)> {
        self.entries
            .iter()
            .filter(move |((n, _), _)| *n == namespace)
            .map(|((_, k), v)| (k.as_str(), v.as_str()))
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
