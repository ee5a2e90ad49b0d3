//! Gangs of which this host is the lead or a member: who may run commands here, and where processes of this
//! host may run commands.
//!
//! A slot that takes part in a gang has a token. Processes show it when they call ([`pmc_wire::command`]),
//! and agents of other hosts when they pass the command on. A member knows nothing of the other hosts until
//! the first command comes: the lead sends all that there is to know before it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::{Pid, getpgid};
use pmc_link::{Callers, Calls, Commands, Handle, OpenSocket, Route, Running};
use pmc_wire::command::{Call, sockets};
use pmc_wire::peers;
use serde::{Deserialize, Serialize};

use super::peers::Peers;
use crate::host;
use crate::options::WorkerOptions;
use crate::protocol::{Assignment, GangHost, GangToken, Membership, Part, Rank, SubmitId};
use crate::transport::agents::messages;
use crate::worker::{self, GangCommand};

/// Maximum commands of a gang that run on a host at a time.
const MAX_COMMANDS: usize = 1 << 10;

/// Maximum time for killed commands to be gone.
const END_TIMEOUT: Duration = Duration::from_secs(5);

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What all hosts of a gang know of it once a command has come to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Context {
    /// All hosts, the lead first.
    hosts: Vec<GangHost>,
    /// Environment of the attempt on the lead.
    environment: Vec<Environment>,
    /// Directory of the attempt.
    directory: PathBuf,
}

/// `NAME=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Environment(#[serde(with = "serde_bytes")] Vec<u8>);

/// A gang on this host.
struct Gang {
    submit: SubmitId,
    is_lead: bool,
    part: Part,
    /// Rank of the slot, and its number on the host.
    slot: (Rank, u32),
    /// Numbers of the CPUs of the part on this host.
    cpus: Vec<u32>,
    /// `None` on a member to which no command has come yet.
    known: Option<Known>,
    /// Process groups of its commands.
    groups: BTreeSet<i32>,
    /// The network has cut a connection.
    is_cut: bool,
    /// No more commands start.
    is_ending: bool,
    /// Where processes of this host call.
    _socket: Option<OpenSocket>,
}

struct Known {
    context: Context,
    /// The same, for other hosts.
    encoded: Arc<Vec<u8>>,
    /// Environment of commands on this host.
    environment: Arc<Vec<Vec<u8>>>,
}

/// What makes a host a member of gangs.
pub(super) trait Members: fmt::Debug + Send + Sync {
    /// Becomes a member of a gang. Returns where commands for it are taken.
    ///
    /// # Errors
    /// It cannot: why, as a sentence for the user.
    fn join(&self, membership: &Membership, slot: (Rank, u32)) -> Result<Vec<String>, String>;

    /// Ends what a gang has on this host, of which it is a member. `None` if it is not, or not any more.
    fn leave(&self, submit: SubmitId) -> Option<Leftover>;

    /// Ends all gangs of which this host is a member.
    fn leave_all(&self);

    /// The process groups of a gang of which this host is a member.
    fn groups(&self, submit: SubmitId) -> Vec<Pid>;
}

/// What a member has left of a gang.
#[derive(Default)]
pub(super) struct Leftover {
    /// The network has cut a connection.
    pub(super) is_cut: bool,
    /// Programs that were killed.
    pub(super) killed: Vec<String>,
}

/// The gangs of this host.
struct Gangs {
    peers: Arc<Peers>,
    options: WorkerOptions,
    all: Mutex<BTreeMap<GangToken, Gang>>,
    /// The agent ends: this host becomes no member any more.
    is_closed: AtomicBool,
}

/// The gangs of an agent.
pub(super) struct Channels {
    gangs: Arc<Gangs>,
    callers: Callers,
}

impl fmt::Debug for Channels {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Channels").finish_non_exhaustive()
    }
}

/// What the threads of the connections have of the gangs.
struct Door(Weak<Gangs>);

impl Channels {
    /// Prepares an agent with these options of its workers.
    ///
    /// # Errors
    /// The system has no thread.
    pub(super) fn start(peers: &Arc<Peers>, options: &WorkerOptions) -> io::Result<Arc<Self>> {
        let gangs = Arc::new(Gangs {
            peers: Arc::clone(peers),
            options: options.clone(),
            all: Mutex::default(),
            is_closed: AtomicBool::new(false),
        });
        let callers = Callers::start(peers.key(), Box::new(Door(Arc::downgrade(&gangs))))?;
        peers.serve(Arc::new(Door(Arc::downgrade(&gangs))));
        Ok(Arc::new(Self { gangs, callers }))
    }

