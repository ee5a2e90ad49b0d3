//! Replica selectors: the priority of each location of a file for a site.

use crate::diagnostic::Diagnostic;
use crate::error::near_spelling;
use crate::pattern::Pattern;
use crate::properties::Properties;

const KEY: &str = "pegasus.selector.replica";
const NAMES: &[&str] = &["Default", "Regex", "Restricted", "Local"];

/// Priority of a file on a file system of the site.
const FILE: u32 = 100;
/// Priority of other locations on a preferred site.
const PREFERRED: u32 = 50;
/// Priority of all others.
const OTHER: u32 = 10;

/// Chooses and orders the locations of a file.
#[derive(Clone, Debug, Default)]
pub(crate) enum ReplicaSelector {
    /// Files on the site first, then other locations there, then the rest.
    #[default]
    Default,
    /// By the first pattern that matches the whole location; those that match none are left out.
    Regex(Vec<(u32, Pattern)>),
    /// Preferred and excluded sites of the properties.
    Restricted(Vec<Restriction>),
    /// Locations on the site of the job; without one there, a single one of the others.
    Local,
}

/// Preferred or excluded sites for the staging site `destination` (`*` for any).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Restriction {
    destination: String,
    prefers: bool,
    sites: Vec<String>,
}

impl ReplicaSelector {
    /// Returns the priority of a location for a staging site; `None` if it is excluded.
    pub(crate) fn priority(&self, destination: &str, at: &str, pfn: &str) -> Option<u32> {
        let is_file = pfn.starts_with("file://");
        let plain = |is_preferred: bool| match is_file {
            true => FILE,
            false if is_preferred => PREFERRED,
            false => OTHER,
        };
        match self {
            ReplicaSelector::Default => Some(plain(at == destination)),
            // In the order of the catalog.
            ReplicaSelector::Local => Some(u32::from(at == destination)),
            ReplicaSelector::Regex(patterns) => {
                let last = patterns.last().map_or(0, |(rank, _)| *rank);
                let (rank, _) = patterns.iter().find(|(_, pattern)| pattern.is_match(pfn))?;
                Some((last - rank).saturating_mul(100))
            }
            ReplicaSelector::Restricted(restrictions) => {
                let verdict = [destination, "*"]
                    .iter()
                    .find_map(|place| verdict(restrictions, place, at));
                let has_preferences = restrictions
                    .iter()
                    .any(|r| r.prefers && (r.destination == destination || r.destination == "*"));
                match verdict {
                    Some(false) => None,
                    Some(true) => Some(plain(true)),
                    None => Some(plain(!has_preferences && at == destination)),
                }
            }
        }
    }
    /// Returns whether locations have priorities in lists of transfers.
    pub(crate) fn ranks(&self) -> bool {
        !matches!(self, ReplicaSelector::Local)
    }
    /// Leaves out what the selector Local does not take of the locations of a file, best first.
    pub(crate) fn settle<T>(&self, locations: &mut Vec<T>, is_at_destination: impl Fn(&T) -> bool) {
        if !matches!(self, ReplicaSelector::Local) {
            return;
        }
        match locations
            .iter()
            .filter(|&location| is_at_destination(location))
            .count()
        {
            // The original takes any; the first one keeps plans repeatable.
            0 => locations.truncate(1),
            here => locations.truncate(here),
        }
    }
    /// Explains why a location may be excluded.
    pub(crate) fn reason(&self) -> Option<&'static str> {
        match self {
            ReplicaSelector::Default | ReplicaSelector::Local => None,
            ReplicaSelector::Regex(_) => Some(
                "the replica selector Regex takes locations only that match a pattern \
                 pegasus.selector.replica.regex.rank.N",
            ),
            ReplicaSelector::Restricted(_) => Some(
                "the replica selector Restricted leaves out the sites of \
                 pegasus.selector.replica.SITE.ignore.stagein.sites",
            ),
        }
    }
}

