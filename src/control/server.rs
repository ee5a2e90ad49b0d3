//! The socket of a run.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::socket::{self, AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::stat::{Mode, fchmod};
use pmc_control::{
    AddRequest, Answer, MAX_ADDED, MAX_INPUT, Place, RedirectRequest, Request, ShortPath, TAILING,
    TailRequest, connection,
};

use super::read_ahead::ReadAhead;
use super::redirect::Redirecting;
use super::{Control, Reply};
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
/// The same if it has to trace many processes.
const STACKS_TIMEOUT: Duration = Duration::from_secs(35);
/// Time at the end of a run to pass on what the driver has answered.
const LAST_ANSWERS: Duration = Duration::from_millis(200);
/// Time until the next attempt to take a connection after one that has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum connections at a time. A tool that shows many tasks has up to eight.
const MAX_PEERS: u64 = 128;
/// The same as a part of the descriptors of the run: each connection takes up to five.
const PART_OF_DESCRIPTORS: u64 = 8;

/// Listens until it is dropped.
pub(crate) struct Server {
    path: PathBuf,
    dag: PathBuf,
    /// What the file for tools on other hosts says.
    place: Place,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
    control: Control,
    /// The socket is about to be shut down.
    is_over: Arc<AtomicBool>,
    /// Requests without an answer.
    open_requests: Arc<AtomicU32>,
}

impl Server {
    /// Creates the socket. The caller holds the lock of the DAG, so a socket that exists is left over from a
    /// run that was killed.
    ///
    /// # Errors
    /// The file system has no sockets, the name is too long, or the system refuses a thread.
    pub(crate) fn start(
        dag: &Path,
        control: Control,
        interrupt: &Interrupt,
        place: Place,
    ) -> io::Result<Self> {
        let path = pmc_control::socket(dag);
        let listener = Arc::new(listen(&path)?);
        write(&place, dag);
        let waker = interrupt.waker();
        let (open_requests, is_over) = <(Arc<AtomicU32>, Arc<AtomicBool>)>::default();
        let thread = {
            let (control, open_requests) = (control.clone(), Arc::clone(&open_requests));
            let (listener, is_over) = (Arc::clone(&listener), Arc::clone(&is_over));
            let talk = move |stream| {
                // A tool that has gone needs no answer.
                let _ = talk(stream, &control, &*waker, &open_requests);
            };
            let serve = move || serve(listener.incoming(), max_peers(), &is_over, talk);
            std::thread::Builder::new().name("control".into()).spawn(serve)
        };
        match thread {
            Ok(thread) => Ok(Self {
                path,
                dag: dag.to_owned(),
                place,
                listener,
                thread: Some(thread),
                control,
                is_over,
                open_requests,
            }),
            Err(error) => {
                let _ = fs::remove_file(&path);
                let _ = fs::remove_file(Place::path(dag));
                Err(error)
            }
        }
    }
}

impl Server {
    /// Lets tools on other hosts know what ends the run although tasks are left.
    pub(crate) fn note_limits(&mut self, stops_at: Option<u64>, drains: bool) {
        if (self.place.stops_at, self.place.drains) != (stops_at, drains) {
            (self.place.stops_at, self.place.drains) = (stops_at, drains);
            write(&self.place, &self.dag);
        }
    }
}

