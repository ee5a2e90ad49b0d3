//! The program as an agent: it runs tasks for a master on another host, and outlives a cut connection.
//!
//! An agent joins a run, gets ranks for its slots, and then does what workers do. It ends its tasks when its
//! lease is over: from then on, the master may run them elsewhere.

mod slots;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmc_link::{Agent, Client, Closed, ConnectError, Endpoint, EndpointError, Link, Timing};

use crate::interrupt::Interrupt;
use crate::protocol::ToWorker;
use crate::transport::agents::messages::{self, AgentHello, AgentWelcome, HostOptions};
use crate::{exit, host, logging};
use slots::Slots;

/// Variable with the endpoint, for hosts that do not share its file.
pub const ENDPOINT_VARIABLE: &str = "PMC_ENDPOINT";

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
    #[error(transparent)]
    Transport(#[from] crate::transport::TransportError),
    #[error("What the master says makes no sense: it is another program")]
    Nonsense,
    #[error("Unable to prepare connections: {}", pmc_dag::reason(.0))]
    System(#[from] std::io::Error),
}

fn capitalized(error: &ConnectError) -> String {
    let text = error.to_string();
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + characters.as_str()
}

/// Runs an agent until its run ends.
pub fn run(args: &AgentArgs, interrupt: &Arc<Interrupt>) -> ExitCode {
    match AgentProcess::new(args, interrupt).and_then(AgentProcess::run) {
        Ok(()) => ExitCode::from(exit::SUCCESS),
        Err(error) => {
            super::app::print(&format!("Agent on {}: {error}\n", host::name()));
            ExitCode::from(exit::FAILURE)
        }
    }
}

/// An agent and its connection.
struct AgentProcess<'a> {
    args: &'a AgentArgs,
    interrupt: &'a Arc<Interrupt>,
    link: Arc<Link>,
    client: Client,
    /// The session before the present one.
    before: Option<(u64, u64)>,
    slots: Option<Slots>,
}

/// Why the agent stops talking to its master.
enum Ended {
    /// The run is over.
    Run,
    /// The lease is over, or the master has given the agent up.
    Lease,
}

impl<'a> AgentProcess<'a> {
    fn new(args: &'a AgentArgs, interrupt: &'a Arc<Interrupt>) -> Result<Self, AgentError> {
        let started = Instant::now();
        let endpoint = loop {
            match read_endpoint(args) {
                Ok(endpoint) => break endpoint,
                Err(AgentError::Endpoint(EndpointError::Read { path, source }))
                    if source.kind() == std::io::ErrorKind::NotFound =>
                {
                    // The master writes it when it listens.
                    if started.elapsed() >= args.join_timeout {
                        let error = EndpointError::Read { path, source };
                        return Err(AgentError::NoMaster {
                            seconds: args.join_timeout.as_secs(),
                            last: error.to_string(),
                        });
                    }
                    std::thread::sleep(RETRY_INTERVAL);
                }
                Err(error) => return Err(error),
            }
        };
        let link = Link::new(Timing::with_lease(endpoint.lease));
        Ok(Self {
            args,
            interrupt,
            client: Client::new(Arc::clone(&link))?,
            link,
            before: None,
            slots: None,
        })
    }

    fn run(mut self) -> Result<(), AgentError> {
        loop {
            match self.stay_connected()? {
                Ended::Run => return Ok(()),
                Ended::Lease => {
                    tracing::warn!("The master does not count on this agent any more: its tasks end");
                    self.end_tasks();
                    self.before = self.link.session();
                    self.link.abandon();
                }
            }
        }
    }

    /// Ends all tasks and slots.
    fn end_tasks(&mut self) {
        if let Some(slots) = self.slots.take() {
            slots.deliver_all(&ToWorker::Abort);
            if !slots.wait(END_TIMEOUT) {
                tracing::error!("A task cannot be ended");
            }
        }
    }

