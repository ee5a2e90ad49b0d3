//! Data reuse: removes jobs whose outputs exist.

use crate::model::{FileId, JobIndex, Link, TransferFlag, Workflow};
use crate::profiles::parse_bool;

use super::Refinement;
use super::replicas::Replicas;
use super::settings::ReuseScope;
use crate::error::PlanError;
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

impl Reduced {
    /// Number of jobs that need not run.
    fn deleted(&self) -> usize {
        self.kept.iter().filter(|kept| !**kept).count()
    }

    /// Returns what the user should know.
    fn note(&self) -> Option<String> {
        let (deleted, jobs) = (self.deleted(), self.kept.len());
        (deleted > 0).then(|| {
            format!("{deleted} of {jobs} jobs need not run, since their outputs exist (--force runs them)")
        })
    }
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
    let edges = workflow.edges.clone();
    let scope = refinement.mapper.settings.reuse;
    let reduced = reduce(workflow, graph, &order, edges, refinement.replicas, scope);
    refinement.notes.extend(reduced.note());
    refinement.exec.deleted = reduced.deleted();
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

#[cfg(test)]
mod tests {
    use super::super::small_workflow::{catalog, workflow};
    use super::*;

    /// Returns the jobs that are kept, the edges between them and the files to deliver, as `PARENT-CHILD` and
    /// `JOB:FILE`.
    fn reduced(jobs: &str, edges: &[&str], known: &[&str], scope: ReuseScope) -> [String; 3] {
        let mut workflow = workflow(jobs);
        let index = |id: &str| JobIndex::new(workflow.jobs.iter().position(|job| job.id == id).expect(id));
        for edge in edges {
            let (parent, child) = edge.split_once('-').expect("an edge");
            workflow.edges.push((index(parent), index(child)));
        }
        workflow.edges.sort_unstable();
        workflow.edges.dedup();
        let graph = Graph::new(workflow.jobs.len(), &workflow.edges);
        let replicas = Replicas {
            catalog: catalog(known),
            ..Replicas::default()
        };
        let order = graph.order().expect("no cycle");
        let edges = workflow.edges.clone();
        let reduced = reduce(&workflow, &graph, &order, edges, &replicas, scope);
        let kept: Vec<&str> = workflow
            .jobs
            .iter()
            .zip(&reduced.kept)
            .filter_map(|(job, kept)| kept.then_some(job.id.as_str()))
            .collect();
        assert_eq!(kept.len() + reduced.deleted(), workflow.jobs.len());
        let start = format!("{} of {} jobs ", reduced.deleted(), workflow.jobs.len());
        let note = reduced.note();
        assert_eq!(note.is_some(), reduced.deleted() > 0);
        assert!(note.is_none_or(|note| note.starts_with(&start)));
        let id = |job: JobIndex| workflow.jobs[job].id.as_str();
        let edges: Vec<String> = reduced
            .edges
            .iter()
            .map(|&(parent, child)| format!("{}-{}", id(parent), id(child)))
            .collect();
        let owed: Vec<String> = reduced
            .owed
            .iter()
            .map(|&(job, n)| {
                let file = workflow.jobs[job].uses[n as usize].file;
                format!("{}:{}", id(job), workflow.files.name(file))
            })
            .collect();
        [kept.join(" "), edges.join(" "), owed.join(" ")]
    }

    fn kept(jobs: &str, known: &[&str]) -> String {
        let [kept, _, _] = reduced(jobs, &[], known, ReuseScope::Full);
        kept
    }

    /// `mid` is not delivered.
    const CHAIN: &str = "A: in > -mid\nB: mid > end";

    #[test]
    fn jobs_whose_outputs_are_there_or_not_needed_are_removed() {
        let reduced = |known: &[&str]| reduced(CHAIN, &["A-B"], known, ReuseScope::Full);
        assert_eq!(reduced(&["in"]), ["A B", "A-B", ""]);
        assert_eq!(reduced(&["in", "mid"]), ["B", "", ""], "mid is not delivered");
        assert_eq!(reduced(&["end"]), ["", "", "B:end"]);
        assert_eq!(
            self::reduced(CHAIN, &["A-B"], &["mid", "end"], ReuseScope::None),
            ["A B", "A-B", ""]
        );
    }

