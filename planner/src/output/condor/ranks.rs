//! Which jobs run first, and how many of a kind at a time.

use crate::exec::Task;
use crate::model::JobKind;
use crate::profiles::Namespace;
use crate::tasks::PlannedJob;
use crate::tasks::requests::dagman;

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
