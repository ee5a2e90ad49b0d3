//! Runs the tasks of one worker.

use std::borrow::Cow;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, FixedOffset, Local};
use monitord_compat::cluster_record::TaskRecord;
use monitord_compat::reason::Reason;
use pmc_dag::{reason, words};
use pmc_packed::Pack;
use pmc_spawn::Spawner;
use signal_hook::consts::{SIGKILL, SIGTERM};

use super::attempt::{Attempt, Ending};
use super::away::AwayAttempt;
use super::ended::describe_end;
use super::environment::{TaskVariables, WorkerNumbers, inherited};
use super::error::{AttemptError, Failure, NotStarted, WorkerError};
use super::forward::Pipes;
use super::gang::Lead;
use super::gpus::Devices;
use super::host_script::{HostScript, HostScriptContext};
use super::input::TaskInput;
use super::launch::TaskLaunch;
use super::leftovers::Leftovers;
use super::memory::{self, Facts, OomKills};
use super::output_check::OutputCheck;
use super::packing;
use super::process::Process;
use super::program;
use super::relayed::{StartedRelay, TaskRelay};
use super::running::RunningAttempt;
use super::shortage::{self, Running};
use super::stdio::{self, TaskFiles};
use super::task_server::TaskServerClient;
use super::watch::Watch;
use crate::host;
use crate::node::{NodeService, ServedAttempt};
use crate::options::WorkerOptions;
use crate::protocol::{
    Assignment, EXECUTOR_FAILURE, EndCause, MemoryUse, Outcome, Output, Rank, Returned, TaskResult,
};
use crate::signals;
use crate::transport::local::StopTask as _;

/// An attempt whose process has started.
struct Started<'t> {
    at: (Instant, DateTime<FixedOffset>),
    pipes: Pipes<'t>,
    relay: Option<StartedRelay>,
    /// Set if the attempt is the lead of a gang.
    lead: Option<Lead>,
    check: Option<OutputCheck<'t>>,
    /// Memory at which the worker ends the task, MB.
    memory_mb: Option<u64>,
    process: Process,
    running: Running,
}

/// Runs the tasks of one worker.
pub(super) struct Runner {
    options: Arc<WorkerOptions>,
    current: Arc<RunningAttempt>,
    rank: Rank,
    host: String,
    host_rank: u32,
    input: File,
    /// Files of all tasks; `None` if each attempt has its own.
    shared_files: Option<Arc<TaskFiles>>,
    /// The pack with the output of attempts, once one of them is packed.
    pack: Option<Pack>,
    /// Keeps other runs away from `shared_files`.
    _lock: Option<File>,
    /// Variables that tasks inherit.
    environment: Vec<CString>,
    devices: Devices,
    /// Folders of PATH.
    path: Vec<PathBuf>,
    spawner: Spawner,
    task_server: TaskServerClient,
    host_script: Option<HostScript>,
    oom_kills: OomKills,
    /// Without random numbers, nobody looks for what attempts have left.
    leftovers: Option<Leftovers>,
    /// What tasks save their state with.
    node: Option<Arc<NodeService>>,
}

impl Runner {
    /// Opens the worker's files.
    pub(super) fn new(
        options: Arc<WorkerOptions>,
        current: Arc<RunningAttempt>,
        rank: Rank,
        host: String,
    ) -> Result<Self, WorkerError> {
        let input = File::open("/dev/null").map_err(WorkerError::OpenNull)?;
        let shared_files = if options.per_task_stdio || options.away.is_some() {
            None
        } else {
            Some(Arc::new(stdio::open_shared(&options.worker_files, rank.0)?))
        };
        let locked = shared_files.as_deref().filter(|_| options.lock_worker_files);
        let lock = locked.map(stdio::lock_shared).transpose()?;
        let path = options.environment.iter().find(|(name, _)| name == "PATH");
        let path = path.map(|(_, value)| std::env::split_paths(value).collect());
        Ok(Self {
            devices: Devices::from_environment(&options.environment),
            environment: inherited(&options.environment),
            leftovers: Leftovers::new(&options.environment),
            path: path.unwrap_or_default(),
            task_server: TaskServerClient::new(options.kickstart.as_deref()),
            node: node_service(&options),
            options,
            current,
            rank,
            host,
            host_rank: 0,
            input,
            shared_files,
            pack: None,
            _lock: lock,
            spawner: Spawner::new(),
            host_script: None,
            oom_kills: OomKills::of_this_process(),
        })
    }

