//! `pmc log`: the output of a task.

pub(super) mod decode;
pub(super) mod find;
mod pace;
pub(super) mod show;
pub(super) mod tap;

use anyhow::anyhow;
use pmc_calls::{CLUSTER, KICKSTART};
use pmc_monitor::history::{History, Phase, State};
use pmc_monitor::plan::TaskNumber;
use pmc_monitor::task_output::AttemptFiles;
use pmc_packed::TaskOutput;
use pmc_terminal::message;

use crate::cli;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::layout;
use crate::reach;

use find::Source;
use pace::Pace;
use show::Show;
use tap::Tap;

/// A file of an attempt, or what came from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output. Its file also holds the records.
    Out,
    /// Standard error.
    Err,
}

impl Stream {
    /// Both, in the order of their numbers.
    pub const ALL: [Self; 2] = [Self::Out, Self::Err];
}

/// Takes what a task wrote.
pub type Take<'a> = dyn FnMut(Stream, &[u8]) + 'a;

/// Prints the output of a task. Returns the exit code.
pub fn log(arguments: &cli::Log) -> Result<u8, Failure> {
    let dir = layout::given_or_latest(arguments.run.as_deref(), false);
    let history = History::open(layout::find_run(&dir)?).or_code(exit::NOT_RUN)?;
    let task = find::find_task(&history, &arguments.task)?;
    let state = history.state(task);
    let is_live = state == State::Running || (arguments.follow && find::may_come(state));
    if history.phase() == Phase::Running
        && is_live
        && let Some(place) = reach::elsewhere(&history.dir.dag)
    {
        // What the run has captured of it, only a process on its host can ask for.
        return reach::run_there(&place, false);
    }
    let output = TaskOutput::new(&history.dir.dir);
    let mut log = Log {
        history,
        task,
        output,
    };
    let source = log.source(arguments)?;
    let mut show = Show::new(arguments, log.captured());
    match &source {
        Source::Unpacked { attempt } => log.copy_unpacked(*attempt, arguments.follow, &mut show)?,
        _ => log.copy(&source, arguments.follow, &mut show)?,
    }
    show.end();
    log.report_reason(arguments.attempt);
    Ok(exit::SUCCESS)
}

/// Returns what reads the output of a task while kickstart captures it.
pub(super) fn captured(history: &History, task: TaskNumber) -> Tap {
    let command = history.plan.command(task).unwrap_or_default();
    let is_captured = matches!(pmc_calls::recorder(&command), Some(KICKSTART | CLUSTER));
    Tap::new(&history.dir.dag, history.plan.text_name(task), is_captured)
}

/// A task whose output is shown.
pub(super) struct Log {
    history: History,
    task: TaskNumber,
    output: TaskOutput,
}

impl Log {
    /// Returns where the output of the attempt is. Waits for its start if it is to be followed.
    fn source(&mut self, arguments: &cli::Log) -> Result<Source, Failure> {
        let mut pace = Pace::default();
        let mut is_waiting = false;
        loop {
            // First the state: once a task has ended, its files are complete.
            let state = self.state()?;
            let may_come =
                arguments.follow && find::may_come(state) && self.history.phase() == Phase::Running;
            if let Some(source) = find::source(self, arguments.attempt, !may_come)? {
                return Ok(source);
            }
            if !may_come {
                return Err(self.no_output(state, arguments.attempt));
            }
            if !is_waiting {
                message(format!("pmc: waiting for the output of {}", self.name()));
                is_waiting = true;
            }
            pace.wait();
        }
    }

    /// Copies the output, and what is added to it until the attempt has ended.
    fn copy(&mut self, source: &Source, follow: bool, show: &mut Show) -> Result<(), Failure> {
        let reader = source.open(self);
        let mut reader = reader.map_err(|error| find::unreadable(&self.history.dir, error))?;
        let mut pace = Pace::default();
        loop {
            let is_running = self.is_running(source)?;
            let mut has_found = is_running && show.tap();
            let mut push = |stream, bytes: &[u8]| show.push(stream, bytes);
            while reader
                .read(&mut push)
                .map_err(|error| find::unreadable(&self.history.dir, error))?
            {
                has_found = true;
            }
            let is_complete = !is_running || !follow && !has_found;
            if is_complete || show.has_record_of(&self.name()) || show.is_closed() {
                break;
            }
            pace.note(has_found);
            pace.wait();
        }
        show.finish();
        Ok(())
    }

    /// Copies the output of an attempt that runs and goes to a pack at its end, and what is added to it until
    /// then.
    fn copy_unpacked(&mut self, attempt: u32, follow: bool, show: &mut Show) -> Result<(), Failure> {
        let mut own = Tap::own(&self.history.dir.dag, self.name());
        // Kickstart writes into the files of the attempt at its end only.
        let is_captured = self.captured().is_captured();
        let (mut pace, mut seen) = (Pace::default(), [0, 0]);
        while !show.is_closed() {
            // First the state: the entry is written before the end is known.
            let has_ended = self.state()? != State::Running || self.history.phase() != Phase::Running;
            if let Some(source) = self.entry(attempt) {
                return self.copy_rest(&source, seen, show);
            }
            if has_ended {
                message("pmc: the worker was killed: the end of the output is lost");
                break;
            }
            let has_found = match is_captured {
                true => show.tap(),
                false => own.poll(&mut |stream, bytes| {
                    seen[stream as usize] += bytes.len();
                    show.push(stream, bytes);
                }),
            };
            if !follow && !has_found {
                break;
            }
            pace.note(has_found);
            pace.wait();
        }
        show.finish();
        Ok(())
    }

