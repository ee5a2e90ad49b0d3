//! Sub-workflows: replaces a sub-workflow job (`pegasusWorkflow`, `<dax>`) by the jobs of its workflow before
//! the refinement, so that all jobs are in one DAG (sections 3.2.7 and 8.25 of the planner's specification).
//! A job that runs a DAG (`condorWorkflow`, `<dag>`) is replaced by the nodes of that: [`dag`].
//!
//! The workflow file must exist at planning time. Options that one plan cannot fulfil are refused: other
//! sites, outputs or properties than those of the outer workflow.

mod dag;
mod merge;
mod options;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::catalog::replica::ReplicaCatalog;
use crate::catalog::site::SiteCatalog;
use crate::catalog::transformation::TransformationCatalog;
use crate::error::{Cause, PlanError, Problem};
use crate::expand::ExpandEnv;
use crate::input::{Embedded, ParsedWorkflow, ReadOptions, read_workflow};
use crate::model::{Job, JobIndex, JobKind, Workflow};
use crate::properties::Properties;
use crate::request::Request;

use super::replicas::Replicas;

/// Maximum depth of nested workflows.
const MAX_DEPTH: usize = 32;
/// Maximum number of sub-workflows. Their number can grow exponentially with the depth.
const MAX_SUBWORKFLOWS: usize = 100_000;

/// What all levels share.
pub(crate) struct OuterWorkflow<'a> {
    pub(crate) request: &'a Request,
    pub(crate) properties: &'a Properties,
    pub(crate) options: &'a ReadOptions,
    /// Variables that workflow files may use, without the directory of the file itself.
    pub(crate) variables: &'a BTreeMap<String, String>,
    /// Name of the variable with that directory.
    pub(crate) directory_variable: &'a str,
}

/// Catalogs, to which those inside sub-workflows are added.
pub(crate) struct Catalogs<'a> {
    pub(crate) sites: &'a SiteCatalog,
    pub(crate) transformations: &'a mut TransformationCatalog,
    pub(crate) replicas: &'a mut Replicas,
}

/// Replaces sub-workflow jobs by their jobs. Returns warnings.
///
/// # Errors
/// All workflows that do not exist or cannot be part of one plan.
pub(crate) fn inline(
    workflow: &mut Workflow,
    outer: &OuterWorkflow<'_>,
    catalogs: Catalogs<'_>,
) -> Result<Vec<String>, PlanError> {
    if workflow.jobs.iter().all(|job| job.kind == JobKind::Compute) {
        return Ok(Vec::new());
    }
    let mut inliner = Inliner {
        outer,
        catalogs,
        problems: Vec::new(),
        warnings: Vec::new(),
        count: 0,
    };
    let mut chain = vec![canonical(&workflow.path)];
    inliner.expand(workflow, &mut chain)?;
    if inliner.problems.is_empty() {
        Ok(inliner.warnings)
    } else {
        Err(PlanError::Refinement(inliner.problems))
    }
}

struct Inliner<'a, 'c> {
    outer: &'a OuterWorkflow<'a>,
    catalogs: Catalogs<'c>,
    problems: Vec<Problem>,
    warnings: Vec<String>,
    count: usize,
}

impl Inliner<'_, '_> {
    /// Replaces the sub-workflow jobs of one workflow. `chain` has the files of the outer workflows and its
    /// own.
    fn expand(&mut self, workflow: &mut Workflow, chain: &mut Vec<PathBuf>) -> Result<(), PlanError> {
        let before = self.problems.len();
        let mut parts = Vec::new();
        for n in 0..workflow.jobs.len() {
            let job = &workflow.jobs[n];
            match job.kind {
                JobKind::Compute => continue,
                JobKind::SubDag => {
                    if let Some(part) = self.dag(workflow, job)? {
                        parts.push((JobIndex::new(n), part));
                    }
                }
                JobKind::SubWorkflow => {
                    if let Some(part) = self.part(workflow, job, chain)? {
                        parts.push((JobIndex::new(n), part));
                    }
                }
            }
        }
        if self.problems.len() == before {
            merge::merge(
                workflow,
                parts,
                self.catalogs.replicas,
                &mut self.warnings,
                &mut self.problems,
            );
        }
        Ok(())
    }

    /// Returns the workflow of a job, with its sub-workflows replaced; `None` after a problem.
    fn part(
        &mut self,
        workflow: &Workflow,
        job: &Job,
        chain: &mut Vec<PathBuf>,
    ) -> Result<Option<Workflow>, PlanError> {
        let before = self.problems.len();
        let own = options::check(
            workflow,
            job,
            self.outer,
            &self.catalogs,
            &mut self.warnings,
            &mut self.problems,
        );
        let Some(path) = self.find(workflow, job) else {
            return Ok(None);
        };
        let file = canonical(&path);
        if chain.contains(&file) {
            self.problems.push(Cause::SubWorkflow.problem(format!(
                "the job {} runs {}, which is the workflow that the job is part of: there would be no end",
                job.id,
                path.display()
            )));
            return Ok(None);
        }
        self.count(job, chain.len())?;
        let env = self.variables(&path);
        let ParsedWorkflow {
            workflow: mut part,
            embedded,
        } = read_workflow(&path, &env, self.outer.options)?;
        self.warnings
            .extend(part.warnings.drain(..).map(|warning| warning.to_string()));
        if !part.hooks.is_empty() || !job.hooks.is_empty() {
            self.warnings.push(hooks_passed_over(job));
        }
        if let Some(own) = own {
            let loaded = options::catalogs(&own, workflow, &part, self.outer, self.catalogs.replicas, &env);
            match loaded {
                Ok(catalogs) => self.add_catalogs(job, catalogs),
                Err(error) => self
                    .problems
                    .push(Cause::SubWorkflow.problem(format!("the job {}: {error}", job.id))),
            }
        }
        self.add_catalogs(job, embedded);
        chain.push(file);
        let expanded = self.expand(&mut part, chain);
        chain.pop();
        expanded?;
        Ok((self.problems.len() == before).then_some(part))
    }