    /// Stores the worker's number on its host. The first worker of a host runs the host script. Returns
    /// whether the master waits for an answer.
    pub(super) fn set_up(&mut self, host_rank: u32, watch: &mut dyn Watch) -> Result<bool, Failure> {
        self.host_rank = host_rank;
        let Some(script) = &self.options.host_script else {
            return Ok(false);
        };
        if host_rank == 0 {
            let rank = self.rank.0;
            tracing::debug!("Worker {rank}: Launching host script {}", script.display());
            let context = HostScriptContext {
                path: &self.path,
                environment: &self.environment,
                input: &self.input,
                current: &self.current,
            };
            self.host_script = Some(HostScript::run(script, &context, &mut self.spawner, watch)?);
            tracing::debug!("Worker {rank}: Host script exited with status 0");
        }
        Ok(true)
    }

    /// True if attempts may have left processes.
    pub(super) fn has_leftovers(&self) -> bool {
        self.leftovers.as_ref().is_some_and(Leftovers::is_due)
    }

    /// Ends what attempts have left.
    pub(super) fn look_for_leftovers(&mut self) {
        if let Some(leftovers) = self.leftovers.as_mut().filter(|leftovers| leftovers.is_due()) {
            let names = leftovers.look();
            warn_of(&names, "The last tasks of this worker have");
        }
    }

    /// Ends the task server and the processes that tasks and the host script have left.
    pub(super) fn close(&mut self) {
        self.look_for_leftovers();
        self.task_server.close();
        if let Some(script) = self.host_script.take()
            && script.end(self.current.is_aborted())
        {
            tracing::warn!(
                "Worker {}: Sent SIGKILL to resilient host script processes",
                self.rank.0
            );
        }
    }

    /// Runs a task and waits for its end. Polls `watch` meanwhile.
    pub(super) fn run(&mut self, task: &Assignment, watch: &mut dyn Watch) -> Result<TaskResult, Failure> {
        let name = String::from_utf8_lossy(&task.name);
        tracing::debug!("Running task {name}");
        self.current.begin(task.submit);
        let task = &*on_allowed_cpus(task);
        match self.attempt(task, watch) {
            Ok(result) => Ok(result),
            Err(AttemptError::Failure(failure)) => Err(failure),
            Err(AttemptError::NotStarted(error)) => {
                tracing::error!("Task {name}: {error}");
                if let (Output::Packed(number), Some(pack)) = (&task.output, &mut self.pack) {
                    // As the empty files of such an attempt.
                    let streams = [&self.input, &self.input];
                    packing::append(pack, task, (*number, 0), streams, &[])?;
                }
                let mut outcome = Outcome::new(EXECUTOR_FAILURE, Duration::ZERO);
                outcome.cause = Some(EndCause::Known(error.reason()));
                let mut result = TaskResult::new(task.submit, outcome);
                result.returned = matches!(task.output, Output::Away(_)).then(|| {
                    Box::new(Returned {
                        err: format!("Task {name}: {error}\n").into_bytes().into(),
                        ..Returned::default()
                    })
                });
                Ok(result)
            }
        }
    }

    fn attempt(&mut self, task: &Assignment, watch: &mut dyn Watch) -> Result<TaskResult, AttemptError> {
        let (options, current) = (Arc::clone(&self.options), Arc::clone(&self.current));
        let name = String::from_utf8_lossy(&task.name);
        let files = match (&task.output, &self.shared_files) {
            (Output::Away(carried), _) => {
                let (base, carried) = options
                    .away
                    .as_deref()
                    .zip(carried.as_deref())
                    .ok_or(NotStarted::NothingCarried)?;
                let open = || Ok(AwayAttempt::open(base, task, carried)?);
                let away = shortage::begin(&name, &current, watch, open)?;
                let mut result = self.attempt_with(&away.task, &away.files, watch)?;
                let returned = away.returned().map_err(NotStarted::Output)?;
                result.returned = Some(Box::new(returned));
                return Ok(result);
            }
            (Output::Merged, Some(shared)) => Arc::clone(shared),
            (Output::Packed(_), _) => {
                let (rank, pack) = (self.rank, &mut self.pack);
                let open = || open_packed(&options, rank, pack);
                Arc::new(shortage::begin(&name, &current, watch, open)?)
            }
            (Output::Own | Output::Merged, _) => {
                let open = || Ok(stdio::open_task(dag_of(task, &options), &task.name)?);
                Arc::new(shortage::begin(&name, &current, watch, open)?)
            }
        };
        self.attempt_with(task, &files, watch)
    }

