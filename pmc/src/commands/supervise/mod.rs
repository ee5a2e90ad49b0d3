//! `pmc supervise`: runs the command of a batch script, and decides what follows when it ends.
//!
//! It needs no rights and no other program: it asks the batch system, hands in the job that is to follow
//! ([`next`]), keeps a ledger ([`ledger`]), passes signals on ([`child`]), and looks up what to do
//! ([`matrix`]).

mod child;
mod ledger;
mod matrix;
mod next;
mod queries;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use monitord_compat::batch_jobs::Event;
use monitord_compat::run_end::EndOfRun;
use monitord_compat::run_lock;
use pmc_batch::ask::{ANSWER_TIMEOUT, ask};
use pmc_batch::status::{JobEnd, JobState, JobStatus};
use pmc_batch::{BatchJob, nodes};
use pmc_checkpoint::Store;

use self::child::{Outcome, Settings, Signals, Watch, run};
use self::ledger::Ledger;
use self::matrix::{Action, Ended, MAX_STARTS, Situation, TABLE, Terminated, action};
use self::next::{Chain, HandIn, note};
use self::queries::{is_restarted_job, is_restarted_task};
use crate::cli;
use crate::commands::checkpoint::connect;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::metrics::TextFile;

/// How long to wait for another run of the DAG.
const LOCK_PATIENCE: Duration = Duration::from_secs(600);

/// How long to wait between two starts.
const PAUSE: Duration = Duration::from_secs(5);

/// Time of a job that is not enough for another start.
const MIN_TIME: Duration = Duration::from_secs(60);

/// Maximum messages of tasks that are noted at the end of a job.
const MAX_MESSAGES: usize = 100;

/// Maximum bytes of a list of nodes.
const MAX_LIST: u64 = 16 << 20;

/// Maximum bytes of a rescue file that are read.
const MAX_RESCUE: u64 = 1 << 30;

/// Word of the ledger for the end of a job that somebody has cancelled.
const CANCELLED: &str = "cancelled";

/// Exit code of shells for a command that is not there.
const COMMAND_NOT_FOUND: u8 = 127;

/// Exit code of a run that was drained: `EX_TEMPFAIL`.
const DRAINED: u8 = 75;

/// Says something to those who read the output of the batch job.
fn say(text: &str) {
    pmc_terminal::message(format!("pmc supervise: {text}"));
}

/// Runs the command of a batch script. Returns its exit code.
pub fn supervise(arguments: &cli::Supervise) -> Result<u8, Failure> {
    if arguments.matrix {
        pmc_terminal::print(TABLE);
        return Ok(exit::SUCCESS);
    }
    let environment = own_environment();
    if arguments.is_restart
        && arguments.job.is_none()
        && let Some(is_restart) = is_restarted_task(&environment, has_saved)
    {
        return Ok(u8::from(is_restart));
    }
    let missing = || anyhow!("the submit directory is missing");
    let dir = arguments
        .dir
        .as_deref()
        .ok_or_else(missing)
        .or_code(exit::USAGE)?;
    let dag = layout::find_run(dir)?.dag;
    let job = BatchJob::of_environment(|name| environment.get(name).cloned());
    let nodes = job.as_ref().and_then(|_| nodes_of(&environment));
    let name = job
        .as_ref()
        .map_or_else(|| format!("local {}", std::process::id()), ToString::to_string);
    let mut ledger = Ledger::open(&dag, name.clone());
    if arguments.is_restart {
        let asked = arguments.job.clone().unwrap_or(name);
        return Ok(u8::from(is_restarted_job(&ledger.before, &asked)));
    }
    let (command, resubmit) = command_of(arguments, &ledger, &dag)?;
    let chain = ledger.chain();
    let begin = Event::Begin {
        nodes: nodes.unwrap_or_default(),
        slots: job.as_ref().and_then(|_| slots_of(&environment)),
        limit: arguments.minutes,
        chain,
        resubmit,
        command: command.clone(),
        successor: arguments.successor,
    };
    if arguments.init {
        ledger
            .add(begin)
            .with_context(|| format!("the list of batch jobs of {} cannot be written", dag.display()))
            .or_code(exit::NOT_RUN)?;
        return Ok(exit::SUCCESS);
    }
    if command.is_empty() {
        return Err(Failure::new(
            exit::USAGE,
            anyhow!("the command is missing: -- COMMAND"),
        ));
    }
    let signals = Signals::catch().or_code(exit::NOT_RUN)?;
    let mut supervisor = Supervisor {
        chain: job.as_ref().map(|job| Chain {
            job,
            dag: &dag,
            environment,
        }),
        job: job.as_ref(),
        dag: &dag,
        begun: Instant::now(),
        time: None,
        signals,
        hand_in: None,
    };
    if let Some(code) = supervisor.refuse_after_cancel(&ledger) {
        return Ok(code);
    }
    // Without the ledger, jobs are not counted: they would follow each other for ever.
    let is_counted = note(&mut ledger, begin);
    let own = supervisor
        .chain
        .as_ref()
        .filter(|_| is_counted && chain < resubmit);
    supervisor.hand_in = own.and_then(|chain| HandIn::begin(chain, &ledger));
    let metrics = dag.parent().and_then(TextFile::start);
    let (code, action) = supervisor.go_on(command, arguments, &mut ledger);
    drop(metrics);
    supervisor.end(action, arguments.successor, &mut ledger);
    Ok(code)
}

