//! The world of a round: hosts with guards, agents and tasks, the master, and who starts it again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pegasus_mpi_cluster::internals::{Assignment, ForwardedData};
use pegasus_mpi_cluster::simulated::{
    AgentArgs, Guarded, Host, HostOptions, Lifeline, OnHost, SimulatedTask, run_agent,
};
use pegasus_mpi_cluster::{
    AgentOptions, AgentRun, Interrupt, Options, Rank, Registration, RunError, RunEvent, RunSummary, Stdio,
    Target, WorkerOptions, WorkerSettings, run_with_agents,
};
use pmc_link::{Listen, Timing};
use pmc_system::planted::{Planted, is_planted};
use pmc_system::simulated::{self as system, HostId, ProcessId, Simulation, net};

use crate::checks::{self, Allowed};
use crate::disk::SimulatedDisk;
use crate::plan::{FaultKind, Plan, Way};

/// The host of the master. Others are 1 and so on.
const MASTER_HOST: HostId = HostId(0);

/// Simulated time in which a round must end, after its last fault.
const MAX_TIME: Duration = Duration::from_secs(4 * 3600);

/// Steps of a round, at most: more are a loop without an end.
const MAX_STEPS: u64 = 3_000_000;

/// How long agents wait for a master, and a master for agents.
const LONG: Duration = Duration::from_secs(600);

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
struct TaskProcess {
    host: usize,
    name: Vec<u8>,
    cpus: u32,
    memory: u64,
    ends_at: Duration,
    status: i32,
    /// Set when it has ended.
    ended: Option<i32>,
    ignores_term: bool,
    forwards: Vec<ForwardedData>,
}

/// A host and what runs there, besides tasks.
struct Node {
    guarded: Guarded,
    agent: Option<ProcessId>,
    interrupt: Option<Arc<Interrupt>>,
    has_guard: bool,
    is_on: bool,
    restarts: u32,
}

/// What has become of the last master.
enum Master {
    Runs(ProcessId),
    IsDead,
    HasEnded,
}

struct World {
    plan: Plan,
    folder: PathBuf,
    disk: Rc<SimulatedDisk>,
    nodes: Vec<Node>,
    tasks: BTreeMap<u64, TaskProcess>,
    next_task: u64,
    /// Attempts of each task that have run to their end, and failures among them.
    attempts: BTreeMap<u32, u32>,
    failures: BTreeMap<u32, u32>,
    master: Master,
    interrupt: Option<Arc<Interrupt>>,
    allowed: Allowed,

