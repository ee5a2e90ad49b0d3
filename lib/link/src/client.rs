//! The agent's side: one connection at a time, which the caller makes anew.

mod connection;
pub(crate) mod crowd;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use pmc_system::clock;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_rustls::TlsConnector;

use crate::Timing;
use crate::endpoint::{Endpoint, VERSION};
use crate::frame::{self, Answer, Hello, Resume};
use crate::key::KeyError;
use crate::proof::{Proof, is_unknown_key};
use crate::session::{Session, SessionError};
use crate::silence::{SilentAddresses, resolve};
use crate::stream::{Outgoing, buffered, framed, limited};

use connection::Carrier;
pub use connection::Connection;

/// Maximum time to connect to one address.
const CONNECT: Duration = Duration::from_secs(5);

/// What the program does with messages. The thread of [`Connection::run`] calls it.
pub trait Agent {
    /// A message of the master.
    fn message(&mut self, body: &[u8]);
    /// A message of the master that may get lost.
    fn unnumbered(&mut self, _body: &[u8]) {}
    /// Called several times between two heartbeats. `true` closes the connection.
    fn tick(&mut self) -> bool;
}

/// Turns the messages that a dead master has not settled into the first messages for the next one. Other
/// threads cannot send meanwhile.
pub type Carry<'a> = dyn Fn(Vec<Bytes>) -> Vec<Vec<u8>> + 'a;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host of the master answers that nobody listens: the master has ended.
    #[error("nobody listens at {0}")]
    NobodyListens(String),
    /// The master cannot be reached.
    #[error("{address}: {}", pmc_dag::reason(.source))]
    Unreachable {
        /// Its address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The other side has another key.
    #[error("{0} has another key: it is the master of another run, or the endpoint is an old one")]
    WrongKey(String),
    /// The master does not know the session: the agent must join again.
    #[error("the master does not count on this agent any more")]
    Gone {
        /// Number of this master among those of the DAG.
        epoch: u64,
    },
    /// The master refuses the agent.
    #[error("the master refuses this agent: {0}")]
    Refused(String),
    /// The master cannot let the agent in now: it may try again soon.
    #[error("the master does not let this agent in yet: {0}")]
    Later(String),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// What the master says makes no sense.
    #[error("what the master says makes no sense: {0}")]
    Nonsense(String),
}

impl ConnectError {
    /// Creates the error for an address that cannot be connected to.
    fn at(address: &str, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::ConnectionRefused => Self::NobodyListens(address.to_owned()),
            _ => Self::unreachable(address, source),
        }
    }

    fn unreachable(address: &str, source: io::Error) -> Self {
        let address = address.to_owned();
        Self::Unreachable { address, source }
    }
}

/// Why a connection has ended.
#[derive(Debug)]
pub enum Closed {
    /// By the master, by the network, or because nothing was heard.
    Broken(io::Error),
    /// By [`Agent::tick`].
    Asked,
}

/// The agent's end of its session. All threads may use it.
pub struct Link {
    origin: Instant,
    timing: Timing,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    session: Option<Live>,
    /// Frames for the connection.
    frames: Option<UnboundedSender<Outgoing>>,
}

struct Live {
    epoch: u64,
    number: u64,
    session: Session,
}

impl Link {
    /// A link without a session.
    #[must_use]
    pub fn new(timing: Timing) -> Arc<Self> {
        Arc::new(Self {
            origin: clock::now(),
            timing,
            state: Mutex::default(),
        })
    }

    /// Sends a message, now or over the next connection. Returns false if there is no session.
    pub fn send(&self, body: Vec<u8>) -> bool {
        self.put(body, Outgoing::from)
    }

    /// The same for a message that may wait for a few milliseconds, so that others go with it.
    pub fn send_soon(&self, body: Vec<u8>) -> bool {
        self.put(body, Outgoing::soon)
    }

    /// Sends a message that is lost with the connection. Returns false if there is none.
    pub fn unnumbered(&self, body: &[u8]) -> bool {
        let state = self.state();
        match (&state.session, &state.frames) {
            (Some(live), Some(frames)) => frames.send(live.session.unnumbered(body).into()).is_ok(),
            _ => false,
        }
    }

    fn put(&self, body: Vec<u8>, outgoing: fn(Bytes) -> Outgoing) -> bool {
        let mut state = self.state();
        let State { session, frames } = &mut *state;
        let Some(live) = session else { return false };
        let frame = live.session.send(body.into());
        if let Some(frames) = frames {
            // If the connection has ended, the next one sends the message again.
            let _ = frames.send(outgoing(frame));
        }
        true
    }

