//! Starts agents: on this machine, or by a launcher of the cluster.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use pmc_batch::launch::{Launch, srun};
use pmc_batch::reach::ssh_words;
use pmc_calls::shell::always_quoted;
use pmc_link::{Endpoint, Listen};
use pmc_spawn::open_files;
use pmc_system::clock;

use crate::host;

/// Variable with the endpoint, for hosts that do not share its file.
pub const ENDPOINT_VARIABLE: &str = "PMC_ENDPOINT";

/// Variable with the number of an agent among those that the master starts.
pub const NUMBER_VARIABLE: &str = "PMC_AGENT_NUMBER";

/// Lines of a launcher that are shown when its agent does not come.
const LAST_LINES: usize = 3;

/// Maximum wait for the last words of a process that has ended.
const LAST_WORDS_TIMEOUT: Duration = Duration::from_millis(500);

/// Maximum bytes of such a line.
const MAX_LINE: u64 = 1 << 10;

/// A launcher cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// It does not start.
    #[error("Unable to start {program}: {}", pmc_dag::reason(.source))]
    Start {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The path of this program is unknown.
    #[error("Unable to find this program: {}", pmc_dag::reason(.0))]
    OwnPath(io::Error),
    /// A path has bytes that a launcher cannot pass on.
    #[error("The path {0} is not valid UTF-8, so agents cannot be started with it")]
    Path(String),
}

/// Which program agents are, and who sees what launchers say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchOptions {
    /// The program instead of the one of this process.
    pub program: Option<PathBuf>,
    /// Lines of launchers are only kept, and not passed on to standard error.
    pub quiet: bool,
}

/// Returns the addresses at which agents find the master's port.
pub(super) fn addresses(listen: &Listen, port: u16) -> Vec<String> {
    let numeric = |address: IpAddr| SocketAddr::new(address, port).to_string();
    if let Some(address) = listen.address.filter(|address| !address.is_unspecified()) {
        return vec![numeric(address)];
    }
    let mut addresses = vec![format!("{}:{port}", host::name())];
    // Not every cluster knows the names of its hosts.
    let interfaces = getifaddrs().into_iter().flatten();
    let numbers = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| address.ip());
        let v4 = v4.filter(|address| !address.is_link_local()).map(IpAddr::from);
        let v6 = address.as_sockaddr_in6().map(|address| address.ip());
        let v6 = v6.filter(|address| !address.is_unicast_link_local());
        v4.or(v6.map(IpAddr::from))
            .filter(|address| !address.is_loopback())
    });
    // Those of IPv4 first: they may be all that agents can reach.
    let mut numbers: Vec<IpAddr> = numbers.collect();
    numbers.sort_by_key(IpAddr::is_ipv6);
    addresses.extend(numbers.into_iter().map(numeric));
    addresses
}

/// What becomes of the lines that a launcher prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lines {
    /// It prints where this process does.
    Inherited,
    /// The last ones are kept; `quiet`: they are not shown.
    Kept { quiet: bool },
}

/// A launcher, or an agent of this machine.
struct Process {
    child: Child,
    lines: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<JoinHandle<()>>,
    ended_at: Option<Instant>,
}

/// The launchers and agents that were started. Dropping it kills those that are left.
pub struct Launcher {
    launch: Launch,
    /// Path of the program on other hosts.
    program: PathBuf,
    /// It is the program of this process.
    is_own: bool,
    /// Path of the endpoint file.
    path: PathBuf,
    endpoint: Endpoint,
    /// By number of the agent; 0 for one that starts all.
    processes: BTreeMap<u32, Process>,
    /// Numbers of agents that were not started, because they may be there.
    skipped: BTreeSet<u32>,
    quiet: bool,
}

/// Agents that an earlier master has started, and that may come back.
#[derive(Debug, Default)]
pub(super) struct EarlierAgents {
    /// Whether there are any.
    pub(super) any: bool,
    /// Numbers of those that have one.
    pub(super) numbers: BTreeSet<u32>,
}

impl Launcher {
    /// Starts agents, except for those that may be there. One launcher that starts all waits for those, too.
    ///
    /// # Errors
    /// A process does not start. Those that did are killed.
    pub(super) fn start(
        launch: &Launch,
        options: &LaunchOptions,
        earlier: &EarlierAgents,
        path: &Path,
        endpoint: Endpoint,
    ) -> Result<Self, LaunchError> {
        let program = match &options.program {
            Some(program) => program.clone(),
            None => host::own_path().map_err(LaunchError::OwnPath)?,
        };
        let path = std::path::absolute(path).map_err(LaunchError::OwnPath)?;
        let mut launcher = Self {
            launch: launch.clone(),
            program,
            is_own: options.program.is_none(),
            path,
            endpoint,
            processes: BTreeMap::new(),
            skipped: BTreeSet::new(),
            quiet: options.quiet,
        };
        let agents = match launch {
            Launch::Local { agents } => *agents,
            Launch::Ssh { hosts } | Launch::Rsh { hosts } | Launch::Each { hosts, .. } => {
                u32::try_from(hosts.len()).unwrap_or(u32::MAX)
            }
            Launch::Once { .. } => 1,
        };
        let may_be_there = |number| match launch {
            Launch::Once { .. } => earlier.any,
            _ => earlier.numbers.contains(&number),
        };
        for number in 0..agents {
            if may_be_there(number) {
                launcher.skipped.insert(number);
            } else {
                launcher.start_one(number, launcher.quiet)?;
            }
        }
        Ok(launcher)
    }

