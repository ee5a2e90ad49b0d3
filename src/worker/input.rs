//! Standard input of tasks: nothing, a file, or a pipe that tools fill.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::pipe2;

use super::error::NotStarted;
use crate::protocol::{Stdin, WriteAnswer};

/// Bytes that the pipe of a task holds, if the system allows that many.
const PIPE_SIZE: i32 = 1 << 20;

/// The streams of an attempt's standard input.
pub(super) struct TaskInput {
    /// What the task reads; `None` for nothing.
    read: Option<File>,
    /// What tools fill.
    pub(super) write: Option<File>,
}

impl TaskInput {
    /// Opens what the task reads.
    pub(super) fn open(stdin: Option<&Stdin>) -> Result<Self, NotStarted> {
        match stdin {
            None => Ok(Self {
                read: None,
                write: None,
            }),
            Some(Stdin::File(path)) => {
                let path = Path::new(std::ffi::OsStr::from_bytes(path));
                let file = pmc_files::open(path).map_err(|source| open_error(path, source))?;
                Ok(Self {
                    read: Some(file),
                    write: None,
                })
            }
            Some(Stdin::Push) => {
                let (read, write) = pipe().map_err(NotStarted::Prepare)?;
                Ok(Self {
                    read: Some(read.into()),
                    write: Some(write.into()),
                })
            }
        }
    }

    /// Returns the descriptor for the task; `nothing` if it reads nothing.
    pub(super) fn descriptor(&self, nothing: &File) -> RawFd {
        self.read.as_ref().unwrap_or(nothing).as_raw_fd()
    }
}

fn open_error(path: &Path, source: io::Error) -> NotStarted {
    NotStarted::OpenFile {
        stream: "stdin",
        path: PathBuf::from(path),
        source,
    }
}

/// Makes a pipe into which the worker writes without waiting.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    // A smaller one is slower.
    let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(PIPE_SIZE));
    Ok((read, write))
}

/// The input of the attempt that runs.
#[derive(Debug, Default)]
pub(super) enum Pushed {
    /// It takes none from tools.
    #[default]
    Not,
    /// Tools fill this pipe.
    Open(File),
    /// It had its end.
    Complete,
    /// The attempt has ended.
    Ended,
}

impl Pushed {
    /// Takes input, as much as there is room for.
    pub(super) fn push(&mut self, bytes: &[u8], is_end: bool) -> WriteAnswer {
        let pipe = match self {
            Self::Not => return WriteAnswer::NotPushed,
            Self::Complete => return WriteAnswer::Complete,
            Self::Ended => return WriteAnswer::Ended,
            Self::Open(pipe) => pipe,
        };
        let mut left = bytes;
        while !left.is_empty() {
            match pipe.write(left) {
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The task reads no more.
                Err(_) => {
                    *self = Self::Complete;
                    return WriteAnswer::Closed;
                }
            }
        }
        if left.is_empty() && is_end {
            *self = Self::Complete;
        }
        WriteAnswer::Taken((bytes.len() - left.len()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_pipe_takes_what_it_has_room_for() {
        assert_eq!(Pushed::default().push(b"x", true), WriteAnswer::NotPushed);
        let TaskInput { read, write } = TaskInput::open(Some(&Stdin::Push)).unwrap();
        let (mut read, mut pushed) = (read.unwrap(), Pushed::Open(write.unwrap()));
        let bytes = vec![b'x'; 2 << 20];
        let WriteAnswer::Taken(count) = pushed.push(&bytes, true) else {
            panic!("it is open");
        };
        assert!(count > 0 && count < bytes.len() as u64, "{count}");
        assert_eq!(pushed.push(b"y", true), WriteAnswer::Taken(0));
        let mut taken = vec![0; count as usize];
        read.read_exact(&mut taken).unwrap();
        assert_eq!(pushed.push(b"y", true), WriteAnswer::Taken(1));
        assert_eq!(pushed.push(b"z", false), WriteAnswer::Complete);
        let mut rest = String::new();
        read.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "y");
    }

    #[test]
    fn a_task_that_reads_no_more_is_noticed() {
        let TaskInput { read, write } = TaskInput::open(Some(&Stdin::Push)).unwrap();
        drop(read);
        let mut pushed = Pushed::Open(write.unwrap());
        assert_eq!(pushed.push(b"x", false), WriteAnswer::Closed);
        assert_eq!(pushed.push(b"x", false), WriteAnswer::Complete);
    }

    #[test]
    fn a_missing_file_is_named() {
        let stdin = Stdin::File(b"no-such-folder/in".to_vec());
        let Err(error) = TaskInput::open(Some(&stdin)) else {
            panic!("opened");
        };
        let text = "Unable to open task stdin file no-such-folder/in: No such file or directory";
        assert_eq!(error.to_string(), text);
    }
}
