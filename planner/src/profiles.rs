//! Profiles: settings by namespace and key.

use std::borrow::Cow;

use crate::error::near_spelling;

/// Namespace of a profile.
///
/// The order is that in which [`Profiles::iter`] gives them.
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

impl Namespace {
    /// Number of namespaces.
    pub(crate) const COUNT: usize = Namespace::Stat as usize + 1;

    /// All names that an input file may use.
    pub const NAMES: &'static [&'static str] = &[
        "pegasus", "env", "dagman", "condor", "globus", "selector", "hints", "metadata", "stat",
    ];

    /// Parses a namespace, in any case; `hints` is the old name of `selector`.
    pub fn parse(name: &str) -> Option<Namespace> {
        Some(match name.to_ascii_lowercase().as_str() {
            "pegasus" => Namespace::Pegasus,
            "env" => Namespace::Env,
            "dagman" => Namespace::Dagman,
            "condor" => Namespace::Condor,
            "globus" => Namespace::Globus,
            "selector" | "hints" => Namespace::Selector,
            "metadata" => Namespace::Metadata,
            "stat" => Namespace::Stat,
            _ => return None,
        })
    }
    /// Returns the name used in files.
    pub fn as_str(self) -> &'static str {
        match self {
            Namespace::Pegasus => "pegasus",
            Namespace::Env => "env",
            Namespace::Dagman => "dagman",
            Namespace::Condor => "condor",
            Namespace::Globus => "globus",
            Namespace::Selector => "selector",
            Namespace::Metadata => "metadata",
            Namespace::Stat => "stat",
        }
    }
}

/// Old names of keys, with the names under which they are stored. Pegasus 5.1 takes them with a warning,
/// or has dropped them without a replacement.
pub(crate) const OLD_KEYS: &[(Namespace, &str, &str)] = &[
    (Namespace::Pegasus, "bundle.stagein", "stagein.clusters"),
    (Namespace::Pegasus, "bundle.stageout", "stageout.clusters"),
    (Namespace::Pegasus, "change_dir", "change.dir"),
    (Namespace::Pegasus, "checkpoint_time", "checkpoint.time"),
    (Namespace::Pegasus, "collapser", "job.aggregator"),
    (Namespace::Pegasus, "job.runtime", "runtime"),
    (Namespace::Selector, "executionPool", "execution.site"),
    (Namespace::Selector, "pfnHint", "pfn"),
];

/// Returns the form in which a key is stored: its new name, in lower case where case does not count.
/// Case counts in `env`, `metadata` and `selector`, and after the `+` or `My.` of an attribute of HTCondor.
pub(crate) fn stored_key(namespace: Namespace, key: &str) -> Cow<'_, str> {
    let folds = match namespace {
        Namespace::Pegasus | Namespace::Dagman | Namespace::Globus => true,
        Namespace::Condor => {
            let is_attribute = key
                .get(..3)
                .is_some_and(|start| start.eq_ignore_ascii_case("my."));
            !is_attribute && !key.starts_with('+')
        }
        Namespace::Env | Namespace::Selector | Namespace::Metadata | Namespace::Stat => false,
    };
    let key = if folds && !key.bytes().all(|b| b.is_ascii() && !b.is_ascii_uppercase()) {
        Cow::Owned(key.to_lowercase())
    } else {
        Cow::Borrowed(key)
    };
    if matches!(namespace, Namespace::Pegasus | Namespace::Selector)
        && let Some((.., new)) = OLD_KEYS
            .iter()
            .find(|(n, old, _)| (*n, *old) == (namespace, &key))
    {
        return Cow::Borrowed(new);
    }
    key
}

/// Returns whether a key has an amount of memory or disk space in MB as its value.
pub(crate) fn is_amount(namespace: Namespace, key: &str) -> bool {
    namespace == Namespace::Pegasus && matches!(key, "memory" | "diskspace" | "pmc_request_memory")
}

