//! Merges the output files of the workers at the end of a run.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::AccessFlags;
use pmc_dag::reason;
use pmc_files::OFlags;

use crate::options::{Target, folder, with_suffix};
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

/// The output of a run to merge.
pub struct Merge<'a> {
    /// Path of the workers' files, without suffixes.
    pub worker_files: &'a Path,
    /// Number of workers.
    pub workers: u32,
    /// Workers come and go, so some may never have come: these have no files.
    pub dynamic: bool,
    /// Destination of standard output.
    pub stdout: &'a Target,
    /// Destination of standard error.
    pub stderr: &'a Target,
    /// Keep what the destinations hold: the output of tasks that earlier runs have done.
    pub append: bool,
}

impl Merge<'_> {
    /// Writes standard output and standard error of all workers, in the order of their ranks, to the
    /// destinations. Removes the files of the workers when all are copied. A killed run with more workers may
    /// have left files of higher ranks; they are merged, too.
    ///
    /// # Errors
    /// A file cannot be opened, read or written. The files of the workers are still there, and destinations
    /// that are appended to are as before, so that the next run can merge.
    pub fn run(&self) -> Result<(), MergeError> {
        let note = Note::new(self.worker_files);
        note.undo();
        note.write(self);
        let merged = self.copy_all();
        note.remove();
        merged?;
        for rank in self.ranks() {
            for path in self.paths(rank) {
                if let Err(error) = std::fs::remove_file(&path)
                    && !(self.dynamic && error.kind() == io::ErrorKind::NotFound)
                {
                    tracing::warn!("Unable to remove {}: {}", path.display(), reason(&error));
                }
            }
        }
        Ok(())
    }

    /// Copies all files of the workers, or leaves the destinations as they were.
    fn copy_all(&self) -> Result<(), MergeError> {
        let out = Destination::open("stdout", self.stdout, self.append)?;
        let err = if self.stderr == self.stdout {
            None
        } else {
            Some(Destination::open("stderr", self.stderr, self.append)?)
        };
        let err_file = err.as_ref().map_or(&out.file, |err| &err.file);
        let copied = self
            .ranks()
            .try_for_each(|rank| self.copy(rank, &out.file, err_file));
        if copied.is_err() {
            out.restore();
            err.iter().for_each(Destination::restore);
        }
        copied
    }

    /// Ranks of the workers, and the next ones that have files.
    fn ranks(&self) -> RangeInclusive<u32> {
        let more = self.workers.saturating_add(1)..;
        let left = more.take_while(|rank| self.paths(*rank).iter().all(|path| path.is_file()));
        1..=left.last().unwrap_or(self.workers)
    }

    fn copy(&self, rank: u32, out: &File, err: &File) -> Result<(), MergeError> {
        tracing::debug!("Merging stdio from worker {rank}...");
        let [stdout, stderr] = self.paths(rank);
        self.copy_file("stdout", &stdout, out)?;
        self.copy_file("stderr", &stderr, err)
    }

    fn copy_file(&self, what: &'static str, path: &Path, to: &File) -> Result<(), MergeError> {
        match copy(what, path, to) {
            Err(MergeError::Copy { source, .. })
                if self.dynamic && source.kind() == io::ErrorKind::NotFound =>
            {
                Ok(())
            }
            copied => copied,
        }
    }

    /// Files with standard output and standard error of a worker.
    fn paths(&self, rank: u32) -> [PathBuf; 2] {
        [
            worker_stdout(self.worker_files, rank),
            worker_stderr(self.worker_files, rank),
        ]
    }
}

/// A file beside those of the workers, while these are merged: how long the destinations were before. If the
/// run is killed meanwhile, the next one begins there, and no output is repeated. Without the file, some
/// would be repeated; none is ever lost.
struct Note(PathBuf);

impl Note {
    fn new(worker_files: &Path) -> Self {
        Self(with_suffix(worker_files, ".merging"))
    }

