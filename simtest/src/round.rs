//! A round, from its first step to what must be there in the end.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use pegasus_mpi_cluster::simulated::Guarded;
use pmc_system::simulated::{self as system, Simulation, net};

use crate::agents::begin_agent;
use crate::checks::{self, Allowed};
use crate::disk::{SimulatedDisk, Watch};
use crate::faults::happen;
use crate::held_files::Files;
use crate::masters::start_master;
use crate::memberships::Gangs;
use crate::plan::Plan;
use crate::tools;
use crate::users::Users;
use crate::world::{
    MASTER_HOST, Master, Node, Report, WORLD, World, disk_failed, find, now, shortened, with, wrote,
};

/// Steps of a round, at most: more are a loop without an end.
const MAX_STEPS: u64 = 3_000_000;

/// Simulated time in which a round must end, after its last fault.
const MAX_TIME: Duration = Duration::from_secs(4 * 3600);

fn clear(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        let _ = match entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            true => std::fs::remove_dir_all(path),
            false => std::fs::remove_file(path),
        };
    }
}

/// Writes the DAG files of a plan.
fn write_dags(plan: &Plan, folder: &Path) -> std::io::Result<()> {
    plan.homes().try_for_each(|home| {
        let own = Plan::folder(folder, home);
        if home != 0 {
            std::fs::create_dir(&own)?;
        }
        std::fs::write(own.join("x.dag"), plan.dag(folder, home))
    })
}

/// A host before its agent starts.
fn node() -> Node {
    Node {
        guarded: Guarded::default(),
        agent: None,
        interrupt: None,
        has_guard: false,
        is_on: true,
        stops: 0,
        is_ending: false,
        is_suspended: false,
        restarts: 0,
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
    if let Err(error) = write_dags(plan, folder) {
        return Report {
            finding: Some(format!("{}: {error}", folder.display())),
            ..Report::default()
        };
    }
    let disk = Rc::new(SimulatedDisk::new(Watch {
        wrote,
        shortened,
        failed: disk_failed,
    }));
    let world = World {
        plan: plan.clone(),
        folder: folder.to_owned(),
        disk: Rc::clone(&disk),
        nodes: plan.hosts.iter().map(|_| node()).collect(),
        tasks: BTreeMap::new(),
        next_task: 0,
        started: BTreeSet::new(),
        attempts: BTreeMap::new(),
        failures: BTreeMap::new(),
        master: Master::IsDead,
        master_host: MASTER_HOST,
        batch_knows_at: None,
        interrupt: None,
        allowed: Allowed {
            power_loss: false,
            disk_errors: false,
            leaves_agents: false,
        },
        gangs: Gangs::default(),
        users: Users::default(),
        files: Files::default(),
        master_since: Duration::ZERO,
        is_drained: false,
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
            begin_agent(host)
        });
    }
    if plan.serves() || plan.has_guests() {
        system::at(Duration::ZERO, tools::look);
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
                && world
                    .nodes
                    .iter()
                    .all(|node| node.agent.is_none() && !node.is_ending);
            (is_over, world.report.finding.is_some())
        });
        let (is_over, has_found) = state.unwrap_or((true, true));
        if has_found {
            return false;
        }
        if is_over {
            return has_nothing_left();
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

/// True if nothing of a task is on any host.
fn has_nothing_left() -> bool {
    let now = now();
    let left = with(|world| {
        world.end_all_due(now);
        !world.gangs.are_none() || world.tasks.values().any(|task| task.ended.is_none())
    });
    if left == Some(true) {
        find("the run has ended, and something of a task is left".to_owned());
    }
    left != Some(true)
}

fn check(folder: &Path, plan: &Plan) {
    let known = with(|world| (world.allowed, std::mem::take(&mut world.users)));
    if let Some((allowed, users)) = known
        && let Err(wrong) = checks::check_end(folder, plan, allowed, |guest| users.has_ended_with(guest))
    {
        find(wrong);
    }
}
