//! What nested sub-workflows take over from the plan around them.

use std::path::{Path, PathBuf};

use rustc_hash::FxHashMap;

use crate::exec::{Exec, JobId};
use crate::model::JobKind;
use crate::request::Request;

/// What nested sub-workflows take over from the plan around them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nesting {
    /// Base of submit directories.
    pub(super) dir: PathBuf,
    /// The submit directory, relative to it.
    pub(super) relative: String,
    /// Execution sites.
    pub(super) sites: Vec<String>,
    /// Identifier of the outermost workflow.
    pub(crate) root: String,
    /// The workflow has a replica catalog of its own.
    pub(super) has_replicas: bool,
    /// Sub-workflows clean up after themselves.
    pub(super) cleans_up: bool,
    /// Properties of sub-workflows that have the properties of this plan.
    pub(super) defines: Vec<String>,
    /// Nested workflows on which each one depends.
    pub(super) parents: FxHashMap<JobId, Vec<JobId>>,
}

impl Nesting {
    /// Collects what nested sub-workflows take over. `defines` are properties that only they need.
    pub(crate) fn new(
        request: &Request,
        exec: &Exec,
        submit: &str,
        root: String,
        (has_replicas, cleans_up, defines): (bool, bool, Vec<String>),
    ) -> Self {
        let relative = Path::new(submit).strip_prefix(&request.dir);
        let mut parents: FxHashMap<JobId, Vec<JobId>> = FxHashMap::default();
        let is_workflow = |job: JobId| exec.setups[exec.jobs[job].setup].kind == JobKind::SubWorkflow;
        if exec.setups.iter().any(|setup| setup.kind == JobKind::SubWorkflow) {
            for &(parent, child) in exec
                .edges
                .iter()
                .filter(|(p, c)| is_workflow(*p) && is_workflow(*c))
            {
                parents.entry(child).or_default().push(parent);
            }
        }
        Nesting {
            dir: request.dir.clone(),
            relative: relative.map_or_else(|_| submit.to_owned(), |path| path.display().to_string()),
            sites: request.sites.clone(),
            root,
            has_replicas,
            cleans_up,
            defines,
            parents,
        }
    }
}
