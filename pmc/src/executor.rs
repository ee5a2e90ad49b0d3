//! Runs the executor on this machine, with the log files that Pegasus' monitoring reads.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use pegasus_mpi_cluster::{
    Aborted, AgentOptions, AgentRun, DEFAULT_FORWARD_LIMIT, HostSize, Interrupt, LaunchOptions, LocalRun,
    MemoryExcess, Options, RunEvent, SERVER_VARIABLES, Serve, Stampede, Stdio, WorkerOptions, WorkerSettings,
    allocated_cpus, count_gpus, cpus_for_workers, describe_host, own_kickstart, protect_process, run_local,
    run_with_agents,
};
use pmc_batch::BatchJob;
use pmc_batch::launch::Launch;
use pmc_control::memory;
use pmc_dag::{Dag, Request, TaskId};
use pmc_files::with_suffix;

use crate::cli;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::signals;
use crate::text;

/// The program of agents.
const EXECUTOR: &str = "pegasus-mpi-cluster";

/// Tasks above which their output is packed.
const MANY_TASKS: usize = 10_000;

/// Verbosity of agents that print only errors.
const QUIET: i32 = -2;

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// All tasks are done.
    pub success: bool,
    /// The run stopped because the failure limit was reached.
    pub max_failures_reached: bool,
    /// Tasks whose last attempt failed, with the raw wait status.
    pub failures: Vec<(Vec<u8>, i32)>,
    /// Number of the signal that ended the run, if one did.
    pub signal: Option<u8>,
    /// Exit code that a task has set by ending the run, if one did.
    pub task_exit: Option<u8>,
    /// Why the requested database is incomplete.
    pub database: Option<String>,
    /// Attempts that used more memory than requested.
    pub memory_excess: Option<MemoryExcess>,
}

impl Ended {
    /// Result if all tasks were done before.
    pub fn nothing_left() -> Self {
        Ended {
            success: true,
            max_failures_reached: false,
            failures: Vec::new(),
            signal: None,
            task_exit: None,
            database: None,
            memory_excess: None,
        }
    }
}

/// A DAG to run.
pub struct Target<'a> {
    /// Its file.
    pub dag: &'a Path,
    /// Number of its tasks.
    pub tasks: usize,
    /// Run it even if its last lines are missing.
    pub accept_incomplete: bool,
    /// It takes tasks while it goes on.
    pub serve: Option<Serve>,
    /// How agents are started, and their number, if the execution names no hosts.
    pub launch: Option<(Launch, u32)>,
    /// How long agents go on without their master, if not for the usual time.
    pub master_timeout: Option<Duration>,
}

impl<'a> Target<'a> {
    /// A complete DAG that does not grow.
    pub fn new(dag: &'a Path, tasks: usize) -> Self {
        Self {
            dag,
            tasks,
            accept_incomplete: false,
            serve: None,
            launch: None,
            master_timeout: None,
        }
    }
}

