//! Starts agents: on this machine, or by a launcher of the cluster.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::ifaddrs::getifaddrs;
use pmc_link::Endpoint;

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

/// How agents are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// As processes of this machine.
    Local {
        /// Number of agents.
        agents: u32,
    },
    /// By ssh, one on each host.
    Ssh {
        /// The hosts.
        hosts: Vec<String>,
    },
    /// By a command for each host. The word `{host}` stands for its name; the command of the agent follows.
    Each {
        /// The words.
        words: Vec<String>,
        /// The hosts.
        hosts: Vec<String>,
    },
    /// By one command, which the command of the agent follows.
    Once {
        /// The words.
        words: Vec<String>,
    },
}

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
    /// Hosts are needed.
    #[error("--launch {0} needs names of hosts: --agents HOST,HOST")]
    NeedsHosts(String),
}

/// Names of hosts that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostsError {
    /// One of them is no name.
    #[error("{0:?} is no name of a host")]
    Name(String),
    /// An agent has all slots of its host.
    #[error("it names the host {0} twice")]
    Twice(String),
}

/// Reads names of hosts with commas between them.
///
/// # Errors
/// One of them is no name, or there twice.
pub fn parse_hosts(text: &str) -> Result<Vec<String>, HostsError> {
    let hosts: Vec<String> = text.split(',').map(|host| host.trim().to_owned()).collect();
    let mut seen = BTreeSet::new();
    for host in &hosts {
        // A name that begins with a dash would be an option of the launcher.
        let is_name = !host.is_empty() && !host.starts_with('-');
        if !is_name || host.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(HostsError::Name(host.clone()));
        }
        if !seen.insert(host) {
            return Err(HostsError::Twice(host.clone()));
        }
    }
    Ok(hosts)
}

/// Which program agents are, and who sees what launchers say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchOptions {
    /// The program instead of the one of this process.
    pub program: Option<PathBuf>,
    /// Lines of launchers are only kept, and not passed on to standard error.
    pub quiet: bool,
}

impl Launch {
    /// Reads the value of `--launch`, with the number of agents and their hosts, if they are named.
    ///
    /// # Errors
    /// The launcher needs names of hosts.
    pub fn parse(how: &str, agents: u32, hosts: &[String]) -> Result<Self, LaunchError> {
        let list = hosts.join(",");
        let words = |text: &[&str]| Self::Once {
            words: text.iter().map(|word| (*word).to_owned()).collect(),
        };
        let count = agents.to_string();
        Ok(match how {
            "local" => Self::Local { agents },
            "ssh" if hosts.is_empty() => return Err(LaunchError::NeedsHosts(how.to_owned())),
            "ssh" => Self::Ssh {
                hosts: hosts.to_vec(),
            },
            // The step shares the nodes with the master, and outlives lost nodes.
            "srun" => {
                let nodes = format!("--nodes={count}");
                let tasks = format!("--ntasks={count}");
                let on = format!("--nodelist={list}");
                let mut all = vec![
                    "srun",
                    "--overlap",
                    "--no-kill",
                    "--kill-on-bad-exit=0",
                    "--mpi=none",
                ];
                all.extend(["--ntasks-per-node=1", &nodes, &tasks]);
                all.extend((!hosts.is_empty()).then_some(on.as_str()));
                words(&all)
            }
            "mpiexec" if hosts.is_empty() => words(&["mpiexec", "-n", &count]),
            "mpiexec" => words(&["mpiexec", "-n", &count, "-host", &list]),
            "flux" => words(&["flux", "run", "-N", &count, "-n", &count]),
            "pbsdsh" => words(&["pbsdsh", "-u", "--"]),
            "blaunch" if hosts.is_empty() => words(&["blaunch"]),
            "blaunch" => words(&["blaunch", "-z", &hosts.join(" ")]),
            command => {
                let words = command.split_whitespace();
                let words: Vec<String> = words.map(|word| word.replace("{agents}", &count)).collect();
                let for_each = words.iter().any(|word| word.contains("{host}"));
                if for_each && hosts.is_empty() {
                    return Err(LaunchError::NeedsHosts(how.to_owned()));
                }
                if for_each {
                    Self::Each {
                        words,
                        hosts: hosts.to_vec(),
                    }
                } else {
                    Self::Once { words }
                }
            }
        })
    }

    /// The hosts, by number of the agent, if the launcher tells agents their number.
    pub(super) fn hosts(&self) -> &[String] {
        match self {
            Self::Ssh { hosts } | Self::Each { hosts, .. } => hosts,
            Self::Local { .. } | Self::Once { .. } => &[],
        }
    }
}

