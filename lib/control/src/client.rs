//! A tool's side.

use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, setsockopt, sockopt};
use nix::sys::time::TimeVal;
use pmc_dag::reason;

use crate::connection::{Receiver, send_bytes, send_with_files};
use crate::{
    AddRequest, Answer, Output, OutputChunk, OutputChunkHead, RedirectEnd, RedirectRequest, Request,
    ShortPath, StreamHead, StreamOutput, TailRequest, TapRequest, socket,
};

/// Time for the run to answer, and to take a connection.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The same for a workflow that the run has to read first.
const LONG_TIMEOUT: Duration = Duration::from_secs(40);
/// Maximum bytes of an answer: ten thousand hosts with long names.
const MAX_ANSWER: usize = 16 << 20;

/// A run gives no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// There is no socket.
    #[error("no run of {} is going on, or it cannot be controlled: {} does not exist", dag.display(), socket(dag).display())]
    NoRun {
        /// The DAG file.
        dag: PathBuf,
    },
    /// The run has ended without removing its socket, or is on another host.
    #[error(
        "nothing listens on {}: the run was killed, or it is on another host; ask on the host of its master",
        socket(dag).display()
    )]
    NotListening {
        /// The DAG file.
        dag: PathBuf,
    },
    /// The socket is that of another user.
    #[error("the run of {} belongs to another user (number {owner})", dag.display())]
    OtherUser {
        /// The DAG file.
        dag: PathBuf,
        /// User number of its owner.
        owner: u32,
    },
    /// The connection fails.
    #[error("cannot ask the run of {}: {}", dag.display(), reason(source))]
    Io {
        /// The DAG file.
        dag: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The run closed the connection, or answered in another version of the protocol.
    #[error("the run of {} gives no answer that this program understands", dag.display())]
    NoAnswer {
        /// The DAG file.
        dag: PathBuf,
    },
}

/// Asks the run of a DAG file.
///
/// # Errors
/// No run listens, it belongs to another user, or it gives no answer.
pub fn ask(dag: &Path, request: &Request) -> Result<Answer, ControlError> {
    Tool::connect(dag)?.ask(request)
}

/// Returns whether the run of a DAG may be that of this user. Root may ask each run, but not a socket that
/// somebody has planted beside the DAG of another user.
pub(crate) fn may_own(dag: &Path, user: u32) -> bool {
    let own = nix::unistd::geteuid().as_raw();
    let owners = || {
        let folder = dag.parent().filter(|folder| !folder.as_os_str().is_empty());
        let paths = [dag, folder.unwrap_or(Path::new("."))];
        paths
            .into_iter()
            .filter_map(|path| Some(fs::metadata(path).ok()?.uid()))
    };
    user == own || own == 0 && owners().any(|owner| owner == user)
}

/// Connects to a socket. A process that takes no connections is not waited for any longer than this.
fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let descriptor = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
    let timeout = TimeVal::new(seconds, 0);
    setsockopt(&descriptor, sockopt::SendTimeout, &timeout)?;
    nix::sys::socket::connect(descriptor.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(descriptor.into())
}

/// A connection to a run.
#[derive(Debug)]
pub struct Tool {
    dag: PathBuf,
    receiver: Receiver,
    /// The user whose process answers.
    user: u32,
}

/// What becomes of a redirect.
#[derive(Debug)]
pub enum Redirect {
    /// It goes on.
    On {
        /// Worker and attempt, for the next request.
        attempt: (u32, u64),
        /// What the task has written after what was delivered.
        chunks: [OutputChunk; 2],
    },
    /// It has ended. What was not delivered is in the files, except for this number of bytes of each
    /// stream, which were lost by the rule for overflow.
    Ended(RedirectEnd, [u64; 2]),
    /// It does not begin: [`Answer::Refused`], [`Answer::NotSupported`] or [`Answer::NotYet`].
    Not(Answer),
}

/// Ends a redirect to files.
#[derive(Debug)]
pub struct RedirectHandle(UnixStream);

