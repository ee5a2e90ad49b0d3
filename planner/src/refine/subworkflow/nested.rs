//! Sub-workflows that are planned when their turn comes.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::input::{is_executor_dag, read_workflow};
use crate::model::{Job, JobIndex, JobKind, Nested, Workflow};
use crate::request::SubworkflowOptions;

use super::super::names::job_name;
use super::super::output_mapper::MAP_FILE;
use super::super::replicas::Replicas;
use super::{Found, Inliner, dag, options};

/// Maximum sub-workflows that a warning names.
const MAX_NAMED: usize = 10;

impl Inliner<'_, '_> {
    /// Prepares a sub-workflow to be nested.
    pub(super) fn nest(
        &mut self,
        workflow: &mut Workflow,
        n: JobIndex,
        reason: &str,
    ) -> Result<(), PlanError> {
        let job = &workflow.jobs[n];
        let Some(found) = self.find(workflow, job) else {
            return Ok(());
        };
        let path = match found {
            Found::Here(path) if self.is_fetched(workflow, job, &path) => None,
            Found::Here(path) => Some(path),
            Found::Later(path) if job.kind == JobKind::SubWorkflow => Some(path),
            Found::Made(_) | Found::Elsewhere | Found::Later(_) => None,
        };
        let nested = match job.kind {
            JobKind::SubDag => self.nest_dag(workflow, job, path),
            _ => self.nest_workflow(workflow, job, path)?,
        };
        workflow.jobs[n].nested = nested.map(|nested| {
            Box::new(Nested {
                reason: reason.to_owned(),
                ..nested
            })
        });
        Ok(())
    }

    /// Returns whether a workflow file is a copy that was fetched from elsewhere for this planner, which may
    /// be gone when the next one runs.
    fn is_fetched(&self, workflow: &Workflow, job: &Job, path: &Path) -> bool {
        let request = self.outer.request;
        let lfn = job.file.map_or("", |file| workflow.files.name(file));
        let is_elsewhere = |pfn: &str| pfn.contains("://") && !pfn.starts_with("file://");
        request.deferred
            && job.kind == JobKind::SubWorkflow
            && path.starts_with(&request.environment.working_dir)
            && self
                .catalogs
                .replicas
                .lookup(lfn)
                .is_some_and(|known| known.replicas.iter().any(|replica| is_elsewhere(&replica.pfn)))
    }

    fn nest_workflow(
        &mut self,
        workflow: &Workflow,
        job: &Job,
        path: Option<PathBuf>,
    ) -> Result<Option<Nested>, PlanError> {
        let Some(mut own) = options::parse(job, self.outer, &mut self.problems) else {
            return Ok(None);
        };
        self.settle_paths(workflow, job, &mut own);
        let (name, base) = match path.as_ref().filter(|path| path.is_file()) {
            Some(path) => {
                let env = self.variables(path);
                let part = read_workflow(path, &env, self.outer.options)?.workflow;
                let base = format!("{}-{}", part.label, part.index);
                (part.label, own.basename.clone().unwrap_or(base))
            }
            None => match own.basename.clone() {
                Some(base) => (base.clone(), base),
                None => {
                    let lfn = job.file.map_or("", |file| workflow.files.name(file));
                    let problem = Diagnostic::error(format!(
                        "the job {}: its workflow {lfn} is not there yet, so that its plan has no name",
                        job.id
                    ));
                    let hint = format!("add the argument --basename NAME to the job {}", job.id);
                    self.problems.push(problem.with_hint(hint));
                    return Ok(None);
                }
            },
        };
        Ok(Some(Nested {
            path,
            name,
            base,
            options: own,
            ..Nested::default()
        }))
    }

    fn nest_dag(&mut self, workflow: &Workflow, job: &Job, path: Option<PathBuf>) -> Option<Nested> {
        let lfn = job.file.map_or("", |file| workflow.files.name(file));
        let stem = Path::new(lfn).file_stem().unwrap_or_default().to_string_lossy();
        let label: String = stem
            .chars()
            .map(|c| {
                if c.is_whitespace() || c.is_control() {
                    '_'
                } else {
                    c
                }
            })
            .collect();
        let Some(path) = path else {
            // Which of the two kinds it is decides about the lines of the DAG.
            self.problems.push(Diagnostic::error(format!(
                "the job {}: its DAG {lfn} must be there when the plan is made",
                job.id
            )));
            return None;
        };
        let is_ready = match is_executor_dag(&path) {
            Ok(is_ready) => is_ready,
            Err(error) => {
                let problem = Diagnostic::error(format!("the job {}: {error}", job.id));
                self.problems.push(problem);
                return None;
            }
        };
        if is_ready && self.outer.runs_dagman {
            self.problems.push(Diagnostic::error(format!(
                "the job {}: its DAG {lfn} is one for pegasus-mpi-cluster, which DAGMan does not run: leave \
                 pegasus.code.generator out, or run it by a job of its own",
                job.id
            )));
            return None;
        }
        Some(Nested {
            is_ready: is_ready || self.outer.runs_dagman,
            base: format!("{label}-0"),
            name: label,
            directory: dag::named_directory(workflow, job),
            path: Some(path),
            ..Nested::default()
        })
    }

