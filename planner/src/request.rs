//! The request: what to plan, and the environment of the process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use chrono::{DateTime, FixedOffset};

use crate::error::UsageError;
use pmc_batch::Scheduler;

/// Parses planner options, without the name of a program.
pub type ParseOptions = fn(&[String]) -> Result<SubworkflowOptions, UsageError>;

/// Planner options that a sub-workflow job has as its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubworkflowOptions {
    /// `--conf`.
    pub conf: Option<PathBuf>,
    /// `-D`.
    pub defines: Vec<String>,
    /// `--sites`.
    pub sites: Vec<String>,
    /// `--output-sites`.
    pub output_sites: Vec<String>,
    /// `--output-dir`.
    pub output_dir: Option<String>,
    /// `--cache`.
    pub cache: Vec<PathBuf>,
    /// `--inherited-rc-files`.
    pub inherited: Vec<PathBuf>,
    /// `--input-dir`.
    pub input_dirs: Vec<PathBuf>,
    /// `--transformations-dir`.
    pub transformations_dir: Option<PathBuf>,
    /// Options that change where files are put or when they are removed, but not the results.
    pub without_effect: Vec<&'static str>,
    /// `--seed`.
    pub seed: Option<String>,
    /// `--staging-site`, as typed.
    pub staging_sites: Vec<String>,
    /// `--basename`.
    pub basename: Option<String>,
    /// `--job-prefix`.
    pub job_prefix: Option<String>,
    /// `--relative-submit-dir`.
    pub relative_submit_dir: Option<String>,
    /// `--randomdir`; the inner `None` without a name.
    pub random_dir: Option<Option<String>>,
    /// `--cluster`.
    pub cluster: Vec<String>,
    /// `--reuse`.
    pub reuse: Vec<PathBuf>,
    /// `--force`.
    pub force: bool,
    /// `--force-replan`.
    pub force_replan: bool,
    /// `--cleanup`, or `none` for `--nocleanup`.
    pub cleanup: Option<String>,
    /// Number of `--verbose`.
    pub verbose: u8,
    /// Number of `--quiet`.
    pub quiet: u8,
    /// `--rescue`.
    pub rescue: Option<u32>,
}

/// What to plan, and in which environment.
#[derive(Clone, Debug)]
pub struct Request {
    /// Workflow file, absolute.
    pub workflow: PathBuf,
    /// File of `--conf`, absolute.
    pub conf: Option<PathBuf>,
    /// `KEY=VALUE` texts of `-D`.
    pub defines: Vec<String>,
    /// Seed of site selection: a number, or the word `random` for another one each time.
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
    /// True if `--dir` was given.
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
    /// Resources and settings of batch scripts.
    pub batch: BatchOptions,
    /// The workflow is a sub-workflow of one that runs: the plan goes into a numbered directory behind a
    /// link, and an earlier plan of the same inputs is kept.
    pub deferred: bool,
    /// With `deferred`: locations of the outputs that the workflow around this one wants, absolute.
    pub output_map: Option<PathBuf>,
    /// Plan again even if there is a plan of the same inputs.
    pub force_replan: bool,
    /// The plan is run on this machine, even if its sites have other names.
    pub runs_here: bool,
    /// The command line as one text, for the records.
    pub arguments: String,
    /// The command line without the name of the program, from which the plan can be made again; empty if
    /// there is none.
    pub line: Vec<String>,
    /// Pictures to draw.
    pub pictures: Vec<Picture>,
    /// The plan runs on this machine at once: its programs and local inputs must exist.
    pub check_files: bool,
    /// Planning may start the program of the site selector NonJavaCallout. A preview starts no program: the
    /// properties that name it can be those of another user.
    pub may_start_programs: bool,
    /// What that program has chosen, if the plan exists and is only looked at.
    pub chosen_sites: Option<Arc<ChosenSites>>,
    /// Warnings about the request itself.
    pub warnings: Vec<String>,
    /// Parses the arguments of jobs that are sub-workflows.
    pub parse_options: ParseOptions,
    /// The environment.
    pub environment: Environment,
}

