//! Merges the output files of the workers at the end of a run.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::unistd::AccessFlags;
use pmc_dag::reason;

use crate::options::{Target, folder};
use crate::worker::{worker_stderr, worker_stdout};

/// Merging failed. The files of the workers are still there.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    // The line feed is part of the original's text.
    #[error("Unable to open {what} file: {}\n: {}", path.display(), reason(source))]
    Open {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("Unable to merge task {what} from {}: {}", path.display(), reason(source))]
    Copy {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// Appends standard output and standard error of workers `1..=workers`, in this order, to the targets.
/// Removes the files of the workers when all are copied.
///
/// # Errors
/// A file cannot be opened, read or written.
pub fn merge(dag: &Path, workers: u32, stdout: &Target, stderr: &Target) -> Result<(), MergeError> {
    let mut out = open("stdout", stdout)?;
    let mut err = if stderr == stdout {
        None
    } else {
        Some(open("stderr", stderr)?)
    };
    for rank in 1..=workers {
        tracing::debug!("Merging stdio from worker {rank}...");
        copy("stdout", &worker_stdout(dag, rank), &mut out)?;
        copy(
            "stderr",
            &worker_stderr(dag, rank),
            err.as_mut().unwrap_or(&mut out),
        )?;
    }
    for rank in 1..=workers {
        for path in [worker_stdout(dag, rank), worker_stderr(dag, rank)] {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!("Unable to remove {}: {}", path.display(), reason(&error));
            }
        }
    }
    Ok(())
}

/// Checks before a run that the targets can be written at its end. Creates and changes nothing.
///
/// # Errors
/// A file cannot be written, or its folder is missing.
pub fn check(stdout: &Target, stderr: &Target) -> Result<(), MergeError> {
    for (what, target) in [("stdout", stdout), ("stderr", stderr)] {
        let Target::File(path) = target else { continue };
        check_file(path).map_err(|source| MergeError::Open {
            what,
            path: path.clone(),
            source,
        })?;
    }
    Ok(())
}

fn check_file(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(data) if data.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        Ok(_) => Ok(nix::unistd::access(path, AccessFlags::W_OK)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = folder(path);
            if !folder.metadata()?.is_dir() {
                return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
            }
            Ok(nix::unistd::access(
                folder,
                AccessFlags::W_OK | AccessFlags::X_OK,
            )?)
        }
        Err(error) => Err(error),
    }
}

/// Opens the stream or file of a target, without a buffer.
fn open(what: &'static str, target: &Target) -> Result<File, MergeError> {
    let opened = match target {
        Target::Stdout => duplicate(io::stdout()),
        Target::Stderr => duplicate(io::stderr()),
        Target::File(path) => File::create(path),
    };
    opened.map_err(|source| MergeError::Open {
        what,
        path: match target {
            Target::File(path) => path.clone(),
            Target::Stdout => "stdout".into(),
            Target::Stderr => "stderr".into(),
        },
        source,
    })
}

fn duplicate(stream: impl std::os::fd::AsFd + Write) -> io::Result<File> {
    stream.as_fd().try_clone_to_owned().map(File::from)
}

fn copy(what: &'static str, path: &Path, to: &mut File) -> Result<(), MergeError> {
    let failed = |source| MergeError::Copy {
        what,
        path: path.to_owned(),
        source,
    };
    let mut from = File::open(path).map_err(failed)?;
    io::copy(&mut from, to).map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn files(folder: &Path) -> PathBuf {
        let dag = folder.join("x.dag");
        for rank in [1, 2] {
            fs::write(worker_stdout(&dag, rank), format!("out {rank}\n")).unwrap();
            fs::write(worker_stderr(&dag, rank), format!("err {rank}\n")).unwrap();
        }
        dag
    }

    #[test]
    fn output_is_merged_in_the_order_of_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let dag = files(folder.path());
        let (out, err) = (folder.path().join("o"), folder.path().join("e"));
        fs::write(&out, "old content that goes away").unwrap();
        merge(&dag, 2, &Target::File(out.clone()), &Target::File(err.clone())).unwrap();
        assert_eq!(fs::read_to_string(out).unwrap(), "out 1\nout 2\n");
        assert_eq!(fs::read_to_string(err).unwrap(), "err 1\nerr 2\n");
        assert!(!worker_stdout(&dag, 1).exists() && !worker_stderr(&dag, 2).exists());
    }

    #[test]
    fn both_streams_can_go_to_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let dag = files(folder.path());
        let both = folder.path().join("both");
        merge(&dag, 2, &Target::File(both.clone()), &Target::File(both.clone())).unwrap();
        assert_eq!(fs::read_to_string(both).unwrap(), "out 1\nerr 1\nout 2\nerr 2\n");
    }

    #[test]
    fn targets_that_cannot_be_written_are_found_before_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| Target::File(folder.path().join(name));
        fs::write(folder.path().join("old"), "old").unwrap();
        check(&path("new"), &path("old")).unwrap();
        check(&Target::Stdout, &Target::File("bare".into())).unwrap();
        assert!(!folder.path().join("new").exists());
        let refused = |target: &str, reason: &str| {
            let error = check(&Target::Stdout, &path(target)).unwrap_err().to_string();
            assert!(error.starts_with("Unable to open stderr file: "), "{error}");
            assert!(error.ends_with(&format!("{target}\n: {reason}")), "{error}");
        };
        refused("none/x", "No such file or directory");
        refused("old/x", "Not a directory");
        refused("", "Is a directory");
    }

    #[test]
    fn a_failed_merge_keeps_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let dag = files(folder.path());
        let target = Target::File(folder.path().join("nowhere/x"));
        let error = merge(&dag, 2, &target, &Target::Stderr).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("Unable to open stdout file: ")
                && text.ends_with("x\n: No such file or directory")
        );
        let full = Target::File("/dev/full".into());
        let error = merge(&dag, 2, &full, &full).unwrap_err();
        assert!(
            error.to_string().ends_with(": No space left on device"),
            "{error}"
        );
        assert!(worker_stdout(&dag, 1).exists() && worker_stderr(&dag, 2).exists());
    }
}
