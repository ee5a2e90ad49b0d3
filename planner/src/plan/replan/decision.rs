//! Which tasks of a new plan stay done.

use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::exec::{ExecJob, JobId, Place, SiteId, Task, TransferSet};
use crate::graph::Graph;
use crate::ids::Id as _;
use crate::model::{FileId, Link};
use crate::refine::sites::Access;
use crate::tasks::Plan;

/// What happens to the tasks.
pub(super) struct Decision {
    /// Whether each job stays done.
    pub(super) keep: Vec<bool>,
    /// Edges between jobs that run, in addition to those of the plan. The plan may order two jobs only
    /// through a third one; if that stays done, nothing would order them.
    pub(super) edges: Vec<(JobId, JobId)>,
}

/// Decides. `same` jobs are done and unchanged; `forced` ones run again.
///
/// * A compute job runs again if it, a file that it reads, or a compute job before it has changed.
/// * Results of jobs that run again are staged out and registered again.
/// * A job that runs needs its input files. What makes a missing one runs again.
/// * Clean-up follows all jobs that run.
pub(super) fn decide(plan: &Plan<'_>, same: &[bool], forced: &[bool], with_dependents: bool) -> Decision {
    let jobs = same.iter().zip(forced);
    let mut decider = Decider {
        plan,
        graph: Graph::new(plan.exec.jobs.len(), &plan.exec.edges),
        keep: jobs.map(|(same, forced)| *same && !forced).collect(),
        makers: makers(plan),
    };
    decider.follow_changes(same, forced, with_dependents);
    decider.make_missing_files();
    decider.make_missing_directories();
    decider.follow_with_cleanup();
    let edges = decider.edges();
    Decision {
        keep: decider.keep,
        edges,
    }
}

/// A file in the work directory of a site.
type WorkFile = (FileId, SiteId);

struct Decider<'a> {
    plan: &'a Plan<'a>,
    graph: Graph<JobId>,
    keep: Vec<bool>,
    /// The job that puts each file into a work directory.
    makers: FxHashMap<WorkFile, JobId>,
}

fn moved<'a>(plan: &'a Plan<'_>, task: Task) -> &'a TransferSet {
    static NONE: TransferSet = TransferSet { files: Vec::new() };
    match task {
        Task::StageIn(n) | Task::StageOut(n) | Task::InterSite(n) => &plan.exec.transfers[n],
        _ => &NONE,
    }
}

fn makers(plan: &Plan<'_>) -> FxHashMap<WorkFile, JobId> {
    let mut makers = FxHashMap::default();
    for (id, job) in JobId::first(plan.exec.jobs.len()).zip(&plan.exec.jobs) {
        for u in plan.exec.uses(plan.workflow, job.task) {
            if u.link.writes() {
                makers.insert((u.file, job.staging), id);
            }
        }
        for file in &moved(plan, job.task).files {
            if let Place::Scratch(site) | Place::ScratchLink(site) = file.destination {
                makers.insert((file.file, site), id);
            }
        }
    }
    makers
}