impl RedirectHandle {
    /// Ends it. The connection still gets the answer.
    pub fn end(&self) {
        // Without a connection, it has ended.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

impl Tool {
    /// Connects to the run of a DAG file.
    ///
    /// # Errors
    /// No run listens, or it belongs to another user.
    pub fn connect(dag: &Path) -> Result<Self, ControlError> {
        let dag_path = || dag.to_owned();
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => ControlError::NoRun { dag: dag_path() },
            io::ErrorKind::ConnectionRefused => ControlError::NotListening { dag: dag_path() },
            _ => ControlError::Io {
                dag: dag_path(),
                source,
            },
        };
        let short = ShortPath::new(&socket(dag)).map_err(failed)?;
        // Another user could have planted the socket. Its process may wait as long as it likes.
        let other_user = |owner| ControlError::OtherUser {
            dag: dag_path(),
            owner,
        };
        let found = fs::symlink_metadata(short.as_path()).map_err(failed)?;
        let owner = found.uid();
        if !may_own(dag, owner) {
            return Err(other_user(owner));
        }
        // A link could lead to the run of a third user.
        if !found.file_type().is_socket() {
            return Err(failed(io::Error::other(
                "what has the name of its socket is none",
            )));
        }
        let stream = connect(short.as_path(), TIMEOUT).map_err(failed)?;
        let user = getsockopt(&stream, sockopt::PeerCredentials)
            .map_err(|error| failed(error.into()))?
            .uid();
        if user != owner {
            return Err(other_user(user));
        }
        stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
        Ok(Self {
            dag: dag_path(),
            receiver: Receiver::new(stream),
            user,
        })
    }

    /// Returns whether the run is one of this user. Only such a run gets descriptors: a process of somebody
    /// else could do with them what it likes.
    #[must_use]
    pub fn is_of_user(&self) -> bool {
        self.user == nix::unistd::geteuid().as_raw()
    }

    /// Asks the run.
    ///
    /// # Errors
    /// The run gives no answer.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, ControlError> {
        if matches!(request, Request::Submit { .. } | Request::Stacks(_)) {
            let stream = self.receiver.stream();
            let set = stream.set_read_timeout(Some(LONG_TIMEOUT));
            set.map_err(|error| self.failed(error))?;
        }
        let json = |value: &Request| serde_json::to_vec(value);
        let mut added = Vec::new();
        let request_line = match request {
            Request::Add(add) => {
                for task in &add.tasks {
                    serde_json::to_writer(&mut added, task).map_err(|error| self.failed(error.into()))?;
                    added.push(b'\n');
                }
                let length = added.len();
                let tasks = Vec::new();
                json(&Request::Add(AddRequest { length, tasks }))
            }
            request => json(request),
        };
        let mut text = request_line.map_err(|error| self.failed(error.into()))?;
        text.push(b'\n');
        match request {
            Request::Push(push) => text.extend_from_slice(&push.bytes),
            Request::Add(_) => text.extend_from_slice(&added),
            _ => {}
        }
        let sent = send_bytes(self.receiver.stream(), &text);
        sent.map_err(|error| self.failed(error))?;
        let answer = self.receiver.line(MAX_ANSWER);
        let answer = answer.map_err(|error| self.failed(error))?;
        serde_json::from_slice(&answer).map_err(|_| self.no_answer())
    }

    /// Asks for output of a task.
    ///
    /// # Errors
    /// The run gives no answer.
    pub fn tap(&mut self, request: TapRequest) -> Result<Result<Output, String>, ControlError> {
        let (worker, attempt, heads) = match self.ask(&Request::Tap(request))? {
            Answer::Output {
                worker,
                attempt,
                streams,
            } => (worker, attempt, streams),
            Answer::Refused(reason) => return Ok(Err(reason)),
            _ => return Err(self.no_answer()),
        };
        let mut streams = [StreamOutput::None, StreamOutput::None];
        for (head, stream) in heads.into_iter().zip(&mut streams) {
            *stream = match head {
                StreamHead::None => StreamOutput::None,
                StreamHead::File => StreamOutput::File(self.receiver.file().ok_or_else(|| self.no_answer())?),
                StreamHead::Bytes { length, .. } if length > MAX_ANSWER => return Err(self.no_answer()),
                StreamHead::Bytes { position, length } => {
                    let bytes = self.receiver.take(length);
                    let bytes = bytes.map_err(|error| self.failed(error))?;
                    StreamOutput::Bytes { position, bytes }
                }
            };
        }
        Ok(Ok(Output {
            worker,
            attempt,
            streams,
        }))
    }

