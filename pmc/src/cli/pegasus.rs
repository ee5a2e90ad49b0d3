//! Options of the programs of Pegasus for which `share/pegasus-shims` has scripts.
//!
//! Names and meanings are those of Pegasus 5.1.3. Options without a meaning here are accepted and named in a
//! warning; all others are errors.

use std::path::PathBuf;

use clap::{ArgAction, Parser, ValueEnum};

use super::TimeStep;

/// A program of Pegasus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PegasusProgram {
    Plan,
    Run,
    Status,
    Analyzer,
    Statistics,
    Remove,
    Version,
    Config,
    Graphviz,
    Keg,
    /// HTCondor's, which the Python client of Pegasus calls for `Workflow.wait()`.
    CondorQ,
}

impl PegasusProgram {
    /// Returns the name of the script that calls this program.
    pub fn name(self) -> &'static str {
        match self {
            PegasusProgram::Plan => "pegasus-plan",
            PegasusProgram::Run => "pegasus-run",
            PegasusProgram::Status => "pegasus-status",
            PegasusProgram::Analyzer => "pegasus-analyzer",
            PegasusProgram::Statistics => "pegasus-statistics",
            PegasusProgram::Remove => "pegasus-remove",
            PegasusProgram::Version => "pegasus-version",
            PegasusProgram::Config => "pegasus-config",
            PegasusProgram::Graphviz => "pegasus-graphviz",
            PegasusProgram::Keg => "pegasus-keg",
            PegasusProgram::CondorQ => "condor_q",
        }
    }
}

/// Starts a planned workflow: in the background on this machine, or as a batch job.
#[derive(Debug, Parser)]
#[command(name = "pegasus-run", version)]
pub struct Run {
    /// Submit directory
    #[arg(value_name = "SUBMIT-DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Print JSON
    #[arg(short, long)]
    pub json: bool,
    /// No effect
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
    /// No effect: there are no grid proxies
    #[arg(long, overrides_with = "nogrid")]
    pub grid: bool,
    /// No effect
    #[arg(long)]
    pub nogrid: bool,
    /// Run here and now: what the program starts in the background
    #[arg(long, hide = true)]
    pub foreground: bool,
}

/// Prints the state of a workflow.
#[derive(Debug, Parser)]
#[command(name = "pegasus-status", version)]
pub struct Status {
    /// Submit directory
    #[arg(value_name = "SUBMIT-DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Print state and name of the workflow, too
    #[arg(short, long)]
    pub long: bool,
    /// Print JSON
    #[arg(short, long)]
    pub jsonrv: bool,
    /// Repeat every SECONDS until the workflow ends
    #[arg(short, long, value_name = "SECONDS")]
    pub watch: Option<u64>,
    /// Explain the columns
    #[arg(short = 'L', long)]
    pub legend: bool,
    /// No effect: a sub-workflow is part of the plan
    #[arg(short = 'D', long)]
    pub dirs: bool,
    /// No effect: there is no HTCondor queue
    #[arg(short = 'Q', long)]
    pub noqueue: bool,
    /// No effect
    #[arg(short, long)]
    pub debug: bool,
    /// No effect
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

/// Explains why a workflow failed.
#[derive(Debug, Parser)]
#[command(name = "pegasus-analyzer", version)]
pub struct Analyzer {
    /// Submit directory
    #[arg(value_name = "SUBMIT-DIR")]
    pub submit_dir: Option<PathBuf>,
    /// Submit directory
    #[arg(short = 'i', short_alias = 'd', long = "dir", value_name = "DIR")]
    pub input_dir: Option<PathBuf>,
    /// Print JSON, as `pmc analyzer --json` does
    #[arg(short, long)]
    pub json: bool,
    /// Print counts only
    #[arg(short = 'S', long)]
    pub summary: bool,
    /// No effect: names of output files are always printed
    #[arg(short, long)]
    pub quiet: bool,
    /// No effect
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
    /// No effect: a sub-workflow is part of the plan
    #[arg(short, long)]
    pub recurse: bool,
    /// No effect: a sub-workflow is part of the plan
    #[arg(short = 'T', long)]
    pub traverse_all: bool,
    /// No effect: the logs are read
    #[arg(short, long)]
    pub files: bool,
    /// No effect: the logs are read
    #[arg(short = 'm', short_alias = 't', long)]
    pub monitord: bool,
    /// No effect: the logs are read
    #[arg(short, long, value_name = "FILE")]
    pub conf: Option<PathBuf>,
    /// No effect
    #[arg(short, long)]
    pub strict: bool,
    /// No effect: the command of a failed task is always printed
    #[arg(short, long, value_name = "WHAT")]
    pub print: Option<String>,
}

/// Prints statistics of a workflow.
#[derive(Debug, Parser)]
#[command(name = "pegasus-statistics", version)]
pub struct Statistics {
    /// Submit directory
    #[arg(value_name = "SUBMIT-DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Directory for the files
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Type of the files
    #[arg(short, long, value_name = "TYPE", value_enum, ignore_case = true, default_value_t = FileType::Text)]
    pub file: FileType,
    /// What to print and write
    #[arg(
        short,
        long,
        value_name = "LEVEL",
        value_enum,
        ignore_case = true,
        value_delimiter = ',',
        default_values = ["summary"]
    )]
    pub statistics_level: Vec<Level>,
    /// Time unit of ti_stats
    #[arg(short, long, value_name = "UNIT", value_enum, ignore_case = true, default_value_t = TimeStep::Day)]
    pub time_filter: TimeStep,
    /// No effect: the database is that of the submit directory
    #[arg(short, long, value_name = "FILE")]
    pub conf: Option<PathBuf>,
    /// No effect
    #[arg(short, long)]
    pub ignore_db_inconsistency: bool,
    /// No effect
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
    /// No effect
    #[arg(short, long, action = ArgAction::Count)]
    pub quiet: u8,
    /// No effect: all workflows are like those of PMC
    #[arg(short = 'p', long)]
    pub ispmc: bool,
}

