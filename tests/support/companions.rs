//! The programs that tasks call, built beside the executor.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Kickstart beside the executor, and beside it the programs that it does itself. Cargo builds the programs of other
/// packages on demand only.
pub fn kickstart() -> &'static Path {
    static KICKSTART: OnceLock<PathBuf> = OnceLock::new();
    KICKSTART.get_or_init(|| {
        let bin = Path::new(env!("CARGO_BIN_EXE_pegasus-mpi-cluster"))
            .parent()
            .unwrap();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--bins"]);
        for package in ["pegasus-kickstart", "pegasus-transfer", "pegasus-rc-client"] {
            cargo.args(["-p", package]);
        }
        if bin.ends_with("release") {
            cargo.arg("--release");
        }
        cargo.arg("--target-dir").arg(bin.parent().unwrap());
        let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap();
        assert!(status.success(), "the programs do not build");
        bin.join("pegasus-kickstart")
    })
}

/// A program beside kickstart.
pub fn program(name: &str) -> PathBuf {
    kickstart().with_file_name(name)
}