/// Runs a DAG until it is done or a signal ends the run.
pub fn run(
    target: &Target<'_>,
    execution: &cli::Execution,
    environment: Vec<(OsString, OsString)>,
    log: bool,
    observer: &mut (dyn FnMut(&RunEvent<'_>) + Send),
) -> Result<Ended, Failure> {
    let mut setting = local_run(target.dag, execution, environment);
    setting.options.accept_incomplete = target.accept_incomplete;
    setting.options.serve = target.serve;
    if is_packed(target.dag, target.tasks, execution.packed_output) {
        setting.options.stdio = Stdio::Packed;
    }
    let interrupt = Arc::new(Interrupt::new());
    let stop = Arc::clone(&interrupt);
    let _guard = signals::Guard::new(move |signal| stop.raise(signal))
        .context("cannot handle signals")
        .or_code(exit::NOT_RUN)?;
    protect_process();
    let ended = match target
        .launch
        .clone()
        .or_else(|| by_ssh(execution.hosts.as_ref()?))
    {
        None => {
            setting.options.one_host = Some(setting.worker.host_cpus);
            run_local(&setting, &interrupt, observer)
        }
        Some(launch) => {
            let mut run = run_on(launch, execution, setting, log)?;
            let timeout = target.master_timeout;
            run.agents.master_timeout = timeout.unwrap_or(run.agents.master_timeout);
            run_with_agents(&run, &interrupt, observer)
        }
    };
    let summary = ended.map_err(|error| {
        let has_no_agents = error.has_no_agents();
        let failure = Failure::new(exit::NOT_RUN, error);
        match has_no_agents {
            true => failure.hint("each host has to answer to `ssh -o BatchMode=yes HOST true`"),
            false => failure,
        }
    })?;
    let (signal, task_exit) = match summary.aborted {
        Some(Aborted::Signal(signal)) => (u8::try_from(signal).ok(), None),
        Some(Aborted::Task { exit }) => (None, Some(exit)),
        Some(Aborted::WallTime | Aborted::HeldBack) | None => (None, None),
    };
    Ok(Ended {
        success: summary.success(),
        max_failures_reached: summary.figures.max_failures_reached,
        failures: summary
            .failures
            .into_iter()
            .map(|failed| (failed.name, failed.status))
            .collect(),
        signal,
        task_exit,
        database: summary.database,
        memory_excess: summary.memory_excess,
    })
}

fn local_run(dag: &Path, execution: &cli::Execution, environment: Vec<(OsString, OsString)>) -> LocalRun {
    let mut options = Options::new(dag, "pmc".as_ref());
    options.tries = execution.tries;
    options.more_memory_percent = execution.more_memory.unwrap_or(100);
    options.max_failures = execution.max_failures.unwrap_or(0);
    options.dagman_log = Some(with_suffix(dag, ".dagman.out"));
    options.dagman_progress = true;
    options.jobstate_log = Some(dag.with_file_name("jobstate.log"));
    options.stdio = Stdio::PerTask;
    let value = |name: &str| {
        let found = environment.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.clone())
    };
    options.user = value("USER").and_then(|name| name.into_string().ok());
    // Notifications are sent by the thread that writes the database.
    let stampede = execution.stampede || has_notifications(dag);
    options.stampede = stampede.then(|| Stampede {
        home: value("HOME").map(PathBuf::from),
        variables: SERVER_VARIABLES
            .into_iter()
            .filter_map(|name| Some((name, value(name)?)))
            .collect(),
    });
    options.console = false;
    options.batch_job = BatchJob::of_environment(|name| value(name)?.into_string().ok());
    let workers = workers(execution, &environment);
    LocalRun {
        options,
        worker: WorkerOptions {
            per_task_stdio: true,
            host_memory: execution.host_memory.unwrap_or(0),
            host_cpus: host_cpus(execution, &environment),
            host_gpus: execution.host_gpus.unwrap_or(0),
            watch_memory: execution.strict_limits,
            forward_limit: DEFAULT_FORWARD_LIMIT,
            kickstart: shared_kickstart(&environment),
            environment,
            ..WorkerOptions::new(dag)
        },
        workers,
    }
}

/// Returns how agents start on hosts that are named, and their number.
fn by_ssh(hosts: &cli::Hosts) -> Option<(Launch, u32)> {
    let hosts = hosts.0.clone();
    let agents = u32::try_from(hosts.len()).ok()?;
    Some((Launch::Ssh { hosts }, agents))
}

/// Lets the tasks of a run start in agents. `log` prints what they say.
fn run_on(
    (launch, agents): (Launch, u32),
    execution: &cli::Execution,
    run: LocalRun,
    log: bool,
) -> Result<AgentRun, Failure> {
    let LocalRun {
        options, mut worker, ..
    } = run;
    // Each host knows its own.
    worker.host_cpus = execution.host_cpus.unwrap_or(0);
    let directory = std::env::current_dir()
        .context("cannot determine the working directory")
        .or_code(exit::NOT_RUN)?;
    let program = std::env::current_exe()
        .context("cannot find this program")
        .or_code(exit::NOT_RUN)?;
    let agents = AgentOptions {
        agents,
        slots: execution.workers.unwrap_or(0),
        launch: Some(launch),
        launch_options: LaunchOptions {
            program: Some(program.with_file_name(EXECUTOR)),
            quiet: !log,
        },
        verbosity: if log { 0 } else { QUIET },
        ..AgentOptions::new(&options.dag, WorkerSettings::new(&worker, &directory))
    };
    Ok(AgentRun { options, agents })
}

/// Returns whether the output of tasks goes into packs.
fn is_packed(dag: &Path, tasks: usize, when: cli::PackedOutput) -> bool {
    match when {
        cli::PackedOutput::Always => true,
        cli::PackedOutput::Never => false,
        // Commands of notifications read the files.
        cli::PackedOutput::Auto => tasks > MANY_TASKS && !has_notifications(dag),
    }
}

/// Returns whether a plan asks for notifications. The planner always writes their file.
fn has_notifications(dag: &Path) -> bool {
    fs::metadata(dag.with_extension("notify")).is_ok_and(|file| file.len() > 0)
}

fn workers(execution: &cli::Execution, environment: &[(OsString, OsString)]) -> u32 {
    execution.workers.unwrap_or_else(|| allocated_cpus(environment))
}

fn host_cpus(execution: &cli::Execution, environment: &[(OsString, OsString)]) -> u32 {
    let workers = workers(execution, environment);
    cpus_for_workers(execution.host_cpus.unwrap_or(0), workers, environment)
}

/// Returns the kickstart for the task server, unless the user switched it off.
fn shared_kickstart(environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    let is_off = |(name, value): &(OsString, OsString)| name == "PMC_KICKSTART" && value == "exec";
    if environment.iter().any(is_off) {
        return None;
    }
    own_kickstart()
}

/// Returns what a task requests of this machine: if it may have several hosts, what all of its ranks request
/// together, which share the CPUs.
fn of_all_ranks(dag: &Dag, task: TaskId) -> Request {
    let request = dag.request(task);
    let Some(gang) = dag.gang(task) else {
        return request;
    };
    let ranks = gang.layout.ranks();
    Request {
        cpus: 0,
        memory_mb: request.memory_mb.saturating_mul(ranks.into()),
        gpus: request.gpus.saturating_mul(ranks),
        ..request
    }
}

/// Says which tasks would have several hosts elsewhere.
pub fn note_several_hosts(dag: &Dag) {
    let mut several = dag.ids().filter_map(|task| {
        let layout = dag.gang(task)?.layout;
        let nodes = layout.nodes().filter(|nodes| *nodes > 1)?;
        Some((task, nodes, layout.ranks()))
    });
    if let Some((task, nodes, ranks)) = several.next() {
        let more = match several.count() {
            0 => String::new(),
            more => format!(", and so do {}", text::count(more, "more task")),
        };
        let name = String::from_utf8_lossy(dag.name(task));
        eprintln!("pmc: note: {name} asks for {nodes} nodes: its {ranks} ranks run on this machine{more}");
    }
}

/// Checks that each task fits on this machine. The master would reject the first that does not; this error
/// has the numbers, too. `limits` names how the user sets those of this machine.
pub fn check_fit(
    dag: &Dag,
    execution: &cli::Execution,
    environment: &[(OsString, OsString)],
    limits: &str,
) -> Result<(), Failure> {
    if execution.hosts.is_some() {
        // The master checks it when the hosts have come.
        return Ok(());
    }
    let host = describe_host(
        None,
        HostSize {
            memory_mb: execution.host_memory.unwrap_or(0),
            cpus: host_cpus(execution, environment),
            gpus: count_gpus(execution.host_gpus.unwrap_or(0), environment),
        },
        environment,
    );
    let fits = |task: &TaskId| {
        let request = of_all_ranks(dag, *task);
        request.memory_mb <= host.memory_mb && request.cpus <= host.threads && request.gpus <= host.gpus
    };
    let too_large: Vec<TaskId> = dag.ids().filter(|task| !fits(task)).collect();
    let Some(&first) = too_large.first() else {
        return Ok(());
    };
    let name = String::from_utf8_lossy(dag.name(first));
    let others = match too_large.len() - 1 {
        0 => String::new(),
        others => format!(" and {} more", text::count(others, "task")),
    };
    let request = of_all_ranks(dag, first);
    let list = |memory_mb: u64, cpus: u32, gpus: u32| {
        let (memory, cpus) = (memory(memory_mb), text::count(cpus as usize, "CPU"));
        if request.gpus > 0 {
            format!("{memory}, {cpus} and {}", text::count(gpus as usize, "GPU"))
        } else {
            format!("{memory} and {cpus}")
        }
    };
    let error = anyhow!(
        "the task {name}{others} requests more than this machine has: {} of {}",
        list(request.memory_mb, request.cpus, request.gpus),
        list(host.memory_mb, host.threads, host.gpus),
    );
    let hint = format!("{limits} set larger limits");
    Err(Failure::new(exit::NOT_RUN, error).hint(hint))
}
