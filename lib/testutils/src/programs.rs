//! Finds the programs that tasks call.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns `pegasus-kickstart` beside the executor, and builds it first. The programs that its task server runs are
/// built, too. Cargo builds programs of other packages on demand only.
///
/// `executor` is `env!("CARGO_BIN_EXE_pegasus-mpi-cluster")` of the test.
///
/// # Panics
/// The programs do not build.
pub fn kickstart(executor: &str) -> &'static Path {
    static KICKSTART: OnceLock<PathBuf> = OnceLock::new();
    KICKSTART.get_or_init(|| {
        let bin = Path::new(executor)
            .parent()
            .expect("a program lies in a directory");
        let target = bin.parent().expect("profiles lie in the target directory");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--bins"]);
        for package in [
            "pegasus-kickstart",
            "pegasus-task-server",
            "pegasus-transfer",
            "pegasus-rc-client",
        ] {
            cargo.args(["-p", package]);
        }
        match bin.file_name().and_then(|profile| profile.to_str()) {
            Some("debug") | None => {}
            Some(profile) => {
                cargo.args(["--profile", profile]);
            }
        }
        cargo.arg("--target-dir").arg(target);
        let status = cargo
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs these tests");
        assert!(status.success(), "the programs do not build");
        bin.join("pegasus-kickstart")
    })
}