    /// Counts a sub-workflow at a depth.
    fn count(&mut self, job: &Job, depth: usize) -> Result<(), PlanError> {
        self.count += 1;
        if depth > MAX_DEPTH || self.count > MAX_SUBWORKFLOWS {
            return Err(Cause::SubWorkflow.error(format!(
                "the job {}: there are more than {MAX_DEPTH} workflows within each other, or more than {MAX_SUBWORKFLOWS} in all",
                job.id
            )));
        }
        Ok(())
    }

    /// Returns the variables that the workflow file at `path` may use.
    fn variables(&self, path: &Path) -> ExpandEnv {
        let mut variables = self.outer.variables.clone();
        if let Some(directory) = path.parent() {
            let directory = directory.display().to_string();
            variables.insert(self.outer.directory_variable.to_owned(), directory);
        }
        ExpandEnv::new(&variables).with_variables(self.outer.properties.with_prefix("env."))
    }

    /// Finds the workflow file: in the replica catalogs, else next to the outer workflow.
    fn find(&mut self, workflow: &Workflow, job: &Job) -> Option<PathBuf> {
        let file = job.file?;
        let lfn = workflow.files.name(file);
        let maker = workflow
            .jobs
            .iter()
            .find(|other| other.uses.iter().any(|u| u.file == file && u.link.writes()));
        if let Some(maker) = maker {
            self.problems.push(Cause::SubWorkflow.problem(format!(
                "the job {} runs the workflow {lfn}, which the job {} makes only when it runs: plan and run that part \
                 first, and this one when {lfn} is there",
                job.id, maker.id
            )));
            return None;
        }
        let known = self.catalogs.replicas.lookup(lfn).unwrap_or_default();
        let mut paths: Vec<PathBuf> = known
            .replicas
            .iter()
            .map(|replica| replica.pfn.strip_prefix("file://").unwrap_or(&replica.pfn))
            .filter(|path| path.starts_with('/'))
            .map(PathBuf::from)
            .collect();
        let directory = workflow.path.parent().unwrap_or(Path::new("/"));
        paths.push(directory.join(lfn));
        let found = paths.iter().find(|path| path.is_file());
        if found.is_none() {
            let places: Vec<String> = known
                .replicas
                .iter()
                .map(|replica| replica.pfn.clone())
                .chain([directory.join(lfn).display().to_string()])
                .collect();
            self.problems.push(Cause::SubWorkflow.problem(format!(
                "the job {} runs the workflow {lfn}, which must be a file of this machine when the plan is made; it is \
                 not at {}",
                job.id,
                places.join(", ")
            )));
        }
        found.cloned()
    }

    /// Adds the catalogs inside a sub-workflow to those of the plan. They must not contradict each other.
    fn add_catalogs(&mut self, job: &Job, embedded: Embedded) {
        let mut conflict = |what: String| {
            self.problems.push(Cause::SubWorkflow.problem(format!(
                "the job {}: its workflow has {what} than the workflow around it; in one plan there can be one only",
                job.id
            )));
        };
        for (name, site) in embedded.sites.into_iter().flat_map(|catalog| catalog.sites) {
            // Jobs run on the sites of the whole plan only, so that a further site does not matter.
            if self.catalogs.sites.get(&name).is_some_and(|known| *known != site) {
                conflict(format!("another site {name}"));
            }
        }
        if let Some(mut new) = embedded.transformations {
            let known = &*self.catalogs.transformations;
            new.entries.retain(|entry| {
                let same = known
                    .entries
                    .iter()
                    .find(|e| e.name == entry.name && e.site == entry.site);
                if same.is_some_and(|same| same != entry) {
                    conflict(format!(
                        "another program {} for the site {}",
                        entry.name, entry.site
                    ));
                }
                same.is_none()
            });
            new.compounds.retain(|(name, requires)| {
                let same = known.compounds.iter().find(|(n, _)| n == name);
                if same.is_some_and(|(_, other)| other != requires) {
                    conflict(format!("another compound transformation {name}"));
                }
                same.is_none()
            });
            self.catalogs.transformations.extend(new);
        }
        if let Some(new) = embedded.replicas {
            for entry in new.entries() {
                match self.catalogs.replicas.lookup(&entry.lfn) {
                    Some(known) if known.replicas == entry.replicas => {}
                    Some(_) => conflict(format!("another location of the file {}", entry.lfn)),
                    None => {
                        let all = self
                            .catalogs
                            .replicas
                            .embedded
                            .get_or_insert_with(ReplicaCatalog::default);
                        if all.push(entry.clone()).is_err() {
                            conflict(format!("another pattern {}", entry.lfn));
                        }
                    }
                }
            }
        }
    }
}

fn hooks_passed_over(job: &Job) -> String {
    format!(
        "the job {}: the hooks of its workflow as a whole are passed over, since its jobs become jobs of this one; those \
         of its jobs stay",
        job.id
    )
}

/// Returns the canonical path of a file.
fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
