//! Sub-workflows. Before the refinement, a job that stands for a workflow (`pegasusWorkflow`, `<dax>`) is
//! replaced by the jobs of that workflow, and a job that runs a DAG (`condorWorkflow`, `<dag>`) by its nodes
//! ([`dag`]), so that all jobs are in one DAG. Where that cannot be, or would change the results, the job
//! stays: its workflow is *nested*, which means planned when its turn comes ([`nested`]).
//! `pegasus.subworkflow` can ask for one or the other.
//!
//! Why there are both: planning during the run takes a tenth more time (`docs/performance.md`), and a shell
//! script needs all jobs in one plan. One plan also shows the problems of all levels before the run.
//! DAGMan runs sub-workflows of its own unless the user asks for one DAG.

mod dag;
mod merge;
mod nested;
mod options;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::catalog::replica::ReplicaCatalog;
use crate::catalog::site::SiteCatalog;
use crate::catalog::transformation::TransformationCatalog;
use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::expand::ExpandEnv;
use crate::ids::Id as _;
use crate::input::{Embedded, ParsedWorkflow, ReadOptions, read_workflow};
use crate::model::{Job, JobIndex, JobKind, Workflow};
use crate::properties::Properties;
use crate::request::Request;

use super::names::job_name;
use super::replicas::{Replicas, missing_text};
use super::settings::Subworkflows;

/// Maximum depth of workflows within each other.
pub(crate) const MAX_DEPTH: usize = 32;
/// Maximum number of sub-workflows. Their number can grow exponentially with the depth.
const MAX_SUBWORKFLOWS: usize = 100_000;

/// What all levels share.
pub(crate) struct OuterWorkflow<'a> {
    pub(crate) request: &'a Request,
    pub(crate) properties: &'a Properties,
    /// What becomes of sub-workflows.
    pub(crate) mode: Subworkflows,
    /// DAGMan runs DAGs as they are.
    pub(crate) runs_dagman: bool,
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

/// Replaces sub-workflow jobs by their jobs, or prepares them to be nested. Returns warnings.
///
/// # Errors
/// All workflows that do not exist or can neither be part of the plan nor be nested.
pub(crate) fn settle(
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
        differences: Vec::new(),
        warnings: Vec::new(),
        count: 0,
    };
    let mut chain = vec![canonical(&workflow.path)];
    inliner.expand(workflow, &mut chain)?;
    if !inliner.problems.is_empty() {
        return Err(PlanError::Refinement(inliner.problems));
    }
    nested::name(workflow);
    let mut warnings = inliner.warnings;
    warnings.extend(nested::describe(workflow));
    Ok(warnings)
}

/// Why a sub-workflow cannot be part of the plan, although it can be nested.
struct Difference {
    /// In a few words.
    reason: String,
    /// The problem that it is if it must be part of the plan.
    problem: Diagnostic,
}

impl Difference {
    fn new(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Difference {
            reason: reason.into(),
            problem: Diagnostic::error(message.into()),
        }
    }
}

/// What becomes of a sub-workflow.
enum Fate {
    /// Its jobs become part of the plan.
    Inlined(Box<Workflow>),
    /// It is nested, for this reason.
    Nested(String),
    /// There is a problem.
    Refused,
}

/// Where a workflow file is.
enum Found {
    /// On this machine.
    Here(PathBuf),
    /// It will be: this job makes it.
    Made(String),
    /// In a catalog, but not on this machine.
    Elsewhere,
    /// It will be here, where a catalog says: a job before it writes it without declaring that.
    Later(PathBuf),
}

struct Inliner<'a, 'c> {
    outer: &'a OuterWorkflow<'a>,
    catalogs: Catalogs<'c>,
    problems: Vec<Diagnostic>,
    /// Of the sub-workflow that is being looked at.
    differences: Vec<Difference>,
    warnings: Vec<String>,
    count: usize,
}

