//! Options of the commands that read a run without changing it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Exit codes of `pmc status --quiet`.
const STATUS_EXIT: &str = "\
Exit codes:
  0    the status was printed; with --quiet: all tasks are done
  1    with --quiet: the run stopped before all tasks were done
  2    the command line is wrong, or DIR is not the directory of a run
  4    a file of the run cannot be read
  5    with --quiet: the run has not started or has not ended";

/// `pmc status`.
#[derive(Args, Clone, Debug)]
#[command(after_help = STATUS_EXIT)]
pub struct Status {
    /// Directory of the run, its submit directory, or a submit directory of pmc-plan [default: the working
    /// directory if it is one of these, else the latest run below pmc-runs]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Refresh until the run ends. Without a terminal: print failures at once and progress every 10 seconds
    #[arg(short, long)]
    pub watch: bool,
    /// Print JSON; with --watch one object per line
    #[arg(long)]
    pub json: bool,
    /// Print nothing; the exit code is the status. With --watch: wait for the end of the run
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// Maximum running and failed tasks to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub lines: usize,
}

/// Exit codes of `pmc analyzer`.
const ANALYZER_EXIT: &str = "\
Exit codes:
  0    no task failed, and the run is complete or still running
  1    tasks failed, or the run stopped before all tasks were done
  2    the command line is wrong, or DIR is not the directory of a run
  4    a file of the run cannot be read";

/// `pmc analyzer`.
#[derive(Args, Clone, Debug)]
#[command(after_help = ANALYZER_EXIT)]
pub struct Analyzer {
    /// Directory of the run, its submit directory, or a submit directory of pmc-plan [default: the working
    /// directory if it is one of these, else the latest run below pmc-runs]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print nothing; the exit code says whether something failed
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// Maximum causes to explain in full
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5)]
    pub causes: usize,
}

/// Exit codes of `pmc statistics` and `pmc report`.
const VIEW_EXIT: &str = "\
Exit codes:
  0    done
  2    the command line is wrong, or DIR is not the directory of a run
  4    a file of the run cannot be read, or a file cannot be written";

/// `pmc statistics`.
#[derive(Args, Clone, Debug)]
#[command(after_help = VIEW_EXIT)]
pub struct Statistics {
    /// Directory of the run, its submit directory, or a submit directory of pmc-plan [default: the working
    /// directory if it is one of these, else the latest run below pmc-runs]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Sections to print, separated by commas
    #[arg(
        short,
        long,
        value_name = "WHAT",
        value_enum,
        value_delimiter = ',',
        default_values = ["summary", "breakdown", "hosts"]
    )]
    pub sections: Vec<Section>,
    /// Time unit of the section `time`
    #[arg(short, long, value_name = "STEP", value_enum, default_value_t = TimeStep::Day)]
    pub time: TimeStep,
    /// Print CSV with the columns of pegasus-statistics
    #[arg(long)]
    pub csv: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Write one file per section into this directory, with the file names of pegasus-statistics
    #[arg(short, long, value_name = "DIR", conflicts_with = "json")]
    pub output: Option<PathBuf>,
}

/// Sections of the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Section {
    /// Counts of tasks and jobs, total times
    Summary,
    /// The same per workflow
    Workflow,
    /// Every attempt of every job
    Jobs,
    /// By transformation
    Breakdown,
    /// By day or hour, and by host
    Time,
    /// Checksums
    Integrity,
    /// Use of hosts
    Hosts,
    /// All sections
    All,
}

/// Time unit.
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
    /// Directory of the run, its submit directory, or a submit directory of pmc-plan [default: the working
    /// directory if it is one of these, else the latest run below pmc-runs]
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// HTML file to write [default: report.html, unless --ro-crate is given]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write a trace for chrome://tracing and Perfetto
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write provenance as a Workflow Run RO-Crate into this new directory: workflow, inputs, outputs, and
    /// each execution of a program
    #[arg(long, value_name = "DIR")]
    pub ro_crate: Option<PathBuf>,
    /// Do not print the names of the files
    #[arg(short, long)]
    pub quiet: bool,
}