    has_failed_disk: bool,
    report: Report,
    hash: std::collections::hash_map::DefaultHasher,
    keeps_trace: bool,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

fn with<R>(f: impl FnOnce(&mut World) -> R) -> Option<R> {
    // At the end of a round, processes are killed without a world.
    WORLD.with_borrow_mut(|world| world.as_mut().map(f))
}

fn now() -> Duration {
    system::now().unwrap_or_default()
}

/// Notes what happens.
fn note(text: impl FnOnce() -> String) {
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

fn find(text: String) {
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
struct Machine(usize);

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

fn host_name(host: usize) -> String {
    format!("n{}", host + 1)
}

fn host_id(host: usize) -> HostId {
    HostId(host as u32 + 1)
}

impl World {
    /// Ends a task whose time has come.
    fn end_if_due(&mut self, number: u64, now: Duration) {
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
    fn kill_tasks(&mut self, host: usize) {
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

    fn options(&self) -> AgentRun {
        let dag = self.folder.join("x.dag");
        let mut options = Options::new(&dag, OsStr::new("pegasus-mpi-cluster"));
        options.dagman_log = Some(self.folder.join("x.dag.dagman.out"));
        options.jobstate_log = Some(self.folder.join("jobstate.log"));
        options.resource_log = None;
        let target = |name: &str| Target::File(self.folder.join(name));
        options.stdio = Stdio::Merged {
            stdout: target("out"),
            stderr: target("err"),
        };
        options.console = false;
        options.disk_reserve = Some(0);
        options.bad_host_limit = 0;
        options.crash_limit = self.plan.crash_limit;
        options.sync_interval = (self.plan.sync > 0).then(|| Duration::from_millis(self.plan.sync));
        let worker = WorkerOptions {
            dag: dag.clone(),
            per_task_stdio: false,
            worker_files: dag.clone(),
            lock_worker_files: false,
            report_quiet: false,
            host_name: None,
            host_memory: 0,
            host_cpus: 0,
            host_gpus: 0,
            strict_limits: false,
            watch_memory: false,
            set_affinity: true,
            host_script: None,
            runtime_limit: None,
            forward_limit: 0,
            kickstart: None,
            environment: Vec::new(),
            away: None,
        };
        let mut agents = AgentOptions::new(&dag, WorkerSettings::new(&worker, &self.folder));
        agents.agents = self.plan.hosts.len() as u32;
        agents.slots = self.plan.slots;
        agents.start_with = self.plan.start_with;
        agents.master_timeout = LONG;
        agents.join_timeout = LONG;
        agents.listen = Listen::loopback();
        agents.timing = Timing::with_lease(Duration::from_millis(self.plan.lease));
        AgentRun { options, agents }
    }
}

/// Starts a master.
fn start_master() {
    let known = with(|world| {
        if !matches!(world.master, Master::IsDead) {
            return None;
        }
        world.report.masters += 1;
        let interrupt = Arc::new(Interrupt::new());
        world.interrupt = Some(Arc::clone(&interrupt));
        Some((world.options(), interrupt))
    });
    let Some((run, interrupt)) = known.flatten() else {
        return;
    };
    note(|| "a master starts".to_owned());
    let process = system::start(MASTER_HOST, None, move || {
        let mut observe = |event: &RunEvent<'_>| match event {
            RunEvent::Lost { task } => {
                let task = String::from_utf8_lossy(task).into_owned();
                note(|| format!("master: {task} is lost"));
            }
            RunEvent::Ended(end) => {
                let (task, status) = (String::from_utf8_lossy(end.task).into_owned(), end.outcome.status);
                note(|| format!("master: {task} has ended with {status}"));
            }
            RunEvent::Notice(text) => note(|| format!("master: {text}")),
            _ => {}
        };
        let ended = run_with_agents(&run, &interrupt, &mut observe);
        master_ended(&ended);
        system::exit();
    });
    with(|world| world.master = Master::Runs(process));
}

fn master_ended(ended: &Result<RunSummary, RunError>) {
    match ended {
        Ok(summary) => {
            note(|| format!("the master ends: {:?}", summary.figures));
            // The next master is to know of an agent that has not said that it has ended.
            let has_unresponsive = !summary.unresponsive_workers.is_empty();
            with(|world| world.allowed.leaves_agents |= has_unresponsive);
            let can_be = with(|world| world.plan.feasible().len()).unwrap_or(0);
            let done = summary.figures.done_before + summary.figures.succeeded as usize;
            let has_failed_disk = with(|world| world.has_failed_disk).unwrap_or(false);
            if done < can_be && !has_failed_disk {
                find(format!(
                    "the run ends after {done} of {can_be} tasks: {:?}",
                    summary.figures
                ));
            }
            let is_done = done >= can_be;
            with(|world| {
                world.has_failed_disk = false;
                world.master = if is_done { Master::HasEnded } else { Master::IsDead };
            });
            if !is_done {
                restart_master(1_000);
            }
        }
        Err(error) => {
            note(|| format!("the master ends: {error}"));
            let has_failed_disk = with(|world| std::mem::take(&mut world.has_failed_disk)).unwrap_or(false);
            if !has_failed_disk {
                find(format!("the run ends with an error: {error}"));
            }
            with(|world| world.master = Master::IsDead);
            restart_master(1_000);
        }
    }
}

/// Starts a master after some time, if there is none.
fn restart_master(millis: u64) {
    system::at(now() + Duration::from_millis(millis), || {
        // A host without power starts nothing.
        if with(|world| matches!(world.master, Master::IsDead)).unwrap_or(false) {
            start_master();
        }
    });
}

fn kill_master(millis: u64) {
    let process = with(|world| match world.master {
        Master::Runs(process) => {
            world.master = Master::IsDead;
            Some(process)
        }
        _ => None,
    });
    if let Some(process) = process.flatten() {
        note(|| "the master is killed".to_owned());
        system::kill(process);
        restart_master(millis);
    }
}

/// Starts the agent of a host, with what its guard knows.
fn start_agent(host: usize) {
    let known = with(|world| {
        let has_ended = matches!(world.master, Master::HasEnded);
        let plan_slots = world.plan.slots;
        let node = &mut world.nodes[host];
        if node.agent.is_some() || !node.is_on || has_ended {
            return None;
        }
        node.has_guard = true;
        let interrupt = Arc::new(Interrupt::new());
        node.interrupt = Some(Arc::clone(&interrupt));
        Some((
            node.guarded,
            interrupt,
            world.folder.join("x.dag.endpoint"),
            plan_slots,
        ))
    });
    let Some((guarded, interrupt, endpoint, slots)) = known.flatten() else {
        return;
    };
    note(|| format!("the agent on {} starts", host_name(host)));
    let context = Rc::new(OnHost(Box::new(Machine(host))));
    let process = system::start(host_id(host), Some(context), move || {
        let lifeline = Lifeline::simulated(&guarded, move |message| hear(host, message));
        let args = AgentArgs {
            endpoint: Some(endpoint),
            endpoint_value: None,
            slots,
            join_timeout: LONG,
            host: HostOptions {
                name: Some(host_name(host)),
                ..HostOptions::default()
            },
            environment: Vec::new(),
        };
        let ended = run_agent(&args, lifeline, &interrupt);
        agent_ended(host, &ended);
        system::exit();
    });
    with(|world| world.nodes[host].agent = Some(process));
}

/// The guard of a host hears its agent.
fn hear(host: usize, message: &[u8; 32]) {
    let (at, process) = (now(), system::current_process());
    let guarded = with(|world| {
        let node = &mut world.nodes[host];
        node.guarded.hear(message, system::instant(at));
        node.guarded
    });
    let (Some(guarded), Some(process)) = (guarded, process) else {
        return;
    };
    let Some(until) = guarded.ends_at() else { return };
    let late = system::random(|random| random.below(50)).unwrap_or(0);
    let until = until.saturating_duration_since(system::instant(Duration::ZERO));
    system::at(until + Duration::from_millis(late), move || {
        let is_over = with(|world| {
            let node = &world.nodes[host];
            node.has_guard && node.agent == Some(process) && node.guarded.is_over(system::instant(now()))
        });
        if is_over == Some(true) {
            note(|| format!("the guard on {} kills its agent", host_name(host)));
            kill_agent(host);
        }
    });
}

/// The agent of a host has ended by itself.
fn agent_ended(host: usize, ended: &Result<(), String>) {
    note(|| format!("the agent on {} ends: {ended:?}", host_name(host)));
    let left = with(|world| {
        let now = now();
        let numbers: Vec<u64> = world.tasks.keys().copied().collect();
        numbers
            .into_iter()
            .for_each(|number| world.end_if_due(number, now));
        let node = &mut world.nodes[host];
        (node.agent, node.guarded) = (None, Guarded::default());
        // Its guard kills what is left.
        let has_guard = node.has_guard;
        if has_guard {
            world.kill_tasks(host);
        }
        let is_left = |task: &&TaskProcess| task.host == host && task.ended.is_none();
        world
            .tasks
            .values()
            .find(is_left)
            .map(|task| String::from_utf8_lossy(&task.name).into_owned())
    });
    if let Some(task) = left.flatten() {
        find(format!("the agent on {} leaves {task} running", host_name(host)));
    }
    // Somebody starts another one if the run goes on.
    system::at(now() + Duration::from_secs(5), move || start_agent(host));
}

/// SIGKILL to the agent of a host. Its guard ends the tasks and starts it again.
fn kill_agent(host: usize) {
    let known = with(|world| {
        let node = &mut world.nodes[host];
        Some((node.agent.take()?, node.has_guard))
    });
    let Some((process, has_guard)) = known.flatten() else {
        return;
    };
    system::kill(process);
    if !has_guard {
        return;
    }
    let late = system::random(|random| random.below(20)).unwrap_or(0);
    system::at(now() + Duration::from_millis(late), move || {
        with(|world| {
            if world.nodes[host].is_on {
                if !is_planted(Planted::TasksOutliveAgent) {
                    world.kill_tasks(host);
                }
                let node = &mut world.nodes[host];
                node.guarded = node.guarded.next();
                node.restarts += 1;
            }
        });
        start_agent(host);
    });
}

/// SIGKILL to the guard of a host. The system tells the agent.
fn kill_guard(host: usize) {
    let interrupt = with(|world| {
        let node = &mut world.nodes[host];
        let is_new = std::mem::take(&mut node.has_guard) && node.agent.is_some();
        node.interrupt.clone().filter(|_| is_new)
    });
    if let Some(interrupt) = interrupt.flatten() {
        interrupt.raise(2);
    }
}

fn set_power(host: usize, is_on: bool) {
    if with(|world| world.nodes[host].is_on == is_on).unwrap_or(true) {
        return;
    }
    net::set_power(host_id(host), is_on);
    let agent = with(|world| {
        let node = &mut world.nodes[host];
        node.is_on = is_on;
        (node.guarded, node.has_guard) = (Guarded::default(), false);
        node.agent.take()
    });
    if is_on {
        start_agent(host);
    } else {
        agent.flatten().into_iter().for_each(system::kill);
        with(|world| world.kill_tasks(host));
    }
}

fn cut(host: usize, way: Way, is_cut: bool) {
    let host = host_id(host);
    if way != Way::In {
        net::set_cut(host, MASTER_HOST, is_cut);
    }
    if way != Way::Out {
        net::set_cut(MASTER_HOST, host, is_cut);
    }
}

fn later(millis: u64, event: impl FnOnce() + 'static) {
    system::at(now() + Duration::from_millis(millis), event);
}

fn happen(kind: FaultKind) {
    note(|| format!("fault: {kind:?}"));
    match kind {
        FaultKind::KillAgent(host) => kill_agent(host),
        FaultKind::KillGuard(host) => kill_guard(host),
        FaultKind::StopAgent(host, millis) => {
            let agent = with(|world| world.nodes[host].agent).flatten();
            if let Some(agent) = agent {
                system::set_stopped(agent, true);
                later(millis, move || system::set_stopped(agent, false));
            }
        }
        FaultKind::Off(host, millis) => {
            set_power(host, false);
            later(millis, move || set_power(host, true));
        }
        FaultKind::Cut(host, way, millis) => {
            cut(host, way, true);
            later(millis, move || cut(host, way, false));
        }
        FaultKind::Reset(host) => net::reset(host_id(host), MASTER_HOST),
        FaultKind::KillMaster(millis) => kill_master(millis),
        FaultKind::StopMaster(millis) => {
            if let Some(Some(process)) = with(|world| match world.master {
                Master::Runs(process) => Some(process),
                _ => None,
            }) {
                system::set_stopped(process, true);
                later(millis, move || system::set_stopped(process, false));
            }
        }
        FaultKind::KillMasterInWrite(millis) => {
            let known = with(|world| match world.master {
                Master::Runs(process) => Some((process, Rc::clone(&world.disk))),
                _ => None,
            });
            if let Some((process, disk)) = known.flatten() {
                disk.faults().kills = Some(process);
                watch_death(process, millis);
            }
        }
        FaultKind::MasterOff(millis) => {
            let known = with(|world| {
                world.allowed.power_loss = true;
                (Rc::clone(&world.disk), world.folder.clone())
            });
            net::set_power(MASTER_HOST, false);
            if let Some(Some(process)) = with(|world| match world.master {
                Master::Runs(process) => Some(process),
                _ => None,
            }) {
                with(|world| world.master = Master::IsDead);
                system::kill(process);
            }
            if let Some((disk, folder)) = known {
                disk.lose_power(&folder);
            }
            later(millis, move || {
                net::set_power(MASTER_HOST, true);
                start_master();
            });
        }
        FaultKind::DiskFull(millis) => {
            if let Some(disk) = with(|world| {
                world.allowed.disk_errors = true;
                Rc::clone(&world.disk)
            }) {
                disk.faults().is_full = true;
                later(millis, move || disk.faults().is_full = false);
            }
        }
        FaultKind::WriteError => {
            if let Some(disk) = with(|world| {
                world.allowed.disk_errors = true;
                Rc::clone(&world.disk)
            }) {
                disk.faults().fails_once = true;
            }
        }
    }
}

/// Looks whether a process has died in a write, and starts a master then.
fn watch_death(process: ProcessId, millis: u64) {
    later(50, move || {
        let is_current = with(|world| matches!(world.master, Master::Runs(current) if current == process));
        if is_current != Some(true) {
            return;
        }
        if system::is_alive(process) {
            watch_death(process, millis);
        } else {
            note(|| "the master was killed while it wrote".to_owned());
            with(|world| world.master = Master::IsDead);
            restart_master(millis);
        }
    });
}

fn clear(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let _ = std::fs::remove_file(entry.path());
    }
}

/// Runs a plan in a folder, whose files are removed before.
#[must_use]
pub fn run(plan: &Plan, folder: &Path) -> Report {
    run_with(plan, folder, false)
}

/// Like [`run`]; with `keeps_trace`, the report says what happened.
#[must_use]
pub fn run_with(plan: &Plan, folder: &Path, keeps_trace: bool) -> Report {
    clear(folder);
    let written = std::fs::write(folder.join("x.dag"), plan.dag(folder));
    if let Err(error) = written {
        return Report {
            finding: Some(format!("{}: {error}", folder.display())),
            ..Report::default()
        };
    }
    let disk = Rc::new(SimulatedDisk::default());
    let world = World {
        plan: plan.clone(),
        folder: folder.to_owned(),
        disk: Rc::clone(&disk),
        nodes: plan
            .hosts
            .iter()
            .map(|_| Node {
                guarded: Guarded::default(),
                agent: None,
                interrupt: None,
                has_guard: false,
                is_on: true,
                restarts: 0,
            })
            .collect(),
        tasks: BTreeMap::new(),
        next_task: 0,
        attempts: BTreeMap::new(),
        failures: BTreeMap::new(),
        master: Master::IsDead,
        interrupt: None,
        allowed: Allowed {
            power_loss: false,
            disk_errors: false,
            leaves_agents: false,
        },

        has_failed_disk: false,
        report: Report::default(),
        hash: std::collections::hash_map::DefaultHasher::new(),
        keeps_trace,
    };
    WORLD.set(Some(world));
    let simulation = Simulation::begin(plan.seed, disk);
    net::set_max_delay(Duration::from_micros(plan.delay));
    system::at(Duration::ZERO, start_master);
    for (host, machine) in plan.hosts.iter().enumerate() {
        system::at(Duration::from_millis(machine.starts_at), move || {
            start_agent(host)
        });
    }
    for fault in plan.faults.clone() {
        system::at(Duration::from_millis(fault.at), move || happen(fault.kind));
    }
    let finished = drive(&simulation);
    if finished {
        check(folder, plan);
    }
    let (steps, time) = (simulation.steps(), now());
    let world = WORLD.take();
    drop(simulation);
    let Some(mut world) = world else {
        return Report::default();
    };
    world.report.hash = world.hash.finish();
    (world.report.steps, world.report.time) = (steps, time);
    world.report
}

/// Runs until the last master has ended and all agents, too. False after a finding.
fn drive(simulation: &Simulation) -> bool {
    loop {
        let goes_on = simulation.step();
        for panic in simulation.take_panics() {
            find(format!("a panic: {panic}"));
        }
        let state = with(|world| {
            let is_over = matches!(world.master, Master::HasEnded)
                && world.nodes.iter().all(|node| node.agent.is_none());
            (is_over, world.report.finding.is_some())
        });
        let (is_over, has_found) = state.unwrap_or((true, true));
        if has_found {
            return false;
        }
        if is_over {
            return true;
        }
        if !goes_on {
            find("nothing can happen any more, and the run has not ended".to_owned());
        } else if now() > MAX_TIME {
            find("the run does not end".to_owned());
        } else if simulation.steps() > MAX_STEPS {
            find("the run takes too many steps".to_owned());
        }
    }
}

fn check(folder: &Path, plan: &Plan) {
    let allowed = with(|world| world.allowed);
    if let Some(allowed) = allowed
        && let Err(wrong) = checks::check_end(folder, plan, allowed)
    {
        find(wrong);
    }
}
