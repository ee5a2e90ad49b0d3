//! Finds the output of a task, or says why there is none.

use std::ffi::OsStr;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use pmc_dag::reason;
use pmc_monitor::dir::RunDir;
use pmc_monitor::history::{History, State};
use pmc_monitor::plan::TaskNumber;
use pmc_monitor::task_output::{self, AttemptFiles, Part};
use pmc_packed::{self as packed, Channel, TaskOutput};
use pmc_plan::error::near_spelling;

use super::Log;
use super::{Stream, Take};
use crate::exit;
use crate::failure::Failure;

/// Bytes of one read.
const CHUNK: usize = 64 << 10;

/// Where the output of an attempt is.
pub enum Source {
    /// In its own files.
    Files {
        /// The files.
        files: AttemptFiles,
        /// Number of the attempt, from 0.
        attempt: u32,
    },
    /// In files without names, on the way to a pack. The attempt runs.
    Unpacked {
        /// Number of the attempt, from 0.
        attempt: u32,
    },
    /// In a pack. The attempt has ended.
    Packed {
        /// The pack.
        pack: PathBuf,
        /// Number of the attempt, from 0.
        attempt: u32,
    },
    /// In the files of a worker. The attempt has ended.
    Part(Part),
}

/// A file cannot be read.
pub struct Unreadable {
    path: PathBuf,
    source: io::Error,
}

/// Returns where the output of an attempt is, if it is anywhere. Looks into the files of the workers only if
/// `with_parts`: that takes long.
pub fn source(log: &mut Log, attempt: Option<u32>, with_parts: bool) -> Result<Option<Source>, Failure> {
    // If an index cannot be read, opening the output fails.
    let _ = log.output.refresh();
    let count = log.count();
    // The number of the attempt that runs is the next one.
    if attempt.is_none_or(|wanted| wanted == count + 1) && log.is_packed_and_running(count)? {
        return Ok(Some(Source::Unpacked { attempt: count }));
    }
    let (dir, name) = (&log.history.dir, log.history.plan.name(log.task));
    let wanted = attempt.unwrap_or(count);
    if let Some(attempt) = wanted.checked_sub(1)
        && let Some(pack) = log.output.pack(name, attempt)
    {
        let pack = pack.to_owned();
        return Ok(Some(Source::Packed { pack, attempt }));
    }
    if (1..=count).contains(&wanted) {
        return Ok(Some(Source::Files {
            files: AttemptFiles::new(dir, name, wanted - 1),
            attempt: wanted - 1,
        }));
    }
    if count > 0 || !with_parts {
        return Ok(None);
    }
    let parts = task_output::parts(dir, name)
        .map_err(|(path, source)| unreadable(dir, Unreadable { path, source }))?;
    let index = attempt.map_or(parts.len(), |attempt| attempt as usize);
    Ok(index
        .checked_sub(1)
        .and_then(|index| parts.into_iter().nth(index))
        .map(Source::Part))
}

/// Returns whether output may come: the task has not ended.
pub fn may_come(state: State) -> bool {
    matches!(state, State::Waiting | State::Ready | State::Running)
}

impl Source {
    /// Opens the files.
    pub fn open(&self, log: &mut Log) -> Result<Reader, Unreadable> {
        match self {
            // It has no names to be opened by.
            Self::Unpacked { .. } => Err(Unreadable {
                path: log.history.dir.dir.clone(),
                source: io::ErrorKind::NotFound.into(),
            }),
            Self::Packed { pack, attempt } => {
                let name = log.history.plan.name(log.task);
                Reader::of_pack(&mut log.output, name, *attempt, pack)
            }
            Self::Files { files, .. } => Reader::of_files(files),
            Self::Part(part) => {
                pmc_terminal::message(format!(
                    "pmc: standard error of this task is in {}, with that of others",
                    part.err.display()
                ));
                Ok(Reader {
                    out: Input::open(&part.file, part.start, part.end - part.start)?,
                    err: Input {
                        file: None,
                        path: part.err.clone(),
                        left: 0,
                    },
                    buffer: vec![0; CHUNK],
                })
            }
        }
    }
}

/// The open files of an attempt.
pub struct Reader {
    out: Input,
    err: Input,
    buffer: Vec<u8>,
}

struct Input {
    /// `None` until it is opened.
    file: Option<packed::Stream>,
    path: PathBuf,
    /// Bytes to be read at most.
    left: u64,
}