fn own_environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

/// Returns the text of a list of nodes.
fn list_of_nodes(path: &str) -> Option<String> {
    pmc_files::read_to_string(Path::new(path), MAX_LIST).ok()
}

/// Returns the nodes of the job of a process with this environment.
fn nodes_of(environment: &BTreeMap<String, String>) -> Option<Vec<String>> {
    nodes::of_environment(|name| environment.get(name).cloned(), list_of_nodes)
}

/// Returns the number of processes that this job has room for.
fn slots_of(environment: &BTreeMap<String, String>) -> Option<u32> {
    nodes::slots_of_environment(|name| environment.get(name).cloned(), list_of_nodes)
}

/// Returns whether the task of this process goes on from what an earlier attempt has saved.
fn has_saved() -> bool {
    connect().is_ok_and(|connection| connection.given().is_some())
}

/// Returns the command, and the number of further jobs. A successor has those of the job that it goes on
/// with.
fn command_of(
    arguments: &cli::Supervise,
    ledger: &Ledger,
    dag: &Path,
) -> Result<(Vec<String>, u32), Failure> {
    if !arguments.successor {
        return Ok((arguments.command.clone(), arguments.resubmit));
    }
    let error = || anyhow!("the ledger of {} says of no command in this job", dag.display());
    let (command, resubmit) = ledger.command().ok_or_else(error).or_code(exit::USAGE)?;
    Ok((succeeding(&command), resubmit))
}

struct Supervisor<'a> {
    chain: Option<Chain<'a>>,
    job: Option<&'a BatchJob>,
    dag: &'a Path,
    begun: Instant,
    /// The time that the job had left when this program began, as far as the batch system says it.
    time: Option<Duration>,
    signals: Signals,
    /// The next job, until it is handed in.
    hand_in: Option<HandIn>,
}

/// What the supervisor does while the command runs.
struct Watching<'a> {
    job: Option<&'a BatchJob>,
    chain: Option<&'a Chain<'a>>,
    hand_in: &'a mut Option<HandIn>,
    ledger: &'a mut Ledger,
    terminated: Option<Terminated>,
}

impl Watch for Watching<'_> {
    fn terminated(&mut self) {
        let why = why_terminated(self.job);
        self.terminated = Some(why);
        // Before this program is killed, too: nothing may follow a job that was cancelled.
        if let (Terminated::Cancelled, Some(chain)) = (why, self.chain) {
            if let Some(hand_in) = self.hand_in.take() {
                hand_in.end(chain, self.ledger, false);
            }
            chain.cancel_next(self.ledger);
        }
    }

    fn tick(&mut self) {
        if let (Some(hand_in), Some(chain)) = (self.hand_in.as_mut(), self.chain)
            && hand_in.advance(chain, self.ledger, Duration::ZERO)
        {
            *self.hand_in = None;
        }
    }
}

