//! What the batch system leaves this process of its machine: variables of the scheduler, control groups.
//!
//! The affinity mask and quotas of CPU time are the system's own: see [`crate::host::usable_cpus`].

use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Variables with the CPUs of the batch job on this node: Slurm (of the step, of the job), Torque, PBS.
const CPUS: [&str; 4] = [
    "SLURM_CPUS_ON_NODE",
    "SLURM_JOB_CPUS_PER_NODE",
    "PBS_NUM_PPN",
    "NCPUS",
];

/// CPUs and memory of a batch job on this node, where known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) cpus: Option<u32>,
    pub(crate) memory_mb: Option<u64>,
}

impl Allocation {
    /// Returns the allocation of a process with this environment on this host.
    pub(crate) fn of(environment: &[(OsString, OsString)], host: &str) -> Self {
        let value = |name: &str| {
            let found = environment.iter().find(|(other, _)| other == name);
            found.and_then(|(_, value)| value.to_str())
        };
        let Self { cpus, memory_mb } = Self::of_variables(value, host);
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let group = group_memory_mb(&groups, Path::new("/sys/fs/cgroup"));
        Self {
            cpus,
            memory_mb: [memory_mb, group].into_iter().flatten().min(),
        }
    }

    fn of_variables<'v>(value: impl Fn(&str) -> Option<&'v str>, host: &str) -> Self {
        // Outside a PBS job, NCPUS may be anything.
        let is_pbs = value("PBS_JOBID").is_some();
        let of_job = |name: &&&str| name.starts_with("SLURM_") || is_pbs;
        let number = |name: &str| value(name).and_then(same_on_all_nodes);
        let cpus = CPUS.iter().filter(of_job).find_map(|name| number(name));
        let cpus = cpus.or_else(|| of_host(value("LSB_MCPU_HOSTS")?, host));
        let memory_mb = match value("SLURM_MEM_PER_NODE") {
            Some(text) => megabytes(text),
            None => value("SLURM_MEM_PER_CPU")
                .and_then(megabytes)
                .zip(cpus)
                .map(|(mb, cpus)| mb.saturating_mul(cpus.into())),
        };
        Self {
            cpus,
            // 0 stands for all memory of the node.
            memory_mb: memory_mb.filter(|mb| *mb > 0),
        }
    }
}

/// Reads a number of CPUs that holds for this node: `4` or `4(x3)`, but not `4,2`.
fn same_on_all_nodes(text: &str) -> Option<u32> {
    let first = text.trim().split('(').next()?;
    let is_list = text.contains(',');
    first.parse().ok().filter(|cpus| *cpus > 0 && !is_list)
}

/// Finds the CPUs of a host in LSF's list `HOST CPUS HOST CPUS …`.
fn of_host(list: &str, host: &str) -> Option<u32> {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let mut words = list.split_whitespace();
    while let (Some(name), Some(cpus)) = (words.next(), words.next()) {
        if short(name) == short(host) {
            return cpus.parse().ok().filter(|cpus| *cpus > 0);
        }
    }
    None
}

/// Reads an amount of memory of Slurm: in MB, or with a unit.
fn megabytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "M" | "MB" => Some(number),
        "K" | "KB" => Some(number / 1024),
        "G" | "GB" => number.checked_mul(1 << 10),
        "T" | "TB" => number.checked_mul(1 << 20),
        _ => None,
    }
}

/// Returns the smallest limit of the control groups of a process and the groups around them, in MB. `groups`
/// is the text of `/proc/self/cgroup`, `root` the directory of control groups.
fn group_memory_mb(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let controllers = parts.next().unwrap_or_default();
        let group = parts.next().unwrap_or_default().trim_start_matches('/');
        let (root, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            _ => (root.join("memory"), "memory.limit_in_bytes"),
        };
        let counts = controllers.is_empty() || controllers.split(',').any(|name| name == "memory");
        let around = root.join(group);
        let groups = around.ancestors();
        let groups = groups.take_while(|directory| counts && directory.starts_with(&root));
        let read = |directory: &Path| fs::read_to_string(directory.join(file)).ok();
        groups
            .filter_map(|directory| read(directory)?.trim().parse::<u64>().ok())
            .min()
    });
    limits.min().map(|bytes| bytes >> 20).filter(|mb| *mb > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &'static str)]) -> (Option<u32>, Option<u64>) {
        let value = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| *value)
        };
        let Allocation { cpus, memory_mb } = Allocation::of_variables(value, "n2.cluster");
        (cpus, memory_mb)
    }

    #[test]
    fn variables_of_schedulers_size_a_shared_node() {
        let step = ("SLURM_CPUS_ON_NODE", "2");
        assert_eq!(of(&[]), (None, None));
        assert_eq!(of(&[step, ("SLURM_MEM_PER_NODE", "500")]), (Some(2), Some(500)));
        assert_eq!(of(&[step, ("SLURM_MEM_PER_CPU", "300")]), (Some(2), Some(600)));
        // The second is that of the job from which this one was submitted.
        let both = [("SLURM_MEM_PER_NODE", "4G"), ("SLURM_MEM_PER_CPU", "300")];
        assert_eq!(of(&both), (None, Some(4096)));
        assert_eq!(of(&[step, ("SLURM_MEM_PER_NODE", "0")]), (Some(2), None));
        assert_eq!(of(&[("SLURM_JOB_CPUS_PER_NODE", "4(x3)")]), (Some(4), None));
        assert_eq!(of(&[("SLURM_JOB_CPUS_PER_NODE", "4,2(x2)")]), (None, None));
        let pbs = ("PBS_JOBID", "7.head");
        assert_eq!(of(&[pbs, ("NCPUS", "8")]), (Some(8), None));
        assert_eq!(of(&[pbs, ("PBS_NUM_PPN", "3"), ("NCPUS", "1")]), (Some(3), None));
        assert_eq!(of(&[("NCPUS", "8")]), (None, None));
        assert_eq!(of(&[("LSB_MCPU_HOSTS", "n1 4 n2 6 ")]), (Some(6), None));
    }

    #[test]
    fn the_smallest_control_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let of = |groups: &str| group_memory_mb(groups, root.path());
        assert_eq!(of("0::/job/step\n"), None);
        put("job/step/memory.max", "max\n");
        put("job/memory.max", "524288000\n");
        assert_eq!(of("0::/job/step\n"), Some(500));
        put("job/step/memory.max", "104857600\n");
        assert_eq!(of("0::/job/step\n"), Some(100));
        put("memory/slurm/memory.limit_in_bytes", "1048576000\n");
        assert_eq!(of("5:cpu,memory:/slurm/x\n3:cpuset:/job\n"), Some(1000));
    }
}
