//! How many jobs of a plan run at a time in its batch job.

use crate::exec::Task;
use crate::output::Plan;

use super::Resources;
use super::transport::Transport;

/// The largest requests of the compute jobs of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Largest {
    memory_mib: u64,
    cpus: u64,
}

/// Describes slots, requests, and the number of jobs that run at a time, for the preferred scheduler.
pub(crate) fn describe(plan: &Plan<'_>, resources: &Resources) -> String {
    sentence(resources, largest(plan))
}

fn largest(plan: &Plan<'_>) -> Largest {
    let exec = plan.exec;
    let mut largest = Largest {
        memory_mib: 0,
        cpus: 1,
    };
    let is_compute = |task: &Task| matches!(task, Task::Compute(_) | Task::Cluster(..));
    for job in exec.jobs.iter().filter(|job| is_compute(&job.task)) {
        let profiles = &exec.setups[job.setup].profiles;
        let number = |keys: [&str; 2]| {
            let text = keys.into_iter().find_map(|key| profiles.pegasus(key))?;
            text.trim().parse::<f64>().ok().map(|number| number as u64)
        };
        largest.memory_mib = largest
            .memory_mib
            .max(number(["pmc_request_memory", "memory"]).unwrap_or(0));
        largest.cpus = largest
            .cpus
            .max(number(["pmc_request_cpus", "cores"]).unwrap_or(1));
    }
    largest
}

fn sentence(resources: &Resources, largest: Largest) -> String {
    let nodes = count(u64::from(resources.nodes), "node");
    let cpus = count(largest.cpus, "CPU");
    let request = match largest.memory_mib {
        0 => format!("a job requests up to {cpus} and no memory"),
        mib => format!("a job requests up to {cpus} and {}", mebibytes(mib)),
    };
    let scheduler = resources.schedulers.first().copied();
    let is_open = scheduler.is_some_and(|scheduler| resources.uses_all_cores(scheduler));
    if is_open || resources.has_slot_for_each_core() {
        return format!("a slot for each core of {nodes}; {request}");
    }
    // Under MPI, one process is the master.
    let masters = u64::from(resources.transport == Transport::Mpi);
    let slots = resources.ranks().saturating_sub(masters);
    let per_node = u64::from(resources.tasks_per_node);
    let by_cpus = resources.node.cpus.map(|cpus| u64::from(cpus) / largest.cpus);
    let by_memory = resources.node.memory_mb.filter(|_| largest.memory_mib > 0);
    let by_memory = by_memory.map(|memory| memory / largest.memory_mib);
    let fit = [by_cpus, by_memory]
        .into_iter()
        .flatten()
        .fold(per_node, u64::min);
    let at_once = fit.saturating_mul(u64::from(resources.nodes)).min(slots);
    let is_known = largest.memory_mib == 0 || resources.node.memory_mb.is_some();
    let limit = if is_known { "" } else { "at most " };
    format!(
        "{} on {nodes}; {request}, so that {limit}{at_once} run at a time",
        count(slots, "slot")
    )
}

fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn mebibytes(mib: u64) -> String {
    if mib >= 1024 && mib.is_multiple_of(1024) {
        format!("{} GiB", mib / 1024)
    } else {
        format!("{mib} MiB")
    }
}
