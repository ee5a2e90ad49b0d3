//! The options of a run. The command line and the front end fill them in.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pmc_batch::BatchJob;
use pmc_dag::RetryDelay;

/// Default of [`Options::sync_interval`].
const DEFAULT_SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// Default of [`Options::drain_grace`]. Batch systems send SIGKILL some time after SIGTERM; PBS is the
/// fastest, with 10 seconds.
pub const DEFAULT_DRAIN_GRACE: Duration = Duration::from_secs(8);

/// Default of [`Options::stop_grace`] for a run whose end the batch system says.
pub const DEFAULT_STOP_GRACE: Duration = Duration::from_secs(10);

/// The file by which a site says that it clears its nodes, unless `PMC_DRAIN_FILE` names another one.
pub const SITE_DRAIN_FILE: &str = "/etc/pmc/drain";

/// Default of [`Options::disk_reserve`], in bytes: small, so that only full file systems hold a run.
pub(crate) const DEFAULT_DISK_RESERVE: u64 = 8 << 20;

/// Default of [`Options::crash_limit`].
const DEFAULT_CRASH_LIMIT: u32 = 5;

use crate::channels::Channels;
use crate::node::Nodes;
use crate::scheduler::DEFAULT_MAX_PLANS;

pub(crate) use pmc_files::with_suffix;

/// Default of [`Options::bad_host_limit`].
const DEFAULT_BAD_HOST_LIMIT: u32 = 3;

/// Default of [`WorkerOptions::forward_limit`]: 1 GiB.
pub const DEFAULT_FORWARD_LIMIT: u64 = 1 << 30;

/// Options of the master.
#[derive(Clone, Debug)]
pub struct Options {
    /// The DAG file.
    pub dag: PathBuf,
    /// Run a DAG file whose last lines are missing.
    pub accept_incomplete: bool,
    /// Tasks over several hosts have all of their ranks on this one, which has this number of CPUs. `None`:
    /// they are refused if there are no others.
    pub one_host: Option<u32>,
    /// Lock the DAG file against other runs.
    pub lock: bool,
    /// The rescue file.
    pub rescue: PathBuf,
    /// Ignore what the rescue file says.
    pub skip_rescue: bool,
    /// Attempts of a task without an option of its own; at least 1.
    pub tries: u32,
    /// Percent of its memory that a task without an option of its own requests after an attempt that ran out
    /// of memory; 100 for no more.
    pub more_memory_percent: u32,
    /// Name of the user, for expressions of tasks.
    pub user: Option<String>,
    /// Pause before the next attempt of a task that has failed and has no option of its own. `None`: only
    /// transfers have one.
    pub retry_delay: Option<RetryDelay>,
    /// Stop after this number of failed tasks; 0 means no limit.
    pub max_failures: u32,
    /// A task has failed when this number of agents were lost while it ran; 0 means no limit.
    pub crash_limit: u32,
    /// A host is set aside when this number of tasks in a row failed there and succeeded elsewhere; 0 means
    /// never.
    pub bad_host_limit: u32,
    /// Maximum number of commands that run at a time to make the DAGs of sub-workflows; at least 1.
    pub max_plans: u32,
    /// Categories and the maximum numbers of their running tasks, instead of those in the DAG file.
    pub max_jobs: Vec<(Vec<u8>, NonZeroU32)>,
    /// Wall time of the run, in minutes.
    pub max_wall_minutes: Option<f64>,
    /// The batch system says when the job ends; `max_wall_minutes` counts until it answers.
    pub asks_time_left: bool,
    /// Time from SIGTERM to SIGKILL for tasks that run when the time is nearly over. Zero: they are ended
    /// when it is over.
    pub stop_grace: Duration,
    /// A file by which the site says that it clears its nodes.
    pub drain_file: Option<PathBuf>,
    /// Time that running tasks have after SIGTERM. SIGUSR1 sets no limit.
    pub drain_grace: Duration,
    /// Path of `.dagman.out`, if it is written.
    pub dagman_log: Option<PathBuf>,
    /// Write tables of progress into `dagman_log`, for the Python client of Pegasus.
    pub dagman_progress: bool,
    /// Path of `jobstate.log`, if it is written.
    pub jobstate_log: Option<PathBuf>,
    /// Path of `.resource`, if it is written.
    pub resource_log: Option<PathBuf>,
    /// The STAMPEDE database, written from `dagman_log` during the run.
    pub stampede: Option<Stampede>,
    /// Destination of the output of the tasks.
    pub stdio: Stdio,
    /// Path of the workers' output files, without the suffixes `.out.RANK` and `.err.RANK`.
    pub worker_files: PathBuf,
    /// Maximum open files for forwarded data; the default depends on the system's limit.
    pub max_fds: Option<u32>,
    /// Write a forward journal beside the rescue file: forwarded data then arrives exactly once.
    pub forward_journal: bool,
    /// Maximum time between syncs of rescue file and forwarded data; `None` leaves it to the system.
    pub sync_interval: Option<Duration>,
    /// Start no tasks while the file system of the DAG has less free space, in bytes; 0 means no check.
    /// `None` is [`DEFAULT_DISK_RESERVE`], but at most an eighth of the file system.
    pub disk_reserve: Option<u64>,
    /// Wait for the host scripts before the first task.
    pub host_script: bool,
    /// Take tasks while the run goes on, and end as this says.
    pub serve: Option<Serve>,
    /// Start `pmc pmix`.
    pub pmix: bool,
    /// The batch job of this process, for tools on other hosts.
    pub batch_job: Option<BatchJob>,
    /// Print the summary record, and merge the output of the tasks.
    pub console: bool,
    /// Name of the program in the summary record.
    pub app: OsString,
}