/// Returns the addresses of the master's port, for agents that are started so.
pub(super) fn addresses(launch: Option<&Launch>, port: u16) -> Vec<String> {
    if let Some(Launch::Local { .. }) = launch {
        return vec![format!("127.0.0.1:{port}")];
    }
    let mut addresses = vec![format!("{}:{port}", crate::host::name())];
    // Not every cluster knows the names of its hosts.
    let interfaces = getifaddrs().into_iter().flatten();
    let numbers = interfaces.filter_map(|interface| {
        let address = interface.address?.as_sockaddr_in()?.ip();
        (!address.is_loopback() && !address.is_link_local()).then(|| format!("{address}:{port}"))
    });
    addresses.extend(numbers);
    addresses
}

/// A launcher, or an agent of this machine.
struct Process {
    child: Child,
    lines: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<JoinHandle<()>>,
    ended_at: Option<Instant>,
}

/// The launchers and agents that were started. Dropping it kills those that are left.
#[derive(Default)]
pub struct Launcher {
    processes: Vec<Process>,
    quiet: bool,
}

impl Launcher {
    /// Starts agents; the first ones, `skip`, are there.
    ///
    /// # Errors
    /// A process does not start. Those that did are killed.
    pub(super) fn start(
        launch: &Launch,
        options: &LaunchOptions,
        skip: usize,
        path: &Path,
        endpoint: &Endpoint,
    ) -> Result<Self, LaunchError> {
        let program = match &options.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(LaunchError::OwnPath)?,
        };
        let path = std::path::absolute(path).map_err(LaunchError::OwnPath)?;
        let agent = [program.as_os_str(), OsStr::new("--agent"), path.as_os_str()];
        let mut launcher = Self {
            processes: Vec::new(),
            quiet: options.quiet,
        };
        match launch {
            Launch::Local { agents } => {
                for number in skip..*agents as usize {
                    let mut command = Command::new(&program);
                    command.args(&agent[1..]).stdin(Stdio::null());
                    command
                        .stdout(Stdio::null())
                        .env(NUMBER_VARIABLE, number.to_string());
                    launcher.spawn(command, false)?;
                }
            }
            Launch::Ssh { hosts } => {
                for (number, host) in hosts.iter().enumerate() {
                    let mut command = Command::new("ssh");
                    // A host that is off must not hold back the message about it for minutes.
                    command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "--", host]);
                    command.arg(remote(&agent, number)?);
                    // The key of the run must not be on a command line, which others see.
                    launcher.feed(command, &endpoint.to_value())?;
                }
            }
            Launch::Each { words, hosts } => {
                for (number, host) in hosts.iter().enumerate() {
                    let words: Vec<String> = words.iter().map(|word| word.replace("{host}", host)).collect();
                    let mut command = custom(&words, &agent, endpoint);
                    command.env(NUMBER_VARIABLE, number.to_string());
                    launcher.spawn(command, true)?;
                }
            }
            Launch::Once { words } => launcher.spawn(custom(words, &agent, endpoint), true)?,
        }
        Ok(launcher)
    }

    /// Starts a process and gives it a line.
    fn feed(&mut self, mut command: Command, line: &str) -> Result<(), LaunchError> {
        command.stdin(Stdio::piped());
        self.spawn(command, true)?;
        let stdin = self
            .processes
            .last_mut()
            .and_then(|process| process.child.stdin.take());
        if let Some(mut stdin) = stdin {
            // A launcher that has ended already is reported with its last words. The line fits into the pipe.
            let _ = stdin
                .write_all(line.as_bytes())
                .and_then(|()| stdin.write_all(b"\n"));
        }
        Ok(())
    }

    fn spawn(&mut self, mut command: Command, listen: bool) -> Result<(), LaunchError> {
        // Signals from the terminal are for the master.
        command.process_group(0);
        if listen {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        let mut child = command.spawn().map_err(|source| LaunchError::Start {
            program: command.get_program().display().to_string(),
            source,
        })?;
        let lines = Arc::new(Mutex::default());
        let stdout = child.stdout.take().map(|pipe| read(pipe, &lines, self.quiet));
        let stderr = child.stderr.take().map(|pipe| read(pipe, &lines, self.quiet));
        let readers = stdout.into_iter().chain(stderr).flatten().collect();
        self.processes.push(Process {
            child,
            lines,
            readers,
            ended_at: None,
        });
        Ok(())
    }

    /// True if all processes have ended.
    pub(super) fn all_have_exited(&mut self) -> bool {
        self.processes.iter_mut().all(Process::has_exited)
    }

    /// True if this process has ended.
    pub(super) fn has_exited(&mut self, number: usize) -> bool {
        self.processes.get_mut(number).is_some_and(Process::has_exited)
    }

    /// What the launcher of this agent said last, or all of them without a number.
    pub(super) fn last_words(&self, number: Option<usize>) -> String {
        let processes = match number {
            Some(number) => self.processes.get(number..=number).unwrap_or_default(),
            None => &self.processes,
        };
        let mut words = Vec::new();
        for process in processes {
            let lines = process.lines.lock().unwrap_or_else(PoisonError::into_inner);
            words.extend(lines.iter().cloned());
        }
        words.join(" | ")
    }

    /// Waits for the end of all processes, at most `timeout`, and kills the rest.
    pub(super) fn end(&mut self, timeout: Duration) {
        let end = Instant::now() + timeout;
        while !self.all_have_exited() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.kill();
    }

    fn kill(&mut self) {
        for mut process in self.processes.drain(..) {
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
        let ended_at = *self.ended_at.get_or_insert_with(Instant::now);
        // What it has left in the background may keep the pipe open.
        self.readers.iter().all(JoinHandle::is_finished) || ended_at.elapsed() > LAST_WORDS_TIMEOUT
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
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).stdin(Stdio::null());
    command.env(ENDPOINT_VARIABLE, endpoint.to_value());
    command
}

/// Returns a line for the shell of another host. The shell reads the endpoint from its standard input.
fn remote(agent: &[&OsStr], number: usize) -> Result<String, LaunchError> {
    let mut line = format!("read -r {ENDPOINT_VARIABLE}; export {ENDPOINT_VARIABLE}; ");
    line += &format!("exec env {NUMBER_VARIABLE}={number}");
    for word in agent {
        let text = word.to_str();
        let text = text.ok_or_else(|| LaunchError::Path(word.to_string_lossy().into_owned()))?;
        line += &format!(" '{}'", text.replace('\'', "'\\''"));
    }
    line += " </dev/null";
    Ok(format!("/bin/sh -c '{}'", line.replace('\'', "'\\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Vec<String> {
        vec!["n1".to_owned(), "n2".to_owned()]
    }

    #[test]
    fn launchers_get_number_and_hosts() {
        let once = |how, hosts: &[String]| match Launch::parse(how, 2, hosts).unwrap() {
            Launch::Once { words } => words.join(" "),
            other => panic!("{other:?}"),
        };
        assert!(once("srun", &[]).ends_with(" --ntasks-per-node=1 --nodes=2 --ntasks=2"));
        assert!(once("srun", &hosts()).ends_with(" --ntasks=2 --nodelist=n1,n2"));
        assert_eq!(once("mpiexec", &hosts()), "mpiexec -n 2 -host n1,n2");
        assert_eq!(once("aprun -n {agents} -N 1", &[]), "aprun -n 2 -N 1");
        let each = Launch::parse("rsh {host}", 2, &hosts()).unwrap();
        assert_eq!(each.hosts(), hosts());
        for how in ["ssh", "rsh {host}"] {
            let error = Launch::parse(how, 2, &[]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("--launch {how} needs names of hosts: --agents HOST,HOST")
            );
        }
    }

    #[test]
    fn hosts_are_named_once() {
        assert_eq!(parse_hosts("n1, n2").unwrap(), hosts());
        assert_eq!(parse_hosts("n1,n2,n1"), Err(HostsError::Twice("n1".to_owned())));
        for wrong in ["", "n1,", "-oProxyCommand=x", "a b"] {
            assert!(matches!(parse_hosts(wrong), Err(HostsError::Name(_))), "{wrong}");
        }
    }

    /// The remote shell is the user's, which need not know the syntax of others.
    #[test]
    fn words_survive_two_shells() {
        let echo = ["printf", "%s|", "it's", "a b", "$HOME"].map(OsStr::new);
        let line = remote(&echo, 7).unwrap();
        let mut child = Command::new("/bin/sh")
            .args(["-c", &line])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"secret\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "it's|a b|$HOME|");
    }

    #[test]
    fn last_words_are_kept() {
        let launch = Launch::parse("/bin/sh -c exit", 1, &[]).unwrap();
        let endpoint = Endpoint {
            addresses: vec!["n1:1".to_owned()],
            epoch: 1,
            lease: Duration::from_secs(30),
            key: pmc_link::RunKey::generate().unwrap(),
        };
        let mut launcher =
            Launcher::start(&launch, &LaunchOptions::default(), 0, Path::new("x"), &endpoint).unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo one; echo two >&2; sleep 0.1; echo three; echo four"]);
        launcher.spawn(command, true).unwrap();
        launcher.processes.swap_remove(0).child.wait().unwrap();
        let process = &mut launcher.processes[0];
        process.child.wait().unwrap();
        process
            .readers
            .drain(..)
            .for_each(|reader| reader.join().unwrap());
        assert!(launcher.last_words(Some(0)).ends_with(" | three | four"));
        assert!(launcher.all_have_exited());
    }
}
