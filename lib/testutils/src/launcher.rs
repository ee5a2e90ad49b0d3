//! Hides the launcher that started the tests.

use std::process::Command;

/// Removes the variables of MPI launchers and batch systems, so that the program does not take the launcher
/// of the tests for its own.
pub fn forget_launcher(command: &mut Command) {
    const LAUNCHERS: [&str; 6] = ["OMPI_", "PMI", "MV2_", "PALS_", "SLURM_", "PMC_"];
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if LAUNCHERS.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&variable);
        }
    }
}