    /// Listens for processes of a gang. Another agent of this machine may do so already.
    fn listen(&self, name: &str) -> Option<OpenSocket> {
        let socket = peers::listen(name).and_then(|socket| self.callers.open(socket));
        socket
            .inspect_err(|error| tracing::debug!("Processes cannot call at {name}: {error}"))
            .ok()
    }
}

impl Members for Channels {
    fn join(&self, membership: &Membership, slot: (Rank, u32)) -> Result<Vec<String>, String> {
        let addresses = self.gangs.peers.addresses();
        if addresses.is_empty() {
            return Err("it cannot listen for other hosts".to_owned());
        }
        let [_, name] = sockets(&membership.token.to_string());
        let part = membership.part.clone();
        let gang = Gang {
            submit: membership.submit,
            is_lead: false,
            cpus: host::real_cpus(&part.cpu_set).unwrap_or_default(),
            part,
            slot,
            known: None,
            groups: BTreeSet::new(),
            is_cut: false,
            is_ending: false,
            _socket: self.listen(&name),
        };
        let mut all = self.gangs.lock();
        if self.gangs.is_closed.load(Ordering::Acquire) {
            return Err("its agent ends".to_owned());
        }
        all.insert(membership.token, gang);
        Ok(addresses)
    }

    fn leave(&self, submit: SubmitId) -> Option<Leftover> {
        let token = self.gangs.token_of(submit)?;
        self.gangs.end(token, Some(END_TIMEOUT))
    }

    fn groups(&self, submit: SubmitId) -> Vec<Pid> {
        let all = self.gangs.lock();
        let found = all.values().find(|gang| gang.submit == submit && !gang.is_lead);
        let groups = found.into_iter().flat_map(|gang| &gang.groups);
        groups.copied().map(Pid::from_raw).collect()
    }

    fn leave_all(&self) {
        self.gangs.is_closed.store(true, Ordering::Release);
        let members: Vec<GangToken> = {
            let all = self.gangs.lock();
            let members = all.iter().filter(|(_, gang)| !gang.is_lead);
            members.map(|(token, _)| *token).collect()
        };
        for token in members {
            self.gangs.end(token, None);
        }
    }
}

impl crate::channels::Channels for Channels {
    fn open(&self, lead: &Assignment, environment: Vec<Vec<u8>>, directory: &Path) {
        let Some(gang) = &lead.gang else { return };
        let mut hosts = gang.hosts.clone();
        if let Some(own) = hosts.first_mut() {
            own.addresses = self.gangs.peers.addresses();
        }
        let environment = environment.into_iter().map(Environment).collect();
        let context = Context {
            hosts,
            environment,
            directory: directory.to_owned(),
        };
        let encoded = Arc::new(messages::encode(&context));
        let [name, _] = sockets(&gang.token.to_string());
        let of_this_host = context.environment.iter().map(|variable| variable.0.clone());
        let gang_here = Gang {
            submit: lead.submit,
            is_lead: true,
            part: Part {
                memory_mb: lead.memory_mb,
                ..Part::default()
            },
            slot: (Rank(0), 0),
            // The worker has translated the numbers.
            cpus: lead.cpu_set.clone(),
            known: Some(Known {
                environment: Arc::new(of_this_host.collect()),
                context,
                encoded,
            }),
            groups: BTreeSet::new(),
            is_cut: false,
            is_ending: false,
            _socket: self.listen(&name),
        };
        self.gangs.lock().insert(gang.token, gang_here);
    }

    fn close(&self, token: GangToken) -> bool {
        let left = self.gangs.end(token, Some(END_TIMEOUT));
        left.is_some_and(|left| left.is_cut)
    }
}

impl Gangs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<GangToken, Gang>> {
        // The state is valid at every moment, even if a thread panicked.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token of a gang of which this host is a member.
    fn token_of(&self, submit: SubmitId) -> Option<GangToken> {
        let all = self.lock();
        let found = all
            .iter()
            .find(|(_, gang)| gang.submit == submit && !gang.is_lead);
        found.map(|(token, _)| *token)
    }

