//! Agents, their guards, and the power of their hosts.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pegasus_mpi_cluster::Interrupt;
use pegasus_mpi_cluster::simulated::{AgentArgs, Guarded, HostOptions, Lifeline, OnHost, run_agent};
use pmc_system::planted::{Planted, is_planted};
use pmc_system::simulated::{self as system, ProcessId, net};

use crate::machine::Machine;
use crate::masters::master_loses_power;
use crate::world::{
    LONG, Master, TaskProcess, find, host_id, host_name, later, master_host, note, now, with,
};

/// How long somebody who starts agents waits before he looks again.
const LOOK_MILLIS: u64 = 5_000;

/// Somebody starts the agent of a host if there is something to do.
pub(crate) fn begin_agent(host: usize) {
    match with(|world| world.has_work()) {
        Some(true) => start_agent(host),
        Some(false) => later(LOOK_MILLIS, move || begin_agent(host)),
        None => {}
    }
}

/// Starts the agent of a host, with what its guard knows.
pub(crate) fn start_agent(host: usize) {
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
    let context = Rc::new(OnHost::new(Box::new(Machine(host))));
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
    look_at_lease(host, process, until);
}

/// The guard of a host looks at the lease of its agent, soon after this moment.
fn look_at_lease(host: usize, process: ProcessId, at: Instant) {
    let late = system::random(|random| random.below(50)).unwrap_or(0);
    let at = at.saturating_duration_since(system::instant(Duration::ZERO));
    system::at(at + Duration::from_millis(late), move || {
        let is_over = with(|world| {
            let node = &world.nodes[host];
            let is_there = node.has_guard && !node.is_suspended && node.agent == Some(process);
            is_there && node.guarded.is_over(system::instant(now()))
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
        world.end_all_due(now);
        let node = &mut world.nodes[host];
        (node.agent, node.guarded) = (None, Guarded::default());
        world.files.release(host);
        let node = &world.nodes[host];
        // Its guard kills what is left.
        let has_guard = node.has_guard;
        let lost = world.gangs.lose(host);
        world.break_leads(&lost);
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
    later(LOOK_MILLIS, move || begin_agent(host));
}

/// SIGKILL to the agent of a host. Its guard ends the tasks and starts it again.
pub(crate) fn kill_agent(host: usize) {
    let known = with(|world| {
        let node = &mut world.nodes[host];
        let agent = node.agent.take_if(|_| !node.is_suspended)?;
        node.is_ending = node.has_guard;
        Some((agent, node.has_guard))
    });
    let Some((process, has_guard)) = known.flatten() else {
        return;
    };
    system::kill(process);
    if !has_guard {
        // The batch system ends what is left, and somebody starts another agent.
        with(|world| world.kill_tasks(host));
        later(60_000, move || begin_agent(host));
        return;
    }
    let late = system::random(|random| random.below(20)).unwrap_or(0);
    system::at(now() + Duration::from_millis(late), move || {
        with(|world| {
            world.nodes[host].is_ending = false;
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
pub(crate) fn kill_guard(host: usize) {
    let interrupt = with(|world| {
        let node = &mut world.nodes[host];
        if node.stops > 0 || node.is_suspended {
            // Nobody could end its tasks.
            return None;
        }
        let is_new = std::mem::take(&mut node.has_guard) && node.agent.is_some();
        node.interrupt.clone().filter(|_| is_new)
    });
    if let Some(interrupt) = interrupt.flatten() {
        interrupt.raise(2);
    }
}

pub(crate) fn set_power(host: usize, is_on: bool) {
    if with(|world| world.nodes[host].is_on == is_on).unwrap_or(true) {
        return;
    }
    net::set_power(host_id(host), is_on);
    let agent = with(|world| {
        let node = &mut world.nodes[host];
        (node.is_on, node.is_suspended) = (is_on, false);
        (node.guarded, node.has_guard) = (Guarded::default(), false);
        world.files.forget(host);
        world.nodes[host].agent.take()
    });
    if is_on {
        begin_agent(host);
    } else {
        agent.flatten().into_iter().for_each(system::kill);
        with(|world| world.kill_tasks(host));
        if master_host() == host_id(host) {
            master_loses_power();
        }
    }
}

/// Lets a host stand still for some milliseconds, with all that is on it.
pub(crate) fn suspend(host: usize, millis: u64) {
    let now = now();
    let agent = with(|world| {
        world.end_all_due(now);
        let node = &mut world.nodes[host];
        let is_whole = node.has_guard && node.stops == 0 && !node.is_suspended;
        let is_whole = is_whole && world.master_host != host_id(host);
        let agent = node.agent.filter(|_| is_whole)?;
        node.is_suspended = true;
        let here = world.tasks.values_mut().filter(|task| task.host == host);
        here.for_each(|task| task.ends_at += Duration::from_millis(millis));
        Some(agent)
    });
    let Some(agent) = agent.flatten() else { return };
    system::set_stopped(agent, true);
    later(millis, move || go_on(host, agent));
}

/// A host goes on that has stood still.
fn go_on(host: usize, agent: ProcessId) {
    let at = system::instant(now());
    let is_same = with(|world| {
        let node = &mut world.nodes[host];
        let is_same = node.agent == Some(agent) && std::mem::take(&mut node.is_suspended);
        if is_same && node.guarded.is_over(at) {
            world.doom(host);
        }
        is_same
    });
    if is_same == Some(true) {
        system::set_stopped(agent, false);
        look_at_lease(host, agent, at);
    }
}
