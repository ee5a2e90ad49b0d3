//! Options of `pmc log`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// Exit codes of `pmc log`.
const EXIT: &str = "\
Standard output and standard error of the task go to those of pmc. If that is a terminal, control
characters are escaped; otherwise all bytes are as the task wrote them.

Exit codes:
  0    the output was printed
  2    the command line is wrong, RUN is not the directory of a run, or it has no such task
  4    the task has no such attempt or has not started, or its output cannot be read";

/// `pmc log`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT)]
pub struct Log {
    /// Task
    #[arg(value_name = "TASK")]
    pub task: OsString,
    /// Directory of the run [default: the working directory if it is one, else the latest run below pmc-runs]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
    /// Go on until the attempt has ended. Waits for the start of a task that has not started
    #[arg(short, long)]
    pub follow: bool,
    /// Number of the attempt, counted from 1 over all runs of the plan [default: the latest]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub attempt: Option<u32>,
    /// Print standard output only
    #[arg(long, conflicts_with = "stderr")]
    pub stdout: bool,
    /// Print standard error only, to standard output
    #[arg(long)]
    pub stderr: bool,
}
