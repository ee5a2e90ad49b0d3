//! Tasks that are our own kickstart: done by one that stays, instead of one for each task.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, OsStr};
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd, AsRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use pmc_dag::reason;
use pmc_spawn::{Child, Spawn, Spawner};
use pmc_wire::{self as wire, PipeEnds, Reply};

use super::kill::Leader;
use super::process::{Ended, reap};
use super::program;

/// How long a server may take to start. It may have to be read from a slow file system.
const START_LIMIT: Duration = Duration::from_secs(20);

/// How long a server may take to end.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Programs that set variables and then become another program.
const ENV: [&str; 2] = ["/usr/bin/env", "/bin/env"];

/// Starts servers, and knows which tasks are for them.
pub(super) struct TaskServerClient {
    /// The program and what identifies its file.
    program: Option<(PathBuf, FileId)>,
    /// The server at rest, if there is one.
    server: Option<TaskServer>,
    /// The path by which the last task named the program.
    named: RefCell<Option<PathBuf>>,
}

/// Device and inode.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn of(file: &Path) -> Option<Self> {
        let metadata = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(Self(metadata.dev(), metadata.ino()))
    }
}

/// What a task wants from kickstart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KickstartCommand<'a> {
    /// `NAME=value`, from a leading `env`.
    pub(super) variables: &'a [Vec<u8>],
    /// Arguments of kickstart.
    pub(super) words: &'a [Vec<u8>],
}

impl TaskServerClient {
    /// For tasks of `program`, if it is there, and beside it the one that serves.
    pub(super) fn new(program: Option<&Path>) -> Self {
        let program = program.filter(|program| program.with_file_name(wire::SERVER_NAME).is_file());
        let program = program.and_then(|program| Some((program.to_owned(), FileId::of(program)?)));
        Self {
            program,
            server: None,
            named: RefCell::default(),
        }
    }

    /// Whether the file is the program. A path that was is not looked at again: the server is what it was.
    fn is_program(&self, file: &Path, ours: FileId) -> bool {
        if self.named.borrow().as_deref() == Some(file) {
            return true;
        }
        let is = FileId::of(file) == Some(ours);
        if is && file.is_absolute() {
            self.named.replace(Some(file.to_owned()));
        }
        is
    }

    /// What the task with these words wants, if it is for a server. A task that sets variables which
    /// kickstart itself would notice is not.
    pub(super) fn kickstart_command<'a>(
        &self,
        words: &'a [Vec<u8>],
        path: &[PathBuf],
    ) -> Option<KickstartCommand<'a>> {
        let (_, ours) = self.program.as_ref()?;
        let (first, mut rest) = words.split_first()?;
        // A word with a slash is a path, whatever is there.
        let find = |word: &'a [u8]| -> Cow<'a, Path> {
            if word.contains(&b'/') {
                return Cow::Borrowed(Path::new(OsStr::from_bytes(word)));
            }
            program::find(word, path)
        };
        let mut file = find(first);
        let mut variables = &rest[..0];
        if ENV.iter().any(|env| *file == *Path::new(env)) {
            let count = rest.iter().take_while(|word| word.contains(&b'=')).count();
            (variables, rest) = rest.split_at(count);
            let (kickstart, arguments) = rest.split_first()?;
            let noticed = |word: &Vec<u8>| {
                [&b"-"[..], b"=", b"TZ=", b"LD_"]
                    .iter()
                    .any(|start| word.starts_with(start))
            };
            if !kickstart.contains(&b'/') || variables.iter().any(noticed) {
                return None;
            }
            file = find(kickstart);
            rest = arguments;
        }
        self.is_program(&file, *ours).then_some(KickstartCommand {
            variables,
            words: rest,
        })
    }

    /// The server at rest, or a new one. Without one, tasks have to start their own kickstart.
    pub(super) fn server(&mut self, environment: &[CString], spawner: &mut Spawner) -> Option<TaskServer> {
        let server = self
            .server
            .take()
            .map_or_else(|| self.start(environment, spawner), Ok);
        let greeted = server.and_then(|mut server| {
            server.await_greeting()?;
            Ok(server)
        });
        self.or_give_up(greeted)
    }

    fn start(&self, environment: &[CString], spawner: &mut Spawner) -> io::Result<TaskServer> {
        let (program, _) = self.program.as_ref().ok_or(io::ErrorKind::NotFound)?;
        TaskServer::start(&program.with_file_name(wire::SERVER_NAME), environment, spawner)
    }

    /// The server, if it could be started; else no other is. What is wrong is told once: it is the same for all workers.
    fn or_give_up(&mut self, server: io::Result<TaskServer>) -> Option<TaskServer> {
        server
            .inspect_err(|error| {
                static TOLD: Once = Once::new();
                if let Some((program, _)) = self.program.take() {
                    TOLD.call_once(|| {
                        tracing::warn!(
                            "Unable to keep {} running: {}; each task starts its own",
                            program.with_file_name(wire::SERVER_NAME).display(),
                            reason(error)
                        );
                    });
                }
            })
            .ok()
    }

    /// Takes back a server that can go on.
    pub(super) fn keep(&mut self, server: TaskServer) {
        self.server = Some(server);
    }

    /// Ends the server, for this process is about to end, too.
    pub(super) fn close(&mut self) {
        if let Some(server) = self.server.take() {
            server.dismiss();
        }
    }
}

