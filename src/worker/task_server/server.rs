//! The process of a task server.

use std::cell::Cell;
use std::ffi::CString;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use pmc_spawn::{Child, Spawn, Spawner};
use pmc_wire::{self as wire, PipeEnds, Reply, SERVER_NAME, Ticket};

use crate::bell::Bell;
use crate::protocol::EXECUTOR_FAILURE;
use crate::worker::ended::{Ended, reap};
use crate::worker::running::{Leader, is_readable};

/// Maximum time for the start of a server. Its program may be on a slow file system.
const MAX_START_TIME: Duration = Duration::from_secs(20);

/// Maximum time for the end of a server.
const MAX_END_TIME: Duration = Duration::from_secs(2);

/// Interval between checks for the end of a server on kernels without process descriptors.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A task server that is ready for a task or runs one. Dropping it ends the process.
pub(in crate::worker) struct TaskServer {
    child: Child,
    /// `None` after the end of the server.
    connection: Option<Connection>,
    /// The process needs no more waiting.
    is_gone: bool,
    /// The server knows the worker's shared streams.
    has_streams: Cell<bool>,
    /// Ticket of the last task.
    ticket: Cell<Ticket>,
    /// Reply to the last task, once it has been read.
    reply: Cell<Option<io::Result<Option<Reply>>>>,
}

struct Connection {
    socket: UnixStream,
    /// For requests and replies.
    pipes: PipeEnds,
    /// Closing it makes the server end its task.
    _lifeline: PipeWriter,
}

impl TaskServer {
    /// Starts a server and waits until it is ready.
    pub(super) fn start(program: &Path, environment: &[CString], spawner: &mut Spawner) -> io::Result<Self> {
        let (socket, server_socket) = UnixStream::pair()?;
        let (watched, lifeline) = io::pipe()?;
        let file = CString::new(program.as_os_str().as_bytes())?;
        let name = CString::new(SERVER_NAME)?;
        let stderr = io::stderr().as_raw_fd();
        let mut child = Spawn {
            program: &file,
            arguments: &[name.as_c_str()].into_iter().collect(),
            environment: &environment.iter().map(CString::as_c_str).collect(),
            directory: None,
            stdio: [server_socket.as_raw_fd(), watched.as_raw_fd(), stderr],
            keep: &[],
            close_others: true,
            leads_group: true,
            unblock: false,
            memory: None,
            cpus: None,
            // The server watches the lifeline instead, so that its task ends, too.
            die_with_parent: false,
            descriptor: true,
            stop_at_exec: false,
        }
        .start(spawner)?;
        drop((server_socket, watched));
        let failure = child.failure.take();
        let mut server = Self {
            child,
            connection: None,
            is_gone: false,
            has_streams: Cell::new(false),
            ticket: Cell::default(),
            reply: Cell::new(None),
        };
        match failure.map_or_else(|| receive_greeting(&socket), Err) {
            Ok(pipes) => {
                tracing::debug!("Started {SERVER_NAME} as {}", server.child.pid);
                server.connection = Some(Connection {
                    socket,
                    pipes,
                    _lifeline: lifeline,
                });
                Ok(server)
            }
            Err(error) => {
                // The server ends when these are closed, and dropping it waits for that.
                drop((socket, lifeline));
                Err(error)
            }
        }
    }

    fn connection(&self) -> io::Result<&Connection> {
        self.connection.as_ref().ok_or(io::ErrorKind::NotConnected.into())
    }

    /// Starts a task with these streams and pipes. `streams_are_shared` says whether all tasks of the worker
    /// have these streams. After an error the task has not started.
    pub(in crate::worker) fn start_task(
        &self,
        (ticket, request): (Ticket, &[u8]),
        streams: [RawFd; 3],
        pipes: &[RawFd],
        streams_are_shared: bool,
    ) -> io::Result<()> {
        let Connection {
            socket,
            pipes: PipeEnds { write, .. },
            ..
        } = self.connection()?;
        self.ticket.set(ticket);
        if streams_are_shared && pipes.is_empty() && self.has_streams.get() {
            return wire::send_request(socket, write, request, &[]);
        }
        wire::send_request(socket, write, request, &[&streams, pipes].concat())?;
        self.has_streams.set(streams_are_shared);
        Ok(())
    }

