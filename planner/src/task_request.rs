//! What a task requests: memory, CPUs, GPUs, priority, attempts, from the profile keys that can say it.
//!
//! Keys of pegasus-mpi-cluster win, then those of Pegasus, then those of HTCondor and Globus, whose
//! values are used where they are numbers; of an expression of HTCondor, the largest number that it can be.

use pmc_dag::GangOptions;

use crate::classad;
use crate::profiles::{Namespace, Profiles, megabytes};

/// A profile key.
pub(crate) type ProfileKey = (Namespace, &'static str);

/// Keys of the memory, in MB; the first that is set counts.
pub(crate) const MEMORY: &[ProfileKey] = &[
    (Namespace::Pegasus, "pmc_request_memory"),
    (Namespace::Pegasus, "memory"),
    (Namespace::Condor, "request_memory"),
    (Namespace::Globus, "maxmemory"),
    (Namespace::Globus, "totalmemory"),
];
/// Keys of the number of CPUs.
pub(crate) const CPUS: &[ProfileKey] = &[
    (Namespace::Pegasus, "pmc_request_cpus"),
    (Namespace::Pegasus, "cores"),
    (Namespace::Condor, "request_cpus"),
    (Namespace::Globus, "count"),
];
/// Keys of the number of GPUs.
pub(crate) const GPUS: &[ProfileKey] = &[
    (Namespace::Pegasus, "pmc_request_gpus"),
    (Namespace::Pegasus, "gpus"),
    (Namespace::Condor, "request_gpus"),
];
/// Keys of the priority.
pub(crate) const PRIORITY: &[ProfileKey] = &[
    (Namespace::Pegasus, "pmc_priority"),
    (Namespace::Dagman, "priority"),
];

/// Returns the first of these keys that is set, and its value. Units of HTCondor become MB. Values of
/// HTCondor and Globus that are no numbers do not count.
pub(crate) fn find<'p>(profiles: &'p Profiles, keys: &[ProfileKey]) -> Option<(ProfileKey, Value<'p>)> {
    keys.iter().find_map(|&(namespace, key)| {
        let text = profiles.get(namespace, key)?.trim();
        let value = match namespace {
            Namespace::Condor => Value::Number(number(key, text).or_else(|| largest(key, text))?),
            Namespace::Globus => Value::Number(number(key, text)?),
            _ if text.is_empty() => return None,
            _ => Value::Text(text),
        };
        Some(((namespace, key), value))
    })
}

/// Default resources of a compute job: MB of memory, cores, MB of disk.
pub(crate) const DEFAULTS: [(&str, &str); 3] = [("memory", "2048"), ("cores", "1"), ("diskspace", "5120")];

/// Returns whether a default of the planner is needed: neither a key of Pegasus nor one of another
/// system is set.
pub(crate) fn needs_default(profiles: &Profiles, key: &str) -> bool {
    let keys = match key {
        "memory" => MEMORY,
        "cores" => CPUS,
        _ => &[],
    };
    // Keys of pegasus-mpi-cluster do not count: they do not reach the statistics.
    profiles.pegasus(key).is_none() && find(profiles, keys.get(2..).unwrap_or_default()).is_none()
}

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'p> {
    /// As it was written.
    Text(&'p str),
    /// A number, in the unit of the task option.
    Number(u64),
}

impl Value<'_> {
    /// Returns the value as text.
    pub(crate) fn text(&self) -> String {
        match self {
            Value::Text(text) => (*text).to_owned(),
            Value::Number(number) => number.to_string(),
        }
    }
}

/// What a task requests, as numbers. Values that are no numbers count as no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Amounts {
    /// MiB of memory, or 0.
    pub(crate) memory_mb: u64,
    /// CPUs, at least 1.
    pub(crate) cpus: u32,
    /// GPUs.
    pub(crate) gpus: u32,
}

impl Amounts {
    /// Returns the requests in these profiles.
    pub(crate) fn of(profiles: &Profiles) -> Self {
        let number = |keys| match find(profiles, keys)?.1 {
            Value::Number(number) => Some(number),
            Value::Text(text) => text.parse::<f64>().ok().map(|number| number as u64),
        };
        let small = |keys| number(keys).map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX));
        Self {
            memory_mb: number(MEMORY).unwrap_or(0),
            cpus: small(CPUS).max(1),
            gpus: small(GPUS),
        }
    }
}

/// Returns the CPUs of a rank of a job over several nodes. Other keys of the CPUs count its ranks.
pub(crate) fn cpus_of_rank(profiles: &Profiles) -> u32 {
    let text = profiles.pegasus("pmc_request_cpus");
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(1).max(1)
}

