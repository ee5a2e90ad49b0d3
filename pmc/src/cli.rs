//! The command line, as the user typed it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pmc_hosts::{HostsError, parse_hosts};

mod attach;
mod checkpoint;
mod control;
mod log;
mod mcp;
mod packed;
pub mod pegasus;
mod pmix;
mod serve;
mod supervise;
mod views;

pub use attach::{Attach, From, OnOverflow, Timestamp};
pub use checkpoint::{Checkpoint, CheckpointAction, Message};
pub use control::{Drain, Kill, Nodes, Stack, Submit, Why};
pub use log::Log;
pub use mcp::Mcp;
pub use packed::{PackedOutput, Unpack};
pub use pegasus::PegasusProgram;
pub use pmix::Pmix;
pub use serve::{Add, Cancel, Serve, Wait};
pub use supervise::Supervise;
pub use views::{Analyzer, Every, Report, Section, Simulate, Statistics, Status, TimeOf, TimeStep};

/// Plans and runs a Pegasus workflow on this machine.
#[derive(Debug, Parser)]
#[command(name = "pmc", version, after_help = crate::exit::HELP, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands. Each has a module in `commands`.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a small workflow to start from, with catalogs and programs
    Init(Init),
    /// Plan a workflow and run it on this machine
    Run(Run),
    /// Plan a workflow for a cluster, as pmc-plan does
    #[command(disable_help_flag = true)]
    Plan(Planner),
    /// Explain jobs of a plan, or print its figures, as `pmc-plan explain` does
    #[command(disable_help_flag = true)]
    Explain(Planner),
    /// Resume a run that failed or was interrupted
    Resume(Resume),
    /// Show progress of a run, during or after it
    Status(Status),
    /// Explain failures, root cause first
    Analyzer(Analyzer),
    /// Print statistics of a run
    Statistics(Statistics),
    /// Write an HTML report: tasks by host, use over time, critical path, failures
    Report(Report),
    /// Print the output of a task, during or after its run
    Log(Log),
    /// Show the output of running tasks as it comes
    Attach(Attach),
    /// Let tools that are written for PMIx find a running workflow
    Pmix(Pmix),
    /// Answer programs that speak the Model Context Protocol, on standard input and output
    Mcp(Mcp),
    /// Make the two files of each attempt from packed output
    Unpack(Unpack),
    /// Show the hosts of a running workflow, or let one of them go
    Nodes(Nodes),
    /// Say why a task of a running workflow waits
    Why(Why),
    /// Show what the processes of a running task do: functions, files and lines
    Stack(Stack),
    /// Start the processes of a parallel program on the hosts of a task, or on this machine
    Launch(Box<pmc_launch::Options>),
    /// Send a signal to a running task
    Kill(Kill),
    /// Let a running workflow start no more tasks
    Drain(Drain),
    /// Hand a planned workflow to a running one: both share its nodes
    Submit(Submit),
    /// Run tasks that are added while the run goes on
    Serve(Serve),
    /// Add tasks to a run of pmc serve
    Add(Add),
    /// Wait for tasks of a run of pmc serve, and print how they end
    Wait(Wait),
    /// End tasks of a run of pmc serve: those that wait do not run
    Cancel(Cancel),
    /// Estimate how long a plan or a run would take on other nodes
    Simulate(Simulate),
    /// Save and get checkpoints in the scripts of tasks, or look at those of a run
    Checkpoint(Checkpoint),
    /// In a task: say how far it is; pmc status shows it
    Message(Message),
    /// Run the command of a batch script, and decide what follows when it ends
    Supervise(Supervise),
    /// Answer as a program of Pegasus does, for the scripts in share/pegasus-shims
    #[command(hide = true, disable_help_flag = true)]
    Pegasus(Pegasus),
}

/// `pmc pegasus`.
#[derive(Args, Clone, Debug)]
pub struct Pegasus {
    /// Program
    #[arg(value_enum)]
    pub program: PegasusProgram,
    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<String>,
}

