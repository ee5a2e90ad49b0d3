//! The world of a round: hosts and the tasks on them, and what is known of masters and agents.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pegasus_mpi_cluster::Interrupt;
use pegasus_mpi_cluster::internals::{Assignment, ForwardedData, SubmitId};
use pegasus_mpi_cluster::simulated::{GangToken, Guarded};
use pmc_system::simulated::{self as system, HostId, ProcessId, ThreadId};

use crate::checks::{self, Allowed};
use crate::disk::SimulatedDisk;
use crate::held_files::Files;
use crate::kinds::PartKind;
use crate::memberships::{Gangs, NEVER};
use crate::plan::{Plan, SAVED, Task};
use crate::users::Users;

/// The host of the first master. Others are 1 and so on.
pub(crate) const MASTER_HOST: HostId = HostId(0);

/// How long agents wait for a master, and a master for agents.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// Signals.
pub(crate) const SIGKILL: i32 = 9;
const SIGUSR1: i32 = 10;
const SIGTERM: i32 = 15;

/// The longest time that a task takes to save itself, in milliseconds.
const SAVE_MILLIS: u64 = 3_000;

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
    pub(crate) submit: SubmitId,
    pub(crate) cpus: u32,
    pub(crate) memory: u64,
    pub(crate) ends_at: Duration,
    pub(crate) status: i32,
    /// Set when it has ended.
    pub(crate) ended: Option<i32>,
    pub(crate) ignores_term: bool,
    pub(crate) forwards: Vec<ForwardedData>,
    /// Of which gang it is.
    pub(crate) gang: Option<GangToken>,
    /// It is no lead, and ends with its gang.
    pub(crate) is_member: bool,
    /// It was the lead of a gang, and a connection of it was cut.
    pub(crate) is_cut: bool,
    /// What ends it is not the program: its end does not count as a failure.
    pub(crate) is_broken: bool,
    /// Its host has stood still until its lease was over: the guard ends it now.
    pub(crate) is_doomed: bool,
    /// When it has begun.
    pub(crate) begun: Duration,
    /// How many files it waits for.
    pub(crate) lacks: usize,
    /// What waits for its end.
    pub(crate) thread: Option<ThreadId>,
}

/// A host and what runs there, besides tasks.
pub(crate) struct Node {
    pub(crate) guarded: Guarded,
    pub(crate) agent: Option<ProcessId>,
    pub(crate) interrupt: Option<Arc<Interrupt>>,
    pub(crate) has_guard: bool,
    pub(crate) is_on: bool,
    /// How often its agent is stopped now.
    pub(crate) stops: u32,
    /// Its agent is dead, and its guard is about to end the tasks.
    pub(crate) is_ending: bool,
    /// It stands still: nothing on it runs.
    pub(crate) is_suspended: bool,
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
    /// Attempts that have begun: how many masters there were, the number, and the task.
    pub(crate) started: BTreeSet<(u64, SubmitId, Vec<u8>)>,
    /// Attempts of each task that have run to their end, and failures among them.
    pub(crate) attempts: BTreeMap<u32, u32>,
    pub(crate) failures: BTreeMap<u32, u32>,
    pub(crate) master: Master,
    /// Where it is, or the next one will be.
    pub(crate) master_host: HostId,
    /// When the batch system notices that the host of the first one is lost.
    pub(crate) batch_knows_at: Option<Duration>,
    pub(crate) interrupt: Option<Arc<Interrupt>>,
    pub(crate) allowed: Allowed,
    pub(crate) gangs: Gangs,
    pub(crate) users: Users,
    pub(crate) files: Files,
    /// When the wall time of the master began.
    pub(crate) master_since: Duration,
    /// The master was asked to end.
    pub(crate) is_drained: bool,
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
pub(crate) fn wrote(path: &Path, bytes: &[u8]) {
    let wrong = with(|world| {
        world.hash.write(bytes);
        if !path.ends_with("jobstate.log") {
            return None;
        }
        let successes = checks::successes(bytes);
        if successes.is_empty() {
            return None;
        }
        let rescued = checks::rescued(path.parent()?);
        successes.into_iter().find_map(|task| {
            let name = String::from_utf8_lossy(&task);
            if !rescued.contains(&task) {
                return Some(format!(
                    "a log names the end of {name} before the rescue file does"
                ));
            }
            let number = world.plan.task(&task)?.number;
            let (inside, _) = world.plan.subworkflow(number)?;
            let inside = Plan::folder(&world.folder, inside);
            let has_ended = checks::has_ended(&inside) || world.allowed.power_loss;
            (!has_ended).then(|| format!("{name} ends before its own log does"))
        })
    });
    wrong.flatten().into_iter().for_each(find);
}

/// A file was made shorter by the master.
pub(crate) fn shortened(path: &Path, len: u64) {
    if path.ends_with("jobstate.log") || path.ends_with("x.dag.dagman.out") {
        find(format!("{} is cut to {len} bytes", path.display()));
    }
}

/// A write has failed.
pub(crate) fn disk_failed() {
    with(|world| world.has_failed_disk = true);
}

pub(crate) fn host_name(host: usize) -> String {
    format!("n{}", host + 1)
}

pub(crate) fn host_id(host: usize) -> HostId {
    HostId(host as u32 + 1)
}

/// The host of the master.
pub(crate) fn master_host() -> HostId {
    with(|world| world.master_host).unwrap_or(MASTER_HOST)
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
        if task.is_broken {
            return;
        }
        let known = self.plan.task(&task.name).map(|task| task.number);
        if let Some(known) = known {
            *self.attempts.entry(known).or_default() += 1;
            if task.status != 0 {
                *self.failures.entry(known).or_default() += 1;
            }
        }
    }

