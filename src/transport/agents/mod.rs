//! Workers as slots of agents: processes of this program on any host, which may come late and be lost.
//!
//! The thread that reads from agents submits their messages to the [`Combiner`], and so does the master's
//! work itself.

mod comebacks;
mod launcher;
pub mod messages;
mod missing;
mod reception;
mod roster;
mod table;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pmc_batch::launch::Launch;
use pmc_calls::shell::shell_quote;
use pmc_link::{Endpoint, Listen, MemoryAgent, RunKey, Server, Service, SessionId, Timing};
use pmc_system::clock;
use pmc_system::planted::{Planted, is_planted};
use rustc_hash::FxHashMap;

use comebacks::Comebacks;
use launcher::EarlierAgents;
pub use launcher::{ENDPOINT_VARIABLE, LaunchError, LaunchOptions, Launcher, NUMBER_VARIABLE};
use messages::{AgentHello, AgentWelcome, WorkerSettings};
pub use missing::Missing;
use missing::{MAX_NAMED, said};
pub(crate) use reception::SECOND_AGENT;
use reception::{Reception, Rules};
use roster::{Earlier, Roster};

use super::combiner::Combiner;
use super::{CombiningTransport, MasterTransport, Membership, Traffic, TransportError};
use crate::interrupt::Interrupt;
use crate::options::{DEFAULT_DRAIN_GRACE, folder, with_suffix};
use crate::protocol::{NodeChange, Rank, ToMaster, ToWorker};
use crate::{heap, host};

/// Default of `--agent-timeout`.
pub const AGENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Default of `--master-timeout`.
pub const MASTER_TIMEOUT: Duration = Duration::from_secs(600);

/// Default of `--join-timeout`.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(300);

/// How a run uses agents.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// The DAG file.
    pub dag: PathBuf,
    /// Number of agents.
    pub agents: u32,
    /// Slots of each agent; 0 lets each agent decide.
    pub slots: u32,
    /// Agents that must be there before the first task.
    pub start_with: u32,
    /// How long agents wait for another master if this one has died.
    pub master_timeout: Duration,
    /// How long tasks of agents without a master may run after a signal to drain.
    pub drain_grace: Duration,
    /// How long to wait for agents.
    pub join_timeout: Duration,
    /// Where the master listens.
    pub listen: Listen,
    /// How agents are started, if the master starts them.
    pub launch: Option<Launch>,
    /// How they are started, in detail.
    pub launch_options: LaunchOptions,
    /// The lease of agents.
    pub timing: Timing,
    /// Settings of the workers.
    pub settings: WorkerSettings,
    /// What agents print; see [`crate::logging::init`].
    pub verbosity: i32,
}

/// The master's side.
pub struct AgentMaster {
    options: AgentOptions,
    combiner: Arc<Combiner>,
    /// Set when the run has begun.
    running: Option<Running>,
    /// The session of rank r is at r - 1.
    sessions: Vec<SessionId>,
    /// Handled messages of each session that are not settled.
    handled: FxHashMap<SessionId, u64>,
    traffic: Traffic,
    /// The highest rank that a message went to.
    addressed: u32,
}

struct Running {
    // Dropped first: its thread uses the rest.
    server: Server,
    reception: Arc<Reception>,
    launcher: Option<Launcher>,
    endpoint: PathBuf,
    begun: Instant,
    /// The user knows who has not come.
    missing_reported: bool,
    /// When to look again for agents that have not come.
    next_look: Option<Instant>,
    /// Numbers of the agents whose launchers have ended, as the user knows.
    reported: BTreeSet<usize>,
    comebacks: Comebacks,
}

/// How often the master looks for agents that have not come.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

impl AgentOptions {
    /// The defaults for a DAG whose workers have these settings.
    #[must_use]
    pub fn new(dag: &Path, settings: WorkerSettings) -> Self {
        Self {
            dag: dag.to_owned(),
            agents: 0,
            slots: 0,
            start_with: 1,
            master_timeout: MASTER_TIMEOUT,
            drain_grace: DEFAULT_DRAIN_GRACE,
            join_timeout: JOIN_TIMEOUT,
            listen: Listen::default(),
            launch: None,
            launch_options: LaunchOptions::default(),
            timing: Timing::with_lease(AGENT_TIMEOUT),
            settings,
            verbosity: 0,
        }
    }