impl Inliner<'_, '_> {
    /// Settles the sub-workflow jobs of one workflow. `chain` has the files of the outer workflows and its
    /// own.
    fn expand(&mut self, workflow: &mut Workflow, chain: &mut Vec<PathBuf>) -> Result<(), PlanError> {
        let before = self.problems.len();
        let mut parts = Vec::new();
        let mut nested = BTreeMap::new();
        for n in JobIndex::first(workflow.jobs.len()) {
            let job = &workflow.jobs[n];
            if job.kind == JobKind::Compute || job.nested.is_some() {
                continue;
            }
            match self.choose(workflow, job, chain)? {
                Fate::Inlined(part) => parts.push((n, *part)),
                Fate::Nested(reason) => {
                    nested.insert(n, reason);
                }
                Fate::Refused => {}
            }
        }
        if self.problems.len() > before {
            return Ok(());
        }
        self.join(workflow, parts, nested)
    }

    /// Merges the parts into the workflow and prepares the other sub-workflows.
    fn join(
        &mut self,
        workflow: &mut Workflow,
        mut parts: Vec<(JobIndex, Workflow)>,
        mut nested: BTreeMap<JobIndex, String>,
    ) -> Result<(), PlanError> {
        let is_auto = self.outer.mode == Subworkflows::Auto;
        loop {
            if is_auto {
                nested::spread(workflow, &mut nested);
                parts.retain(|(n, _)| !nested.contains_key(n));
            }
            // Merging cannot be undone.
            let before =
                (is_auto && merge::may_conflict(workflow, &parts)).then(|| (workflow.clone(), parts.clone()));
            for (&n, reason) in &nested {
                self.nest(workflow, n, reason)?;
            }
            let warnings = self.warnings.len();
            let conflicts = merge::merge(workflow, parts, self.catalogs.replicas, &mut self.warnings);
            match before {
                Some(before) if !conflicts.is_empty() => {
                    self.warnings.truncate(warnings);
                    (*workflow, parts) = before;
                    for conflict in conflicts {
                        for n in conflict.parts {
                            nested.entry(n).or_insert_with(|| conflict.reason.clone());
                        }
                    }
                }
                _ => {
                    self.problems
                        .extend(conflicts.into_iter().map(|conflict| conflict.problem));
                    return Ok(());
                }
            }
        }
    }

    /// Decides what becomes of a sub-workflow.
    fn choose(
        &mut self,
        workflow: &Workflow,
        job: &Job,
        chain: &mut Vec<PathBuf>,
    ) -> Result<Fate, PlanError> {
        let Some(found) = self.find(workflow, job) else {
            return Ok(Fate::Refused);
        };
        let mode = self.outer.mode;
        let path = match found {
            Found::Here(path) if mode != Subworkflows::Nested => path,
            Found::Here(path) if !self.is_around(job, &path, chain) => {
                return Ok(Fate::Nested(String::new()));
            }
            Found::Here(_) => return Ok(Fate::Refused),
            _ if mode != Subworkflows::Inline => {
                return Ok(Fate::Nested(match found {
                    Found::Made(maker) if mode == Subworkflows::Auto => {
                        format!("the job {maker} makes its file")
                    }
                    Found::Later(_) if mode == Subworkflows::Auto => "its file is not there yet".to_owned(),
                    _ if mode == Subworkflows::Auto => "its file is not on this machine".to_owned(),
                    _ => String::new(),
                }));
            }
            found => {
                self.problems.push(not_here(workflow, job, &found));
                return Ok(Fate::Refused);
            }
        };
        let outer = std::mem::take(&mut self.differences);
        let (problems, warnings) = (self.problems.len(), self.warnings.len());
        let part = match job.kind {
            JobKind::SubDag => self.dag(workflow, job, &path)?,
            _ => self.part(workflow, job, &path, chain)?,
        };
        let differences = std::mem::replace(&mut self.differences, outer);
        if self.problems.len() > problems {
            return Ok(Fate::Refused);
        }
        match (part, differences.first()) {
            (Some(part), None) => Ok(Fate::Inlined(Box::new(part))),
            (_, Some(first)) if mode == Subworkflows::Auto => {
                self.warnings.truncate(warnings);
                Ok(Fate::Nested(first.reason.clone()))
            }
            _ => {
                let all = differences.into_iter().map(|difference| difference.problem);
                self.problems.extend(all);
                Ok(Fate::Refused)
            }
        }
    }

