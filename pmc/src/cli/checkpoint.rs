//! Options of `pmc checkpoint`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Exit codes of `pmc checkpoint`.
const EXIT: &str = "\
Exit codes:
  0    it was done; the answer is yes
  1    there is no checkpoint; the answer is no; checkpoints are damaged
  2    the command line is wrong
  4    this is no task of a run, a file cannot be used, or there is no such run";

/// `pmc checkpoint`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXIT)]
pub struct Checkpoint {
    /// What to do.
    #[command(subcommand)]
    pub action: CheckpointAction,
}

/// What `pmc checkpoint` does. The first four are for the scripts of tasks.
#[derive(Clone, Debug, Subcommand)]
pub enum CheckpointAction {
    /// In a task: save files as the next series of its checkpoints
    Put {
        /// A prefix, at most 20 letters and digits, and the file that is saved under it; `-` is standard
        /// input. All pairs together become one series
        #[arg(value_name = "PREFIX FILE", required = true, num_args = 2.., allow_hyphen_values = true)]
        files: Vec<PathBuf>,
    },
    /// In a task: get a file of the newest complete series of its earlier attempts
    Get {
        /// The prefix
        #[arg(value_name = "PREFIX")]
        prefix: String,
        /// File to write [default: standard output]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// In a task: is it time to save? Before the end of the run, and when enough time has passed
    Due,
    /// In a task: was the run asked to drain?
    Drain,
    /// List the checkpoints of a run
    Ls {
        /// Directory of the run [default: the working directory if it is one, else the latest run below
        /// pmc-runs]
        #[arg(value_name = "RUN")]
        run: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Read all checkpoints of a run, and say which are damaged; these will not be used
    Verify {
        /// Directory of the run [default: as above]
        #[arg(value_name = "RUN")]
        run: Option<PathBuf>,
    },
    /// Before a run goes on: check the series from which each task will go on, and say which it is
    Recover {
        /// Directory of the run [default: as above]
        #[arg(value_name = "RUN")]
        run: Option<PathBuf>,
    },
    /// Remove the checkpoints of a run that does not go on: its tasks begin again
    Rm {
        /// Directory of the run
        #[arg(value_name = "RUN")]
        run: PathBuf,
        /// Only those of these tasks
        #[arg(value_name = "TASK")]
        tasks: Vec<String>,
    },
}

/// Exit codes of `pmc message`.
const MESSAGE_EXIT: &str = "\
Exit codes:
  0    the message is kept
  2    the command line is wrong, or the message is empty
  4    this is no task of a run, or the message cannot be kept";

/// `pmc message`.
#[derive(Args, Clone, Debug)]
#[command(after_help = MESSAGE_EXIT)]
pub struct Message {
    /// Send it to this address, too: at most one message a minute
    #[arg(long, value_name = "ADDRESS")]
    pub mail: Option<String>,
    /// The message: the last one of a task counts
    #[arg(value_name = "TEXT", required = true)]
    pub text: Vec<String>,
}
