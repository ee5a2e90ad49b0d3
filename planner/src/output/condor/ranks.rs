//! Which jobs run first, and how many of a kind at a time.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::exec::{JobId, Task};
use crate::graph::Graph;
use crate::ids::Id as _;
use crate::model::JobKind;
use crate::profiles::Namespace;
use crate::refine::settings::Refiner;
use crate::tasks::requests::dagman;
use crate::tasks::{Plan, PlannedJob};

use super::context::Context;

/// Returns the priority of a job: that of the user, else that of its kind and depth.
pub(super) fn priority(context: &Context<'_>, job: PlannedJob<'_>) -> i64 {
    let own = job.setup.profiles.get(Namespace::Condor, "priority");
    let own = own.and_then(|text| text.trim().parse().ok());
    let assigns = context.plan.settings.condor.assigns_priorities;
    if let Task::StageIn(_) = job.task {
        let rank = context.stage_in_ranks.get(&job.id).copied();
        let base = if assigns { 700 } else { 0 };
        return rank.or(own).unwrap_or(0).saturating_add(base);
    }
    if let Some(own) = own {
        return own;
    }
    if !assigns {
        return 0;
    }
    match job.task {
        Task::CreateDir | Task::Chmod(_) | Task::NoOp => 800,
        Task::StageIn(_) | Task::InterSite(_) => 700,
        Task::StageOut(_) => 900,
        Task::CleanUp(_) | Task::RemoveDir => 1000,
        Task::Compute(_) | Task::Cluster(..) | Task::Register(_) => {
            i64::from(context.depths[job.id.index()]) * 10
        }
    }
}

/// Ranks the stage-in jobs of each level among each other, as Pegasus does: that for which most jobs wait has 0,
/// the others less.
pub(super) fn stage_in_ranks(plan: &Plan<'_>) -> FxHashMap<JobId, i64> {
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

/// Returns the category of a job, whose running jobs DAGMan limits.
pub(super) fn category(job: PlannedJob<'_>) -> Option<&str> {
    let of_kind = match job.task {
        Task::StageIn(_) => "stagein",
        Task::StageOut(_) => "stageout",
        Task::InterSite(_) => "stageinter",
        Task::Register(_) => "registration",
        Task::CleanUp(_) => "cleanup",
        Task::Compute(_) if job.setup.kind != JobKind::Compute => "subwf",
        _ => "",
    };
    let category = dagman(&job.setup.profiles, "category").unwrap_or(of_kind);
    (!category.is_empty()).then_some(category)
}