    /// Runs a task with these files for its output.
    fn attempt_with(
        &mut self,
        task: &Assignment,
        files: &TaskFiles,
        watch: &mut dyn Watch,
    ) -> Result<TaskResult, AttemptError> {
        let words = words::split(&task.command);
        let needs_descriptor = watch.interval().is_some();
        let (current, name) = (Arc::clone(&self.current), String::from_utf8_lossy(&task.name));
        let served = self.serve(task);
        let start = || self.start(task, &words, files, needs_descriptor, served.as_ref());
        let Started {
            at: (started, start),
            pipes,
            relay,
            lead,
            check,
            memory_mb,
            mut process,
            running: _running,
        } = shortage::begin(&name, &current, watch, start)?;
        let app = words.first().map_or(&b""[..], Vec::as_slice);
        let failure = process.failure();
        if let Some(error) = failure {
            write_exec_failure(files, app, task, error);
        }
        let is_unusable = failure.is_some_and(program::is_unusable);
        let attempt = self.running(task, memory_mb);
        let mut ending = attempt.finish(pipes, &mut process, watch)?;
        let runtime = started.elapsed();
        let is_cut = lead.is_some_and(Lead::close);
        if let Some(error) = relay.and_then(|relay| relay.finish(&self.current, watch)) {
            reject(
                task,
                files,
                &format!("its output cannot be written: {}", reason(&error)),
                &mut ending,
            );
        }
        if let Some(problem) = check.and_then(|check| check.problem(ending.status)) {
            reject(task, files, &problem, &mut ending);
        }
        let status = ending.status;
        if let Some(leftovers) = &mut self.leftovers {
            let must_look = task.gang.is_some() || ending.was_signalled || is_signalled(status);
            let names = leftovers.ended(runtime, must_look);
            warn_of(&names, &format!("Task {name} has"));
        }
        let cannot_run = is_unusable || program::is_missing_behind(&words, status);
        if let Process::Served(server) = process
            && ending.is_reusable
        {
            self.task_server.keep(server);
        }
        log_end(task, status, runtime);
        let record = TaskRecord {
            id: task.id.as_deref(),
            name: &task.name,
            start,
            duration: runtime,
            status,
            app,
            hostname: &self.host,
            slot: self.rank.0,
            cpus: task.cpus,
            memory_mb: task.memory_mb,
        };
        let outcome = self.outcome(task, &ending, runtime, (cannot_run, is_cut));
        if let Some(served) = served.filter(|_| !ending.was_signalled && has_failed_itself(&outcome)) {
            served.fail();
        }
        keep_record(task, &record, files, &mut self.pack)?;
        Ok(TaskResult {
            submit: task.submit,
            outcome,
            forwards: ending.forwards,
            returned: None,
        })
    }

    /// Lets the processes of an attempt save their state.
    fn serve(&self, task: &Assignment) -> Option<ServedAttempt> {
        let node = self.node.as_ref()?;
        Some(node.begin(task.submit, &task.name, dag_of(task, &self.options)))
    }

    /// Returns how an attempt ended. `cannot_run`: its program cannot be executed; `is_cut`: it was the lead
    /// of a gang that has lost a member.
    fn outcome(
        &self,
        task: &Assignment,
        ending: &Ending,
        runtime: Duration,
        (cannot_run, is_cut): (bool, bool),
    ) -> Outcome {
        let mut outcome = Outcome::new(ending.status, runtime);
        outcome.memory = self.memory_use(task, ending);
        outcome.cause = if outcome.is_terminated() && signals::is_terminated() {
            Some(EndCause::Interrupted)
        } else if cannot_run {
            Some(EndCause::CannotRun)
        } else if is_cut && ending.status != 0 {
            Some(EndCause::Cut)
        } else {
            let limit = ending.over_time;
            limit.map(|limit| EndCause::Known(Reason::TimeLimit { limit }))
        };
        outcome
    }