/// Environment variables for the connection to a database server.
#[cfg(feature = "stampede")]
pub const SERVER_VARIABLES: [&str; 12] = pmc_stampede::client::VARIABLES;
/// None: this program was built without the database.
#[cfg(not(feature = "stampede"))]
pub const SERVER_VARIABLES: [&str; 0] = [];

/// A run that takes tasks while it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serve {
    /// It ends when it has had nothing to do for this time. `None`: not by itself.
    pub idle_limit: Option<Duration>,
}

/// What `--stampede` takes from the environment of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stampede {
    /// Home directory of the user. It holds the list of all workflows and PostgreSQL's settings.
    pub home: Option<PathBuf>,
    /// The variables of [`SERVER_VARIABLES`] that are set.
    pub variables: Vec<(&'static str, OsString)>,
}

/// Destination of the output of tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// Each worker appends to its own files; the master merges them.
    Merged {
        /// Standard output of all tasks.
        stdout: Target,
        /// Standard error of all tasks.
        stderr: Target,
    },
    /// Each attempt of a task has its own files in the folder of the DAG file. A run that continues a packed
    /// one is packed, too.
    PerTask,
    /// Each worker appends the output of its attempts to a pack: see [`pmc_packed`].
    Packed,
}

/// Destination of merged output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Standard output of the master.
    Stdout,
    /// Standard error of the master.
    Stderr,
    /// A file. A run that resumes appends to it, any other run truncates it.
    File(PathBuf),
}

