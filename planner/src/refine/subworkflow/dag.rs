//! Jobs that run a DAG: a DAGMan file of HTCondor, or a DAG for pegasus-mpi-cluster.
//!
//! The nodes of the DAG use no logical files. What the job for the DAG reads is made before its first nodes
//! start, and kept until its last ones have ended, by giving its inputs to these nodes.

use std::path::{Path, PathBuf};

use super::{Inliner, hooks_ignored};
use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::ids::Id as _;
use crate::input::read_dag;
use crate::model::{Arguments, FileUse, Job, JobIndex, Link, Workflow};
use crate::profiles::Namespace;

impl Inliner<'_, '_> {
    /// Returns the workflow of a job that runs a DAG; `None` after a problem.
    pub(super) fn dag(
        &mut self,
        workflow: &Workflow,
        job: &Job,
        path: &Path,
    ) -> Result<Option<Workflow>, PlanError> {
        self.count(job, 0)?;
        let env = self.variables(path);
        let mut part = read_dag(path, &directory(workflow, job, path), &env, self.outer.options)?;
        self.warnings
            .extend(part.warnings.drain(..).map(|warning| warning.to_string()));
        let before = self.problems.len();
        for node in &part.jobs {
            if node.profiles.get(Namespace::Dagman, "abort-dag-on").is_some() {
                self.problems.push(Diagnostic::error(format!(
                    "{}:{}: the node {} has ABORT-DAG-ON, which would end the workflow around the DAG: take it out",
                    path.display(),
                    node.position.line,
                    node.id
                )));
            }
        }
        if self.problems.len() > before {
            return Ok(None);
        }
        self.warn_of_settings(job);
        give_inputs(workflow, job, &mut part);
        name_categories(job, &mut part);
        Ok(Some(part))
    }

    /// Warns of what the job says about the DAG as a whole.
    fn warn_of_settings(&mut self, job: &Job) {
        if !job.hooks.is_empty() {
            self.warnings.push(hooks_ignored(job));
        }
        let keys: Vec<String> = job
            .profiles
            .of(Namespace::Dagman)
            .filter(|(key, _)| *key != "dir")
            .map(|(key, _)| format!("dagman::{key}"))
            .collect();
        let has_arguments = match &job.arguments {
            Arguments::Raw(text) => !text.trim().is_empty(),
            Arguments::Words(words) | Arguments::Exact(words) => !words.is_empty(),
        };
        let arguments = has_arguments.then(|| "the arguments".to_owned());
        let all: Vec<String> = arguments.into_iter().chain(keys).collect();
        if !all.is_empty() {
            self.warnings.push(format!(
                "the job {}: {} of the job are ignored, since the nodes of its DAG become jobs of this workflow; \
                 write what they need into the DAG",
                job.id,
                all.join(", ")
            ));
        }
    }
}

/// Returns the directory to which paths in the DAG are relative: that of the profile `dagman::dir`, else that
/// of the file.
fn directory(workflow: &Workflow, job: &Job, path: &Path) -> PathBuf {
    named_directory(workflow, job).unwrap_or_else(|| path.parent().unwrap_or(Path::new("/")).to_owned())
}

/// Returns the directory of the profile `dagman::dir`.
pub(super) fn named_directory(workflow: &Workflow, job: &Job) -> Option<PathBuf> {
    let of_workflow = workflow.path.parent().unwrap_or(Path::new("/"));
    let named = job.profiles.get(Namespace::Dagman, "dir").map(str::trim);
    let named = named.filter(|directory| !directory.is_empty())?;
    Some(of_workflow.join(named))
}

/// Makes the inputs of the job inputs of the first and last nodes of its DAG.
fn give_inputs(workflow: &Workflow, job: &Job, part: &mut Workflow) {
    let inputs = job
        .uses
        .iter()
        .filter(|u| u.link.reads() && Some(u.file) != job.file);
    let inputs: Vec<FileUse> = inputs
        .map(|u| FileUse {
            file: part.files.intern(workflow.files.name(u.file)),
            link: Link::Input,
            ..u.clone()
        })
        .collect();
    if inputs.is_empty() {
        return;
    }
    let (mut has_parents, mut has_children) = (vec![false; part.jobs.len()], vec![false; part.jobs.len()]);
    for &(parent, child) in &part.edges {
        has_children[parent] = true;
        has_parents[child] = true;
    }
    for n in JobIndex::first(part.jobs.len()) {
        if !has_parents[n] || !has_children[n] {
            part.jobs[n].uses.extend(inputs.iter().cloned());
        }
    }
}

/// Gives the categories of the DAG names of their own, since those of DAGs are independent.
fn name_categories(job: &Job, part: &mut Workflow) {
    let own = |category: &str| format!("{}.{category}", job.id).to_lowercase();
    for node in &mut part.jobs {
        let category = node.profiles.get(Namespace::Dagman, "category").map(own);
        if let Some(category) = category {
            node.profiles.set(Namespace::Dagman, "category", &category);
        }
    }
    let limits = std::mem::take(&mut part.max_jobs);
    part.max_jobs = limits
        .iter()
        .map(|(category, limit)| (own(category), *limit))
        .collect();
}