    /// Ends all processes of a gang on this host, and forgets it. Waits for its commands, at most `limit`.
    fn end(&self, token: GangToken, limit: Option<Duration>) -> Option<Leftover> {
        let is_lead = {
            let mut all = self.lock();
            let gang = all.get_mut(&token)?;
            gang.is_ending = true;
            gang.signal(Signal::SIGTERM);
            gang.is_lead
        };
        // The worker of the lead looks for all that its attempt has left.
        let killed = match is_lead {
            true => Vec::new(),
            false => worker::end_gang(&self.options.environment, token),
        };
        let until = limit.map(|limit| Instant::now() + limit);
        while self.lock().get(&token).is_some_and(Gang::has_commands)
            && until.is_none_or(|until| Instant::now() < until)
        {
            if let Some(gang) = self.lock().get(&token) {
                gang.signal(Signal::SIGKILL);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let gang = self.lock().remove(&token)?;
        Some(Leftover {
            is_cut: gang.is_cut,
            killed,
        })
    }

    fn note_cut(&self, token: GangToken) {
        if let Some(gang) = self.lock().get_mut(&token).filter(|gang| !gang.is_ending) {
            gang.is_cut = true;
        }
    }

    /// Starts a command that came from another host.
    fn start(self: &Arc<Self>, token: GangToken, call: &Call) -> Result<Running, String> {
        let mut all = self.lock();
        let gang = all.get_mut(&token).filter(|gang| !gang.is_ending);
        let gang = gang.ok_or_else(|| "the task has ended".to_owned())?;
        if gang.groups.len() >= MAX_COMMANDS {
            return Err(format!("{MAX_COMMANDS} commands of the task run there already"));
        }
        let known = gang.known.as_ref().ok_or("nothing is known of its hosts")?;
        let command = GangCommand {
            command: &call.command,
            environment: &known.environment,
            directory: &known.context.directory,
            cpus: &gang.cpus,
            memory_mb: gang.part.memory_mb,
            no_input: call.no_input,
        };
        let started = worker::start_command(&self.options, &command);
        let started = started.map_err(|error| {
            let directory = known.context.directory.display();
            format!(
                "the command cannot be started in {directory}: {}",
                pmc_dag::reason(&error)
            )
        })?;
        gang.groups.insert(started.pid.as_raw());
        Ok(Running {
            input: started.input,
            output: started.output,
            process: started.process,
            handle: Box::new(CommandHandle {
                gangs: Arc::clone(self),
                token,
                pid: started.pid,
                has_ended: false,
            }),
        })
    }
}

impl Gang {
    fn signal(&self, signal: Signal) {
        for group in &self.groups {
            signal_command(Pid::from_raw(*group), signal);
        }
    }

    /// True if a command runs. One that has ended may wait until its output is taken.
    fn has_commands(&self) -> bool {
        self.groups.iter().any(|leader| {
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
            waitid(Id::Pid(Pid::from_raw(*leader)), flags) == Ok(WaitStatus::StillAlive)
        })
    }

    /// Returns the host with this name. Launchers may shorten names.
    fn host(&self, name: &str) -> Result<&GangHost, String> {
        let Some(known) = &self.known else {
            return Err("this host knows no others of the task until a command of them has come".to_owned());
        };
        let hosts = &known.context.hosts;
        let is_same = |host: &&GangHost| {
            let (own, wanted) = (host.name.as_str(), name);
            own == wanted || first_label(own) == wanted || own == first_label(wanted)
        };
        hosts.iter().find(is_same).ok_or_else(|| {
            let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
            format!(
                "{name} is no host of this task: it has {}",
                pmc_hosts::compress(&names)
            )
        })
    }
}

/// Name of a host without its domain.
fn first_label(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// A command on this host.
struct CommandHandle {
    gangs: Arc<Gangs>,
    token: GangToken,
    pid: Pid,
    has_ended: bool,
}

impl Handle for CommandHandle {
    fn signal(&self, signal: i32) {
        if let Ok(signal) = Signal::try_from(signal) {
            signal_command(self.pid, signal);
        }
    }

    fn end(&mut self) -> Option<i32> {
        // Nobody signals the group once its number may be that of another one.
        let mut all = self.gangs.lock();
        let status = wait_status(self.pid)?;
        self.has_ended = true;
        if let Some(gang) = all.get_mut(&self.token) {
            gang.groups.remove(&self.pid.as_raw());
        }
        Some(status)
    }
}

impl Drop for CommandHandle {
    /// The server ends while the command runs.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        Handle::signal(self, libc::SIGKILL);
        // It may take long to end, and the server must not wait. Its group keeps its number until then.
        let (gangs, token, pid) = (Arc::clone(&self.gangs), self.token, self.pid);
        let mut handle = Self {
            gangs,
            token,
            pid,
            has_ended: true,
        };
        let reap = move || {
            while handle.end().is_none() {
                std::thread::sleep(POLL_INTERVAL);
            }
        };
        if let Err(error) = std::thread::Builder::new().name("reaper".to_owned()).spawn(reap) {
            tracing::debug!("A command is not reaped: {}", pmc_dag::reason(&error));
        }
    }
}

/// Signals the group of a command that is not reaped yet, so that no other group has the number.
fn signal_command(pid: Pid, signal: Signal) {
    let _ = killpg(pid, signal);
    // Its leader can have gone to another group of the session.
    if getpgid(Some(pid)).is_ok_and(|group| group != pid) {
        let _ = kill(pid, signal);
    }
}

/// Reaps a process if it has ended, and returns its wait status.
fn wait_status(pid: Pid) -> Option<i32> {
    loop {
        return match waitpid(pid, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => Some(code << 8),
            Ok(WaitStatus::Signaled(_, signal, _)) => Some(signal as i32),
            Err(nix::errno::Errno::EINTR) => continue,
            Ok(_) => None,
            Err(_) => Some(crate::protocol::EXECUTOR_FAILURE),
        };
    }
}

impl Door {
    fn gangs(&self) -> Result<Arc<Gangs>, String> {
        self.0.upgrade().ok_or_else(|| "the agent ends".to_owned())
    }
}

impl Calls for Door {
    fn route(&self, call: &Call) -> Result<Route, String> {
        let gangs = self.gangs()?;
        let all = gangs.lock();
        let token = call.token.parse::<GangToken>().ok();
        let gang = token.and_then(|token| Some((token, all.get(&token)?)));
        let (token, gang) = gang.ok_or("its token is that of no task on this host")?;
        if gang.is_ending {
            return Err("the task ends".to_owned());
        }
        let host = gang.host(&call.host)?;
        let context = gang.known.as_ref().map(|known| Arc::clone(&known.encoded));
        Ok(Route {
            addresses: host.addresses.clone(),
            gang: token.0,
            context: context.unwrap_or_default(),
        })
    }

    fn cut(&self, gang: pmc_link::Gang) {
        if let Ok(gangs) = self.gangs() {
            gangs.note_cut(GangToken(gang));
        }
    }
}

impl Commands for Door {
    fn knows(&self, gang: pmc_link::Gang) -> Result<bool, String> {
        let gangs = self.gangs()?;
        let all = gangs.lock();
        match all.get(&GangToken(gang)) {
            Some(gang) if !gang.is_ending => Ok(gang.known.is_some()),
            Some(_) => Err("the task ends there".to_owned()),
            None => Err("its agent takes no part in the task".to_owned()),
        }
    }

    fn learn(&self, gang: pmc_link::Gang, context: &[u8]) -> Result<(), String> {
        let gangs = self.gangs()?;
        let decoded: Option<Context> = messages::decode(context);
        let decoded = decoded.ok_or("what the other host says of the task makes no sense")?;
        let mut all = gangs.lock();
        let Some(gang) = all.get_mut(&GangToken(gang)).filter(|gang| gang.known.is_none()) else {
            // Two commands came at a time.
            return Ok(());
        };
        let of_lead: Vec<Vec<u8>> = decoded
            .environment
            .iter()
            .map(|variable| variable.0.clone())
            .collect();
        let environment = worker::member_environment(&gangs.options, &of_lead, &gang.part, gang.slot);
        gang.known = Some(Known {
            context: decoded,
            encoded: Arc::new(context.to_vec()),
            environment: Arc::new(environment),
        });
        Ok(())
    }

    fn start(&self, gang: pmc_link::Gang, call: &Call) -> Result<Running, String> {
        self.gangs()?.start(GangToken(gang), call)
    }

    fn cut(&self, gang: pmc_link::Gang) {
        Calls::cut(self, gang);
    }
}

#[cfg(feature = "simulated")]
pub(super) mod simulated;
#[cfg(test)]
mod tests;
