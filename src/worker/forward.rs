//! Data that a task forwards to shared files, through pipes or files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pmc_dag::{Forward, reason};
use pmc_spawn::FIRST_KEPT;

use super::running::RunningAttempt;
use super::strays::PipeId;
use super::watch::Watch;
use crate::payload::{Queue, Spool, SpoolError};
use crate::protocol::ForwardedData;
use crate::transport::local::StopTask as _;

/// Maximum bytes of a forwarded file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Maximum data of an attempt in memory.
const MEMORY_BYTES: usize = 1 << 20;

/// Default interval between checks for an abort while pipes are read.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How long pipes are read after the task was killed: what it has written is there already.
const AFTER_KILL: Duration = Duration::from_millis(200);

const BUFFER_BYTES: usize = 64 << 10;

/// Why the data of an attempt cannot be forwarded.
#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error("{}", reason(.0))]
    Pipe(#[from] io::Error),
    #[error(transparent)]
    Spool(#[from] SpoolError),
    #[error(
        "it has forwarded more than {} MiB through its pipes, so these were closed (--forward-limit)",
        .0 >> 20
    )]
    TooMuch(u64),
    #[error("processes that it has left behind held its pipes, and were killed")]
    Held(Vec<PipeId>),
    #[error("stat failed on file {}: {}", .0.display(), reason(.1))]
    Stat(PathBuf, io::Error),
    #[error("{} is not a file", .0.display())]
    NoFile(PathBuf),
    #[error("Unable to read {}: {}", .0.display(), reason(.1))]
    Read(PathBuf, io::Error),
    #[error("File {} is too large", .0.display())]
    TooLarge(PathBuf),
}

/// The pipes of one attempt of a task.
pub(super) struct Pipes<'a> {
    forwards: &'a [Forward],
    read: Vec<File>,
    write: Vec<OwnedFd>,
}

impl<'a> Pipes<'a> {
    pub(super) fn open(forwards: &'a [Forward]) -> io::Result<Self> {
        let mut pipes = Self {
            forwards,
            read: Vec::new(),
            write: Vec::new(),
        };
        for _ in forwards {
            let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
            pipes.read.push(read.into());
            pipes.write.push(write);
        }
        Ok(pipes)
    }

    /// Descriptors that the task inherits, numbered from [`FIRST_KEPT`] there.
    pub(super) fn write_ends(&self) -> Vec<RawFd> {
        self.write.iter().map(|end| end.as_raw_fd()).collect()
    }

