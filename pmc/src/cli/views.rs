//! Commands that look at a run without changing it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Exit codes of `pmc status --quiet`.
const STATUS_EXIT: &str = "\
Exit codes:
  0    the status was told; with --quiet: all tasks are done
  1    with --quiet: the run ended, was interrupted or killed, and tasks are not done
  2    the command line is wrong, or DIR is no directory of a run
  4    a file of the run cannot be read
  5    with --quiet: the run goes on, or has not begun";

/// `pmc status`.
#[derive(Args, Clone, Debug)]
#[command(after_help = STATUS_EXIT)]
pub struct Status {
    /// Directory of the run, its submit directory, or a submit directory of pmc-plan
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Look again until the run ends. Without a terminal: tell failures as they come and, now and then, the progress
    #[arg(short, long)]
    pub watch: bool,
    /// Write JSON; with --watch one object a line
    #[arg(long)]
    pub json: bool,
    /// Tell nothing; the exit code says how the run stands. With --watch: wait for its end
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// Running and failed tasks to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub lines: usize,
}

/// Exit codes of `pmc analyzer`.
const ANALYZER_EXIT: &str = "\
Exit codes:
  0    no task failed, and the run is done or goes on
  1    tasks failed, or the run ended before all were done
  2    the command line is wrong, or DIR is no directory of a run
  4    a file of the run cannot be read";

/// `pmc analyzer`.
#[derive(Args, Clone, Debug)]
#[command(after_help = ANALYZER_EXIT)]
pub struct Analyzer {
    /// Directory of the run, its submit directory, or a submit directory of pmc-plan
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Write JSON
    #[arg(long)]
    pub json: bool,
    /// Tell nothing; the exit code says whether something failed
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// Causes to tell in full
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5)]
    pub causes: usize,
}

/// Exit codes of `pmc statistics` and `pmc report`.
const VIEW_EXIT: &str = "\
Exit codes:
  0    done
  2    the command line is wrong, or DIR is no directory of a run
  4    a file of the run cannot be read, or a file cannot be written";

/// `pmc statistics`.
#[derive(Args, Clone, Debug)]
#[command(after_help = VIEW_EXIT)]
pub struct Statistics {
    /// Directory of the run, its submit directory, or a submit directory of pmc-plan
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// What to tell; several with commas
    #[arg(short, long, value_name = "WHAT", value_enum, value_delimiter = ',', default_values = ["summary", "breakdown", "hosts"])]
    pub sections: Vec<Section>,
    /// Pieces of time
    #[arg(short, long, value_name = "STEP", value_enum, default_value_t = TimeStep::Day)]
    pub time: TimeStep,
    /// Write CSV instead of text, with the columns of pegasus-statistics
    #[arg(long)]
    pub csv: bool,
    /// Write JSON instead of text
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Write a file for each section into this directory, named as those of pegasus-statistics
    #[arg(short, long, value_name = "DIR", conflicts_with = "json")]
    pub output: Option<PathBuf>,
}

/// Parts of the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Section {
    /// Counts of tasks and jobs, sums of time
    Summary,
    /// The same for each workflow
    Workflow,
    /// Every try of every job
    Jobs,
    /// By transformation
    Breakdown,
    /// By day or hour, and by host
    Time,
    /// Checksums
    Integrity,
    /// Use of hosts
    Hosts,
    /// All of these
    All,
}

/// Pieces of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TimeStep {
    /// Days, UTC
    Day,
    /// Hours, UTC
    Hour,
}

/// `pmc report`.
#[derive(Args, Clone, Debug)]
#[command(after_help = VIEW_EXIT)]
pub struct Report {
    /// Directory of the run, its submit directory, or a submit directory of pmc-plan
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// The HTML file to write
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
    /// Also write a trace that chrome://tracing and Perfetto show
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Do not tell the names of the files
    #[arg(short, long)]
    pub quiet: bool,
}
