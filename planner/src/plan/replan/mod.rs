//! Plans again in a submit directory, and keeps what has not changed.

mod decision;
mod earlier;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use monitord_compat::replacement;
use monitord_compat::run_lock::{DagGuard, DagLockError, lock_dag};
use pmc_dag::{Dag, DagError, rescue};
use rustc_hash::FxHashMap;

use super::Planned;
use super::build::build;
use super::inputs::Inputs;
use crate::error::PlanError;
use crate::exec::{JobId, Task};
use crate::fingerprint::{Facts, FingerprintError, Fingerprints, TaskPrint};
use crate::output::common::private_files::put;
use crate::output::common::submit_dir::SubmitDir;
use crate::request::Request;
use crate::tasks::Plan;
use decision::{Decision, decide};

/// Files of a monitoring database that belong to the old plan. The next loader makes a new one of the logs.
const DATABASE: [&str; 4] = ["", "-wal", "-shm", "-journal"];
/// Maximum names in a message.
const MAX_NAMED: usize = 5;

/// What to do with the tasks of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplanOptions {
    /// Take changes of workflow, catalogs, properties, programs and inputs.
    pub take_changes: bool,
    /// Jobs to run again: names in the DAG, or ids in the workflow.
    pub rerun: Vec<String>,
    /// Also run again what depends on these jobs.
    pub with_dependents: bool,
}

/// A plan that replaced another one.
#[derive(Clone, Debug)]
pub struct Replanned {
    /// The new plan.
    pub planned: Planned,
    /// Tasks that stay done.
    pub kept: usize,
    /// Tasks that were done and run again, in the order of the DAG.
    pub again: Vec<String>,
    /// Tasks that the old plan did not have.
    pub added: usize,
    /// Tasks of the old plan that the new one does not have.
    pub removed: usize,
}

