//! Files for the output of tasks.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use pmc_files::OFlags;

use super::error::{NotStarted, WorkerError};
use crate::durability::lock::lock_if_possible;
use crate::options::{folder, with_suffix};
use crate::payload::Payload;

/// Mode of output files, before the umask.
const FILE_MODE: u32 = 0o644;

/// Files with the output of a task.
pub(super) struct TaskFiles {
    pub(super) out: File,
    pub(super) out_path: PathBuf,
    pub(super) err: File,
    pub(super) err_path: PathBuf,
    /// The number in the names of the files, if the attempt has its own.
    pub(super) number: u32,
}

impl TaskFiles {
    pub(super) fn descriptors(&self, input: RawFd) -> [RawFd; 3] {
        [input, self.out.as_raw_fd(), self.err.as_raw_fd()]
    }
}

/// Returns the path of the file with the standard output of the tasks of worker `rank`. `worker_files` is
/// [`Options::worker_files`](crate::options::Options::worker_files).
#[must_use]
pub fn worker_stdout(worker_files: &Path, rank: u32) -> PathBuf {
    with_suffix(worker_files, format!(".out.{rank}"))
}

/// The same for standard error.
#[must_use]
pub fn worker_stderr(worker_files: &Path, rank: u32) -> PathBuf {
    with_suffix(worker_files, format!(".err.{rank}"))
}

/// Returns the paths of standard output and error of the latest attempt of a task with its own files. `None`
/// if there are no files.
#[must_use]
pub fn latest_task_files(dag: &Path, task: &[u8]) -> Option<(PathBuf, PathBuf)> {
    let last = (0..)
        .take_while(|number| task_file(dag, task, "out", *number).exists())
        .last()?;
    Some((
        task_file(dag, task, "out", last),
        task_file(dag, task, "err", last),
    ))
}

/// Creates the missing files for standard output of a task below this number, so that the next attempt gets
/// this number or a later one.
pub(crate) fn fill_numbers(dag: &Path, task: &[u8], number: u32) -> io::Result<()> {
    (0..number).try_for_each(|number| create_if_missing(&task_file(dag, task, "out", number)))
}

/// Makes the files of an attempt, and those of earlier ones that have none.
pub(crate) fn begin_files(dag: &Path, task: &[u8], number: u32) -> io::Result<()> {
    fill_numbers(dag, task, number.saturating_add(1))?;
    create_if_missing(&task_file(dag, task, "err", number))
}