    /// Makes the paths in options absolute. Files that will be in the work directory keep their names, since
    /// the planner works there.
    fn settle_paths(&self, workflow: &Workflow, job: &Job, own: &mut SubworkflowOptions) {
        let here = &self.outer.request.environment.working_dir;
        let replicas = &*self.catalogs.replicas;
        let settle = |path: &mut PathBuf| {
            if !comes_to_work_directory(path, workflow, job, replicas) {
                *path = options::locate(path, workflow, replicas, here);
            }
        };
        own.conf.iter_mut().for_each(settle);
        let lists = [
            &mut own.cache,
            &mut own.inherited,
            &mut own.input_dirs,
            &mut own.reuse,
        ];
        for path in lists.into_iter().flatten() {
            settle(path);
        }
        own.transformations_dir.iter_mut().for_each(settle);
        for define in &mut own.defines {
            let named = define
                .split_once('=')
                .filter(|(key, file)| names_file(key) && !file.trim().is_empty());
            let Some((key, file)) = named else { continue };
            let mut path = PathBuf::from(file.trim());
            settle(&mut path);
            if path.exists() {
                *define = format!("{key}={}", path.display());
            }
        }
        if let Some(directory) = &mut own.output_dir {
            *directory = here.join(&*directory).display().to_string();
        }
    }
}

/// Returns whether a property of a sub-workflow names a file that its planner reads.
fn names_file(key: &str) -> bool {
    key == MAP_FILE
        || options::CATALOGS
            .iter()
            .any(|catalog| key.strip_prefix(catalog) == Some(".file"))
}

/// Returns whether a file is an input of the job that another job makes or that is on another machine.
fn comes_to_work_directory(path: &Path, workflow: &Workflow, job: &Job, replicas: &Replicas) -> bool {
    let name = path.to_string_lossy();
    let Some(file) = workflow.files.find(&name) else {
        return false;
    };
    if !job.uses.iter().any(|u| u.file == file && u.link.reads()) {
        return false;
    }
    let mut others = workflow.jobs.iter().flat_map(|job| &job.uses);
    others.any(|u| u.file == file && u.link.writes())
        || replicas.lookup(&name).is_some_and(|known| {
            let is_path = |pfn: &str| pfn.strip_prefix("file://").unwrap_or(pfn).starts_with('/');
            !known.replicas.iter().any(|replica| is_path(&replica.pfn))
        })
}

/// Adds the sub-workflows that depend on nested ones, and those on which nested ones depend: the later ones
/// may read any file of the earlier ones, through their cache files.
pub(super) fn spread(workflow: &Workflow, nested: &mut BTreeMap<JobIndex, String>) {
    let is_part = |n: JobIndex| workflow.jobs[n].kind == JobKind::SubWorkflow;
    let mut neighbours: FxHashMap<JobIndex, Vec<JobIndex>> = FxHashMap::default();
    for &(parent, child) in workflow.edges.iter().filter(|(p, c)| is_part(*p) && is_part(*c)) {
        neighbours.entry(parent).or_default().push(child);
        neighbours.entry(child).or_default().push(parent);
    }
    let mut waiting: Vec<JobIndex> = nested.keys().copied().filter(|&n| is_part(n)).collect();
    while let Some(n) = waiting.pop() {
        for &other in neighbours.get(&n).into_iter().flatten() {
            if let Entry::Vacant(new) = nested.entry(other) {
                let id = &workflow.jobs[n].id;
                new.insert(format!("it may share files with the nested {id}"));
                waiting.push(other);
            }
        }
    }
}

/// Gives the nested sub-workflows the names of their directories: the base name of a plan whose workflow is
/// not there yet, else label and id.
pub(super) fn name(workflow: &mut Workflow) {
    let mut names: FxHashSet<String> = FxHashSet::default();
    for job in &mut workflow.jobs {
        let Some(nested) = &mut job.nested else { continue };
        let with_id = |name: &str| job_name("", name, &job.id).into_string();
        let mut name = match &nested.path {
            Some(_) => with_id(&nested.name),
            None => nested.name.clone(),
        };
        while names.contains(&name) {
            name = with_id(&name);
        }
        names.insert(name.clone());
        nested.name = name;
    }
}

/// Says which sub-workflows are nested although the user has not asked for it, and why.
pub(super) fn describe(workflow: &Workflow) -> Option<String> {
    let mut all: Vec<String> = Vec::new();
    let mut more = 0;
    for job in &workflow.jobs {
        match job.nested.as_deref() {
            Some(nested) if !nested.reason.is_empty() && all.len() == MAX_NAMED => more += 1,
            Some(nested) if !nested.reason.is_empty() => all.push(format!("{} ({})", job.id, nested.reason)),
            _ => {}
        }
    }
    let list = all.join(", ");
    let more = if more > 0 {
        format!(", and {more} more")
    } else {
        String::new()
    };
    let what = if all.len() == 1 {
        "this sub-workflow is"
    } else {
        "these sub-workflows are"
    };
    (!all.is_empty()).then(|| format!("{what} planned during the run: {list}{more}"))
}