/// Returns the processes that a job starts on a node, by its own profiles or those of its program: each needs
/// a CPU. In the profiles of a site, the same keys size the batch job.
pub(crate) fn processes(own: &Profiles) -> Option<&str> {
    let keys = [(Namespace::Pegasus, "ppn"), (Namespace::Globus, "xcount")];
    let text = keys
        .iter()
        .find_map(|&(namespace, key)| own.get(namespace, key))?
        .trim();
    text.parse::<u32>().ok().filter(|&count| count > 0)?;
    Some(text)
}

/// The hosts that a job asks for, if they are several, and its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobNodes {
    pub(crate) nodes: u32,
    /// Processes on each.
    pub(crate) per_node: Option<u32>,
    /// All processes.
    pub(crate) ranks: Option<u32>,
}

impl JobNodes {
    /// Reads the profiles of program and job: in those of a site, the same keys size the batch job. The first
    /// that has a key counts.
    pub(crate) fn of(own: [Option<&Profiles>; 2]) -> Option<Self> {
        let number = |keys: [ProfileKey; 2]| {
            let values = own
                .into_iter()
                .flatten()
                .flat_map(|own| keys.map(|(space, key)| own.get(space, key)));
            let count = values.flatten().find_map(|text| text.trim().parse::<u32>().ok());
            count.filter(|count| *count > 0)
        };
        let pegasus_or_globus =
            |pegasus, globus| number([(Namespace::Pegasus, pegasus), (Namespace::Globus, globus)]);
        let nodes = pegasus_or_globus("nodes", "hostcount").filter(|nodes| *nodes > 1)?;
        Some(Self {
            nodes,
            per_node: pegasus_or_globus("ppn", "xcount"),
            // One core, the default, is then one for each.
            ranks: pegasus_or_globus("cores", "count").filter(|ranks| *ranks > 1),
        })
    }

    /// All processes.
    pub(crate) fn ranks(self) -> u32 {
        let product = self.nodes.saturating_mul(self.per_node.unwrap_or(1));
        self.ranks.unwrap_or(product)
    }

    /// The most processes on a node.
    pub(crate) fn most_on_a_node(self) -> u32 {
        self.per_node.unwrap_or_else(|| self.ranks().div_ceil(self.nodes))
    }

    /// Returns the options of the task.
    ///
    /// # Errors
    /// The numbers contradict each other.
    pub(crate) fn options(self) -> Result<GangOptions, String> {
        let Self {
            nodes,
            per_node,
            ranks,
        } = self;
        if let (Some(per_node), Some(ranks)) = (per_node, ranks)
            && nodes.checked_mul(per_node) != Some(ranks)
        {
            return Err(format!(
                "{nodes} nodes with {per_node} processes each (ppn) are not {ranks} processes (cores)"
            ));
        }
        let options = GangOptions {
            nodes: Some(nodes),
            ranks: ranks.filter(|_| per_node.is_none()),
            per_node,
            ..GangOptions::default()
        };
        options.gang().map_err(|why| why.to_string())?;
        Ok(options)
    }
}

/// Returns the expected run time in seconds, if the profiles declare one.
pub(crate) fn run_time(profiles: &Profiles) -> Option<f64> {
    let seconds: f64 = profiles.pegasus("runtime")?.trim().parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
}

/// Returns whether a value of the profile `gridstart` means that no kickstart wraps the program.
pub(crate) fn is_no_wrapper(gridstart: &str) -> bool {
    let gridstart = gridstart.trim();
    let words = ["none", "nogridstart", "pegasuslite.none"];
    words.iter().any(|word| gridstart.eq_ignore_ascii_case(word))
}

/// Returns whether a value of HTCondor is a number, not an expression.
pub(crate) fn is_number(key: &str, text: &str) -> bool {
    number(key, text).is_some()
}

/// Keys of HTCondor whose values may be expressions.
pub(crate) const EXPRESSIONS: [ProfileKey; 3] = [
    (Namespace::Condor, "request_memory"),
    (Namespace::Condor, "request_cpus"),
    (Namespace::Condor, "request_gpus"),
];

/// Returns the largest value that an expression of HTCondor can be, in the unit of the task option.
pub(crate) fn largest(key: &str, text: &str) -> Option<u64> {
    let value = classad::largest(text, |text| number(key, text).map(|number| number as f64))?;
    (1.0..9e15).contains(&value).then_some(value.ceil() as u64)
}

