//! The order in which outputs of deleted jobs are delivered. It decides which job copies which of them.

use super::super::java_hash_order::{hash, sort_hashed};
use super::super::names::job_name;
use crate::graph::Graph;
use crate::model::{JobIndex, Workflow};

/// Sorts outputs of deleted jobs, given by job, as Pegasus finds them: from the last jobs up, and those of a
/// job in the order of its table. `graph` is that of all jobs.
pub(super) fn in_order(
    workflow: &Workflow,
    graph: &Graph<JobIndex>,
    prefix: &str,
    owed: &[(JobIndex, u32)],
) -> Vec<(JobIndex, u32)> {
    if owed.is_empty() {
        return Vec::new();
    }
    let names = workflow.jobs.iter();
    let names = names.map(|job| job_name(prefix, &job.transformation.name, &job.id));
    let hashes: Vec<u32> = names.map(|name| hash(&name)).collect();
    let mut sorted = Vec::with_capacity(owed.len());
    for n in bottom_up(graph, &hashes) {
        let first = owed.partition_point(|&(job, _)| job < n);
        let own = owed[first..].iter().take_while(|&&(job, _)| job == n);
        let before = sorted.len();
        sorted.extend(own);
        let uses = &workflow.jobs[n].uses;
        let outputs = uses.iter().filter(|u| u.link.writes()).count();
        sort_hashed(&mut sorted[before..], outputs, |&(_, at)| {
            hash(workflow.files.name(uses[at as usize].file))
        });
    }
    sorted
}

/// Returns the jobs in the order of a search from those without children that visits a job after all its
/// children.
fn bottom_up(graph: &Graph<JobIndex>, hashes: &[u32]) -> Vec<JobIndex> {
    let of = |n: &JobIndex| hashes[n.index()];
    let mut waiting: Vec<usize> = graph.nodes().map(|n| graph.children(n).len()).collect();
    let mut found: Vec<JobIndex> = graph.nodes().filter(|n| waiting[n.index()] == 0).collect();
    sort_hashed(&mut found, graph.len(), of);
    let mut parents = Vec::new();
    let mut next = 0;
    while let Some(&n) = found.get(next) {
        next += 1;
        parents.clear();
        parents.extend_from_slice(graph.parents(n));
        let count = parents.len();
        sort_hashed(&mut parents, count, of);
        for &parent in &parents {
            let left = &mut waiting[parent.index()];
            *left -= 1;
            if *left == 0 {
                found.push(parent);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_come_after_their_children_and_by_hash() {
        // 0 and 1 are above 2 and 3; 4 and 5 are alone.
        let edges = [(0, 2), (0, 3), (1, 3)].map(|(a, b)| (JobIndex::new(a), JobIndex::new(b)));
        let graph = Graph::new(6, &edges);
        let found = bottom_up(&graph, &[9, 8, 7, 6, 0, 1]);
        let found: Vec<usize> = found.into_iter().map(|n| n.index()).collect();
        assert_eq!(found, [4, 5, 3, 2, 1, 0]);
    }
}