/// Writes where a run goes on. It goes on without.
fn write(place: &Place, dag: &Path) {
    if let Err(error) = place.write(dag) {
        let reason = pmc_dag::reason(&error);
        tracing::debug!("Tools on other hosts do not find this run: {reason}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(Place::path(&self.dag));
        self.is_over.store(true, Ordering::Release);
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

/// Returns how many tools may talk at a time.
fn max_peers() -> u64 {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(limit, _)| limit);
    (limit / PART_OF_DESCRIPTORS).clamp(1, MAX_PEERS)
}

/// Lets at most `max` tools talk at a time, each in a thread of its own, until the socket is shut down.
fn serve(
    incoming: impl Iterator<Item = io::Result<UnixStream>>,
    max: u64,
    is_over: &AtomicBool,
    talk: impl Fn(UnixStream) + Clone + Send + 'static,
) {
    let peers = Arc::new(AtomicU64::new(0));
    for stream in incoming {
        let stream = match stream {
            Ok(stream) => stream,
            Err(_) if is_over.load(Ordering::Acquire) => break,
            Err(_) => {
                // Too many open files, perhaps: some will be closed.
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        if peers.fetch_add(1, Ordering::AcqRel) >= max {
            peers.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (talk, done) = (talk.clone(), Arc::clone(&peers));
        let peer = move || {
            talk(stream);
            done.fetch_sub(1, Ordering::AcqRel);
        };
        let started = std::thread::Builder::new()
            .name("control-peer".into())
            .spawn(peer);
        if started.is_err() {
            peers.fetch_sub(1, Ordering::AcqRel);
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
        ahead: ReadAhead::default(),
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
    /// Captured output that the tool has not asked for.
    ahead: ReadAhead,
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
                Ok(Request::Add(add)) if add.length > MAX_ADDED => {
                    return self.refuse(format!("{} bytes of tasks are too many", add.length));
                }
                Ok(Request::Add(add)) => match self.tasks(add) {
                    Ok(add) => Request::Add(add),
                    Err(error) => return self.refuse(format!("the tasks are not understood: {error}")),
                },
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

    /// Receives the tasks of a request.
    fn tasks(&mut self, add: AddRequest) -> io::Result<AddRequest> {
        let bytes = self.receiver.take(add.length)?;
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let tasks: Result<_, _> = lines.map(serde_json::from_slice).collect();
        Ok(AddRequest { tasks: tasks?, ..add })
    }

    fn refuse(&self, reason: String) -> io::Result<()> {
        connection::send_answer(self.receiver.stream(), &Answer::Refused(reason))
    }

    /// Answers a request.
    fn answer(&mut self, request: Request) -> io::Result<()> {
        let stream = self.receiver.stream();
        let (control, wake) = (self.control, self.wake);
        let request = match request {
            Request::Redirect(request) => return self.redirect(request),
            Request::Tap(request) => {
                let ask = |request| start(Request::Tap(request), control, wake);
                let reply = self.ahead.answer(request, &ask);
                return send(stream, reply);
            }
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
        send(stream, ask(request, control, wake))
    }

    fn redirect(&mut self, request: RedirectRequest) -> io::Result<()> {
        let (control, wake) = (self.control, self.wake);
        let ask = |request| start(Request::Redirect(request), control, wake);
        if request.to_files {
            let files = [self.receiver.file(), self.receiver.file()];
            let stream = self.receiver.stream();
            let mut redirecting = Redirecting::new(request);
            let open = control.open_redirect();
            let written = redirecting.write_to(stream, files, &open, &ask);
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
        let answered = redirecting.answer(self.receiver.stream(), request, control, &ask);
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

fn send(stream: &UnixStream, reply: Reply) -> io::Result<()> {
    match reply {
        Reply::Answer(answer) => connection::send_answer(stream, &answer),
        Reply::Output(output) => connection::send_output(stream, &output),
        // They answer other requests: the worker has said something else than it was asked.
        Reply::Relay(..) | Reply::Redirected(..) => send(stream, no_answer()),
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
fn start(request: Request, control: &Control, wake: &(dyn Fn() + Send + Sync)) -> PendingAnswer {
    let timeout = match &request {
        Request::Tap(_) | Request::Push(_) | Request::Redirect(_) => TAP_TIMEOUT,
        Request::Submit { .. } => SUBMIT_TIMEOUT,
        Request::Stacks(_) => STACKS_TIMEOUT,
        _ => DRIVER_TIMEOUT,
    };
    let (answer, answers) = sync_channel(1);
    control.push(request, answer);
    wake();
    PendingAnswer {
        answers,
        until: Instant::now() + timeout,
    }
}

/// A request that the driver has.
pub(super) struct PendingAnswer {
    answers: Receiver<Reply>,
    until: Instant,
}

impl PendingAnswer {
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

/// A request that the driver has answered.
#[cfg(test)]
pub(super) fn answered(reply: Reply) -> PendingAnswer {
    let (answer, answers) = sync_channel(1);
    let _ = answer.send(reply);
    PendingAnswer {
        answers,
        until: Instant::now() + DRIVER_TIMEOUT,
    }
}

fn no_answer() -> Reply {
    let busy = "the run is busy, or has not started yet; ask again";
    Reply::Answer(Answer::Refused(busy.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    /// The run may lack descriptors for a moment.
    #[test]
    fn a_connection_that_cannot_be_taken_does_not_end_the_socket() {
        let (server, mut tool) = UnixStream::pair().unwrap();
        let is_over = AtomicBool::new(false);
        let failed = || io::Error::from_raw_os_error(libc::EMFILE);
        let incoming = [Err(failed()), Ok(server), Err(failed())];
        let last = incoming.len() - 1;
        let incoming = incoming.into_iter().enumerate().map(|(at, stream)| {
            is_over.store(at == last, Ordering::Release);
            stream
        });
        serve(incoming, 1, &is_over, |stream| {
            (&stream).write_all(b"here").unwrap();
        });
        let mut said = String::new();
        tool.read_to_string(&mut said).unwrap();
        assert_eq!(said, "here");
    }

    #[test]
    fn a_tool_too_many_is_turned_away() {
        assert!((1..=MAX_PEERS).contains(&max_peers()));
        let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let (servers, mut tools): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let (end, ended) = crossbeam_channel::bounded::<()>(0);
        serve(
            servers.into_iter().map(Ok),
            2,
            &AtomicBool::new(false),
            move |stream| {
                // Until the end of the test.
                let _ = ended.recv();
                drop(stream);
            },
        );
        // The others are still open.
        assert_eq!(tools[2].read(&mut [0]).unwrap(), 0);
        for tool in &tools[..2] {
            tool.set_nonblocking(true).unwrap();
        }
        for tool in &mut tools[..2] {
            let error = tool.read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        }
        drop(end);
    }
}
