//! The program as an agent: it runs tasks for a master on another host, and outlives a cut connection.
//!
//! An agent joins a run, gets ranks for its slots, and then does what workers do. It ends its tasks when its
//! lease is over: from then on, the master may run them elsewhere. If the master has died, it goes on with
//! what runs, and offers it to the next master.

mod absence;
mod away;
mod channels;
mod checkpoints;
pub mod guard;
pub mod guarded;
mod peers;
mod slots;
mod succession;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmc_link::{Agent, Client, Closed, ConnectError, Connection, Endpoint, EndpointError, Link, Timing};
use pmc_system::planted::{Planted, is_planted};
use pmc_system::{clock, thread};
use pmc_wire::peers::VARIABLE;

use crate::interrupt::Interrupt;
use crate::node::Nodes;
use crate::protocol::{Rank, ToWorker};
use crate::transport::agents::messages::{self, AgentHello, AgentWelcome, Content, HostOptions};
use crate::transport::agents::{ENDPOINT_VARIABLE, NUMBER_VARIABLE, SECOND_AGENT, endpoint_path};
use crate::{exit, heap, host, logging, open_files};
use absence::Absence;
use away::OwnDirectory;
use channels::{Channels, Members};
use checkpoints::Checkpoints;
use guard::Lifeline;
use peers::Peers;
use slots::Slots;
use succession::Succession;

/// Time between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum time for tasks to end. It is less than what the master waits after the lease.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// The command line of an agent.
#[derive(Clone, Debug)]
pub struct AgentArgs {
    /// The endpoint file.
    pub endpoint: Option<PathBuf>,
    /// The value of [`ENDPOINT_VARIABLE`].
    pub endpoint_value: Option<String>,
    /// Tasks to run at a time; 0 means one for each CPU.
    pub slots: u32,
    /// How long to wait for a master.
    pub join_timeout: Duration,
    /// What is known about this host.
    pub host: HostOptions,
    /// Environment that tasks inherit.
    pub environment: Vec<(OsString, OsString)>,
}

/// Why an agent ends before its run does.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error("An agent needs an endpoint: name its file, or set {ENDPOINT_VARIABLE}")]
    NoEndpoint,
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("No master after {} seconds: {last}", .seconds)]
    NoMaster { seconds: u64, last: String },
    #[error("{}", capitalized(.0))]
    Connect(ConnectError),
    #[error("The agent cannot enter the directory {} of the run: {}", .0.display(), pmc_dag::reason(.1))]
    Directory(PathBuf, std::io::Error),
    #[error("The agent cannot make a directory for files of tasks (TMPDIR): {}", pmc_dag::reason(.0))]
    OwnDirectory(std::io::Error),
    #[error(transparent)]
    Transport(#[from] crate::transport::TransportError),
    #[error("What the master says makes no sense: it is another program")]
    Nonsense,
    #[error("Unable to prepare connections: {}", pmc_dag::reason(.0))]
    System(#[from] std::io::Error),
}

impl AgentError {
    /// True if there is no endpoint file.
    fn is_missing(&self) -> bool {
        let not_found = std::io::ErrorKind::NotFound;
        matches!(self, Self::Endpoint(EndpointError::Read { source, .. }) if source.kind() == not_found)
    }
}

fn capitalized(error: &ConnectError) -> String {
    let text = error.to_string();
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + characters.as_str()
}

/// Runs an agent until its run ends.
pub fn run(args: &AgentArgs, interrupt: &Arc<Interrupt>) -> ExitCode {
    heap::keep_memory_of_messages();
    match AgentProcess::new(args, interrupt).and_then(AgentProcess::run) {
        Ok(()) => ExitCode::from(exit::SUCCESS),
        // A launcher must not take this for a failure, and end the others.
        Err(AgentError::Connect(ConnectError::Refused(reason))) if reason == SECOND_AGENT => {
            tracing::info!("{reason}");
            ExitCode::from(exit::SUCCESS)
        }
        Err(error) => {
            logging::print(&format!("Agent on {}: {error}\n", host::name()));
            ExitCode::from(exit::FAILURE)
        }
    }
}

/// Runs an agent of a simulation until its run ends. Returns why it has ended before that.
#[cfg(feature = "simulated")]
pub fn run_simulated(args: &AgentArgs, lifeline: Lifeline, interrupt: &Arc<Interrupt>) -> Result<(), String> {
    let process = AgentProcess::with_lifeline(args, Some(lifeline), interrupt);
    match process.and_then(AgentProcess::run) {
        Err(AgentError::Connect(ConnectError::Refused(reason))) if reason == SECOND_AGENT => Ok(()),
        ended => ended.map_err(|error| error.to_string()),
    }
}

/// An agent and its connection.
struct AgentProcess<'a> {
    args: &'a AgentArgs,
    interrupt: &'a Arc<Interrupt>,
    timing: Timing,
    link: Arc<Link>,
    client: Client,
    /// The session before the present one.
    before: Option<(u64, u64)>,
    slots: Option<Slots>,
    /// Set while there are slots, if this host does not see the directory of the run.
    own_directory: Option<OwnDirectory>,
    /// Without it, lite jobs get no files from other nodes.
    peers: Option<Arc<Peers>>,
    /// Set while there are slots: checkpoints on this node.
    checkpoints: Option<Arc<Checkpoints>>,
    absence: Absence,
    /// Set while there are slots, in a job that may lose its master.
    succession: Option<Succession>,
    /// How long it waits for a master.
    patience: Duration,
    /// How long tasks may still run after a signal to drain, while there is no master.
    drain_grace: Duration,
    /// Since when there is a signal to drain and no master.
    drains_since: Option<Instant>,
    lifeline: Option<Lifeline>,
}

