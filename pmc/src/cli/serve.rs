//! Options of the commands about runs that take tasks.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::Execution;
use super::control::time;

/// Exit codes of `pmc serve`.
const SERVE_EXIT: &str = "\
Exit codes:
  0    all tasks succeeded
  1    some tasks failed or did not run
  2    the command line is wrong
  4    the run could not start or continue
  130  stopped by Ctrl-C (143: by SIGTERM); `pmc serve DIR` continues";

/// Exit codes of `pmc add`.
const ADD_EXIT: &str = "\
Exit codes:
  0    the run has accepted the tasks
  2    the command line or a line of standard input is wrong, or RUN is not the directory of a run
  4    the run does not go on, cannot be asked from here, or refuses";

/// Exit codes of `pmc wait`.
const WAIT_EXIT: &str = "\
Exit codes:
  0    the tasks are done
  1    some of them have failed or will not run
  2    the command line is wrong, or RUN is not the directory of a run
  4    the run does not go on, or it ended before the tasks did";

/// Exit codes of `pmc cancel`.
const CANCEL_EXIT: &str = "\
Exit codes:
  0    the run has cancelled the tasks, or they had ended
  2    the command line is wrong, or RUN is not the directory of a run
  4    the run does not go on, or has no such task

A task that runs gets SIGTERM and is not tried again; `pmc kill -s 9` ends one that goes on. If the run is ended
and served again, tasks that were cancelled run, as those that have failed.";

/// `pmc serve`.
#[derive(Args, Clone, Debug)]
#[command(after_help = SERVE_EXIT)]
pub struct Serve {
    /// Directory of the run. It is made if it does not exist; else what was accepted there and is not done
    /// goes on
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Let the run that goes on there take no more tasks, and end when all have ended
    #[arg(long, conflicts_with_all = ["idle_limit", "agents"])]
    pub stop: bool,
    /// End when there was nothing to do for this time: seconds, or a number with s, m or h
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub idle_limit: Option<Duration>,
    /// Start this number of agents, one on each node of the batch job, as --launch says
    #[arg(long, value_name = "N", conflicts_with = "hosts", value_parser = clap::value_parser!(u32).range(1..))]
    pub agents: Option<u32>,
    /// How agents are started: srun, mpiexec, flux, pbsdsh, blaunch, or a command that the agent's follows
    #[arg(long, value_name = "HOW", default_value = "srun", requires = "agents")]
    pub launch: String,
    /// How long the agents go on with their tasks, and wait for this run to be served again, if this process
    /// is killed: seconds, or a number with s, m or h [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = time, requires = "agents")]
    pub master_timeout: Option<Duration>,
    /// Print nothing unless something is wrong
    #[arg(short, long)]
    pub quiet: bool,
    /// Limits and options of the execution.
    #[command(flatten)]
    pub execution: Execution,
}

/// `pmc add`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = ADD_EXIT,
    override_usage = "pmc add [OPTIONS] [RUN] -- COMMAND...\n       pmc add [RUN] < TASKS"
)]
pub struct Add {
    /// Directory of a run that `pmc serve` has started [default: the working directory if it is one, else the
    /// latest run below pmc-runs]
    #[arg(value_name = "RUN")]
    pub run: Option<PathBuf>,
    /// Command for the shell. Without one, standard input has a JSON object in each line: see pmc-json
    #[arg(value_name = "COMMAND", last = true, allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// CPUs that the task requests [default: 1]
    #[arg(short = 'c', long, value_name = "N")]
    pub cpus: Option<u32>,
    /// Memory that it requests, in MiB
    #[arg(short = 'm', long, value_name = "MIB")]
    pub memory: Option<u64>,
    /// GPUs that it requests
    #[arg(short = 'g', long, value_name = "N")]
    pub gpus: Option<u32>,
    /// Hosts that it holds at once
    #[arg(short = 'N', long, value_name = "N")]
    pub nodes: Option<u32>,
    /// Its name [default: its number in the run]
    #[arg(long, value_name = "NAME")]
    pub label: Option<String>,
    /// Tasks that must be done before
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub after: Vec<String>,
    /// Maximum attempts
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tries: Option<u32>,
    /// Priority: of the tasks that are ready, those with the highest start first
    #[arg(short = 'p', long, value_name = "N", allow_hyphen_values = true)]
    pub priority: Option<i64>,
    /// How long it is expected to run, in seconds
    #[arg(short = 'e', long, value_name = "SECONDS")]
    pub expected_seconds: Option<u32>,
    /// Kind of task, for statistics [default: the name of its program]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// `pmc wait`.
#[derive(Args, Clone, Debug)]
#[command(after_help = WAIT_EXIT, override_usage = "pmc wait [OPTIONS] [ID]... [RUN]")]
pub struct Wait {
    /// Tasks to wait for [default: until all have ended], and last the directory of a run that `pmc serve`
    /// has started [default: the working directory if it is one, else the latest run below pmc-runs]
    #[arg(value_name = "ID")]
    pub words: Vec<String>,
    /// Print the ends of all tasks from the start of the run on, until the run ends
    #[arg(long)]
    pub follow: bool,
}

/// `pmc cancel`.
#[derive(Args, Clone, Debug)]
#[command(after_help = CANCEL_EXIT, override_usage = "pmc cancel ID... [RUN]")]
pub struct Cancel {
    /// Tasks that are not to run, or to go on, and last the directory of a run that `pmc serve` has started
    /// [default: the working directory if it is one, else the latest run below pmc-runs]
    #[arg(value_name = "ID", required = true)]
    pub words: Vec<String>,
}
