//! The action matrix: what is done when a workflow has ended, or was cut off. Pure.

use std::fmt;

use monitord_compat::run_end::{DrainedBy, RunEnd};
use nix::libc;

/// Signals that end a program that has crashed, or that somebody kills without asking it.
const CRASHES: [i32; 6] = [
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGKILL,
    libc::SIGSEGV,
];

/// Ends of the same kind in a row without progress, after which a chain of jobs stops.
pub const MAX_WITHOUT_PROGRESS: u32 = 3;

/// Starts of the command in one job.
pub const MAX_STARTS: u32 = 10;

/// Exit codes of the executor.
const SUCCESS: i32 = 0;
const DRAINED: i32 = 75;
const STRANDED: i32 = 76;

/// How the command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The executor has said how.
    Said(RunEnd),
    /// It has said nothing, and a signal ended the command.
    Killed {
        /// Number of the signal.
        signal: i32,
    },
    /// It has said nothing, and mostly did not begin. The exit code of the command.
    NotBegun {
        /// Exit code.
        code: i32,
    },
    /// Another run has the lock of the DAG.
    Locked,
    /// The command cannot be run.
    NotFound,
}

/// Why the batch system has sent SIGTERM to this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminated {
    /// Somebody has cancelled the job, or it is not known.
    Cancelled,
    /// The time of the job is over.
    TimeLimit,
    /// Its nodes are for another job.
    Preempted,
}

/// Everything that an action depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Situation {
    /// How the command ended.
    pub ended: Ended,
    /// The batch system ends the job.
    pub terminated: Option<Terminated>,
    /// SIGINT came.
    pub is_interrupted: bool,
    /// Starts of the command in this job so far.
    pub starts: u32,
    /// Maximum starts.
    pub max_starts: u32,
    /// Minutes are left of this job, as far as is known.
    pub has_time: bool,
    /// The job was asked to drain.
    pub drains: bool,
    /// The same end this often in a row, without progress; this one counts.
    pub without_progress: u32,
    /// Time is left for waiting for the lock.
    pub may_wait: bool,
    /// An agent has started this program.
    pub is_successor: bool,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The workflow has ended: no job follows.
    Stop,
    /// No job follows, and somebody has to do something first.
    GiveUp,
    /// The next job goes on.
    Again,
    /// The command starts again in this job.
    Here,
    /// The command starts again in this job when the other run has ended.
    Wait,
    /// Another program looks after the run in this job: this one does nothing.
    Leave,
}

impl Action {
    /// Returns whether the next job is to be cancelled.
    pub fn ends_chain(self) -> bool {
        matches!(self, Self::Stop | Self::GiveUp)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stop",
            Self::GiveUp => "give-up",
            Self::Again => "again",
            Self::Here => "here",
            Self::Wait => "wait",
            Self::Leave => "leave",
        })
    }
}

/// Returns what is done.
pub fn action(situation: &Situation) -> Action {
    if situation.is_successor && situation.ended == Ended::Locked {
        return Action::Leave;
    }
    if situation.is_interrupted || situation.terminated == Some(Terminated::Cancelled) {
        return Action::Stop;
    }
    let action = by_end(situation);
    let goes_on = matches!(action, Action::Again | Action::Here);
    if goes_on && situation.without_progress >= MAX_WITHOUT_PROGRESS.max(limit_here(situation)) {
        return Action::GiveUp;
    }
    action
}

/// Crashes in one job have a limit of their own.
fn limit_here(situation: &Situation) -> u32 {
    match situation.ended {
        Ended::Killed { .. } => situation.max_starts,
        _ => 0,
    }
}

fn by_end(situation: &Situation) -> Action {
    let is_ending = situation.terminated.is_some();
    match &situation.ended {
        Ended::Said(end) => match end {
            RunEnd::Success | RunEnd::Failed | RunEnd::TaskAbort => Action::Stop,
            RunEnd::Drained { by: DrainedBy::User } if !is_ending => Action::Stop,
            RunEnd::Drained { .. } | RunEnd::WallTime | RunEnd::HeldBack | RunEnd::Stranded { .. } => {
                Action::Again
            }
            RunEnd::Signal { signal } if *signal == libc::SIGTERM => Action::Again,
            RunEnd::Signal { .. } => Action::Stop,
            RunEnd::Error { .. } if is_ending => Action::Again,
            // Somebody may have made room meanwhile.
            RunEnd::Error { .. } if end.is_full_disk() && situation.without_progress == 1 => Action::Again,
            RunEnd::Error { .. } => Action::GiveUp,
        },
        Ended::Killed { .. } if is_ending || situation.drains || !situation.has_time => Action::Again,
        Ended::Killed { signal } if CRASHES.contains(signal) => match situation.starts < situation.max_starts
        {
            true => Action::Here,
            false => Action::Again,
        },
        // Somebody has asked it to end.
        Ended::Killed { .. } => Action::Stop,
        // A run outside of a submit directory says it by its exit code only.
        Ended::NotBegun { code: SUCCESS } => Action::Stop,
        Ended::NotBegun {
            code: DRAINED | STRANDED,
        } => Action::Again,
        Ended::Locked if situation.may_wait && !is_ending => Action::Wait,
        Ended::NotBegun { .. } if is_ending => Action::Again,
        Ended::Locked => Action::Again,
        Ended::NotBegun { .. } | Ended::NotFound => Action::GiveUp,
    }
}

/// The matrix, for people.
pub const TABLE: &str = "\
how the workflow ended                                        what is done
------------------------------------------------------------  ------------------------------------------
all tasks are done; nothing is left that could run;           stop: the next job is cancelled
  a task has ended it (--abort-on)
drained by the time of the job, the site, or SIGTERM at       again: the next job goes on
  the limit; preempted; wall time over, or too near
