//! Data reuse: jobs whose outputs exist already need not run (section 6.2 of the planner's
//! specification).

use crate::model::{FileId, JobIndex, TransferFlag, Workflow};
use crate::profiles::parse_bool;

use super::graph::Graph;
use super::replicas::Replicas;
use super::settings::ReuseScope;

/// What is left of the abstract workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reduced {
    /// Whether each job is kept.
    pub(crate) kept: Vec<bool>,
    /// Edges between kept jobs, those through deleted jobs included; sorted, no duplicates.
    pub(crate) edges: Vec<(u32, u32)>,
    /// Files of deleted jobs that the user is to have: job and position in its uses.
    pub(crate) owed: Vec<(JobIndex, u32)>,
}

/// Bridges over deleted jobs are only about order, since their files exist; past this many (parents times
/// children of one job) they are left out.
const BRIDGES: usize = 1 << 20;

/// Finds the jobs that need not run.
pub(crate) fn reduce(workflow: &Workflow, graph: &Graph, replicas: &Replicas, scope: ReuseScope) -> Reduced {
    let jobs = &workflow.jobs;
    let mut kept = vec![true; jobs.len()];
    let all_edges = || workflow.edges.iter().map(|&(p, c)| (p.0, c.0));
    if scope == ReuseScope::None {
        return Reduced {
            kept,
            edges: all_edges().collect(),
            owed: Vec::new(),
        };
    }
    let mut known = Known::new(workflow, replicas);
    let mut is_read = vec![false; workflow.files.len()];
    for file_use in jobs.iter().flat_map(|job| &job.uses) {
        is_read[file_use.file.0 as usize] |= file_use.link.reads();
    }
    for (n, job) in jobs.iter().enumerate() {
        if scope == ReuseScope::Partial
            && job.profiles.pegasus("enable_for_data_reuse").and_then(parse_bool) != Some(true)
        {
            continue;
        }
        let mut outputs = job.uses.iter().filter(|u| u.link.writes()).peekable();
        kept[n] = outputs.peek().is_none()
            || !outputs.all(|u| {
                known.get(u.file) || (u.transfer == TransferFlag::Not && !is_read[u.file.0 as usize])
            });
    }
    if let Some(order) = graph.topological() {
        for &node in order.iter().rev() {
            let job = &jobs[node as usize];
            if !kept[node as usize] || graph.children(node).iter().any(|&c| kept[c as usize]) {
                continue;
            }
            let mut outputs = job.uses.iter().filter(|u| u.link.writes()).peekable();
            kept[node as usize] = outputs.peek().is_none()
                || outputs.any(|u| {
                    u.transfer != TransferFlag::Not && (scope == ReuseScope::Partial || !known.get(u.file))
                });
        }
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
    let edges = bridge(graph, &kept, all_edges());
    Reduced { kept, edges, owed }
}

/// Edges between kept jobs; a deleted job is bridged.
fn bridge(graph: &Graph, kept: &[bool], edges: impl Iterator<Item = (u32, u32)>) -> Vec<(u32, u32)> {
    let both = |&(p, c): &(u32, u32)| kept[p as usize] && kept[c as usize];
    let mut result: Vec<(u32, u32)> = edges.filter(both).collect();
    if kept.iter().all(|&k| k) {
        return result;
    }
    // Kept jobs above each deleted one, deleted parents looked through, top down.
    let mut above: rustc_hash::FxHashMap<u32, Vec<u32>> = rustc_hash::FxHashMap::default();
    for node in graph.topological().unwrap_or_default() {
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
    fn get(&mut self, file: FileId) -> bool {
        let name = self.workflow.files.name(file);
        *self.memo[file.0 as usize].get_or_insert_with(|| self.replicas.knows(name))
    }
}
