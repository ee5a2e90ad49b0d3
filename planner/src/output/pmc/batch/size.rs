//! Sentences about the size of a batch job: what jobs need of it, and how many run at a time in it.

use pmc_status::memory;

use super::Resources;
use super::demand::Demand;
use super::estimate::{count, duration};

impl Demand {
    /// Describes the requests.
    fn sentence(&self) -> String {
        let mut amounts = vec![count(u64::from(self.cpus), "CPU")];
        if self.gpus > 0 {
            amounts.push(count(u64::from(self.gpus), "GPU"));
        }
        let memory = match self.memory_mb {
            0 => "no memory".to_owned(),
            mib => memory(mib),
        };
        let request = format!("a job requests up to {} and {memory}", amounts.join(", "));
        match self.over_nodes {
            None => request,
            Some(job) => format!(
                "{request} of a node; largest job: {} × {}",
                count(u64::from(job.nodes), "node"),
                count(u64::from(job.most_on_a_node()), "rank")
            ),
        }
    }
}

/// Describes slots, requests, the number of jobs that run at a time, and a wall time that follows from run
/// times, for the preferred scheduler.
pub(crate) fn describe(resources: &Resources) -> String {
    let mut text = sentence(resources);
    if let Some(scheduler) = resources.schedulers.first().copied()
        && let Some(estimate) = resources.decisive_estimate()
    {
        let reason = match resources.uses_all_cores(scheduler) {
            true => format!(
                "the longest chain of jobs takes {}, and all jobs together {}",
                duration(estimate.longest_chain),
                duration(estimate.work)
            ),
            false => format!("they take {} in these slots", duration(estimate.makespan)),
        };
        text.push_str(&format!(
            "; wall time {} from the run times that jobs declare: {reason}",
            clock(resources.minutes(scheduler))
        ));
    }
    text
}

/// Formats minutes as `H:MM:SS`.
pub(super) fn clock(minutes: u32) -> String {
    format!("{}:{:02}:00", minutes / 60, minutes % 60)
}

fn sentence(resources: &Resources) -> String {
    let nodes = count(u64::from(resources.nodes), "node");
    let largest = &resources.demand;
    let request = largest.sentence();
    let scheduler = resources.schedulers.first().copied();
    if scheduler.is_some_and(|scheduler| resources.has_slot_for_each_core(scheduler)) {
        return format!("a slot for each core of {nodes}; {request}");
    }
    let slots = resources.task_slots();
    let per_node = u64::from(resources.tasks_per_node);
    let by_cpus = resources.node.cpus.map(|cpus| u64::from(cpus / largest.cpus));
    let by_memory = resources.node.memory_mb.filter(|_| largest.memory_mb > 0);
    let by_memory = by_memory.map(|memory| memory / largest.memory_mb);
    let fit = [by_cpus, by_memory]
        .into_iter()
        .flatten()
        .fold(per_node, u64::min);
    let at_once = fit.saturating_mul(u64::from(resources.nodes)).min(slots);
    let is_known = largest.memory_mb == 0 || resources.node.memory_mb.is_some();
    let limit = if is_known { "" } else { "at most " };
    format!(
        "{} on {nodes}; {request}, so that {limit}{at_once} run at a time",
        count(slots, "slot")
    )
}
