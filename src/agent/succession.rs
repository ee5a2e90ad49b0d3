//! The next master, if the node of the batch script is lost.
//!
//! Slurm keeps a job with `--no-kill` that has lost its first node: its agents live, and nobody starts the
//! master again. So an agent that has been without a master for a while asks Slurm whether that node is still
//! one of the job. If it is not, the agents start `pmc supervise --successor`, one after the other: the run
//! lock decides which one gets the run.
//!
//! Agents keep their tasks as long as no master answers, so the next one waits a lease from its own start for
//! those that have not come back.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use nix::unistd::Pid;
use pmc_batch::ask::{ANSWER_TIMEOUT, output};
use pmc_batch::launch::srun;
use pmc_batch::status::{BatchHost, batch_host, batch_host_query};
use pmc_batch::{BatchJob, Scheduler};

use crate::transport::agents::NUMBER_VARIABLE;
#[cfg(feature = "simulated")]
use crate::worker::simulated::host;

/// How long an agent has been without a master before it asks. It is less than the lease.
const FIRST_ASK: Duration = Duration::from_secs(15);

/// Time between two questions.
const ASK_INTERVAL: Duration = Duration::from_secs(30);

/// Time between two agents that start a master.
const TURN: Duration = Duration::from_secs(60);

/// This number of agents ask at once; the next ones ask a question later, so that thousands of them do not
/// ask at the same time.
const ASKING: u32 = 4;

/// The last agents ask this number of questions later than the first ones.
const MAX_LATER: u32 = 8;

/// Variable by which the guard knows the process that has started the next master. The next master itself,
/// its tasks and the jobs that it hands in do not have it.
const SUCCESSOR_VARIABLE: &str = "PMC_SUCCESSOR";

/// Variable with the name that Slurm has for the node of a process.
const NODE_VARIABLE: &str = "SLURMD_NODENAME";

/// What an agent knows of the job in which it runs.
#[derive(Debug)]
pub(super) struct Succession {
    job: BatchJob,
    /// The name of this node.
    node: String,
    dag: PathBuf,
    program: PathBuf,
    /// How long it waits before it asks.
    first_ask: Duration,
    asked_at: Option<Instant>,
    answer: Option<Receiver<Option<BatchHost>>>,
    /// When it was known that the node of the batch script is lost, and how many agents come before this one.
    lost: Option<(Instant, u32)>,
    has_started: bool,
}

impl Succession {
    /// Returns what an agent with this environment can do for the run of a DAG. `None` outside of a job of
    /// Slurm, and for runs that nothing supervises.
    pub(super) fn new(environment: &[(OsString, OsString)], dag: &Path) -> Option<Self> {
        #[cfg(feature = "simulated")]
        if let Some(host) = host() {
            let (number, node) = host.0.succession()?;
            let job = BatchJob::new(Scheduler::Slurm, "1")?;
            return Some(Self::on_node(job, node, number, dag, PathBuf::new()));
        }
        let value = |name: &str| {
            let (_, value) = environment.iter().find(|(key, _)| key == name)?;
            value.to_str().map(str::to_owned)
        };
        let job = BatchJob::of_environment(value).filter(|job| job.scheduler == Scheduler::Slurm)?;
        let program = std::env::current_exe().ok()?.with_file_name("pmc");
        let is_supervised = program.is_file() && monitord_compat::batch_jobs::path(dag).is_file();
        let number = value(NUMBER_VARIABLE).and_then(|text| text.parse().ok());
        let node = value(NODE_VARIABLE)?;
        is_supervised.then(|| Self::on_node(job, node, number.unwrap_or(0), dag, program))
    }

    /// That of the agent with this number on a node of a job.
    fn on_node(job: BatchJob, node: String, number: u32, dag: &Path, program: PathBuf) -> Self {
        Self {
            job,
            node,
            dag: dag.to_owned(),
            program,
            first_ask: first_ask(number),
            asked_at: None,
            answer: None,
            lost: None,
            has_started: false,
        }
    }

    /// The master is there.
    pub(super) fn end(&mut self) {
        (self.asked_at, self.answer, self.lost, self.has_started) = (None, None, None, false);
    }

    /// Does what is due when there has been no master for this time. Returns whether its node is lost.
    pub(super) fn advance(&mut self, now: Instant, waited: Duration) -> bool {
        if waited < self.first_ask {
            return false;
        }
        match self.answer.as_ref().map(Receiver::try_recv) {
            Some(Ok(Some(host))) => self.note(now, &host),
            Some(Err(TryRecvError::Empty)) | None => {}
            // Slurm has said nothing of use.
            Some(Ok(None) | Err(TryRecvError::Disconnected)) => self.answer = None,
        }
        let is_due = self
            .asked_at
            .is_none_or(|at| now.saturating_duration_since(at) >= ASK_INTERVAL);
        if self.lost.is_none() && is_due {
            self.asked_at = Some(now);
            self.answer = self.ask();
        }
        if let Some((since, before)) = self.lost
            && !self.has_started
            && now.saturating_duration_since(since) >= TURN * before
        {
            self.has_started = true;
            self.start();
        }
        self.lost.is_some()
    }

