//! Options of `pmc pmix`.

use std::path::PathBuf;

use clap::Args;

/// Exit codes of `pmc pmix`.
const EXIT: &str = "\
The run is a namespace of PMIx, and each running attempt a process whose rank is its submit number.
Tools find it by RUN's DAG file with .pmix behind its name (PMIX_TOOL_ATTACHMENT_FILE), by its process or
its namespace, or without all that if it is the only server of this user.

Exit codes:
  0    the run has ended
  2    the command line is wrong, or RUN is not the directory of a run
  4    the run does not go on, belongs to another user, or the library of PMIx does not start a server
  69   the tasks of the run share files; or this program was built without the feature pmix
  130  stopped by Ctrl-C (143: by SIGTERM)";

/// `pmc pmix`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT)]
pub struct Pmix {
    /// Directory of the run [default: the working directory if it is one, else the latest run below pmc-runs]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
}
