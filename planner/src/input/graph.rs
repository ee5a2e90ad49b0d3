//! Edges of the abstract workflow: inference from files, and detection of cycles.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::InputError;
use crate::model::{FileId, JobIndex, Workflow};

const NONE: u32 = u32::MAX;
/// Maximum jobs of a cycle that a message names.
const MAX_NAMED: usize = 12;

/// Name of a job in messages: transformation and id, as in the plan.
fn name(workflow: &Workflow, job: JobIndex) -> String {
    let job = &workflow.jobs[job.0 as usize];
    format!("{}_{}", job.transformation.name, job.id)
}

/// Returns the job that writes each file, `u32::MAX` for none. Reports files with several writers, since the
/// order of reading and writing would be undefined.
pub(super) fn producers(workflow: &Workflow, file: &Path, problems: &mut Vec<InputError>) -> Vec<u32> {
    let mut producers = vec![NONE; workflow.files.len()];
    let mut contested: BTreeMap<FileId, Vec<u32>> = BTreeMap::new();
    for (job, number) in workflow.jobs.iter().zip(0_u32..) {
        for used in job.uses.iter().filter(|used| used.link.writes()) {
            let producer = &mut producers[used.file.0 as usize];
            if *producer == NONE {
                *producer = number;
            } else {
                contested
                    .entry(used.file)
                    .or_insert_with(|| vec![*producer])
                    .push(number);
            }
        }
    }
    for (contested, jobs) in contested {
        let lfn = workflow.files.name(contested);
        let first = name(workflow, JobIndex(jobs[0]));
        let second = name(workflow, JobIndex(jobs[1]));
        let message = match jobs.len() {
            2 => format!("the file {lfn} is an output of two jobs, {first} and {second}"),
            n => format!(
                "the file {lfn} is an output of {n} jobs, {first}, {second} and {} more",
                n - 2
            ),
        };
        let position = workflow.jobs[jobs[1] as usize].position;
        problems.push(InputError::at(file, position, message).with_hint("give each output a different name"));
    }
    producers
}

/// Adds an edge from the producer of each input to its reader.
pub(super) fn infer_edges(workflow: &mut Workflow, producers: &[u32]) {
    for (job, number) in workflow.jobs.iter().zip(0_u32..) {
        for used in job.uses.iter().filter(|used| used.link.reads()) {
            let producer = producers[used.file.0 as usize];
            if producer != NONE {
                workflow.edges.push((JobIndex(producer), JobIndex(number)));
            }
        }
    }
}

/// Sorts edges, drops repeated ones and those from a job to itself.
pub(super) fn normalize_edges(workflow: &mut Workflow) {
    let edges = &mut workflow.edges;
    edges.retain(|(parent, child)| parent != child);
    let jobs = workflow.jobs.len();
    if edges.len() > jobs / 8 && u32::try_from(edges.len()).is_ok() {
        let mut other = vec![(JobIndex(0), JobIndex(0)); edges.len()];
        let mut starts = Vec::new();
        sort_by_end(edges, &mut other, &mut starts, jobs, |&(_, child)| child);
        sort_by_end(&other, edges, &mut starts, jobs, |&(parent, _)| parent);
    } else {
        edges.sort_unstable();
    }
    edges.dedup();
    edges.shrink_to_fit();
}

/// Copies edges sorted by one of their ends: a stable counting sort.
fn sort_by_end(
    from: &[(JobIndex, JobIndex)],
    to: &mut [(JobIndex, JobIndex)],
    starts: &mut Vec<u32>,
    jobs: usize,
    job: impl Fn(&(JobIndex, JobIndex)) -> JobIndex,
) {
    starts.clear();
    starts.resize(jobs + 1, 0);
    for edge in from {
        starts[job(edge).0 as usize + 1] += 1;
    }
    for n in 0..jobs {
        starts[n + 1] += starts[n];
    }
    for edge in from {
        let start = &mut starts[job(edge).0 as usize];
        to[*start as usize] = *edge;
        *start += 1;
    }
}

/// Returns an error that names the jobs of a cycle, if there is one. Edges must be sorted.
pub(super) fn find_cycle(workflow: &Workflow, file: &Path) -> Option<InputError> {
    let jobs = workflow.jobs.len();
    let edges = &workflow.edges;
    let mut parents = vec![0_u32; jobs];
    let mut first_edge = vec![0_usize; jobs + 1];
    for (parent, child) in edges {
        parents[child.0 as usize] += 1;
        first_edge[parent.0 as usize + 1] += 1;
    }
    for n in 0..jobs {
        first_edge[n + 1] += first_edge[n];
    }
    let children = |job: u32| &edges[first_edge[job as usize]..first_edge[job as usize + 1]];
    let mut ready: Vec<u32> = (0_u32..)
        .zip(&parents)
        .filter(|(_, n)| **n == 0)
        .map(|(job, _)| job)
        .collect();
    let mut done = 0;
    while let Some(job) = ready.pop() {
        done += 1;
        for (_, child) in children(job) {
            let left = &mut parents[child.0 as usize];
            *left -= 1;
            if *left == 0 {
                ready.push(child.0);
            }
        }
    }
    if done == jobs {
        return None;
    }
    // Every remaining job has a remaining parent, so the walk upwards meets some job twice.
    let mut parent_of = vec![NONE; jobs];
    for (parent, child) in edges {
        if parents[parent.0 as usize] > 0 && parents[child.0 as usize] > 0 {
            parent_of[child.0 as usize] = parent.0;
        }
    }
    let mut seen = vec![false; jobs];
    let mut job = (0_u32..)
        .zip(&parents)
        .find(|(_, left)| **left > 0)
        .map(|(job, _)| job)?;
    while !seen[job as usize] {
        seen[job as usize] = true;
        job = parent_of[job as usize];
    }
    let start = job;
    let mut cycle = vec![JobIndex(start)];
    job = parent_of[start as usize];
    while job != start {
        cycle.push(JobIndex(job));
        job = parent_of[job as usize];
    }
    // The walk went upwards. The message follows the edges, starting at the first job of the file.
    cycle.reverse();
    let first = cycle
        .iter()
        .enumerate()
        .min_by_key(|(_, job)| **job)
        .map_or(0, |(n, _)| n);
    cycle.rotate_left(first);
    let mut names: Vec<String> = cycle
        .iter()
        .take(MAX_NAMED)
        .map(|job| name(workflow, *job))
        .collect();
    if cycle.len() > MAX_NAMED {
        names.push(format!("({} more)", cycle.len() - MAX_NAMED));
    }
    names.push(name(workflow, cycle[0]));
    let position = workflow.jobs[cycle[0].0 as usize].position;
    Some(
        InputError::at(
            file,
            position,
            format!("Abstract Workflow has cycles: {}", names.join(" -> ")),
        )
        .with_hint("each of these jobs depends on the one before it, through a dependency or a file"),
    )
}
