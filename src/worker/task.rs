//! Executing one task.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Local;
use monitord_compat::cluster_record::TaskRecord;
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use pmc_dag::{reason, words};
use pmc_spawn::{CStrings, Child, Spawn, Spawner};
use pmc_wire::{MAX_DESCRIPTORS, Request};

use super::environment::{TASK_VARIABLES, inherited, variable};
use super::forward::{self, Pipes};
use super::gpus::Devices;
use super::host_script::HostScript;
use super::kill::KillSwitch;
use super::process::{Ended, Process};
use super::stdio::{self, Pair, SharedStdio};
use super::task_server::TaskServerClient;
use super::watch::Watch;
use crate::options::WorkerOptions;
use crate::protocol::{Assignment, EXECUTOR_FAILURE, ForwardedData, Outcome, QuietAttempt, Rank, TaskResult};
use crate::transport::local::StopTask as _;

/// How long a task whose time is over may take to end before it is killed.
const LIMIT_GRACE: Duration = Duration::from_secs(5);

/// Why a worker cannot go on.
#[derive(Debug)]
pub(super) enum Failure {
    /// The end was asked for; the result does not count.
    Aborted,
    /// What happened, for the user.
    Fatal(String),
}

/// Executes the tasks of one worker.
pub(super) struct Runner {
    options: Arc<WorkerOptions>,
    kill: Arc<KillSwitch>,
    rank: Rank,
    host: String,
    host_rank: u32,
    input: File,
    shared: Option<SharedStdio>,
    environment: Vec<CString>,
    devices: Devices,
    path: Vec<PathBuf>,
    spawner: Spawner,
    kickstart: TaskServerClient,
    host_script: Option<HostScript>,
}

/// How a try went, before anything is written about it.
struct Run {
    status: i32,
    forwards: Vec<ForwardedData>,
    /// The server of the task can take another one.
    reusable: bool,
}

impl Runner {
    /// Opens the worker's files. The error is a sentence for the user.
    pub(super) fn new(
        options: Arc<WorkerOptions>,
        kill: Arc<KillSwitch>,
        rank: Rank,
        host: String,
    ) -> Result<Self, String> {
        let input = File::open("/dev/null")
            .map_err(|error| format!("Unable to open /dev/null: {}", reason(&error)))?;
        let shared = if options.per_task_stdio {
            None
        } else {
            Some(stdio::open_shared(&options.dag, rank.0)?)
        };
        let devices = Devices::named(&options.environment);
        let environment = inherited(&options.environment);
        let path = options
            .environment
            .iter()
            .find(|(name, _)| name == "PATH")
            .map(|(_, value)| value);
        let path = path
            .map(|value| std::env::split_paths(value).collect())
            .unwrap_or_default();
        let kickstart = TaskServerClient::new(options.kickstart.as_deref());
        Ok(Self {
            options,
            kill,
            rank,
            host,
            host_rank: 0,
            input,
            shared,
            environment,
            devices,
            path,
            spawner: Spawner::new(),
            kickstart,
            host_script: None,
        })
    }

    /// Takes note of the worker's number among those of its host. The first one runs the host
    /// script. Tells whether the master waits to hear that the host is prepared.
    pub(super) fn set_up(&mut self, host_rank: u32, watch: &mut dyn Watch) -> Result<bool, Failure> {
        self.host_rank = host_rank;
        let Some(script) = &self.options.host_script else {
            return Ok(false);
        };
        if host_rank == 0 {
            let rank = self.rank.0;
            tracing::debug!("Worker {rank}: Launching host script {}", script.display());
            let (path, environment) = (&self.path, &self.environment);
            let spawner = &mut self.spawner;
            let kill = &self.kill;
            let run = HostScript::run(script, path, environment, &self.input, spawner, kill, watch);
            self.host_script = Some(run?);
            tracing::debug!("Worker {rank}: Host script exited with status 0");
        }
        Ok(true)
    }

    /// Ends what the host script has left, and the server of tasks.
    pub(super) fn close(&mut self) {
        self.kickstart.close();
        if let Some(script) = self.host_script.take()
            && script.end(self.kill.is_aborted())
        {
            tracing::warn!(
                "Worker {}: Sent SIGKILL to resilient host script processes",
                self.rank.0
            );
        }
    }