    /// Connects again and again while the session lasts.
    fn stay_connected(&mut self) -> Result<Ended, AgentError> {
        let mut missing_since = Instant::now();
        loop {
            if self.slots.as_ref().is_some_and(Slots::have_ended) && self.is_over() {
                return Ok(Ended::Run);
            }
            let hello = self.hello();
            let endpoint = read_endpoint(self.args);
            let connected = match &endpoint {
                Ok(endpoint) => self.client.connect(endpoint, &hello),
                Err(error) => Err(ConnectError::Refused(error.to_string())),
            };
            let last = match connected {
                Ok(connection) => {
                    if connection.joined {
                        self.joined(&connection.welcome)?;
                    }
                    match self.talk(connection) {
                        Some(ended) => return Ok(ended),
                        None => "the connection was closed".to_owned(),
                    }
                }
                Err(ConnectError::Gone) => return Ok(Ended::Lease),
                Err(error @ (ConnectError::NobodyListens(_) | ConnectError::Unreachable { .. })) => {
                    let waited = missing_since.elapsed();
                    if self.slots.is_none() && waited >= self.args.join_timeout {
                        return Err(AgentError::NoMaster {
                            seconds: self.args.join_timeout.as_secs(),
                            last: error.to_string(),
                        });
                    }
                    error.to_string()
                }
                Err(error) if self.slots.is_none() => return Err(AgentError::Connect(error)),
                Err(error) => error.to_string(),
            };
            if self.slots.is_some() {
                missing_since = Instant::now();
                if self.link.lease_left().is_zero() {
                    return Ok(Ended::Lease);
                }
            }
            tracing::debug!("Connecting again: {last}");
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// True if the master needs this agent no more.
    fn is_over(&self) -> bool {
        true
    }

    fn hello(&self) -> Vec<u8> {
        let slots = match self.args.slots {
            0 => host::usable_cpus(),
            slots => slots,
        };
        let hello = AgentHello {
            host: self.args.host.name.clone().unwrap_or_else(host::name),
            slots,
            before: self.before,
            first_rank: None,
            kept: Vec::new(),
        };
        messages::encode(&hello)
    }

    /// Starts the slots.
    fn joined(&mut self, welcome: &[u8]) -> Result<(), AgentError> {
        let welcome: AgentWelcome = messages::decode(welcome).ok_or(AgentError::Nonsense)?;
        logging::init(welcome.verbosity);
        let directory = welcome.settings.directory();
        std::env::set_current_dir(&directory).map_err(|error| AgentError::Directory(directory, error))?;
        let options = welcome
            .settings
            .options(&self.args.host, self.args.environment.clone());
        let ranks = welcome.first_rank..welcome.first_rank.saturating_add(welcome.slots);
        self.slots = Some(Slots::start(ranks, &self.link, &Arc::new(options))?);
        Ok(())
    }

    /// Exchanges messages until the connection ends. `None` if another one may follow.
    fn talk(&self, connection: pmc_link::Connection) -> Option<Ended> {
        let slots = self.slots.as_ref()?;
        if slots.have_ended() {
            self.link.goodbye();
        }
        let mut talk = Talk {
            link: &self.link,
            slots,
            interrupt: self.interrupt,
            leaving: false,
            ended: None,
        };
        match connection.run(&mut talk) {
            Closed::Asked => talk.ended,
            Closed::Broken(_) => None,
        }
    }
}

/// A conversation with the master.
struct Talk<'a> {
    link: &'a Link,
    slots: &'a Slots,
    interrupt: &'a Interrupt,
    /// The master knows that this agent is to end.
    leaving: bool,
    ended: Option<Ended>,
}

impl Agent for Talk<'_> {
    fn message(&mut self, body: &[u8]) {
        let Some((rank, message)) = messages::addressed(body) else {
            tracing::error!("The master sent a message to nobody");
            return;
        };
        match ToWorker::decode(message) {
            Ok(message) => self.slots.deliver(rank, message),
            Err(error) => tracing::error!("Invalid message from the master: {error}"),
        }
    }

    fn tick(&mut self) -> bool {
        if self.link.lease_left().is_zero() {
            self.ended = Some(Ended::Lease);
            return true;
        }
        if self.interrupt.signal().is_some() && !self.slots.have_ended() {
            self.slots.deliver_all(&ToWorker::Abort);
        } else if self.interrupt.drain_signal().is_some() && !self.leaving {
            self.leaving = true;
            self.slots.leave();
        }
        false
    }
}

fn read_endpoint(args: &AgentArgs) -> Result<Endpoint, AgentError> {
    match (&args.endpoint, &args.endpoint_value) {
        (Some(path), _) => Ok(Endpoint::read(path)?),
        (None, Some(value)) => Ok(Endpoint::from_value(value)?),
        (None, None) => Err(AgentError::NoEndpoint),
    }
}
