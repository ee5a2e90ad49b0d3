//! Data reuse: removes jobs whose outputs exist (section 6.2 of the planner's specification).

use crate::model::{FileId, JobIndex, Link, TransferFlag, Workflow};
use crate::profiles::parse_bool;

use super::Refinement;
use super::replicas::Replicas;
use super::settings::ReuseScope;
use crate::error::{Cause, PlanError};
use crate::graph::{Graph, Lists};
use crate::ids::Id as _;

/// The abstract workflow after data reuse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reduced {
    /// Whether each job is kept.
    pub(crate) kept: Vec<bool>,
    /// Edges between kept jobs, including paths through deleted jobs; sorted, no duplicates.
    pub(crate) edges: Vec<(JobIndex, JobIndex)>,
    /// Outputs of deleted jobs to deliver: job and index in its uses.
    pub(crate) owed: Vec<(JobIndex, u32)>,
}

/// Maximum bridges over one deleted job, parents times children. Bridges only keep an order, since the files
/// exist; beyond this number they are left out.
const BRIDGES: usize = 1 << 20;

/// Step: removes the jobs whose outputs exist.
pub(super) fn remove_finished_jobs(refinement: &mut Refinement<'_, '_>) -> Result<(), PlanError> {
    let Refinement { workflow, graph, .. } = refinement;
    let Some(order) = graph.order() else {
        return Err(Cause::Job.error("Abstract Workflow has cycles"));
    };
    let edges = workflow.edges.clone();
    let scope = refinement.mapper.settings.reuse;
    let reduced = reduce(workflow, graph, &order, edges, refinement.replicas, scope);
    let deleted = reduced.kept.iter().filter(|kept| !**kept).count();
    if deleted > 0 {
        refinement.notes.push(format!(
            "{deleted} of {} jobs need not run, since their outputs exist (--force runs them)",
            workflow.jobs.len()
        ));
    }
    refinement.exec.deleted = deleted;
    refinement.reduced = reduced;
    Ok(())
}

/// Finds the jobs that need not run. `order` has parents before children; `edges` are those of the workflow.
pub(crate) fn reduce(
    workflow: &Workflow,
    graph: &Graph<JobIndex>,
    order: &[JobIndex],
    edges: Vec<(JobIndex, JobIndex)>,
    replicas: &Replicas,
    scope: ReuseScope,
) -> Reduced {
    let jobs = &workflow.jobs;
    let mut kept = vec![true; jobs.len()];
    if scope == ReuseScope::None {
        return Reduced {
            kept,
            edges,
            owed: Vec::new(),
        };
    }
    let mut known = Known::new(workflow, replicas);
    let (outputs, is_read) = outputs(workflow);
    for (n, kept) in JobIndex::first(jobs.len()).zip(&mut kept) {
        if scope == ReuseScope::Partial
            && jobs[n]
                .profiles
                .pegasus("enable_for_data_reuse")
                .and_then(parse_bool)
                != Some(true)
        {
            continue;
        }
        let mut files = outputs.of(n).iter().peekable();
        *kept =
            files.peek().is_none() || !files.all(|u| known.output(u) || (!u.delivered && !is_read[u.file]));
    }
    for &n in order.iter().rev() {
        if !kept[n] || graph.children(n).iter().any(|&c| kept[c]) {
            continue;
        }
        let mut files = outputs.of(n).iter().peekable();
        kept[n] = files.peek().is_none()
            || files.any(|u| u.delivered && (scope == ReuseScope::Partial || !known.output(u)));
    }
    if kept.iter().all(|&k| k) {
        return Reduced {
            kept,
            edges,
            owed: Vec::new(),
        };
    }
    let owed = jobs
        .iter()
        .enumerate()
        .filter(|(n, _)| !kept[*n])
        .flat_map(|(n, job)| {
            job.uses
                .iter()
                .enumerate()
                .filter(|(_, u)| u.link.writes() && u.transfer != TransferFlag::Not)
                .map(move |(k, _)| (JobIndex::new(n), k as u32))
        })
        .collect();
    let edges = bridge(graph, order, &kept, edges);
    Reduced { kept, edges, owed }
}

/// An output of a job.
#[derive(Clone, Copy, Debug)]
struct Output {
    file: FileId,
    /// It is delivered to the user.
    delivered: bool,
    /// The job reads it as well, so a known location holds the unchanged file.
    changed: bool,
}

/// Returns the outputs of all jobs; and of each file, whether a job reads it.
fn outputs(workflow: &Workflow) -> (Lists<JobIndex, Output>, Vec<bool>) {
    let mut outputs = Lists::with_capacity(workflow.jobs.len(), workflow.files.len());
    let mut is_read = vec![false; workflow.files.len()];
    for job in &workflow.jobs {
        for u in &job.uses {
            is_read[u.file] |= u.link.reads();
            if u.link.writes() {
                outputs.push(Output {
                    file: u.file,
                    delivered: u.transfer != TransferFlag::Not,
                    changed: u.link == Link::InOut,
                });
            }
        }
        outputs.end();
    }
    (outputs, is_read)
}

/// Edges between kept jobs; a deleted job is bridged.
fn bridge(
    graph: &Graph<JobIndex>,
    order: &[JobIndex],
    kept: &[bool],
    edges: Vec<(JobIndex, JobIndex)>,
) -> Vec<(JobIndex, JobIndex)> {
    let mut result = edges;
    result.retain(|&(p, c)| kept[p] && kept[c]);
    // Kept jobs above each deleted one, deleted parents looked through, top down.
    let mut above: rustc_hash::FxHashMap<JobIndex, Vec<JobIndex>> = rustc_hash::FxHashMap::default();
    for &node in order {
        if kept[node] {
            continue;
        }
        let mut parents: Vec<JobIndex> = Vec::new();
        for &p in graph.parents(node) {
            if kept[p] {
                parents.push(p);
            } else if let Some(list) = above.get(&p) {
                parents.extend_from_slice(list);
            }
        }
        parents.sort_unstable();
        parents.dedup();
        let children: Vec<JobIndex> = graph
            .children(node)
            .iter()
            .copied()
            .filter(|&c| kept[c])
            .collect();
        if parents.len().saturating_mul(children.len().max(1)) <= BRIDGES {
            for &c in &children {
                result.extend(parents.iter().map(|&p| (p, c)));
            }
            above.insert(node, parents);
        }
    }
    result.sort_unstable();
    result.dedup();
    result
}

/// Which files have a location, each looked up once.
struct Known<'a> {
    workflow: &'a Workflow,
    replicas: &'a Replicas,
    memo: Vec<Option<bool>>,
}

impl<'a> Known<'a> {
    fn new(workflow: &'a Workflow, replicas: &'a Replicas) -> Self {
        Known {
            workflow,
            replicas,
            memo: vec![None; workflow.files.len()],
        }
    }
    /// Whether what a job writes is there already.
    fn output(&mut self, output: &Output) -> bool {
        !output.changed && self.get(output.file)
    }
    fn get(&mut self, file: FileId) -> bool {
        let name = self.workflow.files.name(file);
        *self.memo[file].get_or_insert_with(|| self.replicas.knows(name))
    }
}
