//! Replaces sub-workflow jobs by the jobs of their workflows.
//!
//! A separate workflow has its own work directory. One plan has one directory. So a file that the
//! sub-workflow job does not list is private to the sub-workflow, and no other job may write a file with its
//! name. Files that pass along the dependencies of sub-workflows are an exception: see [`passing`].

mod passing;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::diagnostic::Diagnostic;
use crate::ids::Id as _;
use crate::model::{FileId, Job, JobIndex, TransferFlag, Workflow};

use super::super::replicas::Replicas;
use passing::{Dependencies, User};

/// Maximum reported problems of one kind.
const MAX_REPORTED: usize = 20;

/// A file name that stands for several files, so that some of the workflows that use it cannot share one work
/// directory.
pub(super) struct Conflict {
    pub(super) problem: Diagnostic,
    /// In a few words.
    pub(super) reason: String,
    /// The sub-workflow jobs, by their old number, whose workflows use it.
    pub(super) parts: Vec<JobIndex>,
}

/// Returns whether [`merge`] might find conflicts: a file name of a part is used outside of it, too.
pub(super) fn may_conflict(workflow: &Workflow, parts: &[(JobIndex, Workflow)]) -> bool {
    let mut owners: FxHashMap<&str, usize> = FxHashMap::default();
    let replaced = |n: JobIndex| parts.binary_search_by_key(&n, |(at, _)| *at).is_ok();
    let outer = JobIndex::first(workflow.jobs.len()).filter(|&n| !replaced(n));
    for file_use in outer.flat_map(|n| &workflow.jobs[n].uses) {
        owners.insert(workflow.files.name(file_use.file), usize::MAX);
    }
    parts.iter().enumerate().any(|(owner, (_, part))| {
        let mut uses = part.jobs.iter().flat_map(|job| &job.uses);
        uses.any(|u| *owners.entry(part.files.name(u.file)).or_insert(owner) != owner)
    })
}

/// Replaces each job by its workflow. Returns the conflicts; the workflow cannot be used if there are any.
pub(super) fn merge(
    workflow: &mut Workflow,
    parts: Vec<(JobIndex, Workflow)>,
    replicas: &Replicas,
    warnings: &mut Vec<String>,
) -> Vec<Conflict> {
    if parts.is_empty() {
        return Vec::new();
    }
    let mut merger = Merger::new(workflow);
    let mut parts = parts.into_iter().peekable();
    let jobs = std::mem::take(&mut workflow.jobs);
    for (n, job) in JobIndex::first(jobs.len()).zip(jobs) {
        let before = merger.jobs.len();
        match parts.next_if(|(at, _)| *at == n) {
            None => merger.keep(job, workflow),
            Some((_, part)) => merger.replace(&job, part, workflow, warnings),
        }
        let added = merger.jobs.len() - before;
        merger.outer.extend(std::iter::repeat_n(n, added));
    }
    merger.finish(workflow, replicas)
}

/// Users of one file name.
#[derive(Clone, Debug, Default)]
struct Meeting {
    /// Whose file it is, and a job that uses it: the first, and the first of another owner.
    first: Option<(u32, JobIndex)>,
    other: Option<(u32, JobIndex)>,
    written: bool,
    /// A sub-workflow shares it with the outer workflow.
    shared: bool,
}

struct Merger {
    jobs: Vec<Job>,
    /// Part of each new job, 0 for the workflow itself.
    origins: Vec<u32>,
    /// The old job of each new job.
    outer: Vec<JobIndex>,
    /// First and last jobs, in the new order, of each old job.
    ends: Vec<(Vec<JobIndex>, Vec<JobIndex>)>,
    edges: Vec<(JobIndex, JobIndex)>,
    files: Vec<Meeting>,
    /// Files that sub-workflow jobs, by their old number, share with the outer workflow.
    listed: FxHashSet<(JobIndex, FileId)>,
    parts: u32,
}

impl Merger {
    fn new(workflow: &Workflow) -> Self {
        Merger {
            jobs: Vec::with_capacity(workflow.jobs.len()),
            origins: Vec::new(),
            outer: Vec::new(),
            ends: Vec::with_capacity(workflow.jobs.len()),
            edges: Vec::new(),
            files: vec![Meeting::default(); workflow.files.len()],
            listed: FxHashSet::default(),
            parts: 0,
        }
    }

