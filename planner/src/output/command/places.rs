//! Where a job works, and which files it is given.

use crate::exec::{JobId, Task};
use crate::model::JobIndex;
use crate::output::Plan;
use crate::profiles::{Namespace, parse_bool};
use crate::refine::settings::Generator;

use super::is_wrapped;

/// Work directory of jobs that do not depend on the one of the run.
const ELSEWHERE: &str = "/tmp";

/// Directory that a job works in.
pub(crate) fn work_dir<'p>(plan: &'p Plan<'_>, id: JobId) -> &'p str {
    let job = plan.job(id);
    let setup = &plan.exec.setups[job.setup as usize];
    if is_elsewhere(plan, id) {
        return ELSEWHERE;
    }
    // Registration needs no file of the work directory, which may be removed before it or at the same time. The steps of
    // a shell script come one after the other.
    if matches!(job.task, Task::Register(_)) && plan.settings.generator == Generator::Pmc {
        return ELSEWHERE;
    }
    match setup.profiles.get(Namespace::Globus, "directory") {
        Some(directory) if !directory.trim().is_empty() => directory.trim(),
        _ => plan
            .sites
            .get(job.staging)
            .scratch
            .as_ref()
            .map_or(ELSEWHERE, |scratch| scratch.path.as_str()),
    }
}

/// Whether a job does not depend on the work directory of the run.
pub(super) fn is_elsewhere(plan: &Plan<'_>, id: JobId) -> bool {
    // A delivered output of a deleted job moves from elsewhere to elsewhere, and nothing makes sure that
    // there is a work directory: such jobs have no parents but each other.
    matches!(plan.job(id).task, Task::CreateDir | Task::NoOp) || is_delivery(plan, id)
}

/// Whether a job delivers outputs of deleted jobs.
pub(super) fn is_delivery(plan: &Plan<'_>, id: JobId) -> bool {
    match plan.job(id).task {
        Task::StageOut(n) => plan.exec.transfers[n as usize].files.iter().all(|file| {
            file.sources
                .iter()
                .all(|(place, _)| matches!(place, crate::exec::Place::Url(..)))
        }),
        Task::Register(n) => plan.exec.registrations[n as usize].producers.is_empty(),
        _ => false,
    }
}

/// Whether kickstart makes the directory that a job works in.
pub(crate) fn makes_dir(plan: &Plan<'_>, id: JobId) -> bool {
    let job = plan.job(id);
    let profiles = &plan.exec.setups[job.setup as usize].profiles;
    let makes = profiles.pegasus("create.dir").and_then(parse_bool) == Some(true);
    makes && matches!(job.task, Task::Compute(_)) && is_wrapped(plan, id)
}

/// File that is the standard input of a job.
pub(super) fn input(plan: &Plan<'_>, id: JobId) -> Option<String> {
    let job = plan.job(id);
    match job.task {
        Task::Compute(JobIndex(n)) => {
            let file = plan.workflow.jobs[n as usize].stdin?;
            let name = plan.workflow.files.name(file);
            Some(plan.sites.scratch_path(job.staging, name))
        }
        task if has_input_file(task) && part(plan, id).is_none() => Some(plan.job_file(id, ".in")),
        _ => None,
    }
}

/// Whether a job wants its output in files of the work directory.
pub(super) fn has_outputs(plan: &Plan<'_>, task: Task) -> bool {
    match task {
        Task::Compute(JobIndex(n)) => {
            let of = &plan.workflow.jobs[n as usize];
            of.stdout.is_some() || of.stderr.is_some()
        }
        _ => false,
    }
}

/// Jobs that read their orders from a file.
pub(super) fn has_input_file(task: Task) -> bool {
    matches!(
        task,
        Task::StageIn(_)
            | Task::StageOut(_)
            | Task::InterSite(_)
            | Task::CreateDir
            | Task::CleanUp(_)
            | Task::RemoveDir
    )
}

/// First byte and length of a job's orders, if they are in the one file of a large plan.
pub(super) fn part(plan: &Plan<'_>, id: JobId) -> Option<(u64, u32)> {
    plan.orders.get()?.part(id)
}