/// Returns whether a site is preferred or excluded for a destination. A site in both lists is preferred.
fn verdict(restrictions: &[Restriction], destination: &str, at: &str) -> Option<bool> {
    let says = |prefers: bool| {
        restrictions.iter().any(|r| {
            r.prefers == prefers
                && r.destination == destination
                && r.sites.iter().any(|s| s == at || s == "*")
        })
    };
    if says(true) {
        Some(true)
    } else if says(false) {
        Some(false)
    } else {
        None
    }
}

/// Returns the selector of the properties.
pub(crate) fn selector(properties: &Properties, problems: &mut Vec<Diagnostic>) -> ReplicaSelector {
    let name = properties.get(KEY).unwrap_or_default().trim();
    match name.to_ascii_lowercase().as_str() {
        "" | "default" => ReplicaSelector::Default,
        "local" => ReplicaSelector::Local,
        "regex" => ReplicaSelector::Regex(patterns(properties, problems)),
        "restricted" => ReplicaSelector::Restricted(restrictions(properties, problems)),
        _ => {
            let known = format!("replica selectors are {}", NAMES.join(", "));
            let hint = match near_spelling(name, NAMES.iter().copied()) {
                Some(near) => format!("did you mean {near}? {known}"),
                None => known,
            };
            problems.push(
                properties
                    .bad_value(KEY, "must name a replica selector")
                    .with_hint(hint),
            );
            ReplicaSelector::Default
        }
    }
}

/// Returns the patterns by rank, best first.
fn patterns(properties: &Properties, problems: &mut Vec<Diagnostic>) -> Vec<(u32, Pattern)> {
    let prefix = format!("{KEY}.regex.rank.");
    let mut patterns = Vec::new();
    for (rank, pattern) in properties.with_prefix(&prefix) {
        let key = format!("{prefix}{rank}");
        let Ok(rank) = rank.parse::<u32>() else {
            problems.push(properties.bad_key(&key, "the rank must be a whole number"));
            continue;
        };
        match Pattern::whole(pattern) {
            Ok(pattern) => patterns.push((rank, pattern)),
            Err(reason) => problems.push(
                properties
                    .bad_value(&key, "must be a pattern")
                    .with_hint(reason.to_string()),
            ),
        }
    }
    if patterns.is_empty() && problems.is_empty() {
        problems.push(properties.bad_key(
            KEY,
            "Regex needs patterns: pegasus.selector.replica.regex.rank.1 for the best locations, and so on",
        ));
    }
    patterns.sort_by_key(|(rank, _)| *rank);
    patterns
}