/// Why the agent stops talking to its master.
enum Ended {
    /// The run is over.
    Run,
    /// The lease is over, or the master has given the agent up.
    Lease,
    /// A signal has asked the agent to end.
    Signal,
}

impl<'a> AgentProcess<'a> {
    fn new(args: &'a AgentArgs, interrupt: &'a Arc<Interrupt>) -> Result<Self, AgentError> {
        Self::with_lifeline(args, Lifeline::take(&args.environment), interrupt)
    }

    fn with_lifeline(
        args: &'a AgentArgs,
        lifeline: Option<Lifeline>,
        interrupt: &'a Arc<Interrupt>,
    ) -> Result<Self, AgentError> {
        let started = clock::now();
        let endpoint = loop {
            match read_endpoint(args) {
                Ok(endpoint) => break endpoint,
                // The master writes it when it listens.
                Err(error)
                    if error.is_missing()
                        && clock::elapsed(started) < args.join_timeout
                        && !is_asked_to_end(interrupt) =>
                {
                    thread::sleep(RETRY_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        };
        let timing = Timing::with_lease(endpoint.lease);
        let link = Link::new(timing);
        #[cfg(feature = "simulated")]
        let peers = match pmc_system::is_simulated() {
            true => Peers::simulated(&link, &endpoint),
            false => Peers::start(&link, &endpoint),
        };
        #[cfg(not(feature = "simulated"))]
        let peers = Peers::start(&link, &endpoint);
        let peers = peers.inspect_err(|error| tracing::debug!("No files from other nodes: {error}"));
        let client = Client::new(Arc::clone(&link))?;
        interrupt.on_raise(client.stopper());
        let patience = lifeline.as_ref().and_then(|lifeline| lifeline.patience);
        Ok(Self {
            args,
            interrupt,
            timing,
            client,
            link,
            before: lifeline.as_ref().and_then(|lifeline| lifeline.before),
            slots: None,
            own_directory: None,
            peers: peers.ok(),
            checkpoints: None,
            absence: Absence::new(),
            succession: None,
            patience: patience.unwrap_or(args.join_timeout),
            drain_grace: Duration::ZERO,
            drains_since: None,
            lifeline,
        })
    }

    fn run(mut self) -> Result<(), AgentError> {
        loop {
            match self.stay_connected()? {
                Ended::Run => {
                    if let Some(checkpoints) = &self.checkpoints {
                        checkpoints.tidy();
                    }
                    return Ok(());
                }
                Ended::Signal => {
                    // What does not end is ended by the guard.
                    self.end_tasks();
                    return Ok(());
                }
                Ended::Lease => {
                    tracing::warn!("The master does not count on this agent any more: its tasks end");
                    // The next session says that none lives. The guard ends this process at the end of the
                    // lease, and waits for what the system cannot end yet.
                    while !self.end_tasks() {
                        if is_asked_to_end(self.interrupt) {
                            return Ok(());
                        }
                    }
                    self.before = self.link.session();
                    self.link.abandon();
                }
            }
        }
    }

    /// Ends all tasks and slots. False if some live nevertheless.
    fn end_tasks(&mut self) -> bool {
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.need_not_wait();
        }
        if let Some(slots) = self.slots.take() {
            slots.deliver_all(&ToWorker::Abort);
            if !slots.wait(END_TIMEOUT) {
                tracing::error!("A task cannot be ended");
                self.slots = Some(slots);
                return false;
            }
            slots.join();
        }
        self.own_directory = None;
        if let Some(checkpoints) = self.checkpoints.take() {
            checkpoints.tidy();
        }
        self.hold(None);
        true
    }

    /// Tells the guard until when tasks may run; `None` if there are none.
    fn hold(&self, time: Option<Duration>) {
        if let Some(lifeline) = &self.lifeline {
            let patience = self.patience.saturating_sub(self.absence.waited());
            lifeline.hold(self.link.session(), time, patience);
        }
    }

    /// Connects again and again while the session lasts.
    fn stay_connected(&mut self) -> Result<Ended, AgentError> {
        let mut next_master = false;
        loop {
            match self.connect(next_master) {
                Ok(connection) => {
                    next_master = false;
                    self.absence.end();
                    self.drains_since = None;
                    if let Some(succession) = &mut self.succession {
                        succession.end();
                    }
                    if self.slots.is_none() {
                        self.start_slots(&connection.welcome)?;
                    }
                    if let Some(ended) = self.talk(connection) {
                        return Ok(ended);
                    }
                    if self.slots.as_ref().is_some_and(Slots::have_ended) {
                        return Ok(Ended::Run);
                    }
                    self.absence = Absence::new();
                }
                // The next master of the DAG has taken over.
                Err(AgentError::Connect(ConnectError::Gone { epoch }))
                    if self.link.session().is_some_and(|(known, _)| known < epoch) =>
                {
                    next_master = true;
                    if let Some(slots) = &self.slots {
                        slots.give_back_prefilled();
                    }
                    continue;
                }
                Err(AgentError::Connect(ConnectError::Gone { .. })) => {
                    self.absence = Absence::new();
                    return Ok(Ended::Lease);
                }
                Err(AgentError::Connect(error @ ConnectError::Refused(_))) if self.slots.is_some() => {
                    tracing::warn!("{}", capitalized(&error));
                    return Ok(Ended::Lease);
                }
                Err(error) => {
                    if let Some(ended) = self.consider(error)? {
                        return Ok(ended);
                    }
                }
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    fn connect(&mut self, next_master: bool) -> Result<Connection, AgentError> {
        self.absence.try_again(self.link.lease_left(), self.timing.lease);
        let endpoint = read_endpoint(self.args)?;
        let session = self.link.session();
        self.absence.is_alone =
            session.is_some_and(|(epoch, _)| endpoint.epoch <= epoch) || is_planted(Planted::UnseenSuccessor);
        let hello = self.hello(next_master);
        let left = self.patience.saturating_sub(self.absence.waited());
        self.client.set_patience(left);
        let connected = match self.slots.as_ref().filter(|_| next_master) {
            None => self.client.connect(&endpoint, &hello),
            Some(slots) => {
                let carry = |unsettled: Vec<bytes::Bytes>| slots.introduce(&unsettled);
                self.client.join_next(&endpoint, &hello, &carry)
            }
        };
        connected.map_err(AgentError::Connect)
    }

    /// Decides what to do without a connection.
    fn consider(&mut self, error: AgentError) -> Result<Option<Ended>, AgentError> {
        let now = clock::now();
        let waited = self.absence.waited();
        if self.must_end() {
            return Ok(Some(Ended::Signal));
        }
        let succession = self.succession.as_mut();
        let is_lost = succession.is_some_and(|succession| succession.advance(now, waited));
        let is_temporary = error.is_missing()
            || matches!(
                error,
                AgentError::Connect(
                    ConnectError::NobodyListens(_)
                        | ConnectError::Unreachable { .. }
                        | ConnectError::Later(_)
                )
            );
        if self.slots.is_none() {
            // A run that has ended removes its endpoint.
            if !is_temporary || (self.before.is_some() && error.is_missing()) {
                return Err(error);
            }
            if waited >= self.patience && !is_lost {
                return Err(AgentError::NoMaster {
                    seconds: waited.as_secs(),
                    last: error.to_string(),
                });
            }
            return Ok(None);
        }
        let nobody_listens = matches!(error, AgentError::Connect(ConnectError::NobodyListens(_)));
        // What Slurm says of the node of the batch script says nothing of a next master elsewhere.
        let is_dead = nobody_listens || (is_lost && self.absence.is_alone);
        if is_dead && self.absence.note_death() {
            tracing::warn!(
                "The master has died: the tasks of this agent go on, and it waits for the next master"
            );
        }
        let hold = self.absence.hold(now, self.timing.lease);
        if !hold.is_zero() && (is_lost || waited < self.patience) {
            self.hold(Some(hold));
            return Ok(None);
        }
        // Nobody counts on the rest of the lease of a master that has died.
        let is_given_up = is_dead && !is_lost && waited >= self.patience;
        Ok((is_given_up || self.link.lease_left().is_zero()).then_some(Ended::Lease))
    }

    /// True if a signal has asked the agent to end, and its tasks have ended or have had the time for that.
    /// There is no master that could drain it.
    fn must_end(&mut self) -> bool {
        if !is_asked_to_end(self.interrupt) {
            return false;
        }
        let Some(slots) = &self.slots else {
            return true;
        };
        if self.drains_since.is_none() {
            slots.give_back_prefilled();
        }
        let since = *self.drains_since.get_or_insert_with(clock::now);
        self.interrupt.signal().is_some() || slots.are_idle() || clock::elapsed(since) >= self.drain_grace
    }

    fn hello(&self, next_master: bool) -> Vec<u8> {
        let kept = self.slots.as_ref().filter(|_| next_master);
        let slots = match (kept, self.args.slots) {
            (Some(kept), _) => kept.len(),
            (None, 0) => host::allocated_cpus(&self.args.environment),
            (None, slots) => slots,
        };
        let hello = AgentHello {
            host: self.args.host.name.clone().unwrap_or_else(host::name),
            slots,
            max_slots: open_files::max_slots(),
            number: self.number(),
            before: self.link.session().or(self.before),
            first_rank: kept.map(|slots| slots.ranks().start),
        };
        messages::encode(&hello)
    }

    fn number(&self) -> Option<u32> {
        let mut variables = self.args.environment.iter();
        let (_, number) = variables.find(|(name, _)| name == NUMBER_VARIABLE)?;
        number.to_str()?.parse().ok()
    }

    /// Starts the slots.
    fn start_slots(&mut self, welcome: &[u8]) -> Result<(), AgentError> {
        let welcome: AgentWelcome = messages::decode(welcome).ok_or(AgentError::Nonsense)?;
        if !pmc_system::is_simulated() {
            logging::init(welcome.verbosity);
        }
        self.patience = welcome.master_timeout;
        self.drain_grace = welcome.drain_grace;
        let mut environment = self.args.environment.clone();
        environment.retain(|(name, _)| !guard::VARIABLES.iter().any(|own| name == own));
        // It may be that of an agent whose task this one is.
        environment.retain(|(name, _)| name != VARIABLE);
        let peers = self.peers.as_ref();
        environment.extend(peers.map(|peers| (VARIABLE.into(), peers.name().into())));
        let mut options = welcome.settings.options(&self.args.host, environment);
        let directory = welcome.settings.directory();
        let endpoint_file = directory.join(endpoint_path(&options.dag));
        self.succession = None;
        let directory = if away::sees(&endpoint_file, &read_endpoint(self.args)?) {
            self.succession = Succession::new(&self.args.environment, &directory.join(&options.dag));
            directory
        } else {
            let own = OwnDirectory::make(&options.environment).map_err(AgentError::OwnDirectory)?;
            let path = own.path().to_owned();
            tracing::debug!(
                "This host does not see {}: attempts have their files in {}",
                endpoint_file.display(),
                path.display()
            );
            options.away = Some(path.clone());
            self.own_directory = Some(own);
            path
        };
        enter(&directory)?;
        // Tasks are bound only to CPUs that exist.
        if !options.set_affinity {
            options.host_cpus =
                host::cpus_for_workers(options.host_cpus, welcome.slots, &options.environment);
        }
        // A simulated host has none of what follows.
        let peers = self.peers.as_ref().filter(|_| !pmc_system::is_simulated());
        let channels = peers.map(|peers| Channels::start(peers, &options));
        let channels = channels.transpose()?;
        options.channels = channels
            .clone()
            .map(|channels| channels as Arc<dyn crate::channels::Channels>);
        let settings = checkpoints::settings(&options.environment);
        let keeps = options.away.is_some() || settings.local.is_some();
        self.checkpoints = peers.map(|peers| {
            let rank = Rank(welcome.first_rank);
            let store = (options.dag.as_path(), options.away.is_none());
            let chosen = (&settings, options.environment.as_slice());
            Checkpoints::new(chosen, rank, store, &self.link, peers)
        });
        let nodes = self.checkpoints.clone().filter(|_| keeps);
        options.nodes = nodes.map(|nodes| nodes as Arc<dyn Nodes>);
        let ranks = welcome.first_rank..welcome.first_rank.saturating_add(welcome.slots);
        let members = channels.map(|channels| channels as Arc<dyn Members>);
        #[cfg(feature = "simulated")]
        let members = members.or_else(|| {
            let simulated = || Arc::new(channels::simulated::SimulatedGangs) as Arc<dyn Members>;
            pmc_system::is_simulated().then(simulated)
        });
        let checkpoints = self.checkpoints.clone();
        let before_end: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            if let Some(checkpoints) = &checkpoints {
                checkpoints.leave();
            }
        });
        let options = Arc::new(options);
        self.slots = Some(Slots::start(ranks, &self.link, &options, members, &before_end)?);
        Ok(())
    }

    /// Exchanges messages until the connection ends. `None` if another one may follow.
    fn talk(&self, connection: Connection) -> Option<Ended> {
        let slots = self.slots.as_ref()?;
        if slots.have_ended() {
            self.link.goodbye();
        }
        if let Some(peers) = &self.peers {
            peers.connected(connection.local_address());
        }
        if let Some(checkpoints) = &self.checkpoints {
            checkpoints.connected();
        }
        let mut talk = Talk {
            process: self,
            slots,
            leaving: false,
            ended: None,
        };
        let closed = connection.run(&mut talk);
        if let Some(peers) = &self.peers {
            peers.disconnected();
        }
        match closed {
            Closed::Asked => talk.ended,
            Closed::Broken(error) => {
                tracing::debug!("The connection to the master was closed: {error}");
                None
            }
        }
    }
}

/// True after a signal to drain or to stop.
fn is_asked_to_end(interrupt: &Interrupt) -> bool {
    interrupt.signal().or(interrupt.drain_signal()).is_some()
}

/// A conversation with the master.
struct Talk<'a> {
    process: &'a AgentProcess<'a>,
    slots: &'a Slots,
    /// The master knows that this agent is to end.
    leaving: bool,
    ended: Option<Ended>,
}

impl Agent for Talk<'_> {
    fn message(&mut self, body: &[u8]) {
        let Some((rank, Content::Message(message))) = messages::addressed(body) else {
            tracing::error!("The master sent a message to nobody");
            return;
        };
        match ToWorker::decode(message) {
            Ok(ToWorker::Checkpoint(said)) => {
                if let Some(checkpoints) = &self.process.checkpoints {
                    checkpoints.hear(*said);
                }
            }
            Ok(message) => self.slots.deliver(rank, message),
            Err(error) => tracing::error!("Invalid message from the master: {error}"),
        }
    }

    fn unnumbered(&mut self, body: &[u8]) {
        if let Some(peers) = &self.process.peers {
            peers.answer(body);
        }
    }

    fn tick(&mut self) -> bool {
        let left = self.process.link.lease_left();
        if left.is_zero() {
            self.ended = Some(Ended::Lease);
            return true;
        }
        self.process.hold(Some(left));
        let interrupt = self.process.interrupt;
        if interrupt.signal().is_some() && !self.slots.have_ended() {
            if let Some(checkpoints) = &self.process.checkpoints {
                checkpoints.need_not_wait();
            }
            self.slots.deliver_all(&ToWorker::Abort);
        } else if interrupt.drain_signal().is_some() && !self.leaving {
            self.leaving = true;
            self.slots.leave();
        }
        false
    }
}

fn enter(directory: &Path) -> Result<(), AgentError> {
    if pmc_system::is_simulated() {
        // The working directory is that of all its processes.
        return Ok(());
    }
    let entered = std::env::set_current_dir(directory);
    entered.map_err(|error| AgentError::Directory(directory.to_owned(), error))
}

fn read_endpoint(args: &AgentArgs) -> Result<Endpoint, AgentError> {
    match (&args.endpoint, &args.endpoint_value) {
        // The file counts: the next master writes it anew. Hosts that do not share it have the value.
        (Some(path), value) => match (Endpoint::read(path), value) {
            (Err(EndpointError::Read { source, .. }), Some(value))
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(Endpoint::from_value(value)?)
            }
            (read, _) => Ok(read?),
        },
        (None, Some(value)) => Ok(Endpoint::from_value(value)?),
        (None, None) => Err(AgentError::NoEndpoint),
    }
}
