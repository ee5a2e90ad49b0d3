//! Refinement: from the abstract to the executable workflow, one step a module, each linear in jobs, edges
//! and file uses.
//!
//! Order: [`reuse`], [`mapping`], [`cluster`], [`transfer`], [`directories`] (create), [`cleanup`], [`directories`]
//! (remove).

pub(crate) mod cleanup;
pub(crate) mod cluster;
pub(crate) mod directories;
pub(crate) mod files;
pub(crate) mod java_hash_order;
pub(crate) mod mapping;
pub(crate) mod programs;
pub(crate) mod reduce;
pub(crate) mod replicas;
pub(crate) mod reuse;
pub(crate) mod select;
pub(crate) mod settings;
pub(crate) mod sites;
pub(crate) mod storage;
pub(crate) mod subworkflow;
pub(crate) mod transfer;
pub(crate) mod unused;

use std::hash::BuildHasher as _;

use crate::error::PlanError;
use crate::graph::{Adjacency, Graph};
use crate::model::{JobKind, Workflow};
use crate::request::CleanupStrategy;

use crate::exec::{Exec, ExecJob, Task};
use mapping::Mapper;
use replicas::Replicas;

/// With fewer jobs, starting a thread takes longer than the work that it would do.
pub(crate) const WORTH_A_THREAD: usize = 500;