fn create_if_missing(path: &Path) -> io::Result<()> {
    match create_new(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Creates a file, which must not exist. Links are not followed.
fn create_new(path: &Path) -> io::Result<File> {
    // In append mode, the record follows everything that the processes of a task may still write.
    let mut options = OpenOptions::new();
    options.append(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Writes the output of an attempt of a task into its files. Without a number, it gets the first one
/// without a file. Returns the number.
pub(crate) fn store_output(
    dag: &Path,
    task: &[u8],
    number: Option<u32>,
    output: [&Payload; 2],
) -> io::Result<u32> {
    let number = match number {
        Some(number) => number,
        None => open_task(dag, task).map_err(io::Error::other)?.number,
    };
    fill_numbers(dag, task, number)?;
    for (kind, data) in ["out", "err"].into_iter().zip(output) {
        // An earlier master may have written a part of it.
        let mut file = open_emptied(&task_file(dag, task, kind, number))?;
        data.for_each_chunk(|chunk| file.write_all(chunk))?;
    }
    Ok(number)
}

/// Opens a file of an attempt for writing, and empties it if it is there.
fn open_emptied(path: &Path) -> io::Result<File> {
    match create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
            pmc_files::open_output(path, flags, FILE_MODE)
        }
        opened => opened,
    }
}

/// Appends output to the shared files of worker `rank`.
pub(crate) fn append_shared(worker_files: &Path, rank: u32, [out, err]: [&Payload; 2]) -> io::Result<()> {
    let paths = [
        worker_stdout(worker_files, rank),
        worker_stderr(worker_files, rank),
    ];
    for (path, data) in paths.into_iter().zip([out, err]) {
        let mut file = open_appending(&path)?;
        data.for_each_chunk(|chunk| file.write_all(chunk))?;
    }
    Ok(())
}

/// Opens a file that is appended to. What has its name in a directory where others may write leads nowhere
/// else, and a FIFO there is an error.
fn open_appending(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    pmc_files::open_output(path, flags, FILE_MODE)
}

/// Gives the files of attempt `earlier` of a task the number `later`, too, if that has no files. The attempt
/// may still write.
pub(crate) fn share_files(dag: &Path, task: &[u8], earlier: u32, later: u32) -> io::Result<()> {
    for kind in ["err", "out"] {
        let (from, to) = (
            task_file(dag, task, kind, earlier),
            task_file(dag, task, kind, later),
        );
        match std::fs::hard_link(&from, &to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            // An attempt that never began has no standard error.
            Err(error) if error.kind() == io::ErrorKind::NotFound && kind == "err" => {}
            // Its worker, which had it in advance, has not begun.
            Err(error) if error.kind() == io::ErrorKind::NotFound => fill_numbers(dag, task, later)?,
            linked => linked?,
        }
    }
    Ok(())
}

fn task_file(dag: &Path, task: &[u8], kind: &str, number: u32) -> PathBuf {
    // `Path::join` would take a name with a leading slash as absolute.
    let mut path = folder(dag).as_os_str().as_bytes().to_vec();
    path.push(b'/');
    path.extend_from_slice(task);
    path.extend_from_slice(format!(".{kind}.{number:03}").as_bytes());
    OsString::from_vec(path).into()
}

/// Opens the shared files of worker `rank`. They keep their content.
pub(super) fn open_shared(worker_files: &Path, rank: u32) -> Result<TaskFiles, WorkerError> {
    let open = |stream, path: &Path| {
        tracing::debug!("Worker {rank}: Using task {stream} file: {}", path.display());
        open_appending(path).map_err(|source| WorkerError::OpenSharedFile {
            stream,
            path: path.to_owned(),
            source,
        })
    };
    let (out_path, err_path) = (
        worker_stdout(worker_files, rank),
        worker_stderr(worker_files, rank),
    );
    Ok(TaskFiles {
        out: open("stdout", &out_path)?,
        err: open("stderr", &err_path)?,
        out_path,
        err_path,
        number: 0,
    })
}

/// Locks the shared files, for as long as the returned file is open.
///
/// The lock belongs to a descriptor of its own. Tasks inherit those of the output, and what they leave in the
/// background would keep the lock.
pub(super) fn lock_shared(files: &TaskFiles) -> Result<File, WorkerError> {
    let path = &files.out_path;
    let file = open_appending(path).map_err(|source| WorkerError::OpenSharedFile {
        stream: "stdout",
        path: path.clone(),
        source,
    })?;
    if !lock_if_possible(&file) {
        return Err(WorkerError::SharedFileInUse(path.clone()));
    }
    Ok(file)
}

/// Opens new files for an attempt of a task. Their number is the first one without a file for standard
/// output. A file for standard error with that number is emptied.
pub(super) fn open_task(dag: &Path, task: &[u8]) -> Result<TaskFiles, NotStarted> {
    let failed = |stream, path: &Path, source| NotStarted::OpenFile {
        stream,
        path: path.to_owned(),
        source,
    };
    for number in 0.. {
        let out_path = task_file(dag, task, "out", number);
        let out = match create_new(&out_path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(error) => return Err(failed("stdout", &out_path, error)),
        };
        let err_path = task_file(dag, task, "err", number);
        let err = open_emptied(&err_path).map_err(|error| {
            // The attempt may be tried again: its number must be free.
            let _ = std::fs::remove_file(&out_path);
            failed("stderr", &err_path, error)
        })?;
        return Ok(TaskFiles {
            out,
            out_path,
            err,
            err_path,
            number,
        });
    }
    Err(NotStarted::TooManyFiles(task_file(dag, task, "out", 0)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn attempt_takes_the_first_free_number() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        for old in ["a.out.000", "a.out.001", "a.out.003"] {
            fs::write(folder.path().join(old), "old").unwrap();
        }
        fs::write(folder.path().join("a.err.002"), "stale and long").unwrap();
        assert_eq!(
            latest_task_files(&dag, b"a").unwrap().0,
            folder.path().join("a.out.001")
        );
        let files = open_task(&dag, b"a").unwrap();
        assert_eq!(files.out_path, folder.path().join("a.out.002"));
        assert_eq!(fs::read(folder.path().join("a.err.002")).unwrap(), b"");
        assert_eq!(
            latest_task_files(&dag, b"a").unwrap().1,
            folder.path().join("a.err.003")
        );
        assert_eq!(latest_task_files(&dag, b"b"), None);
    }

    #[test]
    fn error_names_the_file() {
        let Err(error) = open_task(Path::new("no-such-folder/x.dag"), b"sub/d") else {
            panic!("opened");
        };
        assert_eq!(
            error.to_string(),
            "Unable to open task stdout file no-such-folder/sub/d.out.000: No such file or directory"
        );
    }

    #[test]
    fn shared_files_keep_their_content() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        fs::write(worker_stdout(&dag, 2), "left").unwrap();
        assert!(open_shared(&dag, 2).is_ok());
        assert_eq!(fs::read(folder.path().join("x.dag.out.2")).unwrap(), b"left");
        assert_eq!(fs::read(folder.path().join("x.dag.err.2")).unwrap(), b"");
    }

    #[test]
    fn shared_files_are_locked_until_the_worker_ends() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        let files = open_shared(&dag, 1).unwrap();
        let lock = lock_shared(&files).unwrap();
        // What a task inherits does not keep the lock.
        let inherited = files.out.try_clone().unwrap();
        let other = open_shared(&dag, 1).unwrap();
        let error = lock_shared(&other).unwrap_err().to_string();
        assert!(error.contains("x.dag.out.1: another run"), "{error}");
        drop(lock);
        assert!(lock_shared(&other).is_ok());
        drop(inherited);
    }
}