    /// The time for which the lease still holds; zero if it is over, or if there is no session.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        let state = self.state();
        let leased_at = state.session.as_ref().map(|live| live.session.leased_at());
        leased_at.map_or(Duration::ZERO, |at| {
            (at + self.timing.lease).saturating_sub(self.now())
        })
    }

    /// The master of the session and its number there.
    #[must_use]
    pub fn session(&self) -> Option<(u64, u64)> {
        let state = self.state();
        state.session.as_ref().map(|live| (live.epoch, live.number))
    }

    /// Ends the session on this side. Returns the messages that the master has not settled.
    pub fn abandon(&self) -> Vec<Bytes> {
        let mut state = self.state();
        state.frames = None;
        let live = state.session.take();
        live.map_or_else(Vec::new, |live| live.session.unsettled().cloned().collect())
    }

    /// Says that all tasks have ended, as the last frame of this session.
    pub fn goodbye(&self) {
        let state = self.state();
        if let (Some(live), Some(frames)) = (&state.session, &state.frames) {
            let _ = frames.send(live.session.goodbye().into());
        }
    }

    fn now(&self) -> Duration {
        clock::elapsed(self.origin)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid at every moment, even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes connections.
pub struct Client {
    runtime: Arc<tokio::runtime::Runtime>,
    link: Arc<Link>,
    /// The address at which the master of the session was reached.
    reached_at: Mutex<Option<String>>,
    /// When attempts to connect end.
    until: Mutex<Option<Instant>>,
    /// Ends the attempt to connect.
    stop: Arc<Notify>,
    silent: SilentAddresses,
}

/// What an agent says at first over a connection.
struct First {
    frame: Bytes,
    resume: Option<Resume>,
    now: Duration,
}

impl Client {
    /// A client for this link.
    ///
    /// # Errors
    /// The system refused what it needs.
    pub fn new(link: Arc<Link>) -> io::Result<Self> {
        Ok(Self::with_runtime(runtime()?, link))
    }

    fn with_runtime(runtime: Arc<tokio::runtime::Runtime>, link: Arc<Link>) -> Self {
        Self {
            runtime,
            link,
            reached_at: Mutex::default(),
            until: Mutex::default(),
            stop: Arc::default(),
            silent: SilentAddresses::default(),
        }
    }

    /// Returns what ends an attempt to connect.
    pub fn stopper(&self) -> impl Fn() + Send + 'static {
        let stop = Arc::clone(&self.stop);
        move || stop.notify_one()
    }

    /// Sets for how long, from now on, attempts to connect may last.
    pub fn set_patience(&self, patience: Duration) {
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        *until = clock::now().checked_add(patience);
    }

    /// The time that an attempt to connect has.
    fn limit(&self) -> Duration {
        // The lease of running tasks must not pass unnoticed.
        let lease = self.link.lease_left();
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let left = until.map(|until| until.saturating_duration_since(clock::now()));
        let limits = [Some(lease).filter(|lease| !lease.is_zero()), left];
        limits.into_iter().flatten().fold(CONNECT, Duration::min)
    }

    /// Connects. The session goes on; without one, the agent joins and says `hello`.
    ///
    /// # Errors
    /// There is no connection. The session is kept.
    pub fn connect(&self, endpoint: &Endpoint, hello: &[u8]) -> Result<Connection, ConnectError> {
        self.connect_with(endpoint, hello, None)
    }

    /// Joins another master, in place of one that has died, and says `hello`. `carry` turns the messages that
    /// the dead master has not settled into the first messages for the new one.
    ///
    /// # Errors
    /// There is no connection. The session is kept.
    pub fn join_next(
        &self,
        endpoint: &Endpoint,
        hello: &[u8],
        carry: &Carry<'_>,
    ) -> Result<Connection, ConnectError> {
        self.connect_with(endpoint, hello, Some(carry))
    }

    fn connect_with(
        &self,
        endpoint: &Endpoint,
        hello: &[u8],
        carry: Option<&Carry<'_>>,
    ) -> Result<Connection, ConnectError> {
        let config = Arc::new(endpoint.key.client_config()?);
        let proof = Proof::new(&endpoint.key);
        let mut last = ConnectError::Refused("the endpoint has no address".to_owned());
        for address in self.order(&endpoint.addresses) {
            let connector = TlsConnector::from(Arc::clone(&config));
            let attempt = self.shake_hands(address, (&proof, connector), hello, carry);
            let attempt = async {
                tokio::select! {
                    made = attempt => made,
                    () = self.stop.notified() => {
                        Err(ConnectError::unreachable(address, io::ErrorKind::Interrupted.into()))
                    }
                }
            };
            #[cfg(feature = "simulated")]
            let made = match pmc_system::is_simulated() {
                true => self.shake_hands_simulated(address, hello, carry),
                false => self.runtime.block_on(attempt),
            };
            #[cfg(not(feature = "simulated"))]
            let made = self.runtime.block_on(attempt);
            match made {
                Ok(connection) => {
                    *self.reached_at() = Some(address.clone());
                    return Ok(connection);
                }
                // The name may be that of another host here, while the one of the master is cut off.
                Err(ConnectError::NobodyListens(address)) if !self.may_be_master(&address) => {
                    if !matches!(last, ConnectError::NobodyListens(_) | ConnectError::WrongKey(_)) {
                        let source = io::ErrorKind::ConnectionRefused.into();
                        last = ConnectError::Unreachable { address, source };
                    }
                }
                // Another address may be of another host.
                Err(error @ (ConnectError::NobodyListens(_) | ConnectError::WrongKey(_))) => last = error,
                Err(error @ ConnectError::Unreachable { .. }) => {
                    if let ConnectError::Unreachable { source, .. } = &error {
                        self.silent.note(address, source);
                    }
                    if !matches!(last, ConnectError::NobodyListens(_) | ConnectError::WrongKey(_)) {
                        last = error;
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Returns the addresses to try: without those that did not answer of late, if others are left. That of
    /// the session is tried in any case.
    fn order<'e>(&self, all: &'e [String]) -> Vec<&'e String> {
        let reached_at = self.reached_at().clone();
        let is_silent = |address: &str| self.silent.has(address) && reached_at.as_deref() != Some(address);
        let awake: Vec<&String> = all.iter().filter(|address| !is_silent(address)).collect();
        if awake.is_empty() {
            all.iter().collect()
        } else {
            awake
        }
    }

    /// False if the master of the session was reached at another address.
    fn may_be_master(&self, address: &str) -> bool {
        self.link.session().is_none() || self.reached_at().as_deref() == Some(address)
    }

    fn reached_at(&self) -> MutexGuard<'_, Option<String>> {
        self.reached_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn shake_hands(
        &self,
        address: &str,
        (proof, connector): (&Proof, TlsConnector),
        hello: &[u8],
        carry: Option<&Carry<'_>>,
    ) -> Result<Connection, ConnectError> {
        let limit = self.limit();
        let unreachable = |source| ConnectError::unreachable(address, source);
        let opened = open(address, limit).await;
        let mut stream = opened.map_err(|error| ConnectError::at(address, error))?;
        // The name is not checked: the key identifies the master.
        let name = ServerName::try_from("master").map_err(|error| unreachable(io::Error::other(error)))?;
        let handshake = async {
            proof.show(&mut stream).await?;
            connector.connect(name, buffered(stream)).await
        };
        let secured = limited(limit, "the handshake takes too long", handshake);
        let secured = secured.await.map_err(|error| {
            if is_about_key(&error) {
                ConnectError::WrongKey(address.to_owned())
            } else {
                unreachable(error)
            }
        })?;
        let mut framed = framed(secured);
        let first = self.first(hello, carry);
        let exchange = async {
            framed.send(first.frame.clone()).await?;
            framed.next().await.transpose()
        };
        let answer = limited(limit, "the master does not answer", exchange).await;
        let answer = answer.map_err(|error| match is_about_key(&error) {
            true => ConnectError::WrongKey(address.to_owned()),
            false => unreachable(error),
        })?;
        let answer = answer.ok_or_else(|| unreachable(io::ErrorKind::UnexpectedEof.into()))?;
        self.begin(&first, &answer, carry, Carrier::Tls(Box::new(framed)))
    }

    /// Returns what to say at first over a new connection.
    fn first(&self, hello: &[u8], carry: Option<&Carry<'_>>) -> First {
        // The lease counts from before the master hears of this agent.
        let now = self.link.now();
        let resume = if carry.is_some() { None } else { self.resume() };
        let frame = frame::encode(&Hello {
            version: VERSION,
            resume,
            body: if resume.is_some() { &[] } else { hello },
        });
        First { frame, resume, now }
    }

    /// Begins a conversation after the answer of the master.
    fn begin(
        &self,
        first: &First,
        answer: &[u8],
        carry: Option<&Carry<'_>>,
        carrier: Carrier,
    ) -> Result<Connection, ConnectError> {
        let First { resume, now, .. } = *first;
        let answer: Answer =
            frame::decode(answer).map_err(|error| ConnectError::Nonsense(error.to_string()))?;
        match answer {
            Answer::Gone { epoch } => Err(ConnectError::Gone { epoch }),
            Answer::Refused { reason } => Err(ConnectError::Refused(reason)),
            Answer::Later { reason } => Err(ConnectError::Later(reason)),
            Answer::Welcome { resume: master, body } => {
                let frames = self
                    .welcome(resume.is_some(), master, now, carry)
                    .map_err(|error| ConnectError::Nonsense(error.to_string()))?;
                Ok(Connection {
                    runtime: Arc::clone(&self.runtime),
                    link: Arc::clone(&self.link),
                    welcome: body.to_vec(),
                    joined: resume.is_none(),
                    carrier,
                    frames,
                })
            }
        }
    }

    fn resume(&self) -> Option<Resume> {
        let state = self.link.state();
        state.session.as_ref().map(|live| Resume {
            epoch: live.epoch,
            session: live.number,
            expected: live.session.expected(),
            head: live.session.head(),
        })
    }

    /// Continues or begins the session.
    fn welcome(
        &self,
        resumes: bool,
        master: Resume,
        hello_at: Duration,
        carry: Option<&Carry<'_>>,
    ) -> Result<UnboundedReceiver<Outgoing>, SessionError> {
        let mut state = self.link.state();
        if !resumes {
            let before = state.session.take();
            let mut session = Session::new(hello_at);
            if let (Some(before), Some(carry)) = (before, carry) {
                let unsettled = before.session.unsettled().cloned().collect();
                for body in carry(unsettled) {
                    let _ = session.send(body.into());
                }
            }
            state.session = Some(Live {
                epoch: master.epoch,
                number: master.session,
                session,
            });
        }
        let (sender, frames) = unbounded_channel();
        let live = state.session.as_mut().ok_or(SessionError::Unknown)?;
        live.session.note(master.head, self.link.now())?;
        for frame in live.session.resume(master.expected)? {
            // The receiver is in this function.
            let _ = sender.send(frame.into());
        }
        state.frames = Some(sender);
        Ok(frames)
    }
}

/// What runs connections, in the thread that waits for them.
fn runtime() -> io::Result<Arc<tokio::runtime::Runtime>> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_io().enable_time().build().map(Arc::new)
}

#[cfg(feature = "simulated")]
impl Client {
    /// Connects to one address of the master.
    fn shake_hands_simulated(
        &self,
        address: &str,
        hello: &[u8],
        carry: Option<&Carry<'_>>,
    ) -> Result<Connection, ConnectError> {
        let limit = self.limit();
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let stream = pmc_system::simulated::net::connect(port.unwrap_or(0), limit)
            .map_err(|error| ConnectError::at(address, error))?;
        let first = self.first(hello, carry);
        stream.send(first.frame.clone());
        let answer = stream.receive(clock::now() + limit).transpose();
        let answer = answer.unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()));
        let answer = answer.map_err(|error| ConnectError::unreachable(address, error))?;
        self.begin(&first, &answer, carry, Carrier::Simulated(stream))
    }
}

/// Opens a TCP connection to one of the addresses of a name.
pub(crate) async fn open(address: &str, limit: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host is unknown");
    for socket in resolve(address, limit).await? {
        match limited(limit, "the host does not answer", TcpStream::connect(socket)).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Returns whether a handshake failed because of the key.
fn is_about_key(error: &io::Error) -> bool {
    use rustls::{AlertDescription, Error};
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    let is_of_tls = matches!(
        inner,
        Some(
            Error::InvalidCertificate(_)
                | Error::AlertReceived(
                    AlertDescription::UnknownCA
                        | AlertDescription::BadCertificate
                        | AlertDescription::CertificateUnknown
                        | AlertDescription::DecryptError
                        | AlertDescription::AccessDenied
                )
        )
    );
    is_of_tls || is_unknown_key(error)
}
