//! Files and profiles that a cluster inherits from its jobs.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::model::{FileId, FileKind, FileUse, JobIndex, Link, TransferFlag, Workflow};
use crate::profiles::{Namespace, Profiles, parse_bool};

/// Returns the files that the jobs use. A file written by one job and read by another is an output only.
pub(super) fn uses(workflow: &Workflow, jobs: &[JobIndex]) -> Vec<FileUse> {
    let of = |job: JobIndex| &workflow.jobs[job].uses;
    let mut writers: FxHashMap<FileId, JobIndex> = FxHashMap::default();
    for &job in jobs {
        for file_use in of(job).iter().filter(|u| u.link.writes()) {
            writers.entry(file_use.file).or_insert(job);
        }
    }
    let mut places: FxHashMap<FileId, usize> = FxHashMap::default();
    let mut all: Vec<FileUse> = Vec::new();
    for &job in jobs {
        for file_use in of(job) {
            if !file_use.link.reads() && !file_use.link.writes() {
                continue;
            }
            let writer = writers.get(&file_use.file);
            if file_use.link == Link::Input && writer.is_some_and(|&writer| writer != job) {
                continue;
            }
            let Some(&place) = places.get(&file_use.file) else {
                places.insert(file_use.file, all.len());
                all.push(file_use.clone());
                continue;
            };
            let together = &mut all[place];
            together.optional &= file_use.optional;
            together.bypass &= file_use.bypass;
            together.register |= file_use.register;
            if together.transfer == TransferFlag::Not && file_use.link.writes() {
                together.transfer = file_use.transfer;
            }
            if file_use.kind == FileKind::Executable {
                together.kind = FileKind::Executable;
            }
        }
    }
    all
}

/// Keys that apply to each job of a cluster separately.
fn is_of_the_job(namespace: Namespace, key: &str) -> bool {
    match namespace {
        Namespace::Env | Namespace::Metadata | Namespace::Selector => true,
        Namespace::Pegasus => {
            key.starts_with("gridstart")
                || key.starts_with("pmc_")
                || matches!(
                    key,
                    "memory"
                        | "cores"
                        | "gpus"
                        | "diskspace"
                        | "checkpoint.time"
                        | "create.dir"
                        | "change.dir"
                )
        }
        Namespace::Condor => key.starts_with("request_"),
        Namespace::Dagman => key == "priority",
        Namespace::Globus => matches!(key, "count" | "maxmemory" | "totalmemory"),
        Namespace::Stat => false,
    }
}

/// How values of one key are combined, if not by the last value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    Sum,
    Most,
    Any,
    All,
}

/// How a profile of the jobs becomes one of their cluster, as in the original. Resources are not looked up
/// here, but from job to job.
fn rule(namespace: Namespace, key: &str) -> Option<Rule> {
    Some(match (namespace, key) {
        (Namespace::Pegasus, "runtime" | "maxwalltime")
        | (Namespace::Globus, "maxtime" | "maxcputime" | "maxwalltime") => Rule::Sum,
        (Namespace::Pegasus, "nodes" | "ppn") | (Namespace::Globus, "minmemory") => Rule::Most,
        (Namespace::Pegasus, "nosymlink") => Rule::Any,
        (Namespace::Pegasus, "exitcode.failuremsg" | "exitcode.successmsg") => Rule::All,
        _ => return None,
    })
}

