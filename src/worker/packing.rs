//! Output of tasks in the pack of the worker: see [`pmc_packed`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use pmc_packed::{Attempt, Pack};
use pmc_spawn::open_files::are_short;

use super::error::{AttemptError, Failure, NotStarted, WorkerError};
use super::stdio::TaskFiles;
use crate::options::{WorkerOptions, folder};
use crate::protocol::{Assignment, Rank};

/// Opens the pack of a worker.
pub(super) fn open(options: &WorkerOptions, rank: Rank) -> Result<Pack, AttemptError> {
    let opened = Pack::open(&options.dag, rank.0);
    let pack = opened.map_err(|(path, source)| match are_short(&source) {
        true => AttemptError::from(NotStarted::Prepare(source)),
        false => Failure::from(WorkerError::OpenPack { path, source }).into(),
    })?;
    if pack.left_over() > 0 {
        tracing::warn!(
            "Worker {}: {} bytes at the end of {} are those of an attempt whose worker was killed: they are skipped",
            rank.0,
            pack.left_over(),
            pack.path().display()
        );
    }
    Ok(pack)
}

/// Opens files without names for the output of an attempt that runs, in TMPDIR, `/tmp` or beside the DAG.
/// They are copied to the pack at its end, so the file system of the DAG sees no file come and go.
pub(super) fn open_streams(options: &WorkerOptions) -> Result<TaskFiles, NotStarted> {
    let variable = options.environment.iter().find(|(name, _)| name == "TMPDIR");
    let chosen = variable.map(|(_, value)| PathBuf::from(value));
    let chosen = chosen.filter(|folder| folder.is_absolute());
    let beside = folder(&options.dag);
    let folders = chosen.as_deref().into_iter().chain([Path::new("/tmp"), beside]);
    let mut error = None;
    for folder in folders {
        match streams_in(folder) {
            Ok(files) => return Ok(files),
            Err(source) => error = Some(source),
        }
    }
    Err(NotStarted::OpenFile {
        stream: "stdout",
        path: beside.to_owned(),
        source: error.unwrap_or_else(|| io::ErrorKind::NotFound.into()),
    })
}

/// Opens files without names in a folder.
pub(super) fn streams_in(folder: &Path) -> io::Result<TaskFiles> {
    let (out, err) = (unnamed(folder)?, unnamed(folder)?);
    Ok(TaskFiles {
        // By these names, the files are opened once more for reading.
        out_path: format!("/proc/self/fd/{}", out.as_raw_fd()).into(),
        err_path: format!("/proc/self/fd/{}", err.as_raw_fd()).into(),
        out,
        err,
        number: 0,
    })
}

fn unnamed(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    // The processes of a task share the file, and each writes at its end.
    match options
        .custom_flags(libc::O_TMPFILE | libc::O_APPEND)
        .open(folder)
    {
        Ok(file) => Ok(file),
        // Not every file system can do this.
        Err(_) => {
            let file = tempfile::tempfile_in(folder)?;
            fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
            Ok(file)
        }
    }
}

/// Appends the output of an attempt and its record to the pack.
pub(super) fn append(
    pack: &mut Pack,
    task: &Assignment,
    attempt: (u32, u64),
    [out, err]: [&File; 2],
    record: &[u8],
) -> Result<(), WorkerError> {
    let (number, start_ms) = attempt;
    let attempt = Attempt {
        task: &task.name,
        number,
        submit: task.submit.0,
        start_ms,
    };
    pack.append(attempt, out, record, err)
        .map_err(|source| WorkerError::WriteRecord {
            task: String::from_utf8_lossy(&task.name).into_owned(),
            path: pack.path().to_owned(),
            source,
        })
}