    fn note(&mut self, now: Instant, host: &BatchHost) {
        self.answer = None;
        if host.is_lost() {
            let before = host.nodes.iter().position(|node| *node == self.node).unwrap_or(0);
            let before = u32::try_from(before)
                .unwrap_or(u32::MAX)
                .min(host.nodes.len() as u32);
            tracing::warn!("The node {} of the batch script is lost", host.name);
            self.lost = Some((now, before));
        }
    }

    fn ask(&self) -> Option<Receiver<Option<BatchHost>>> {
        let (sender, receiver) = channel();
        #[cfg(feature = "simulated")]
        if let Some(host) = host() {
            let _ = sender.send(host.0.batch_host());
            return Some(receiver);
        }
        let words = batch_host_query(&self.job);
        let thread = std::thread::Builder::new().name("batch".to_owned());
        let asked = thread.spawn(move || {
            let printed = output(&words, ANSWER_TIMEOUT);
            let _ = sender.send(printed.ok().and_then(|printed| batch_host(&printed)));
        });
        asked.is_ok().then_some(receiver)
    }

    /// Starts the master as a step of its own: it must outlive the step of this agent.
    fn start(&self) {
        #[cfg(feature = "simulated")]
        if let Some(host) = host() {
            return host.0.start_successor();
        }
        let base = output_pattern(&self.dag.with_extension(""));
        let mut words = srun::words(1, std::slice::from_ref(&self.node));
        words.extend([
            format!("--jobid={}", self.job.id),
            "--quiet".to_owned(),
            "--input=none".to_owned(),
            "--open-mode=append".to_owned(),
            format!("--output={base}.out"),
            format!("--error={base}.err"),
            "--".to_owned(),
            // Only the process that waits here is to be known by it.
            "env".to_owned(),
            format!("--unset={SUCCESSOR_VARIABLE}"),
            self.program.display().to_string(),
            "supervise".to_owned(),
            "--successor".to_owned(),
            "--starts".to_owned(),
            "10".to_owned(),
            self.dag.display().to_string(),
        ]);
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        for (name, _) in std::env::vars_os().filter(|(name, _)| srun::is_option(name)) {
            command.env_remove(name);
        }
        command.env(SUCCESSOR_VARIABLE, "1");
        match command.spawn() {
            Ok(mut child) => {
                tracing::warn!("Starting the next master on this node");
                // It is reaped when it ends.
                let reaper = std::thread::Builder::new().name("successor".to_owned());
                let _ = reaper.spawn(move || drop(child.wait()));
            }
            Err(error) => tracing::error!("Unable to start the next master: {}", pmc_dag::reason(&error)),
        }
    }
}

/// Returns whether a process is the one that has started the next master. It ends with that one.
pub(super) fn is_successor(process: Pid) -> bool {
    let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
    let marker = format!("{SUCCESSOR_VARIABLE}=1");
    environment
        .split(|byte| *byte == 0)
        .any(|variable| variable == marker.as_bytes())
}

/// Returns how long the agent of this number waits before it asks.
fn first_ask(number: u32) -> Duration {
    FIRST_ASK + ASK_INTERVAL * (number / ASKING).min(MAX_LATER)
}

/// Returns a path as Slurm takes it for the name of an output file, in which `%` begins a pattern.
fn output_pattern(path: &Path) -> String {
    path.display().to_string().replace('%', "%%")
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn few_agents_ask_first() {
        let seconds = |number| first_ask(number).as_secs();
        assert_eq!([0, 3, 4, 7, 8, 100_000].map(seconds), [15, 15, 45, 45, 75, 255]);
    }

    #[test]
    fn only_what_starts_the_next_master_is_known_as_such() {
        for (variable, is_known) in [(SUCCESSOR_VARIABLE, true), ("PMC_SUCCESSORS", false)] {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", "echo; read line"]).env(variable, "1");
            let mut child = command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            // The environment of a process cannot be read until it runs.
            let mut output = child.stdout.take().unwrap();
            output.read_exact(&mut [0]).unwrap();
            let pid = Pid::from_raw(child.id().cast_signed());
            assert_eq!(is_successor(pid), is_known, "{variable}");
            drop(child.stdin.take());
            child.wait().unwrap();
            assert!(!is_successor(pid), "it is gone");
        }
    }
}