/// Whether something has come, or the other side has closed, within `timeout`.
fn is_readable(source: impl AsFd, timeout: Duration) -> bool {
    let mut source = [PollFd::new(source.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX);
    matches!(poll(&mut source, timeout), Ok(1..))
}

/// A kickstart that stays. It ends when this is dropped.
pub(super) struct TaskServer {
    child: Child,
    socket: Option<UnixStream>,
    /// The server ends the task when this is closed.
    lifeline: Option<PipeWriter>,
    /// Nobody has to wait for its end.
    gone: bool,
    /// For requests and replies, from when it is known to be ready.
    pipes: Option<PipeEnds>,
    /// It knows the worker's shared streams.
    has_streams: Cell<bool>,
    /// What came when the task had ended.
    reply: Cell<Option<io::Result<Option<Reply>>>>,
}

impl TaskServer {
    fn start(program: &Path, environment: &[CString], spawner: &mut Spawner) -> io::Result<Self> {
        let (here, there) = UnixStream::pair()?;
        let (watched, lifeline) = io::pipe()?;
        let file = CString::new(program.as_os_str().as_bytes())?;
        let name = CString::new(wire::SERVER_NAME)?;
        let stderr = io::stderr().as_raw_fd();
        let mut child = Spawn {
            program: &file,
            arguments: &[name.as_c_str()].into_iter().collect(),
            environment: &environment.iter().map(CString::as_c_str).collect(),
            directory: None,
            stdio: [there.as_raw_fd(), watched.as_raw_fd(), stderr],
            keep: &[],
            close_others: true,
            leads_group: true,
            unblock: false,
            memory: None,
            cpus: None,
            // It looks after the lifeline, so that the task ends, too, and not only the server.
            die_with_parent: false,
            descriptor: true,
        }
        .start(spawner)?;
        drop((there, watched));
        let failure = child.failure.take();
        let server = Self {
            child,
            socket: Some(here),
            lifeline: Some(lifeline),
            gone: false,
            pipes: None,
            has_streams: Cell::new(false),
            reply: Cell::new(None),
        };
        if let Some(error) = failure {
            return Err(error);
        }
        Ok(server)
    }

    /// Waits until the server is ready for its first task.
    fn await_greeting(&mut self) -> io::Result<()> {
        if self.pipes.is_some() {
            return Ok(());
        }
        let socket = self.socket()?;
        if !is_readable(socket, START_LIMIT) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let greeting = wire::receive_greeting(socket)?;
        let pipes = greeting.ok_or_else(|| io::Error::other("it ended at once, or is of another version"))?;
        tracing::debug!("Started {} as {}", wire::SERVER_NAME, self.child.pid);
        self.pipes = Some(pipes);
        Ok(())
    }

    fn socket(&self) -> io::Result<&UnixStream> {
        self.socket.as_ref().ok_or(io::ErrorKind::NotConnected.into())
    }

    fn pipes(&self) -> io::Result<&PipeEnds> {
        self.pipes.as_ref().ok_or(io::ErrorKind::NotConnected.into())
    }

    /// Begins a task with these streams and pipes. `shared` says whether the streams are those that the worker has
    /// for all tasks. After an error it has not begun.
    pub(super) fn begin(
        &self,
        request: &[u8],
        streams: [RawFd; 3],
        pipes: &[RawFd],
        shared: bool,
    ) -> io::Result<()> {
        let (socket, requests) = (self.socket()?, &self.pipes()?.write);
        if shared && pipes.is_empty() && self.has_streams.get() {
            return wire::send_request(socket, requests, request, &[]);
        }
        wire::send_request(socket, requests, request, &[&streams, pipes].concat())?;
        self.has_streams.set(shared);
        Ok(())
    }

    /// The end of the task that was begun; waits for it.
    pub(super) fn conclude(&mut self) -> io::Result<Ended> {
        let reply = match self.reply.take() {
            Some(reply) => reply,
            None => wire::receive_reply(&self.pipes()?.read),
        };
        if let Some(reply) = reply? {
            return Ok(Ended {
                status: i32::from(reply.code) << 8,
                goes_on: !reply.last,
                broken: false,
            });
        }
        self.gone = true;
        Ok(Ended {
            status: reap(self.child.pid)?,
            goes_on: false,
            broken: true,
        })
    }

    /// Ends the server and waits until it has done all that it has to do. The system clears it away later, which takes as
    /// long as a small task.
    fn dismiss(mut self) {
        if let Some(PipeEnds { read, write }) = self.pipes.take() {
            drop(write);
            // Closed last of all.
            self.gone = is_readable(read, END_LIMIT);
        }
    }

    /// Whether the process was reaped. Waits for that, but not for ever: it may hang in a file system.
    fn reap_soon(&self, limit: Duration) -> bool {
        if let Some(descriptor) = &self.child.descriptor {
            let mut ended = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
            let _ = poll(
                &mut ended,
                PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX),
            );
        } else {
            let step = Duration::from_millis(10);
            let steps = limit.as_millis() / step.as_millis();
            for _ in 0..steps {
                if self.reap_now() {
                    return true;
                }
                std::thread::sleep(step);
            }
        }
        self.reap_now()
    }

    fn reap_now(&self) -> bool {
        let state = waitpid(self.child.pid, Some(WaitPidFlag::WNOHANG));
        !matches!(state, Ok(WaitStatus::StillAlive))
    }
}

