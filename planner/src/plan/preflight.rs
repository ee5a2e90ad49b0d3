//! Checks before a run on this machine: programs and inputs must exist.

use std::path::Path;

use nix::unistd::{AccessFlags, access};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::{Exec, FileTransfer, Place};
use crate::model::{FileId, Workflow};
use crate::request::Request;

/// Maximum reported problems. Further ones are only counted.
const MAX_REPORTED: usize = 50;

/// Maximum inputs that are looked for without being asked to: their file system may be slow.
const MAX_LOOKED_FOR: usize = 10_000;

/// Returns a warning about local inputs that do not exist, unless the plan was checked for them. It is no
/// error: they may be there when the run begins.
pub(super) fn missing_inputs(workflow: &Workflow, exec: &Exec, request: &Request) -> Option<String> {
    if request.check_files || request.deferred {
        return None;
    }
    let problems = inputs(workflow, exec, MAX_LOOKED_FOR);
    let first = problems.first()?;
    let more = match problems.len() - 1 {
        0 => String::new(),
        1 => ", as one more input".to_owned(),
        more => format!(", as {more} more inputs"),
    };
    Some(format!(
        "{first}{more}; a run ends with an error unless it is there by then"
    ))
}

/// Checks installed programs and local inputs of a plan.
///
/// # Errors
/// Each program and input that does not exist, once.
pub(super) fn check(workflow: &Workflow, exec: &Exec) -> Result<(), PlanError> {
    let mut problems = programs(workflow, exec);
    problems.extend(inputs(workflow, exec, usize::MAX));
    let more = problems.len().saturating_sub(MAX_REPORTED);
    if more > 0 {
        problems.truncate(MAX_REPORTED);
        problems.push(Diagnostic::error(format!(
            "… and {more} more programs or inputs do not exist"
        )));
    }
    PlanError::check(problems)
}

/// Returns the problems of installed programs.
fn programs(workflow: &Workflow, exec: &Exec) -> Vec<Diagnostic> {
    // First job and number of jobs of each program.
    let mut users: FxHashMap<&str, (usize, usize)> = FxHashMap::default();
    let mut order = Vec::new();
    for (job, index) in exec.computing() {
        let setup = &exec.setups[job.setup];
        if setup.staged || setup.container.is_some() || !setup.executable.starts_with('/') {
            continue;
        }
        users
            .entry(&setup.executable)
            .and_modify(|(_, jobs)| *jobs += 1)
            .or_insert_with(|| {
                order.push(&*setup.executable);
                (index.index(), 1)
            });
    }
    let problem = |path: &str| {
        let what = if !Path::new(path).is_file() {
            "does not exist"
        } else if access(path, AccessFlags::X_OK).is_err() {
            "is not executable"
        } else {
            return None;
        };
        let (first, jobs) = users[path];
        let job = &workflow.jobs[first];
        let others = others(jobs - 1);
        Some(Diagnostic::error(format!(
            "the program {path} {what}: the job {}{others} runs it as {}",
            job.id, job.transformation
        )))
    };
    order.into_iter().filter_map(problem).collect()
}

/// Returns the problems of the first `limit` inputs that have only locations on file systems.
fn inputs(workflow: &Workflow, exec: &Exec, limit: usize) -> Vec<Diagnostic> {
    let uses = || workflow.jobs.iter().flat_map(|job| &job.uses);
    let optional: FxHashSet<FileId> = uses().filter(|u| u.optional).map(|u| u.file).collect();
    let mut looked_for = 0;
    let mut seen = FxHashSet::default();
    let mut problems = Vec::new();
    for transfer in exec.transfers.iter().flat_map(|set| &set.files) {
        if optional.contains(&transfer.file) || !seen.insert(transfer.file) {
            continue;
        }
        let Some(paths) = local_sources(transfer) else {
            continue;
        };
        looked_for += 1;
        if looked_for > limit || paths.iter().any(|path| Path::new(path).exists()) {
            continue;
        }
        let mut readers = workflow.jobs.iter().filter(|job| {
            let mut uses = job.uses.iter();
            uses.any(|u| u.file == transfer.file && u.link.reads())
        });
        let users = readers
            .next()
            .map(|job| format!(" of the job {}{}", job.id, others(readers.count())));
        problems.push(Diagnostic::error(format!(
            "the input {}{} does not exist: there is no {}",
            workflow.files.name(transfer.file),
            users.unwrap_or_default(),
            paths.join(", no ")
        )));
    }
    problems
}

/// Returns the paths of all sources; `None` if there is another source, or none.
fn local_sources(transfer: &FileTransfer) -> Option<Vec<&str>> {
    let mut paths = Vec::new();
    for (place, _) in &transfer.sources {
        let Place::Url(url, _) = place else { return None };
        let path = match url.strip_prefix("file://") {
            Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
            None => url,
        };
        if !path.starts_with('/') {
            return None;
        }
        paths.push(path);
    }
    (!paths.is_empty()).then_some(paths)
}

fn others(jobs: usize) -> String {
    match jobs {
        0 => String::new(),
        1 => " and one more job".into(),
        more => format!(" and {more} more jobs"),
    }
}