    /// Takes back what a killed run has merged. The files of its workers are still there.
    fn undo(&self) {
        let text = std::fs::read(&self.0).unwrap_or_default();
        for line in text.split_inclusive(|byte| *byte == 0) {
            let Some((length, path)) = line
                .strip_suffix(&[0])
                .and_then(|line| Some(line.split_at(line.iter().position(|byte| *byte == b' ')?)))
            else {
                continue;
            };
            let length = std::str::from_utf8(length)
                .ok()
                .and_then(|text| text.parse::<u64>().ok());
            let file = OpenOptions::new().write(true).open(OsStr::from_bytes(&path[1..]));
            if let (Some(length), Ok(file)) = (length, file)
                && file
                    .metadata()
                    .is_ok_and(|data| data.is_file() && data.len() > length)
            {
                let _ = file.set_len(length);
            }
        }
    }

    fn write(&self, merge: &Merge<'_>) {
        let mut text = Vec::new();
        for target in [merge.stdout, merge.stderr] {
            let Target::File(path) = target else { continue };
            let present = path.metadata().ok().filter(std::fs::Metadata::is_file);
            let length = present.filter(|_| merge.append).map_or(0, |data| data.len());
            text.extend_from_slice(format!("{length} ").as_bytes());
            text.extend_from_slice(path.as_os_str().as_bytes());
            text.push(0);
        }
        if !text.is_empty() {
            let _ = std::fs::write(&self.0, text);
        }
    }