/// Refines a workflow. The mapper brings sites, programs and settings; `step` is told the name of each step that
/// is over. `beside` is called by another thread once the jobs of the workflow are as they stay, but for files that
/// jobs have to do without.
///
/// # Errors
/// What cannot be mapped, or is nowhere.
pub(crate) fn refine(
    workflow: &mut Workflow,
    mapper: &mut Mapper<'_>,
    replicas: &Replicas,
    notes: &mut Vec<String>,
    step: &mut dyn FnMut(&'static str),
    beside: impl FnOnce(&Workflow) + Send,
) -> Result<Exec, PlanError> {
    let mut exec = Exec::default();
    let abstract_edges: Vec<(u32, u32)> = workflow.edges.iter().map(|&(p, c)| (p.0, c.0)).collect();
    let graph = Graph::new(workflow.jobs.len(), &abstract_edges);
    let Some(order) = graph.order() else {
        return Err(PlanError::refinement("Abstract Workflow has cycles"));
    };
    let scope = mapper.settings.reuse;
    let mut reduced = reuse::reduce(workflow, &graph, &order, abstract_edges, replicas, scope);
    drop(order);
    step("data reuse");
    exec.deleted = reduced.kept.iter().filter(|kept| !**kept).count();
    if exec.deleted > 0 {
        notes.push(format!(
            "{} of {} jobs need not run, since their outputs exist (--force runs them)",
            exec.deleted,
            workflow.jobs.len()
        ));
    }
    let mut mapped = match mapper.map(workflow, &reduced, &mut exec, notes) {
        Err(PlanError::Refinement(mut problems)) => {
            problems.extend(replicas::missing(
                workflow,
                &reduced.kept,
                replicas,
                &mapper.prefix,
            ));
            return Err(PlanError::Refinement(problems));
        }
        mapped => mapped?,
    };
    step("sites, programs");
    let mapped_workflow = &*workflow;
    let mut exec = std::thread::scope(|scope| {
        if mapped_workflow.jobs.len() < WORTH_A_THREAD {
            beside(mapped_workflow);
        } else {
            scope.spawn(|| beside(mapped_workflow));
        }
        add_jobs(
            mapped_workflow,
            graph,
            exec,
            mapper,
            replicas,
            &mut mapped,
            &mut reduced,
            notes,
            step,
        )
    })?;
    for (n, uses) in exec.changed.drain() {
        workflow.jobs[n.0 as usize].uses = uses;
    }
    Ok(exec)
}

/// The steps that add jobs to those of the workflow.
#[expect(clippy::too_many_arguments, reason = "all that the steps before have found")]
fn add_jobs(
    workflow: &Workflow,
    graph: Graph,
    mut exec: Exec,
    mapper: &mut Mapper<'_>,
    replicas: &Replicas,
    mapped: &mut mapping::Mapped,
    reduced: &mut reuse::Reduced,
    notes: &mut Vec<String>,
    step: &mut dyn FnMut(&'static str),
) -> Result<Exec, PlanError> {
    cluster::form(workflow, &mut exec, mapper, mapped, reduced, notes)?;
    step("clustering");
    let same = exec.deleted == 0 && exec.clusters.is_empty();
    let graph = match same {
        true => graph,
        false => Graph::new(reduced.kept.len(), &reduced.edges),
    };
    transfer::add(workflow, &mut exec, mapper, replicas, mapped, reduced, &graph)?;
    drop(graph);
    step("transfers");
    let names = directories::Names {
        label: &workflow.label.clone(),
        index: &workflow.index.clone(),
    };
    let sites = directories::add_create(&mut exec, mapper, &names);
    step("create-dir");
    if mapper.settings.cleanup != CleanupStrategy::None {
        let graph = exec.graph();
        let staying = cleanup::staying(workflow, &exec, &graph, &mapper.settings.cleanup_kept);
        // With the directory, outputs that go nowhere else would be lost.
        let removes_all = !staying.contains(&true);
        let strategy = mapper.settings.cleanup;
        match strategy {
            CleanupStrategy::InPlace => {
                cleanup::add(workflow, &mut exec, mapper, &sites, &staying, &graph);
            }
            CleanupStrategy::Constraint => {
                let rest = !removes_all;
                let uses = (staying.as_slice(), &graph);
                cleanup::constraint::add(workflow, &mut exec, mapper, &sites, uses, rest, notes)?;
            }
            CleanupStrategy::Leaf | CleanupStrategy::None => {}
        }
        step("clean-up");
        if removes_all {
            let with_registration = strategy != CleanupStrategy::InPlace;
            directories::add_remove(&mut exec, mapper, &names, &sites, with_registration);
        }
        step("remove-dir");
    }
    if exec.jobs.is_empty() {
        let site = mapper
            .sites
            .candidates
            .first()
            .copied()
            .unwrap_or(mapper.sites.local());
        let setup = mapper.auxiliary_setup(Task::NoOp, site, &mut exec);
        exec.add(ExecJob {
            name: format!("noop_{}_{}", workflow.label, workflow.index).into(),
            task: Task::NoOp,
            site,
            staging: site,
            setup,
        });
        notes.push("nothing is left to do: every output exists already".into());
    }
    exec.tidy_edges();
    check_names(&exec)?;
    step("edges, names");
    Ok(exec)
}

/// What else is wrong with a plan whose sites cannot be worked out. `programs` come with the names of the sites.
pub(crate) fn further_problems(
    workflow: &Workflow,
    programs: Option<(&programs::Programs<'_>, &[&str])>,
    replicas: &Replicas,
    scope: settings::ReuseScope,
    prefix: &str,
) -> Vec<String> {
    let edges: Vec<(u32, u32)> = workflow.edges.iter().map(|&(p, c)| (p.0, c.0)).collect();
    let graph = Graph::new(workflow.jobs.len(), &edges);
    let order = graph.order().unwrap_or_default();
    let reduced = reuse::reduce(workflow, &graph, &order, edges, replicas, scope);
    let mut problems = Vec::new();
    if let Some((programs, sites)) = programs {
        let mut seen = rustc_hash::FxHashSet::default();
        for (job, _) in workflow.jobs.iter().zip(&reduced.kept).filter(|(_, kept)| **kept) {
            let is_known = job.kind != JobKind::Compute
                || sites::selection::named_program(job).is_some()
                || programs.knows(&job.transformation);
            if !is_known && seen.insert(&job.transformation) {
                problems.push(programs.missing(&job.transformation, sites));
            }
        }
    }
    problems.extend(replicas::missing(workflow, &reduced.kept, replicas, prefix));
    problems
}

/// Two jobs of one name would be one task.
fn check_names(exec: &Exec) -> Result<(), PlanError> {
    let jobs = || exec.jobs.iter().chain(&exec.members);
    let hasher = rustc_hash::FxBuildHasher;
    let hashes: Vec<u64> = jobs().map(|job| hasher.hash_one(&*job.name)).collect();
    if !has_equal(&hashes) {
        return Ok(());
    }
    let mut names = rustc_hash::FxHashSet::default();
    names.reserve(hashes.len());
    let twice: Vec<String> = jobs()
        .filter(|job| !names.insert(&*job.name))
        .take(20)
        .map(|job| format!("two jobs have the name {}: give one of them another id", job.name))
        .collect();
    if twice.is_empty() {
        Ok(())
    } else {
        Err(PlanError::Refinement(twice))
    }
}

/// Whether two hashes are the same: they are dealt to heaps that are sorted one by one, which is linear and stays in
/// the processor's cache, as a hash table of them all would not.
fn has_equal(hashes: &[u64]) -> bool {
    const HEAP: usize = 1024;
    let heaps = (hashes.len() / HEAP).next_power_of_two();
    let heap = |hash: u64| (hash >> 32) as u32 & (heaps as u32 - 1);
    let numbers = 0..hashes.len() as u32;
    let dealt = Adjacency::new(heaps, numbers.map(|n| (heap(hashes[n as usize]), n)));
    let mut own: Vec<u64> = Vec::new();
    (0..heaps as u32).any(|heap| {
        own.clear();
        own.extend(dealt.of(heap).iter().map(|&n| hashes[n as usize]));
        own.sort_unstable();
        own.windows(2).any(|pair| pair[0] == pair[1])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_hashes_are_found() {
        let mut hashes: Vec<u64> = (0..5000u64)
            .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect();
        assert!(!has_equal(&hashes) && !has_equal(&[]) && !has_equal(&[7]));
        hashes.push(hashes[1234]);
        assert!(has_equal(&hashes));
    }
}
