//! Where a plan goes: submit directory, relative run directory on the sites, base name of the files.

use std::path::{Path, PathBuf};

use super::inputs::Inputs;
use crate::error::PlanError;
use crate::model::Workflow;
use crate::output::common::submit_dir::SubmitDir;
use crate::refine::sites::RunDirs;
use crate::request::Request;

/// Submit directory that a request and its properties ask for.
enum Location {
    /// This directory.
    Named(PathBuf),
    /// The next run below this directory.
    NextRun(PathBuf),
}

impl Location {
    fn new(request: &Request, inputs: &Inputs) -> Self {
        let relative = request
            .relative_submit_dir
            .as_ref()
            .or(request.relative_dir.as_ref());
        if let Some(relative) = relative {
            return Location::Named(normal(&request.dir.join(relative)));
        }
        let parent = request
            .dir
            .join(&request.environment.user)
            .join("pegasus")
            .join(&inputs.workflow.label);
        if inputs.settings.use_timestamp {
            let stamp = request.environment.now.format("%Y%m%dT%H%M%S%z").to_string();
            return Location::Named(parent.join(stamp));
        }
        Location::NextRun(parent)
    }
}

/// Returns the link to the plan of a sub-workflow.
pub(super) fn link(request: &Request, inputs: &Inputs) -> Option<PathBuf> {
    match Location::new(request, inputs) {
        Location::Named(path) if request.deferred => Some(path),
        _ => None,
    }
}

/// Reserves the submit directory.
pub(super) fn reserve(request: &Request, inputs: &Inputs) -> Result<SubmitDir, PlanError> {
    match Location::new(request, inputs) {
        Location::Named(path) if request.deferred => SubmitDir::numbered(&path),
        Location::Named(path) => SubmitDir::named(&path),
        Location::NextRun(parent) => SubmitDir::next_run(&parent),
    }
}

/// Returns the submit directory that [`reserve`] would take.
pub(super) fn next(request: &Request, inputs: &Inputs) -> PathBuf {
    match Location::new(request, inputs) {
        Location::Named(path) => path,
        Location::NextRun(parent) => SubmitDir::next_path(&parent),
    }
}

/// Returns the directories of the run on the sites.
pub(super) fn run_dirs(request: &Request, workflow: &Workflow, submit: &str) -> RunDirs {
    let relative = request
        .relative_dir
        .as_ref()
        .or(request.relative_submit_dir.as_ref());
    let below = || {
        let below = Path::new(submit).strip_prefix(&request.dir);
        below.map_or_else(|_| submit.to_owned(), |path| path.display().to_string())
    };
    RunDirs {
        work: exec_rel(request, workflow, submit),
        storage: relative.cloned().unwrap_or_else(below),
    }
}

/// Returns the relative run directory on the sites.
fn exec_rel(request: &Request, workflow: &Workflow, submit: &str) -> String {
    match (&request.random_dir, &request.relative_dir) {
        (Some(Some(name)), _) => name.clone(),
        (Some(None), _) => match &request.basename {
            Some(base) => format!("{base}-{}", request.environment.uuid),
            None => format!(
                "{}-{}-{}",
                workflow.label, workflow.index, request.environment.uuid
            ),
        },
        (None, Some(relative)) => relative.clone(),
        (None, None) => {
            // With `--relative-submit-dir` alone the work directory is the one of a first run elsewhere; a
            // name of its own keeps two such plans apart.
            let leaf = submit.rsplit('/').next().unwrap_or_default();
            let leaf = match &request.relative_submit_dir {
                Some(_) => format!("run-{}", request.environment.uuid),
                None => leaf.to_owned(),
            };
            format!("{}/pegasus/{}/{leaf}", request.environment.user, workflow.label)
        }
    }
}

/// Returns the base name of the files of the workflow.
pub(super) fn base(request: &Request, workflow: &Workflow) -> String {
    let default = || format!("{}-{}", workflow.label, workflow.index);
    request.basename.clone().unwrap_or_else(default)
}

/// Removes `.` parts from a path. `..` stays, since it may follow a link.
fn normal(path: &Path) -> PathBuf {
    path.components().collect()
}
