//! Finds the programs of this workspace for tests and benchmarks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Set where the programs are built already: [`path`] then builds nothing.
const BUILT: &str = "PMC_TEST_PROGRAMS_ARE_BUILT";

/// Returns the path of a program, such as `pmc-plan`. Builds all programs first, for the profile of the
/// calling test: they belong to the package `pmc`, and cargo builds programs of other packages on demand
/// only.
///
/// # Panics
/// The programs do not build.
#[must_use]
pub fn path(name: &str) -> &'static str {
    let path = directory().join(name);
    let path = path.to_str().expect("the target directory has a UTF-8 name");
    // A test asks for a few programs, and wants their names as long as it runs.
    Box::leak(path.into())
}

/// Returns the directory of the programs, as [`path`] does.
///
/// # Panics
/// The programs do not build.
pub fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        // TARGET/PROFILE/deps/TEST
        let test = std::env::current_exe().expect("a test knows its path");
        let directory = test
            .ancestors()
            .nth(2)
            .expect("tests lie in the target directory");
        if std::env::var_os(BUILT).is_none() {
            build(directory);
        }
        directory.to_owned()
    })
}

fn build(directory: &Path) {
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(profile) => profile,
    };
    let target = directory.parent().expect("profiles lie in the target directory");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--package",
            "pmc",
            "--bins",
            "--features",
            "full",
            "--profile",
            profile,
        ])
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo runs these tests");
    assert!(status.success(), "the programs do not build");
}
