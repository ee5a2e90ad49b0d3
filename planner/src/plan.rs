//! Planning from a request to a submit directory. Nothing here reads the environment, the clock or the
//! working directory: the request brings what the rim has read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use chrono::{DateTime, FixedOffset};

use crate::error::InputErrors;
use crate::picture::Picture;
use crate::scheduler::Scheduler;
use crate::summary::Summary;

/// What is to be planned, and everything that the surroundings contribute.
#[derive(Clone, Debug)]
pub struct Request {
    /// Workflow file, absolute.
    pub workflow: PathBuf,
    /// File of `--conf`, absolute.
    pub conf: Option<PathBuf>,
    /// `KEY=VALUE` texts of `-D`.
    pub defines: Vec<String>,
    /// Where the random numbers of site selection begin: a number, or the word `random` for others each time.
    pub seed: Option<String>,
    /// Candidate execution sites, in the order of the command line; empty for the default.
    pub sites: Vec<String>,
    /// Staging site for each execution site; the key `` (empty) stands for all of them.
    pub staging_sites: BTreeMap<String, String>,
    /// Sites that receive outputs.
    pub output_sites: Vec<String>,
    /// Directory for outputs, as typed.
    pub output_dir: Option<String>,
    /// Directories whose files are replicas, absolute.
    pub input_dirs: Vec<PathBuf>,
    /// Directory whose files are stageable programs, absolute; without it `transformations` in the
    /// working directory is used, if there is one.
    pub transformations_dir: Option<PathBuf>,
    /// Replica files that override all other locations, absolute.
    pub cache_files: Vec<PathBuf>,
    /// Replica files of lower priority than locations in the workflow, absolute.
    pub inherited_files: Vec<PathBuf>,
    /// Submit directories of earlier runs whose outputs are replicas, absolute.
    pub reuse_dirs: Vec<PathBuf>,
    /// Keep every job, even if its outputs exist.
    pub force: bool,
    /// Clean-up strategy of the command line.
    pub cleanup: Option<CleanupStrategy>,
    /// Base of submit directories, absolute; the working directory by default.
    pub dir: PathBuf,
    /// Whether `--dir` was given.
    pub dir_given: bool,
    /// Replaces the relative run directory of submit and work directories.
    pub relative_dir: Option<String>,
    /// Replaces the relative run directory of the submit directory only.
    pub relative_submit_dir: Option<String>,
    /// `--randomdir`: name of the work directory; the inner `None` for a generated one.
    pub random_dir: Option<Option<String>>,
    /// Prefix of the files of the workflow.
    pub basename: Option<String>,
    /// Prefix of job names.
    pub job_prefix: Option<String>,
    /// Clustering techniques, applied one after the other.
    pub cluster: Vec<String>,
    /// What the batch scripts ask for.
    pub batch: BatchOptions,
    /// The command line as one text, for the records.
    pub arguments: String,
    /// The command line without the name of the program, from which the same plan can be made again; empty if
    /// there is none.
    pub line: Vec<String>,
    /// Pictures to be drawn.
    pub pictures: Vec<Picture>,
    /// What the user should know of the request itself.
    pub warnings: Vec<String>,
    /// The surroundings.
    pub surroundings: Surroundings,
}

/// What the rim has read from the process and the machine.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
    /// Working directory.
    pub working_dir: PathBuf,
    /// Login name.
    pub user: String,
    /// Name of this host.
    pub host: String,
    /// Directory of the running program.
    pub own_bin: Option<PathBuf>,
    /// The time, in local time.
    pub now: DateTime<FixedOffset>,
    /// Identifier of the workflow, new for each plan.
    pub uuid: String,
}

/// How scratch space is cleaned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanupStrategy {
    /// Not at all.
    None,
    /// The work directory is removed at the end.
    Leaf,
    /// Each file is removed after its last use, the work directory at the end.
    InPlace,
    /// Files are removed as far as a bound on the space used needs it, the work directory at the end.
    Constraint,
}

/// What the batch scripts ask the scheduler for; what is absent comes from properties and site profiles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchOptions {
    /// Schedulers that get a script, the preferred one first; those of PBS and Slurm have one anyway.
    pub schedulers: Vec<Scheduler>,
    /// The scheduler of this machine, where it is known; it counts if no other is named.
    pub detected: Option<Scheduler>,
    /// Nodes.
    pub nodes: Option<u32>,
    /// Processes per node.
    pub tasks_per_node: Option<u32>,
    /// Wall time in minutes.
    pub walltime: Option<u32>,
    /// Minutes before the executor's own time limit from which on no task is started; 0 for none.
    pub drain: Option<u32>,
    /// CPUs of a node.
    pub node_cpus: Option<u32>,
    /// Memory of a node, MB.
    pub node_memory: Option<u32>,
    /// Queue or partition.
    pub queue: Option<String>,
    /// Account or project.
    pub account: Option<String>,
    /// Program that starts the processes: `mpiexec`, `mpirun`, `srun`, a path, or `none`.
    pub launcher: Option<String>,
    /// Directory with templates that replace the built-in ones.
    pub template_dir: Option<PathBuf>,
}