    /// Starts an attempt with these words and files.
    fn start<'t>(
        &mut self,
        task: &'t Assignment,
        words: &[Vec<u8>],
        files: &'t TaskFiles,
        needs_descriptor: bool,
        served: Option<&ServedAttempt>,
    ) -> Result<Started<'t>, AttemptError> {
        let mut input = TaskInput::open(task.stdin.as_ref())?;
        let relay = TaskRelay::open(task, files)?;
        let at = (Instant::now(), Local::now().fixed_offset());
        let pipes = Pipes::open(&task.pipe_forwards).map_err(NotStarted::Prepare)?;
        let tokens = self.leftovers.as_mut();
        let tokens = tokens.and_then(|tokens| tokens.begin(task.gang.as_ref().map(|gang| gang.token)));
        let gang = task.gang.as_deref();
        let lead = gang.map(|gang| Lead::new(gang, &self.options));
        let lead = lead.transpose().map_err(NotStarted::Prepare)?;
        let variables = self.variables(task, &pipes, served)?.with(tokens);
        let variables = variables.with(lead.iter().flat_map(Lead::variables));
        let launch = TaskLaunch {
            task,
            words,
            streams: relay.descriptors(files, input.descriptor(&self.input)),
            streams_are_shared: task.output == Output::Merged,
            variables: &variables,
            pipes: pipes.write_ends(),
            inherited: &self.environment,
            path: &self.path,
            options: &self.options,
            needs_descriptor,
        };
        let check = OutputCheck::begin(task, files);
        self.oom_kills.begin();
        self.current.begin_input(input.write.take());
        self.begin_output(task, files, &relay);
        self.current.begin_signals(pmc_calls::passes_signals(words));
        if let Some(lead) = &lead {
            let environment = launch.environment().map(|variable| variable.to_bytes().to_vec());
            lead.open(task, environment.collect(), &launch.absolute_directory());
        }
        let process = launch.start(&self.current, &mut self.task_server, &mut self.spawner);
        let memory_mb = launch.watched_memory_mb();
        // When the task has closed its end, tools notice it.
        drop(input);
        Ok(Started {
            at,
            relay: relay.started(),
            lead,
            check,
            memory_mb,
            process: process.ok_or(Failure::Aborted)?.map_err(NotStarted::Start)?,
            running: Running::begin(),
            pipes,
        })
    }

    /// Lets tools see the output of the attempt that runs now.
    fn begin_output(&self, task: &Assignment, files: &TaskFiles, relay: &TaskRelay) {
        self.current.begin_output(relay.relay());
        if let Output::Packed(_) = task.output {
            self.current.begin_own_streams([&files.out, &files.err]);
        }
    }

    fn variables(
        &self,
        task: &Assignment,
        pipes: &Pipes<'_>,
        served: Option<&ServedAttempt>,
    ) -> Result<TaskVariables, NotStarted> {
        let numbers = WorkerNumbers {
            rank: self.rank,
            host_rank: self.host_rank,
        };
        TaskVariables::new(task, pipes, numbers, &self.devices, served).map_err(NotStarted::Prepare)
    }

    fn running<'a>(&'a self, task: &'a Assignment, memory_mb: Option<u64>) -> Attempt<'a> {
        Attempt {
            task,
            limit: task.runtime_limit.or(self.options.runtime_limit),
            memory_limit_kib: memory_mb.map(|mb| mb << 10),
            current: &self.current,
            options: &self.options,
        }
    }

    fn memory_use(&self, task: &Assignment, ending: &Ending) -> Option<MemoryUse> {
        let facts = Facts {
            requested_mb: task.memory_mb,
            status: ending.status,
            peak_kib: ending.peak_kib,
            is_over_limit: ending.is_over_memory,
            was_signalled: ending.was_signalled,
            is_limited: self.options.strict_limits,
            was_oom_killed: memory::is_killed(ending.status) && self.oom_kills.has_killed(),
        };
        facts.memory_use()
    }
}

/// Returns the DAG file of a task, as from the working directory of the run.
/// Starts what tasks save their state with. The store is beside the DAG file, or on nodes.
fn node_service(options: &WorkerOptions) -> Option<Arc<NodeService>> {
    if options.away.is_some() && options.nodes.is_none() {
        return None;
    }
    let service = NodeService::for_run(&options.dag)?;
    if let Some(nodes) = &options.nodes {
        service.keep_on_nodes(Arc::clone(nodes));
    }
    Some(service)
}