impl Reader {
    /// Opens the files of an attempt. That of standard error may come later.
    pub fn of_files(files: &AttemptFiles) -> Result<Self, Unreadable> {
        Ok(Self {
            out: Input::open(&files.out, 0, u64::MAX)?,
            // A worker makes this file after the other one.
            err: Input {
                file: None,
                path: files.err.clone(),
                left: u64::MAX,
            },
            buffer: vec![0; CHUNK],
        })
    }

    /// Opens the entry of an attempt in a pack.
    pub fn of_pack(
        output: &mut TaskOutput,
        task: &[u8],
        attempt: u32,
        pack: &Path,
    ) -> Result<Self, Unreadable> {
        let mut open = |channel| {
            let stream = output.open(task, channel, attempt);
            let file = stream.map_err(|source| Unreadable {
                path: pack.to_owned(),
                source,
            })?;
            Ok(Input {
                file: Some(file),
                path: pack.to_owned(),
                left: u64::MAX,
            })
        };
        Ok(Self {
            out: open(Channel::Out)?,
            err: open(Channel::Err)?,
            buffer: vec![0; CHUNK],
        })
    }

    /// Passes the next bytes of both files on. Returns whether there were any.
    pub fn read(&mut self, take: &mut Take<'_>) -> Result<bool, Unreadable> {
        let mut has_read = false;
        for (input, stream) in [(&mut self.out, Stream::Out), (&mut self.err, Stream::Err)] {
            let bytes = input.read(&mut self.buffer)?;
            take(stream, bytes);
            has_read |= !bytes.is_empty();
        }
        Ok(has_read)
    }
}

impl Input {
    fn open(path: &Path, start: u64, left: u64) -> Result<Self, Unreadable> {
        Ok(Self {
            file: Some(open_at(path, start)?),
            path: path.to_owned(),
            left,
        })
    }

    fn read<'a>(&mut self, buffer: &'a mut [u8]) -> Result<&'a [u8], Unreadable> {
        if self.left == 0 {
            return Ok(&[]);
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => match open_at(&self.path, 0) {
                Ok(file) => self.file.insert(file),
                Err(missing) if missing.source.kind() == io::ErrorKind::NotFound => return Ok(&[]),
                Err(other) => return Err(other),
            },
        };
        let most = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = loop {
            match file.read(&mut buffer[..most]) {
                Ok(count) => break count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    let path = self.path.clone();
                    return Err(Unreadable { path, source });
                }
            }
        };
        self.left -= count as u64;
        Ok(&buffer[..count])
    }
}

fn open_at(path: &Path, start: u64) -> Result<packed::Stream, Unreadable> {
    let opened = pmc_files::open(path).and_then(|mut file| {
        file.seek(SeekFrom::Start(start))?;
        Ok(file.into())
    });
    opened.map_err(|source| Unreadable {
        path: path.to_owned(),
        source,
    })
}

/// Finds a task by its name, or by its id in the workflow, with which its name ends. For commands, that is
/// the line in their file.
///
/// # Errors
/// No task has this name, and no or several ones have this id.
pub fn find_task(history: &History, given: &OsStr) -> Result<TaskNumber, Failure> {
    let plan = &history.plan;
    if let Some(task) = plan.find(given.as_bytes()) {
        return Ok(task);
    }
    let ending = [b"_", given.as_bytes()].concat();
    let all = 0..u32::try_from(plan.len()).unwrap_or(u32::MAX);
    let mut found = all.clone().filter(|task| plan.name(*task).ends_with(&ending));
    if let (Some(task), None) = (found.next(), found.next()) {
        return Ok(task);
    }
    let task = given.to_string_lossy();
    let error = anyhow!("{}: there is no task {task}", history.dir.dag.display());
    let failure = Failure::new(exit::USAGE, error);
    let names: Vec<String> = all.map(|task| plan.text_name(task)).collect();
    match near_spelling(&task, names.iter().map(String::as_str)) {
        Some(near) => Err(failure.hint(format!("did you mean {near}?"))),
        None => Err(failure),
    }
}

/// A file cannot be read, perhaps because it belongs to another user.
pub fn unreadable(dir: &RunDir, Unreadable { path, source }: Unreadable) -> Failure {
    let owner = path.metadata().or_else(|_| dir.dir.metadata());
    let other = owner
        .ok()
        .map(|data| data.uid())
        .filter(|owner| *owner != nix::unistd::geteuid().as_raw());
    let error = anyhow!("{}: {}", path.display(), reason(&source));
    let failure = Failure::new(exit::NOT_RUN, error);
    match other {
        Some(owner) if source.kind() == io::ErrorKind::PermissionDenied => {
            failure.hint(format!("the run belongs to another user (number {owner})"))
        }
        _ => failure,
    }
}