/// Parses an amount of memory: a whole number of MB, or of the unit that follows it: K, M, G, T or P, also KB
/// or KiB and so on, in any case.
pub(crate) fn megabytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let count: u64 = digits.trim_end().parse().ok()?;
    let power = match unit
        .strip_suffix("IB")
        .or(unit.strip_suffix('B'))
        .unwrap_or(&unit)
    {
        "K" => return Some(count.div_ceil(1024)),
        "" if unit.is_empty() => 0,
        "M" => 0,
        "G" => 10,
        "T" => 20,
        "P" => 30,
        _ => return None,
    };
    count.checked_mul(1 << power)
}

/// Profiles of one object. Empty ones hold no memory, since a workflow may have a million of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profiles {
    /// Sorted by namespace and key; the box keeps a job without profiles at eight bytes.
    #[expect(
        clippy::box_collection,
        reason = "one word instead of three in each of a million jobs"
    )]
    entries: Option<Box<Vec<Entry>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    namespace: Namespace,
    key: Box<str>,
    value: Box<str>,
}

impl Profiles {
    /// No profiles.
    pub(crate) const EMPTY: Self = Self { entries: None };

    fn entries(&self) -> &[Entry] {
        self.entries.as_ref().map_or(&[], |entries| entries.as_slice())
    }
    fn search(&self, namespace: Namespace, key: &str) -> Result<usize, usize> {
        self.entries()
            .binary_search_by(|e| (e.namespace, e.key.as_ref()).cmp(&(namespace, key)))
    }
    fn insert(&mut self, at: Result<usize, usize>, namespace: Namespace, key: &str, value: &str) {
        let entries = self.entries.get_or_insert_default();
        // Most jobs have one or two profiles, so the capacity grows by one.
        if entries.len() < 4 {
            entries.reserve_exact(1);
        }
        match at {
            Ok(n) => entries[n].value = value.into(),
            Err(n) => entries.insert(
                n,
                Entry {
                    namespace,
                    key: key.into(),
                    value: value.into(),
                },
            ),
        }
    }
    /// Returns the value of a key in its stored form.
    pub fn get(&self, namespace: Namespace, key: &str) -> Option<&str> {
        let at = self.search(namespace, key).ok()?;
        Some(&self.entries()[at].value)
    }
    /// Returns the value of a key of the namespace `pegasus`.
    pub fn pegasus(&self, key: &str) -> Option<&str> {
        self.get(Namespace::Pegasus, key)
    }
    /// Sets a key, in its stored form (see [`stored_key`]); an empty value in the namespace `pegasus`
    /// removes it.
    pub fn set(&mut self, namespace: Namespace, key: &str, value: &str) {
        let key = stored_key(namespace, key);
        if namespace == Namespace::Pegasus && value.is_empty() {
            self.remove(namespace, &key);
        } else if is_amount(namespace, &key)
            && let Some(megabytes) = megabytes(value)
        {
            self.insert(
                self.search(namespace, &key),
                namespace,
                &key,
                &megabytes.to_string(),
            );
        } else {
            self.insert(self.search(namespace, &key), namespace, &key, value);
        }
    }
    /// Removes a key.
    pub fn remove(&mut self, namespace: Namespace, key: &str) {
        if let Ok(n) = self.search(namespace, key)
            && let Some(entries) = &mut self.entries
        {
            entries.remove(n);
            if entries.is_empty() {
                self.entries = None;
            }
        }
    }
    /// Overrides these profiles with those of `other`.
    pub fn overlay(&mut self, other: &Profiles) {
        if self.is_empty() {
            self.entries.clone_from(&other.entries);
            return;
        }
        for e in other.entries() {
            self.insert(self.search(e.namespace, &e.key), e.namespace, &e.key, &e.value);
        }
    }
    /// Adds profiles of `other` that are absent here.
    pub fn fill_from(&mut self, other: &Profiles) {
        for e in other.entries() {
            if let at @ Err(_) = self.search(e.namespace, &e.key) {
                self.insert(at, e.namespace, &e.key, &e.value);
            }
        }
    }
    /// All entries of a namespace, by key.
    pub fn of(&self, namespace: Namespace) -> impl Iterator<Item = (&str, &str)> {
        self.entries()
            .iter()
            .filter(move |e| e.namespace == namespace)
            .map(|e| (e.key.as_ref(), e.value.as_ref()))
    }
    /// All entries by namespace and key.
    pub fn iter(&self) -> impl Iterator<Item = (Namespace, &str, &str)> {
        self.entries()
            .iter()
            .map(|e| (e.namespace, e.key.as_ref(), e.value.as_ref()))
    }
    /// Returns the number of profiles.
    pub fn len(&self) -> usize {
        self.entries().len()
    }
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries().is_empty()
    }
}

