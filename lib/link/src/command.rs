//! Commands that processes of a gang run on its other hosts.
//!
//! A process of the gang connects with the agent of its host ([`Callers`]). That one connects with the agent
//! of the other host, and from then on passes all bytes on. The other agent starts the command and carries
//! its streams ([`serve`]). What the two ends say is in [`pmc_wire::command`].

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt as _};
use nix::sys::signal::Signal::{SIGKILL, SIGTERM};
use nix::sys::socket::{setsockopt, sockopt};
use pmc_wire::command::{self, Call, MAX_DATA, MAX_FRAME, Stream, ToCaller, ToCommand};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender, channel, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::frame;
use crate::key::RunKey;
pub use crate::member::Gang;
use crate::member::{CONNECT, Connector, Peer, Wanted};
use crate::stream::limited;

/// Maximum bytes of what a host learns about a gang.
const MAX_CONTEXT: usize = 64 << 20;

/// Maximum processes that talk to this agent at a time.
const MAX_CALLERS: usize = 1 << 14;

/// Time between SIGTERM and SIGKILL for a command whose caller has gone.
const GRACE: Duration = Duration::from_millis(500);

/// Time between two looks at a command of which nothing says that it has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// How long the side of a command waits until the caller has taken its end.
const CLOSE: Duration = Duration::from_secs(10);

/// After this time without a byte, the system asks whether the other side is there.
const KEEP_ALIVE: u32 = 10;

/// Time between two such questions, and their number.
const PROBES: (u32, u32) = (5, 4);

/// What the other side has not taken after this time, in milliseconds, was not delivered.
const UNDELIVERED: u32 = 30_000;

/// Bytes that an agent passes on at a time.
const COPIED: usize = 64 << 10;

/// The answer to one who wants to run a command.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Admission {
    /// The command follows; before it what the gang is, if this host does not know that yet.
    Granted { needs_context: bool },
    /// Nothing runs. Why, as a sentence for the user.
    Refused(String),
}

/// What an agent does for the processes of its host that want commands to be run elsewhere.
pub trait Calls: Send + Sync {
    /// Returns where the command runs, or why it does not, as a sentence for the user.
    ///
    /// # Errors
    /// The process is in no gang that this agent knows, or the host is not in it.
    fn route(&self, call: &Call) -> Result<Route, String>;

    /// The network has cut a connection of this gang.
    fn cut(&self, gang: Gang);
}

/// Where a command runs.
#[derive(Clone, Debug)]
pub struct Route {
    /// Alternative addresses of the agent there.
    pub addresses: Vec<String>,
    /// The gang.
    pub gang: Gang,
    /// What a host that does not know the gang needs to learn.
    pub context: Arc<Vec<u8>>,
}

/// What an agent does to run commands for other hosts.
pub trait Commands: Send + Sync {
    /// Returns whether this host knows all about a gang.
    ///
    /// # Errors
    /// It is not in it: why, as a sentence for the user.
    fn knows(&self, gang: Gang) -> Result<bool, String>;

    /// Learns all about a gang.
    ///
    /// # Errors
    /// It cannot be used: why, as a sentence for the user.
    fn learn(&self, gang: Gang, context: &[u8]) -> Result<(), String>;

    /// Starts a command in a process group of its own.
    ///
    /// # Errors
    /// It does not run: why, as a sentence for the user.
    fn start(&self, gang: Gang, call: &Call) -> Result<Running, String>;

    /// The network has cut a connection of this gang.
    fn cut(&self, gang: Gang);
}

/// A command that runs.
pub struct Running {
    /// Its standard input: a pipe. `None` if that is empty.
    pub input: Option<OwnedFd>,
    /// Pipes from its standard output and error.
    pub output: [OwnedFd; 2],
    /// Becomes readable when it ends.
    pub process: OwnedFd,
    /// The rest.
    pub handle: Box<dyn Handle>,
}

/// A command that runs, or has ended.
pub trait Handle {
    /// Sends a signal to its group.
    fn signal(&self, signal: i32);
    /// Returns its wait status, once. `None` while it has not ended. Never waits.
    fn end(&mut self) -> Option<i32>;
}

