//! Options of the commands that read a run without changing it.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use thiserror::Error;

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
    #[arg(value_name = "RUN")]
    pub dir: Option<PathBuf>,
    /// Refresh until the run ends. Without a terminal: print failures at once and progress every 10 seconds
    #[arg(short, long)]
    pub watch: bool,
    /// Print JSON; with --watch one object per line
    #[arg(long)]
    pub json: bool,
    /// Print metrics in the text format of OpenMetrics, which Prometheus and others read
    #[arg(long, conflicts_with_all = ["json", "watch", "quiet", "data"])]
    pub openmetrics: bool,
    /// Print nothing; the exit code is the status. With --watch: wait for the end of the run
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// Maximum running and failed tasks to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub lines: usize,
    /// Add what jobs without a shared file system have moved so far, and where their time went
    #[arg(long, conflicts_with = "quiet")]
    pub data: bool,
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
    #[arg(value_name = "RUN")]
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
    #[arg(value_name = "RUN")]
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
    /// Stage-in, run and stage-out time and bytes, without a shared file system
    Data,
    /// What tasks have saved, and what that has cost
    Checkpoints,
    /// What the batch jobs have cost
    Accounting,
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
    #[arg(value_name = "RUN")]
    pub dir: Option<PathBuf>,
    /// HTML file to write [default: report.html, unless --ro-crate or --wfformat is given]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also write a trace for chrome://tracing and Perfetto
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write provenance as a Workflow Run RO-Crate into this new directory: workflow, inputs, outputs, and
    /// each execution of a program
    #[arg(long, value_name = "DIR")]
    pub ro_crate: Option<PathBuf>,
    /// Write workflow and execution as an instance of WfFormat 1.6, for the tools of WfCommons
    #[arg(long, value_name = "FILE")]
    pub wfformat: Option<PathBuf>,
    /// Do not print the names of the files
    #[arg(short, long)]
    pub quiet: bool,
}

/// Exit codes of `pmc simulate`.
const SIMULATE_EXIT: &str = "\
Exit codes:
  0    done
  2    the command line is wrong, DIR is not the directory of a run or plan, or a run time is not known
  4    a file cannot be read, or the tasks cannot run on such nodes";

/// `pmc simulate`.
#[derive(Args, Clone, Debug)]
#[command(after_help = SIMULATE_EXIT)]
pub struct Simulate {
    /// Directory of the run, its submit directory, a submit directory of pmc-plan, or an instance of WfFormat
    /// in JSON [default: the working directory if it is one of these, else the latest run below pmc-runs]
    #[arg(value_name = "RUN")]
    pub dir: Option<PathBuf>,
    /// Numbers of nodes to simulate, separated by commas [default: 1, 2, 4… while that makes the run shorter]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub nodes: Vec<NonZeroU32>,
    /// Mark the batch job that ends within this time and needs the fewest node hours
    #[arg(long, value_name = "MINUTES", value_parser = positive)]
    pub walltime: Option<f64>,
    /// Mean number of losses of one node in an hour, such as 0.01
    #[arg(long, value_name = "N", value_parser = positive)]
    pub loss_rate: Option<f64>,
    /// Time until another node takes the place of a lost one
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub replacement: u64,
    /// Chooses the moments of the losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Let all tasks save their state, which takes this time; what a lost node ran goes on from there
    #[arg(long, value_name = "SECONDS", value_parser = not_negative)]
    pub checkpoint_cost: Option<f64>,
    /// Time from one save to the next, or `auto` for the interval that costs least at the rate of losses
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "checkpoint_cost",
        default_value = "auto"
    )]
    pub checkpoint_every: Every,
    /// Run time of the tasks of a transformation; `*` stands for all transformations that have not run
    #[arg(long = "set", value_name = "TRANSFORMATION.time=SECONDS")]
    pub times: Vec<TimeOf>,
    /// Slots of a node [default: those of the largest node of the run, else the CPUs]
    #[arg(long, value_name = "N")]
    pub node_slots: Option<NonZeroU32>,
    /// CPUs of a node [default: those of the largest node of the run, else of this machine]
    #[arg(long, value_name = "N")]
    pub node_cpus: Option<NonZeroU32>,
    /// Memory of a node [default: that of the largest node of the run, else of this machine]
    #[arg(long, value_name = "MIB")]
    pub node_memory: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// How often tasks of a simulated run save their state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Every {
    /// As it costs least.
    Auto,
    /// After this much work, in seconds.
    Seconds(f64),
}

impl FromStr for Every {
    type Err = WrongValue;

    fn from_str(text: &str) -> Result<Self, WrongValue> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let seconds = positive(text).map_err(|_| WrongValue("a number above 0, or auto"))?;
        Ok(Self::Seconds(seconds))
    }
}

/// The run time of the tasks of a transformation.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeOf {
    /// Name of the transformation.
    pub transformation: String,
    /// Run time of a task.
    pub seconds: f64,
}

/// An option has a wrong value.
#[derive(Debug, Error)]
#[error("it must be {0}")]
pub struct WrongValue(&'static str);

impl FromStr for TimeOf {
    type Err = WrongValue;

    fn from_str(text: &str) -> Result<Self, WrongValue> {
        const FORM: WrongValue = WrongValue("TRANSFORMATION.time=SECONDS, such as align.time=60");
        let (key, value) = text.rsplit_once('=').ok_or(FORM)?;
        let transformation = key.strip_suffix(".time").filter(|name| !name.is_empty());
        let seconds = value.parse().ok().filter(|seconds| (0.0..1e9).contains(seconds));
        Ok(Self {
            transformation: transformation.ok_or(FORM)?.to_owned(),
            seconds: seconds.ok_or(FORM)?,
        })
    }
}

/// Reads a number of at least 0.
pub(super) fn not_negative(text: &str) -> Result<f64, WrongValue> {
    let number = text.parse().ok().filter(|number| (0.0..1e9).contains(number));
    number.ok_or(WrongValue("a number of at least 0"))
}

/// Reads a number above 0.
fn positive(text: &str) -> Result<f64, WrongValue> {
    let number = text.parse().ok().filter(|number| *number > 0.0 && *number < 1e9);
    number.ok_or(WrongValue("a number above 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_times_name_their_transformation() {
        let time: TimeOf = "ns::align:1.0.time=2.5".parse().unwrap();
        assert_eq!(
            (time.transformation.as_str(), time.seconds),
            ("ns::align:1.0", 2.5)
        );
        for wrong in [
            "align",
            "align=3",
            ".time=3",
            "a.time=",
            "a.time=-1",
            "a.time=NaN",
            "a.time=1e99",
        ] {
            assert!(wrong.parse::<TimeOf>().is_err(), "{wrong}");
        }
        assert!(positive("0").is_err() && positive("inf").is_err() && positive("0.5").is_ok());
    }
}