fn restrictions(properties: &Properties, problems: &mut Vec<Diagnostic>) -> Vec<Restriction> {
    let prefix = format!("{KEY}.");
    let mut restrictions = Vec::new();
    for (key, value) in properties.with_prefix(&prefix) {
        let prefers = key.strip_suffix(".prefer.stagein.sites").map(|site| (site, true));
        let named = prefers.or_else(|| {
            key.strip_suffix(".ignore.stagein.sites")
                .map(|site| (site, false))
        });
        match named {
            Some((destination, prefers)) => restrictions.push(Restriction {
                destination: destination.to_owned(),
                prefers,
                sites: value
                    .split(',')
                    .map(|site| site.trim().to_owned())
                    .filter(|site| !site.is_empty())
                    .collect(),
            }),
            None if key.ends_with(".stagein.sites") => problems.push(properties.bad_key(
                &format!("{prefix}{key}"),
                "must be SITE.prefer.stagein.sites or SITE.ignore.stagein.sites, with * for all sites",
            )),
            None => {}
        }
    }
    restrictions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(settings: &[(&str, &str)]) -> Result<ReplicaSelector, Vec<String>> {
        let mut properties = Properties::default();
        for (key, value) in settings {
            properties.set(key, value);
        }
        let mut problems = Vec::new();
        let selector = selector(&properties, &mut problems);
        if problems.is_empty() {
            Ok(selector)
        } else {
            Err(problems.iter().map(ToString::to_string).collect())
        }
    }

    #[test]
    fn local_takes_those_of_the_site_or_one() {
        let taken = |names: &[&'static str]| {
            let mut ranked: Vec<(u32, &str)> = names
                .iter()
                .filter_map(|at| Some((ReplicaSelector::Local.priority("a", at, "http://h/x")?, *at)))
                .collect();
            ranked.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
            ReplicaSelector::Local.settle(&mut ranked, |(_, at)| *at == "a");
            ranked.into_iter().map(|(_, at)| at).collect::<Vec<_>>()
        };
        assert_eq!(taken(&["b", "a", "c", "a"]), ["a", "a"]);
        assert_eq!(taken(&["b", "c"]), ["b"]);
        let mut all = vec!["b", "c"];
        ReplicaSelector::Default.settle(&mut all, |_| false);
        assert_eq!(all, ["b", "c"]);
    }

    #[test]
    fn files_on_the_site_are_the_best() {
        let selector = ReplicaSelector::Default;
        assert_eq!(selector.priority("a", "a", "file:///x"), Some(100));
        assert_eq!(selector.priority("a", "a", "/x"), Some(50));
        assert_eq!(selector.priority("a", "b", "http://b/x"), Some(10));
        assert!(!made(&[(KEY, "local")]).expect("a selector").ranks());
    }

    #[test]
    fn ranks_of_patterns() {
        let selector = made(&[
            (KEY, "Regex"),
            ("pegasus.selector.replica.regex.rank.10", "http://.*"),
            (
                "pegasus.selector.replica.regex.rank.2",
                "gsiftp://near\\.example\\.org/.*",
            ),
            ("pegasus.selector.replica.regex.rank.1", "file:///scratch/.*"),
        ])
        .expect("a selector");
        assert_eq!(selector.priority("a", "a", "file:///scratch/x"), Some(900));
        assert_eq!(
            selector.priority("a", "a", "gsiftp://near.example.org/x"),
            Some(800)
        );
        assert_eq!(selector.priority("a", "a", "http://h/x"), Some(0));
        assert_eq!(selector.priority("a", "a", "xhttp://h/x"), None);
        let problems = made(&[
            (KEY, "regex"),
            ("pegasus.selector.replica.regex.rank.x", ".*"),
            ("pegasus.selector.replica.regex.rank.1", "a("),
        ])
        .expect_err("wrong");
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(made(&[(KEY, "regex")]).is_err());
        let problems = made(&[(KEY, "Restriced")]).expect_err("wrong");
        assert!(problems[0].contains("did you mean Restricted?"), "{problems:?}");
    }

    #[test]
    fn restrictions_of_a_site_come_before_those_of_all() {
        let selector = made(&[
            (KEY, "Restricted"),
            ("pegasus.selector.replica.*.ignore.stagein.sites", "slow, far"),
            ("pegasus.selector.replica.*.prefer.stagein.sites", "far"),
            ("pegasus.selector.replica.a.prefer.stagein.sites", "slow"),
            ("pegasus.selector.replica.b.ignore.stagein.sites", "*"),
        ])
        .expect("a selector");
        let of = |destination, at| selector.priority(destination, at, "http://h/x");
        assert_eq!(of("a", "slow"), Some(50));
        assert_eq!(of("c", "slow"), None);
        assert_eq!(of("c", "far"), Some(50), "preferred wins");
        assert_eq!(of("c", "c"), Some(10));
        assert_eq!(of("b", "far"), None);
        assert_eq!(selector.priority("c", "c", "file:///x"), Some(100));
        let problems = made(&[
            (KEY, "Restricted"),
            ("pegasus.selector.replica.a.prefers.stagein.sites", "x"),
        ])
        .expect_err("wrong");
        assert!(
            problems[0].contains("must be SITE.prefer.stagein.sites"),
            "{problems:?}"
        );
        // Without preferences, it equals the selector Default.
        let selector = made(&[(KEY, "Restricted")]).expect("a selector");
        assert_eq!(selector.priority("a", "a", "/x"), Some(50));
    }
}
