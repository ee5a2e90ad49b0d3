//! Masters, and who starts them again.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use pegasus_mpi_cluster::{
    AgentOptions, AgentRun, Interrupt, Options, RunError, RunEvent, RunSummary, Stdio, Target, WorkerOptions,
    WorkerSettings, run_with_agents,
};
use pmc_link::{Listen, Timing};
use pmc_system::simulated as system;

use crate::world::{LONG, MASTER_HOST, Master, World, find, later, note, now, with};

/// Starts a master.
pub(crate) fn start_master() {
    let known = with(|world| {
        if !matches!(world.master, Master::IsDead) {
            return None;
        }
        world.report.masters += 1;
        world.is_drained = false;
        world.master_since = now();
        let interrupt = Arc::new(Interrupt::new());
        world.interrupt = Some(Arc::clone(&interrupt));
        Some((options(world), interrupt))
    });
    let Some((run, interrupt)) = known.flatten() else {
        return;
    };
    note(|| "a master starts".to_owned());
    let process = system::start(MASTER_HOST, None, move || {
        let mut observe = |event: &RunEvent<'_>| match event {
            RunEvent::Evicted { task, .. } => {
                let task = String::from_utf8_lossy(task).into_owned();
                note(|| format!("master: {task} is lost"));
                if with(|world| world.plan.costs_no_attempt()) == Some(true) {
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

fn master_ended(ended: &Result<RunSummary, RunError>) {
    match ended {
        Ok(summary) => {
            note(|| format!("the master ends: {:?}", summary.figures));
            // The next master is to know of an agent that has not said that it has ended.
            let has_unresponsive = !summary.unresponsive_workers.is_empty();
            with(|world| world.allowed.leaves_agents |= has_unresponsive);
            let can_be = with(|world| world.plan.feasible().len()).unwrap_or(0);
            let done = summary.figures.done_before + summary.figures.succeeded as usize;
            let may_end = with(|world| {
                let is_drained = std::mem::take(&mut world.is_drained);
                world.has_failed_disk || is_drained || world.plan.wall > 0
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
        // A host without power starts nothing.
        if with(|world| matches!(world.master, Master::IsDead)).unwrap_or(false) {
            start_master();
        }
    });
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

/// The options of a run.
fn options(world: &World) -> AgentRun {
    let dag = world.folder.join("x.dag");
    let mut options = Options::new(&dag, OsStr::new("pegasus-mpi-cluster"));
    options.dagman_log = Some(world.folder.join("x.dag.dagman.out"));
    options.jobstate_log = Some(world.folder.join("jobstate.log"));
    options.resource_log = None;
    let target = |name: &str| Target::File(world.folder.join(name));
    options.stdio = Stdio::Merged {
        stdout: target("out"),
        stderr: target("err"),
    };
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
