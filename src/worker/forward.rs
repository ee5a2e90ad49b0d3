//! Data that a task hands over for shared files, through pipes and through files.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pmc_dag::Forward;

use super::kill::KillSwitch;
use super::watch::Watch;
use crate::protocol::ForwardedData;
use crate::transport::local::StopTask as _;

/// Longest file that is forwarded; longer data belongs into files of its own.
pub const LONGEST_FILE: u64 = 1 << 20;

/// How often a worker that reads pipes looks whether it is to end, if nothing else is to be looked after.
const LOOK: Duration = Duration::from_millis(100);

/// The pipes of one try of a task.
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

    /// Ends for the task, which stay open in it.
    pub(super) fn for_task(&self) -> Vec<RawFd> {
        self.write.iter().map(|end| end.as_raw_fd()).collect()
    }

    /// `VARIABLE=descriptor` of each pipe.
    pub(super) fn variables(&self) -> impl Iterator<Item = (&[u8], RawFd)> {
        self.forwards
            .iter()
            .zip(&self.write)
            .map(|((name, _), end)| (name.as_slice(), end.as_raw_fd()))
    }

    /// Reads until all writers have closed their ends, or the task is to be ended.
    pub(super) fn read(mut self, kill: &KillSwitch, watch: &mut dyn Watch) -> io::Result<Vec<ForwardedData>> {
        self.write.clear();
        // Most tasks have none, and the buffer is large.
        if self.read.is_empty() {
            return Ok(Vec::new());
        }
        let mut data = vec![Vec::new(); self.read.len()];
        let mut open: Vec<usize> = (0..self.read.len()).collect();
        let mut buffer = vec![0; 64 * 1024];
        let every = watch.interval().unwrap_or(LOOK);
        let timeout = PollTimeout::try_from(every).unwrap_or(PollTimeout::ZERO);
        let mut looked = Instant::now();
        while !open.is_empty() && !kill.is_aborted() {
            if looked.elapsed() >= every {
                watch.poll();
                looked = Instant::now();
            }
            let mut polled: Vec<PollFd<'_>> = open
                .iter()
                .map(|at| PollFd::new(self.read[*at].as_fd(), PollFlags::POLLIN))
                .collect();
            match poll(&mut polled, timeout) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = polled
                .iter()
                .map(|p| p.revents().is_some_and(|events| !events.is_empty()))
                .collect();
            let mut ready = ready.into_iter();
            let mut result = Ok(());
            open.retain(|at| {
                if !ready.next().unwrap_or(false) {
                    return true;
                }
                match (&self.read[*at]).read(&mut buffer) {
                    Ok(0) => false,
                    Ok(n) => {
                        data[*at].extend_from_slice(&buffer[..n]);
                        true
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
                    Err(error) => {
                        result = Err(error);
                        false
                    }
                }
            });
            result?;
        }
        let forwarded = self.forwards.iter().zip(data);
        Ok(forwarded
            .filter(|(_, data)| !data.is_empty())
            .map(|((_, target), data)| ForwardedData {
                target: target.clone(),
                data,
            })
            .collect())
    }
}

/// Reads the files that a task has left to be forwarded. A file that is not there or empty is
/// no error. The message of the error is for the user.
pub(super) fn read_files(forwards: &[Forward], data: &mut Vec<ForwardedData>) -> Result<(), String> {
    for (source, target) in forwards {
        let path = Path::new(std::ffi::OsStr::from_bytes(source));
        let failed =
            |what, error: io::Error| format!("{what} {}: {}", path.display(), pmc_dag::reason(&error));
        let unread = |error| failed("Unable to read", error);
        let metadata = match path.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(|error| failed("stat failed on file", error))?,
        };
        if !metadata.is_file() {
            return Err(format!("{} is not a file", path.display()));
        }
        let mut content = Vec::new();
        let file = File::open(path).map_err(unread)?;
        file.take(LONGEST_FILE + 1)
            .read_to_end(&mut content)
            .map_err(unread)?;
        if content.len() as u64 > LONGEST_FILE {
            return Err(format!("File {} is too large", path.display()));
        }
        if !content.is_empty() {
            data.push(ForwardedData {
                target: target.clone(),
                data: content,
            });
        }
    }
    Ok(())
}

/// Removes the files that a task has left to be forwarded, whatever became of the task.
pub(super) fn remove_files(forwards: &[Forward]) {
    for (source, _) in forwards {
        let path = Path::new(std::ffi::OsStr::from_bytes(source));
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(
                "Unable to remove file {}: {}",
                path.display(),
                pmc_dag::reason(&error)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::watch::Nothing;
    use super::*;

    fn forward(source: &Path) -> Vec<Forward> {
        vec![(source.as_os_str().as_bytes().to_vec(), b"target".to_vec())]
    }

    #[test]
    fn files_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        let mut data = Vec::new();
        assert_eq!(read_files(&forward(&file), &mut data), Ok(()));
        std::fs::write(&file, "").unwrap();
        assert_eq!(read_files(&forward(&file), &mut data), Ok(()));
        assert_eq!(data, []);
        std::fs::write(&file, vec![7; LONGEST_FILE as usize]).unwrap();
        assert_eq!(read_files(&forward(&file), &mut data), Ok(()));
        assert_eq!(data[0].data.len() as u64, LONGEST_FILE);
        std::fs::write(&file, vec![7; LONGEST_FILE as usize + 1]).unwrap();
        let message = read_files(&forward(&file), &mut data).unwrap_err();
        assert_eq!(message, format!("File {} is too large", file.display()));
        let message = read_files(&forward(folder.path()), &mut data).unwrap_err();
        assert_eq!(message, format!("{} is not a file", folder.path().display()));
        remove_files(&forward(&file));
        assert!(!file.exists());
    }

    #[test]
    fn more_than_a_pipe_holds() {
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
        let data = pipes.read(&KillSwitch::new(), &mut Nothing).unwrap();
        writer.join().unwrap().unwrap();
        assert_eq!(data.len(), 1);
        assert_eq!(
            (data[0].target.as_slice(), data[0].data.len()),
            (&b"b"[..], 300_000)
        );
    }

    #[test]
    fn an_abort_ends_the_reading() {
        let forwards = vec![(b"A".to_vec(), b"a".to_vec())];
        let pipes = Pipes::open(&forwards).unwrap();
        let held = pipes.write[0].try_clone().unwrap();
        let kill = KillSwitch::new();
        kill.terminate();
        assert_eq!(pipes.read(&kill, &mut Nothing).unwrap(), []);
        drop(held);
    }
}
