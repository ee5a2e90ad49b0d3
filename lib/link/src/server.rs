//! The master's side: accepts agents, and knows which of them are there.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use pmc_system::clock;
use pmc_system::planted::{Planted, is_planted};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::Timing;
use crate::endpoint::VERSION;
use crate::frame::{self, Answer, Hello, Resume};
use crate::key::RunKey;
use crate::listener::{Acceptor, Listen, Listener, Secured, ServerError};
use crate::session::{Received, Session};
use crate::stream::{FrameHandler, Outgoing, framed, is_death, limited, pump};

/// Maximum time of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Number of a session; the master gives it.
pub type SessionId = u64;

/// Why an agent cannot join. The reason is a sentence for the user.
#[derive(Debug, PartialEq, Eq)]
pub enum JoinError {
    /// It need not try again.
    Refused(String),
    /// It may try again soon.
    Later(String),
}

impl<T: Into<String>> From<T> for JoinError {
    fn from(reason: T) -> Self {
        Self::Refused(reason.into())
    }
}

/// What the program does with agents. The thread of the [`Server`] calls it.
pub trait Service: Send + Sync + 'static {
    /// An agent wants to join. Returns what the program says to it.
    ///
    /// # Errors
    /// The agent cannot join.
    fn join(&self, session: SessionId, hello: &[u8]) -> Result<Vec<u8>, JoinError>;
    /// The agent has joined: messages reach it from now on.
    fn joined(&self, session: SessionId);
    /// A message of an agent.
    fn message(&self, session: SessionId, body: &[u8]);
    /// A message of an agent that may get lost.
    fn unnumbered(&self, _session: SessionId, _body: &[u8]) {}
    /// The connection is closed, or nothing was heard for some time. The agent may come back.
    fn silent(&self, session: SessionId);
    /// An agent that was silent is there again.
    fn back(&self, session: SessionId);
    /// The agent is lost: it holds no lease any more, so its tasks have ended.
    fn lost(&self, session: SessionId);
    /// The agent has said that all its tasks have ended.
    fn ended(&self, session: SessionId);
}

/// The sessions of a master. All threads may use it.
pub struct Hub {
    origin: Instant,
    epoch: u64,
    timing: Timing,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    last_session: SessionId,
    last_connection: u64,
    sessions: BTreeMap<SessionId, Entry>,
}

struct Entry {
    session: Session,
    /// Number of the newest connection. Older ones may still be open.
    connection: u64,
    /// Frames for the newest connection.
    frames: Option<UnboundedSender<Outgoing>>,
    silent: bool,
    /// A frame has come over this connection after the first one: the agent has got the answer to that. True
    /// also for its first connection: without the answer, it has no tasks.
    is_answered: bool,
    /// When its process has died, or its host has closed the connection for another reason.
    died_at: Option<Duration>,
    /// See [`Hub::dismiss`].
    dismissed: bool,
}

/// A connection that has shaken hands.
pub(crate) struct Accepted {
    pub(crate) session: SessionId,
    pub(crate) connection: u64,
    pub(crate) frames: UnboundedReceiver<Outgoing>,
    pub(crate) welcome: Bytes,
    joined: bool,
    back: bool,
}

impl Hub {
    fn new(epoch: u64, timing: Timing) -> Self {
        Self {
            origin: clock::now(),
            epoch,
            timing,
            table: Mutex::default(),
        }
    }

    /// Sends a message to an agent. A message to an agent that is lost or has ended is dropped.
    pub fn send(&self, session: SessionId, body: Vec<u8>) {
        let mut table = self.table();
        if let Some(entry) = table.sessions.get_mut(&session) {
            let frame = entry.session.send(body.into());
            entry.put(frame);
        }
    }

    /// Sends a message to an agent that is lost with the connection.
    pub fn unnumbered(&self, session: SessionId, body: &[u8]) {
        if let Some(entry) = self.table().sessions.get(&session) {
            entry.put(entry.session.unnumbered(body));
        }
    }

    /// Settles messages of an agent: they are on disk. It hears of it soon.
    pub fn settle(&self, session: SessionId, messages: u64) {
        if let Some(entry) = self.table().sessions.get_mut(&session) {
            entry.session.settle(messages);
        }
    }

    /// Sends an agent at once which of its messages are settled.
    pub fn confirm(&self, session: SessionId) {
        if let Some(entry) = self.table().sessions.get_mut(&session) {
            entry.put(entry.session.alive());
        }
    }

    /// Closes the connection of an agent for good: nothing more is heard of it, and it cannot come back to
    /// its session. It is lost when its lease is over, because its tasks may run until then.
    pub fn dismiss(&self, session: SessionId) {
        if let Some(entry) = self.table().sessions.get_mut(&session) {
            entry.dismissed = true;
            // This ends the connection.
            entry.frames = None;
        }
    }