    /// Executes a task and waits for its end; looks after `watch` meanwhile.
    pub(super) fn run(&mut self, task: &Assignment, watch: &mut dyn Watch) -> Result<TaskResult, Failure> {
        let name = String::from_utf8_lossy(&task.name);
        tracing::debug!("Running task {name}");
        let own;
        let files = match &self.shared {
            Some(shared) => &shared.files,
            None => match stdio::open_task(&self.options.dag, &task.name) {
                Ok(files) => {
                    own = files;
                    &own
                }
                Err(message) => {
                    tracing::error!("Task {name}: {message}");
                    return Ok(own_failure(task));
                }
            },
        };
        let words = words::split(&task.command);
        let (began, start) = (Instant::now(), Local::now().fixed_offset());
        let Prepared {
            pipes,
            environment,
            piped,
        } = match self.prepare(task) {
            Ok(prepared) => prepared,
            Err(error) => {
                tracing::error!("Task {name}: {}", reason(&error));
                return Ok(own_failure(task));
            }
        };
        let spawn = Execution {
            task,
            words: &words,
            files,
            shared: self.shared.is_some(),
            environment: &environment,
            piped,
            keep: pipes.for_task(),
            input: &self.input,
            inherited: &self.environment,
            path: &self.path,
            options: &self.options,
            watched: watch.interval().is_some(),
        };
        let started = spawn.begin(&self.kill, &mut self.kickstart, &mut self.spawner);
        let mut process = match started {
            None => return Err(Failure::Aborted),
            Some(Ok(process)) => process,
            Some(Err(error)) => {
                tracing::error!("Task {name}: Unable to start a process: {}", reason(&error));
                return Ok(own_failure(task));
            }
        };
        let program = words.first().map_or(&b""[..], Vec::as_slice);
        if let Some(error) = process.failure() {
            complain(files, program, task, error);
        }
        let Run {
            status,
            forwards,
            reusable,
        } = self.finish_in_time(task, pipes, &mut process, watch)?;
        if let Process::Served(server) = process
            && reusable
        {
            self.kickstart.keep(server);
        }
        let runtime = began.elapsed();
        log_end(task, status, runtime);
        let mut text = Vec::with_capacity(256 + task.name.len() + program.len());
        let record = TaskRecord {
            id: task.id.as_deref(),
            name: &task.name,
            start,
            duration: runtime,
            status,
            app: program,
            hostname: &self.host,
            slot: self.rank.0,
            cpus: task.cpus,
            memory_mb: task.memory_mb,
        };
        record.write(&mut text);
        (&files.out).write_all(&text).map_err(|error| {
            let path = files.out_path.display();
            Failure::Fatal(format!(
                "Task {name}: Error writing to {path}: {}",
                reason(&error)
            ))
        })?;
        let mut outcome = Outcome::new(status, runtime);
        if self.options.report_quiet && files.hold_only(text.len()) {
            outcome.quiet = quiet_attempt(&record, files.number);
        }
        Ok(TaskResult {
            submit: task.submit,
            outcome,
            forwards,
        })
    }

