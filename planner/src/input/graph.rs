//! Edges of the abstract workflow: inference from files, and detection of cycles.

use std::collections::BTreeMap;
use std::path::Path;

use crate::diagnostic::Diagnostic;
use crate::graph::Graph;
use crate::ids::Id as _;
use crate::model::{FileId, JobIndex, Workflow};

/// Maximum jobs of a cycle that a message names.
const MAX_NAMED: usize = 12;

/// Name of a job in messages: transformation and id, as in the plan.
fn name(workflow: &Workflow, job: JobIndex) -> String {
    let job = &workflow.jobs[job];
    format!("{}_{}", job.transformation.name, job.id)
}

/// Returns the job that writes each file. Reports files with several writers, since the order of reading and
/// writing would be undefined.
pub(super) fn producers(
    workflow: &Workflow,
    file: &Path,
    problems: &mut Vec<Diagnostic>,
) -> Vec<Option<JobIndex>> {
    let mut producers = vec![None; workflow.files.len()];
    let mut contested: BTreeMap<FileId, Vec<JobIndex>> = BTreeMap::new();
    for (number, job) in JobIndex::first(workflow.jobs.len()).zip(&workflow.jobs) {
        for used in job.uses.iter().filter(|used| used.link.writes()) {
            match producers[used.file] {
                None => producers[used.file] = Some(number),
                Some(producer) => contested
                    .entry(used.file)
                    .or_insert_with(|| vec![producer])
                    .push(number),
            }
        }
    }
    for (contested, jobs) in contested {
        let lfn = workflow.files.name(contested);
        let first = name(workflow, jobs[0]);
        let second = name(workflow, jobs[1]);
        let message = match jobs.len() {
            2 => format!("the file {lfn} is an output of two jobs, {first} and {second}"),
            n => format!(
                "the file {lfn} is an output of {n} jobs, {first}, {second} and {} more",
                n - 2
            ),
        };
        let position = workflow.jobs[jobs[1]].position;
        problems.push(Diagnostic::at(file, position, message).with_hint("give each output a different name"));
    }
    producers
}

/// Adds an edge from the producer of each input to its reader.
pub(super) fn infer_edges(workflow: &mut Workflow, producers: &[Option<JobIndex>]) {
    for (number, job) in JobIndex::first(workflow.jobs.len()).zip(&workflow.jobs) {
        for used in job.uses.iter().filter(|used| used.link.reads()) {
            if let Some(producer) = producers[used.file] {
                workflow.edges.push((producer, number));
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
        let mut other = vec![(JobIndex::new(0), JobIndex::new(0)); edges.len()];
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
        starts[job(edge).index() + 1] += 1;
    }
    for n in 0..jobs {
        starts[n + 1] += starts[n];
    }
    for edge in from {
        let start = &mut starts[job(edge)];
        to[*start as usize] = *edge;
        *start += 1;
    }
}

/// Returns an error that names the jobs of a cycle, if there is one. Edges must be sorted.
pub(super) fn find_cycle(workflow: &Workflow, file: &Path) -> Option<Diagnostic> {
    // Most workflows name parents first.
    if workflow.edges.iter().all(|(parent, child)| parent < child) {
        return None;
    }
    let mut cycle = Graph::new(workflow.jobs.len(), &workflow.edges).find_cycle()?;
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
    let position = workflow.jobs[cycle[0]].position;
    Some(
        Diagnostic::at(
            file,
            position,
            format!("Abstract Workflow has cycles: {}", names.join(" -> ")),
        )
        .with_hint("each of these jobs depends on the one before it, through a dependency or a file"),
    )
}