/// `pmc init`.
#[derive(Args, Clone, Debug)]
#[command(after_help = INIT_EXIT)]
pub struct Init {
    /// Directory to write into
    #[arg(value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Shape of the workflow
    #[arg(short, long, value_name = "NAME", value_enum, default_value_t = Template::Pipeline)]
    pub template: Template,
    /// Also write the workflow as a script for Pegasus.api, the Python library of Pegasus
    #[arg(long)]
    pub python: bool,
}

/// Exit codes of `pmc init`.
const INIT_EXIT: &str = "\
Exit codes:
  0    the files were written
  2    the command line is wrong, or a file exists already
  4    a file cannot be written";

/// Workflows that `pmc init` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Template {
    /// One job
    Single,
    /// Four jobs: one splits its input, two run in parallel, one joins
    Pipeline,
    /// A job for each of several input files, and one that merges their results
    FanOut,
}

/// `pmc run`.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = "pmc run [OPTIONS] WORKFLOW\n       pmc run [OPTIONS] -- COMMAND [::: ARGUMENT...]"
)]
#[command(after_help = crate::exit::HELP, after_long_help = long_help())]
pub struct Run {
    /// Workflow: Pegasus YAML 5.0, DAX XML, a DAGMan file of HTCondor, a DAG for pegasus-mpi-cluster, a
    /// file with a shell command in each line, a job file of HyperQueue, or an instance of WfFormat in JSON
    #[arg(value_name = "WORKFLOW", required_unless_present = "command")]
    pub workflow: Option<PathBuf>,
    /// Command to run for each argument after `:::`, in place of a workflow
    #[arg(
        value_name = "COMMAND",
        last = true,
        conflicts_with = "workflow",
        allow_hyphen_values = true
    )]
    pub command: Vec<String>,
    /// Run `sleep` in place of each program of a WfFormat instance, for its recorded time times FACTOR
    /// [default: 1]. Without this option, a stand-in reads, computes and writes as much as the program did
    #[arg(
        long,
        value_name = "FACTOR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = views::not_negative
    )]
    pub sleep: Option<f64>,
    /// Directory for runs
    #[arg(long, value_name = "DIR", default_value = "pmc-runs")]
    pub dir: PathBuf,
    /// Directory for outputs [default: that of the site `local` in a site catalog, else output/ in the run's
    /// directory]
    #[arg(short = 'O', long, value_name = "DIR")]
    pub output_dir: Option<PathBuf>,
    /// Properties file
    #[arg(long, value_name = "FILE")]
    pub conf: Option<PathBuf>,
    /// Set a property; repeatable
    #[arg(short = 'D', value_name = "KEY=VALUE")]
    pub define: Vec<String>,
    /// Site looked up in the catalogs. The jobs run on this machine
    #[arg(short = 's', long, value_name = "NAME", default_value = "local")]
    pub site: String,
    /// Directory whose files are inputs, by their relative paths; repeatable
    #[arg(short = 'I', long, value_name = "DIR", value_delimiter = ',')]
    pub input_dir: Vec<PathBuf>,
    /// Directory whose executable files are transformations
    #[arg(short = 't', long, value_name = "DIR")]
    pub transformations_dir: Option<PathBuf>,
    /// When to remove files from scratch
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Cleanup::Leaf)]
    pub cleanup: Cleanup,
    /// Plan without running: print jobs by kind, levels, files to stage, and the estimated time
    #[arg(long)]
    pub dry_run: bool,
    /// Do not check before the run that programs and local inputs exist
    #[arg(long)]
    pub no_check: bool,
    /// Limits and options of the execution.
    #[command(flatten)]
    pub execution: Execution,
    /// What to print.
    #[command(flatten)]
    pub output: Output,
}