    /// Returns how somebody else starts the agents.
    fn invitation(&self, endpoint: &Path) -> String {
        let endpoint = std::path::absolute(endpoint).unwrap_or_else(|_| endpoint.to_owned());
        let program = host::own_path();
        let program = program.unwrap_or_else(|_| "pegasus-mpi-cluster".into());
        let word = |path: &Path| shell_quote(&path.to_string_lossy()).into_owned();
        format!(
            "Waiting for {}, as there is no --launch. To start one on a host: {} --agent {}",
            match self.agents {
                1 => "1 agent".to_owned(),
                agents => format!("{agents} agents"),
            },
            word(&program),
            word(&endpoint)
        )
    }

    /// Where the master listens: for agents on this machine, nobody else has to reach it.
    fn listen_at(&self) -> Listen {
        match self.launch {
            Some(Launch::Local { .. }) if self.listen == Listen::default() => Listen::loopback(),
            _ => self.listen.clone(),
        }
    }

    /// Number of agents for which the start waits.
    fn wanted_at_start(&self) -> usize {
        self.start_with.min(self.agents) as usize
    }

    /// Returns which agents have not come.
    fn missing(&self, running: &Running, joined: usize, exited: bool, waited: Duration) -> Missing {
        let table = running.reception.table();
        let last_words = |number| {
            let launcher = running.launcher.as_ref();
            launcher.map_or_else(String::new, |launcher| launcher.last_words(number))
        };
        let words = match &self.launch {
            // Nothing starts them, or they print where this process does.
            None | Some(Launch::Local { .. }) => Vec::new(),
            Some(Launch::Once { .. }) => vec![(None, last_words(None))],
            Some(Launch::Ssh { hosts } | Launch::Rsh { hosts } | Launch::Each { hosts, .. }) => {
                let missing = hosts.iter().enumerate();
                let missing = missing
                    .filter(|(number, _)| !table.has_number(*number) && !running.reported.contains(number));
                missing
                    .take(MAX_NAMED)
                    .map(|(number, host)| (Some(host.clone()), last_words(Some(number))))
                    .collect()
            }
        };
        Missing {
            agents: (self.agents as usize).saturating_sub(joined + running.reported.len()),
            seconds: waited.as_secs(),
            words,
            exited,
            begins_with: None,
        }
    }
}

impl Running {
    /// Number of agents that have joined. Before the run has started, those that are gone have not come.
    fn joined(&self, before_start: bool) -> usize {
        let table = self.reception.table();
        if before_start {
            table.present().count()
        } else {
            table.joined()
        }
    }

    /// Tells the user about launchers that have ended before their agents have come.
    fn report_ended_launchers(&mut self, launch: Option<&Launch>) {
        let Some((launch, launcher)) = launch.zip(self.launcher.as_mut()) else {
            return;
        };
        for (number, host) in launch.hosts().iter().enumerate() {
            let is_late = !self.reported.contains(&number)
                && launcher.has_exited(number)
                && !self.reception.table().has_number(number);
            if is_late {
                self.reported.insert(number);
                let words = said(&launcher.last_words(Some(number)));
                self.reception
                    .notice(format!("The agent on {host} did not come; its launcher{words}"));
            }
        }
    }

    /// True if agents of an earlier master that have not come back hold no lease any more.
    fn is_late(&self, timing: Timing) -> bool {
        clock::elapsed(self.begun) >= timing.until_lost()
    }
}

/// Returns the epoch of a master that follows on none: the time, in milliseconds. An agent of an earlier run
/// of the DAG, whose master could not reach it at the end, may join this one. What it had there must not be
/// taken for what others have here.
fn first_epoch() -> u64 {
    if is_planted(Planted::SameEpoch) {
        return 1;
    }
    let time = clock::system_time().duration_since(std::time::UNIX_EPOCH);
    time.map_or(1, |time| u64::try_from(time.as_millis()).unwrap_or(1))
}

/// Returns the port of an endpoint.
fn port(endpoint: &Endpoint) -> Option<u16> {
    let (_, port) = endpoint.addresses.first()?.rsplit_once(':')?;
    port.parse().ok()
}

/// Returns the path of the endpoint file of a DAG.
#[must_use]
pub fn endpoint_path(dag: &Path) -> PathBuf {
    with_suffix(dag, ".endpoint")
}

/// Returns the path of the list of agents of a DAG.
fn roster_path(dag: &Path) -> PathBuf {
    with_suffix(dag, ".agents")
}