    fn prepare<'a>(&self, task: &'a Assignment) -> io::Result<Prepared<'a>> {
        let pipes = Pipes::open(&task.pipe_forwards)?;
        let mut environment = Vec::with_capacity(8 + task.pipe_forwards.len());
        for (name, descriptor) in pipes.variables() {
            if name.is_empty() {
                return Err(io::Error::other("The variable of a pipe forward has no name"));
            }
            if !TASK_VARIABLES.contains(&name) {
                environment.push(variable(name, descriptor.to_string().as_bytes())?);
            }
        }
        let piped = environment.len();
        environment.push(variable(b"PMC_TASK", &task.name)?);
        for (name, value) in [
            ("PMC_MEMORY", task.memory_mb),
            ("PMC_CPUS", task.cpus.into()),
            ("PMC_RANK", self.rank.0.into()),
            ("PMC_HOST_RANK", self.host_rank.into()),
        ] {
            environment.push(variable(name.as_bytes(), value.to_string().as_bytes())?);
        }
        if !task.cpu_set.is_empty() {
            let numbers: Vec<String> = task.cpu_set.iter().map(u32::to_string).collect();
            environment.push(variable(b"PMC_AFFINITY", numbers.join(",").as_bytes())?);
        }
        if !task.gpu_set.is_empty() {
            for (name, value) in self.devices.variables(&task.gpu_set) {
                environment.push(variable(name.as_bytes(), value.as_bytes())?);
            }
        }
        Ok(Prepared {
            pipes,
            environment,
            piped,
        })
    }

    /// As [`Self::finish`], but ends the task when its time is over.
    fn finish_in_time(
        &self,
        task: &Assignment,
        pipes: Pipes<'_>,
        process: &mut Process,
        watch: &mut dyn Watch,
    ) -> Result<Run, Failure> {
        let limit = task.runtime_limit.or(self.options.runtime_limit);
        let Some(limit) = limit.filter(|limit| !limit.is_zero()) else {
            return self.finish(task, pipes, process, watch);
        };
        std::thread::scope(|scope| {
            let name = String::from_utf8_lossy(&task.name);
            let notice = move || {
                let seconds = limit.as_secs_f64();
                tracing::error!("Task {name} is ended: its limit of {seconds} seconds is over");
            };
            let kill = &self.kill;
            let limiter = move || kill.end_after(limit, LIMIT_GRACE, notice);
            let thread = std::thread::Builder::new().name("limit".to_owned());
            if let Err(error) = thread.spawn_scoped(scope, limiter) {
                let name = String::from_utf8_lossy(&task.name);
                tracing::error!("Task {name}: Unable to watch its time: {}", reason(&error));
                self.kill.end_now();
            }
            self.finish(task, pipes, process, watch)
        })
    }

    /// Reads what the task sends, waits for its end and reads what it leaves.
    fn finish(
        &self,
        task: &Assignment,
        pipes: Pipes<'_>,
        process: &mut Process,
        watch: &mut dyn Watch,
    ) -> Result<Run, Failure> {
        let piped = pipes.read(&self.kill, watch);
        let signalled = self.kill.wait(process.leader(), watch);
        let Ended {
            mut status,
            goes_on,
            broken,
        } = process
            .conclude()
            .map_err(|error| Failure::Fatal(format!("Unable to wait for a task: {}", reason(&error))))?;
        if broken && !signalled {
            let name = String::from_utf8_lossy(&task.name);
            let how = describe_end(status);
            tracing::error!("Task {name}: its kickstart exited {how} and left no record");
            if status == 0 {
                status = EXECUTOR_FAILURE;
            }
        }
        if self.kill.is_aborted() {
            return Err(Failure::Aborted);
        }
        let mut forwards = Vec::new();
        if status == 0 {
            let read = piped.map_err(|error| reason(&error)).and_then(|data| {
                forwards = data;
                forward::read_files(&task.file_forwards, &mut forwards)
            });
            if let Err(message) = read {
                tracing::error!("Task {}: {message}", String::from_utf8_lossy(&task.name));
                status = EXECUTOR_FAILURE;
                forwards.clear();
            }
        }
        forward::remove_files(&task.file_forwards);
        Ok(Run {
            status,
            forwards,
            // A signal may still be on its way.
            reusable: goes_on && !signalled,
        })
    }
}

struct Prepared<'a> {
    pipes: Pipes<'a>,
    environment: Vec<CString>,
    /// How many of these are numbers of pipes.
    piped: usize,
}

/// Everything that starting a task's process needs.
struct Execution<'a> {
    task: &'a Assignment,
    words: &'a [Vec<u8>],
    files: &'a Pair,
    /// The files are those of all tasks.
    shared: bool,
    environment: &'a [CString],
    piped: usize,
    keep: Vec<i32>,
    input: &'a File,
    inherited: &'a [CString],
    path: &'a [PathBuf],
    options: &'a WorkerOptions,
    /// Something else is to be looked after while the process runs.
    watched: bool,
}

impl Execution<'_> {
    /// Has the task begun by a server, or starts a process for it. Nothing if the end was asked for.
    fn begin(
        &self,
        kill: &KillSwitch,
        kickstart: &mut TaskServerClient,
        spawner: &mut Spawner,
    ) -> Option<io::Result<Process>> {
        if let Some(request) = self.served(kickstart) {
            let streams = self.files.descriptors(self.input);
            // The first one may have ended meanwhile; nothing has begun then.
            for _ in 0..2 {
                let Some(server) = kickstart.server(self.inherited, spawner) else {
                    break;
                };
                let begin = || {
                    server
                        .begin(&request, streams, &self.keep, self.shared)
                        .map(|()| server)
                };
                match kill.start(begin) {
                    Some(Err(error)) => tracing::debug!("Restarting the task server: {}", reason(&error)),
                    started => return started.map(|server| server.map(Process::Served)),
                }
            }
        }
        kill.start(|| self.start(spawner))
            .map(|child| child.map(Process::Own))
    }

    /// The task as a server understands it, if it is for one.
    fn served(&self, kickstart: &TaskServerClient) -> Option<Vec<u8>> {
        let wanted = kickstart.kickstart_command(self.words, self.path)?;
        if self.memory().is_some() || self.keep.len() + 3 > MAX_DESCRIPTORS {
            return None;
        }
        let own = self.environment.get(self.piped..).unwrap_or_default();
        let own = own.iter().map(|variable| variable.as_bytes());
        let variables = own.chain(wanted.variables.iter().map(Vec::as_slice));
        let pipes = self.task.pipe_forwards.iter().map(|(name, _)| name.as_slice());
        let pipes = pipes.map(|name| if TASK_VARIABLES.contains(&name) { b"" } else { name });
        let words = wanted.words.iter().map(Vec::as_slice);
        let request = Request {
            words: &words.collect::<Vec<_>>(),
            variables: &variables.collect::<Vec<_>>(),
            pipes: &pipes.collect::<Vec<_>>(),
            cpus: self.cpus().map_or(&[], |_| self.task.cpu_set.as_slice()),
        };
        Some(request.encode())
    }

    fn start(&self, spawner: &mut Spawner) -> io::Result<Child> {
        let mut arguments = CStrings::default();
        for word in self.words {
            arguments.push_bytes(word)?;
        }
        let program = super::program::find(self.words.first().map_or(b"", Vec::as_slice), self.path);
        let program = CString::new(program.as_os_str().as_bytes())?;
        if arguments.is_empty() {
            // Programs rely on having a name.
            arguments.push(&program);
        }
        let set = |name: &CString| {
            let name = name_of(name.as_bytes());
            self.environment.iter().any(|v| name_of(v.as_bytes()) == name)
        };
        // Variables of the task replace inherited ones. Few tasks have any beyond those that the
        // inherited ones were already cleared of.
        let task = self.task;
        let replaces = !task.pipe_forwards.is_empty() || !task.cpu_set.is_empty() || !task.gpu_set.is_empty();
        let inherited = self.inherited.iter().filter(|v| !replaces || !set(v));
        let variables = inherited.chain(self.environment).map(CString::as_c_str);
        Spawn {
            program: &program,
            arguments: &arguments,
            environment: &variables.collect(),
            directory: None,
            stdio: self.files.descriptors(self.input),
            keep: &self.keep,
            close_others: true,
            leads_group: true,
            unblock: false,
            memory: self.memory(),
            cpus: self.cpus(),
            die_with_parent: true,
            descriptor: self.watched,
        }
        .start(spawner)
    }
}