/// Prepares a connection, so that the death of the other host is noticed.
pub(crate) fn watch(stream: &impl AsFd) -> io::Result<()> {
    let (interval, count) = PROBES;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &KEEP_ALIVE)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &interval)?;
    setsockopt(stream, sockopt::TcpKeepCount, &count)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &UNDELIVERED)?;
    Ok(())
}

/// A member wants to run a command here. The first frame was read.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    mut framed: Framed<S, LengthDelimitedCodec>,
    gang: Gang,
    commands: &dyn Commands,
) -> io::Result<()> {
    let known = commands.knows(gang);
    let admission = match &known {
        Ok(knows) => Admission::Granted {
            needs_context: !knows,
        },
        Err(why) => Admission::Refused(why.clone()),
    };
    framed.send(frame::encode(&admission)).await?;
    let Ok(knows) = known else {
        return Ok(());
    };
    framed.codec_mut().set_max_frame_length(MAX_CONTEXT);
    let mut learned = Ok(());
    if !knows {
        let context = next(&mut framed).await?;
        learned = commands.learn(gang, &context);
    }
    framed.codec_mut().set_max_frame_length(MAX_FRAME);
    let call: Call = command::decode(&next(&mut framed).await?)?;
    let running = match learned.and_then(|()| commands.start(gang, &call)) {
        Ok(running) => running,
        Err(why) => {
            framed.send(encode(&ToCaller::Refused(why))?).await?;
            return close(&mut framed).await;
        }
    };
    carry(framed, running, &|| commands.cut(gang)).await
}

async fn next<S: AsyncRead + AsyncWrite + Unpin>(
    framed: &mut Framed<S, LengthDelimitedCodec>,
) -> io::Result<BytesMut> {
    let frame = async { framed.next().await.transpose() };
    let frame = limited(CONNECT, "the other side says nothing", frame).await?;
    frame.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn encode(message: &impl Serialize) -> io::Result<Bytes> {
    // The codec adds the length.
    let body = postcard::to_allocvec(message).map_err(io::Error::other)?;
    Ok(body.into())
}

/// Says that nothing more comes, and waits until the other side has gone: data on its way must not meet a
/// closed connection.
async fn close<S: AsyncRead + AsyncWrite + Unpin>(
    framed: &mut Framed<S, LengthDelimitedCodec>,
) -> io::Result<()> {
    SinkExt::<Bytes>::close(framed).await?;
    let rest = async { while let Some(Ok(_)) = framed.next().await {} };
    // Whatever it says, or if it says nothing: the command has ended.
    let _ = tokio::time::timeout(CLOSE, rest).await;
    Ok(())
}

/// Carries the streams of a command until it ends, or its caller goes. `cut` is called if the network has cut
/// the connection, before the command is ended.
async fn carry<S: AsyncRead + AsyncWrite + Unpin>(
    framed: Framed<S, LengthDelimitedCodec>,
    running: Running,
    cut: &dyn Fn(),
) -> io::Result<()> {
    let Running {
        input,
        output,
        process,
        mut handle,
    } = running;
    #[expect(
        unsafe_code,
        reason = "only the type of the descriptor says that it keeps its number"
    )]
    // SAFETY: an `OwnedFd` is the same open descriptor until it is dropped, and the reactor drops it.
    let process = unsafe { AsyncFd::register(process) };
    let (mut sink, mut stream) = framed.split();
    let (frames, mut to_send) = channel::<ToCaller>(4);
    let (give, taken) = channel::<Vec<u8>>(1);
    let [out, err] = output;
    let credits = [Notify::new(), Notify::new()];
    let ended = {
        let outputs = async {
            let out = output_frames(out, Stream::Out, &frames, &credits[0]);
            let err = output_frames(err, Stream::Err, &frames, &credits[1]);
            futures_util::future::join(out, err).await;
        };
        let work = async {
            let ended = async {
                // Without that, its output ends, too.
                if let Ok(process) = &process {
                    drop(process.readable().await);
                }
            };
            futures_util::future::join(ended, outputs).await;
        };
        let feed = async {
            feed(input, taken, &frames).await;
            std::future::pending::<()>().await;
        };
        let write = async {
            while let Some(message) = to_send.recv().await {
                sink.send(encode(&message)?).await?;
            }
            Ok::<(), io::Error>(())
        };
        let read = async {
            while let Some(frame) = stream.next().await.transpose()? {
                match command::decode(&frame)? {
                    // The last frame was not taken yet.
                    ToCommand::Input(bytes) => give.try_send(bytes).map_err(|_| nonsense())?,
                    ToCommand::Taken(Stream::Out) => credits[0].notify_one(),
                    ToCommand::Taken(Stream::Err) => credits[1].notify_one(),
                    ToCommand::Signal(signal) => handle.signal(signal),
                }
            }
            Ok::<(), io::Error>(())
        };
        tokio::select! {
            () = work => None,
            () = feed => None,
            gone = read => Some(gone),
            gone = write => Some(gone),
        }
    };
    conclude(ended, (sink, stream), to_send, &mut *handle, cut).await
}