    /// Returns whether agents were not started because they may be there.
    pub(super) fn has_skipped(&self) -> bool {
        !self.skipped.is_empty()
    }

    /// Starts those of the agents that were not started at first, and that are not there.
    ///
    /// # Errors
    /// A process does not start.
    pub(super) fn start_skipped(&mut self, is_there: impl Fn(u32) -> bool) -> Result<(), LaunchError> {
        for number in std::mem::take(&mut self.skipped) {
            if !is_there(number) {
                self.start_one(number, self.quiet)?;
            }
        }
        Ok(())
    }

    /// Returns whether the agent of this number was not started, because it may be there.
    pub(super) fn is_skipped(&self, number: u32) -> bool {
        self.skipped.contains(&number)
    }

    /// Starts the agent of a host again that has gone, without repeating what its launcher says: the host may
    /// be off for hours. What has started the agent before ends.
    ///
    /// # Errors
    /// The launcher does not start.
    pub(super) fn start_again(&mut self, number: u32) -> Result<(), LaunchError> {
        if let Some(mut process) = self.processes.remove(&number)
            && !process.has_exited()
        {
            // The connection to a host that was switched off may stay open for hours.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
        self.start_one(number, true)
    }

    fn start_one(&mut self, number: u32, quiet: bool) -> Result<(), LaunchError> {
        let agent = [
            self.program.as_os_str(),
            OsStr::new("--agent"),
            self.path.as_os_str(),
        ];
        let host = self
            .launch
            .hosts()
            .get(number as usize)
            .map_or("", String::as_str);
        match &self.launch {
            Launch::Local { .. } => {
                // The file of this process may have been replaced meanwhile.
                let program = match self.is_own {
                    true => OsStr::new(host::OWN_PROGRAM),
                    false => self.program.as_os_str(),
                };
                let mut command = Command::new(program);
                command.arg0(&self.program);
                command.args(&agent[1..]).stdin(Stdio::null());
                command
                    .stdout(Stdio::null())
                    .env(NUMBER_VARIABLE, number.to_string());
                self.spawn(number, command, Lines::Inherited)
            }
            Launch::Ssh { .. } => {
                let mut words = ssh_words(host);
                let mut command = Command::new(words.remove(0));
                command.args(words).arg(remote(&agent, number, "")?);
                // The key of the run must not be on a command line, which others see.
                self.feed(number, command, quiet)
            }
            Launch::Rsh { .. } => {
                let mut command = Command::new(host::rsh_program());
                command.arg(host).arg(remote(&agent, number, PART)?);
                self.feed(number, command, quiet)
            }
            Launch::Each { words, .. } => {
                let words: Vec<String> = words.iter().map(|word| word.replace("{host}", host)).collect();
                let mut command = custom(&words, &agent, &self.endpoint);
                command.env(NUMBER_VARIABLE, number.to_string());
                self.spawn(number, command, Lines::Kept { quiet })
            }
            Launch::Once { words } => {
                let command = custom(words, &agent, &self.endpoint);
                self.spawn(number, command, Lines::Kept { quiet })
            }
        }
    }

    /// Starts a process and gives it the endpoint.
    fn feed(&mut self, number: u32, mut command: Command, quiet: bool) -> Result<(), LaunchError> {
        command.stdin(Stdio::piped());
        self.spawn(number, command, Lines::Kept { quiet })?;
        let line = self.endpoint.to_value();
        let stdin = self
            .processes
            .get_mut(&number)
            .and_then(|process| process.child.stdin.take());
        if let Some(mut stdin) = stdin {
            // A launcher that has ended already is reported with its last words. The line fits into the pipe.
            let _ = stdin
                .write_all(line.as_bytes())
                .and_then(|()| stdin.write_all(b"\n"));
        }
        Ok(())
    }

    fn spawn(&mut self, number: u32, mut command: Command, lines: Lines) -> Result<(), LaunchError> {
        // Signals from the terminal are for the master.
        command.process_group(0);
        if let Lines::Kept { .. } = lines {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        open_files::restore_in(&mut command);
        let mut child = command.spawn().map_err(|source| LaunchError::Start {
            program: command.get_program().display().to_string(),
            source,
        })?;
        let quiet = lines == Lines::Kept { quiet: true };
        let lines = Arc::new(Mutex::default());
        let stdout = child.stdout.take().map(|pipe| read(pipe, &lines, quiet));
        let stderr = child.stderr.take().map(|pipe| read(pipe, &lines, quiet));
        let readers = stdout.into_iter().chain(stderr).flatten().collect();
        let process = Process {
            child,
            lines,
            readers,
            ended_at: None,
        };
        self.processes.insert(number, process);
        Ok(())
    }

    /// True if all processes have ended.
    pub(super) fn all_have_exited(&mut self) -> bool {
        self.processes.values_mut().all(Process::has_exited)
    }

    /// True if this process has ended.
    pub(super) fn has_exited(&mut self, number: usize) -> bool {
        let process = u32::try_from(number)
            .ok()
            .and_then(|number| self.processes.get_mut(&number));
        process.is_some_and(Process::has_exited)
    }

    /// What the launcher of this agent said last, or all of them without a number.
    pub(super) fn last_words(&self, number: Option<usize>) -> String {
        let is_meant = |process: &u32| number.is_none_or(|number| number == *process as usize);
        let mut words = Vec::new();
        for (_, process) in self.processes.iter().filter(|(number, _)| is_meant(number)) {
            let lines = process.lines.lock().unwrap_or_else(PoisonError::into_inner);
            words.extend(lines.iter().cloned());
        }
        words.join(" | ")
    }

    /// Waits for the end of all processes, at most `timeout`, and kills the rest.
    pub(super) fn end(&mut self, timeout: Duration) {
        let end = clock::now() + timeout;
        while !self.all_have_exited() && clock::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill();
    }

    fn kill(&mut self) {
        for mut process in std::mem::take(&mut self.processes).into_values() {
            if !process.has_exited() {
                let _ = process.child.kill();
                let _ = process.child.wait();
                // Its children may hold the pipes open.
                continue;
            }
            for reader in process.readers {
                if reader.is_finished() {
                    // Its panic was printed.
                    let _ = reader.join();
                }
            }
        }
    }
}

impl Process {
    fn has_exited(&mut self) -> bool {
        if matches!(self.child.try_wait(), Ok(None)) {
            return false;
        }
        let ended_at = *self.ended_at.get_or_insert_with(clock::now);
        // What it has left in the background may keep the pipe open.
        self.readers.iter().all(JoinHandle::is_finished) || clock::elapsed(ended_at) > LAST_WORDS_TIMEOUT
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Passes lines on to standard error unless `quiet`, and keeps the last ones. `None` if the system refuses a
/// thread.
fn read(
    pipe: impl Read + Send + 'static,
    kept: &Arc<Mutex<VecDeque<String>>>,
    quiet: bool,
) -> Option<JoinHandle<()>> {
    let kept = Arc::clone(kept);
    let mut pipe = BufReader::new(pipe);
    let read = move || {
        let mut line = Vec::new();
        while let Ok(1..) = pipe.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            if !quiet {
                let _ = io::stderr().write_all(&line);
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if !text.is_empty() {
                kept.push_back(text);
            }
            let old = kept.len().saturating_sub(LAST_LINES);
            kept.drain(..old);
            line.clear();
        }
    };
    std::thread::Builder::new()
        .name("launcher".to_owned())
        .spawn(read)
        .ok()
}

/// A command of the user, or of a cluster. Its processes inherit the endpoint, which others cannot see.
fn custom(words: &[String], agent: &[&OsStr], endpoint: &Endpoint) -> Command {
    let mut words = words
        .iter()
        .map(OsString::from)
        .chain(agent.iter().map(OsString::from));
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(&program);
    if Path::new(&program).file_name() == Some(srun::PROGRAM.as_ref()) {
        // Only its command line counts.
        let options = std::env::vars_os().filter(|(name, _)| srun::is_option(name));
        options.for_each(|(name, _)| {
            command.env_remove(name);
        });
    }
    command.args(words).stdin(Stdio::null());
    command.env(ENDPOINT_VARIABLE, endpoint.to_value());
    command
}

/// What the shell of another host of a gang sets for an agent: it has the CPUs and the memory of its part.
const PART: &str = " PMC_HOST_CPUS=\"${PMC_CPUS:-0}\" PMC_HOST_MEMORY=\"${PMC_MEMORY:-0}\"";

/// Returns a line for the shell of another host. The shell reads the endpoint from its standard input, and
/// sets more variables.
fn remote(agent: &[&OsStr], number: u32, variables: &str) -> Result<String, LaunchError> {
    let mut line = format!("read -r {ENDPOINT_VARIABLE}; export {ENDPOINT_VARIABLE}; ");
    line += &format!("exec env {NUMBER_VARIABLE}={number}{variables}");
    for word in agent {
        let text = word.to_str();
        let text = text.ok_or_else(|| LaunchError::Path(word.to_string_lossy().into_owned()))?;
        line += &format!(" {}", always_quoted(text));
    }
    line += " </dev/null";
    Ok(format!("/bin/sh -c {}", always_quoted(&line)))
}

#[cfg(test)]
mod tests;
