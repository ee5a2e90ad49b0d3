//! Which variables of a worker its tasks get.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;

/// Variables that every task gets anew.
pub(super) const TASK_VARIABLES: [&[u8]; 5] = [
    b"PMC_TASK",
    b"PMC_MEMORY",
    b"PMC_CPUS",
    b"PMC_RANK",
    b"PMC_HOST_RANK",
];

/// With these an MPI launcher (Open MPI, PRRTE, MPICH, anything that uses PMI) tells a process which
/// rank it is and where it finds the others. A task is no rank: an MPI program that is a task would
/// take the place of the worker, and fail.
const LAUNCHER: [&[u8]; 15] = [
    b"HYDI_",
    b"MPI_LOCALNRANKS",
    b"MPI_LOCALRANKID",
    b"OMPI_APP_CTX_NUM_PROCS",
    b"OMPI_COMMAND",
    b"OMPI_COMM_WORLD_",
    b"OMPI_FILE_LOCATION",
    b"OMPI_FIRST_RANKS",
    b"OMPI_MCA_ess",
    b"OMPI_MCA_initial_wdir",
    b"OMPI_MCA_orte_",
    b"OMPI_NUM_APP_CTX",
    b"OMPI_UNIVERSE_SIZE",
    b"PMIX_",
    b"PMI_",
];

/// The variables that tasks inherit, as `NAME=value`.
pub(super) fn inherited(environment: &[(OsString, OsString)]) -> Vec<CString> {
    environment
        .iter()
        .filter(|(name, _)| is_inherited(name.as_bytes()))
        .filter_map(|(name, value)| variable(name.as_bytes(), value.as_bytes()).ok())
        .collect()
}

/// `NAME=value`.
pub(super) fn variable(name: &[u8], value: &[u8]) -> io::Result<CString> {
    let mut text = Vec::with_capacity(name.len() + value.len() + 2);
    text.extend_from_slice(name);
    text.push(b'=');
    text.extend_from_slice(value);
    Ok(CString::new(text)?)
}

/// Whether tasks inherit the variable of this name.
fn is_inherited(name: &[u8]) -> bool {
    !TASK_VARIABLES.contains(&name) && !LAUNCHER.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_inherited_and_ranks_are_not() {
        for name in [
            "PATH",
            "OMPI_MCA_btl",
            "SLURM_JOB_ID",
            "PMC_AFFINITY",
            "OMP_NUM_THREADS",
        ] {
            assert!(is_inherited(name.as_bytes()), "{name}");
        }
        for name in [
            "PMC_RANK",
            "PMI_FD",
            "PMIX_RANK",
            "OMPI_COMM_WORLD_RANK",
            "MPI_LOCALRANKID",
        ] {
            assert!(!is_inherited(name.as_bytes()), "{name}");
        }
    }
}