    #[test]
    fn outputs_that_are_delivered_have_to_be_there() {
        let both = "A: in > mid\nB: mid > end";
        let reduced = |known: &[&str]| reduced(both, &["A-B"], known, ReuseScope::Full);
        assert_eq!(reduced(&["end"]), ["A", "", "B:end"]);
        assert_eq!(reduced(&["mid", "end"]), ["", "", "A:mid B:end"]);
        assert_eq!(kept("A: in > x y", &["x"]), "A");
        assert_eq!(kept("A: in > x y", &["x", "y"]), "");
    }

    #[test]
    fn outputs_that_nobody_needs_do_not_count() {
        assert_eq!(kept("A: in > end -log", &["end"]), "");
        let [read, ..] = reduced(
            "A: in > end -log\nB: log > page",
            &["A-B"],
            &["end"],
            ReuseScope::Full,
        );
        assert_eq!(read, "A B");
        assert_eq!(kept("A: in > -log", &[]), "", "neither delivered nor read");
    }

    #[test]
    fn jobs_without_outputs_are_kept() {
        assert_eq!(kept("A: in >\nB: in > out", &["in", "out"]), "A");
        let [kept, ..] = reduced("A: in > -x\nB: x >", &["A-B"], &["x"], ReuseScope::Full);
        assert_eq!(kept, "B");
    }

    #[test]
    fn a_file_that_a_job_changes_is_not_there_yet() {
        assert_eq!(kept("A: in > =f", &["in", "f"]), "A");
    }

    #[test]
    fn with_the_scope_partial_only_enabled_jobs_are_looked_at() {
        let reduced = |jobs: &str, known: &[&str]| {
            let [kept, ..] = reduced(jobs, &["A-B"], known, ReuseScope::Partial);
            kept
        };
        let delivered = "A: in > mid\nB@: mid > end";
        assert_eq!(reduced(delivered, &["mid", "end"]), "A", "mid is delivered");
        assert_eq!(reduced("A: in > -mid\nB@: mid > end", &["end"]), "");
        assert_eq!(reduced("A: in > -mid\nB: mid > end", &["mid", "end"]), "A B");
        assert_eq!(reduced("A@: in > -mid\nB: mid > end", &["mid", "end"]), "B");
    }

    #[test]
    fn edges_lead_over_removed_jobs() {
        let jobs = "A: > a\nB: a > -b\nC: b > -c\nD: c > d\nE: b > e\nF: > f";
        let [kept, edges, _] = reduced(
            jobs,
            &["A-B", "F-B", "A-C", "B-C", "C-D", "B-E", "A-E"],
            &["b", "c"],
            ReuseScope::Full,
        );
        assert_eq!(kept, "A D E F");
        assert_eq!(edges, "A-D A-E F-D F-E");
    }

    #[test]
    fn too_many_bridges_are_left_out() {
        use std::fmt::Write as _;
        let edges = |parents: u32, children: u32| {
            let (mut jobs, mut edges) = ("M: > -m\n".to_owned(), Vec::new());
            for n in 0..parents {
                let _ = writeln!(jobs, "P{n}: > p{n}");
                edges.push(format!("P{n}-M"));
            }
            for n in 0..children {
                let _ = writeln!(jobs, "C{n}: m > c{n}");
                edges.push(format!("M-C{n}"));
            }
            let edges: Vec<&str> = edges.iter().map(String::as_str).collect();
            let [_, edges, _] = reduced(&jobs, &edges, &["m"], ReuseScope::Full);
            edges.split_whitespace().count()
        };
        assert_eq!(edges(30, 20), 600);
        assert_eq!(edges(1025, 1024), 0);
    }
}