    /// Ends all tasks whose time has come.
    pub(crate) fn end_all_due(&mut self, now: Duration) {
        let running: Vec<u64> = self.tasks.keys().copied().collect();
        running
            .into_iter()
            .for_each(|number| self.end_if_due(number, now));
    }

    /// Sends a signal to a task.
    pub(crate) fn signal(&mut self, number: u64, signal: i32, now: Duration) {
        let Some(task) = self.tasks.get_mut(&number).filter(|task| task.ended.is_none()) else {
            return;
        };
        match signal {
            SIGUSR1 => {
                let saves = self.plan.task(&task.name).is_some_and(|task| task.saves);
                if saves && !task.is_broken {
                    let millis = system::random(|random| random.below(SAVE_MILLIS)).unwrap_or(0);
                    task.ends_at = task.ends_at.min(now + Duration::from_millis(millis));
                    (task.status, task.is_broken) = (SAVED << 8, true);
                }
            }
            SIGTERM if task.ignores_term => {}
            _ => task.ended = Some(signal),
        }
    }

    /// Starts a task. Also returns what is wrong with that.
    pub(crate) fn start_task(&mut self, host: usize, assignment: &Assignment) -> (u64, Vec<String>) {
        let now = now();
        self.end_all_due(now);
        let name = String::from_utf8_lossy(&assignment.name).into_owned();
        let Some(task) = self.plan.task(&assignment.name).cloned() else {
            return (0, vec![format!("there is no task {name}")]);
        };
        let token = assignment.gang.as_ref().map(|gang| gang.token);
        let mut wrong = self.overlaps(host, &assignment.name, token);
        let part = (assignment.cpus, assignment.memory_mb);
        wrong.extend(self.oversubscribed(host, part, &task));
        wrong.extend(self.starts_early(&task));
        wrong.extend(self.starts_unsaid(&task, assignment));
        let key = (self.report.masters, assignment.submit, assignment.name.clone());
        // What the master before has asked of an agent that it could not reach may begin late.
        if !self.started.insert(key) && !self.allowed.leaves_agents {
            wrong.push(format!("{name} ({}) starts twice", assignment.submit.0));
        }
        wrong.extend(self.given_twice(assignment));
        wrong.extend(self.gangs.incomplete(&task, assignment));
        wrong.extend(self.starts_too_late(&task, now));
        let attempt = self.attempts.get(&task.number).copied().unwrap_or(0);
        let failures = self.failures.get(&task.number).copied().unwrap_or(0);
        let fails = !task.can_succeed() || failures < task.failures;
        let line = format!("{}\n", task.name()).into_bytes();
        let folder = Plan::folder(&self.folder, self.plan.home(&task));
        let process = TaskProcess {
            host,
            name: assignment.name.clone(),
            submit: assignment.submit,
            cpus: assignment.cpus,
            memory: assignment.memory_mb,
            ends_at: match task.inputs.is_empty() {
                true => now + self.plan.run_time(&task, attempt),
                false => NEVER,
            },
            status: if fails { 256 } else { 0 },
            ended: None,
            ignores_term: task.ignores_term,
            forwards: task
                .forwards
                .map(|file| ForwardedData {
                    target: format!("{}/forward{file}", folder.display()).into_bytes(),
                    data: line.into(),
                })
                .into_iter()
                .collect(),
            gang: token,
            is_member: false,
            is_cut: false,
            is_broken: false,
            is_doomed: false,
            begun: now,
            lacks: task.inputs.len(),
            thread: system::current_thread(),
        };
        self.report.attempts += 1;
        (self.add(process), wrong)
    }