/// Returns the hosts of agents that may run tasks of a DAG, because their master was killed.
///
/// # Errors
/// The list of agents cannot be read.
pub fn left(dag: &Path) -> std::io::Result<BTreeSet<String>> {
    Ok(Earlier::open(&roster_path(dag))?.agents.into_values().collect())
}

impl AgentMaster {
    /// Prepares a run. [`Membership::begin`] starts it. `interrupt` ends the waiting of
    /// [`MasterTransport::receive`].
    #[must_use]
    pub fn new(options: AgentOptions, interrupt: &Interrupt) -> Self {
        let combiner = Arc::new(Combiner::default());
        let waker = Arc::clone(&combiner);
        interrupt.on_raise(move || waker.wake());
        Self {
            options,
            combiner,
            running: None,
            sessions: Vec::new(),
            handled: FxHashMap::default(),
            traffic: Traffic::default(),
            addressed: 0,
        }
    }

    /// Looks whether the agents that were to come at first have come. Returns when to look again.
    fn check_awaited(&mut self) -> Result<Option<Instant>, TransportError> {
        let before_start = self.addressed == 0;
        let Some(running) = &mut self.running else {
            return Ok(None);
        };
        if running.reception.awaits_earlier() {
            if !running.is_late(self.options.timing) {
                return Ok(Some(clock::now() + CHECK_INTERVAL));
            }
            running.reception.forget_earlier();
        }
        running.start_skipped(self.options.agents)?;
        let joined = running.joined(before_start);
        if joined >= self.options.agents as usize {
            return Ok(None);
        }
        let all_reported = joined + running.reported.len() >= self.options.agents as usize;
        if running.missing_reported || (joined > 0 && all_reported) {
            return Ok(None);
        }
        // This is called for each message, and what follows takes system calls.
        if let Some(next) = running.next_look.filter(|next| clock::now() < *next) {
            return Ok(Some(next));
        }
        let waited = clock::elapsed(running.begun);
        let exited = running.launcher.as_mut().is_some_and(Launcher::all_have_exited);
        if exited || waited >= self.options.join_timeout {
            let mut missing = self.options.missing(running, joined, exited, waited);
            if joined == 0 {
                return Err(TransportError::NoAgents(missing));
            }
            let is_short = before_start && joined < self.options.wanted_at_start();
            missing.begins_with = is_short.then_some(joined);
            running.missing_reported = true;
            running.reception.notice(missing.to_string());
            return Ok(None);
        }
        if joined > 0 {
            running.report_ended_launchers(self.options.launch.as_ref());
        }
        let next = clock::now() + CHECK_INTERVAL.min(self.options.join_timeout - waited);
        running.next_look = Some(next);
        Ok(running.next_look)
    }

    fn session_of(&mut self, rank: Rank) -> Option<SessionId> {
        let index = (rank.0 as usize).checked_sub(1)?;
        if let Some(session) = self.sessions.get(index).filter(|session| **session != 0) {
            return Some(*session);
        }
        let session = self.running.as_ref()?.reception.table().session_of(rank)?;
        if self.sessions.len() <= index {
            self.sessions.resize(index + 1, 0);
        }
        self.sessions[index] = session;
        Some(session)
    }

    /// Lets no more agents in, and lets those go that have joined since all others were told to end.
    fn dismiss_newcomers(&mut self) {
        let Some(running) = &self.running else {
            return;
        };
        running.reception.close();
        let last = running.reception.table().last_rank();
        for rank in self.addressed.saturating_add(1)..=last {
            // An agent that cannot be reached is found out by waiting for it.
            let _ = self.send(Rank(rank), ToWorker::Shutdown);
        }
    }

    fn note(&mut self, from: Rank, message: &ToMaster) {
        if matches!(message, ToMaster::Node(change) if *change != NodeChange::Leaving) {
            return;
        }
        let stored = match message {
            ToMaster::Finished(result) => result.stored_len(),
            _ => 0,
        };
        let len = stored.saturating_add(message.encoded_len() as u64);
        self.traffic.received = self.traffic.received.saturating_add(len);
        let Some(session) = self.session_of(from) else {
            return;
        };
        let reception = self.running.as_ref().map(|running| &running.reception);
        let frames = reception.map_or(1, |reception| reception.frames_of(from, message));
        *self.handled.entry(session).or_default() += frames;
    }

