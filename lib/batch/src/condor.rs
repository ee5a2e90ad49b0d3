//! Runs of DAGMan: submitted to HTCondor, and removed.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::submit::find;

/// File of the submit directory with the number of the job.
const JOB_FILE: &str = "condor.job";
/// Longest content of that file.
const MAX_JOB_FILE: u64 = 64;

/// HTCondor was not reached, or has refused.
#[derive(Debug, thiserror::Error)]
pub enum CondorError {
    /// A program of HTCondor is missing.
    #[error("there is no {0} on PATH: a plan for HTCondor runs on a submit host of a pool")]
    Missing(&'static str),
    /// A program does not start.
    #[error("{program} does not start: {source}")]
    Start {
        /// The program.
        program: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A program has refused.
    #[error("{program} refuses {}: {message}", what.display())]
    Refused {
        /// The program.
        program: &'static str,
        /// What it was given.
        what: PathBuf,
        /// What it says.
        message: String,
    },
    /// The number of the job is not known.
    #[error("the workflow in {} has not been submitted to HTCondor from here", .0.display())]
    NotSubmitted(PathBuf),
}

/// Submits the run of DAGMan that a submit description of a directory describes. Returns the number of the
/// job, and keeps it for [`remove`].
///
/// # Errors
/// HTCondor is not reached, or refuses.
pub fn submit(
    dir: &Path,
    description: &Path,
    environment: &BTreeMap<String, String>,
) -> Result<String, CondorError> {
    let printed = call("condor_submit", &["-terse"], description, dir, environment)?;
    // `12.0 - 12.0`
    let number: String = printed
        .trim_start()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    // The job is submitted: a full disk must not make that a failure.
    let _ = pmc_files::create_anew(&dir.join(JOB_FILE))
        .and_then(|mut file| file.write_all(format!("{number}\n").as_bytes()));
    Ok(number)
}

/// Removes the job that was submitted last. Returns its number.
///
/// # Errors
/// It is not known, HTCondor is not reached, or refuses.
pub fn remove(dir: &Path, environment: &BTreeMap<String, String>) -> Result<String, CondorError> {
    let text = pmc_files::read_to_string(&dir.join(JOB_FILE), MAX_JOB_FILE).unwrap_or_default();
    let number = text.trim().to_owned();
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(CondorError::NotSubmitted(dir.to_owned()));
    }
    call("condor_rm", &[], Path::new(&number), dir, environment)?;
    Ok(number)
}

/// Calls a program of HTCondor. Returns what it prints.
fn call(
    program: &'static str,
    options: &[&str],
    what: &Path,
    dir: &Path,
    environment: &BTreeMap<String, String>,
) -> Result<String, CondorError> {
    let path = find(program, environment).ok_or(CondorError::Missing(program))?;
    let output = Command::new(path)
        .args(options)
        .arg(what)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| CondorError::Start { program, source })?;
    if !output.status.success() {
        return Err(CondorError::Refused {
            program,
            what: what.to_owned(),
            message: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_run_is_submitted_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let environment = BTreeMap::from([("PATH".to_owned(), dir.path().display().to_string())]);
        let submit = || submit(dir.path(), Path::new("x.dag.condor.sub"), &environment);
        assert!(matches!(submit(), Err(CondorError::Missing("condor_submit"))));
        assert!(matches!(
            remove(dir.path(), &environment),
            Err(CondorError::NotSubmitted(_))
        ));
        for (name, text) in [
            ("condor_submit", "#!/bin/sh\necho \"12.0 - 12.0\"\n"),
            ("condor_rm", "#!/bin/sh\necho \"no job $1\" >&2\nexit 1\n"),
        ] {
            fs::write(path(name), text).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(path("precious"), "precious").unwrap();
        std::os::unix::fs::symlink(path("precious"), path(JOB_FILE)).unwrap();
        assert_eq!(submit().unwrap(), "12");
        assert_eq!(
            fs::read_to_string(path("precious")).unwrap(),
            "precious",
            "through no link"
        );
        let error = remove(dir.path(), &environment).unwrap_err().to_string();
        assert!(error.contains("no job 12"), "{error}");
    }
}