impl Supervisor<'_> {
    /// Cancels the jobs for which nothing is left.
    fn end(&mut self, action: Action, is_successor: bool, ledger: &mut Ledger) {
        let is_left = action == Action::Leave;
        let Some(chain) = &self.chain else {
            return;
        };
        if let Some(hand_in) = self.hand_in.take() {
            hand_in.end(chain, ledger, !action.ends_chain() && !is_left);
        }
        if action.ends_chain() {
            chain.cancel_next_in_the_end(ledger);
        }
        if is_successor && !is_left {
            chain.cancel_own();
        }
    }

    /// Runs the command, again and again while the matrix says so. Returns its last exit code, and what is to
    /// be done after this job.
    fn go_on(
        &mut self,
        command: Vec<String>,
        arguments: &cli::Supervise,
        ledger: &mut Ledger,
    ) -> (u8, Action) {
        let max_starts = arguments.starts.clamp(1, MAX_STARTS);
        let mut starts = 0;
        let mut waits_since: Option<Instant> = None;
        loop {
            starts += 1;
            // What the last start has left does not count. Another run may be about to write its own.
            if run_lock::is_locked(self.dag) != Some(true) {
                let _ = std::fs::remove_file(monitord_compat::run_end::RunEnd::path(self.dag));
            }
            let settings = self.settings(&command, arguments);
            let mut watching = Watching {
                job: self.job,
                chain: self.chain.as_ref(),
                hand_in: &mut self.hand_in,
                ledger,
                terminated: None,
            };
            let outcome = run(&settings, &self.signals, &mut watching);
            let terminated = watching.terminated;
            let end = EndOfRun::of(self.dag);
            let ended = self.ended(&outcome, end.as_ref());
            let done = end.as_ref().map_or_else(|| self.done(), |end| end.done);
            let has_saved = end.is_some_and(|end| end.saved > 0);
            let word = word(&ended);
            let situation = Situation {
                terminated,
                is_interrupted: self.signals.is_interrupted(),
                starts,
                max_starts,
                has_time: self.has_time(arguments),
                drains: self.signals.drains(),
                without_progress: ledger.without_progress(word, done, has_saved),
                may_wait: waits_since.is_none_or(|since| since.elapsed() < LOCK_PATIENCE),
                is_successor: arguments.successor,
                ended,
            };
            let action = action(&situation);
            // Another run writes the messages, and each look at its lock is no end.
            if action != Action::Wait {
                note_messages(self.dag, ledger);
                let is_cancelled = situation.terminated == Some(Terminated::Cancelled);
                note_end(ledger, if is_cancelled { CANCELLED } else { word }, action, done);
            }
            let code = code(&outcome);
            match action {
                Action::Here => say(&format!("The command ended with {code}: it starts again")),
                Action::Wait => {
                    if waits_since.is_none() {
                        say("Another run of this workflow goes on: waiting for its end");
                    }
                    waits_since.get_or_insert_with(Instant::now);
                    starts -= 1;
                    std::thread::sleep(PAUSE);
                }
                Action::GiveUp => {
                    say(&why_given_up(&situation));
                    return (code, action);
                }
                Action::Leave => {
                    say("Another master has this run: leaving it alone");
                    return (code, action);
                }
                Action::Stop | Action::Again => return (code, action),
            }
            if let Some(drains) = self.signals.must_end() {
                let action = self.action_between_starts();
                if action == Action::Stop {
                    note_end(ledger, CANCELLED, action, done);
                }
                return (if drains { DRAINED } else { code }, action);
            }
        }
    }

    /// Returns what is to run now.
    fn settings(&self, command: &[String], arguments: &cli::Supervise) -> Settings {
        let elapsed = self.begun.elapsed();
        let drain_after = arguments.drain_after.map(Duration::from_secs);
        Settings {
            command: with_time_left(command, elapsed),
            drain_after: drain_after.map(|after| after.saturating_sub(elapsed)),
            dag: self.dag.to_owned(),
        }
    }

    /// Returns what a signal between two starts means.
    fn action_between_starts(&self) -> Action {
        let is_cancelled = || why_terminated(self.job) == Terminated::Cancelled;
        match self.signals.is_interrupted() || (self.signals.is_terminated() && is_cancelled()) {
            true => Action::Stop,
            false => Action::Again,
        }
    }

    /// Returns how the command ended.
    fn ended(&self, outcome: &Outcome, end: Option<&EndOfRun>) -> Ended {
        match (outcome, end) {
            (Outcome::NotFound(_), _) => Ended::NotFound,
            (_, Some(end)) => Ended::Said(end.end.clone()),
            (Outcome::Signal(signal), None) => Ended::Killed { signal: *signal },
            // A launcher says it with a code.
            (Outcome::Code(code), None) if (129..=192).contains(code) => Ended::Killed {
                signal: i32::from(code - 128),
            },
            (Outcome::Code(code), None) => match run_lock::is_locked(self.dag) {
                Some(true) => Ended::Locked,
                _ => Ended::NotBegun {
                    code: i32::from(*code),
                },
            },
        }
    }

    /// Returns the number of tasks in the rescue file.
    fn done(&self) -> usize {
        let path = pmc_files::with_suffix(self.dag, ".rescue");
        let text = pmc_files::read(&path, MAX_RESCUE).unwrap_or_default();
        text.split(|byte| *byte == b'\n')
            .filter(|line| line.starts_with(b"DONE "))
            .count()
    }

    /// Returns whether time is left for another start in this job.
    fn has_time(&mut self, arguments: &cli::Supervise) -> bool {
        let own = arguments
            .minutes
            .map(|minutes| Duration::from_secs(minutes.saturating_mul(60)));
        let limit = self.time.or(own);
        limit.is_none_or(|limit| limit.saturating_sub(self.begun.elapsed()) >= MIN_TIME.min(limit / 10))
    }

    /// Refuses to go on if the job before was cancelled, and killed before it could say so.
    fn refuse_after_cancel(&mut self, ledger: &Ledger) -> Option<u8> {
        let job = self.job?;
        let left = ask(job, ANSWER_TIMEOUT)
            .ok()
            .and_then(|status: JobStatus| status.time_left);
        self.time = left;
        let before = BatchJob::parse(ledger.unended()?)?;
        let is_handed_in = ledger.chain() > 0;
        let status = ask(&before, ANSWER_TIMEOUT).ok()?;
        if is_handed_in && status.state == JobState::Ended(JobEnd::Cancelled) {
            say(&format!(
                "The job {} was cancelled: this one does nothing",
                before.id
            ));
            return Some(DRAINED);
        }
        None
    }
}