    /// Lets an agent join that is in memory. `None` before the run has begun.
    ///
    /// # Errors
    /// The agent is refused.
    pub fn join_in_memory(&self, hello: &AgentHello) -> Option<std::io::Result<(MemoryAgent, Vec<u8>)>> {
        let running = self.running.as_ref()?;
        let service: Arc<dyn Service> = Arc::clone(&running.reception) as _;
        let hello = messages::encode(hello);
        Some(MemoryAgent::join(running.server.hub(), &service, &hello))
    }
}

impl Membership for AgentMaster {
    fn begin(&mut self) -> Result<(), TransportError> {
        heap::keep_memory_of_messages();
        let path = endpoint_path(&self.options.dag);
        // A master that was killed leaves its endpoint, and agents that know it.
        let earlier = Endpoint::read(&path).ok();
        let epoch = earlier
            .as_ref()
            .map_or_else(first_epoch, |earlier| earlier.epoch.saturating_add(1));
        let port = earlier.as_ref().and_then(port).unwrap_or(0);
        let key = match earlier {
            Some(earlier) => earlier.key,
            None => RunKey::generate().map_err(pmc_link::ServerError::from)?,
        };
        let roster = Roster::open(&roster_path(&self.options.dag), epoch);
        let roster = roster.map_err(TransportError::Roster)?;
        let rules = Rules {
            welcome: AgentWelcome {
                first_rank: 0,
                slots: self.options.slots,
                master_timeout: self.options.master_timeout,
                drain_grace: self.options.drain_grace,
                verbosity: self.options.verbosity,
                settings: self.options.settings.clone(),
            },
            starts_all: matches!(self.options.launch, Some(Launch::Once { .. })),
        };
        let combiner = Arc::clone(&self.combiner);
        let folder = folder(&self.options.dag);
        let mut reception = None;
        let listen = self.options.listen_at();
        let server = Server::start(&key, (&listen, port), epoch, self.options.timing, |hub| {
            let made = Arc::new(Reception::new(
                Arc::clone(hub),
                combiner,
                rules,
                epoch,
                roster,
                folder,
            ));
            reception = Some(Arc::clone(&made));
            made
        })?;
        let reception = reception.ok_or(TransportError::MasterEnded)?;
        let endpoint = Endpoint {
            addresses: launcher::addresses(&listen, server.port()),
            epoch,
            lease: self.options.timing.lease,
            key,
        };
        endpoint.write(&path)?;
        let mut running = Running {
            server,
            reception,
            launcher: None,
            endpoint: path,
            begun: clock::now(),
            missing_reported: false,
            next_look: None,
            reported: BTreeSet::new(),
            comebacks: Comebacks::default(),
        };
        if self.options.launch.is_none() {
            tracing::info!("{}", self.options.invitation(&running.endpoint));
        }
        if let Some(launch) = &self.options.launch {
            let earlier = EarlierAgents {
                any: running.reception.awaited() > 0,
                numbers: running.reception.awaited_numbers(),
            };
            let options = &self.options.launch_options;
            let launcher = Launcher::start(launch, options, &earlier, &running.endpoint, endpoint);
            if launcher.is_err() && !earlier.any {
                // No agent is there, and none comes.
                let _ = std::fs::remove_file(&running.endpoint);
                running.reception.end();
            }
            running.launcher = Some(launcher?);
        }
        self.running = Some(running);
        Ok(())
    }

    fn may_start(&self, registered: u32) -> bool {
        let has_enough = |running: &Running| {
            let present = running.reception.table().present().count();
            present >= self.options.wanted_at_start() || (present > 0 && !self.awaits_workers())
        };
        self.running.as_ref().is_some_and(has_enough) && self.all_have_come(registered)
    }

    fn all_have_come(&self, registered: u32) -> bool {
        self.running.as_ref().is_none_or(|running| {
            let table = running.reception.table();
            let slots: usize = table.present().map(|agent| agent.ranks.len()).sum();
            let awaits_earlier = !is_planted(Planted::NoWaitForEarlier)
                && running.reception.awaits_earlier()
                && !running.is_late(self.options.timing);
            (registered as usize >= slots || is_planted(Planted::EarlyAgents)) && !awaits_earlier
        })
    }

    fn gone_hosts(&self) -> Vec<String> {
        let running = self.running.as_ref();
        running.map_or_else(Vec::new, |running| running.reception.table().gone_hosts())
    }

    fn notices(&mut self) -> Vec<String> {
        let Some(running) = &self.running else {
            return Vec::new();
        };
        running.reception.take_notices()
    }