    /// Adds a process. Returns its number.
    pub(crate) fn add(&mut self, process: TaskProcess) -> u64 {
        self.next_task += 1;
        self.tasks.insert(self.next_task, process);
        self.next_task
    }

    /// True if there is a task that is not done, or a master may still think so.
    pub(crate) fn has_work(&self) -> bool {
        matches!(self.master, Master::HasEnded) || self.plan.homes().any(|home| self.has_work_in(home))
    }

    fn has_work_in(&self, home: u32) -> bool {
        let rescued = checks::rescued(&Plan::folder(&self.folder, home));
        let mut tasks = self.plan.tasks.iter().filter(|task| self.plan.home(task) == home);
        tasks.any(|task| !rescued.contains(task.name().as_bytes()))
    }

    /// Says of which task that is done, or is not done, a start must not be.
    fn starts_early(&self, task: &Task) -> Option<String> {
        let mut read = BTreeMap::new();
        let mut is_done = |task: &Task| {
            let home = self.plan.home(task);
            let rescued = read
                .entry(home)
                .or_insert_with(|| checks::rescued(&Plan::folder(&self.folder, home)));
            rescued.contains(task.name().as_bytes())
        };
        // A loss of power may take the line of an addition, but not the record of its end.
        let was_added = matches!(self.plan.kind(task.part), Some(PartKind::Addition { .. }));
        let may_repeat = was_added && self.allowed.power_loss;
        if !may_repeat && is_done(task) {
            return Some(format!(
                "{} starts although the rescue file names it",
                task.name()
            ));
        }
        let before = self.plan.before(task).into_iter().find(|task| !is_done(task));
        before.map(|before| {
            let (name, before) = (task.name(), before.name());
            format!("{name} starts before the rescue file names {before}")
        })
    }

    /// Says whether an attempt starts that no log names. Then its files would get another number than readers
    /// of the log expect, if the master is killed.
    fn starts_unsaid(&self, task: &Task, assignment: &Assignment) -> Option<String> {
        if self.allowed.power_loss || self.allowed.disk_errors {
            return None;
        }
        let folder = Plan::folder(&self.folder, self.plan.home(task));
        let submit = assignment.submit.0;
        let is_said = checks::is_submitted(&folder, &assignment.name, submit)?;
        (!is_said).then(|| format!("{} ({submit}) starts before a log names it", task.name()))
    }

    /// Says whether an attempt of another task runs that has the number of this one.
    fn given_twice(&self, assignment: &Assignment) -> Option<String> {
        if self.allowed.power_loss || self.allowed.disk_errors {
            // An agent may run what no master knows.
            return None;
        }
        // What is on a host that stands still ends before it goes on, and its number may be given anew.
        let is_running = |task: &&TaskProcess| {
            task.ended.is_none() && !task.is_doomed && !self.nodes[task.host].is_suspended
        };
        let mut running = self.tasks.values().filter(is_running);
        let other = running.find(|task| task.submit == assignment.submit && task.name != assignment.name)?;
        let [one, two] = [&assignment.name, &other.name].map(|name| String::from_utf8_lossy(name));
        Some(format!("{one} and {two} have the number {}", assignment.submit.0))
    }

