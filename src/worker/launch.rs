//! Starts the process of a task, or hands the task to the task server.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use pmc_dag::reason;
use pmc_spawn::{CStrings, Child, Spawn, Spawner};
use pmc_wire::{MAX_DESCRIPTORS, Request, Ticket};

use super::environment::TaskVariables;
use super::gang;
use super::process::Process;
use super::program;
use super::running::RunningAttempt;
use super::task_server::TaskServerClient;
use crate::options::WorkerOptions;
use crate::protocol::Assignment;

/// Everything that starting a task needs.
pub(super) struct TaskLaunch<'a> {
    pub(super) task: &'a Assignment,
    pub(super) words: &'a [Vec<u8>],
    /// Standard input, output and error.
    pub(super) streams: [RawFd; 3],
    /// All tasks of the worker have these streams.
    pub(super) streams_are_shared: bool,
    pub(super) variables: &'a TaskVariables,
    /// The task's ends of its pipes.
    pub(super) pipes: Vec<RawFd>,
    /// Variables that all tasks inherit.
    pub(super) inherited: &'a [CString],
    /// Folders of PATH.
    pub(super) path: &'a [PathBuf],
    pub(super) options: &'a WorkerOptions,
    /// The worker waits with a timeout, so it needs a descriptor of the process.
    pub(super) needs_descriptor: bool,
}

impl TaskLaunch<'_> {
    /// Hands the task to the task server, or starts a process. `None` after an abort.
    pub(super) fn start(
        &self,
        current: &RunningAttempt,
        client: &mut TaskServerClient,
        spawner: &mut Spawner,
    ) -> Option<io::Result<Process>> {
        if let Some((ticket, request)) = self.server_request(client) {
            // If the first server has died meanwhile, the task has not started.
            for _ in 0..2 {
                let Some(server) = client.take_server(self.inherited, spawner) else {
                    break;
                };
                let start = || {
                    server
                        .start_task(
                            (ticket, &request),
                            self.streams,
                            &self.pipes,
                            self.streams_are_shared,
                        )
                        .map(|()| server)
                };
                match current.start(start) {
                    Some(Err(error)) => tracing::debug!("Restarting the task server: {}", reason(&error)),
                    started => return started.map(|server| server.map(Process::Served)),
                }
            }
        }
        let started = current.start(|| self.spawn(spawner));
        started.map(|child| child.map(Process::Own))
    }

    /// Returns the request for the task server, if it can run this task.
    fn server_request(&self, client: &mut TaskServerClient) -> Option<(Ticket, Vec<u8>)> {
        let command = client.command(self.words, self.path)?;
        // The server reads nothing for its tasks, and a limit must not count its memory.
        let has_limit = self.memory_limit().is_some() || self.watched_memory_mb().is_some();
        if has_limit
            || self.task.stdin.is_some()
            || self.task.has_relay()
            || self.task.gang.is_some()
            || self.pipes.len() + 3 > MAX_DESCRIPTORS
        {
            return None;
        }
        let ticket = client.next_ticket()?;
        let own = self.variables.all().iter().map(|variable| variable.as_bytes());
        let variables = own.chain(command.variables.iter().map(Vec::as_slice));
        let words = command.words.iter().map(Vec::as_slice);
        let request = Request {
            ticket,
            tool: command.tool,
            words: &words.collect::<Vec<_>>(),
            variables: &variables.collect::<Vec<_>>(),
            cpus: self.cpu_binding().map_or(&[], |_| self.task.cpu_set.as_slice()),
            directory: self.directory().unwrap_or_default(),
        };
        Some((ticket, request.encode().ok()?))
    }

    fn spawn(&self, spawner: &mut Spawner) -> io::Result<Child> {
        let program = program::find(self.words.first().map_or(b"", Vec::as_slice), self.path);
        let program = CString::new(program.as_os_str().as_bytes())?;
        let directory = self.directory().map(CString::new).transpose()?;
        let mut arguments = CStrings::default();
        for word in self.words {
            arguments.push_bytes(word)?;
        }
        if arguments.is_empty() {
            // Programs rely on having a name.
            arguments.push(&program);
        }
        Spawn {
            program: &program,
            arguments: &arguments,
            environment: &self.environment().collect(),
            directory: directory.as_deref(),
            stdio: self.streams,
            keep: &self.pipes,
            close_others: true,
            leads_group: true,
            unblock: false,
            memory: self.memory_limit(),
            cpus: self.cpu_binding(),
            die_with_parent: true,
            descriptor: self.needs_descriptor,
            stop_at_exec: false,
        }
        .start(spawner)
    }

    /// Inherited variables, and those of the task, which replace inherited ones.
    pub(super) fn environment(&self) -> impl Iterator<Item = &CStr> {
        let name_of = |variable: &CString| -> Vec<u8> {
            let name = variable.as_bytes().split(|byte| *byte == b'=').next();
            name.unwrap_or_default().to_vec()
        };
        let task = self.task;
        // The inherited variables contain none of those that every task has.
        let may_replace = !task.pipe_forwards.is_empty()
            || !task.cpu_set.is_empty()
            || !task.gpu_set.is_empty()
            || task.gang.is_some();
        let mut replaced: Vec<Vec<u8>> = if may_replace {
            self.variables.all().iter().map(name_of).collect()
        } else {
            Vec::new()
        };
        if task.gang.is_some() {
            replaced.extend(gang::HIDDEN.map(<[u8]>::to_vec));
        }
        let is_kept = move |variable: &&CString| {
            !replaced.iter().any(|name| {
                let rest = variable.as_bytes().strip_prefix(name.as_slice());
                rest.is_some_and(|rest| rest.first().is_none_or(|byte| *byte == b'='))
            })
        };
        let inherited = self.inherited.iter().filter(is_kept);
        inherited.chain(self.variables.all()).map(CString::as_c_str)
    }

    /// Memory in MB at which the worker ends the task, if it does.
    pub(super) fn watched_memory_mb(&self) -> Option<u64> {
        let memory_mb = self.task.memory_mb;
        (self.options.watch_memory && memory_mb > 0).then_some(memory_mb)
    }

    /// The working directory of the task, if it is not that of the run.
    fn directory(&self) -> Option<&[u8]> {
        self.task.place.as_ref().map(|place| place.directory.as_slice())
    }

    /// The same, as other processes name it.
    pub(super) fn absolute_directory(&self) -> PathBuf {
        let own = std::env::current_dir().unwrap_or_else(|_| ".".into());
        let directory = self.directory().unwrap_or_default();
        own.join(OsStr::from_bytes(directory))
    }

    /// Memory limit in bytes.
    fn memory_limit(&self) -> Option<u64> {
        let is_limited = self.options.strict_limits && self.task.memory_mb > 0;
        is_limited.then(|| self.task.memory_mb.saturating_mul(1 << 20))
    }

    /// The granted CPUs, if this worker may use them. The master numbers the CPUs of a host from 0, but the
    /// batch system may have given this job other ones.
    fn cpu_binding(&self) -> Option<CpuSet> {
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
