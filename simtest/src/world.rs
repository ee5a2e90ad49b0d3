//! The world of a round: hosts and the tasks on them, and what is known of masters and agents.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pegasus_mpi_cluster::internals::{Assignment, ForwardedData};
use pegasus_mpi_cluster::simulated::{Guarded, Host, SimulatedTask};
use pegasus_mpi_cluster::{Interrupt, Rank, Registration};
use pmc_system::simulated::{self as system, HostId, ProcessId};

use crate::checks::{self, Allowed};
use crate::disk::SimulatedDisk;
use crate::plan::Plan;

/// The host of the master. Others are 1 and so on.
pub(crate) const MASTER_HOST: HostId = HostId(0);

/// How long agents wait for a master, and a master for agents.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Wait status of SIGKILL and SIGTERM.
const KILLED: i32 = 9;
const TERMINATED: i32 = 15;

/// What a round has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is wrong, if anything is.
    pub finding: Option<String>,
    /// A number that differs between any two different rounds.
    pub hash: u64,
    /// Steps of the simulation.
    pub steps: u64,
    /// Simulated time.
    pub time: Duration,
    /// Attempts that were started.
    pub attempts: u64,
    /// Masters that were started.
    pub masters: u64,
    /// What happened, if asked for.
    pub trace: Vec<String>,
}

/// A process of a task.
pub(crate) struct TaskProcess {
    pub(crate) host: usize,
    pub(crate) name: Vec<u8>,
    pub(crate) cpus: u32,
    pub(crate) memory: u64,
    pub(crate) ends_at: Duration,
    pub(crate) status: i32,
    /// Set when it has ended.
    pub(crate) ended: Option<i32>,
    pub(crate) ignores_term: bool,
    pub(crate) forwards: Vec<ForwardedData>,
}

/// A host and what runs there, besides tasks.
pub(crate) struct Node {
    pub(crate) guarded: Guarded,
    pub(crate) agent: Option<ProcessId>,
    pub(crate) interrupt: Option<Arc<Interrupt>>,
    pub(crate) has_guard: bool,
    pub(crate) is_on: bool,
    pub(crate) restarts: u32,
}

/// What has become of the last master.
pub(crate) enum Master {
    Runs(ProcessId),
    IsDead,
    HasEnded,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) folder: PathBuf,
    pub(crate) disk: Rc<SimulatedDisk>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) tasks: BTreeMap<u64, TaskProcess>,
    pub(crate) next_task: u64,
    /// Attempts of each task that have run to their end, and failures among them.
    pub(crate) attempts: BTreeMap<u32, u32>,
    pub(crate) failures: BTreeMap<u32, u32>,
    pub(crate) master: Master,
    pub(crate) interrupt: Option<Arc<Interrupt>>,
    pub(crate) allowed: Allowed,

    pub(crate) has_failed_disk: bool,
    pub(crate) report: Report,
    pub(crate) hash: std::collections::hash_map::DefaultHasher,
    pub(crate) keeps_trace: bool,
}

