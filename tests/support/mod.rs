//! What the tests of the executor as a program have in common.

use std::process::Command;

/// Whatever started the tests is not to be taken for the launcher of the program.
pub fn forget_launcher(command: &mut Command) {
    const LAUNCHERS: [&str; 6] = ["OMPI_", "PMI", "MV2_", "PALS_", "SLURM_", "PMC_"];
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if LAUNCHERS.iter().any(|prefix| name.starts_with(prefix)) {
            command.env_remove(&variable);
        }
    }
}