    fn meet(&mut self, file: FileId, owner: u32, job: JobIndex, written: bool) {
        let meeting = &mut self.files[file];
        meeting.written |= written;
        match meeting.first {
            None => meeting.first = Some((owner, job)),
            Some((first, _)) if first != owner && meeting.other.is_none() => {
                meeting.other = Some((owner, job))
            }
            Some(_) => {}
        }
    }

    fn keep(&mut self, job: Job, workflow: &Workflow) {
        self.files.resize(workflow.files.len(), Meeting::default());
        let index = JobIndex::new(self.jobs.len());
        for file_use in &job.uses {
            self.meet(file_use.file, 0, index, file_use.link.writes());
        }
        self.jobs.push(job);
        self.origins.push(0);
        self.ends.push((vec![index], vec![index]));
    }

    fn replace(&mut self, job: &Job, part: Workflow, workflow: &mut Workflow, warnings: &mut Vec<String>) {
        self.parts += 1;
        let offset = self.jobs.len();
        let moved = |job: JobIndex| JobIndex::new(job.index() + offset);
        let names: Vec<FileId> = FileId::first(part.files.len())
            .map(|file| workflow.files.intern(part.files.name(file)))
            .collect();
        let renamed = |file: FileId| names[file];
        self.files.resize(workflow.files.len(), Meeting::default());
        let shared: FxHashMap<FileId, usize> = job
            .uses
            .iter()
            .enumerate()
            .filter(|(_, u)| Some(u.file) != job.file)
            .map(|(k, u)| (u.file, k))
            .collect();
        let outer = JobIndex::new(self.ends.len());
        self.listed.extend(shared.keys().map(|&file| (outer, file)));
        for &file in shared.keys() {
            self.files[file].shared = true;
        }
        let mut made = vec![false; job.uses.len()];
        let (mut has_parents, mut has_children) =
            (vec![false; part.jobs.len()], vec![false; part.jobs.len()]);
        for &(parent, child) in &part.edges {
            has_children[parent] = true;
            has_parents[child] = true;
            self.edges.push((moved(parent), moved(child)));
        }
        workflow.max_jobs.extend(part.max_jobs);
        let ends = |has: &[bool]| -> Vec<JobIndex> {
            let without = JobIndex::first(has.len()).filter(|&n| !has[n]);
            without.map(moved).collect()
        };
        self.ends.push((ends(&has_parents), ends(&has_children)));
        for mut inner in part.jobs {
            let index = JobIndex::new(self.jobs.len());
            inner.id = format!("{}.{}", job.id, inner.id);
            inner.position = job.position;
            for stream in [
                &mut inner.stdin,
                &mut inner.stdout,
                &mut inner.stderr,
                &mut inner.file,
            ] {
                *stream = stream.map(renamed);
            }
            for file_use in &mut inner.uses {
                file_use.file = renamed(file_use.file);
                let outer = shared.get(&file_use.file).copied();
                let owner = if outer.is_some() { 0 } else { self.parts };
                self.meet(file_use.file, owner, index, file_use.link.writes());
                let Some(k) = outer.filter(|_| file_use.link.writes()) else {
                    continue;
                };
                made[k] = true;
                let outer = &job.uses[k];
                if outer.link.writes() {
                    if outer.transfer != TransferFlag::Not && file_use.transfer == TransferFlag::Not {
                        file_use.transfer = outer.transfer;
                    }
                    file_use.register |= outer.register;
                }
            }
            self.jobs.push(inner);
            self.origins.push(self.parts);
        }
        for (k, outer) in job.uses.iter().enumerate() {
            if outer.link.writes() && !outer.optional && !made[k] {
                warnings.push(format!(
                    "the job {} lists the output {}, which no job of its workflow {} writes",
                    job.id,
                    workflow.files.name(outer.file),
                    part.path.display()
                ));
            }
        }
    }