/// Writes the last messages of tasks that are not done, as far as they are new.
fn note_messages(dag: &Path, ledger: &mut Ledger) {
    let tasks = Store::open(dag)
        .ok()
        .flatten()
        .and_then(|store| store.tasks().ok());
    let messages = tasks.into_iter().flatten().filter_map(|task| {
        let name = pmc_checkpoint::task_name(task.directory())?;
        Some((String::from_utf8_lossy(&name).into_owned(), task.message()?))
    });
    let is_new = |(task, text): &(String, String)| ledger.message(task) != Some(text);
    let new: Vec<_> = messages.filter(is_new).take(MAX_MESSAGES).collect();
    for (task, text) in new {
        note(ledger, Event::Message { task, text });
    }
}

/// Notes how the workflow ended, and what is done about it.
fn note_end(ledger: &mut Ledger, end: &str, action: Action, done: usize) {
    let (end, action) = (end.to_owned(), action.to_string());
    note(ledger, Event::End { end, action, done });
}

/// Asks the batch system why it ends the job.
fn why_terminated(job: Option<&BatchJob>) -> Terminated {
    let Some(status) = job.and_then(|job| ask(job, Duration::from_secs(5)).ok()) else {
        return Terminated::Cancelled;
    };
    let reason = status.reason.to_ascii_lowercase();
    let is_over = status.time_left.is_some_and(|left| left.is_zero());
    match status.state {
        JobState::Ended(JobEnd::Preempted) => Terminated::Preempted,
        JobState::Ended(JobEnd::TimeLimit) => Terminated::TimeLimit,
        JobState::Ended(JobEnd::NodeLost) => Terminated::TimeLimit,
        _ if reason.contains("preempt") => Terminated::Preempted,
        _ if is_over || reason.contains("timelimit") || reason.contains("runlimit") => Terminated::TimeLimit,
        _ => Terminated::Cancelled,
    }
}