    /// Waits for the end of the task and returns how it ended.
    pub(in crate::worker) fn conclude(&mut self) -> io::Result<Ended> {
        let reply = match self.reply.take() {
            Some(reply) => reply,
            None => wire::receive_reply(&self.connection()?.pipes.read, self.ticket.get()),
        };
        if let Err(error) = &reply
            && error.kind() == io::ErrorKind::InvalidData
        {
            return self.distrust();
        }
        if let Some(reply) = reply? {
            return Ok(Ended {
                status: i32::from(reply.code) << 8,
                peak_kib: reply.peak_kib,
                is_reusable: !reply.last,
                server_died: false,
            });
        }
        self.is_gone = true;
        Ok(Ended {
            status: reap(self.child.pid)?,
            peak_kib: 0,
            is_reusable: false,
            server_died: true,
        })
    }

    /// Ends a server after a reply that is not its own. It may still run the task.
    fn distrust(&mut self) -> io::Result<Ended> {
        tracing::error!(
            "{SERVER_NAME} {}: the reply is forged: a process, perhaps the task, has written into its pipe",
            self.child.pid
        );
        // It is not reaped, so no other group has its number.
        let _ = killpg(self.child.pid, Signal::SIGKILL);
        self.connection = None;
        self.is_gone = true;
        reap(self.child.pid)?;
        Ok(Ended {
            status: EXECUTOR_FAILURE,
            peak_kib: 0,
            is_reusable: false,
            server_died: false,
        })
    }

    /// Ends an idle server and waits until it has done its work. Does not wait until the system has removed
    /// the process, which takes as long as a small task.
    pub(super) fn shut_down(mut self) {
        if let Some(Connection {
            pipes: PipeEnds { read, write },
            ..
        }) = self.connection.take()
        {
            drop(write);
            // The server closes this pipe last.
            self.is_gone = is_readable(read.as_fd(), MAX_END_TIME, None);
        }
    }

    /// Waits until the process is reaped, at most `timeout`: it may hang in a file system. False if it still
    /// runs.
    fn reap_within(&self, timeout: Duration) -> bool {
        if let Some(descriptor) = &self.child.descriptor {
            is_readable(descriptor.as_fd(), timeout, None);
            return self.reap_now();
        }
        let started = Instant::now();
        while !self.reap_now() {
            if started.elapsed() >= timeout {
                return false;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        true
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

    fn outlives_executor(&self) -> bool {
        true
    }

    fn passes_signals(&self) -> bool {
        true
    }

    fn wait(&self) {
        let connection = self.connection.as_ref();
        self.reply
            .set(connection.map(|connection| wire::receive_reply(&connection.pipes.read, self.ticket.get())));
    }

    fn has_ended_within(&self, timeout: Duration, _: Duration, bell: Option<&Bell>) -> bool {
        let connection = self.connection.as_ref();
        connection.is_none_or(|connection| is_readable(connection.pipes.read.as_fd(), timeout, bell))
    }
}

impl Drop for TaskServer {
    fn drop(&mut self) {
        self.connection = None;
        if self.is_gone || self.reap_within(MAX_END_TIME) {
            return;
        }
        // It is not reaped, so no other process has its number.
        let _ = kill(self.child.pid, Signal::SIGKILL);
        if !self.reap_within(MAX_END_TIME) {
            tracing::warn!("{SERVER_NAME} {} does not end", self.child.pid);
        }
    }
}

fn receive_greeting(socket: &UnixStream) -> io::Result<PipeEnds> {
    if !is_readable(socket.as_fd(), MAX_START_TIME, None) {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let pipes = wire::receive_greeting(socket)?;
    pipes.ok_or_else(|| io::Error::other("it ended at once, or is of another version"))
}
