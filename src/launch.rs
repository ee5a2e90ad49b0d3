//! Was this process started by an MPI launcher?
//!
//! A launcher tells its processes who they are through variables. Slurm sets many of its
//! variables in a batch script, too, where no launcher is at work: only those that a launcher or a
//! job step sets count here.

use std::ffi::OsString;

/// How this process was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// By hand or by a script: one process.
    Alone,
    /// By a launcher as one of several processes (or as the only one, if it was told so).
    Launched {
        /// The variable that says so.
        sign: &'static str,
        /// Rank of this process, if it is said.
        rank: Option<u32>,
        /// Number of processes, if it is said.
        size: Option<u32>,
    },
}

impl Launch {
    /// Whether this process speaks for all: the first one, or one that does not know.
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

/// Looks at the environment.
#[must_use]
pub fn detect(environment: impl Fn(&str) -> Option<OsString>) -> Launch {
    let number = |name: &str| environment(name)?.to_str()?.parse::<u32>().ok();
    // srun without a fitting plugin starts single processes that know of each other only through
    // Slurm's variables. A step of one task is what `srun --pty bash` makes: nothing to talk to.
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
        if step_tasks == Some(1) {
            return Launch::Alone;
        }
        return Launch::Launched {
            sign: "PMIX_RANK",
            rank: Some(n),
            size: step_tasks,
        };
    }
    match step_tasks {
        Some(tasks) if tasks > 1 => {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Launch {
        detect(|name| {
            variables
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| OsString::from(v))
        })
    }

    #[test]
    fn launchers() {
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
    fn alone() {
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
}