type Split<S> = (
    SplitSink<Framed<S, LengthDelimitedCodec>, Bytes>,
    SplitStream<Framed<S, LengthDelimitedCodec>>,
);

/// Says how a command has ended, or ends it because the connection has ended so.
async fn conclude<S: AsyncRead + AsyncWrite + Unpin>(
    ended: Option<io::Result<()>>,
    (sink, stream): Split<S>,
    mut to_send: Receiver<ToCaller>,
    handle: &mut dyn Handle,
    cut: &dyn Fn(),
) -> io::Result<()> {
    match ended {
        None => {
            let status = end_of(handle).await;
            let mut framed = reunite((sink, stream))?;
            // Frames that nobody has taken yet are before it.
            while let Ok(message) = to_send.try_recv() {
                framed.send(encode(&message)?).await?;
            }
            framed.send(encode(&ToCaller::Ended(status))?).await?;
            close(&mut framed).await
        }
        Some(Err(error)) if error.kind() == io::ErrorKind::InvalidData => {
            end_command(handle).await;
            // A process of the task says nonsense. That is no fault of the network.
            let mut framed = reunite((sink, stream))?;
            let refused = ToCaller::Refused("what the caller says makes no sense".to_owned());
            framed.send(encode(&refused)?).await?;
            close(&mut framed).await
        }
        Some(gone) => {
            if gone.is_err() {
                cut();
            }
            // The other side need not wait for the end of the command.
            drop((sink, stream));
            end_command(handle).await;
            gone
        }
    }
}

/// A connection, as it was before it was split.
fn reunite<S: AsyncRead + AsyncWrite + Unpin>(
    (sink, stream): Split<S>,
) -> io::Result<Framed<S, LengthDelimitedCodec>> {
    let framed = sink.reunite(stream);
    framed.map_err(|error| io::Error::other(error.to_string()))
}

fn nonsense() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Ends a command whose caller has gone. It may be one that nothing ends for a while.
async fn end_command(handle: &mut dyn Handle) {
    handle.signal(SIGTERM as i32);
    if tokio::time::timeout(GRACE, end_of(handle)).await.is_err() {
        handle.signal(SIGKILL as i32);
        end_of(handle).await;
    }
}