thread_local! {
    pub(crate) static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

pub(crate) fn with<R>(f: impl FnOnce(&mut World) -> R) -> Option<R> {
    // At the end of a round, processes are killed without a world.
    WORLD.with_borrow_mut(|world| world.as_mut().map(f))
}

pub(crate) fn now() -> Duration {
    system::now().unwrap_or_default()
}

/// Notes what happens.
pub(crate) fn note(text: impl FnOnce() -> String) {
    let now = now();
    with(|world| {
        let text = text();
        world.hash.write(text.as_bytes());
        world.hash.write_u128(now.as_nanos());
        if world.keeps_trace {
            world
                .report
                .trace
                .push(format!("{:>12.6} {text}", now.as_secs_f64()));
        }
    });
}

pub(crate) fn find(text: String) {
    note(|| format!("FINDING: {text}"));
    with(|world| {
        world.report.finding.get_or_insert(text);
    });
}

/// These bytes were written to a file by the master.
pub(crate) fn wrote(name: &str, bytes: &[u8]) {
    let wrong = with(|world| {
        world.hash.write(bytes);
        if name != "jobstate.log" {
            return None;
        }
        let successes = checks::successes(name, bytes);
        if successes.is_empty() {
            return None;
        }
        let rescued = checks::rescued(&world.folder);
        successes.into_iter().find(|task| !rescued.contains(task))
    });
    if let Some(task) = wrong.flatten() {
        let task = String::from_utf8_lossy(&task).into_owned();
        find(format!(
            "a log names the end of {task} before the rescue file does"
        ));
    }
}

/// A file was made shorter by the master.
pub(crate) fn shortened(name: &str, len: u64) {
    if name == "jobstate.log" || name == "x.dag.dagman.out" {
        find(format!("{name} is cut to {len} bytes"));
    }
}

/// A write has failed.
pub(crate) fn disk_failed() {
    with(|world| world.has_failed_disk = true);
}

/// The host of an agent, as its workers see it.
pub(crate) struct Machine(pub(crate) usize);

impl Host for Machine {
    fn registration(&self) -> Registration {
        let plan = with(|world| world.plan.hosts[self.0].clone());
        let (cpus, memory) = plan.map_or((1, 1000), |plan| (plan.cpus, plan.memory));
        Registration {
            host: host_name(self.0),
            memory_mb: memory,
            threads: cpus,
            cores: cpus,
            sockets: 1,
            gpus: 0,
            away: false,
        }
    }

    fn start(&self, rank: Rank, task: &Assignment) -> SimulatedTask {
        let name = String::from_utf8_lossy(&task.name).into_owned();
        let host = self.0;
        note(|| {
            format!(
                "{} starts {name} ({}) in slot {}",
                host_name(host),
                task.submit.0,
                rank.0
            )
        });
        let (number, wrong) = with(|world| world.start_task(host, task)).unwrap_or_default();
        wrong.into_iter().for_each(find);
        SimulatedTask(number)
    }

    fn end_of(&self, task: SimulatedTask) -> Option<Instant> {
        let at = with(|world| world.tasks.get(&task.0).map(|task| task.ends_at));
        at.flatten().map(system::instant)
    }

    fn ended(&self, task: SimulatedTask) -> Option<(i32, Vec<ForwardedData>)> {
        let now = now();
        let ended = with(|world| {
            world.end_if_due(task.0, now);
            let task = world.tasks.get(&task.0)?;
            let status = task.ended?;
            let forwards = if status == 0 {
                task.forwards.clone()
            } else {
                Vec::new()
            };
            Some((status, forwards))
        });
        ended.flatten()
    }

    fn signal(&self, task: SimulatedTask, kills: bool) {
        with(|world| {
            if let Some(task) = world.tasks.get_mut(&task.0)
                && task.ended.is_none()
                && (kills || !task.ignores_term)
            {
                task.ended = Some(if kills { KILLED } else { TERMINATED });
            }
        });
    }
}

pub(crate) fn host_name(host: usize) -> String {
    format!("n{}", host + 1)
}

pub(crate) fn host_id(host: usize) -> HostId {
    HostId(host as u32 + 1)
}

impl World {
    /// Ends a task whose time has come.
    pub(crate) fn end_if_due(&mut self, number: u64, now: Duration) {
        let Some(task) = self.tasks.get_mut(&number) else {
            return;
        };
        if task.ended.is_some() || task.ends_at > now {
            return;
        }
        task.ended = Some(task.status);
        let known = self.plan.task(&task.name).map(|task| task.number);
        if let Some(known) = known {
            *self.attempts.entry(known).or_default() += 1;
            if task.status != 0 {
                *self.failures.entry(known).or_default() += 1;
            }
        }
    }

    /// Starts a task. Also returns what is wrong with that.
    fn start_task(&mut self, host: usize, assignment: &Assignment) -> (u64, Vec<String>) {
        let now = now();
        let running: Vec<u64> = self.tasks.keys().copied().collect();
        running
            .into_iter()
            .for_each(|number| self.end_if_due(number, now));
        let mut wrong = Vec::new();
        let name = String::from_utf8_lossy(&assignment.name).into_owned();
        let mut load = (assignment.cpus, assignment.memory_mb, 1);
        for task in self.tasks.values().filter(|task| task.ended.is_none()) {
            if task.name == assignment.name {
                wrong.push(format!(
                    "{name} starts on {} while it runs on {}",
                    host_name(host),
                    host_name(task.host)
                ));
            }
            if task.host == host {
                load = (load.0 + task.cpus, load.1 + task.memory, load.2 + 1);
            }
        }
        let machine = &self.plan.hosts[host];
        if load.0 > machine.cpus || load.1 > machine.memory || load.2 > self.plan.slots {
            wrong.push(format!("{} is oversubscribed: {load:?}", host_name(host)));
        }
        let rescued = checks::rescued(&self.folder);
        if rescued.contains(&assignment.name) {
            wrong.push(format!("{name} starts although the rescue file names it"));
        }
        let Some(task) = self.plan.task(&assignment.name).cloned() else {
            wrong.push(format!("there is no task {name}"));
            return (0, wrong);
        };
        for parent in &task.parents {
            if !rescued.contains(format!("t{parent}").as_bytes()) {
                wrong.push(format!("{name} starts before the rescue file names t{parent}"));
            }
        }
        let attempt = self.attempts.get(&task.number).copied().unwrap_or(0);
        let failures = self.failures.get(&task.number).copied().unwrap_or(0);
        let fails = !task.can_succeed() || failures < task.failures;
        let line = format!("{}\n", task.name()).into_bytes();
        let process = TaskProcess {
            host,
            name: assignment.name.clone(),
            cpus: assignment.cpus,
            memory: assignment.memory_mb,
            ends_at: now + self.plan.run_time(&task, attempt),
            status: if fails { 256 } else { 0 },
            ended: None,
            ignores_term: task.ignores_term,
            forwards: task
                .forwards
                .map(|file| ForwardedData {
                    target: format!("{}/forward{file}", self.folder.display()).into_bytes(),
                    data: line.into(),
                })
                .into_iter()
                .collect(),
        };
        self.next_task += 1;
        self.report.attempts += 1;
        self.tasks.insert(self.next_task, process);
        (self.next_task, wrong)
    }

    /// Kills all tasks of a host.
    pub(crate) fn kill_tasks(&mut self, host: usize) {
        let now = now();
        let numbers: Vec<u64> = self.tasks.keys().copied().collect();
        for number in numbers {
            self.end_if_due(number, now);
            if let Some(task) = self.tasks.get_mut(&number)
                && task.host == host
            {
                task.ended.get_or_insert(KILLED);
            }
        }
    }
}

/// Lets something happen after some milliseconds.
pub(crate) fn later(millis: u64, event: impl FnOnce() + 'static) {
    system::at(now() + Duration::from_millis(millis), event);
}