/// Why a plan was not replaced.
#[derive(Debug, thiserror::Error)]
pub enum ReplanError {
    /// A run is active.
    #[error("{}: a run is active: plan again when it has ended", dir.display())]
    Active {
        /// Submit directory.
        dir: PathBuf,
    },
    /// The DAG is not locked for another reason.
    #[error("{}: {source}", dag.display())]
    Lock {
        /// DAG.
        dag: PathBuf,
        /// Why.
        source: DagLockError,
    },
    /// The old plan has no fingerprints, or they cannot be read.
    #[error(transparent)]
    Fingerprints(#[from] FingerprintError),
    /// The old DAG cannot be read.
    #[error("cannot use the DAG {}: {source}", path.display())]
    Dag {
        /// DAG.
        path: PathBuf,
        /// Why.
        source: DagError,
    },
    /// The rescue file cannot be read.
    #[error("cannot use the rescue file {}: {source}", path.display())]
    Rescue {
        /// Rescue file.
        path: PathBuf,
        /// Why.
        source: rescue::RescueError,
    },
    /// A job to run again is not in the plan.
    #[error("there is no job {name} in the plan")]
    UnknownJob {
        /// Job.
        name: String,
    },
    /// The plan would be another one, but only jobs were to run again.
    #[error("workflow, catalogs or properties have changed, so that the plan would be another one: {}", .tasks.join(", "))]
    PlanChanged {
        /// Names of some tasks that differ.
        tasks: Vec<String>,
    },
    /// Planning failed.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The new plan cannot be put in its place.
    #[error("cannot replace the plan in {}: {source}", dir.display())]
    Replace {
        /// Submit directory.
        dir: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// The plan to be replaced.
struct OldPlan {
    prints: Fingerprints,
    done: BTreeSet<Box<[u8]>>,
}

impl OldPlan {
    fn read(path: &Path) -> Result<Self, ReplanError> {
        let prints = Fingerprints::read(path)?;
        // Planning again is the remedy for a DAG that was cut off.
        let (dag, _) = Dag::open_incomplete(path).map_err(|source| ReplanError::Dag {
            path: path.to_owned(),
            source,
        })?;
        let path = rescue_path(path);
        let done = rescue::read(&path, &dag).map_err(|source| ReplanError::Rescue { path, source })?;
        let done = done.ids().map(|task| dag.name(task).into()).collect();
        Ok(OldPlan { prints, done })
    }
}

/// Puts a new plan in its place if that was interrupted.
///
/// # Errors
/// The DAG is locked, or the new plan cannot be put in its place.
pub fn finish_replacement(dir: &Path, dag: &Path) -> Result<(), ReplanError> {
    match replacement::is_pending(dir) {
        true => lock(dir, dag).map(drop),
        false => Ok(()),
    }
}

fn lock(dir: &Path, dag: &Path) -> Result<DagGuard, ReplanError> {
    lock_dag(dag).map_err(|source| match source {
        DagLockError::Held(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => {
            ReplanError::Active { dir: dir.to_owned() }
        }
        source => ReplanError::Lock {
            dag: dag.to_owned(),
            source,
        },
    })
}

/// Plans again in the submit directory `dir` with the DAG `dag`, and replaces the plan there. Tasks that are
/// done and unchanged stay done.
///
/// # Errors
/// Everything that prevents a plan, an active run, a directory without fingerprints. The old plan stays.
pub fn replan(
    request: &Request,
    dir: &Path,
    dag: &Path,
    options: &ReplanOptions,
) -> Result<Replanned, ReplanError> {
    // Until the new plan is in its place, no run may begin.
    let _lock = lock(dir, dag)?;
    let old = OldPlan::read(dag)?;
    let mut request = request.clone();
    request.pictures.clear();
    request.runs_here = !old.prints.facts.cluster;
    if old.prints.facts.reused == 0 {
        // Outputs that this run itself has registered must not make its jobs superfluous.
        request.force = true;
    }
    let inputs = Inputs::read(&request)?;
    let directory = SubmitDir::replacing(dir)?;
    let plan = build(&request, inputs, dir, &mut |_| {})?;
    let mut outcome = Err(None);
    let planned = plan.write_and(directory, &mut |plan, staging| {
        outcome = complete(plan, staging, (&old, dag), options).map_err(Some);
        match &outcome {
            Ok(_) => Ok(()),
            // The outcome has the error; this one is not shown.
            Err(_) => Err(PlanError::refinement("the plan is not replaced")),
        }
    });
    let (planned, summary) = match (planned, outcome) {
        (_, Err(Some(error))) => return Err(error),
        (Err(error), _) => return Err(error.into()),
        (Ok(planned), Ok(summary)) => (planned, summary),
        (Ok(_), Err(None)) => return Err(PlanError::refinement("the plan is not complete").into()),
    };
    let stem = dag.file_stem().unwrap_or_default().to_string_lossy();
    let obsolete = DATABASE.map(|suffix| format!("{stem}.stampede.db{suffix}"));
    let failed = |source| ReplanError::Replace {
        dir: dir.to_owned(),
        source,
    };
    replacement::commit(dir, &obsolete.each_ref().map(String::as_str)).map_err(failed)?;
    replacement::finish(dir, dag.file_name().unwrap_or_default()).map_err(failed)?;
    Ok(Replanned {
        planned,
        kept: summary.kept,
        again: summary.again,
        added: summary.added,
        removed: summary.removed,
    })
}

struct Summary {
    kept: usize,
    again: Vec<String>,
    added: usize,
    removed: usize,
}

/// Adds to a new plan in `staging`: the rescue file with the tasks that stay done, edges that order the
/// others, and fingerprints.
fn complete(
    plan: &Plan<'_>,
    staging: &Path,
    (old, old_dag): (&OldPlan, &Path),
    options: &ReplanOptions,
) -> Result<Summary, ReplanError> {
    let dag = staging.join(format!("{}.dag", plan.base));
    let mut prints = Fingerprints::read(&dag)?;
    let before = old.prints.by_name();
    let forced = forced(plan, &options.rerun)?;
    if !options.take_changes {
        refuse_changes(&prints, &before)?;
    }
    let is_done = |name: &str| old.done.contains(name.as_bytes());
    let mut same = vec![false; plan.exec.jobs.len()];
    for (task, &job) in prints.tasks.iter().zip(&plan.order) {
        same[job] = is_done(&task.name)
            && before
                .get(&*task.name)
                .is_some_and(|other| !options.take_changes || is_same((&prints, task), (&old.prints, other)));
    }
    let decision = decide(plan, &same, &forced, options.with_dependents);
    if !options.take_changes {
        keep_versions(plan, &mut prints, &old.prints, &decision);
    }
    prints.facts = Facts {
        reused: old.prints.facts.reused.max(prints.facts.reused),
        ..prints.facts
    };
    prints.write(&dag)?;
    write_rescue(plan, &dag, &decision)?;
    append_edges(plan, &dag, &decision)?;
    let names = prints.by_name();
    let earlier = earlier::jobs_in_log(old_dag, |name| names.contains_key(name))?;
    earlier::keep(&earlier, &dag, &old_dag.with_extension("static.bp"))?;
    let order = plan.order.iter();
    Ok(Summary {
        kept: decision.keep.iter().filter(|keep| **keep).count(),
        again: order
            .map(|&job| (job, &*plan.job(job).name))
            .filter(|(job, name)| !decision.keep[*job] && is_done(name))
            .map(|(_, name)| name.to_owned())
            .collect(),
        added: prints
            .tasks
            .iter()
            .filter(|task| !before.contains_key(&*task.name))
            .count(),
        removed: before.keys().filter(|name| !names.contains_key(*name)).count(),
    })
}

/// Returns whether two tasks do the same with the same files.
fn is_same((new, task): (&Fingerprints, &TaskPrint), (old, other): (&Fingerprints, &TaskPrint)) -> bool {
    let sorted = |prints: &'_ Fingerprints, task: &'_ TaskPrint| {
        let mut files: Vec<_> = prints.files_of(task).cloned().collect();
        files.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        files
    };
    task.definition == other.definition && sorted(new, task) == sorted(old, other)
}

/// Returns which jobs are to run again.
fn forced(plan: &Plan<'_>, names: &[String]) -> Result<Vec<bool>, ReplanError> {
    let mut forced = vec![false; plan.exec.jobs.len()];
    for wanted in names {
        let mut found = false;
        for (job, forced) in plan.exec.jobs.iter().zip(&mut forced) {
            let is_member = || match job.task {
                Task::Cluster(n, _) => {
                    let members = plan.exec.clusters[n].members.clone();
                    let mut members = members.map(|position| &plan.exec.members[position]);
                    members.any(|member| plan.logical_id(member) == wanted)
                }
                Task::Compute(_) => plan.logical_id(job) == wanted,
                _ => false,
            };
            if *job.name == **wanted || is_member() {
                *forced = true;
                found = true;
            }
        }
        if !found {
            return Err(ReplanError::UnknownJob { name: wanted.clone() });
        }
    }
    Ok(forced)
}

/// Refuses a plan whose tasks are not those of the old plan.
fn refuse_changes(new: &Fingerprints, before: &FxHashMap<&str, &TaskPrint>) -> Result<(), ReplanError> {
    let differs = |task: &&TaskPrint| {
        let other = before.get(&*task.name);
        other.is_none_or(|other| other.definition != task.definition)
    };
    let mut tasks: Vec<String> = new
        .tasks
        .iter()
        .filter(differs)
        .map(|task| task.name.to_string())
        .collect();
    if new.tasks.len() != before.len() && tasks.is_empty() {
        let now = new.by_name();
        let gone = before.keys().filter(|name| !now.contains_key(*name));
        tasks.extend(gone.map(|name| (*name).to_owned()));
    }
    tasks.truncate(MAX_NAMED);
    match tasks.is_empty() {
        true => Ok(()),
        false => Err(ReplanError::PlanChanged { tasks }),
    }
}

/// Keeps, for tasks that stay done, the versions of the files that they have used.
fn keep_versions(plan: &Plan<'_>, prints: &mut Fingerprints, old: &Fingerprints, decision: &Decision) {
    let before = old.by_name();
    let mut numbers: FxHashMap<u32, u32> = FxHashMap::default();
    for (task, &job) in prints.tasks.iter_mut().zip(&plan.order) {
        let Some(other) = before.get(&*task.name).filter(|_| decision.keep[job]) else {
            continue;
        };
        task.files.clear();
        for &file in &other.files {
            let number = *numbers.entry(file).or_insert_with(|| {
                prints.files.push(old.files[file as usize].clone());
                prints.files.len() as u32 - 1
            });
            task.files.push(number);
        }
    }
}

fn write_rescue(plan: &Plan<'_>, dag: &Path, decision: &Decision) -> Result<(), PlanError> {
    let jobs = plan.exec.jobs.iter().zip(&decision.keep);
    let mut names: Vec<&str> = jobs
        .filter(|(_, keep)| **keep)
        .map(|(job, _)| &*job.name)
        .collect();
    names.sort_unstable();
    let text: String = names.iter().map(|name| format!("\nDONE {name}")).collect();
    put(&rescue_path(dag), &text)
}

fn append_edges(plan: &Plan<'_>, dag: &Path, decision: &Decision) -> Result<(), PlanError> {
    if decision.edges.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    let name = |job: JobId| &*plan.job(job).name;
    for &(parent, child) in &decision.edges {
        let written = pmc_dag::write::edge(&mut text, name(parent), name(child));
        written.map_err(PlanError::code)?;
    }
    pmc_dag::trailer::append(dag, &text, (0, decision.edges.len()))
        .map_err(|e| PlanError::io("write", dag, e))
}

fn rescue_path(dag: &Path) -> PathBuf {
    pmc_files::with_suffix(dag, ".rescue")
}