    /// How long until an agent is lost, if nothing more comes from it; `None` if it is lost or has ended.
    #[must_use]
    pub fn until_lost(&self, session: SessionId) -> Option<Duration> {
        let table = self.table();
        let entry = table.sessions.get(&session)?;
        let quiet = self.now().saturating_sub(entry.session.heard_at());
        Some(self.timing.until_lost().saturating_sub(quiet))
    }

    /// Forgets an agent: the processes of its tasks have ended.
    pub fn forget(&self, session: SessionId) {
        self.table().sessions.remove(&session);
    }

    /// True if anything has come from an agent after this moment.
    #[must_use]
    pub fn has_heard(&self, session: SessionId, since: Instant) -> bool {
        let since = since.saturating_duration_since(self.origin);
        let table = self.table();
        let entry = table.sessions.get(&session);
        entry.is_some_and(|entry| entry.session.heard_at() > since)
    }

    /// Number of agents that are neither lost nor ended.
    #[must_use]
    pub fn agents(&self) -> usize {
        self.table().sessions.len()
    }

    pub(crate) fn now(&self) -> Duration {
        clock::elapsed(self.origin)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // The table is valid at every moment, even if a thread panicked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the first frame of a connection.
    pub(crate) fn hello(&self, bytes: &[u8], service: &dyn Service) -> Result<Accepted, Bytes> {
        let refuse = |error: JoinError| match error {
            JoinError::Refused(reason) => frame::encode(&Answer::Refused { reason }),
            JoinError::Later(reason) => frame::encode(&Answer::Later { reason }),
        };
        let hello: Hello =
            frame::decode(bytes).map_err(|_| refuse("The first frame of the agent makes no sense".into()))?;
        if hello.version != VERSION {
            let version = hello.version;
            let reason = format!(
                "The agent has version {version}, not {VERSION}: master and agent are different programs"
            );
            return Err(refuse(reason.into()));
        }
        match hello.resume {
            None => self.join(hello.body, service).map_err(refuse),
            Some(resume) => self
                .resume(resume)
                .ok_or_else(|| frame::encode(&Answer::Gone { epoch: self.epoch })),
        }
    }

    fn join(&self, body: &[u8], service: &dyn Service) -> Result<Accepted, JoinError> {
        let session = {
            let mut table = self.table();
            table.last_session += 1;
            table.last_session
        };
        let body = service.join(session, body)?;
        let mut table = self.table();
        let (sender, frames) = unbounded_channel();
        table.last_connection += 1;
        let connection = table.last_connection;
        let entry = Entry {
            session: Session::new(self.now()),
            connection,
            frames: Some(sender),
            silent: false,
            is_answered: true,
            died_at: None,
            dismissed: false,
        };
        let welcome = self.welcome(session, &entry, &body);
        table.sessions.insert(session, entry);
        Ok(Accepted {
            session,
            connection,
            frames,
            welcome,
            joined: true,
            back: false,
        })
    }

    fn resume(&self, resume: Resume) -> Option<Accepted> {
        let mut table = self.table();
        table.last_connection += 1;
        let connection = table.last_connection;
        let session = resume.session;
        let entry = table.sessions.get_mut(&session)?;
        if resume.epoch != self.epoch || entry.dismissed {
            return None;
        }
        let again = entry.session.resume(resume.expected).ok()?;
        entry.session.note(resume.head, self.now()).ok()?;
        let (sender, frames) = unbounded_channel();
        for frame in again {
            // The receiver is in this function.
            let _ = sender.send(frame.into());
        }
        // This closes an older connection.
        entry.frames = Some(sender);
        entry.connection = connection;
        (entry.is_answered, entry.died_at) = (false, None);
        let back = std::mem::take(&mut entry.silent);
        Some(Accepted {
            session,
            connection,
            frames,
            welcome: self.welcome(session, entry, &[]),
            joined: false,
            back,
        })
    }

    fn welcome(&self, session: SessionId, entry: &Entry, body: &[u8]) -> Bytes {
        let resume = Resume {
            epoch: self.epoch,
            session,
            expected: entry.session.expected(),
            head: entry.session.head(),
        };
        frame::encode(&Answer::Welcome { resume, body })
    }

    /// Takes a frame of a connection.
    fn receive(&self, session: SessionId, connection: u64, frame: &Bytes) -> io::Result<(Received, bool)> {
        let now = self.now();
        let mut table = self.table();
        let entry = table.sessions.get_mut(&session);
        let entry = entry.filter(|entry| entry.connection == connection);
        let entry = entry.ok_or_else(|| io::Error::other("there is a newer connection"))?;
        if entry.dismissed {
            return Err(io::Error::other("the agent was dismissed"));
        }
        let echo = entry.session.echo();
        let received = entry.session.receive(frame, now).map_err(io::Error::other)?;
        entry.is_answered = true;
        if entry.session.echo() != echo {
            entry.put(entry.session.alive());
        }
        if received == Received::Goodbye {
            table.sessions.remove(&session);
            return Ok((received, false));
        }
        let back = std::mem::take(&mut entry.silent);
        Ok((received, back))
    }

    /// Notes that a connection has ended, perhaps because the process of the agent has. Returns whether the
    /// agent is silent because of it.
    fn closed(&self, session: SessionId, connection: u64, died: bool) -> bool {
        let now = self.now();
        let mut table = self.table();
        let entry = table.sessions.get_mut(&session);
        let Some(entry) = entry.filter(|entry| entry.connection == connection) else {
            return false;
        };
        entry.frames = None;
        // After a silence, the network may have closed it, and the agent does not know. An agent that gets no
        // answer gives the connection up, and lives.
        let is_sure = !entry.silent && (entry.is_answered || is_planted(Planted::UnansweredIsDeath));
        entry.died_at = (died && is_sure).then_some(now);
        !std::mem::replace(&mut entry.silent, true)
    }

    /// Finds the agents that have become silent, and those that are lost; the latter are removed.
    fn scan(&self) -> (Vec<SessionId>, Vec<SessionId>) {
        let now = self.now();
        let (mut silent, mut lost) = (Vec::new(), Vec::new());
        let mut table = self.table();
        table.sessions.retain(|session, entry| {
            let quiet = now.saturating_sub(entry.session.heard_at());
            let dead = entry.died_at.map(|at| now.saturating_sub(at));
            if quiet > self.timing.until_lost() || dead.is_some_and(|dead| dead > self.timing.until_dead()) {
                lost.push(*session);
                return false;
            }
            if quiet > self.timing.patience() && !entry.silent {
                entry.silent = true;
                silent.push(*session);
            }
            true
        });
        (silent, lost)
    }
}

impl Entry {
    fn put(&self, frame: Bytes) {
        if let Some(frames) = &self.frames {
            // A connection that has ended is replaced by the next one, which sends the message again.
            let _ = frames.send(frame.into());
        }
    }
}

/// Listens for agents in a thread of its own, until it is dropped.
pub struct Server {
    hub: Arc<Hub>,
    listener: ListenerKind,
}

enum ListenerKind {
    Tcp(Listener),
    #[cfg(feature = "simulated")]
    Simulated(crate::simulated::Listening),
}

impl Server {
    /// Listens on this port, or on another one if that is 0 or in use. `service` makes the service from the
    /// hub.
    ///
    /// # Errors
    /// No port or thread can be had, or the key is unusable.
    pub fn start<S: Service>(
        key: &RunKey,
        (listen, port): (&Listen, u16),
        epoch: u64,
        timing: Timing,
        service: impl FnOnce(&Arc<Hub>) -> Arc<S>,
    ) -> Result<Self, ServerError> {
        #[cfg(feature = "simulated")]
        if pmc_system::is_simulated() {
            let hub = Arc::new(Hub::new(epoch, timing));
            let service = service(&hub);
            let watched = (Arc::clone(&hub), Arc::clone(&service));
            let watch = move || report(&watched.0, watched.1.as_ref());
            let inner = Arc::clone(&hub);
            let serve = move |stream, is_over: &dyn Fn() -> bool| {
                let _ = serve_simulated(stream, &inner, &service, is_over);
            };
            let watch = (watch_interval(&hub), watch);
            let listener = crate::simulated::Listening::start(port, watch, serve)?;
            return Ok(Self {
                hub,
                listener: ListenerKind::Simulated(listener),
            });
        }
        let acceptor = Acceptor::open(key, listen, port)?;
        let hub = Arc::new(Hub::new(epoch, timing));
        let service = service(&hub);
        let inner = Arc::clone(&hub);
        let listener = Listener::start("agents", acceptor, |acceptor| async move {
            tokio::task::spawn_local(watch(Arc::clone(&inner), Arc::clone(&service)));
            let serve = move |stream| serve(stream, Arc::clone(&inner), Arc::clone(&service));
            acceptor.let_in("agents", HANDSHAKE, serve).await
        })?;
        Ok(Self {
            hub,
            listener: ListenerKind::Tcp(listener),
        })
    }

