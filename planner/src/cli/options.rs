//! The options of `pmc-plan`.

use std::path::PathBuf;

use clap::builder::styling::Styles;
use clap::{ArgAction, Parser, ValueEnum};

/// Format of errors and warnings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum DiagnosticFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Plans a Pegasus workflow into a submit directory for pegasus-mpi-cluster.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "pmc-plan",
    disable_version_flag = true,
    infer_long_args = true,
    args_override_self = false,
    styles = Styles::plain(),
    after_help = "Properties are read from etc/pegasus.properties of PEGASUS_HOME, ~/.pegasusrc, \
                  pegasus.properties in the working directory, the file of --conf, variables \
                  _PEGASUS__A__B=value, and -D; later ones win."
)]
pub(super) struct Options {
    /// Workflow: Pegasus YAML 5.0, DAX XML, a DAGMan file of HTCondor, a DAG for pegasus-mpi-cluster, a
    /// file with a shell command in each line, or a job file of HyperQueue [default: workflow.yml]
    #[arg(value_name = "WORKFLOW")]
    pub(super) workflow: Vec<PathBuf>,
    /// The workflow, under the option's old name
    #[arg(short = 'd', long, value_name = "FILE")]
    pub(super) dax: Option<PathBuf>,
    /// Properties file
    #[arg(long, value_name = "FILE")]
    pub(super) conf: Option<PathBuf>,
    /// Sets a property
    #[arg(short = 'D', value_name = "KEY=VALUE")]
    pub(super) define: Vec<String>,
    /// Ignored: an option of the Java virtual machine
    #[arg(short = 'X', value_name = "OPTION", hide = true)]
    pub(super) java: Vec<String>,
    /// Candidate execution sites, best first; * for all but local
    #[arg(short = 's', long, value_name = "SITE,…", value_delimiter = ',')]
    pub(super) sites: Vec<String>,
    /// Seed for the site selectors Random and Group; `random` chooses another one each time
    #[arg(long, value_name = "N|random")]
    pub(super) seed: Option<String>,
    /// Staging site; with a shared file system it must be the execution site
    #[arg(long, value_name = "SITE=SITE,…", value_delimiter = ',')]
    pub(super) staging_site: Vec<String>,
    /// Sites that receive outputs; without this option and --output-dir, outputs stay in the work directory
    #[arg(short = 'o', long, value_name = "SITE,…", value_delimiter = ',')]
    pub(super) output_sites: Vec<String>,
    /// Directory for outputs
    #[arg(short = 'O', long, value_name = "DIR")]
    pub(super) output_dir: Option<String>,
    /// Directories whose files are inputs
    #[arg(short = 'I', long, value_name = "DIR,…", value_delimiter = ',')]
    pub(super) input_dir: Vec<PathBuf>,
    /// Directory whose files are programs to stage
    #[arg(short = 't', long, value_name = "DIR")]
    pub(super) transformations_dir: Option<PathBuf>,
    /// Replica files that override all other locations
    #[arg(short = 'c', long, value_name = "FILE,…", value_delimiter = ',')]
    pub(super) cache: Vec<PathBuf>,
    /// Replica files with lower priority than locations inside the workflow
    #[arg(long, value_name = "FILE,…", value_delimiter = ',')]
    pub(super) inherited_rc_files: Vec<PathBuf>,
    /// Submit directories of earlier runs whose registered outputs are reused
    #[arg(short = 'R', long, value_name = "DIR,…", value_delimiter = ',')]
    pub(super) reuse: Vec<PathBuf>,
    /// Runs every job, even if its outputs exist
    #[arg(short = 'f', long)]
    pub(super) force: bool,
    /// With --deferred: plans again even if there is a plan of the same inputs
    #[arg(long, hide = true)]
    pub(super) force_replan: bool,
    /// Clustering techniques: horizontal, label, whole
    #[arg(short = 'C', long, value_name = "TECHNIQUE,…", value_delimiter = ',')]
    pub(super) cluster: Vec<String>,
    /// When files are removed from the work directory
    #[arg(long, value_name = "none|leaf|inplace|constraint")]
    pub(super) cleanup: Option<String>,
    /// Same as --cleanup none
    #[arg(short = 'n', long)]
    pub(super) nocleanup: bool,
    /// Base of submit directories [default: the working directory]
    #[arg(long, value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    /// Replaces USER/pegasus/LABEL/runNNNN below the base directories of submit and work files
    #[arg(long, value_name = "DIR")]
    pub(super) relative_dir: Option<String>,
    /// Same as --relative-dir, for the submit directory only
    #[arg(long, value_name = "DIR")]
    pub(super) relative_submit_dir: Option<String>,
    /// Name of the work directory; without a value, a new one each time
    #[arg(short = 'r', long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    pub(super) randomdir: Option<Option<String>>,
    /// Prefix of the workflow's files [default: LABEL-INDEX]
    #[arg(short = 'b', long, value_name = "NAME")]
    pub(super) basename: Option<String>,
    /// Prefix of job names
    #[arg(short = 'j', long, value_name = "PREFIX")]
    pub(super) job_prefix: Option<String>,
    /// Submits the batch script to the scheduler: that of --batch, else the one found on PATH
    #[arg(short = 'S', long)]
    pub(super) submit: bool,
    /// No effect: there is no pegasus-run to hand options to
    #[arg(short = 'F', long, value_name = "OPTION", hide = true)]
    pub(super) forward: Vec<String>,
    /// No effect: a resumed run always uses its rescue file
    #[arg(long, value_name = "N", hide = true)]
    pub(super) rescue: Option<u32>,
    /// The workflow is a sub-workflow of one that runs. Its plan goes into DIR.NNN behind the link DIR; a
    /// plan of the same inputs is kept
    #[arg(short = 'z', long, hide = true)]
    pub(super) deferred: bool,
    /// With --deferred: where the outputs go, a replica catalog as text
    #[arg(short = 'm', long, value_name = "FILE", hide = true)]
    pub(super) output_map: Option<PathBuf>,
    /// Plans without writing; prints jobs by kind, levels, files to stage, and the estimated time
    #[arg(long, help_heading = "Looking at plans")]
    pub(super) dry_run: bool,
    /// Plans without writing; explains a job. For an existing plan: pmc-plan explain JOB DIR
    #[arg(long, value_name = "JOB", help_heading = "Looking at plans")]
    pub(super) explain: Vec<String>,
    /// Draws the executable workflow for graphviz
    #[arg(long, value_name = "FILE", help_heading = "Looking at plans")]
    pub(super) dot: Option<PathBuf>,
    /// Draws the executable workflow as SVG; more than 300 jobs are drawn in groups
    #[arg(long, value_name = "FILE", help_heading = "Looking at plans")]
    pub(super) svg: Option<PathBuf>,
    /// Draws the abstract workflow for graphviz
    #[arg(long, value_name = "FILE", help_heading = "Looking at plans")]
    pub(super) abstract_dot: Option<PathBuf>,
    /// Draws the abstract workflow as SVG
    #[arg(long, value_name = "FILE", help_heading = "Looking at plans")]
    pub(super) abstract_svg: Option<PathBuf>,
    /// Prints the result as JSON
    #[arg(short = 'J', long)]
    pub(super) json: bool,
    /// Format of errors and warnings on standard error
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value_t,
        hide_possible_values = true
    )]
    pub(super) diagnostics: DiagnosticFormat,
    /// Prints more; repeat for even more
    #[arg(short = 'v', long, action = ArgAction::Count)]
    pub(super) verbose: u8,
    /// Prints errors only
    #[arg(short = 'q', long, action = ArgAction::Count)]
    pub(super) quiet: u8,
    /// Prints the version
    #[arg(short = 'V', long)]
    pub(super) version: bool,
    /// Schedulers to write scripts for beside the .pbs for Torque and the .sbatch for Slurm, the preferred
    /// one first: torque, slurm, pbspro (replaces the .pbs), lsf, flux, cobalt
    #[arg(
        long,
        value_name = "SCHEDULER,…",
        value_delimiter = ',',
        help_heading = "Batch scripts"
    )]
    pub(super) batch: Vec<String>,
    /// Batch scripts: nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Batch scripts")]
    pub(super) nodes: Option<u32>,
    /// Batch scripts: processes per node [default: one for each core; 2 if the scheduler is not Slurm and
    /// --node-cpus is not given]
    #[arg(
        long,
        alias = "ppn",
        visible_alias = "ppn",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Batch scripts"
    )]
    pub(super) ntasks_per_node: Option<u32>,
    /// Batch scripts: wall time, minutes or [D-]HH:MM[:SS]
    #[arg(long, value_name = "TIME", help_heading = "Batch scripts")]
    pub(super) walltime: Option<String>,
    /// Batch scripts: time before the limit in which no task starts, minutes or HH:MM; 0 for none
    #[arg(long, value_name = "TIME", help_heading = "Batch scripts")]
    pub(super) drain: Option<String>,
    /// Batch scripts: CPUs of a node; tasks that ask for more are refused
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Batch scripts")]
    pub(super) node_cpus: Option<u32>,
    /// Batch scripts: memory of a node, MiB or with a unit as in 64G; tasks that ask for more are refused. 0:
    /// all, with Slurm
    #[arg(long, value_name = "SIZE", help_heading = "Batch scripts")]
    pub(super) node_memory: Option<String>,
    /// Batch scripts: queue or partition
    #[arg(
        long,
        visible_alias = "partition",
        value_name = "NAME",
        help_heading = "Batch scripts"
    )]
    pub(super) queue: Option<String>,
    /// Batch scripts: account or project
    #[arg(
        long,
        visible_alias = "project",
        value_name = "NAME",
        help_heading = "Batch scripts"
    )]
    pub(super) account: Option<String>,
    /// Batch scripts: mpiexec, mpirun, srun, another command, or none for a run on one node without MPI
    #[arg(long, value_name = "COMMAND", help_heading = "Batch scripts")]
    pub(super) launcher: Option<String>,
    /// Batch scripts: directory with templates (pbs.j2, sbatch.j2, run.j2, …) that replace the built-in ones
    #[arg(long, value_name = "DIR", help_heading = "Batch scripts")]
    pub(super) template_dir: Option<PathBuf>,
}