    /// Says what of a task, but for this gang, is anywhere while it begins on a host.
    pub(crate) fn overlaps(&self, host: usize, name: &[u8], own: Option<GangToken>) -> Vec<String> {
        let running = self.tasks.values();
        let running = running.filter(|task| task.ended.is_none() && !task.is_doomed);
        let running = running.map(|task| (&task.name, task.gang, task.host));
        let others = running.chain(self.gangs.held());
        // What is on a host that stands still may end before it goes on.
        let others = others.filter(|(.., host)| !self.nodes[*host].is_suspended);
        let others = others.filter(|(other, gang, _)| *other == name && (gang.is_none() || *gang != own));
        let shown = String::from_utf8_lossy(name);
        others
            .map(|(.., other)| {
                format!(
                    "{shown} begins on {} while it is on {}",
                    host_name(host),
                    host_name(other)
                )
            })
            .collect()
    }

    /// Says whether a host has too little for a part of this task.
    pub(crate) fn oversubscribed(
        &self,
        host: usize,
        (cpus, memory): (u32, u64),
        task: &Task,
    ) -> Option<String> {
        // Processes of members are in the parts that their hosts hold.
        let running = self
            .tasks
            .values()
            .filter(|task| task.ended.is_none() && !task.is_member);
        let running = running.map(|task| (task.host, task.cpus, task.memory, &task.name));
        let others = running.chain(self.gangs.parts()).filter(|part| part.0 == host);
        let is_exclusive = |task: &Task| task.gang.is_some_and(|gang| gang.exclusive);
        let mut load = (cpus, memory, 1);
        let mut shares = false;
        for (_, cpus, memory, name) in others {
            load = (load.0 + cpus, load.1 + memory, load.2 + 1);
            shares |= is_exclusive(task) || self.plan.task(name).is_some_and(is_exclusive);
        }
        let machine = &self.plan.hosts[host];
        let name = host_name(host);
        if load.0 > machine.cpus || load.1 > machine.memory || load.2 > self.plan.slots {
            return Some(format!("{name} is oversubscribed: {load:?}"));
        }
        shares.then(|| format!("{name} is not for one task alone"))
    }

    /// Says whether a task begins that cannot end before the wall time, as it says itself.
    fn starts_too_late(&self, task: &Task, now: Duration) -> Option<String> {
        if !task.is_expected || self.plan.wall == 0 || !self.plan.faults.is_empty() {
            return None;
        }
        let end = self.master_since + Duration::from_millis(self.plan.wall);
        let needed = Duration::from_secs(task.needed_seconds());
        let late = Duration::from_micros(self.plan.delay) + Duration::from_secs(1);
        (now + needed > end + late).then(|| format!("{} begins too late", task.name()))
    }

    /// All that is on a host is to end, and is late with that.
    pub(crate) fn doom(&mut self, host: usize) {
        let tasks = self.tasks.values_mut().filter(|task| task.host == host);
        tasks.for_each(|task| task.is_doomed = true);
        let members = self.gangs.members.iter_mut().filter(|member| member.host == host);
        members.for_each(|member| member.is_doomed = true);
    }

    /// Kills all tasks of a host.
    pub(crate) fn kill_tasks(&mut self, host: usize) {
        let now = now();
        self.end_all_due(now);
        for task in self.tasks.values_mut().filter(|task| task.host == host) {
            task.ended.get_or_insert(SIGKILL);
        }
        let lost = self.gangs.lose(host);
        self.break_leads(&lost);
        self.files.release(host);
    }
}

/// Lets something happen after some milliseconds.
pub(crate) fn later(millis: u64, event: impl FnOnce() + 'static) {
    system::at(now() + Duration::from_millis(millis), event);
}
