//! Runs the simulation: `pmc-simtest`, built for it.

use std::ffi::OsString;
use std::process::Command;

use anyhow::{Result, bail};

use crate::workspace;

/// Runs the program with these options.
///
/// # Errors
/// It does not build, or a round has found something.
pub fn run(options: &[OsString]) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(workspace::root())
        .args([
            "run",
            "--quiet",
            "--profile",
            "simulation",
            "-p",
            "pmc-simtest",
            "--",
        ])
        .args(options);
    if !command.status()?.success() {
        bail!("repeat a round with --rounds 1 --seed N");
    }
    Ok(())
}