    /// Shares the files that pass along the dependencies of sub-workflows.
    fn share_passing(&mut self, workflow: &Workflow, replicas: &Replicas) {
        let mut users: FxHashMap<FileId, Vec<User>> = FxHashMap::default();
        let is_met = |file: FileId| {
            let meeting = &self.files[file];
            meeting.written && meeting.other.is_some()
        };
        let outer_jobs = self.ends.len();
        let mut is_part = vec![false; outer_jobs];
        for (n, job) in self.jobs.iter().enumerate() {
            let outer = self.outer[n];
            is_part[outer] = self.origins[n] != 0;
            for file_use in job.uses.iter().filter(|u| is_met(u.file)) {
                let is_private = self.origins[n] != 0 && !self.listed.contains(&(outer, file_use.file));
                users.entry(file_use.file).or_default().push(User {
                    outer,
                    space: is_private.then_some(outer),
                    writes: file_use.link.writes(),
                });
            }
        }
        if users.is_empty() {
            return;
        }
        let mut dependencies = Dependencies::new(&workflow.edges, is_part);
        for (file, users) in users {
            if dependencies.pass(&users, replicas.knows(workflow.files.name(file))) {
                let meeting = &mut self.files[file];
                meeting.shared = true;
                meeting.other = None;
            }
        }
    }

    fn finish(mut self, workflow: &mut Workflow, replicas: &Replicas) -> Vec<Conflict> {
        self.share_passing(workflow, replicas);
        for &(parent, child) in &workflow.edges {
            for &last in &self.ends[parent].1 {
                for &first in &self.ends[child].0 {
                    self.edges.push((last, first));
                }
            }
        }
        let mut writers: FxHashMap<FileId, Vec<JobIndex>> = FxHashMap::default();
        let shared = |file: FileId| self.files[file].shared;
        for (n, job) in self.jobs.iter().enumerate() {
            for file_use in job.uses.iter().filter(|u| u.link.writes() && shared(u.file)) {
                writers.entry(file_use.file).or_default().push(JobIndex::new(n));
            }
        }
        // Between different parts, only the sub-workflow jobs had an order.
        for (n, job) in self.jobs.iter().enumerate() {
            for file_use in job.uses.iter().filter(|u| u.link.reads() && shared(u.file)) {
                for &writer in writers.get(&file_use.file).into_iter().flatten() {
                    if self.origins[writer] != self.origins[n] {
                        self.edges.push((writer, JobIndex::new(n)));
                    }
                }
            }
        }
        let conflicts = self.conflicts(workflow);
        self.edges.sort_unstable();
        self.edges.dedup();
        workflow.edges = self.edges;
        workflow.jobs = self.jobs;
        conflicts
    }

    /// Returns the file names that stand for several files. The first one has all parts that use any of them.
    fn conflicts(&self, workflow: &Workflow) -> Vec<Conflict> {
        let mut conflicts = Vec::new();
        let is_conflict = |meeting: &Meeting| meeting.other.is_some() && meeting.written;
        for (n, meeting) in self.files.iter().enumerate().filter(|(_, m)| is_conflict(m)) {
            let (Some((_, first)), Some((_, other))) = (meeting.first, meeting.other) else {
                continue;
            };
            let name = workflow.files.name(FileId::new(n));
            let id = |job: JobIndex| &self.jobs[job].id;
            let problem = Diagnostic::error(format!(
                "the jobs {} and {} would have the file {name} in one work directory, though it is not the same one: \
                 a sub-workflow shares only files that the job standing for it lists in its uses. List {name} there \
                 if it is the same file, or give one of the two another name",
                id(first),
                id(other)
            ));
            conflicts.push(Conflict {
                problem,
                reason: format!("its file {name} is another one than that of other jobs"),
                parts: Vec::new(),
            });
            if conflicts.len() == MAX_REPORTED {
                break;
            }
        }
        if let Some(first) = conflicts.first_mut() {
            let users = self.jobs.iter().enumerate().filter(|(n, job)| {
                self.origins[*n] != 0 && job.uses.iter().any(|u| is_conflict(&self.files[u.file]))
            });
            first.parts = users.map(|(n, _)| self.outer[n]).collect();
            first.parts.dedup();
        }
        conflicts
    }
}