    /// Redirects output of a task, or goes on with that.
    ///
    /// # Errors
    /// The run gives no answer.
    pub fn redirect(&mut self, request: RedirectRequest) -> Result<Redirect, ControlError> {
        let answer = self.ask(&Request::Redirect(request))?;
        self.redirected(answer)
    }

    /// Redirects output of a task to two files, standard output and standard error of the tool: see
    /// [`RedirectRequest::to_files`]. [`Self::wait`] waits for the end.
    ///
    /// # Errors
    /// The run gives no answer.
    pub fn redirect_to(
        &mut self,
        mut request: RedirectRequest,
        files: [BorrowedFd<'_>; 2],
    ) -> Result<Redirect, ControlError> {
        if !self.is_of_user() {
            let (dag, owner) = (self.dag.clone(), self.user);
            return Err(ControlError::OtherUser { dag, owner });
        }
        request.to_files = true;
        let request = serde_json::to_vec(&Request::Redirect(request));
        let mut text = request.map_err(|error| self.failed(error.into()))?;
        text.push(b'\n');
        let sent = send_with_files(self.receiver.stream(), &text, &files);
        sent.map_err(|error| self.failed(error))?;
        self.wait()
    }

    /// Waits for what becomes of a redirect to files.
    ///
    /// # Errors
    /// The run gives no answer.
    pub fn wait(&mut self) -> Result<Redirect, ControlError> {
        let answer = self.receiver.line(MAX_ANSWER);
        let answer = answer.map_err(|error| self.failed(error))?;
        let answer = serde_json::from_slice(&answer).map_err(|_| self.no_answer())?;
        self.redirected(answer)
    }

    /// Returns what ends a redirect to files from another thread. [`Self::wait`] has no time limit then.
    ///
    /// # Errors
    /// The system refuses a descriptor.
    pub fn redirect_handle(&self) -> Result<RedirectHandle, ControlError> {
        let stream = self.receiver.stream().try_clone();
        let stream = stream.and_then(|stream| stream.set_read_timeout(None).map(|()| stream));
        stream.map(RedirectHandle).map_err(|error| self.failed(error))
    }

    /// Redirects tasks that start from now on, as long as this connection lives: see [`Request::Tail`].
    ///
    /// # Errors
    /// The run gives no answer.
    pub fn tail(&mut self, request: TailRequest) -> Result<Answer, ControlError> {
        self.ask(&Request::Tail(request))
    }

    fn redirected(&mut self, answer: Answer) -> Result<Redirect, ControlError> {
        let (worker, attempt, heads, over) = match answer {
            Answer::Redirected {
                worker,
                attempt,
                streams,
                over,
            } => (worker, attempt, streams, over),
            Answer::Refused(_) | Answer::NotSupported(_) | Answer::NotYet(_) => {
                return Ok(Redirect::Not(answer));
            }
            _ => return Err(self.no_answer()),
        };
        let mut chunks = [OutputChunk::default(), OutputChunk::default()];
        for (head, chunk) in heads.into_iter().zip(&mut chunks) {
            let OutputChunkHead {
                offset,
                length,
                times,
                dropped,
            } = head;
            if length > MAX_ANSWER {
                return Err(self.no_answer());
            }
            let bytes = self.receiver.take(length).map_err(|error| self.failed(error))?;
            *chunk = OutputChunk {
                offset,
                bytes,
                times,
                dropped,
            };
        }
        Ok(match over {
            Some(over) => Redirect::Ended(over, chunks.map(|chunk| chunk.dropped)),
            None => Redirect::On {
                attempt: (worker, attempt),
                chunks,
            },
        })
    }

    fn failed(&self, source: io::Error) -> ControlError {
        let dag = self.dag.clone();
        match source.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => ControlError::NoAnswer { dag },
            _ => ControlError::Io { dag, source },
        }
    }

    fn no_answer(&self) -> ControlError {
        let dag = self.dag.clone();
        ControlError::NoAnswer { dag }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Root would ask the run of a third user.
    #[test]
    fn a_link_is_no_socket_of_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let (dag, other) = (folder.path().join("x.dag"), folder.path().join("other.dag"));
        let _listener = UnixListener::bind(socket(&other)).unwrap();
        symlink(socket(&other), socket(&dag)).unwrap();
        assert!(Tool::connect(&other).is_ok());
        let error = Tool::connect(&dag).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.ends_with("what has the name of its socket is none")));
    }
}
