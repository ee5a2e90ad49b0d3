//! What goes wrong.

use std::rc::Rc;

use pmc_control::Request;
use pmc_system::simulated::{self as system, ProcessId, net};

use crate::agents::{kill_agent, kill_guard, set_power, suspend};
use crate::gangs::reset_between;
use crate::masters::{kill_master, master_loses_power, restart_master, start_master};
use crate::plan::{FaultKind, Way};
use crate::world::{MASTER_HOST, Master, host_id, host_name, later, master_host, note, with};

/// Cuts a host off from all where a master is or may be, or repairs that.
fn cut(host: usize, way: Way, is_cut: bool) {
    let hosts = with(|world| {
        if world.plan.succession {
            world.nodes.len()
        } else {
            0
        }
    })
    .unwrap_or(0);
    let others = (0..hosts).filter(|other| *other != host).map(host_id);
    let host = host_id(host);
    for other in others.chain([MASTER_HOST]) {
        if way != Way::In {
            net::set_cut(host, other, is_cut);
        }
        if way != Way::Out {
            net::set_cut(other, host, is_cut);
        }
    }
}

/// Lets a fault happen.
pub(crate) fn happen(kind: FaultKind) {
    note(|| format!("fault: {kind:?}"));
    match kind {
        FaultKind::KillAgent(host) => kill_agent(host),
        FaultKind::KillGuard(host) => kill_guard(host),
        FaultKind::StopAgent(host, millis) => {
            // Without its guard, nobody could end its tasks.
            let agent = with(|world| {
                let node = &mut world.nodes[host];
                let agent = node.agent.filter(|_| node.has_guard && !node.is_suspended)?;
                node.stops += 1;
                Some(agent)
            });
            if let Some(agent) = agent.flatten() {
                system::set_stopped(agent, true);
                later(millis, move || {
                    with(|world| world.nodes[host].stops -= 1);
                    system::set_stopped(agent, false);
                });
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
        FaultKind::Reset(host) => net::reset(host_id(host), master_host()),
        FaultKind::DrainAgent(host) => {
            let interrupt = with(|world| world.nodes[host].interrupt.clone()).flatten();
            interrupt.into_iter().for_each(|interrupt| interrupt.drain(15));
        }
        FaultKind::ResetBetween(a, b, way) => reset_between(a, b, way),
        FaultKind::Suspend(host, millis) => suspend(host, millis),
        FaultKind::Uneven(host, to_it, from_it) => {
            cut(host, Way::Both, true);
            later(to_it, move || cut(host, Way::In, false));
            later(from_it, move || cut(host, Way::Out, false));
        }
        FaultKind::LateAnswers(host, held, silent) => {
            cut(host, Way::In, true);
            later(held / 3, move || cut(host, Way::Out, true));
            later(held, move || cut(host, Way::In, false));
            later(held / 3 + silent, move || cut(host, Way::Out, false));
        }
        FaultKind::DrainHost(_)
        | FaultKind::DrainByTool(_)
        | FaultKind::GiveUp(_)
        | FaultKind::Reserve(..) => ask(kind),
        _ => happen_to_master(kind),
    }
}

/// Lets a tool ask the run for what it may not expect.
fn ask(kind: FaultKind) {
    match kind {
        FaultKind::DrainHost(host) => {
            // A run that has ended, or does not know the host, refuses.
            let host = host_name(host);
            with(|world| world.users.tools.ask(Request::DrainNode { host }));
        }
        FaultKind::GiveUp(host) => {
            let host = host_name(host);
            with(|world| world.users.tools.ask(Request::NodeGone { host }));
        }
        FaultKind::Reserve(host, millis) => {
            let reserve = move |is_reserved| {
                let hosts = vec![host_name(host)];
                with(|world| {
                    world
                        .users
                        .tools
                        .ask(Request::ReserveNodes { hosts, is_reserved })
                });
            };
            reserve(true);
            later(millis, move || reserve(false));
        }
        FaultKind::DrainByTool(seconds) => {
            let after_seconds = Some(seconds);
            with(|world| {
                let asked = world.users.tools.ask(Request::Drain { after_seconds });
                world.is_drained |= asked.is_some() && matches!(world.master, Master::Runs(_));
            });
        }
        _ => {}
    }
}

/// Lets a fault of the master, its host or its disk happen.
fn happen_to_master(kind: FaultKind) {
    match kind {
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
        // Without syncs, what a run has done may be lost after its end.
        FaultKind::MasterOff(_)
            if with(|world| world.plan.sync == 0 && matches!(world.master, Master::HasEnded))
                == Some(true) => {}
        FaultKind::MasterOff(millis) => {
            let host = master_host();
            if host == MASTER_HOST {
                net::set_power(host, false);
                master_loses_power();
                later(millis, || net::set_power(MASTER_HOST, true));
            } else {
                let host = host.0 as usize - 1;
                set_power(host, false);
                later(millis, move || set_power(host, true));
            }
            later(millis, || {
                // Otherwise, agents do it.
                if with(|world| !world.plan.succession) == Some(true) {
                    start_master();
                }
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
        FaultKind::DrainMaster(signal) => {
            let interrupt = with(|world| {
                world.is_drained |= matches!(world.master, Master::Runs(_));
                world.interrupt.clone()
            });
            interrupt
                .flatten()
                .into_iter()
                .for_each(|interrupt| interrupt.drain(signal));
        }
        FaultKind::WriteError => {
            if let Some(disk) = with(|world| {
                world.allowed.disk_errors = true;
                Rc::clone(&world.disk)
            }) {
                disk.faults().fails_once = true;
            }
        }
        _ => {}
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
