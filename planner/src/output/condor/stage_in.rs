//! Which of the stage-in jobs of a level come first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::exec::{JobId, Task};
use crate::graph::Graph;
use crate::ids::Id as _;
use crate::refine::settings::Refiner;
use crate::tasks::Plan;

/// Ranks the stage-in jobs of each level among each other, as Pegasus does: that for which most jobs wait
/// has 0, the others less.
pub(super) fn ranks(plan: &Plan<'_>) -> FxHashMap<JobId, i64> {
    let exec = plan.exec;
    let is_program = |id: &JobId| matches!(exec.jobs[*id].task, Task::Compute(_) | Task::Cluster(..));
    if plan.settings.refiner != Refiner::BalancedCluster {
        return FxHashMap::default();
    }
    let mut edges = exec.edges.clone();
    edges.retain(|(parent, child)| is_program(parent) && is_program(child));
    let levels = Graph::new(exec.jobs.len(), &edges).depths(&plan.order);
    let mut waiting: FxHashMap<JobId, Vec<u32>> = FxHashMap::default();
    for (parent, child) in exec.edges.iter().filter(|(_, child)| is_program(child)) {
        if let Task::StageIn(_) = exec.jobs[*parent].task {
            waiting.entry(*parent).or_default().push(levels[child.index()]);
        }
    }
    let mut groups: BTreeMap<(bool, u32), Vec<(usize, JobId)>> = BTreeMap::new();
    for id in JobId::first(exec.jobs.len()) {
        let job = &exec.jobs[id];
        if !matches!(job.task, Task::StageIn(_)) {
            continue;
        }
        let of_jobs = waiting.get(&id).map_or(&[][..], Vec::as_slice);
        // Jobs of later levels that need its files, too, do not count.
        let level = of_jobs.iter().min().copied().unwrap_or(0);
        let count = of_jobs.iter().filter(|of| **of == level).count();
        let group = (job.name.starts_with("stage_in_local_"), level);
        groups.entry(group).or_default().push((count, id));
    }
    let mut ranks = FxHashMap::default();
    for mut group in groups.into_values() {
        group.sort_by_key(|(count, _)| Reverse(*count));
        ranks.extend(group.iter().zip(0..).map(|((_, id), n): (_, i64)| (*id, -n)));
    }
    ranks
}