/// The sites that the program of the site selector NonJavaCallout has chosen for a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChosenSites {
    /// Names of sites.
    pub names: Vec<String>,
    /// For each job of the workflow, in its order, the position of the name; `None` if the job is not in the
    /// plan.
    pub jobs: Vec<Option<u32>>,
}

impl ChosenSites {
    /// Returns the site of a job.
    #[must_use]
    pub fn site_of(&self, job: usize) -> Option<&str> {
        let name = self.names.get(usize::try_from((*self.jobs.get(job)?)?).ok()?)?;
        Some(name)
    }
}

/// What the planner needs to know about its process and machine.
#[derive(Clone, Debug)]
pub struct Environment {
    /// True if only a plan of another user is looked at. Then there are no variables, and their names in its
    /// files stay as they are.
    pub is_of_other: bool,
    /// Environment variables.
    pub variables: BTreeMap<String, String>,
    /// Working directory.
    pub working_dir: PathBuf,
    /// Login name.
    pub user: String,
    /// Name of this host.
    pub host: String,
    /// Directory of the running program.
    pub own_bin: Option<PathBuf>,
    /// Current local time.
    pub now: DateTime<FixedOffset>,
    /// Identifier of the workflow, new for each plan.
    pub uuid: String,
}

/// When files are removed from scratch space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CleanupStrategy {
    /// Never.
    None,
    /// The work directory is removed at the end.
    Leaf,
    /// Each file is removed after its last use, the work directory at the end.
    InPlace,
    /// Files are removed as far as a bound on space requires, the work directory at the end.
    Constraint,
}

/// Options of batch scripts. Properties and site profiles provide absent values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchOptions {
    /// Schedulers that get a script, the preferred one first. PBS and Slurm always get one.
    pub schedulers: Vec<Scheduler>,
    /// The scheduler of this machine, if known. Used if no other is named.
    pub detected: Option<Scheduler>,
    /// Nodes.
    pub nodes: Option<u32>,
    /// Processes per node.
    pub tasks_per_node: Option<u32>,
    /// Wall time in minutes.
    pub walltime: Option<u32>,
    /// Minutes before the executor's time limit in which no task starts; 0 for none.
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

/// Workflow to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The abstract workflow.
    Abstract,
    /// The executable workflow.
    Executable,
}

/// Format of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For graphviz.
    Dot,
    /// For browsers.
    Svg,
}

/// A requested picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Workflow to draw.
    pub subject: Subject,
    /// Format.
    pub format: Format,
    /// Path of the file, absolute.
    pub path: PathBuf,
}

impl Environment {
    /// Returns the environment for a look at a plan of another user: what its files name must not be
    /// expanded to values of the user who looks.
    #[must_use]
    pub fn for_plan_of_other(self) -> Self {
        Environment {
            is_of_other: true,
            variables: BTreeMap::new(),
            ..self
        }
    }

    /// Reads environment, working directory, user, host, program and time, and creates a new identifier.
    ///
    /// # Errors
    /// A working directory that does not exist.
    pub fn read() -> std::io::Result<Self> {
        let variables = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let user = nix::unistd::User::from_uid(nix::unistd::getuid())
            .ok()
            .flatten()
            .map(|user| user.name)
            .or_else(|| std::env::var("USER").ok())
            .unwrap_or_else(|| nix::unistd::getuid().to_string());
        let own_bin = std::env::current_exe()
            .ok()
            .and_then(|program| program.parent().map(PathBuf::from));
        Ok(Environment {
            is_of_other: false,
            variables,
            working_dir: std::env::current_dir()?,
            user,
            host: gethostname::gethostname().to_string_lossy().into_owned(),
            own_bin,
            now: chrono::Local::now().fixed_offset(),
            uuid: uuid::Uuid::new_v4().to_string(),
        })
    }
}