    /// Variable of each pipe, and the number of its descriptor in the task.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&[u8], RawFd)> {
        let names = self.forwards.iter().map(|(name, _)| name.as_slice());
        names.zip(FIRST_KEPT..)
    }

    /// Reads until all writers have closed their ends, the task is killed, or the run is aborted. After an
    /// error the pipes are closed: a task that goes on writing gets SIGPIPE.
    pub(super) fn read(
        mut self,
        room: &mut Room,
        current: &RunningAttempt,
        watch: &mut dyn Watch,
    ) -> Result<(), ForwardError> {
        self.write.clear();
        // Most tasks have no pipes, and the buffer is large.
        if self.read.is_empty() {
            return Ok(());
        }
        let targets = self.forwards.iter().map(|(_, target)| target.clone());
        room.data = targets.map(|target| (target, Queue::default())).collect();
        let mut open: Vec<usize> = (0..self.read.len()).collect();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut last_poll = Instant::now();
        let mut killed: Option<Instant> = None;
        while !open.is_empty() {
            if current.is_killed() {
                killed.get_or_insert_with(Instant::now);
            }
            if current.is_aborted() || killed.is_some_and(|killed| killed.elapsed() >= AFTER_KILL) {
                let held = open.iter().filter_map(|pipe| PipeId::of(&self.read[*pipe]));
                return Err(ForwardError::Held(held.collect()));
            }
            let interval = watch.interval().unwrap_or(POLL_INTERVAL);
            if last_poll.elapsed() >= interval {
                watch.poll();
                last_poll = Instant::now();
            }
            let timeout = PollTimeout::try_from(interval).unwrap_or(PollTimeout::ZERO);
            for pipe in self.ready(&open, timeout)? {
                match (&self.read[pipe]).read(&mut buffer) {
                    Ok(0) => open.retain(|other| *other != pipe),
                    Ok(count) => room.add(pipe, &buffer[..count])?,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Waits until some of the open pipes have data or are closed.
    fn ready(&self, open: &[usize], timeout: PollTimeout) -> io::Result<Vec<usize>> {
        let mut polled: Vec<PollFd<'_>> = open
            .iter()
            .map(|pipe| PollFd::new(self.read[*pipe].as_fd(), PollFlags::POLLIN))
            .collect();
        match poll(&mut polled, timeout) {
            Ok(0) | Err(nix::errno::Errno::EINTR) => return Ok(Vec::new()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let has_event = |polled: &PollFd<'_>| polled.revents().is_some_and(|events| !events.is_empty());
        let ready = open.iter().zip(&polled).filter(|(_, polled)| has_event(polled));
        Ok(ready.map(|(pipe, _)| *pipe).collect())
    }
}

/// Room for the data that one attempt forwards.
pub(super) struct Room {
    spool: Spool,
    /// Bytes that its pipes may still take; `None` means no limit.
    left: Option<u64>,
    limit: u64,
    /// Targets and their data.
    data: Vec<(Vec<u8>, Queue)>,
}

impl Room {
    /// Room for at most `limit` bytes; 0 means no limit. What does not fit into memory is in files without
    /// names in `folder`.
    pub(super) fn new(folder: &Path, limit: u64) -> Self {
        Self {
            spool: Spool::new(folder, MEMORY_BYTES),
            left: (limit > 0).then_some(limit),
            limit,
            data: Vec::new(),
        }
    }

    /// Adds what a pipe has brought.
    fn add(&mut self, pipe: usize, data: &[u8]) -> Result<(), ForwardError> {
        if let Some(left) = &mut self.left {
            let rest = left.checked_sub(data.len() as u64);
            *left = rest.ok_or(ForwardError::TooMuch(self.limit))?;
        }
        Ok(self.spool.add(&mut self.data[pipe].1, data)?)
    }

    /// Adds the files that a task has left for forwarding. Missing and empty files are no error.
    pub(super) fn read_files(&mut self, forwards: &[Forward]) -> Result<(), ForwardError> {
        for (source, target) in forwards {
            let content = read_file(Path::new(OsStr::from_bytes(source)))?;
            let mut queue = Queue::default();
            self.spool.add(&mut queue, &content)?;
            self.data.push((target.clone(), queue));
        }
        Ok(())
    }

    /// Returns all data, in the order of the options.
    pub(super) fn finish(mut self) -> Vec<ForwardedData> {
        let pieces = self.data.into_iter().map(|(target, queue)| ForwardedData {
            target,
            data: self.spool.take(queue),
        });
        pieces.filter(|piece| !piece.data.is_empty()).collect()
    }
}

/// Reads a file; empty if it is missing.
fn read_file(path: &Path) -> Result<Vec<u8>, ForwardError> {
    let metadata = match path.metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|error| ForwardError::Stat(path.to_owned(), error))?,
    };
    if !metadata.is_file() {
        return Err(ForwardError::NoFile(path.to_owned()));
    }
    let failed = |error| ForwardError::Read(path.to_owned(), error);
    let file = pmc_files::open(path).map_err(failed)?;
    let mut content = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut content)
        .map_err(failed)?;
    if content.len() as u64 > MAX_FILE_BYTES {
        return Err(ForwardError::TooLarge(path.to_owned()));
    }
    Ok(content)
}

/// Removes the files that a task has left for forwarding, even if the task failed.
pub(super) fn remove_files(forwards: &[Forward]) {
    for (source, _) in forwards {
        let path = Path::new(OsStr::from_bytes(source));
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!("Unable to remove file {}: {}", path.display(), reason(&error));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::watch::NoWatch;
    use super::*;

    fn forward(source: &Path) -> Vec<Forward> {
        vec![(source.as_os_str().as_bytes().to_vec(), b"target".to_vec())]
    }

    #[test]
    fn files_are_read_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        let read = |path: &Path| {
            let mut room = Room::new(folder.path(), 0);
            room.read_files(&forward(path)).map(|()| room.finish())
        };
        assert_eq!(read(&file).unwrap(), []);
        std::fs::write(&file, "").unwrap();
        assert_eq!(read(&file).unwrap(), []);
        std::fs::write(&file, vec![7; MAX_FILE_BYTES as usize]).unwrap();
        assert_eq!(read(&file).unwrap()[0].data.len(), MAX_FILE_BYTES);
        std::fs::write(&file, vec![7; MAX_FILE_BYTES as usize + 1]).unwrap();
        let message = read(&file).unwrap_err().to_string();
        assert_eq!(message, format!("File {} is too large", file.display()));
        let message = read(folder.path()).unwrap_err().to_string();
        assert_eq!(message, format!("{} is not a file", folder.path().display()));
        remove_files(&forward(&file));
        assert!(!file.exists());
    }

    #[test]
    fn data_may_exceed_the_capacity_of_a_pipe() {
        let forwards = vec![(b"A".to_vec(), b"a".to_vec()), (b"B".to_vec(), b"b".to_vec())];
        let mut pipes = Pipes::open(&forwards).unwrap();
        assert_eq!(
            pipes
                .variables()
                .map(|(name, _)| name.to_vec())
                .collect::<Vec<_>>(),
            [b"A", b"B"]
        );
        let mut end: File = pipes.write.pop().unwrap().into();
        let writer = std::thread::spawn(move || end.write_all(&vec![9; 300_000]));
        let mut room = Room::new(Path::new("."), 300_000);
        pipes
            .read(&mut room, &RunningAttempt::new(), &mut NoWatch)
            .unwrap();
        writer.join().unwrap().unwrap();
        let data = room.finish();
        assert_eq!(data.len(), 1);
        assert_eq!(
            (data[0].target.as_slice(), data[0].data.len()),
            (&b"b"[..], 300_000)
        );
    }

    #[test]
    fn pipes_are_closed_at_the_limit() {
        let forwards = vec![(b"A".to_vec(), b"a".to_vec())];
        let mut pipes = Pipes::open(&forwards).unwrap();
        let mut end: File = pipes.write.pop().unwrap().into();
        let writer = std::thread::spawn(move || end.write_all(&vec![9; 3 << 20]));
        let mut room = Room::new(Path::new("."), 2 << 20);
        let error = pipes
            .read(&mut room, &RunningAttempt::new(), &mut NoWatch)
            .unwrap_err();
        assert!(error.to_string().contains("more than 2 MiB"), "{error}");
        let error = writer.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn abort_ends_reading() {
        let forwards = vec![(b"A".to_vec(), b"a".to_vec())];
        let pipes = Pipes::open(&forwards).unwrap();
        let held = pipes.write[0].try_clone().unwrap();
        let current = RunningAttempt::new();
        current.terminate();
        let mut room = Room::new(Path::new("."), 0);
        let read = pipes.read(&mut room, &current, &mut NoWatch);
        assert!(matches!(read, Err(ForwardError::Held(pipes)) if pipes.len() == 1));
        drop(held);
    }
}
