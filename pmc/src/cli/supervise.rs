//! Options of `pmc supervise`.

use std::path::PathBuf;

use clap::Args;

/// Exit codes of `pmc supervise`.
const EXIT: &str = "\
Batch scripts of pmc-plan call it. It keeps the list of batch jobs of the run in NAME.dag.jobs,
starts the command again if it crashes, and hands in the job that follows, which waits for the end
of this one.

Exit codes:
  that of the command; 128 and its number for a signal
  2    the command line is wrong, or DIR is not the directory of a run
  127  the command cannot be run";

/// `pmc supervise`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT)]
pub struct Supervise {
    /// Print what is done after each end, and do nothing
    #[arg(long)]
    pub matrix: bool,
    /// Number of further batch jobs that may follow the first one
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub resubmit: u32,
    /// Starts of the command in this job, if it crashes; at most 10
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub starts: u32,
    /// Minutes of the job, if the batch system does not say how many are left
    #[arg(long, value_name = "N")]
    pub minutes: Option<u64>,
    /// Ask the run to drain after this time
    #[arg(long, value_name = "SECONDS")]
    pub drain_after: Option<u64>,
    /// The first node of this job was lost: go on with the command in the list of batch jobs
    #[arg(long)]
    pub successor: bool,
    /// Say whether this is a restart, and do nothing else: exit with 1 if the task, or else the workflow in
    /// an earlier job, has begun before, with 0 if not
    #[arg(long)]
    pub is_restart: bool,
    /// The batch job that `--is-restart` is about [default: that of this process]
    #[arg(long, value_name = "ID", requires = "is_restart")]
    pub job: Option<String>,
    /// Note that the workflow has begun in this job, and do nothing else
    #[arg(long, conflicts_with = "is_restart")]
    pub init: bool,
    /// Submit directory, or the DAG file
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Command that runs the workflow
    #[arg(value_name = "COMMAND", last = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
}