/// Type of the files of `pegasus-statistics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileType {
    /// Tables.
    #[value(alias = "txt")]
    Text,
    /// Comma-separated values.
    Csv,
}

/// Levels of `pegasus-statistics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Level {
    All,
    Summary,
    WfStats,
    JbStats,
    TfStats,
    TiStats,
    IntStats,
}

/// Ends a running workflow; its tasks are stopped.
#[derive(Debug, Parser)]
#[command(name = "pegasus-remove", version)]
pub struct Remove {
    /// Submit directory
    #[arg(value_name = "SUBMIT-DIR", default_value = ".")]
    pub dir: PathBuf,
    /// No effect
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,
}

/// Prints the version of Pegasus that is compatible.
#[derive(Debug, Parser)]
#[command(name = "pegasus-version")]
pub struct Version {
    /// Print the version of pmc, too
    #[arg(short, long)]
    pub full: bool,
    /// The same
    #[arg(short, long)]
    pub long: bool,
    /// No effect: prints the version
    #[arg(short = 'V', long)]
    pub version: bool,
    /// No effect
    #[arg(short, long)]
    pub verbose: bool,
    /// No effect
    #[arg(short, long)]
    pub quiet: bool,
}

/// Prints where things are.
#[derive(Debug, Parser)]
#[command(name = "pegasus-config")]
pub struct Config {
    /// Print the version
    #[arg(short = 'V', long)]
    pub version: bool,
    /// Print the directory of the programs
    #[arg(long)]
    pub bin: bool,
    /// Print the directory of the configuration
    #[arg(long)]
    pub conf: bool,
    /// Print the directory of the schemas
    #[arg(long)]
    pub schema: bool,
    /// Print the directories for a shell
    #[arg(long)]
    pub sh_dump: bool,
    /// Print the directories for Python
    #[arg(long)]
    pub python_hash: bool,
    /// Print where the Python libraries would be; pip installs Pegasus.api elsewhere
    #[arg(long)]
    pub python: bool,
    /// The same for the libraries of others
    #[arg(long)]
    pub python_externals: bool,
    /// Print no line break
    #[arg(short, long)]
    pub noeoln: bool,
}

/// Draws a workflow.
#[derive(Debug, Parser)]
#[command(name = "pegasus-graphviz", version)]
pub struct Graphviz {
    /// Workflow file
    #[arg(value_name = "WORKFLOW")]
    pub workflow: PathBuf,
    /// File to write; its name says the format: svg and dot, with Graphviz also png, pdf and others
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// No effect: all jobs are drawn
    #[arg(short, long, value_name = "TRANSFORMATION")]
    pub remove: Vec<String>,
    /// No effect: files are not drawn
    #[arg(short, long)]
    pub files: bool,
    /// No effect: only files and jobs together have edges that follow from others
    #[arg(short = 's', long)]
    pub nosimplify: bool,
    /// No effect: jobs have their identifiers and transformations
    #[arg(short, long, value_name = "LABEL")]
    pub label: Option<String>,
    /// No effect
    #[arg(short, long, value_name = "INCHES")]
    pub width: Option<String>,
    /// No effect
    #[arg(long, value_name = "INCHES")]
    pub height: Option<String>,
}