/// Returns the profiles of a cluster: the sum of times, the maximum of sizes, and the last of other values.
pub(super) fn profiles<'p>(jobs: impl Iterator<Item = &'p Profiles>) -> Profiles {
    let mut all = Profiles::default();
    let mut before: Option<*const Profiles> = None;
    let mut sums: FxHashMap<(Namespace, &'p str), f64> = FxHashMap::default();
    let mut joined: FxHashMap<(Namespace, &'p str), Joined<'p>> = FxHashMap::default();
    for profiles in jobs {
        // Most jobs of a cluster share one set of profiles, of which only sums change.
        let same = before.replace(profiles) == Some(profiles);
        for (namespace, key, value) in profiles.iter() {
            let rule = rule(namespace, key);
            if is_of_the_job(namespace, key) || (same && rule != Some(Rule::Sum)) {
                continue;
            }
            let old = all.get(namespace, key);
            match (rule, value.trim().parse::<f64>().ok()) {
                (Some(Rule::Sum), Some(number)) => *sums.entry((namespace, key)).or_default() += number,
                (Some(Rule::Most), Some(number)) => {
                    if old
                        .and_then(|o| o.trim().parse::<f64>().ok())
                        .is_none_or(|o| o < number)
                    {
                        all.set(namespace, key, value);
                    }
                }
                (Some(Rule::Any), _) => {
                    if old.and_then(parse_bool) != Some(true) {
                        all.set(namespace, key, value);
                    }
                }
                (Some(Rule::All), _) => joined.entry((namespace, key)).or_default().add(value),
                _ => all.set(namespace, key, value),
            }
        }
    }
    for ((namespace, key), sum) in sums {
        all.set(namespace, key, &sum.to_string());
    }
    for ((namespace, key), joined) in joined {
        all.set(namespace, key, &joined.values.join("@"));
    }
    all
}

/// Values that become one, with `@` between them.
#[derive(Default)]
struct Joined<'p> {
    values: Vec<&'p str>,
    parts: FxHashSet<&'p str>,
}

impl<'p> Joined<'p> {
    /// Adds a value that is not there yet.
    fn add(&mut self, value: &'p str) {
        if !self.parts.contains(value) {
            self.values.push(value);
            self.parts.extend(value.split('@'));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: &[(Namespace, &str, &str)]) -> Profiles {
        let mut profiles = Profiles::default();
        for (namespace, key, value) in entries {
            profiles.set(*namespace, key, value);
        }
        profiles
    }

    #[test]
    fn times_add_up_and_the_largest_size_counts() {
        use Namespace::{Dagman, Env, Globus, Pegasus};
        let a = of(&[
            (Pegasus, "runtime", "30"),
            (Pegasus, "nosymlink", "true"),
            (Pegasus, "ppn", "2"),
            (Globus, "maxwalltime", "5"),
            (Globus, "minmemory", "900"),
            (Dagman, "retry", "3"),
            (Env, "A", "1"),
            (Pegasus, "exitcode.failuremsg", "bad"),
        ]);
        let b = of(&[
            (Pegasus, "runtime", "1.5"),
            (Pegasus, "nosymlink", "false"),
            (Pegasus, "ppn", "1"),
            (Globus, "maxwalltime", "7"),
            (Globus, "minmemory", "80"),
            (Dagman, "retry", "2"),
            (Pegasus, "memory", "7"),
            (Pegasus, "exitcode.failuremsg", "worse"),
        ]);
        let merged = profiles([&a, &a, &b].into_iter());
        let expected = of(&[
            (Pegasus, "runtime", "61.5"),
            (Pegasus, "nosymlink", "true"),
            (Pegasus, "ppn", "2"),
            (Globus, "maxwalltime", "17"),
            (Globus, "minmemory", "900"),
            (Dagman, "retry", "2"),
            (Pegasus, "exitcode.failuremsg", "bad@worse"),
        ]);
        assert_eq!(merged, expected);
    }
    #[test]
    fn different_messages_of_many_jobs_are_joined_at_once() {
        use Namespace::Pegasus;
        let key = "exitcode.failuremsg";
        let of_jobs: Vec<Profiles> = (0..50_000)
            .map(|job| of(&[(Pegasus, key, &format!("message {}", job % 40_000))]))
            .collect();
        let merged = profiles(of_jobs.iter());
        let joined = merged.pegasus(key).unwrap();
        assert_eq!(joined.split('@').count(), 40_000);
        assert!(joined.starts_with("message 0@message 1@"));
    }
}