fn dag_of<'a>(task: &'a Assignment, options: &'a WorkerOptions) -> &'a Path {
    let own = task.place.as_ref().map(|place| OsStr::from_bytes(&place.dag));
    own.map_or(&options.dag, Path::new)
}

/// Opens the streams of an attempt whose output goes into the pack of the worker, and the pack.
fn open_packed(
    options: &WorkerOptions,
    rank: Rank,
    pack: &mut Option<Pack>,
) -> Result<TaskFiles, AttemptError> {
    if pack.is_none() {
        *pack = Some(packing::open(options, rank)?);
    }
    Ok(packing::open_streams(options)?)
}

/// Appends the record to the task's standard output; and both streams to the pack, if the attempt has an
/// entry there.
fn keep_record(
    task: &Assignment,
    record: &TaskRecord<'_>,
    files: &TaskFiles,
    pack: &mut Option<Pack>,
) -> Result<(), Failure> {
    let mut text = Vec::with_capacity(256 + record.name.len() + record.app.len());
    record.write(&mut text);
    // The record is in the pack only.
    if let (&Output::Packed(number), Some(pack)) = (&task.output, pack) {
        let start_ms = u64::try_from(record.start_ms()).unwrap_or(0);
        packing::append(pack, task, (number, start_ms), [&files.out, &files.err], &text)?;
        return Ok(());
    }
    (&files.out)
        .write_all(&text)
        .map_err(|source| WorkerError::WriteRecord {
            task: String::from_utf8_lossy(record.name).into_owned(),
            path: files.out_path.clone(),
            source,
        })?;
    Ok(())
}

fn write_exec_failure(files: &TaskFiles, program: &[u8], task: &Assignment, error: &io::Error) {
    let mut text = b"Unable to exec command ".to_vec();
    text.extend_from_slice(program);
    text.extend_from_slice(b" for task ");
    text.extend_from_slice(&task.name);
    text.extend_from_slice(format!(": {}\n", reason(error)).as_bytes());
    // If this fails, the record still shows that the task failed.
    let _ = (&files.err).write_all(&text);
}

/// Lets an attempt fail whose output contradicts its status, and reports it, also to those who read its
/// standard error.
fn reject(task: &Assignment, files: &TaskFiles, problem: &str, ending: &mut Ending) {
    let name = String::from_utf8_lossy(&task.name);
    tracing::error!("Task {name}: {problem}");
    // If this fails, the log still has the message.
    let _ = (&files.err).write_all(format!("Task {name} failed: {problem}\n").as_bytes());
    ending.status = EXECUTOR_FAILURE;
    ending.forwards.clear();
}

/// Returns the task with the CPUs that stand for the numbers that it was granted.
fn on_allowed_cpus(task: &Assignment) -> Cow<'_, Assignment> {
    if task.cpu_set.is_empty() {
        return Cow::Borrowed(task);
    }
    match host::real_cpus(&task.cpu_set) {
        Some(cpu_set) if cpu_set != task.cpu_set => Cow::Owned(Assignment {
            cpu_set,
            ..task.clone()
        }),
        // With more CPUs than there are, numbers have no meaning here.
        _ => Cow::Borrowed(task),
    }
}

/// True if a signal has ended the attempt, or a process of it whose end it reports.
fn is_signalled(status: i32) -> bool {
    status & 0x7f != 0 || status >> 8 & 0xff > 128
}

/// Names the processes that were ended.
fn warn_of(programs: &[String], who: &str) {
    if !programs.is_empty() {
        tracing::warn!("{who} left processes, which were ended: {}", programs.join(", "));
    }
}

/// Returns whether an attempt has failed by itself: nothing else is known that has ended it. Nobody kills
/// itself; launchers of MPI say so with the number of the signal as exit code.
fn has_failed_itself(outcome: &Outcome) -> bool {
    let is_killed = [SIGKILL, SIGTERM]
        .iter()
        .any(|signal| outcome.is_ended_by(*signal) || outcome.status == signal << 8);
    let ran_out = outcome.memory.is_some_and(|memory| memory.out_of_memory);
    !outcome.succeeded() && outcome.cause.is_none() && !is_killed && !ran_out
}

fn log_end(task: &Assignment, status: i32, runtime: Duration) {
    let (name, seconds) = (String::from_utf8_lossy(&task.name), runtime.as_secs_f64());
    let end = describe_end(status);
    tracing::debug!("Task {name} exited {end} ({status}) in {seconds:.6} seconds");
}