/// A batch script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// For which scheduler.
    pub scheduler: Scheduler,
    /// Where it is.
    pub path: PathBuf,
}

/// The finished plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Submit directory, absolute.
    pub submit_dir: PathBuf,
    /// Name of the workflow.
    pub label: String,
    /// Its index, normally `0`.
    pub index: String,
    /// Identifier of the workflow.
    pub uuid: String,
    /// The DAG for pegasus-mpi-cluster; the code generator Shell makes none.
    pub dag: PathBuf,
    /// Script of the code generator Shell, which runs the workflow.
    pub shell: Option<PathBuf>,
    /// Batch scripts, that for the preferred scheduler first.
    pub scripts: Vec<Script>,
    /// Directories into which outputs are copied, where they are on a file system.
    pub output_dirs: Vec<PathBuf>,
    /// How many jobs of each kind there are.
    pub counts: Counts,
    /// The braindump: its keys and values in order.
    pub braindump: Vec<(String, Option<String>)>,
    /// What the user should know; each is one sentence or a few.
    pub warnings: Vec<String>,
    /// What was decided, for `-v`.
    pub notes: Vec<String>,
}

/// A plan that was looked at, not written.
#[derive(Clone, Debug, PartialEq)]
pub struct Looked {
    /// Its figures.
    pub summary: Summary,
    /// What is to be told about the jobs that were asked for.
    pub explanations: Vec<String>,
    /// Names of all jobs.
    pub jobs: Vec<String>,
    /// What the user should know; each is one sentence or a few.
    pub warnings: Vec<String>,
    /// What was decided, for `-v`.
    pub notes: Vec<String>,
}

/// Numbers of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs of the abstract workflow.
    pub tasks: usize,
    /// Jobs of the abstract workflow that data reuse removed.
    pub deleted: usize,
    /// Compute jobs outside of clusters.
    pub compute: usize,
    /// Clusters of compute jobs.
    pub clustered: usize,
    /// Stage-in jobs.
    pub stage_in: usize,
    /// Stage-out jobs.
    pub stage_out: usize,
    /// Jobs that copy files between sites.
    pub inter_site: usize,
    /// Registration jobs.
    pub register: usize,
    /// Jobs that make directories.
    pub create_dir: usize,
    /// Jobs that remove files or directories.
    pub cleanup: usize,
    /// Jobs that make programs executable.
    pub chmod: usize,
    /// All jobs of the DAG.
    pub total: usize,
    /// Edges of the DAG.
    pub edges: usize,
}

impl Counts {
    /// Kinds of jobs of the DAG and how many there are of each.
    pub fn kinds(&self) -> [(&'static str, usize); 9] {
        [
            ("compute", self.compute),
            ("clustered", self.clustered),
            ("stage-in", self.stage_in),
            ("inter-site", self.inter_site),
            ("stage-out", self.stage_out),
            ("registration", self.register),
            ("create-dir", self.create_dir),
            ("chmod", self.chmod),
            ("clean-up", self.cleanup),
        ]
    }
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// Problems in input files.
    #[error("{0}")]
    Input(#[from] InputErrors),
    /// The workflow file is not well-formed XML.
    #[error("{0}")]
    BadXml(InputErrors),
    /// The workflow cannot be mapped onto sites, programs and replicas; all problems found.
    #[error("{}", .0.join("\n"))]
    Refinement(Vec<String>),
    /// The plan cannot be written as a DAG for pegasus-mpi-cluster.
    #[error("Unable to generate code: {}", .0.join("\n"))]
    Code(Vec<String>),
    /// Something that is not offered.
    #[error("{0}")]
    Unsupported(String),
    /// A file or directory cannot be written or read.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// A batch script template is wrong.
    #[error("template of the batch script {name}: {message}")]
    Template {
        /// Template.
        name: String,
        /// What is wrong, and where.
        message: String,
    },
}

impl PlanError {
    /// A file operation that failed.
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        PlanError::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
    /// One problem of the mapping.
    pub(crate) fn refinement(problem: impl Into<String>) -> Self {
        PlanError::Refinement(vec![problem.into()])
    }
    /// Exit code of `pmc-plan`: 1, or 2 for a workflow that is not well-formed XML.
    pub fn exit_code(&self) -> u8 {
        match self {
            PlanError::BadXml(_) => 2,
            _ => 1,
        }
    }
}

mod files;
mod inputs;
mod run;
mod surroundings;

pub use run::{look, plan, steps, wants_shell};

/// Formats a time as the records of the workflow have it: ISO 8601, seconds, numeric offset.
pub(crate) fn iso_seconds(time: SystemTime, offset: FixedOffset) -> String {
    DateTime::<chrono::Utc>::from(time)
        .with_timezone(&offset)
        .format("%Y-%m-%dT%H:%M:%S%:z")
        .to_string()
}