    /// Returns the workflow of a job, with its sub-workflows settled; `None` after a problem or a difference.
    fn part(
        &mut self,
        workflow: &Workflow,
        job: &Job,
        path: &Path,
        chain: &mut Vec<PathBuf>,
    ) -> Result<Option<Workflow>, PlanError> {
        let before = self.problems.len();
        let own = options::check(
            workflow,
            job,
            self.outer,
            &self.catalogs,
            options::Findings {
                warnings: &mut self.warnings,
                problems: &mut self.problems,
                differences: &mut self.differences,
            },
        );
        if self.is_around(job, path, chain) || !self.differences.is_empty() {
            return Ok(None);
        }
        self.count(job, chain.len())?;
        let env = self.variables(path);
        let ParsedWorkflow {
            workflow: mut part,
            embedded,
        } = read_workflow(path, &env, self.outer.options)?;
        self.warnings
            .extend(part.warnings.drain(..).map(|warning| warning.to_string()));
        if !part.hooks.is_empty() || !job.hooks.is_empty() {
            self.warnings.push(hooks_ignored(job));
        }
        if let Some(own) = own {
            let loaded = options::catalogs(&own, workflow, &part, self.outer, self.catalogs.replicas, &env);
            match loaded {
                Ok(catalogs) => self.add_catalogs(job, catalogs),
                Err(error) => self
                    .problems
                    .push(Diagnostic::error(format!("the job {}: {error}", job.id))),
            }
        }
        self.add_catalogs(job, embedded);
        if !self.differences.is_empty() {
            return Ok(None);
        }
        chain.push(canonical(path));
        let expanded = self.expand(&mut part, chain);
        chain.pop();
        expanded?;
        Ok((self.problems.len() == before).then_some(part))
    }

    /// Reports a workflow that is around the job for it.
    fn is_around(&mut self, job: &Job, path: &Path, chain: &[PathBuf]) -> bool {
        let is_around = chain.contains(&canonical(path));
        if is_around {
            self.problems.push(Diagnostic::error(format!(
                "the job {} runs {}, which is the workflow that the job is part of: there would be no end",
                job.id,
                path.display()
            )));
        }
        is_around
    }

