//! The socket of a run.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::socket::{self, AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::stat::{Mode, fchmod};

use super::{Answer, Control, MAX_INPUT, Reply, Request, ShortPath, connection};
use crate::interrupt::Interrupt;

/// Maximum bytes of a request.
const MAX_REQUEST: u64 = 64 * 1024;
/// Time for a tool to send its next request and to take the answer.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the driver to answer. It is busy for longer only if a file system hangs.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(30);
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
                        let _ = talk(&stream, &control, &*waker, &open_requests);
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
    stream: &UnixStream,
    control: &Control,
    wake: &(dyn Fn() + Send + Sync),
    open_requests: &AtomicU32,
) -> io::Result<()> {
    let peer = socket::getsockopt(stream, sockopt::PeerCredentials)?.uid();
    if peer != 0 && peer != nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    stream.set_write_timeout(Some(PEER_TIMEOUT))?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        if (&mut reader).take(MAX_REQUEST).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let request = match serde_json::from_slice::<Request>(&line) {
            Ok(Request::Push(mut push)) if push.length <= MAX_INPUT => {
                push.bytes = vec![0; push.length];
                reader.read_exact(&mut push.bytes)?;
                Request::Push(push)
            }
            Ok(Request::Push(push)) => {
                let refused = Answer::Refused(format!("{} bytes of input are too many", push.length));
                return connection::send_answer(stream, &refused);
            }
            Ok(request) => request,
            Err(error) => {
                let refused = Answer::Refused(format!("the request is not understood: {error}"));
                return connection::send_answer(stream, &refused);
            }
        };
        open_requests.fetch_add(1, Ordering::AcqRel);
        let answered = answer(stream, request, control, wake);
        open_requests.fetch_sub(1, Ordering::AcqRel);
        answered?;
    }
}

/// Has the driver answer a request, and sends the answer.
fn answer(
    stream: &UnixStream,
    request: Request,
    control: &Control,
    wake: &(dyn Fn() + Send + Sync),
) -> io::Result<()> {
    let timeout = match &request {
        Request::Tap(_) | Request::Push(_) => TAP_TIMEOUT,
        _ => DRIVER_TIMEOUT,
    };
    let (answer, answers) = sync_channel(1);
    control.push(request, answer);
    wake();
    match answers.recv_timeout(timeout) {
        Ok(Reply::Answer(answer)) => connection::send_answer(stream, &answer),
        Ok(Reply::Output(output)) => connection::send_output(stream, &output),
        Err(_) => {
            let busy = "the run is busy, or has not started yet; ask again";
            connection::send_answer(stream, &Answer::Refused(busy.to_owned()))
        }
    }
}
