//! Masters, and who starts them again.

use std::ffi::OsStr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use pegasus_mpi_cluster::simulated::Tools;
use pegasus_mpi_cluster::{
    AgentOptions, AgentRun, Interrupt, Options, RunError, RunEvent, RunSummary, Serve, Stdio, Target,
    WorkerOptions, WorkerSettings, run_with_agents,
};
use pmc_link::{Listen, Timing};
use pmc_system::simulated::{self as system, net};

use crate::checks;
use crate::kinds::PartKind;
use crate::plan::Plan;
use crate::world::{
    LONG, MASTER_HOST, Master, World, find, host_id, host_name, later, master_host, note, now, with,
};

/// How long agents have time to start the next master, in milliseconds.
const NEXT_JOB_MILLIS: u64 = 400_000;

/// Starts a master.
pub(crate) fn start_master() {
    let known = with(|world| {
        // A host without power starts nothing.
        if !matches!(world.master, Master::IsDead) || !net::is_on(world.master_host) {
            return None;
        }
        world.report.masters += 1;
        world.is_drained = false;
        world.master_since = now();
        let interrupt = Arc::new(Interrupt::new());
        world.interrupt = Some(Arc::clone(&interrupt));
        let tools = Rc::new(Tools::default());
        world.users.tools = Rc::clone(&tools);
        Some((options(world), interrupt, tools))
    });
    let Some((run, interrupt, tools)) = known.flatten() else {
        return;
    };
    note(|| "a master starts".to_owned());
    let process = system::start(master_host(), Some(tools), move || {
        let mut observe = |event: &RunEvent<'_>| match event {
            RunEvent::Evicted { task, .. } => {
                let task = String::from_utf8_lossy(task).into_owned();
                note(|| format!("master: {task} is lost"));
                // What is of other DAGs is ended if a master dies.
                if with(|world| world.plan.costs_no_attempt() && is_adopted(&world.plan, &task)) == Some(true)
                {
                    find(format!(
                        "{task} is lost, although nothing was wrong but the master"
                    ));
                }
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

/// Returns whether the next master goes on with attempts of the task with this name.
fn is_adopted(plan: &Plan, name: &str) -> bool {
    let task = plan.task(name.as_bytes());
    task.is_some_and(|task| plan.home(task) == 0 && plan.subworkflow(task.number).is_none())
}

fn master_ended(ended: &Result<RunSummary, RunError>) {
    match ended {
        Ok(summary) => {
            note(|| format!("the master ends: {:?}", summary.figures));
            // The next master is to know of an agent that has not said that it has ended.
            let has_unresponsive = !summary.unresponsive_workers.is_empty();
            with(|world| {
                // So it is to know of those that this one has not heard of.
                let list = world.folder.join("x.dag.agents");
                let has_others = !world.plan.faults.is_empty() && list.exists();
                world.allowed.leaves_agents |= has_unresponsive || has_others;
            });
            let (done, can_be) = with(|world| world.count_done()).unwrap_or_default();
            let ends_by_itself = summary.aborted.is_none() && summary.drained.is_none();
            let process = system::current_process();
            let may_end = with(|world| {
                let is_drained = std::mem::take(&mut world.is_drained);
                world.users.ended =
                    process.filter(|_| ends_by_itself && !is_drained && !world.has_failed_disk);
                let awaits_tasks = !world.users.have_added_all(&world.plan);
                world.has_failed_disk || is_drained || world.plan.wall > 0 || awaits_tasks
            });
            if done < can_be && may_end == Some(false) {
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
pub(crate) fn restart_master(millis: u64) {
    later(millis, || {
        if with(|world| matches!(world.master, Master::IsDead)).unwrap_or(false) {
            start_master();
        }
    });
}

/// An agent starts the next master on its host.
pub(crate) fn start_successor(host: usize) {
    let millis = system::random(|random| random.below(2_000)).unwrap_or(0);
    later(millis, move || {
        let may_start = with(|world| {
            // Otherwise, that one has the run lock.
            let may_start = matches!(world.master, Master::IsDead) && world.nodes[host].is_on;
            if may_start {
                world.master_host = host_id(host);
            }
            may_start
        });
        if may_start == Some(true) {
            note(|| format!("the next master starts on {}", host_name(host)));
            start_master();
        }
    });
}

/// The host of the master has lost its power.
pub(crate) fn master_loses_power() {
    let millis = system::random(|random| 5_000 + random.below(60_000)).unwrap_or(0);
    let known = with(|world| {
        world.allowed.power_loss = true;
        world
            .batch_knows_at
            .get_or_insert(now() + Duration::from_millis(millis));
        let master = match std::mem::replace(&mut world.master, Master::IsDead) {
            Master::Runs(process) => Some(process),
            ended => {
                world.master = ended;
                None
            }
        };
        (Rc::clone(&world.disk), world.folder.clone(), master)
    });
    let Some((disk, folder, master)) = known else {
        return;
    };
    master.into_iter().for_each(system::kill);
    disk.lose_power(&folder);
    if with(|world| world.plan.succession) == Some(true) {
        later(NEXT_JOB_MILLIS, start_batch_job);
    }
}

/// Somebody starts the batch job anew, if no agent has started a master.
fn start_batch_job() {
    let is_dead = with(|world| matches!(world.master, Master::IsDead));
    if is_dead == Some(true) {
        with(|world| world.master_host = MASTER_HOST);
        start_master();
        later(NEXT_JOB_MILLIS, start_batch_job);
    }
}

pub(crate) fn kill_master(millis: u64) {
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

impl World {
    /// The tasks of the run itself, with those of its sub-workflows, that are done and can be, and all that
    /// can be.
    fn count_done(&self) -> (usize, usize) {
        let feasible = self.plan.feasible();
        let homes = self
            .plan
            .homes()
            .filter(|home| self.plan.guest_around(*home).is_none());
        let (mut done, mut can_be) = (0, 0);
        for home in homes {
            let rescued = checks::rescued(&Plan::folder(&self.folder, home));
            let is_lost = self.allowed.power_loss && self.is_done_around(home);
            let tasks = self.plan.tasks.iter().filter(|task| self.plan.home(task) == home);
            for task in tasks.filter(|task| feasible.contains(&task.number)) {
                can_be += 1;
                done += usize::from(is_lost || rescued.contains(task.name().as_bytes()));
            }
        }
        (done, can_be)
    }
}

impl World {
    /// True if a DAG is that of a sub-workflow which is done, or inside one: then a loss of power may have
    /// taken what its own rescue file said.
    fn is_done_around(&self, home: u32) -> bool {
        let Some(PartKind::Subworkflow { task, .. }) = self.plan.kind(home) else {
            return false;
        };
        let task = self.plan.tasks.iter().find(|known| known.number == task);
        task.is_some_and(|task| {
            let around = self.plan.home(task);
            let rescued = checks::rescued(&Plan::folder(&self.folder, around));
            rescued.contains(task.name().as_bytes()) || self.is_done_around(around)
        })
    }
}

/// The options of a run.
fn options(world: &World) -> AgentRun {
    let dag = world.folder.join("x.dag");
    let mut options = Options::new(&dag, OsStr::new("pegasus-mpi-cluster"));
    options.dagman_log = Some(world.folder.join("x.dag.dagman.out"));
    options.jobstate_log = Some(world.folder.join("jobstate.log"));
    options.resource_log = None;
    let target = |name: &str| Target::File(world.folder.join(name));
    options.stdio = if world.plan.serves() || world.plan.has_guests() {
        Stdio::PerTask
    } else {
        Stdio::Merged {
            stdout: target("out"),
            stderr: target("err"),
        }
    };
    let idle = Some(Duration::from_millis(world.plan.idle)).filter(|idle| !idle.is_zero());
    options.serve = world.plan.serves().then_some(Serve { idle_limit: idle });
    options.console = false;
    options.disk_reserve = Some(0);
    options.bad_host_limit = 0;
    options.crash_limit = world.plan.crash_limit;
    options.max_wall_minutes = (world.plan.wall > 0).then(|| world.plan.wall as f64 / 60_000.0);
    options.sync_interval = (world.plan.sync > 0).then(|| Duration::from_millis(world.plan.sync));
    let worker = WorkerOptions {
        set_affinity: true,
        ..WorkerOptions::new(&dag)
    };
    let mut agents = AgentOptions::new(&dag, WorkerSettings::new(&worker, &world.folder));
    agents.agents = world.plan.hosts.len() as u32;
    agents.slots = world.plan.slots;
    agents.start_with = world.plan.start_with;
    agents.master_timeout = LONG;
    agents.join_timeout = LONG;
    agents.listen = Listen::loopback();
    agents.timing = Timing::with_lease(Duration::from_millis(world.plan.lease));
    AgentRun { options, agents }
}
