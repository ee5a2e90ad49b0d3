//! The socket of a run.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::socket::{self, AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, sockopt};
use nix::sys::stat::{Mode, fchmod};

use super::{Answer, Control, Pending, Request, ShortPath};
use crate::interrupt::Interrupt;

/// Maximum bytes of a request.
const MAX_REQUEST: u64 = 64 * 1024;
/// Time for a tool to send its request and to take the answer.
const PEER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the driver to answer. It is busy for longer only if a file system hangs.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum tools at a time.
const MAX_PEERS: u32 = 32;

/// Listens until it is dropped.
pub(crate) struct Server {
    path: PathBuf,
    listener: Arc<UnixListener>,
    thread: Option<JoinHandle<()>>,
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
        let thread = {
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
                    let talk = move || {
                        // A tool that has gone needs no answer.
                        let _ = talk(&stream, &control, &*waker);
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

/// Reads the request of a tool and sends the answer.
fn talk(stream: &UnixStream, control: &Control, wake: &(dyn Fn() + Send + Sync)) -> io::Result<()> {
    let peer = socket::getsockopt(stream, sockopt::PeerCredentials)?.uid();
    if peer != 0 && peer != nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    stream.set_write_timeout(Some(PEER_TIMEOUT))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(MAX_REQUEST)).read_until(b'\n', &mut line)?;
    let answer = match serde_json::from_slice::<Request>(&line) {
        Err(error) => Answer::Refused(format!("the request is not understood: {error}")),
        Ok(request) => {
            let (sender, answers) = sync_channel(1);
            control.push(Pending {
                request,
                answer: sender,
            });
            wake();
            let busy = |_| Answer::Refused("the run is busy, or has not started yet; ask again".to_owned());
            answers.recv_timeout(DRIVER_TIMEOUT).unwrap_or_else(busy)
        }
    };
    let mut text = serde_json::to_vec(&answer)?;
    text.push(b'\n');
    (&mut &*stream).write_all(&text)
}
