//! The socket of a run.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{self, AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::stat::{Mode, fchmod};

use super::redirect::Redirecting;
use super::{
    Answer, Control, MAX_INPUT, RedirectRequest, Reply, Request, ShortPath, TAILING, TailRequest, connection,
};
use crate::interrupt::Interrupt;

/// Maximum bytes of a request.
const MAX_REQUEST: usize = 64 * 1024;
/// Time for a tool to send its next request and to take the answer.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the driver to answer. It is busy for longer only if a file system hangs.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(10);
/// The same if it has to read a workflow.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a worker to answer. One that is lost does not answer.
const TAP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time at the end of a run to pass on what the driver has answered.
const LAST_ANSWERS: Duration = Duration::from_millis(200);
/// Maximum connections at a time. A tool that shows many tasks has up to eight.
const MAX_PEERS: u32 = 128;

/// Listens until it is dropped.
pub(crate) struct Server {
    path: PathBuf,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
    control: Control,
    /// Requests without an answer.
    open_requests: Arc<AtomicU32>,
}

impl Server {
    /// Creates the socket. The caller holds the lock of the DAG, so a socket that exists is left over from a
    /// run that was killed.
    ///
    /// # Errors
    /// The file system has no sockets, the name is too long, or the system refuses a thread.
    pub(crate) fn start(dag: &Path, control: Control, interrupt: &Interrupt) -> io::Result<Self> {
        let path = super::socket(dag);
        let listener = Arc::new(listen(&path)?);
        let waker = interrupt.waker();
        let open_requests = Arc::new(AtomicU32::new(0));
        let thread = {
            let (control, open_requests) = (control.clone(), Arc::clone(&open_requests));
            let listener = Arc::clone(&listener);
            let peers = Arc::new(AtomicU32::new(0));
            let serve = move || {
                for stream in listener.incoming() {
                    let Ok(stream) = stream else { break };
                    if peers.fetch_add(1, Ordering::AcqRel) >= MAX_PEERS {
                        peers.fetch_sub(1, Ordering::AcqRel);
                        continue;
                    }
                    let (control, waker, done) = (control.clone(), Arc::clone(&waker), Arc::clone(&peers));
                    let open_requests = Arc::clone(&open_requests);
                    let talk = move || {
                        // A tool that has gone needs no answer.
                        let _ = talk(stream, &control, &*waker, &open_requests);
                        done.fetch_sub(1, Ordering::AcqRel);
                    };
                    let started = std::thread::Builder::new()
                        .name("control-peer".into())
                        .spawn(talk);
                    if started.is_err() {
                        peers.fetch_sub(1, Ordering::AcqRel);
                    }
                }
            };
            std::thread::Builder::new().name("control".into()).spawn(serve)
        };
        match thread {
            Ok(thread) => Ok(Self {
                path,
                listener,
                thread: Some(thread),
                control,
                open_requests,
            }),
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        // Ends `accept`.
        let _ = socket::shutdown(self.listener.as_raw_fd(), Shutdown::Both);
        self.thread.take().map(JoinHandle::join);
        // The driver takes no more requests of this socket.
        self.control.clear();
        // What the driver has answered is passed on, usually in no time.
        let end = Instant::now() + LAST_ANSWERS;
        while self.open_requests.load(Ordering::Acquire) > 0 && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Binds the socket with the mode 0600 from its first moment.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let short = ShortPath::new(path)?;
    let address = UnixAddr::new(short.as_path())?;
    let descriptor: OwnedFd = socket::socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // Linux makes the file with the mode of the socket.
    fchmod(&descriptor, Mode::S_IRUSR | Mode::S_IWUSR)?;
    match fs::remove_file(short.as_path()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    socket::bind(descriptor.as_raw_fd(), &address)?;
    socket::listen(&descriptor, Backlog::new(16)?)?;
    Ok(descriptor.into())
}

/// Reads the requests of a tool and sends the answers.
fn talk(
    stream: UnixStream,
    control: &Control,
    wake: &(dyn Fn() + Send + Sync),
    open_requests: &AtomicU32,
) -> io::Result<()> {
    let peer = socket::getsockopt(&stream, sockopt::PeerCredentials)?.uid();
    if peer != 0 && peer != nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    stream.set_write_timeout(Some(PEER_TIMEOUT))?;
    let mut talk = Talk {
        receiver: connection::Receiver::new(stream),
        control,
        wake,
        redirects: Vec::new(),
        tail: None,
    };
    let talked = talk.answer_all(open_requests);
    talk.end();
    talked
}

/// A conversation with a tool.
struct Talk<'a> {
    receiver: connection::Receiver,
    control: &'a Control,
    wake: &'a (dyn Fn() + Send + Sync),
    /// Redirects that end with the connection.
    redirects: Vec<Redirecting>,
    /// The tool waits for tasks until the end of the connection.
    tail: Option<TailRequest>,
}

impl Talk<'_> {
    fn answer_all(&mut self, open_requests: &AtomicU32) -> io::Result<()> {
        while let Some(line) = self.receiver.next_line(MAX_REQUEST)? {
            let request = match serde_json::from_slice::<Request>(&line) {
                Ok(Request::Push(mut push)) if push.length <= MAX_INPUT => {
                    push.bytes = self.receiver.take(push.length)?;
                    Request::Push(push)
                }
                Ok(Request::Push(push)) => {
                    return self.refuse(format!("{} bytes of input are too many", push.length));
                }
                Ok(request) => request,
                Err(error) => return self.refuse(format!("the request is not understood: {error}")),
            };
            open_requests.fetch_add(1, Ordering::AcqRel);
            let answered = self.answer(request);
            open_requests.fetch_sub(1, Ordering::AcqRel);
            answered?;
        }
        Ok(())
    }

    fn refuse(&self, reason: String) -> io::Result<()> {
        connection::send_answer(self.receiver.stream(), &Answer::Refused(reason))
    }

    /// Answers a request.
    fn answer(&mut self, request: Request) -> io::Result<()> {
        let stream = self.receiver.stream();
        let request = match request {
            Request::Redirect(request) => return self.redirect(request),
            Request::Tail(request) if self.tail.as_ref() == Some(&request) => {
                // The tool shows that it lives. One that is stopped is given up: no task waits for it.
                return connection::send_answer(stream, &Answer::Done(TAILING.to_owned()));
            }
            Request::Tail(request) => {
                end_tail(self.tail.replace(request.clone()), self.control, self.wake);
                Request::Tail(request)
            }
            request => request,
        };
        match ask(request, self.control, self.wake) {
            Reply::Answer(answer) => connection::send_answer(stream, &answer),
            Reply::Output(output) => connection::send_output(stream, &output),
            // They answer other requests.
            Reply::Relay(..) | Reply::Redirected(..) => Ok(()),
        }
    }

    fn redirect(&mut self, request: RedirectRequest) -> io::Result<()> {
        let (control, wake) = (self.control, self.wake);
        let ask = |request| start(Request::Redirect(request), control, wake);
        if request.to_files {
            let files = [self.receiver.file(), self.receiver.file()];
            let stream = self.receiver.stream();
            let mut redirecting = Redirecting::new(request);
            let written = redirecting.write_to(stream, files, &ask);
            if written.is_err() {
                redirecting.end(&ask);
            }
            return written;
        }
        let known = self.redirects.iter().position(|known| known.is_of(&request));
        let mut redirecting = match known {
            Some(at) => self.redirects.swap_remove(at),
            None => Redirecting::new(request.clone()),
        };
        let answered = redirecting.answer(self.receiver.stream(), request, &ask);
        if !matches!(answered, Ok(false)) {
            self.redirects.push(redirecting);
        }
        answered.map(|_| ())
    }

    /// Ends what ends with the connection.
    fn end(&mut self) {
        let (control, wake) = (self.control, self.wake);
        for mut redirecting in std::mem::take(&mut self.redirects) {
            redirecting.end(&|request| start(Request::Redirect(request), control, wake));
        }
        end_tail(self.tail.take(), control, wake);
    }
}

/// Lets the run forget a tool that waits for tasks.
fn end_tail(tail: Option<TailRequest>, control: &Control, wake: &(dyn Fn() + Send + Sync)) {
    if let Some(mut tail) = tail {
        tail.patterns.clear();
        ask(Request::Tail(tail), control, wake);
    }
}

/// Has the driver answer a request.
fn ask(request: Request, control: &Control, wake: &(dyn Fn() + Send + Sync)) -> Reply {
    start(request, control, wake).wait()
}

/// Passes a request to the driver.
fn start(request: Request, control: &Control, wake: &(dyn Fn() + Send + Sync)) -> Asked {
    let timeout = match &request {
        Request::Tap(_) | Request::Push(_) | Request::Redirect(_) => TAP_TIMEOUT,
        Request::Submit { .. } => SUBMIT_TIMEOUT,
        _ => DRIVER_TIMEOUT,
    };
    let (answer, answers) = sync_channel(1);
    control.push(request, answer);
    wake();
    Asked {
        answers,
        until: Instant::now() + timeout,
    }
}

/// A request that the driver has.
pub(super) struct Asked {
    answers: Receiver<Reply>,
    until: Instant,
}

impl Asked {
    /// Waits for the answer.
    pub(super) fn wait(self) -> Reply {
        self.wait_for(Duration::MAX).unwrap_or_else(no_answer)
    }

    /// Waits for the answer, at most `patience`. `None` if it may still come.
    pub(super) fn wait_for(&self, patience: Duration) -> Option<Reply> {
        let left = self.until.saturating_duration_since(Instant::now());
        match self.answers.recv_timeout(patience.min(left)) {
            Ok(reply) => Some(reply),
            Err(RecvTimeoutError::Timeout) if patience < left => None,
            Err(_) => Some(no_answer()),
        }
    }
}

fn no_answer() -> Reply {
    let busy = "the run is busy, or has not started yet; ask again";
    Reply::Answer(Answer::Refused(busy.to_owned()))
}
