//! What members of a run do for each other: they give files, by key and never by path, and run commands
//! ([`crate::command`]).
//!
//! A member can give a file on while it is still coming in ([`Growing`]). So a file spreads over a tree of
//! members at the speed of one connection, however deep the tree is.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Semaphore, watch};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::command::{self, Commands};
use crate::frame;
use crate::key::{KeyError, RunKey};
use crate::listener::{Acceptor, Listen, Listener, Secured, ServerError};
use crate::member::{CHUNK, CONNECT, Connector, Wanted, framed};
use crate::stream::limited;

/// Maximum files that a server sends at a time.
const MAX_SENT: usize = 64;

/// Maximum time without a byte.
const IDLE: Duration = Duration::from_secs(10);

/// The answer. The bytes of the file follow in frames.
#[derive(Serialize, Deserialize)]
enum Answer {
    /// There is no such file.
    Missing,
    /// The file has this many bytes, and this mode.
    Found { bytes: u64, mode: u32 },
}

/// Why a file cannot be fetched from a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// The connection or the file.
    #[error("{}", pmc_dag::reason(.0))]
    System(#[from] io::Error),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// A file to send.
#[derive(Debug)]
pub struct Offered {
    /// The file.
    pub file: File,
    /// Stays open until the file is sent: its lock keeps the file.
    pub lock: Option<File>,
    /// The file is still coming in.
    pub growing: Option<Growing>,
}

/// A file that is still coming in. A giver sends what is there, and waits for more.
#[derive(Clone, Debug)]
pub struct Growing {
    /// All bytes that it will have.
    bytes: u64,
    mode: u32,
    /// How many of them are there, in order.
    there: watch::Receiver<u64>,
}

/// How much of a file has come in, for the givers that have its [`Growing`].
#[derive(Debug)]
pub struct Progress(watch::Sender<u64>);

impl Progress {
    /// Notes that the first `bytes` bytes are there. A smaller number than before changes nothing, as when
    /// the file is fetched again.
    pub fn reach(&self, bytes: u64) {
        self.0.send_if_modified(|there| {
            let is_more = bytes > *there;
            *there = bytes.max(*there);
            is_more
        });
    }
}

impl Growing {
    /// A file that will come in: it can be offered before its first byte is there.
    #[must_use]
    pub fn new(bytes: u64, mode: u32) -> (Progress, Self) {
        let (progress, there) = watch::channel(0);
        (Progress(progress), Self { bytes, mode, there })
    }

    /// All bytes that the file will have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many of them are there.
    #[must_use]
    pub fn there(&self) -> u64 {
        *self.there.borrow()
    }

    /// Waits until more than `sent` bytes are there.
    async fn more_than(&mut self, sent: u64) -> io::Result<u64> {
        let there = self.there.wait_for(|there| *there > sent).await;
        let there = there.map_err(|_| io::Error::other("the file has not come to its end"))?;
        Ok(*there)
    }
}

/// Serves members of the run, in a thread of its own, until it is dropped.
pub struct PeerServer(Listener);

impl PeerServer {
    /// Listens there. `find` returns the file with a key.
    ///
    /// # Errors
    /// No port or thread can be had, or the key is unusable.
    pub fn start(
        key: &RunKey,
        listen: &Listen,
        find: impl Fn(&str) -> Option<Offered> + Send + 'static,
        commands: Box<dyn Commands>,
    ) -> Result<Self, ServerError> {
        let acceptor = Acceptor::open(key, listen, 0)?;
        let listener = Listener::start("other nodes", acceptor, |acceptor| async move {
            let (find, sends) = (Rc::new(find), Rc::new(Semaphore::new(MAX_SENT)));
            let commands: Rc<dyn Commands> = commands.into();
            let serve = move |stream: Secured| {
                let (find, sends, commands) = (Rc::clone(&find), Rc::clone(&sends), Rc::clone(&commands));
                async move {
                    command::watch(stream.get_ref().0.get_ref())?;
                    let mut framed = framed(stream);
                    let wanted = async { framed.next().await.transpose() };
                    let wanted = limited(CONNECT, "the other node says nothing", wanted).await?;
                    let Some(wanted) = wanted else { return Ok(()) };
                    match frame::decode(&wanted).map_err(io::Error::other)? {
                        // A member that finds no room asks elsewhere.
                        Wanted::File { key } => match sends.try_acquire() {
                            Ok(_send) => send(framed, key, find.as_ref()).await,
                            Err(_) => Ok(()),
                        },
                        Wanted::Command { gang } => command::serve(framed, gang, commands.as_ref()).await,
                    }
                }
            };
            acceptor.let_in("other nodes", CONNECT, serve).await
        });
        Ok(Self(listener?))
    }

    /// Listens there, and gives files only.
    ///
    /// # Errors
    /// No port or thread can be had, or the key is unusable.
    pub fn of_files(
        key: &RunKey,
        listen: &Listen,
        find: impl Fn(&str) -> Option<Offered> + Send + 'static,
    ) -> Result<Self, ServerError> {
        Self::start(key, listen, find, Box::new(NoCommands))
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.0.port()
    }
}

/// Those of a member of no gang.
struct NoCommands;

impl Commands for NoCommands {
    fn knows(&self, _: command::Gang) -> Result<bool, String> {
        Err("it is in no gang".to_owned())
    }

    fn learn(&self, _: command::Gang, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn start(&self, _: command::Gang, _: &pmc_wire::command::Call) -> Result<command::Running, String> {
        Err("it is in no gang".to_owned())
    }

    fn cut(&self, _: command::Gang) {}
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    mut framed: Framed<S, LengthDelimitedCodec>,
    key: &str,
    find: &impl Fn(&str) -> Option<Offered>,
) -> io::Result<()> {
    let Some(offered) = find(key) else {
        return framed.send(frame::encode(&Answer::Missing)).await;
    };
    let Offered {
        file,
        lock,
        mut growing,
    } = offered;
    let (bytes, mode) = match &growing {
        Some(growing) => (growing.bytes, growing.mode),
        None => {
            let status = file.metadata()?;
            (status.len(), status.permissions().mode())
        }
    };
    framed.send(frame::encode(&Answer::Found { bytes, mode })).await?;
    let mut sent = 0;
    while sent < bytes {
        let there = match &mut growing {
            Some(growing) => growing.more_than(sent).await?,
            None => bytes,
        };
        let length = usize::try_from(there - sent).unwrap_or(CHUNK).min(CHUNK);
        let mut chunk = BytesMut::zeroed(length);
        file.read_exact_at(&mut chunk, sent)?;
        sent += length as u64;
        let taken = framed.send(chunk.freeze());
        limited(IDLE, "the other node takes nothing", taken).await?;
    }
    drop(lock);
    limited(
        IDLE,
        "the other node takes nothing",
        SinkExt::<Bytes>::close(&mut framed),
    )
    .await
}

/// Fetches the file with a key from a member of the run, if it has one. Returns its bytes. `go_on` is asked
/// now and then. `grows` gets to know how the file comes in, so that others can have it meanwhile.
///
/// # Errors
/// The member cannot be reached, has another key, or goes away; the file cannot be written; or the work was
/// not to go on. A part of the file may be written.
pub fn fetch(
    key: &RunKey,
    address: &str,
    wanted: &str,
    into: &mut File,
    go_on: &dyn Fn() -> bool,
    grows: &dyn Fn(Growing),
) -> Result<Option<u64>, PeerError> {
    let connector = Connector::new(key)?;
    let received = receive(&connector, address, wanted, into, go_on, grows);
    Ok(runtime()?.block_on(received)?)
}

async fn next<S: AsyncRead + AsyncWrite + Unpin>(
    framed: &mut Framed<S, LengthDelimitedCodec>,
) -> io::Result<BytesMut> {
    let frame = async { framed.next().await.transpose() };
    let frame = limited(IDLE, "the other node sends nothing", frame).await?;
    frame.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
}

async fn receive(
    connector: &Connector,
    address: &str,
    wanted: &str,
    into: &mut File,
    go_on: &dyn Fn() -> bool,
    grows: &dyn Fn(Growing),
) -> io::Result<Option<u64>> {
    let mut framed = connector.connect(address).await?;
    framed.send(frame::encode(&Wanted::File { key: wanted })).await?;
    let first = next(&mut framed).await?;
    let (bytes, mode) = match frame::decode(&first).map_err(io::Error::other)? {
        Answer::Missing => return Ok(None),
        Answer::Found { bytes, mode } => (bytes, mode),
    };
    let (progress, there) = watch::channel(0);
    grows(Growing { bytes, mode, there });
    let mut left = bytes;
    while left > 0 {
        if !go_on() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let chunk = next(&mut framed).await?;
        let rest = left.checked_sub(chunk.len() as u64);
        left = rest
            .filter(|rest| *rest < left)
            .ok_or_else(|| io::Error::other("what comes is not the file"))?;
        into.write_all(&chunk)?;
        progress.send_replace(bytes - left);
    }
    // The owner must be able to read it.
    into.set_permissions(std::fs::Permissions::from_mode(mode & 0o777 | 0o400))?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, SeekFrom};

    use super::*;

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_are_no_panic(bytes: Vec<u8>) {
            let _ = (frame::decode::<Wanted<'_>>(&bytes), frame::decode::<Answer>(&bytes));
        }
    }

    const KEEP_ON: &dyn Fn() -> bool = &|| true;
    const NOBODY: &dyn Fn(Growing) = &|_| {};

    fn server(key: &RunKey, content: Vec<u8>) -> (PeerServer, String) {
        let server = PeerServer::of_files(key, &Listen::loopback(), move |wanted| {
            let mut file = tempfile::tempfile().ok().filter(|_| wanted == "known")?;
            file.write_all(&content).ok()?;
            file.seek(SeekFrom::Start(0)).ok()?;
            let lock = file.try_clone().ok()?;
            Some(Offered {
                file,
                lock: Some(lock),
                growing: None,
            })
        });
        let server = server.unwrap();
        let address = format!("127.0.0.1:{}", server.port());
        (server, address)
    }

    #[test]
    fn members_get_files_by_key_and_others_nothing() {
        let key = RunKey::generate().unwrap();
        let content: Vec<u8> = (0..3 * CHUNK as u32 / 2).map(|n| n as u8).collect();
        let (_server, address) = server(&key, content.clone());
        let mut copy = tempfile::tempfile().unwrap();
        let bytes = fetch(&key, &address, "known", &mut copy, KEEP_ON, NOBODY).unwrap();
        assert_eq!(bytes, Some(content.len() as u64));
        copy.seek(SeekFrom::Start(0)).unwrap();
        let mut read = Vec::new();
        copy.read_to_end(&mut read).unwrap();
        assert!(read == content);
        let missing = fetch(&key, &address, "../known", &mut copy, KEEP_ON, NOBODY);
        assert_eq!(missing.unwrap(), None);
        let stranger = RunKey::generate().unwrap();
        assert!(fetch(&stranger, &address, "known", &mut copy, KEEP_ON, NOBODY).is_err());
        assert!(fetch(&key, &address, "known", &mut copy, &|| false, NOBODY).is_err());
    }

    /// A server of a file of two chunks that comes in as the sender says.
    fn growing_server(key: &RunKey, file: &File) -> (PeerServer, String, Progress) {
        let (progress, growing) = Growing::new(2 * CHUNK as u64, 0o600);
        let file = file.try_clone().unwrap();
        let server = PeerServer::of_files(key, &Listen::loopback(), move |_| {
            Some(Offered {
                file: file.try_clone().ok()?,
                lock: None,
                growing: Some(growing.clone()),
            })
        });
        let server = server.unwrap();
        let address = format!("127.0.0.1:{}", server.port());
        (server, address, progress)
    }

    #[test]
    fn a_file_is_given_on_while_it_is_still_coming_in() {
        let key = RunKey::generate().unwrap();
        let first = tempfile::tempfile().unwrap();
        let (_first, first_address, progress) = growing_server(&key, &first);
        first.write_all_at(&[1; CHUNK], 0).unwrap();
        progress.reach(CHUNK as u64);
        // The second member gives what it has to the third one, before the last chunk exists.
        let second = tempfile::tempfile().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut into = second.try_clone().unwrap();
        let second_key = key.clone();
        let copying = std::thread::spawn(move || {
            let grows = |growing| sender.send(growing).unwrap();
            fetch(&second_key, &first_address, "k", &mut into, KEEP_ON, &grows).unwrap()
        });
        let growing = receiver.recv().unwrap();
        assert_eq!(growing.bytes(), 2 * CHUNK as u64);
        let server = PeerServer::of_files(&key, &Listen::loopback(), move |_| {
            Some(Offered {
                file: second.try_clone().ok()?,
                lock: None,
                growing: Some(growing.clone()),
            })
        });
        let server = server.unwrap();
        let third = tempfile::tempfile().unwrap();
        let finish = || {
            if third.metadata().unwrap().len() == CHUNK as u64 {
                first.write_all_at(&[2; CHUNK], CHUNK as u64).unwrap();
                progress.reach(2 * CHUNK as u64);
            }
            true
        };
        let address = format!("127.0.0.1:{}", server.port());
        let mut into = third.try_clone().unwrap();
        let bytes = fetch(&key, &address, "k", &mut into, &finish, NOBODY).unwrap();
        assert_eq!((bytes, copying.join().unwrap()), (Some(2 * CHUNK as u64), bytes));
        let mut copy = vec![0; 2 * CHUNK];
        third.read_exact_at(&mut copy, 0).unwrap();
        assert!(copy == [[1; CHUNK], [2; CHUNK]].concat());
    }

    #[test]
    fn a_file_that_stops_coming_in_is_an_error_and_no_short_file() {
        let key = RunKey::generate().unwrap();
        let first = tempfile::tempfile().unwrap();
        let (_server, address, progress) = growing_server(&key, &first);
        first.write_all_at(&[1; CHUNK], 0).unwrap();
        progress.reach(CHUNK as u64);
        let progress = std::cell::Cell::new(Some(progress));
        let mut copy = tempfile::tempfile().unwrap();
        let watched = copy.try_clone().unwrap();
        let stop = || {
            if watched.metadata().unwrap().len() == CHUNK as u64 {
                drop(progress.take());
            }
            true
        };
        assert!(fetch(&key, &address, "k", &mut copy, &stop, NOBODY).is_err());
    }

    #[test]
    fn empty_files_are_files_and_a_server_that_has_ended_is_an_error() {
        let key = RunKey::generate().unwrap();
        let (server, address) = server(&key, Vec::new());
        let mut copy = tempfile::tempfile().unwrap();
        assert_eq!(
            fetch(&key, &address, "known", &mut copy, KEEP_ON, NOBODY).unwrap(),
            Some(0)
        );
        drop(server);
        assert!(fetch(&key, &address, "known", &mut copy, KEEP_ON, NOBODY).is_err());
    }
}
