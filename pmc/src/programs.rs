//! Programs that tasks call. They are beside `pmc` or in `PEGASUS_HOME`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

/// Programs of this project that a plan calls.
const PROGRAMS: [&str; 3] = ["pegasus-kickstart", "pegasus-transfer", "pegasus-rc-client"];

/// Programs that are missing or not executable.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("missing or not executable: {}", list(.missing))]
pub struct Missing {
    missing: Vec<PathBuf>,
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

impl Missing {
    /// Returns what to do if programs of this project are missing.
    pub fn hint(&self) -> Option<String> {
        let is_own = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| PROGRAMS.contains(&name))
        };
        self.missing.iter().any(is_own).then(|| {
            "it comes with pmc: install all programs of the toolkit into one directory, or plan again with \
             PEGASUS_HOME, the directory of an installation that has it"
                .to_owned()
        })
    }
}

/// Checks the programs of this project in a directory.
pub fn check_beside(dir: &Path) -> Result<(), Missing> {
    check(PROGRAMS.iter().map(|program| dir.join(program)))
}

/// Checks that all programs are executable. Ignores relative names, which the executor searches for.
pub fn check(programs: impl IntoIterator<Item = PathBuf>) -> Result<(), Missing> {
    let programs: BTreeSet<PathBuf> = programs.into_iter().collect();
    let missing: Vec<PathBuf> = programs
        .into_iter()
        .filter(|path| path.is_absolute() && (!path.is_file() || access(path, AccessFlags::X_OK).is_err()))
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Missing { missing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_says_where_missing_programs_come_from() {
        let missing =
            check_beside(Path::new("/nonexistent/target/release")).expect_err("the directory does not exist");
        let hint = missing.hint().expect("these programs are of this project");
        assert!(hint.contains("PEGASUS_HOME") && !hint.contains("cargo"), "{hint}");
        let other = check(["/bin/sh".into(), "/nonexistent/tool".into(), "relative".into()])
            .expect_err("one is missing");
        assert_eq!(other.to_string(), "missing or not executable: /nonexistent/tool");
        assert_eq!(other.hint(), None);
    }
}