impl Execution<'_> {
    /// Limit of the memory in bytes, if there is to be one.
    fn memory(&self) -> Option<u64> {
        let limit = self.options.strict_limits && self.task.memory_mb > 0;
        limit.then(|| self.task.memory_mb.saturating_mul(1 << 20))
    }

    /// The CPUs to bind the task to: those granted, if this worker may use them. The master counts from 0 to the
    /// number of CPUs of the host, but a batch system may have given this job other ones.
    fn cpus(&self) -> Option<CpuSet> {
        if !self.options.set_affinity || self.task.cpu_set.is_empty() {
            return None;
        }
        let allowed = sched_getaffinity(Pid::from_raw(0)).ok()?;
        let mut set = CpuSet::new();
        for cpu in &self.task.cpu_set {
            let cpu = *cpu as usize;
            if !allowed.is_set(cpu).unwrap_or(false) || set.set(cpu).is_err() {
                tracing::warn!(
                    "Task {}: CPU {cpu} is not available to this worker: not setting affinity",
                    String::from_utf8_lossy(&self.task.name)
                );
                return None;
            }
        }
        Some(set)
    }
}

fn own_failure(task: &Assignment) -> TaskResult {
    TaskResult {
        submit: task.submit,
        outcome: Outcome::new(EXECUTOR_FAILURE, Duration::ZERO),
        forwards: Vec::new(),
    }
}

/// What the master needs to know of a record, if readers of the record would find what is in it: its values are
/// written as they are.
fn quiet_attempt(record: &TaskRecord<'_>, file: u32) -> Option<QuietAttempt> {
    let mut values = [record.id.unwrap_or_default(), record.name, record.app].into_iter();
    let plain = values.all(|value| value.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'"'));
    let start_ms = u64::try_from(record.start_ms()).ok()?;
    plain.then_some(QuietAttempt { file, start_ms })
}

fn complain(files: &Pair, program: &[u8], task: &Assignment, error: &io::Error) {
    let mut text = b"Unable to exec command ".to_vec();
    text.extend_from_slice(program);
    text.extend_from_slice(b" for task ");
    text.extend_from_slice(&task.name);
    text.extend_from_slice(format!(": {}\n", reason(error)).as_bytes());
    // The record of the task says that it failed, even if the reason cannot be written.
    let _ = (&files.err).write_all(&text);
}

fn log_end(task: &Assignment, status: i32, runtime: Duration) {
    let (name, seconds) = (String::from_utf8_lossy(&task.name), runtime.as_secs_f64());
    let how = describe_end(status);
    tracing::debug!("Task {name} exited {how} ({status}) in {seconds:.6} seconds");
}

fn describe_end(status: i32) -> String {
    if libc::WIFSIGNALED(status) {
        format!("on signal {}", libc::WTERMSIG(status))
    } else {
        format!("with status {}", libc::WEXITSTATUS(status))
    }
}

fn name_of(variable: &[u8]) -> &[u8] {
    variable.split(|b| *b == b'=').next().unwrap_or_default()
}
