//! Work directory and input files of a job.

use crate::exec::{ExecJob, JobId, Task};
use crate::output::Plan;
use crate::output::lists::suffix;
use crate::profiles::{Namespace, parse_bool};
use crate::refine::settings::Generator;
use crate::refine::sites::{Access, Scratch};

use super::is_wrapped;

/// Work directory of jobs that do not need that of the run.
const FALLBACK_DIR: &str = "/tmp";

/// Returns the work directory of a job.
pub(crate) fn work_dir<'p>(plan: &'p Plan<'_>, id: JobId) -> &'p str {
    let job = plan.job(id);
    let setup = &plan.exec.setups[job.setup];
    if needs_no_work_dir(plan, id) || is_out_of_sight(plan, job) {
        return FALLBACK_DIR;
    }
    // Registration needs no file of the work directory, which may be removed before or meanwhile. A shell
    // script runs its steps one after another.
    if matches!(job.task, Task::Register(_)) && plan.settings.generator == Generator::Pmc {
        return FALLBACK_DIR;
    }
    match setup.profiles.get(Namespace::Globus, "directory") {
        Some(directory) if !directory.trim().is_empty() => directory.trim(),
        _ => plan
            .sites
            .get(job.staging)
            .scratch
            .as_ref()
            .map_or(FALLBACK_DIR, |scratch| scratch.path.as_str()),
    }
}

/// Returns whether a job need not see the work directory of its staging site: it has a directory of its own,
/// or the site is reached through a server.
fn is_out_of_sight(plan: &Plan<'_>, job: &ExecJob) -> bool {
    let is_seen = |scratch: &Scratch| plan.sites.work_url(job.staging, Access::Put) == scratch.url;
    plan.sites.is_lite(job.staging)
        && (plan.exec.is_lite(job)
            || job.site != job.staging
            || !plan.sites.get(job.staging).scratch.as_ref().is_some_and(is_seen))
}

/// Returns whether a job does not need the work directory of the run.
pub(super) fn needs_no_work_dir(plan: &Plan<'_>, id: JobId) -> bool {
    match plan.job(id).task {
        Task::CreateDir | Task::NoOp => true,
        // It removes the work directory. If it is killed after that, it must be able to start again. A shell
        // script is not resumed.
        Task::RemoveDir => plan.settings.generator == Generator::Pmc,
        // Outputs of removed jobs do not pass through the work directory, which may not exist: these jobs
        // have no other parents.
        _ => is_delivery(plan, id),
    }
}

/// Returns whether a job stages out outputs of removed jobs.
pub(super) fn is_delivery(plan: &Plan<'_>, id: JobId) -> bool {
    match plan.job(id).task {
        Task::StageOut(n) => plan.exec.transfers[n].files.iter().all(|file| {
            file.sources
                .iter()
                .all(|(place, _)| matches!(place, crate::exec::Place::Url(..)))
        }),
        Task::Register(n) => plan.exec.registrations[n].producers.is_empty(),
        _ => false,
    }
}

/// Returns whether kickstart creates the work directory of a job.
pub(crate) fn creates_work_dir(plan: &Plan<'_>, id: JobId) -> bool {
    let job = plan.job(id);
    let profiles = &plan.exec.setups[job.setup].profiles;
    let makes = profiles.pegasus("create.dir").and_then(parse_bool) == Some(true);
    makes && matches!(job.task, Task::Compute(_)) && is_wrapped(plan, id)
}

/// Returns the file for the standard input of a job.
pub(super) fn input(plan: &Plan<'_>, id: JobId) -> Option<String> {
    let job = plan.job(id);
    match job.task {
        Task::Compute(n) => {
            let file = plan.workflow.jobs[n].stdin?;
            let name = plan.workflow.files.name(file);
            // Jobs of DAGMan files read files of any directory.
            if name.starts_with('/') || plan.exec.is_lite(job) {
                return Some(name.to_owned());
            }
            Some(plan.sites.scratch_path(job.staging, name))
        }
        task if has_input_file(task) && part(plan, id).is_none() => Some(plan.job_file(id, suffix(plan, id))),
        _ => None,
    }
}

/// Returns whether a job redirects its output to files of the work directory.
pub(super) fn has_outputs(plan: &Plan<'_>, task: Task) -> bool {
    match task {
        Task::Compute(n) => {
            let of = &plan.workflow.jobs[n];
            of.stdout.is_some() || of.stderr.is_some()
        }
        _ => false,
    }
}

/// Returns whether a job redirects its input or its output.
pub(super) fn has_streams(plan: &Plan<'_>, task: Task) -> bool {
    let reads = matches!(task, Task::Compute(n) if plan.workflow.jobs[n].stdin.is_some());
    reads || has_outputs(plan, task)
}

/// Returns whether a task reads its work list from a file.
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

/// Returns offset and length of a job's work list, if it is in the shared file of a large plan.
pub(super) fn part(plan: &Plan<'_>, id: JobId) -> Option<pmc_calls::Part> {
    plan.orders.get()?.part(id)
}