/// Returns the word for an end in the ledger.
fn word(ended: &Ended) -> &'static str {
    match ended {
        Ended::Said(end) => end.key(),
        Ended::Killed { .. } => "killed",
        Ended::NotBegun { .. } => "not-begun",
        Ended::Locked => "locked",
        Ended::NotFound => "not-found",
    }
}

fn why_given_up(situation: &Situation) -> String {
    let why = match &situation.ended {
        Ended::Said(end) => end.message().map_or_else(
            || format!("the run {end}"),
            |message| format!("the run {end}: {message}"),
        ),
        Ended::Killed { signal } => format!("signal {signal} has ended the command"),
        Ended::NotBegun { code } => format!("the command ended with {code} before the run began"),
        Ended::Locked => "another run of this workflow goes on".to_owned(),
        Ended::NotFound => "the command cannot be run".to_owned(),
    };
    if situation.without_progress >= matrix::MAX_WITHOUT_PROGRESS {
        format!(
            "No job follows, since {why}, {} times without progress",
            situation.without_progress
        )
    } else {
        format!("No job follows, since {why}")
    }
}

/// Returns the exit code of a command as shells have it.
fn code(outcome: &Outcome) -> u8 {
    match outcome {
        Outcome::Code(code) => *code,
        Outcome::Signal(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
        Outcome::NotFound(reason) => {
            say(reason);
            COMMAND_NOT_FOUND
        }
    }
}

/// Returns the command with what is left of its wall time.
fn with_time_left(command: &[String], elapsed: Duration) -> Vec<String> {
    let mut command = command.to_vec();
    let option = command.iter().position(|word| word == "--max-wall-time");
    if let Some(value) = option.and_then(|at| command.get_mut(at + 1)) {
        let (job, minutes) = match value.strip_prefix("job:") {
            Some(minutes) => ("job:", minutes),
            None => ("", value.as_str()),
        };
        if let Ok(minutes) = minutes.parse::<u64>() {
            let left = minutes.saturating_sub(elapsed.as_secs() / 60).max(1);
            *value = format!("{job}{left}");
        }
    }
    command
}

/// Returns the command of a master that takes over agents: it starts none.
fn succeeding(command: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = command.iter();
    while let Some(word) = rest.next() {
        match word.as_str() {
            "--launch" => drop(rest.next()),
            _ => words.push(word.clone()),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_wall_time_does_not_begin_anew() {
        let left = |line: &str, minutes: u64| {
            with_time_left(&words(line), Duration::from_secs(minutes * 60)).join(" ")
        };
        assert_eq!(
            left("pmc --max-wall-time job:20 x.dag", 5),
            "pmc --max-wall-time job:15 x.dag"
        );
        assert_eq!(
            left("pmc --max-wall-time 20 x.dag", 25),
            "pmc --max-wall-time 1 x.dag"
        );
        assert_eq!(left("pmc --max-wall-time", 5), "pmc --max-wall-time");
        assert_eq!(left("pmc x.dag", 5), "pmc x.dag");
    }

    #[test]
    fn a_successor_starts_no_agents() {
        let command = words("/opt/pegasus-mpi-cluster --agents 3 --launch srun --slots 2 x.dag");
        assert_eq!(
            succeeding(&command).join(" "),
            "/opt/pegasus-mpi-cluster --agents 3 --slots 2 x.dag"
        );
    }
}
