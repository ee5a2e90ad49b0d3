//! Summary of a run, as text and as JSON.

mod human;
mod json;

use std::path::PathBuf;
use std::time::Duration;

pub use human::render as render_human;
pub use json::{render as render_json, render_error as render_json_error};

pub use pmc_monitor::ending::Ending;
pub use pmc_monitor::failure::{FailedTask, Tail};

use crate::kinds::Kind;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// All tasks are done.
    Success,
    /// It was drained, and no task has failed.
    Drained,
    /// Some tasks failed or did not run.
    Failed,
    /// A signal with this number ended the run.
    Interrupted(u8),
}

/// Tasks of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All tasks.
    pub total: usize,
    /// Done, in this run or before.
    pub done: usize,
    /// Failed for good.
    pub failed: usize,
}

/// Output files of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outputs {
    /// The directory.
    pub directory: PathBuf,
    /// Files of this run in name order, relative to the directory.
    pub files: Vec<(String, u64)>,
}

/// Facts of the summary.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Name of the workflow.
    pub label: String,
    /// How it ended.
    pub status: Status,
    /// Exit code of the command.
    pub exit_code: u8,
    /// Wall time of the run, planning included.
    pub wall: Duration,
    /// Tasks by kind.
    pub tallies: Vec<(Kind, Tally)>,
    /// Tasks done before this run.
    pub done_before: usize,
    /// Tasks that failed, in the order of their failures.
    pub failures: Vec<FailedTask>,
    /// The run stopped because the failure limit was reached.
    pub max_failures_reached: bool,
    /// Outputs, if their directory is known.
    pub outputs: Option<Outputs>,
    /// The submit directory.
    pub submit_dir: PathBuf,
    /// Command that resumes the run.
    pub resume: Vec<String>,
}

impl Summary {
    /// Returns the sum over all kinds.
    pub fn all(&self) -> Tally {
        self.tallies
            .iter()
            .fold(Tally::default(), |sum, (_, tally)| Tally {
                total: sum.total + tally.total,
                done: sum.done + tally.done,
                failed: sum.failed + tally.failed,
            })
    }
}

#[cfg(test)]
pub mod fixture {
    //! A summary with all fields.
    use super::*;

    fn tally(total: usize, done: usize, failed: usize) -> Tally {
        Tally { total, done, failed }
    }

    /// Two failures of seven tasks.
    pub fn failed() -> Summary {
        Summary {
            label: "diamond".into(),
            status: Status::Failed,
            exit_code: 1,
            wall: Duration::from_millis(1340),
            tallies: vec![
                (Kind::Compute, tally(4, 1, 2)),
                (Kind::CreateDir, tally(1, 1, 0)),
                (Kind::StageIn, tally(1, 1, 0)),
                (Kind::StageOut, tally(1, 0, 0)),
            ],
            done_before: 2,
            failures: vec![
                FailedTask {
                    task: "findrange_ID0000002".into(),
                    transformation: Some("findrange".into()),
                    command: vec!["/opt/findrange".into(), "-i".into(), "f b1".into()],
                    is_lite: false,
                    whole_command: vec![],
                    ending: Ending::Exit(3),
                    duration: Some(Duration::from_millis(12)),
                    attempts: 2,
                    host: Some("node1".into()),
                    stderr: Tail {
                        lines: vec!["cannot read f.b1".into(), "giving up".into()],
                        omitted: 22,
                    },
                    stdout: Tail::default(),
                    reason: None,
                    note: None,
                    directory: None,
                    environment: vec![],
                    secrets: None,
                    stdin: None,
                    peak_kib: None,
                    output_file: Some(
                        "/w/pmc-runs/diamond/run0001/submit/findrange_ID0000002.out.001".into(),
                    ),
                },
                FailedTask {
                    task: "findrange_ID0000003".into(),
                    transformation: None,
                    command: vec![],
                    is_lite: false,
                    whole_command: vec![],
                    ending: Ending::Signal(9),
                    duration: None,
                    attempts: 1,
                    host: None,
                    stderr: Tail::default(),
                    stdout: Tail::default(),
                    reason: None,
                    note: Some("it left no invocation record".into()),
                    directory: None,
                    environment: vec![],
                    secrets: None,
                    stdin: None,
                    peak_kib: None,
                    output_file: None,
                },
            ],
            max_failures_reached: false,
            outputs: Some(Outputs {
                directory: "/w/pmc-runs/diamond/run0001/output".into(),
                files: vec![],
            }),
            submit_dir: "/w/pmc-runs/diamond/run0001/submit".into(),
            resume: vec!["pmc".into(), "resume".into(), "pmc-runs/diamond/run0001".into()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_wait_statuses() {
        assert_eq!(Ending::from_wait_status(768), Ending::Exit(3));
        assert_eq!(Ending::from_wait_status(139).to_string(), "signal 11, SIGSEGV");
        assert_eq!(Ending::from_wait_status(-1).to_string(), "could not be started");
    }

    #[test]
    fn tails_keep_the_end() {
        assert_eq!(
            Tail::of("\na\nb\nc\n\n", 2),
            Tail {
                lines: vec!["b".into(), "c".into()],
                omitted: 1
            }
        );
        assert!(Tail::of("\n \n", 2).is_empty());
    }
}