fn long_help() -> String {
    format!(
        "\
Properties name the catalogs. Without them, pmc looks for sites.yml, transformations.yml and
replicas.yml in the working directory, then beside the workflow. Workflow and catalogs may use
${{NAME}} for environment variables; ${{PMC_WORKFLOW_DIR}} is the directory of the workflow file.

Each run gets a new directory, DIR/LABEL/runNNNN. It holds submit/ (plan, logs and records),
scratch/ (removed at the end of a successful run) and output/. DIR/LABEL/latest is a link to the
latest run.

{}",
        crate::exit::HELP
    )
}

/// `pmc resume`.
#[derive(Args, Clone, Debug)]
#[command(after_help = crate::exit::HELP)]
pub struct Resume {
    /// Directory of the run, its submit directory, or a submit directory of pmc-plan [default: as for
    /// pmc status]
    #[arg(value_name = "RUN")]
    pub dir: Option<PathBuf>,
    /// Plan again first, and keep what is done and has not changed: workflow, catalogs, properties, programs,
    /// inputs
    #[arg(long)]
    pub replan: bool,
    /// Run these jobs again: names of tasks, or ids in the workflow. What is missing for them is made again
    #[arg(long, value_name = "JOB,…", value_delimiter = ',')]
    pub rerun: Vec<String>,
    /// With --rerun: also run again what depends on the jobs
    #[arg(long, requires = "rerun")]
    pub with_dependents: bool,
    /// Run on this machine, even if the plan is for a batch system
    #[arg(long)]
    pub here: bool,
    /// If the end of the DAG file is missing, run the tasks that it has. Without this option, such a plan is
    /// refused
    #[arg(long)]
    pub accept_incomplete: bool,
    /// Limits and options of the execution.
    #[command(flatten)]
    pub execution: Execution,
    /// What to print.
    #[command(flatten)]
    pub output: Output,
}

/// `pmc plan` and `pmc explain`.
#[derive(Args, Clone, Debug)]
pub struct Planner {
    /// Options and arguments of pmc-plan
    #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

/// A factor that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("it must be a number from 1 to 1000")]
struct FactorError;

/// Parses a factor and returns it in percent.
fn factor(text: &str) -> Result<u32, FactorError> {
    pmc_dag::factor(text.as_bytes()).ok_or(FactorError)
}

/// Hosts of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts(pub Vec<String>);

/// Maximum hosts that are reached by ssh from one machine.
const MAX_HOSTS: usize = 10_000;

/// Parses names of hosts.
fn hosts(text: &str) -> Result<Hosts, HostsError> {
    parse_hosts(text, MAX_HOSTS).map(Hosts)
}

/// Limits and options of the execution.
#[derive(Args, Clone, Debug)]
pub struct Execution {
    /// Run the tasks on these hosts, as in n[1-4,7],x, through ssh without a password, instead of on this
    /// machine. They share its directories, and the programs are at the same place
    #[arg(long, value_name = "HOST,…", value_parser = hosts)]
    pub hosts: Option<Hosts>,
    /// Maximum tasks running at the same time, with --hosts on each of them [default: number of CPUs]
    #[arg(
        short = 'w',
        visible_short_alias = 'j',
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub workers: Option<u32>,
    /// Memory for tasks, in MiB [default: memory of the machine]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..))]
    pub host_memory: Option<u32>,
    /// CPUs for tasks [default: CPUs of the machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub host_cpus: Option<u32>,
    /// GPUs for tasks [default: GPUs of the machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub host_gpus: Option<u32>,
    /// End tasks that use more memory than they request
    #[arg(long)]
    pub strict_limits: bool,
    /// Let tasks request FACTOR times their memory after running out of it; needs attempts (--tries)
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    pub more_memory: Option<u32>,
    /// Maximum attempts per task
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub tries: u32,
    /// Start no more tasks after N failures [default: no limit]
    #[arg(
        short = 'm',
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "keep_going"
    )]
    pub max_failures: Option<u32>,
    /// Run everything that does not depend on a failed task; the default
    #[arg(short = 'k', long)]
    pub keep_going: bool,
    /// Write the database for statistics, analyzer and dashboard during the run
    #[arg(long)]
    pub stampede: bool,
    /// Write the output of tasks to a few files with indexes instead of two files for each attempt
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t = PackedOutput::Auto,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always"
    )]
    pub packed_output: PackedOutput,
    /// Command for the shell at the end of the run, however it ends. PMC_RESULT is success, failure or
    /// interrupted; PMC_EXIT_CODE, PMC_WORKFLOW, PMC_RUN_DIR, PMC_SUBMIT_DIR, PMC_TASKS, PMC_TASKS_DONE and
    /// PMC_TASKS_FAILED say more
    #[arg(long, value_name = "COMMAND")]
    pub on_end: Option<String>,
}

