//! The next master, if the node of the batch script is lost.
//!
//! Slurm keeps a job with `--no-kill` that has lost its first node: its agents live, and nobody starts the
//! master again. So an agent that has been without a master for a while asks Slurm whether that node is still
//! one of the job. If it is not, the agents start `pmc supervise --successor`, one after the other: the run
//! lock decides which one gets the run.
//!
//! The next master must wait until no agent of the dead one can run a task any more: that is a lease after
//! its death. It was dead when an agent has found the run lock free, so the agent says for how long that is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use monitord_compat::run_lock::is_locked;
use pmc_batch::ask::{PATIENCE, output};
use pmc_batch::launch::srun;
use pmc_batch::status::{BatchHost, batch_host, batch_host_query};
use pmc_batch::{BatchJob, Scheduler};

use crate::transport::agents::{EARLIER_MASTER_VARIABLE, EarlierMaster, NUMBER_VARIABLE};

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

/// Time between two looks at the run lock.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

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
    looked_at: Option<Instant>,
    /// Since when the run lock is known to be free.
    free_since: Option<Instant>,
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
            looked_at: None,
            free_since: None,
            asked_at: None,
            answer: None,
            lost: None,
            has_started: false,
        }
    }

    /// The master is there.
    pub(super) fn end(&mut self) {
        (self.looked_at, self.free_since) = (None, None);
        (self.asked_at, self.answer, self.lost, self.has_started) = (None, None, None, false);
    }

    /// Does what is due when there has been no master for this time; `epoch` is that of the last one. Returns
    /// whether its node is lost.
    pub(super) fn advance(&mut self, now: Instant, waited: Duration, epoch: Option<u64>) -> bool {
        self.look(now);
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
            let dead_for = self.free_since.map(|since| now.saturating_duration_since(since));
            self.start(
                epoch
                    .zip(dead_for)
                    .map(|(epoch, dead_for)| EarlierMaster { epoch, dead_for }),
            );
        }
        self.lost.is_some()
    }

    /// Looks whether the run lock is free.
    fn look(&mut self, now: Instant) {
        let is_due = self
            .looked_at
            .is_none_or(|at| now.saturating_duration_since(at) >= LOOK_INTERVAL);
        if self.free_since.is_none() && is_due {
            self.looked_at = Some(now);
            self.free_since = (is_locked(&self.dag) == Some(false)).then_some(now);
        }
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
        let words = batch_host_query(&self.job);
        let thread = std::thread::Builder::new().name("batch".to_owned());
        let asked = thread.spawn(move || {
            let printed = output(&words, PATIENCE);
            let _ = sender.send(printed.ok().and_then(|printed| batch_host(&printed)));
        });
        asked.is_ok().then_some(receiver)
    }

    /// Starts the master as a step of its own: it must outlive the step of this agent.
    fn start(&self, earlier: Option<EarlierMaster>) {
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
        if let Some(earlier) = earlier {
            command.env(EARLIER_MASTER_VARIABLE, earlier.to_string());
        }
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
    use std::fs;

    use monitord_compat::run_lock;

    use super::*;

    #[test]
    fn few_agents_ask_first() {
        let seconds = |number| first_ask(number).as_secs();
        assert_eq!([0, 3, 4, 7, 8, 100_000].map(seconds), [15, 15, 45, 45, 75, 255]);
    }

    #[test]
    fn a_master_is_dead_when_its_lock_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        fs::write(&dag, "TASK a x\n").unwrap();
        let job = BatchJob::parse("slurm 17").unwrap();
        let mut succession = Succession::on_node(job, "n2".to_owned(), 0, &dag, "pmc".into());
        let lock = run_lock::lock_dag(&dag).unwrap();
        let begin = Instant::now();
        let after = |seconds| begin + Duration::from_secs(seconds);
        assert!(!succession.advance(begin, Duration::ZERO, Some(7)));
        assert_eq!(succession.free_since, None);
        drop(lock);
        // It looks now and then only.
        succession.advance(after(1), Duration::from_secs(1), Some(7));
        assert_eq!(succession.free_since, None);
        succession.advance(after(5), Duration::from_secs(5), Some(7));
        assert_eq!(succession.free_since, Some(after(5)));
        let _next = run_lock::lock_dag(&dag).unwrap();
        succession.advance(after(10), Duration::from_secs(10), Some(7));
        assert_eq!(succession.free_since, Some(after(5)));
        succession.end();
        assert_eq!(succession.free_since, None);
    }

    #[test]
    fn a_percent_sign_in_a_path_begins_no_pattern() {
        assert_eq!(output_pattern(Path::new("/d/100%j/run%%")), "/d/100%%j/run%%%%");
        assert_eq!(output_pattern(Path::new("/d/run")), "/d/run");
    }
}