impl Leader for TaskServer {
    fn pid(&self) -> Pid {
        self.child.pid
    }

    fn wait(&self) {
        self.reply
            .set(self.pipes.as_ref().map(|pipes| wire::receive_reply(&pipes.read)));
    }

    fn has_ended_within(&self, timeout: Duration, _: Duration) -> bool {
        self.pipes
            .as_ref()
            .is_none_or(|pipes| is_readable(&pipes.read, timeout))
    }
}

impl Drop for TaskServer {
    fn drop(&mut self) {
        (self.socket, self.pipes, self.lifeline) = (None, None, None);
        if self.gone || self.reap_soon(END_LIMIT) {
            return;
        }
        // It is ours until it is reaped.
        let _ = kill(self.child.pid, Signal::SIGKILL);
        if !self.reap_soon(END_LIMIT) {
            tracing::warn!("{} {} does not end", wire::SERVER_NAME, self.child.pid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<Vec<u8>> {
        line.split_whitespace()
            .map(|word| word.as_bytes().to_vec())
            .collect()
    }

    #[test]
    fn only_our_kickstart_is_for_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let path = [folder.path().to_owned()];
        let own = folder.path().join("pegasus-kickstart");
        std::fs::copy("/bin/true", &own).unwrap();
        std::fs::create_dir(folder.path().join("other")).unwrap();
        std::fs::copy("/bin/true", folder.path().join("other/pegasus-kickstart")).unwrap();
        std::os::unix::fs::symlink(&own, folder.path().join("link")).unwrap();
        assert_eq!(
            TaskServerClient::new(Some(&own)).kickstart_command(&words("pegasus-kickstart"), &path),
            None
        );
        std::fs::copy("/bin/true", folder.path().join(wire::SERVER_NAME)).unwrap();
        let kickstart = TaskServerClient::new(Some(&own));
        let own = own.display().to_string();
        let wanted = |line: &str| {
            let words = words(line);
            let wanted = kickstart.kickstart_command(&words, &path)?;
            let join = |words: &[Vec<u8>]| String::from_utf8(words.join(&b' ')).unwrap();
            Some((join(wanted.variables), join(wanted.words)))
        };
        let plain = Some((String::new(), "-n x /bin/true".to_owned()));
        assert_eq!(wanted("pegasus-kickstart -n x /bin/true"), plain);
        assert_eq!(wanted(&format!("{own} -n x /bin/true")), plain);
        assert_eq!(wanted("link -n x /bin/true"), plain);
        assert_eq!(
            wanted(&format!("/usr/bin/env A=b C= {own} -n x")),
            Some(("A=b C=".to_owned(), "-n x".to_owned()))
        );
        assert_eq!(wanted(&own), Some((String::new(), String::new())));
        for other in [
            String::new(),
            "/bin/true".to_owned(),
            "nothing".to_owned(),
            format!("{}/other/pegasus-kickstart -n x", folder.path().display()),
            format!("/usr/bin/env -i A=b {own} -n x"),
            format!("/usr/bin/env TZ=UTC {own} -n x"),
            format!("/usr/bin/env LD_PRELOAD=x.so {own} -n x"),
            "/usr/bin/env A=b pegasus-kickstart -n x".to_owned(),
            "/usr/bin/env A=b".to_owned(),
        ] {
            assert_eq!(wanted(&other), None, "{other}");
        }
        assert_eq!(kickstart.kickstart_command(&[Vec::new()], &path), None);
        assert_eq!(
            TaskServerClient::new(None).kickstart_command(&words(&own), &path),
            None
        );
    }

    #[test]
    fn a_program_that_does_not_serve_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("pegasus-kickstart");
        for file in [&own, &folder.path().join(wire::SERVER_NAME)] {
            std::fs::copy("/bin/true", file).unwrap();
        }
        let task = words(&format!("{} x", own.display()));
        let mut kickstart = TaskServerClient::new(Some(&own));
        assert!(kickstart.kickstart_command(&task, &[]).is_some());
        assert!(kickstart.server(&[], &mut Spawner::new()).is_none());
        assert_eq!(kickstart.kickstart_command(&task, &[]), None);
    }
}