/// What to print.
#[derive(Args, Clone, Copy, Debug)]
pub struct Output {
    /// Report the end of every task; twice: also the planner's decisions and the executor's log
    #[arg(short, long, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,
    /// Print no progress, and no summary unless something failed
    #[arg(short, long)]
    pub quiet: bool,
    /// Print the summary as JSON
    #[arg(long)]
    pub json: bool,
}

/// When to remove files from scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cleanup {
    /// Never
    None,
    /// All at the end
    Leaf,
    /// Each after its last use
    Inplace,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_its_exit_codes() {
        let cli = Cli::command();
        // The first two are those of pmc-plan.
        let is_other = |name| ["plan", "explain"].contains(&name);
        for command in cli.get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            let is_there = help.is_some_and(|help| help.contains("Exit codes:\n"));
            let name = command.get_name();
            assert!(is_there || is_other(name) || command.is_hide_set(), "{name}");
        }
    }

    /// The manual page is the output of `--help`. `UPDATE_MANUAL=1 cargo test -p pmc` rewrites it.
    #[test]
    fn the_manual_is_current() {
        let mut page = String::from(
            "# pmc\n\nOutput of `--help` for each command. See the [guide](../guide.md) for how to use it.\n",
        );
        let mut command = Cli::command().term_width(100);
        command.build();
        let mut section = |name: &str, help: String| {
            let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
            page.push_str(&format!(
                "\n## {name}\n\n```\n{}\n```\n",
                lines.join("\n").trim_end()
            ));
        };
        section("pmc", command.render_long_help().to_string());
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            if sub.get_name() != "help" {
                let help = sub.clone().term_width(100).render_long_help();
                section(&format!("pmc {}", sub.get_name()), help.to_string());
            }
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/manual/pmc.md");
        if std::env::var_os("UPDATE_MANUAL").is_some() {
            std::fs::write(path, &page).expect("the manual page can be written");
        }
        let current = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            current == page,
            "docs/manual/pmc.md is outdated: run UPDATE_MANUAL=1 cargo test -p pmc"
        );
    }

    #[test]
    fn invalid_combinations_are_rejected() {
        assert!(Cli::try_parse_from(["pmc", "run", "w.yml", "-k", "-m", "2"]).is_err());
        assert!(Cli::try_parse_from(["pmc", "run", "w.yml", "-v", "-q"]).is_err());
        assert!(Cli::try_parse_from(["pmc", "run", "w.yml", "--workers", "0"]).is_err());
        assert!(Cli::try_parse_from(["pmc", "run"]).is_err());
        assert!(Cli::try_parse_from(["pmc", "run", "w.yml", "-Dpegasus.register=false", "-w2"]).is_ok());
        assert!(Cli::try_parse_from(["pmc", "run", "w.yml", "-j", "2"]).is_ok());
        assert!(Cli::try_parse_from(["pmc", "run", "w.yml", "--hosts", "n1,n2"]).is_ok());
        let twice = Cli::try_parse_from(["pmc", "run", "w.yml", "--hosts", "n1,n2,n1"]);
        let error = twice.expect_err("a host is named twice").to_string();
        assert!(error.contains("it names the host n1 twice"), "{error}");
    }
}