/// Waits for the end of a command. The thread serves others meanwhile.
async fn end_of(handle: &mut dyn Handle) -> i32 {
    loop {
        if let Some(status) = handle.end() {
            return status;
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Sends what comes from a pipe, a frame at a time.
async fn output_frames(pipe: OwnedFd, stream: Stream, frames: &Sender<ToCaller>, taken: &Notify) {
    let Ok(mut pipe) = pipe::Receiver::from_owned_fd(pipe) else {
        return;
    };
    let mut buffer = vec![0; MAX_DATA];
    while let Ok(length @ 1..) = pipe.read(&mut buffer).await {
        let bytes = buffer.get(..length).unwrap_or_default().to_vec();
        if frames.send(ToCaller::Output(stream, bytes)).await.is_err() {
            return;
        }
        taken.notified().await;
    }
}

/// Writes what comes into the standard input of the command.
async fn feed(pipe: Option<OwnedFd>, mut taken: Receiver<Vec<u8>>, frames: &Sender<ToCaller>) {
    let mut pipe = pipe.and_then(|pipe| pipe::Sender::from_owned_fd(pipe).ok());
    while let Some(bytes) = taken.recv().await {
        if bytes.is_empty() {
            return;
        }
        if let Some(open) = &mut pipe
            && open.write_all(&bytes).await.is_err()
        {
            // Nobody reads it any more. The caller need not know.
            pipe = None;
        }
        if frames.send(ToCaller::Taken).await.is_err() {
            return;
        }
    }
}

/// Listens for processes of gangs on this host, and connects them with agents of other hosts, in a thread of
/// its own until it is dropped.
#[derive(Debug)]
pub struct Callers {
    sockets: Option<UnboundedSender<Socket>>,
    thread: Option<JoinHandle<()>>,
}

/// A socket, and what ends when nobody is to be served there any more.
type Socket = (UnixListener, oneshot::Receiver<()>);

/// A socket at which processes are served, until it is dropped.
#[derive(Debug)]
pub struct OpenSocket(#[expect(dead_code, reason = "its end is the message")] oneshot::Sender<()>);

/// What the tasks of the thread share.
struct Shared {
    connector: Connector,
    calls: Box<dyn Calls>,
    callers: Cell<usize>,
}

impl Callers {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread, or the key cannot be used.
    pub fn start(key: &RunKey, calls: Box<dyn Calls>) -> io::Result<Self> {
        let connector = Connector::new(key).map_err(io::Error::other)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let (sockets, opened) = unbounded_channel();
        let run = move || {
            let shared = Rc::new(Shared {
                connector,
                calls,
                callers: Cell::new(0),
            });
            tokio::task::LocalSet::new().block_on(&runtime, accept_all(opened, shared));
        };
        let thread = std::thread::Builder::new().name("gangs".to_owned()).spawn(run)?;
        Ok(Self {
            sockets: Some(sockets),
            thread: Some(thread),
        })
    }

    /// Serves the processes that connect with a socket.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn open(&self, socket: UnixListener) -> io::Result<OpenSocket> {
        socket.set_nonblocking(true)?;
        let (stop, stopped) = oneshot::channel();
        if let Some(sockets) = &self.sockets {
            sockets.send((socket, stopped)).map_err(io::Error::other)?;
        }
        Ok(OpenSocket(stop))
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        self.sockets = None;
        if let Some(thread) = self.thread.take() {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

async fn accept_all(mut sockets: UnboundedReceiver<Socket>, shared: Rc<Shared>) {
    while let Some((socket, stopped)) = sockets.recv().await {
        let shared = Rc::clone(&shared);
        tokio::task::spawn_local(async move {
            tokio::select! {
                ended = accept(socket, shared) => {
                    if let Err(error) = ended {
                        tracing::error!("Unable to listen for processes of a gang: {}", pmc_dag::reason(&error));
                    }
                }
                _ = stopped => {}
            }
        });
    }
}

async fn accept(socket: UnixListener, shared: Rc<Shared>) -> io::Result<()> {
    let socket = tokio::net::UnixListener::from_std(socket)?;
    let own = nix::unistd::geteuid().as_raw();
    loop {
        let Ok((stream, _)) = socket.accept().await else {
            // Too many open files, perhaps: some will be closed.
            tokio::time::sleep(GRACE).await;
            continue;
        };
        // Anybody can connect with an abstract socket.
        let is_own = stream.peer_cred().is_ok_and(|peer| peer.uid() == own);
        if !is_own || shared.callers.get() >= MAX_CALLERS {
            continue;
        }
        let shared = Rc::clone(&shared);
        tokio::task::spawn_local(async move {
            shared.callers.set(shared.callers.get() + 1);
            if let Err(error) = connect(stream, &shared).await {
                tracing::debug!("A process of a gang: {error}");
            }
            shared.callers.set(shared.callers.get() - 1);
        });
    }
}

/// Serves one process.
async fn connect(stream: UnixStream, shared: &Shared) -> io::Result<()> {
    let codec = LengthDelimitedCodec::builder()
        .max_frame_length(MAX_FRAME)
        .new_codec();
    let mut caller = Framed::new(stream, codec);
    let said = next(&mut caller).await?;
    let call: Call = command::decode(&said)?;
    let routed = shared.calls.route(&call);
    let reached = match routed {
        Ok(route) => reach(&shared.connector, &route, &call, &said)
            .await
            .map(|peer| (peer, route.gang)),
        Err(why) => Err(why),
    };
    match reached {
        Ok((peer, gang)) => pass(caller, peer, &|| shared.calls.cut(gang)).await,
        Err(why) => {
            caller.send(encode(&ToCaller::Refused(why))?).await?;
            SinkExt::<Bytes>::close(&mut caller).await
        }
    }
}

/// Connects with the agent of the other host, and hands the command over.
async fn reach(connector: &Connector, route: &Route, call: &Call, said: &[u8]) -> Result<Peer, String> {
    let mut last = None;
    for address in &route.addresses {
        match connector.connect(address).await {
            Ok(peer) => match hand_over(peer, route, said).await {
                Ok(answer) => return answer,
                Err(error) => last = Some(error),
            },
            Err(error) => last = Some(error),
        }
    }
    let why = last.map_or_else(|| "it has no address".to_owned(), |error| pmc_dag::reason(&error));
    Err(format!("the agent of {} cannot be reached: {why}", call.host))
}

async fn hand_over(mut peer: Peer, route: &Route, said: &[u8]) -> io::Result<Result<Peer, String>> {
    watch(peer.get_ref().get_ref().0.get_ref())?;
    peer.send(frame::encode(&Wanted::Command { gang: route.gang }))
        .await?;
    let answer = next(&mut peer).await?;
    let needs_context = match frame::decode(&answer).map_err(io::Error::other)? {
        Admission::Granted { needs_context } => needs_context,
        Admission::Refused(why) => return Ok(Err(why)),
    };
    peer.codec_mut().set_max_frame_length(MAX_CONTEXT);
    if needs_context {
        peer.send(Bytes::copy_from_slice(&route.context)).await?;
    }
    peer.send(Bytes::copy_from_slice(said)).await?;
    Ok(Ok(peer))
}

/// Which connection has ended.
enum Broken {
    Caller,
    Peer(io::Error),
}

/// Passes all bytes on in both directions, until the other side has sent the last one. `cut` is called if the
/// network has cut its connection, before the caller learns of the end: it may end the gang at once.
async fn pass(
    caller: Framed<UnixStream, LengthDelimitedCodec>,
    peer: Peer,
    cut: &dyn Fn(),
) -> io::Result<()> {
    let (caller, peer) = (caller.into_parts(), peer.into_parts());
    let (mut from_caller, mut to_caller) = caller.io.into_split();
    let (mut from_peer, mut to_peer) = tokio::io::split(peer.io);
    let has_gone = Cell::new(false);
    let down = async {
        let begun = async {
            to_peer.write_all(&caller.read_buf).await?;
            to_peer.flush().await
        };
        let sent = match begun.await {
            Ok(()) => copy(&mut from_caller, &mut to_peer).await,
            Err(error) => Err((false, error)),
        };
        // If it is the connection that has gone, the other direction says so.
        has_gone.set(!matches!(sent, Err((false, _))));
        let _ = to_peer.shutdown().await;
        std::future::pending::<()>().await;
    };
    let up = async {
        let early = to_caller.write_all(&peer.read_buf).await;
        early.map_err(|_| Broken::Caller)?;
        let copied = copy(&mut from_peer, &mut to_caller).await;
        copied.map_err(|(is_read, error)| {
            // The other side ends a connection, in whatever way, when it hears that the caller has gone.
            if is_read && !has_gone.get() {
                Broken::Peer(error)
            } else {
                Broken::Caller
            }
        })
    };
    let ended = tokio::select! {
        ended = up => ended,
        () = down => Ok(()),
    };
    let ended = match ended {
        Err(Broken::Peer(error)) => {
            cut();
            Err(error)
        }
        Err(Broken::Caller) | Ok(()) => Ok(()),
    };
    let _ = to_caller.shutdown().await;
    ended
}

/// Copies until the end. An error says whether it is one of reading.
async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> Result<(), (bool, io::Error)> {
    let mut buffer = vec![0; COPIED];
    loop {
        let length = from.read(&mut buffer).await.map_err(|error| (true, error))?;
        if length == 0 {
            return Ok(());
        }
        let written = async {
            to.write_all(buffer.get(..length).unwrap_or_default()).await?;
            to.flush().await
        };
        written.await.map_err(|error| (false, error))?;
    }
}