    /// Copies what the pack has beyond the bytes that were seen.
    fn copy_rest(&mut self, source: &Source, mut seen: [usize; 2], show: &mut Show) -> Result<(), Failure> {
        let reader = source.open(self);
        let mut reader = reader.map_err(|error| find::unreadable(&self.history.dir, error))?;
        let mut push = |stream, bytes: &[u8]| {
            let skipped = bytes.len().min(seen[stream as usize]);
            seen[stream as usize] -= skipped;
            show.push(stream, &bytes[skipped..]);
        };
        while reader
            .read(&mut push)
            .map_err(|error| find::unreadable(&self.history.dir, error))?
        {}
        show.finish();
        Ok(())
    }

    /// Returns the entry of an attempt in a pack, if it is there. Attempts that were lost have none, so the
    /// number may be a later one.
    fn entry(&mut self, from: u32) -> Option<Source> {
        // If an index cannot be read, opening the output fails.
        let _ = self.output.refresh();
        let name = self.history.plan.name(self.task);
        let attempt = self.output.last(name).filter(|last| *last >= from)?;
        let pack = self.output.pack(name, attempt)?.to_owned();
        Some(Source::Packed { pack, attempt })
    }

    /// Returns whether an attempt runs whose output goes to a pack.
    fn is_packed_and_running(&mut self, count: u32) -> Result<bool, Failure> {
        if self.state()? != State::Running || self.history.phase() != Phase::Running {
            return Ok(false);
        }
        // The log may not say yet that the attempt has ended.
        let begun = self.history.attempts.iter();
        let begun = begun.filter(|attempt| attempt.task == self.task).count();
        let (dir, dag) = (&self.history.dir.dir, &self.history.dir.dag);
        let has_packs = dag.file_name().is_some_and(|dag| pmc_packed::has_packs(dir, dag));
        Ok(has_packs && begun > count as usize)
    }

    /// Returns whether something may be added to the output of an attempt.
    fn is_running(&mut self, source: &Source) -> Result<bool, Failure> {
        let Source::Files { attempt, .. } = source else {
            return Ok(false);
        };
        let state = self.state()?;
        // Without a log, only the files tell when a task ends.
        let has_log = !self.history.runs.is_empty();
        if has_log && state != State::Running || self.history.phase() != Phase::Running {
            return Ok(false);
        }
        let next = AttemptFiles::new(&self.history.dir, self.history.plan.name(self.task), attempt + 1);
        Ok(!next.out.exists())
    }

    /// Reads what was added to the logs, and returns the state of the task.
    fn state(&mut self) -> Result<State, Failure> {
        self.history.update().or_code(exit::NOT_RUN)?;
        Ok(self.history.state(self.task))
    }

    /// Prints why the latest attempt ended, if it is the one that was shown and its output does not say it.
    fn report_reason(&mut self, attempt: Option<u32>) {
        let is_latest = attempt.is_none_or(|attempt| attempt == self.count());
        if let Some(reason) = self.history.latest_reason(self.task).filter(|_| is_latest) {
            message(format!("pmc: the last attempt of {}: {reason}", self.name()));
        }
    }

    /// Returns what reads the output while kickstart captures it.
    fn captured(&self) -> Tap {
        captured(&self.history, self.task)
    }

    /// Returns the number of the latest attempt with its own output, counted from 1; 0 if there is none.
    fn count(&mut self) -> u32 {
        let last = self.output.last(self.history.plan.name(self.task));
        last.map_or(0, |last| last.saturating_add(1))
    }

    fn name(&self) -> String {
        self.history.plan.text_name(self.task)
    }

    fn no_output(&mut self, state: State, attempt: Option<u32>) -> Failure {
        let name = self.name();
        let count = self.count();
        // Only a log has states.
        let is_unknown = self.history.runs.is_empty() && self.history.phase() == Phase::Running;
        let error = match (attempt, state) {
            (Some(attempt), _) if count > 0 => {
                let s = if count == 1 { "" } else { "s" };
                anyhow!("the task {name} has no attempt {attempt}: it has {count} attempt{s}")
            }
            _ if is_unknown => anyhow!(
                "{name} has no output of its own yet, and the run has no log that tells whether it has started"
            ),
            (_, State::Waiting) => anyhow!("the task {name} has not started: it waits for other tasks"),
            (_, State::Ready) => anyhow!("the task {name} has not started: it waits for a free slot"),
            _ if self.history.phase() == Phase::Running => anyhow!(
                "the output of {name} is not there yet: without --per-task-stdio, it can be shown when the task has \
                 ended"
            ),
            _ => match self.history.latest_reason(self.task) {
                Some(reason) => anyhow!("the task {name} has no output: {reason}"),
                None => anyhow!("the output of {name} is not in the directory of the run"),
            },
        };
        let failure = Failure::new(exit::NOT_RUN, error);
        match state {
            _ if is_unknown => {
                failure.hint("give --jobstate-log and --per-task-stdio to pegasus-mpi-cluster")
            }
            State::Waiting | State::Ready => failure.hint("-f waits for its start"),
            _ if count > 0 => failure,
            _ => failure.hint(
                "a run without --per-task-stdio merges the output of all tasks into the output of \
                 pegasus-mpi-cluster when it ends",
            ),
        }
    }
}
