//! Which of the processes of a task this one is.

/// The rank of a process, and the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// The rank, from 0.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
}

/// Variables with rank and number of ranks, those of Open MPI and PRRTE, of MPICH and what has its launcher,
/// of MVAPICH, and of Slurm. No MPI library is asked.
const VARIABLES: [(&str, &str); 5] = [
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "SLURM_NTASKS"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

impl Process {
    /// Finds out which process this is from variables. Without a launcher, it is the only one.
    pub fn find(variable: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name| variable(name)?.parse::<u32>().ok();
        let find = |(rank, ranks)| {
            let found = Self {
                rank: number(rank)?,
                ranks: number(ranks)?,
            };
            (found.rank < found.ranks).then_some(found)
        };
        let alone = Self { rank: 0, ranks: 1 };
        VARIABLES.into_iter().find_map(find).unwrap_or(alone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_says_which_process_this_is() {
        let find = |variables: &'static [(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(own, _)| *own == name);
            let Process { rank, ranks } =
                Process::find(|name| find(name).map(|(_, value)| (*value).to_owned()));
            (rank, ranks)
        };
        assert_eq!(find(&[]), (0, 1));
        assert_eq!(find(&[("PMI_RANK", "3"), ("PMI_SIZE", "4")]), (3, 4));
        assert_eq!(
            find(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]),
            (1, 2)
        );
        // A task of one process in a batch job of eight tasks.
        assert_eq!(find(&[("SLURM_NTASKS", "8")]), (0, 1));
        assert_eq!(find(&[("SLURM_PROCID", "7"), ("SLURM_NTASKS", "8")]), (7, 8));
        for wrong in ["4", "-1", "x", ""] {
            let value = wrong.to_owned();
            let found = Process::find(|name| match name {
                "PMI_RANK" => Some(value.clone()),
                "PMI_SIZE" => Some("4".to_owned()),
                _ => None,
            });
            assert_eq!(found, Process { rank: 0, ranks: 1 });
        }
    }
}