/// Options of a worker.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// The DAG file: the output files of tasks lie beside it.
    pub dag: PathBuf,
    /// Each attempt of a task has its own files, or its own entry in a pack.
    pub per_task_stdio: bool,
    /// As [`Options::worker_files`].
    pub worker_files: PathBuf,
    /// Lock these files, because the DAG file is not locked: runs that overlap must not share them.
    pub lock_worker_files: bool,
    /// Name of the host instead of the system's. Workers with the same name share memory and CPUs.
    pub host_name: Option<String>,
    /// Memory of the host in MB; 0 means the physical memory.
    pub host_memory: u32,
    /// CPUs of the host; 0 means all.
    pub host_cpus: u32,
    /// GPUs of the host; 0 means all.
    pub host_gpus: u32,
    /// Limit the memory of a task to its request.
    pub strict_limits: bool,
    /// End a task whose processes use more memory than it requests.
    pub watch_memory: bool,
    /// Bind tasks to the CPUs that the master granted.
    pub set_affinity: bool,
    /// Program that runs once on every host before the first task.
    pub host_script: Option<PathBuf>,
    /// Time limit of a task without an option of its own.
    pub runtime_limit: Option<Duration>,
    /// Maximum bytes that an attempt may send through its pipes; 0 means no limit.
    pub forward_limit: u64,
    /// The kickstart of this installation. A task server runs its tasks; without it, each starts its own.
    pub kickstart: Option<PathBuf>,
    /// Environment that tasks inherit.
    pub environment: Vec<(OsString, OsString)>,
    /// Set if this host does not see the directory of the DAG file: a directory for files of attempts.
    pub away: Option<PathBuf>,
    /// Lets processes of gangs run commands on their other hosts, if this is an agent.
    pub channels: Option<Arc<dyn Channels>>,
    /// Set if what tasks save lies on nodes, not beside the DAG file.
    pub nodes: Option<Arc<dyn Nodes>>,
}

impl WorkerOptions {
    /// The defaults for the workers of a DAG: the whole host, and tasks without limits.
    #[must_use]
    pub fn new(dag: &Path) -> Self {
        Self {
            dag: dag.to_owned(),
            per_task_stdio: false,
            worker_files: dag.to_owned(),
            lock_worker_files: false,
            host_name: None,
            host_memory: 0,
            host_cpus: 0,
            host_gpus: 0,
            strict_limits: false,
            watch_memory: false,
            set_affinity: false,
            host_script: None,
            runtime_limit: None,
            forward_limit: 0,
            kickstart: None,
            environment: Vec::new(),
            away: None,
            channels: None,
            nodes: None,
        }
    }
}

impl Options {
    /// Returns options for a run of `dag`, with the defaults of the command line.
    #[must_use]
    pub fn new(dag: &Path, app: &OsStr) -> Self {
        Self {
            dag: dag.to_owned(),
            accept_incomplete: false,
            one_host: None,
            lock: true,
            rescue: with_suffix(dag, ".rescue"),
            skip_rescue: false,
            tries: 1,
            more_memory_percent: 100,
            user: None,
            retry_delay: None,
            max_failures: 0,
            crash_limit: DEFAULT_CRASH_LIMIT,
            bad_host_limit: DEFAULT_BAD_HOST_LIMIT,
            max_plans: DEFAULT_MAX_PLANS,
            max_jobs: Vec::new(),
            max_wall_minutes: None,
            asks_time_left: false,
            stop_grace: Duration::ZERO,
            drain_file: None,
            drain_grace: DEFAULT_DRAIN_GRACE,
            dagman_log: None,
            dagman_progress: false,
            jobstate_log: None,
            resource_log: Some(with_suffix(dag, ".resource")),
            stampede: None,
            stdio: Stdio::Merged {
                stdout: Target::Stdout,
                stderr: Target::Stderr,
            },
            worker_files: dag.to_owned(),
            max_fds: None,
            forward_journal: true,
            sync_interval: Some(DEFAULT_SYNC_INTERVAL),
            disk_reserve: None,
            host_script: false,
            serve: None,
            pmix: false,
            batch_job: None,
            console: true,
            app: app.to_owned(),
        }
    }

    /// Returns the wall time. `None` if there is no limit, or if it does not fit a [`Duration`].
    #[must_use]
    pub fn wall_limit(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.max_wall_minutes? * 60.0).ok()
    }
}

/// Path of the kickstart of this installation: beside this program. The file may be missing.
#[must_use]
pub fn own_kickstart() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    Some(program.with_file_name("pegasus-kickstart"))
}

/// Returns whether the file is a device: it is not read. `/dev/null` stands for no rescue file, and other
/// devices have no end.
pub(crate) fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    path.metadata()
        .is_ok_and(|data| data.file_type().is_char_device() || data.file_type().is_block_device())
}

/// Returns the folder of a file; `.` for a bare name.
pub(crate) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