    /// The sessions.
    #[must_use]
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        match &self.listener {
            ListenerKind::Tcp(listener) => listener.port(),
            #[cfg(feature = "simulated")]
            ListenerKind::Simulated(listener) => listener.port(),
        }
    }
}

/// Looks for agents that have become silent or lost, for ever.
async fn watch<S: Service>(hub: Arc<Hub>, service: Arc<S>) {
    let mut ticks = tokio::time::interval(watch_interval(&hub));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        report(&hub, service.as_ref());
    }
}

/// How often to look for agents that have become silent or lost.
fn watch_interval(hub: &Hub) -> Duration {
    (hub.timing.heartbeat / 4).max(Duration::from_millis(20))
}

/// Reports agents that have become silent or lost.
fn report(hub: &Hub, service: &dyn Service) {
    let (silent, lost) = hub.scan();
    silent.into_iter().for_each(|session| service.silent(session));
    lost.into_iter().for_each(|session| service.lost(session));
}

/// A connection after its handshake.
pub(crate) struct SessionSocket<S: ?Sized> {
    pub(crate) hub: Arc<Hub>,
    pub(crate) service: Arc<S>,
    pub(crate) session: SessionId,
    pub(crate) connection: u64,
}

impl<S: Service + ?Sized> SessionSocket<S> {
    /// Takes a frame. An error closes the connection.
    pub(crate) fn take(&self, frame: &Bytes) -> io::Result<()> {
        let (received, back) = self.hub.receive(self.session, self.connection, frame)?;
        if back {
            self.service.back(self.session);
        }
        match received {
            Received::Message(body) => self.service.message(self.session, &body),
            Received::Unnumbered(body) => self.service.unnumbered(self.session, &body),
            Received::Goodbye => {
                self.service.ended(self.session);
                return Err(io::Error::other("the agent has ended"));
            }
            Received::Nothing => {}
        }
        Ok(())
    }
}