    fn dismiss(&mut self, worker: Rank, reason: &str) -> bool {
        let session = self.session_of(worker);
        let dismissed = self.running.as_ref().zip(session);
        if let Some((running, session)) = dismissed {
            running.reception.dismiss(session, reason);
        }
        dismissed.is_some()
    }

    fn until_lost(&mut self, worker: Rank) -> Option<Duration> {
        let session = self.session_of(worker)?;
        self.running.as_ref()?.server.hub().until_lost(session)
    }

    fn check(&mut self) -> Result<Option<Instant>, TransportError> {
        let awaited = self.check_awaited()?;
        let Some(running) = &mut self.running else {
            return Ok(awaited);
        };
        let again = running.start_again(self.options.launch.as_ref());
        // What is heard of an agent changes its patience.
        let doubts = running.reception.has_doubts();
        let doubts = doubts.then(|| clock::now() + CHECK_INTERVAL);
        Ok(awaited.into_iter().chain(again).chain(doubts).min())
    }

    fn release(&mut self, worker: Rank) {
        let session = self.session_of(worker);
        if let Some((running, session)) = self.running.as_ref().zip(session) {
            running.reception.table().let_go(session);
        }
    }

    fn awaits_workers(&self) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|running| {
            let joined = running.joined(self.addressed == 0) + running.reported.len();
            joined < self.options.agents as usize && !running.missing_reported
        })
    }

    fn patience(&self, registered: u32) -> Duration {
        let Some(running) = &self.running else {
            return Duration::ZERO;
        };
        // One that does not answer may be gone, and its host may have another one by now.
        let all_present = running.reception.answering() >= self.options.agents as usize;
        let table = running.reception.table();
        let slots: usize = table.present().map(|agent| agent.ranks.len()).sum();
        // An agent joins before its workers register.
        if all_present && (registered as usize >= slots || is_planted(Planted::EarlyAgents)) {
            Duration::ZERO
        } else {
            self.options.join_timeout
        }
    }

    fn settle(&mut self) {
        if let Some(running) = &self.running {
            for (session, messages) in self.handled.drain() {
                running.server.hub().settle(session, messages);
            }
        }
    }
}

impl MasterTransport for AgentMaster {
    fn workers(&self) -> u32 {
        let joined = self
            .running
            .as_ref()
            .map_or(0, |running| running.reception.table().last_rank());
        joined.max(self.options.agents * self.options.slots)
    }

    fn membership(&self) -> Option<&dyn Membership> {
        Some(self)
    }

    fn membership_mut(&mut self) -> Option<&mut dyn Membership> {
        Some(self)
    }

    fn send(&mut self, to: Rank, message: ToWorker) -> Result<(), TransportError> {
        self.addressed = self.addressed.max(to.0);
        let session = self.session_of(to);
        let Some((running, session)) = self.running.as_ref().zip(session) else {
            // A slot that never came, at the end of the run.
            return Ok(());
        };
        let body = messages::address(to, |body| message.encode(body));
        self.traffic.sent += body.len() as u64;
        running.server.hub().send(session, body);
        Ok(())
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<(Rank, ToMaster)>, TransportError> {
        let received = self.combiner.receive(timeout);
        if let Some((from, message)) = &received {
            self.note(*from, message);
        }
        Ok(received)
    }

    fn supports_prefill(&self) -> bool {
        true
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn close(&mut self, timeout: Duration) -> Vec<Rank> {
        let end = clock::now() + timeout;
        self.dismiss_newcomers();
        let Some(running) = &mut self.running else {
            return Vec::new();
        };
        let silent = running.reception.wait_gone(timeout);
        if let Some(launcher) = &mut running.launcher {
            launcher.end(end.saturating_duration_since(clock::now()));
        }
        // Those of an earlier master that have not come back may run tasks: the next master must know of
        // them.
        let may_be_left = running.reception.awaits_earlier() && !running.is_late(self.options.timing);
        if silent.is_empty() && !may_be_left {
            running.reception.end();
        }
        let _ = std::fs::remove_file(&running.endpoint);
        silent
    }
}

impl CombiningTransport for AgentMaster {
    fn combiner(&self) -> Arc<Combiner> {
        Arc::clone(&self.combiner)
    }

    fn note_received(&mut self, from: Rank, message: &ToMaster) {
        self.note(from, message);
    }
}
