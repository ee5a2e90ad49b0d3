//! Data reuse: removes jobs whose outputs exist (section 6.2 of the planner's specification).

use crate::model::{FileId, JobIndex, Link, TransferFlag, Workflow};
use crate::profiles::parse_bool;

use super::Refinement;
use super::replicas::Replicas;
use super::settings::ReuseScope;
use crate::error::PlanError;
use crate::graph::Graph;

/// The abstract workflow after data reuse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reduced {
    /// Whether each job is kept.
    pub(crate) kept: Vec<bool>,
    /// Edges between kept jobs, including paths through deleted jobs; sorted, no duplicates.
    pub(crate) edges: Vec<(u32, u32)>,
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
        return Err(PlanError::refinement("Abstract Workflow has cycles"));
    };
    let edges = super::plain_edges(workflow);
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
    graph: &Graph,
    order: &[u32],
    edges: Vec<(u32, u32)>,
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
    let (outputs, is_read) = Outputs::new(workflow);
    for (n, kept) in kept.iter_mut().enumerate() {
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
        *kept = files.peek().is_none()
            || !files.all(|u| known.output(u) || (!u.delivered && !is_read[u.file.0 as usize]));
    }
    for &node in order.iter().rev() {
        let n = node as usize;
        if !kept[n] || graph.children(node).iter().any(|&c| kept[c as usize]) {
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
                .map(move |(k, _)| (JobIndex(n as u32), k as u32))
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

/// Outputs of all jobs in one piece of memory, a small part of what is known of the jobs.
struct Outputs {
    start: Vec<u32>,
    all: Vec<Output>,
}

impl Outputs {
    /// Of a workflow; and of each file, whether a job reads it.
    fn new(workflow: &Workflow) -> (Self, Vec<bool>) {
        let mut this = Outputs {
            start: Vec::with_capacity(workflow.jobs.len() + 1),
            all: Vec::with_capacity(workflow.files.len()),
        };
        let mut is_read = vec![false; workflow.files.len()];
        this.start.push(0);
        for job in &workflow.jobs {
            for u in &job.uses {
                is_read[u.file.0 as usize] |= u.link.reads();
                if u.link.writes() {
                    this.all.push(Output {
                        file: u.file,
                        delivered: u.transfer != TransferFlag::Not,
                        changed: u.link == Link::InOut,
                    });
                }
            }
            this.start.push(this.all.len() as u32);
        }
        (this, is_read)
    }
    fn of(&self, job: usize) -> &[Output] {
        &self.all[self.start[job] as usize..self.start[job + 1] as usize]
    }
}

/// Edges between kept jobs; a deleted job is bridged.
fn bridge(graph: &Graph, order: &[u32], kept: &[bool], edges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    let mut result = edges;
    result.retain(|&(p, c)| kept[p as usize] && kept[c as usize]);
    // Kept jobs above each deleted one, deleted parents looked through, top down.
    let mut above: rustc_hash::FxHashMap<u32, Vec<u32>> = rustc_hash::FxHashMap::default();
    for &node in order {
        if kept[node as usize] {
            continue;
        }
        let mut parents: Vec<u32> = Vec::new();
        for &p in graph.parents(node) {
            if kept[p as usize] {
                parents.push(p);
            } else if let Some(list) = above.get(&p) {
                parents.extend_from_slice(list);
            }
        }
        parents.sort_unstable();
        parents.dedup();
        let children: Vec<u32> = graph
            .children(node)
            .iter()
            .copied()
            .filter(|&c| kept[c as usize])
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
        *self.memo[file.0 as usize].get_or_insert_with(|| self.replicas.knows(name))
    }
}