    fn remove(&self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A stream or file that receives output.
struct Destination {
    file: File,
    /// Length of a regular file that is appended to.
    length: Option<u64>,
}

impl Destination {
    fn open(what: &'static str, target: &Target, append: bool) -> Result<Self, MergeError> {
        let file = open(what, target, append)?;
        let is_kept = append && matches!(target, Target::File(_));
        let metadata = file.metadata().ok().filter(|data| is_kept && data.is_file());
        Ok(Self {
            file,
            length: metadata.map(|data| data.len()),
        })
    }

    /// Removes what was appended.
    fn restore(&self) {
        if let Some(length) = self.length {
            // If this fails, the next run repeats some output; none is lost.
            let _ = self.file.set_len(length);
        }
    }
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
fn open(what: &'static str, target: &Target, append: bool) -> Result<File, MergeError> {
    let opened = match target {
        Target::Stdout => duplicate(io::stdout()),
        Target::Stderr => duplicate(io::stderr()),
        Target::File(path) => {
            let how = if append { OFlags::APPEND } else { OFlags::TRUNC };
            pmc_files::open_output(path, OFlags::WRONLY | OFlags::CREATE | how, 0o666)
        }
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

fn copy(what: &'static str, path: &Path, mut to: &File) -> Result<(), MergeError> {
    let failed = |source| MergeError::Copy {
        what,
        path: path.to_owned(),
        source,
    };
    let mut from = pmc_files::open(path).map_err(failed)?;
    io::copy(&mut from, &mut to).map_err(failed)?;
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

    fn merge(dag: &Path, stdout: &Target, stderr: &Target) -> Result<(), MergeError> {
        Merge {
            worker_files: dag,
            workers: 2,
            dynamic: false,
            stdout,
            stderr,
            append: false,
        }
        .run()
    }

    #[test]
    fn workers_that_never_came_have_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let dag = files(folder.path());
        fs::remove_file(worker_stdout(&dag, 1)).unwrap();
        fs::remove_file(worker_stderr(&dag, 1)).unwrap();
        let target = Target::File(folder.path().join("all"));
        let merge = |dynamic| Merge {
            worker_files: &dag,
            workers: 3,
            dynamic,
            stdout: &target,
            stderr: &target,
            append: false,
        };
        assert!(merge(false).run().is_err());
        merge(true).run().unwrap();
        assert_eq!(
            fs::read_to_string(folder.path().join("all")).unwrap(),
            "out 2\nerr 2\n"
        );
        assert!(!worker_stdout(&dag, 2).exists() && !worker_stderr(&dag, 2).exists());
    }

    #[test]
    fn resumed_run_appends_all_or_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let dag = files(folder.path());
        let (out, err) = (folder.path().join("o"), folder.path().join("e"));
        fs::write(&out, "before\n").unwrap();
        let append = || {
            Merge {
                worker_files: &dag,
                workers: 2,
                dynamic: false,
                stdout: &Target::File(out.clone()),
                stderr: &Target::File(err.clone()),
                append: true,
            }
            .run()
        };
        let gone = worker_stderr(&dag, 2);
        fs::rename(&gone, folder.path().join("away")).unwrap();
        append().unwrap_err();
        assert_eq!(fs::read_to_string(&out).unwrap(), "before\n");
        assert_eq!(fs::read_to_string(&err).unwrap(), "");
        fs::rename(folder.path().join("away"), gone).unwrap();
        append().unwrap();
        assert_eq!(fs::read_to_string(out).unwrap(), "before\nout 1\nout 2\n");
        assert_eq!(fs::read_to_string(err).unwrap(), "err 1\nerr 2\n");
    }

    #[test]
    fn a_merge_that_was_killed_is_not_repeated() {
        let folder = tempfile::tempdir().unwrap();
        let dag = files(folder.path());
        let (out, err) = (folder.path().join("o"), folder.path().join("e"));
        fs::write(&out, "before\n").unwrap();
        let (stdout, stderr) = (Target::File(out.clone()), Target::File(err.clone()));
        let merge = Merge {
            worker_files: &dag,
            workers: 2,
            dynamic: false,
            stdout: &stdout,
            stderr: &stderr,
            append: true,
        };
        // Killed after it has copied some files.
        Note::new(&dag).write(&merge);
        fs::write(&out, "before\nout 1\nou").unwrap();
        fs::write(&err, "err 1\n").unwrap();
        merge.run().unwrap();
        assert_eq!(fs::read_to_string(out).unwrap(), "before\nout 1\nout 2\n");
        assert_eq!(fs::read_to_string(err).unwrap(), "err 1\nerr 2\n");
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            2,
            "nothing else is left"
        );
    }

    #[test]
    fn files_of_a_killed_run_with_more_workers_are_merged() {
        let folder = tempfile::tempdir().unwrap();
        let dag = files(folder.path());
        for rank in [3, 4, 6] {
            fs::write(worker_stdout(&dag, rank), format!("out {rank}\n")).unwrap();
            fs::write(worker_stderr(&dag, rank), "").unwrap();
        }
        let (out, err) = (folder.path().join("o"), folder.path().join("e"));
        merge(&dag, &Target::File(out.clone()), &Target::File(err)).unwrap();
        assert_eq!(fs::read_to_string(out).unwrap(), "out 1\nout 2\nout 3\nout 4\n");
        assert!(!worker_stdout(&dag, 4).exists() && worker_stdout(&dag, 6).exists());
    }

    #[test]
    fn output_is_merged_in_the_order_of_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let dag = files(folder.path());
        let (out, err) = (folder.path().join("o"), folder.path().join("e"));
        fs::write(&out, "old content that goes away").unwrap();
        merge(&dag, &Target::File(out.clone()), &Target::File(err.clone())).unwrap();
        assert_eq!(fs::read_to_string(out).unwrap(), "out 1\nout 2\n");
        assert_eq!(fs::read_to_string(err).unwrap(), "err 1\nerr 2\n");
        assert!(!worker_stdout(&dag, 1).exists() && !worker_stderr(&dag, 2).exists());
    }

    #[test]
    fn both_streams_can_go_to_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let dag = files(folder.path());
        let both = folder.path().join("both");
        let target = Target::File(both.clone());
        merge(&dag, &target, &target).unwrap();
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
        let error = merge(&dag, &target, &Target::Stderr).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("Unable to open stdout file: ")
                && text.ends_with("x\n: No such file or directory")
        );
        let full = Target::File("/dev/full".into());
        let error = merge(&dag, &full, &full).unwrap_err();
        assert!(
            error.to_string().ends_with(": No space left on device"),
            "{error}"
        );
        assert!(worker_stdout(&dag, 1).exists() && worker_stderr(&dag, 2).exists());
    }
}
