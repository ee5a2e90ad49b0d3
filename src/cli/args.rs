//! The result of reading the command line.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;

use pmc_batch::BatchJob;
use pmc_dag::RetryDelay;

/// The command line and the environment, not yet interpreted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawArgs {
    /// The DAG file.
    pub dag: PathBuf,
    /// Number of `-v` minus number of `-q`.
    pub verbosity: i32,
    /// `-o`.
    pub stdout: Option<PathBuf>,
    /// `-e`.
    pub stderr: Option<PathBuf>,
    /// `-s`.
    pub skip_rescue: bool,
    /// `--accept-incomplete`.
    pub accept_incomplete: bool,
    /// `-m`; 0 means no limit.
    pub max_failures: u32,
    /// `--max-jobs`: categories and the maximum numbers of their running tasks.
    pub max_jobs: Vec<(Vec<u8>, NonZeroU32)>,
    /// `--max-plans`; at least 1.
    pub max_plans: Option<u32>,
    /// `-t`; at least 1.
    pub tries: Option<u32>,
    /// `-n`.
    pub no_lock: bool,
    /// `-r`.
    pub rescue: Option<PathBuf>,
    /// `--host-script` or `PMC_HOST_SCRIPT`.
    pub host_script: Option<PathBuf>,
    /// `--host-name` or `PMC_HOST_NAME`.
    pub host_name: Option<String>,
    /// `--host-memory` or `PMC_HOST_MEMORY`, in MB; 0 means the physical memory.
    pub host_memory: u32,
    /// `--host-cpus` or `PMC_HOST_CPUS`; 0 means all CPUs of the host.
    pub host_cpus: u32,
    /// `--host-gpus` or `PMC_HOST_GPUS`; 0 means all GPUs of the host.
    pub host_gpus: u32,
    /// `--strict-limits`.
    pub strict_limits: bool,
    /// `--watch-memory`.
    pub watch_memory: bool,
    /// `--max-wall-time` or `PMC_MAX_WALL_TIME`, in minutes.
    pub max_wall_time: Option<f64>,
    /// `--max-wall-time job:MINUTES`: the batch system says when the job ends.
    pub asks_time_left: bool,
    /// `--stop-grace`, in seconds.
    pub stop_grace: Option<f64>,
    /// `PMC_DRAIN_FILE`.
    pub drain_file: Option<PathBuf>,
    /// `--per-task-stdio`; `--monitord-hack`, `--packed-output` and `--pmix` set it, too.
    pub per_task_stdio: bool,
    /// `--packed-output`.
    pub packed_output: bool,
    /// The batch job, by its variables.
    pub batch_job: Option<BatchJob>,
    /// `--pmix`.
    pub pmix: bool,
    /// `--jobstate-log`; `--pmix` sets it, too.
    pub jobstate_log: bool,
    /// `--monitord-hack`; `--stampede` sets it, too.
    pub monitord_hack: bool,
    /// `--stampede`.
    pub stampede: bool,
    /// Home directory of the user.
    pub home: Option<PathBuf>,
    /// Variables for the connection to a database server:
    /// those of [`SERVER_VARIABLES`](crate::options::SERVER_VARIABLES) that are set.
    pub server_variables: Vec<(&'static str, OsString)>,
    /// `PMC_KICKSTART=exec`: each task starts its own kickstart.
    pub exec_kickstart: bool,
    /// `--no-resource-log`.
    pub no_resource_log: bool,
    /// `--no-sleep-on-recv`.
    pub no_sleep_on_recv: bool,
    /// `--maxfds`.
    pub max_fds: Option<u32>,
    /// `--keep-affinity`.
    pub keep_affinity: bool,
    /// `--set-affinity`.
    pub set_affinity: bool,
    /// `--no-forward-journal`.
    pub no_forward_journal: bool,
    /// `--sync-interval`, in milliseconds; 0 means never.
    pub sync_interval_ms: Option<u32>,
    /// `--runtime-limit`, in seconds.
    pub runtime_limit: Option<f64>,
    /// `--drain-grace`, in seconds.
    pub drain_grace: Option<f64>,
    /// `--disk-reserve`, in MiB; 0 means no check.
    pub disk_reserve_mib: Option<u32>,
    /// `--retry-delay`.
    pub retry_delay: Option<RetryDelay>,
    /// `USER`.
    pub user: Option<String>,
    /// `--more-memory`, in percent.
    pub more_memory_percent: Option<u32>,
    /// `--forward-limit`, in MiB; 0 means no limit.
    pub forward_limit_mib: Option<u32>,
    /// `--workers`: number of workers of a run without an MPI launcher.
    pub workers: Option<u32>,
    /// `PMC_HOST_MEMORY`, `PMC_HOST_CPUS` and `PMC_HOST_GPUS` of an agent.
    pub host_environment: [u32; 3],
    /// `--master-timeout`, in seconds.
    pub master_timeout: Option<f64>,
    /// `--agent`: this process is an agent.
    pub agent: bool,
    /// The endpoint file of an agent.
    pub endpoint: Option<PathBuf>,
    /// `PMC_ENDPOINT`.
    pub endpoint_value: Option<OsString>,
    /// `--agents`.
    pub agents: Option<Agents>,
    /// `--launch`.
    pub launch: Option<OsString>,
    /// `--slots`.
    pub slots: Option<u32>,
    /// `--agent-timeout`, in seconds.
    pub agent_timeout: Option<f64>,
    /// `--start-with`: agents to wait for before the first task.
    pub start_with: Option<u32>,
    /// `--listen`.
    pub listen: Option<pmc_link::Listen>,
    /// `--crash-limit`; 0 means no limit.
    pub crash_limit: Option<u32>,
    /// `--bad-host-limit`; 0 means no limit.
    pub bad_host_limit: Option<u32>,
    /// `--join-timeout`, in seconds.
    pub join_timeout: Option<f64>,
}

/// How many agents there are, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agents {
    /// A number of them; the launcher knows where.
    Count(u32),
    /// One on each of these hosts.
    Hosts(Vec<String>),
    /// One on each host of the gang in which this process runs.
    Gang,
}

/// A text to print to stderr instead of running a DAG, and the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyExit {
    /// The text, with its line feed.
    pub text: String,
    /// The exit code.
    pub code: u8,
    /// True if all processes of a parallel run print the text, not only the first one.
    pub everywhere: bool,
}

impl EarlyExit {
    pub(super) fn refuse(message: &str) -> Self {
        Self {
            text: format!("{message}\n"),
            code: 1,
            everywhere: false,
        }
    }

    pub(super) fn invalid_value(name: &str) -> Self {
        Self::refuse(&format!("Invalid value for {name}"))
    }
}
