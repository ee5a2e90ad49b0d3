//! What the jobs of a plan need of their batch job.

use crate::exec::Task;
use crate::profiles::Namespace;
use crate::task_request::{Amounts, JobNodes, cpus_of_rank};
use crate::tasks::Plan;

/// The largest requests of the compute jobs of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(super) memory_mb: u64,
    pub(super) cpus: u32,
    pub(super) gpus: u32,
    /// Nodes that a job asks for.
    pub(super) nodes: u32,
    /// The largest job over several nodes.
    pub(super) over_nodes: Option<JobNodes>,
}

impl Demand {
    /// Returns the largest requests of a plan.
    pub(crate) fn of(plan: &Plan<'_>) -> Self {
        let mut largest = Demand {
            cpus: 1,
            ..Demand::default()
        };
        let exec = plan.exec;
        let is_compute = |task: &Task| matches!(task, Task::Compute(_) | Task::Cluster(..));
        let mut last = None;
        for job in exec.jobs.iter().filter(|job| is_compute(&job.task)) {
            // Jobs with the same setup often follow each other.
            if last.replace(job.setup) == Some(job.setup) {
                continue;
            }
            let setup = &exec.setups[job.setup];
            let profiles = &setup.profiles;
            let mut amounts = Amounts::of(profiles);
            if let Some(nodes) = setup.nodes {
                let on_a_node = nodes.most_on_a_node();
                amounts.cpus = on_a_node.saturating_mul(cpus_of_rank(profiles));
                amounts.gpus = amounts.gpus.saturating_mul(on_a_node);
                amounts.memory_mb = amounts.memory_mb.saturating_mul(on_a_node.into());
                let size = |nodes: JobNodes| (nodes.nodes, nodes.ranks());
                if largest.over_nodes.is_none_or(|known| size(known) < size(nodes)) {
                    largest.over_nodes = Some(nodes);
                }
            }
            let nodes = profiles
                .pegasus("nodes")
                .or_else(|| profiles.get(Namespace::Globus, "hostcount"));
            let nodes = nodes.and_then(|text| text.trim().parse().ok());
            largest.memory_mb = largest.memory_mb.max(amounts.memory_mb);
            largest.cpus = largest.cpus.max(amounts.cpus);
            largest.gpus = largest.gpus.max(amounts.gpus);
            largest.nodes = largest.nodes.max(nodes.unwrap_or(0));
        }
        largest
    }
}
