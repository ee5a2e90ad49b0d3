//! Planning: from a request to a submit directory. Nothing here reads environment variables, the clock or the
//! working directory: they are part of the request.

use std::path::PathBuf;
use std::time::SystemTime;

use chrono::{DateTime, FixedOffset};

use crate::diagnostic::Diagnostic;
use crate::report::summary::Summary;

pub use pmc_batch::Script;

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
    /// The DAG for pegasus-mpi-cluster. The code generator Shell writes none.
    pub dag: PathBuf,
    /// Script of the code generator Shell, which runs the workflow.
    pub shell: Option<PathBuf>,
    /// Submit description of the run of DAGMan. Only the code generator Condor writes one.
    pub condor: Option<PathBuf>,
    /// Batch scripts, the one for the preferred scheduler first.
    pub scripts: Vec<Script>,
    /// Slots of the batch job of the preferred scheduler, and how many jobs run at a time.
    pub batch_size: Option<String>,
    /// Files that a run of the batch job makes for the output of tasks.
    pub run_files: Option<String>,
    /// Options of the executor that the batch scripts give it for its logs and the output of tasks.
    pub log_options: Vec<&'static str>,
    /// A job needs several nodes at once, so that the executor needs agents.
    pub needs_nodes: bool,
    /// Output directories on file systems.
    pub output_dirs: Vec<PathBuf>,
    /// Numbers of jobs by kind.
    pub counts: Counts,
    /// Keys and values of the braindump, in order.
    pub braindump: Vec<(String, Option<String>)>,
    /// Warnings for the user.
    pub warnings: Vec<Diagnostic>,
    /// Decisions that `-v` prints.
    pub notes: Vec<String>,
}

/// Figures of a plan that is not written, and explanations of some of its jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Preview {
    /// Figures of the plan.
    pub summary: Summary,
    /// Explanations of the requested jobs.
    pub explanations: Vec<String>,
    /// Names of all jobs.
    pub jobs: Vec<String>,
    /// Warnings for the user.
    pub warnings: Vec<Diagnostic>,
    /// Decisions that `-v` prints.
    pub notes: Vec<String>,
}

mod advice;
mod build;
mod deferred;
mod directories;
mod facts;
mod files;
mod inputs;
mod preflight;
mod replan;
mod this_machine;

pub use crate::exec::Counts;
pub use build::{measure, plan, preview, wants_scheduler};
pub use deferred::{Prepared, prepare};
pub use facts::{Facts, facts, properties};
pub use replan::{ReplanError, ReplanOptions, Replanned, finish_replacement, replan};

/// Formats a time as the records of the workflow have it: ISO 8601, seconds, numeric offset.
pub(crate) fn iso_seconds(time: SystemTime, offset: FixedOffset) -> String {
    DateTime::<chrono::Utc>::from(time)
        .with_timezone(&offset)
        .format("%Y-%m-%dT%H:%M:%S%:z")
        .to_string()
}