    /// Counts a sub-workflow at a depth.
    fn count(&mut self, job: &Job, depth: usize) -> Result<(), PlanError> {
        self.count += 1;
        if depth > MAX_DEPTH || self.count > MAX_SUBWORKFLOWS {
            return Err(PlanError::refinement(format!(
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
        ExpandEnv::new(&variables)
            .with_variables(self.outer.properties.with_prefix("env."))
            .keeping_unknown(self.outer.request.environment.is_of_other)
    }

    /// Finds the workflow file: among the outputs of jobs, in the replica catalogs, next to the outer
    /// workflow. `None` after a problem.
    fn find(&mut self, workflow: &Workflow, job: &Job) -> Option<Found> {
        let file = job.file?;
        let lfn = workflow.files.name(file);
        let missing = |hint: String| {
            let name = nested_name(self.outer.request, job);
            missing_text(lfn, &name, 0, Some(&hint))
        };
        // As in Pegasus, which asks the replica catalog for the files in `uses` only.
        let is_listed = job.uses.iter().any(|u| u.file == file && u.link.reads());
        if !is_listed && !self.catalogs.replicas.knows_without_catalog(lfn) {
            let problem = missing(format!(
                "list {lfn} under the inputs in the uses of the job {}",
                job.id
            ));
            self.problems.push(problem);
            return None;
        }
        let maker = workflow
            .jobs
            .iter()
            .find(|other| other.uses.iter().any(|u| u.file == file && u.link.writes()));
        if let Some(maker) = maker {
            return Some(Found::Made(maker.id.clone()));
        }
        let known = self.catalogs.replicas.lookup(lfn).unwrap_or_default();
        let mut paths: Vec<PathBuf> = known
            .replicas
            .iter()
            .map(|replica| replica.pfn.strip_prefix("file://").unwrap_or(&replica.pfn))
            .filter(|path| path.starts_with('/'))
            .map(PathBuf::from)
            .collect();
        let is_elsewhere = paths.len() < known.replicas.len();
        let named = paths.first().cloned();
        let directory = workflow.path.parent().unwrap_or(Path::new("/"));
        paths.push(directory.join(lfn));
        let found = paths.iter().find(|path| path.is_file());
        match found {
            Some(path) => Some(Found::Here(path.clone())),
            None if is_elsewhere => Some(Found::Elsewhere),
            None if named.is_some() && has_parent(workflow, job) => named.map(Found::Later),
            None => {
                let places: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
                let problem = missing(format!(
                    "the workflow of the job {} must be an output of another job, or a file that is there when the plan is \
                     made; it is not at {}",
                    job.id,
                    places.join(", ")
                ));
                self.problems.push(problem);
                None
            }
        }
    }

    /// Adds the catalogs inside a sub-workflow to those of the plan. They must not contradict each other.
    fn add_catalogs(&mut self, job: &Job, embedded: Embedded) {
        let before = self.differences.len();
        let mut conflict = |what: String| {
            self.differences.push(Difference::new(
                format!("it has {what}"),
                format!(
                    "the job {}: its workflow has {what} than the workflow around it; in one plan there can be one only",
                    job.id
                ),
            ));
        };
        for (name, site) in embedded.sites.iter().flat_map(|catalog| &catalog.sites) {
            // Jobs run on the sites of the whole plan only, so that a further site does not matter.
            if self.catalogs.sites.get(name).is_some_and(|known| known != site) {
                conflict(format!("another site {name}"));
            }
        }
        let known = &*self.catalogs.transformations;
        let mut programs = embedded.transformations.unwrap_or_default();
        programs.entries.retain(|entry| {
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
        programs.compounds.retain(|(name, requires)| {
            let same = known.compounds.iter().find(|(n, _)| n == name);
            if same.is_some_and(|(_, other)| other != requires) {
                conflict(format!("another compound transformation {name}"));
            }
            same.is_none()
        });
        let mut replicas = Vec::new();
        for entry in embedded.replicas.iter().flat_map(ReplicaCatalog::entries) {
            match self.catalogs.replicas.lookup(&entry.lfn) {
                Some(known) if known.replicas == entry.replicas => {}
                Some(_) => conflict(format!("another location of the file {}", entry.lfn)),
                None => replicas.push(entry.clone()),
            }
        }
        if self.differences.len() > before {
            return;
        }
        self.catalogs.transformations.extend(programs);
        for entry in replicas {
            let lfn = entry.lfn.clone();
            let all = self
                .catalogs
                .replicas
                .embedded
                .get_or_insert_with(ReplicaCatalog::default);
            if all.push(entry).is_err() {
                self.differences.push(Difference::new(
                    format!("it has another pattern {lfn}"),
                    format!(
                        "the job {}: its workflow has another pattern {lfn} than the workflow around it",
                        job.id
                    ),
                ));
            }
        }
    }
}

/// Returns whether another job runs before a job.
fn has_parent(workflow: &Workflow, job: &Job) -> bool {
    let is_child = |&(_, child): &(_, JobIndex)| workflow.jobs[child].id == job.id;
    workflow.edges.iter().any(is_child)
}

/// Returns the name that the job of a nested sub-workflow has in the plan.
fn nested_name(request: &Request, job: &Job) -> Box<str> {
    let prefix = request.job_prefix.as_deref().unwrap_or_default();
    job_name(prefix, &job.transformation.name, &job.id)
}

/// Returns the problem of a workflow file that is not there yet, if all must be part of the plan.
fn not_here(workflow: &Workflow, job: &Job, found: &Found) -> Diagnostic {
    let lfn = job.file.map_or("", |file| workflow.files.name(file));
    let problem = Diagnostic::error(match found {
        Found::Made(maker) => format!(
            "the job {} runs the workflow {lfn}, which the job {maker} makes only when it runs, so it cannot be part of the \
             plan",
            job.id
        ),
        _ => format!(
            "the job {} runs the workflow {lfn}, which is not on this machine, so it cannot be part of the plan",
            job.id
        ),
    });
    problem.with_hint("set the property pegasus.subworkflow to auto or nested")
}

fn hooks_ignored(job: &Job) -> String {
    format!(
        "the job {}: the hooks of its workflow as a whole are ignored, since its jobs become jobs of this one; those \
         of its jobs stay",
        job.id
    )
}

/// Returns the canonical path of a file.
fn canonical(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}