impl Decider<'_> {
    fn task(&self, job: JobId) -> Task {
        self.plan.exec.jobs[job].task
    }

    fn keeps(&self, job: JobId) -> bool {
        self.keep[job]
    }

    fn any_parent_runs(&self, job: JobId) -> bool {
        self.graph.parents(job).iter().any(|&parent| !self.keeps(parent))
    }

    /// Follows changes from jobs to what uses their results.
    fn follow_changes(&mut self, same: &[bool], forced: &[bool], with_dependents: bool) {
        let exec = self.plan.exec;
        // Files whose content may be another one now, and files that are only made once more.
        let mut changed: FxHashSet<FileId> = FxHashSet::default();
        let mut fresh: FxHashSet<FileId> = FxHashSet::default();
        let mut altered = vec![false; self.keep.len()];
        for &id in &self.plan.order {
            let at = id.index();
            let job = &exec.jobs[id];
            match job.task {
                Task::Compute(_) | Task::Cluster(..) => {
                    let uses = exec.uses(self.plan.workflow, job.task);
                    let parents = self.graph.parents(id);
                    altered[at] = (!same[at] && !forced[at])
                        || (forced[at] && with_dependents)
                        || parents.iter().any(|&parent| altered[parent])
                        || uses.iter().any(|u| u.link.reads() && changed.contains(&u.file));
                    self.keep[at] &= !altered[at];
                    let written = uses.iter().filter(|u| u.link.writes()).map(|u| u.file);
                    if altered[at] {
                        changed.extend(written.clone());
                    }
                    if !self.keep[at] {
                        fresh.extend(written);
                    }
                }
                Task::StageOut(n) | Task::InterSite(n) => {
                    let files = &exec.transfers[n].files;
                    self.keep[at] &= !files.iter().any(|moved| fresh.contains(&moved.file));
                }
                Task::Register(n) => {
                    let entries = &exec.registrations[n].entries;
                    self.keep[at] &= !entries.iter().any(|(file, ..)| fresh.contains(file));
                }
                Task::StageIn(_)
                | Task::CreateDir
                | Task::Chmod(_)
                | Task::CleanUp(_)
                | Task::RemoveDir
                | Task::NoOp => {}
            }
        }
    }

    /// Returns the files in work directories without which a job cannot run.
    fn needs(&self, id: JobId) -> Vec<WorkFile> {
        let job = &self.plan.exec.jobs[id];
        let uses = self.plan.exec.uses(self.plan.workflow, job.task).iter();
        let needed = uses.filter(|u| matches!(u.link, Link::Input | Link::InOut) && !u.optional);
        let mut files: Vec<WorkFile> = needed.map(|u| (u.file, job.staging)).collect();
        match job.task {
            Task::StageOut(_) | Task::InterSite(_) => {
                for file in &moved(self.plan, job.task).files {
                    if let Some((Place::Scratch(site) | Place::ScratchLink(site), _)) = file.sources.first() {
                        files.push((file.file, *site));
                    }
                }
            }
            Task::Chmod(n) => {
                let programs = self.plan.exec.chmods[n].iter();
                files.extend(programs.map(|&file| (file, job.staging)));
            }
            _ => {}
        }
        files
    }

    /// Lets jobs run again whose results are needed and gone.
    fn make_missing_files(&mut self) {
        for &id in self.plan.order.iter().rev() {
            if self.keeps(id) {
                continue;
            }
            for (file, site) in self.needs(id) {
                let Some(&maker) = self.makers.get(&(file, site)) else {
                    continue;
                };
                if maker != id && self.keeps(maker) && !self.is_there(site, file) {
                    self.keep[maker] = false;
                }
            }
        }
    }

    /// Returns whether a file is in a work directory. What lies behind a server counts as missing.
    fn is_there(&self, site: SiteId, file: FileId) -> bool {
        if self.plan.sites.is_lite(site) {
            let (_, url) = self.plan.url(&Place::Scratch(site), file, Access::Get);
            return url
                .strip_prefix("file://")
                .is_some_and(|path| Path::new(path).exists());
        }
        let name = self.plan.workflow.files.name(file);
        Path::new(&self.plan.sites.scratch_path(site, name)).exists()
    }

    /// Lets missing work directories be made again in which jobs run.
    fn make_missing_directories(&mut self) {
        let exec = self.plan.exec;
        for (id, job) in exec.jobs.iter().enumerate() {
            let url = self.plan.sites.work_url(job.staging, Access::Put);
            let is_there = url
                .strip_prefix("file://")
                .is_some_and(|path| Path::new(path).is_dir());
            if !matches!(job.task, Task::CreateDir) || is_there {
                continue;
            }
            let runs_there = |(other, kept): (&ExecJob, &bool)| {
                let is_user = !matches!(other.task, Task::CreateDir | Task::RemoveDir);
                is_user && !kept && other.staging == job.staging
            };
            if exec.jobs.iter().zip(&self.keep).any(runs_there) {
                self.keep[id] = false;
            }
        }
    }

    /// Lets jobs run again that follow others and do not use their files.
    fn follow_with_cleanup(&mut self) {
        for &id in &self.plan.order {
            let staging = self.plan.exec.jobs[id].staging;
            let runs = match self.task(id) {
                Task::Chmod(_) => self.any_parent_runs(id),
                Task::CleanUp(n) => {
                    let removed = &self.plan.exec.removals[n];
                    let mut makers = removed
                        .iter()
                        .filter_map(|&file| self.makers.get(&(file, staging)));
                    self.any_parent_runs(id) || makers.any(|&maker| !self.keeps(maker))
                }
                Task::RemoveDir => {
                    let jobs = &self.plan.exec.jobs;
                    let mut jobs = JobId::first(jobs.len()).zip(jobs);
                    jobs.any(|(other, job)| other != id && job.staging == staging && !self.keeps(other))
                }
                _ => false,
            };
            if runs {
                self.keep[id] = false;
            }
        }
    }

    /// Returns the edges that order the jobs that run, as far as the plan does so only through others.
    fn edges(&self) -> Vec<(JobId, JobId)> {
        let exec = self.plan.exec;
        let mut edges: FxHashSet<(JobId, JobId)> = FxHashSet::default();
        let mut users: FxHashMap<WorkFile, Vec<JobId>> = FxHashMap::default();
        let running: Vec<JobId> = self
            .plan
            .order
            .iter()
            .copied()
            .filter(|&id| !self.keeps(id))
            .collect();
        for &id in &running {
            for file in self.needs(id) {
                users.entry(file).or_default().push(id);
                if let Some(&maker) = self
                    .makers
                    .get(&file)
                    .filter(|&&maker| maker != id && !self.keeps(maker))
                {
                    edges.insert((maker, id));
                }
            }
        }
        for &id in &running {
            let staging = exec.jobs[id].staging;
            let here = running
                .iter()
                .copied()
                .filter(|&other| exec.jobs[other].staging == staging);
            match self.task(id) {
                Task::CreateDir => {
                    let first = here.filter(|&other| other != id && !self.any_parent_runs(other));
                    edges.extend(first.map(|other| (id, other)));
                }
                Task::CleanUp(n) => {
                    for &file in &exec.removals[n] {
                        let users = users.get(&(file, staging)).into_iter().flatten();
                        let maker = self
                            .makers
                            .get(&(file, staging))
                            .filter(|&&maker| !self.keeps(maker));
                        edges.extend(users.chain(maker).map(|&other| (other, id)));
                    }
                }
                Task::RemoveDir => {
                    let has_next =
                        |other: JobId| self.graph.children(other).iter().any(|&child| !self.keeps(child));
                    let last = here.filter(|&other| {
                        other != id && !matches!(self.task(other), Task::RemoveDir) && !has_next(other)
                    });
                    edges.extend(last.map(|other| (other, id)));
                }
                _ => {}
            }
        }
        let mut edges: Vec<_> = edges
            .into_iter()
            .filter(|(parent, child)| !self.graph.parents(*child).contains(parent))
            .collect();
        edges.sort_unstable();
        edges
    }
}
