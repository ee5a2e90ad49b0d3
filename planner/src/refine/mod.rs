//! Refinement: from the abstract to the executable workflow.
//!
//! Each step is a function over [`Refinement`], linear in jobs, edges and file uses. [`STEPS`] lists them in
//! order.

pub(crate) mod cleanup;
pub(crate) mod cluster;
pub(crate) mod directories;
pub(crate) mod files;
pub(crate) mod java_hash_order;
pub(crate) mod mapping;
pub(crate) mod names;
pub(crate) mod output_mapper;
pub(crate) mod programs;
pub(crate) mod reduce;
pub(crate) mod replicas;
pub(crate) mod reuse;
pub(crate) mod select;
pub(crate) mod settings;
pub(crate) mod sites;
#[cfg(test)]
mod small_workflow;
pub(crate) mod staging_sites;
pub(crate) mod subworkflow;
pub(crate) mod transfer;

use crate::diagnostic::Diagnostic;
use crate::error::PlanError;
use crate::exec::{Exec, ExecJob, SiteId, Task};
use crate::graph::Graph;
use crate::model::{JobIndex, JobKind, TransferFlag, Workflow};

use mapping::{Mapped, Mapper};
use replicas::Replicas;
use reuse::Reduced;

/// What the steps read and extend.
pub(crate) struct Refinement<'r, 'm> {
    workflow: &'r mut Workflow,
    /// Sites, programs and settings.
    mapper: &'r mut Mapper<'m>,
    replicas: &'r Replicas,
    /// Decisions that `-v` prints.
    notes: &'r mut Vec<String>,
    /// The executable workflow, as far as it is built.
    exec: Exec,
    /// Dependencies of the abstract workflow, until the transfers are added.
    graph: Graph<JobIndex>,
    reduced: Reduced,
    mapped: Mapped,
    /// Sites on which the plan makes a work directory.
    work_sites: Vec<SiteId>,
    /// The work directories hold nothing at the end that has to stay.
    removes_directories: bool,
}

/// One step of the refinement.
type Step = fn(&mut Refinement<'_, '_>) -> Result<(), PlanError>;

/// The steps in order, each with its name for measurements.
const STEPS: &[(&str, Step)] = &[
    ("data reuse", reuse::remove_finished_jobs),
    ("sites, programs", mapping::map_jobs),
    ("clustering", cluster::cluster_jobs),
    ("transfers", transfer::add_transfers),
    ("create-dir", directories::create_directories),
    ("clean-up", cleanup::add_cleanup),
    ("remove-dir", directories::remove_directories),
    ("edges, names", finish),
];

/// Refines a workflow. `step` is called with the name of each step when it ends.
///
/// # Errors
/// What cannot be mapped, and inputs without a location.
pub(crate) fn refine(
    workflow: &mut Workflow,
    mapper: &mut Mapper<'_>,
    replicas: &Replicas,
    notes: &mut Vec<String>,
    step: &mut dyn FnMut(&'static str),
) -> Result<Exec, PlanError> {
    let mut refinement = Refinement {
        graph: Graph::new(workflow.jobs.len(), &workflow.edges),
        workflow,
        mapper,
        replicas,
        notes,
        exec: Exec::default(),
        reduced: Reduced::default(),
        mapped: Mapped::default(),
        work_sites: Vec::new(),
        removes_directories: false,
    };
    for (name, run) in STEPS {
        run(&mut refinement)?;
        step(name);
    }
    let mut exec = refinement.exec;
    for (job, uses) in exec.changed.drain() {
        refinement.workflow.jobs[job].uses = uses;
    }
    Ok(exec)
}

/// Adds a job to an empty plan, tidies the edges and checks the names.
fn finish(refinement: &mut Refinement<'_, '_>) -> Result<(), PlanError> {
    let Refinement {
        workflow,
        mapper,
        exec,
        notes,
        ..
    } = refinement;
    if exec.jobs.is_empty() {
        let site = mapper
            .sites
            .candidates
            .first()
            .copied()
            .unwrap_or(mapper.sites.local());
        let setup = mapper.auxiliary_setup(Task::NoOp, site, exec);
        exec.add(ExecJob {
            name: format!("noop_{}_{}", workflow.label, workflow.index).into(),
            task: Task::NoOp,
            site,
            staging: site,
            setup,
        });
        let mut outputs = workflow
            .jobs
            .iter()
            .flat_map(|job| &job.uses)
            .filter(|u| u.link.writes());
        match !workflow.jobs.is_empty() && outputs.all(|u| u.transfer == TransferFlag::Not) {
            true => exec.warnings.push(
                "no job runs, since no output of the workflow is to be kept: give at least one the flag stageOut: \
                 true, or plan with --force"
                    .into(),
            ),
            false => notes.push("nothing is left to do: every output exists already".into()),
        }
    }
    exec.tidy_edges();
    check_names(exec)
}

/// Returns further problems of a plan whose sites cannot be found. `programs` come with the names of the
/// sites.
pub(crate) fn further_problems(
    workflow: &Workflow,
    programs: Option<(&programs::Programs<'_>, &[&str])>,
    replicas: &Replicas,
    scope: settings::ReuseScope,
    prefix: &str,
) -> Vec<Diagnostic> {
    let graph = Graph::new(workflow.jobs.len(), &workflow.edges);
    let order = graph.order().unwrap_or_default();
    let reduced = reuse::reduce(workflow, &graph, &order, workflow.edges.clone(), replicas, scope);
    let mut problems = Vec::new();
    if let Some((programs, sites)) = programs {
        let mut seen = rustc_hash::FxHashSet::default();
        for (job, _) in workflow.jobs.iter().zip(&reduced.kept).filter(|(_, kept)| **kept) {
            let is_known = job.kind != JobKind::Compute
                || sites::selection::named_program(job).is_some()
                || programs.knows(&job.transformation);
            if !is_known && seen.insert(&job.transformation) {
                problems.push(Diagnostic::error(programs.missing(&job.transformation, sites)));
            }
        }
    }
    problems.extend(replicas::missing(workflow, &reduced.kept, replicas, prefix));
    problems
}

/// Refuses two jobs with the same name: they would be one task of the DAG.
fn check_names(exec: &Exec) -> Result<(), PlanError> {
    let jobs = || exec.jobs.iter().chain(&exec.members);
    let mut names = rustc_hash::FxHashSet::default();
    names.reserve(exec.jobs.len() + exec.members.len());
    let twice = jobs()
        .filter(|job| !names.insert(&*job.name))
        .take(20)
        .map(|job| {
            Diagnostic::error(format!(
                "two jobs have the name {}: give one of them another id",
                job.name
            ))
        });
    PlanError::check(twice.collect())
}
