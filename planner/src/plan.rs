//! Planning from a request to a submit directory. Nothing here reads the environment, the clock or the
//! working directory: the request brings what the rim has read.

use std::path::PathBuf;
use std::time::SystemTime;

use chrono::{DateTime, FixedOffset};

use crate::diagnostic::Diagnostic;
use crate::report::summary::Summary;
use crate::scheduler::Scheduler;

/// A batch script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// For which scheduler.
    pub scheduler: Scheduler,
    /// Where it is.
    pub path: PathBuf,
}

/// The finished plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Submit directory, absolute.
    pub submit_dir: PathBuf,
    /// Name of the workflow.
    pub label: String,
    /// Its index, normally `0`.
    pub index: String,
    /// Identifier of the workflow.
    pub uuid: String,
    /// The DAG for pegasus-mpi-cluster; the code generator Shell makes none.
    pub dag: PathBuf,
    /// Script of the code generator Shell, which runs the workflow.
    pub shell: Option<PathBuf>,
    /// Batch scripts, that for the preferred scheduler first.
    pub scripts: Vec<Script>,
    /// Directories into which outputs are copied, where they are on a file system.
    pub output_dirs: Vec<PathBuf>,
    /// How many jobs of each kind there are.
    pub counts: Counts,
    /// The braindump: its keys and values in order.
    pub braindump: Vec<(String, Option<String>)>,
    /// What the user should know.
    pub warnings: Vec<Diagnostic>,
    /// Decisions that `-v` prints.
    pub notes: Vec<String>,
}

/// Figures of a plan that is not written, and explanations of some of its jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Preview {
    /// Its figures.
    pub summary: Summary,
    /// Explanations of the requested jobs.
    pub explanations: Vec<String>,
    /// Names of all jobs.
    pub jobs: Vec<String>,
    /// What the user should know.
    pub warnings: Vec<Diagnostic>,
    /// Decisions that `-v` prints.
    pub notes: Vec<String>,
}

mod advice;
mod build;
mod directories;
mod files;
mod inputs;

pub use crate::exec::Counts;
pub use build::{measure, plan, preview, wants_shell};

/// Formats a time as the records of the workflow have it: ISO 8601, seconds, numeric offset.
pub(crate) fn iso_seconds(time: SystemTime, offset: FixedOffset) -> String {
    DateTime::<chrono::Utc>::from(time)
        .with_timezone(&offset)
        .format("%Y-%m-%dT%H:%M:%S%:z")
        .to_string()
}