impl<S: Service> FrameHandler for SessionSocket<S> {
    fn receive(&mut self, frame: Bytes) -> io::Result<()> {
        self.take(&frame)
    }

    fn tick(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn serve<S: Service>(stream: Secured, hub: Arc<Hub>, service: Arc<S>) -> io::Result<()> {
    let mut framed = framed(stream);
    let hello = async { framed.next().await.transpose() };
    let hello = limited(HANDSHAKE, "the agent says nothing", hello).await?;
    let Some(hello) = hello else { return Ok(()) };
    let accepted = match hub.hello(&hello, service.as_ref()) {
        Ok(accepted) => accepted,
        Err(answer) => return framed.send(answer).await,
    };
    let Accepted {
        session,
        connection,
        frames,
        welcome,
        joined,
        back,
    } = accepted;
    let mut socket = SessionSocket {
        hub: Arc::clone(&hub),
        service: Arc::clone(&service),
        session,
        connection,
    };
    let ended = match framed.send(welcome).await {
        Err(error) => Err(error),
        Ok(()) => {
            if joined {
                service.joined(session);
            }
            if back {
                service.back(session);
            }
            pump(framed, frames, None, &mut socket).await
        }
    };
    let died = ended.as_ref().is_err_and(is_death);
    if hub.closed(session, connection, died) {
        service.silent(session);
    }
    ended
}

/// Like [`serve`].
#[cfg(feature = "simulated")]
fn serve_simulated<S: Service>(
    stream: pmc_system::simulated::net::Stream,
    hub: &Arc<Hub>,
    service: &Arc<S>,
    is_over: &dyn Fn() -> bool,
) -> io::Result<()> {
    let Some(hello): Option<Bytes> = stream.receive(clock::now() + HANDSHAKE)? else {
        return Ok(());
    };
    let accepted = match hub.hello(&hello, service.as_ref()) {
        Ok(accepted) => accepted,
        Err(answer) => {
            stream.send(answer);
            stream.close();
            return Ok(());
        }
    };
    let Accepted {
        session,
        connection,
        mut frames,
        welcome,
        joined,
        back,
    } = accepted;
    let mut socket = SessionSocket {
        hub: Arc::clone(hub),
        service: Arc::clone(service),
        session,
        connection,
    };
    stream.send(welcome);
    if joined {
        service.joined(session);
    }
    if back {
        service.back(session);
    }
    let ended = crate::simulated::exchange(&stream, &mut frames, None, &mut socket, is_over);
    if is_over() {
        // The system closes the socket of a thread that has ended.
        return ended;
    }
    stream.close();
    let died = ended.as_ref().is_err_and(is_death);
    if hub.closed(session, connection, died) {
        service.silent(session);
    }
    ended
}

#[cfg(test)]
mod tests;