nodes were lost, and nothing fits on the others               again
killed or crashed, and this job has time                      here: it starts again in this job
killed or crashed with the job, or too often                  again
job cancelled; SIGINT; `pmc drain`                            stop: the next job is cancelled
a file cannot be written; no agent comes; the plan is         give up: the next job is cancelled,
  refused; the command is not there                           and the message says why
the same end three times without progress                     give up
a disk was full                                               again, once; then give up
another run has the lock                                      wait, up to ten minutes; then again
an agent has started this, and another one has the lock       leave: the other one goes on
";

#[cfg(test)]
mod tests {
    use super::*;

    fn situation(ended: Ended) -> Situation {
        Situation {
            ended,
            terminated: None,
            is_interrupted: false,
            starts: 1,
            max_starts: MAX_STARTS,
            has_time: true,
            drains: false,
            without_progress: 1,
            may_wait: true,
            is_successor: false,
        }
    }

    fn said(end: RunEnd) -> Situation {
        situation(Ended::Said(end))
    }

    fn drained(by: DrainedBy) -> RunEnd {
        RunEnd::Drained { by }
    }

    #[test]
    fn each_end_has_its_action() {
        let message = String::new;
        for (end, wanted) in [
            (RunEnd::Success, Action::Stop),
            (RunEnd::Failed, Action::Stop),
            (RunEnd::TaskAbort, Action::Stop),
            (drained(DrainedBy::Time), Action::Again),
            (drained(DrainedBy::Term), Action::Again),
            (drained(DrainedBy::Site), Action::Again),
            (drained(DrainedBy::User), Action::Stop),
            (RunEnd::WallTime, Action::Again),
            (RunEnd::HeldBack, Action::Again),
            (RunEnd::Stranded { message: message() }, Action::Again),
            (RunEnd::Signal { signal: 15 }, Action::Again),
            (RunEnd::Signal { signal: 2 }, Action::Stop),
            (RunEnd::Error { message: message() }, Action::GiveUp),
        ] {
            assert_eq!(action(&said(end.clone())), wanted, "{end}");
        }
        for (ended, wanted) in [
            (Ended::Killed { signal: 9 }, Action::Here),
            (Ended::Killed { signal: 11 }, Action::Here),
            (Ended::Killed { signal: 15 }, Action::Stop),
            (Ended::NotBegun { code: 0 }, Action::Stop),
            (Ended::NotBegun { code: 1 }, Action::GiveUp),
            (Ended::NotBegun { code: 75 }, Action::Again),
            (Ended::NotFound, Action::GiveUp),
            (Ended::Locked, Action::Wait),
        ] {
            assert_eq!(action(&situation(ended.clone())), wanted, "{ended:?}");
        }
    }

    #[test]
    fn nothing_goes_on_after_a_cancel() {
        let ends = [
            Ended::Said(RunEnd::WallTime),
            Ended::Said(drained(DrainedBy::Term)),
            Ended::Killed { signal: 9 },
            Ended::Locked,
        ];
        for ended in ends {
            let mut cancelled = situation(ended);
            cancelled.terminated = Some(Terminated::Cancelled);
            assert_eq!(action(&cancelled), Action::Stop);
            cancelled.terminated = Some(Terminated::TimeLimit);
            assert_eq!(action(&cancelled), Action::Again);
            cancelled.is_interrupted = true;
            assert_eq!(action(&cancelled), Action::Stop);
        }
    }

    #[test]
    fn a_job_that_ends_hands_on() {
        let mut job = said(drained(DrainedBy::User));
        job.terminated = Some(Terminated::Preempted);
        assert_eq!(action(&job), Action::Again);
        let mut job = said(RunEnd::Success);
        job.terminated = Some(Terminated::TimeLimit);
        assert_eq!(action(&job), Action::Stop);
        let killed = |has_time, drains, starts| Situation {
            has_time,
            drains,
            starts,
            ..situation(Ended::Killed { signal: 9 })
        };
        assert_eq!(action(&killed(false, false, 1)), Action::Again);
        assert_eq!(action(&killed(true, true, 1)), Action::Again);
        assert_eq!(action(&killed(true, false, MAX_STARTS)), Action::Again);
    }

    #[test]
    fn no_chain_without_progress_goes_on_for_ever() {
        let mut job = said(RunEnd::WallTime);
        job.without_progress = MAX_WITHOUT_PROGRESS - 1;
        assert_eq!(action(&job), Action::Again);
        job.without_progress += 1;
        assert_eq!(action(&job), Action::GiveUp);
        let mut job = situation(Ended::Killed { signal: 9 });
        job.without_progress = MAX_STARTS;
        assert_eq!(action(&job), Action::GiveUp);
    }

    #[test]
    fn a_run_that_goes_on_elsewhere_is_left_alone() {
        let mut job = situation(Ended::Locked);
        job.may_wait = false;
        assert_eq!(action(&job), Action::Again);
        job.without_progress = MAX_WITHOUT_PROGRESS;
        assert_eq!(action(&job), Action::GiveUp);
        // Of two agents that start a master, the second one must not end the job of the first.
        job.is_successor = true;
        assert_eq!(action(&job), Action::Leave);
        assert!(!Action::Leave.ends_chain());
        job.terminated = Some(Terminated::Cancelled);
        assert_eq!(action(&job), Action::Leave);
    }

    #[test]
    fn after_a_full_disk_one_more_job_tries() {
        for reason in ["No space left on device", "Disk quota exceeded"] {
            let mut job = said(RunEnd::error(&format!("Unable to write x.dag.rescue: {reason}")));
            assert_eq!(action(&job), Action::Again);
            job.without_progress = 2;
            assert_eq!(action(&job), Action::GiveUp);
        }
    }
}