/// Parses a value of HTCondor or Globus. Disk space without a unit is in KiB.
fn number(key: &str, text: &str) -> Option<u64> {
    let text = text.trim();
    match key {
        "request_memory" => megabytes(text),
        "request_disk" => match text.parse::<u64>() {
            Ok(count) => Some(count.div_ceil(1024)),
            Err(_) => megabytes(text),
        },
        _ => text.parse().ok(),
    }
}

/// Returns the attempts that a task has: one more than the retries of the profile `dagman::retry`;
/// `None` without the profile.
///
/// # Errors
/// The value, if it is not a whole number.
pub(crate) fn tries(profiles: &Profiles) -> Result<Option<u32>, &str> {
    match profiles.get(Namespace::Dagman, "retry").map(str::trim) {
        None | Some("") => Ok(None),
        Some(text) => match text.parse::<u32>() {
            Ok(retries) => Ok(Some(retries.saturating_add(1))),
            Err(_) => Err(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profiles(entries: &[(Namespace, &str, &str)]) -> Profiles {
        let mut profiles = Profiles::default();
        for (namespace, key, value) in entries {
            profiles.set(*namespace, key, value);
        }
        profiles
    }

    #[test]
    fn memory_has_the_units_of_htcondor() {
        for (text, mb) in [
            ("2048", Some(2048)),
            ("2 GB", Some(2048)),
            ("1g", Some(1024)),
            ("1025K", Some(2)),
            ("3T", Some(3 << 20)),
            ("B", None),
            ("2 X", None),
            ("1.5G", None),
            ("-1", None),
            ("ifThenElse(x, 1, 2)", None),
            ("99999999999999P", None),
            ("é", None),
        ] {
            assert_eq!(number("request_memory", text), mb, "{text}");
        }
        assert_eq!(number("request_disk", "2049"), Some(3));
        assert_eq!(number("request_cpus", "4G"), None);
    }

    #[test]
    fn keys_of_pegasus_precede_those_of_other_systems() {
        use Namespace::{Condor, Globus, Pegasus};
        let mut all = vec![(Globus, "maxMemory", "1"), (Condor, "Request_Memory", "2")];
        let mb = |all: &[_]| find(&profiles(all), MEMORY).map(|(_, value)| value.text());
        assert_eq!(mb(&all), Some("2".into()));
        all.push((Pegasus, "memory", "3"));
        assert_eq!(mb(&all), Some("3".into()));
        all.push((Pegasus, "pmc_request_memory", "4"));
        assert_eq!(mb(&all), Some("4".into()));
        assert_eq!(mb(&[(Condor, "request_memory", "$(MEM)")]), None);
    }

    #[test]
    fn amounts_count_the_keys_of_all_systems() {
        use Namespace::{Condor, Globus, Pegasus};
        let amounts = |entries: &[_]| {
            let Amounts {
                memory_mb,
                cpus,
                gpus,
            } = Amounts::of(&profiles(entries));
            (memory_mb, cpus, gpus)
        };
        assert_eq!(amounts(&[]), (0, 1, 0));
        let condor = [
            (Condor, "request_memory", "4GB"),
            (Condor, "request_cpus", "2"),
            (Condor, "request_gpus", "1"),
        ];
        assert_eq!(amounts(&condor), (4096, 2, 1));
        let globus = [(Globus, "maxmemory", "100"), (Globus, "count", "8")];
        assert_eq!(amounts(&globus), (100, 8, 0));
        let pegasus = [(Pegasus, "memory", "100.7"), (Pegasus, "gpus", "2")];
        assert_eq!(amounts(&pegasus), (100, 1, 2));
        assert_eq!(amounts(&[(Pegasus, "cores", "many")]), (0, 1, 0));
    }

    #[test]
    fn a_rank_has_a_cpu_if_nothing_else_is_said() {
        use Namespace::Pegasus;
        for (text, cpus) in [(" 4 ", 4), ("0", 1), ("many", 1)] {
            assert_eq!(
                cpus_of_rank(&profiles(&[(Pegasus, "pmc_request_cpus", text)])),
                cpus
            );
        }
        assert_eq!(cpus_of_rank(&profiles(&[(Pegasus, "cores", "8")])), 1);
    }

    #[test]
    fn retries_are_further_attempts() {
        let retry = |text| profiles(&[(Namespace::Dagman, "RETRY", text)]);
        assert_eq!(tries(&retry("3")), Ok(Some(4)));
        assert_eq!(tries(&retry("0")), Ok(Some(1)));
        assert_eq!(tries(&profiles(&[])), Ok(None));
        assert_eq!(tries(&retry("often")), Err("often"));
    }
}
