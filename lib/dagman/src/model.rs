//! A DAG as it is run: one list of nodes, with splices and sub-DAGs in their places.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The nodes of a DAGMan file and of all files that it names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dag {
    /// Nodes in the order of the files. Nodes that are marked as done are not among them.
    pub nodes: Vec<Node>,
    /// Parent and child, as positions in the nodes; sorted, no duplicates.
    pub edges: Vec<(u32, u32)>,
    /// Maximum running jobs of each category.
    pub max_jobs: BTreeMap<String, u32>,
    /// Nodes that are marked as done.
    pub done: usize,
    /// Ignored commands that could matter, each once.
    pub ignored: Vec<IgnoredCommand>,
}

/// A command that is ignored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IgnoredCommand {
    /// The DAGMan file or submit description.
    pub file: PathBuf,
    /// Line, from 1.
    pub line: u32,
    /// The command.
    pub command: &'static str,
    /// Why it is ignored.
    pub reason: &'static str,
}

impl std::fmt::Display for IgnoredCommand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is ignored: {}", self.command, self.reason)
    }
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name; that of a node in a splice or sub-DAG is `SPLICE+NAME`.
    pub name: String,
    /// Line of the top-level file that brings it in, from 1.
    pub line: u32,
    /// Directory in which its scripts run, absolute.
    pub directory: PathBuf,
    /// What it runs between its scripts.
    pub work: Work,
    /// Runs before the job.
    pub pre: Option<Script>,
    /// Runs after the job, and decides whether the node has failed.
    pub post: Option<Script>,
    /// Exit code of the PRE script that makes the node a success without its job.
    pub pre_skip: Option<u8>,
    /// Attempts after the first that fails; `None` without RETRY.
    pub retries: Option<u32>,
    /// Exit code after which there is no other attempt.
    pub unless_exit: Option<u8>,
    /// Priority; larger values first.
    pub priority: Option<i64>,
    /// Category, if it has one.
    pub category: Option<String>,
    /// Exit code that ends the run.
    pub abort_on: Option<AbortOn>,
}

/// `ABORT-DAG-ON`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortOn {
    /// Exit code of the node.
    pub code: u8,
    /// Exit code of the run, if it is another.
    pub exit: Option<u8>,
}

/// What a node runs between its scripts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Nothing (`NOOP`).
    Nothing,
    /// A job.
    Job(Box<Job>),
}

/// Stands for the number of the retry in texts of a job: arguments, input, output and error. No text of a
/// file contains it, since Unicode reserves it for the use inside programs.
pub const RETRY: char = '\u{fdd0}';

/// A job of the vanilla or local universe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// Program, absolute.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Variables of its environment, in the order of their names.
    pub environment: BTreeMap<String, String>,
    /// Directory in which it runs, absolute.
    pub directory: PathBuf,
    /// Standard input, absolute.
    pub input: Option<PathBuf>,
    /// Standard output, absolute.
    pub output: Option<PathBuf>,
    /// Standard error, absolute. It may be the file of the standard output.
    pub error: Option<PathBuf>,
    /// CPUs that it requests.
    pub cpus: Option<u32>,
    /// Memory that it requests, in MiB.
    pub memory_mb: Option<u64>,
    /// GPUs that it requests.
    pub gpus: Option<u32>,
    /// Exit code with which it has saved its state, and is to run again.
    pub checkpoint_exit: Option<u8>,
}

/// A PRE or POST script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Program: a path, relative to the node's directory, or a name.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<Word>,
}

/// An argument of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// A text.
    Text(String),
    /// `$RETURN`: exit code of the job, or the negative number of its signal.
    Return,
    /// `$SUCCESS`: `True` or `False`.
    Success,
    /// `$RETRY`: number of the retry, 0 in the first attempt.
    Retry,
    /// `$PRE_SCRIPT_RETURN`: exit code of the PRE script; -1 if there is none.
    PreScriptReturn,
}