/// Parses a boolean of properties and profiles: true, yes, on, 1 or false, no, off, 0 in any case.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        // What programs write.
        "true" => return Some(true),
        "false" => return Some(false),
        _ => {}
    }
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" | "t" | "y" => Some(true),
        "false" | "no" | "off" | "0" | "f" | "n" => Some(false),
        _ => None,
    }
}

impl Namespace {
    /// Returns message and hint about an unknown namespace.
    pub(crate) fn unknown(name: &str) -> (String, String) {
        let known = format!("namespaces are {}", Namespace::NAMES.join(", "));
        let hint = match near_spelling(name, Namespace::NAMES.iter().copied()) {
            Some(near) => format!("did you mean {near}? {known}"),
            None => known,
        };
        (format!("`{name}` is no namespace of profiles"), hint)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_namespaces() {
        for name in Namespace::NAMES {
            let namespace = Namespace::parse(&name.to_uppercase()).expect("a namespace");
            assert_eq!(namespace.as_str() == *name, *name != "hints");
        }
        assert_eq!(Namespace::parse("hints"), Some(Namespace::Selector));
        assert_eq!(Namespace::parse("x"), None);
    }

    #[test]
    fn an_empty_value_removes_a_planner_key() {
        let mut profiles = Profiles::default();
        profiles.set(Namespace::Pegasus, "Queue", "q");
        profiles.set(Namespace::Env, "Queue", "");
        assert_eq!(profiles.pegasus("queue"), Some("q"));
        profiles.set(Namespace::Pegasus, "QUEUE", "");
        assert_eq!(profiles.pegasus("queue"), None);
        assert_eq!(profiles.get(Namespace::Env, "Queue"), Some(""));
        profiles.remove(Namespace::Env, "Queue");
        assert_eq!(profiles, Profiles::default());
        assert_eq!(size_of::<Profiles>(), 8);
    }

    fn some_profiles() -> impl Strategy<Value = Vec<(Namespace, String, String)>> {
        let namespace = prop::sample::select(vec![Namespace::Env, Namespace::Condor, Namespace::Stat]);
        prop::collection::vec((namespace, "[a-c]", "[a-z]{0,2}"), 0..12)
    }

    proptest! {
        #[test]
        fn they_are_maps(below in some_profiles(), above in some_profiles()) {
            let build = |all: &[(Namespace, String, String)]| {
                let mut profiles = Profiles::default();
                let mut map = std::collections::BTreeMap::new();
                for (namespace, key, value) in all {
                    profiles.set(*namespace, key, value);
                    map.insert((*namespace, key.clone()), value.clone());
                }
                (profiles, map)
            };
            let as_map = |profiles: &Profiles| -> std::collections::BTreeMap<_, _> {
                profiles.iter().map(|(n, k, v)| ((n, k.to_owned()), v.to_owned())).collect()
            };
            let ((below, map_below), (above, map_above)) = (build(&below), build(&above));
            prop_assert_eq!(as_map(&below), map_below.clone());
            let mut laid = below.clone();
            laid.overlay(&above);
            let mut filled = above.clone();
            filled.fill_from(&below);
            let mut expected = map_below;
            expected.extend(map_above);
            prop_assert_eq!(as_map(&laid), expected);
            prop_assert_eq!(laid, filled);
        }
    }
}
