//! Detects whether an MPI launcher started this process.
//!
//! A launcher sets variables with rank and size. Slurm sets many of its variables in a batch script, too,
//! without a launcher. So only variables that a launcher or a job step sets count here.

use std::ffi::OsString;

/// How this process was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// Without a launcher, as a single process.
    Alone,
    /// By a launcher, as one of one or more processes.
    Launched {
        /// The variable that shows it.
        sign: &'static str,
        /// Rank of this process, if known.
        rank: Option<u32>,
        /// Number of processes, if known.
        size: Option<u32>,
    },
}

impl Launch {
    /// Returns whether this process prints messages for all: rank 0, or an unknown rank.
    #[must_use]
    pub fn is_first(&self) -> bool {
        match self {
            Self::Alone => true,
            Self::Launched { rank, .. } => rank.unwrap_or(0) == 0,
        }
    }
}

/// Variables for rank and size: Open MPI; MPICH, Intel MPI and `srun --mpi=pmi2`; MVAPICH; Cray.
const LAUNCHERS: [(&str, &str); 4] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PALS_RANKID", "PALS_SIZE"),
];

/// Variable with the process that Slurm has started: a task of a job step, or a batch script.
pub(crate) const SLURM_PROCESS: &str = "SLURM_TASK_PID";

/// Detects a launcher by the environment. `is_batch_script` tells of the process that Slurm has started
/// whether it is a batch script. Such a script inherits the variables of the step that has submitted it.
#[must_use]
pub fn detect(
    environment: impl Fn(&str) -> Option<OsString>,
    is_batch_script: impl Fn(u32) -> bool,
) -> Launch {
    let number = |name: &str| environment(name)?.to_str()?.parse::<u32>().ok();
    let is_inherited = || number(SLURM_PROCESS).is_some_and(&is_batch_script);
    // Without a matching plugin, srun starts processes that know of each other only through Slurm's
    // variables. A step with one task is no parallel run: `srun --pty bash` makes one.
    let step_tasks = number("SLURM_STEP_NUM_TASKS");
    for (rank, size) in LAUNCHERS {
        if let Some(n) = number(rank) {
            return Launch::Launched {
                sign: rank,
                rank: Some(n),
                size: number(size),
            };
        }
    }
    if let Some(n) = number("PMIX_RANK") {
        if step_tasks == Some(1) || is_inherited() {
            return Launch::Alone;
        }
        return Launch::Launched {
            sign: "PMIX_RANK",
            rank: Some(n),
            size: step_tasks,
        };
    }
    match step_tasks {
        Some(tasks) if tasks > 1 && !is_inherited() => {
            let rank = number("SLURM_PROCID");
            Launch::Launched {
                sign: "SLURM_STEP_NUM_TASKS",
                rank,
                size: Some(tasks),
            }
        }
        _ => Launch::Alone,
    }
}

/// Returns whether a process that Slurm has started is a batch script: the name of what has started it says
/// so. False if that cannot be known.
#[must_use]
pub fn is_batch_script(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let parent = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_ascii_whitespace().nth(1));
    let Some(parent) = parent else { return false };
    let name = std::fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
    // "slurmstepd: [12.batch]"
    let name = String::from_utf8_lossy(&name);
    name.starts_with("slurmstepd: [") && name.contains(".batch]")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Launch {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(n, _)| *n == name);
            found.map(|(_, v)| OsString::from(v))
        };
        detect(lookup, |process| process == 77)
    }

    #[test]
    fn launchers_are_detected() {
        for (variables, rank, size) in [
            (
                &[
                    ("OMPI_COMM_WORLD_RANK", "2"),
                    ("OMPI_COMM_WORLD_SIZE", "4"),
                    ("PMIX_RANK", "2"),
                ][..],
                2,
                4,
            ),
            (
                &[
                    ("PMI_RANK", "0"),
                    ("PMI_SIZE", "1"),
                    ("SLURM_STEP_NUM_TASKS", "1"),
                ],
                0,
                1,
            ),
            (&[("PMIX_RANK", "1"), ("SLURM_STEP_NUM_TASKS", "3")], 1, 3),
            (&[("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_PROCID", "1")], 1, 2),
        ] {
            match with(variables) {
                Launch::Launched { rank: r, size: s, .. } => assert_eq!((r, s), (Some(rank), Some(size))),
                Launch::Alone => panic!("{variables:?}"),
            }
        }
        assert!(!with(&[("PMI_RANK", "3")]).is_first());
        assert!(with(&[("PMI_RANK", "0")]).is_first());
    }

    #[test]
    fn batch_script_is_no_launcher() {
        assert_eq!(with(&[]), Launch::Alone);
        let batch = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_NNODES", "2"),
        ];
        assert_eq!(with(&batch), Launch::Alone);
        assert_eq!(
            with(&[("SLURM_STEP_NUM_TASKS", "1"), ("PMIX_RANK", "0")]),
            Launch::Alone
        );
        assert!(Launch::Alone.is_first());
    }

    #[test]
    fn a_batch_script_that_a_step_has_submitted_is_no_launcher() {
        for sign in [("SLURM_STEP_NUM_TASKS", "2"), ("PMIX_RANK", "1")] {
            assert_eq!(with(&[sign, (SLURM_PROCESS, "77")]), Launch::Alone);
            assert_ne!(with(&[sign, (SLURM_PROCESS, "78")]), Launch::Alone);
        }
        // A launcher in the script.
        assert_ne!(
            with(&[("OMPI_COMM_WORLD_RANK", "0"), (SLURM_PROCESS, "77")]),
            Launch::Alone
        );
    }
}
