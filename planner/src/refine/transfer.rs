//! Transfer and registration jobs. Linear in jobs, edges and file uses: each file has one producer, found by
//! its number.

mod deleted;
mod partitioner;
mod stage_in;
mod stage_out;
mod uses;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::error::PlanError;
use crate::model::{FileId, FileKind, FileUse, JobIndex, Link, Nested, TransferFlag, Workflow};
use crate::profiles::parse_bool;

use super::Refinement;
use super::java_hash_order;
use super::mapping::{Mapper, StagedPrograms};
use super::output_mapper::Storage;
use super::replicas::{ADVISED, Locations, Replicas, missing_text};
use super::select::{Direction, LeftOut, Selected, Side, select, side};
use super::settings::{Integrity, Refiner};
use super::sites::Access;
use super::staging_sites::directory_of;
use crate::exec::{
    Attributes, Exec, ExecJob, FileTransfer, JobId, ListId, Place, Registration, SiteId, Task, TransferSet,
};
use crate::file_state::Bypassed;
use crate::graph::Graph;
use crate::ids::Id;

use partitioner::{DELETED_LEVEL, Flow, JobPartitioner, Key, Share};
use uses::OrderedUses;

/// How a file came into a work directory.
#[derive(Clone, Copy, Debug, Default)]
struct Staged {
    /// Its transfer job; `None` if the file was already there.
    transfer: Option<JobId>,
    /// Makes it executable.
    chmod: Option<JobId>,
}

/// The compute job whose files are staged now.
#[derive(Clone, Copy, Debug)]
struct CurrentJob {
    n: JobIndex,
    job: JobId,
    /// Its staging site.
    site: SiteId,
    level: u32,
    /// Number of compute jobs on its level.
    width: u32,
}

/// Builds the transfer jobs.
struct Builder<'a, 'm> {
    workflow: &'a Workflow,
    exec: &'a mut Exec,
    mapper: &'a mut Mapper<'m>,
    replicas: &'a Replicas,
    staged_programs: &'a StagedPrograms,
    /// Number of each abstract job in the executable workflow.
    numbers: &'a [Option<JobId>],
    /// Kept job that writes each file.
    producers: Vec<Option<JobIndex>>,
    staged: FxHashMap<(FileId, SiteId), Staged>,
    partitioner: JobPartitioner<'m>,
    /// All jobs work in one directory.
    one_site: bool,
    /// Programs in containers read the work directories.
    has_shared_containers: bool,
    /// The latest compute job with an inter-site job, and that job.
    inter: Option<(JobId, JobId)>,
    missing: Vec<Missing>,
    missing_files: FxHashMap<FileId, usize>,
    left_out: LeftOut,
    storage: Storage<'a>,
    /// The current job has outputs to deliver.
    delivers: bool,
    /// Jobs that register outputs of the current job in place.
    registered: Vec<JobId>,
}

/// A file without location.
struct Missing {
    file: FileId,
    /// The first job that reads it.
    job: JobIndex,
    others: usize,
    hint: Option<String>,
}

/// Step: adds stage-in, inter-site, stage-out, registration and chmod jobs.
///
/// # Errors
/// All files without a usable location.
pub(super) fn add_transfers(refinement: &mut Refinement<'_, '_>) -> Result<(), PlanError> {
    let Refinement {
        workflow,
        exec,
        mapper,
        replicas,
        mapped,
        reduced,
        ..
    } = refinement;
    let workflow: &Workflow = workflow;
    let is_unchanged = exec.deleted == 0 && exec.clusters.is_empty();
    let owed = deleted::in_order(workflow, &refinement.graph, &mapper.prefix, &reduced.owed);
    let graph = match is_unchanged {
        true => std::mem::take(&mut refinement.graph),
        false => Graph::new(reduced.kept.len(), &reduced.edges),
    };
    let graph = &graph;
    let roots = graph.roots().filter(|&n| reduced.kept[n]).collect();
    // Hashes are needed once per edge, in random order, so they are computed in advance.
    let hash = |job: JobId| java_hash_order::hash(&exec.jobs[job].name);
    let hashes: Vec<u32> = mapped.numbers.iter().map(|job| job.map_or(0, hash)).collect();
    let mut entries = vec![0u32; graph.len()];
    for &(parent, _) in &workflow.edges {
        entries[parent] += 1;
    }
    let levels = levels(graph, roots, &entries, &hashes);
    drop((entries, hashes));
    exec.edges.extend(mapped.edges(&reduced.edges));
    let (uses, producers) = OrderedUses::new(workflow, exec, &mapped.numbers);
    exec.cache.reserve(workflow.files.len());
    let one_site = exec.jobs.windows(2).all(|two| two[0].staging == two[1].staging);
    let has_shared_containers = exec.has_shared_containers();
    let partitioner = JobPartitioner::new(mapper.settings, mapper.sites);
    let storage = Storage::new(workflow, mapper.sites, &mapper.settings.storage_mapper, replicas);
    let mut builder = Builder {
        workflow,
        exec,
        mapper,
        replicas,
        staged_programs: &mapped.staged,
        numbers: &mapped.numbers,
        producers,
        staged: FxHashMap::default(),
        partitioner,
        one_site,
        has_shared_containers,
        inter: None,
        missing: Vec::new(),
        missing_files: FxHashMap::default(),
        left_out: LeftOut::default(),
        storage,
        delivers: false,
        registered: Vec::new(),
    };
    for (level, jobs) in levels.iter().enumerate() {
        for &n in jobs {
            builder.stage_job(n, level as u32, jobs.len() as u32, graph, &uses);
        }
    }
    if builder.mapper.settings.refiner != Refiner::Empty {
        builder.deliver(&owed);
    }
    builder.finish()
}

/// Returns the jobs by depth, each level in the order in which its files are distributed: that of a search
/// from the roots that visits a job after all its parents. `entries` are the numbers of children before data
/// reuse, since Java tables do not shrink. `hashes` are those of the names.
fn levels<N: Id>(graph: &Graph<N>, mut roots: Vec<N>, entries: &[u32], hashes: &[u32]) -> Vec<Vec<N>> {
    let hash = |n: &N| hashes[n.index()];
    let mut waiting = graph.parent_counts();
    java_hash_order::sort_hashed(&mut roots, graph.len(), hash);
    let mut levels = Vec::new();
    let mut level = roots;
    let mut children = Vec::new();
    while !level.is_empty() {
        let mut next = Vec::new();
        for &n in &level {
            children.clear();
            children.extend_from_slice(graph.children(n));
            let size = children.len().max(entries[n.index()] as usize);
            java_hash_order::sort_hashed(&mut children, size, hash);
            for &child in &children {
                let left = &mut waiting[child.index()];
                *left -= 1;
                if *left == 0 {
                    next.push(child);
                }
            }
        }
        levels.push(std::mem::replace(&mut level, next));
    }
    levels
}

impl Builder<'_, '_> {
    fn finish(mut self) -> Result<(), PlanError> {
        let warnings = self.left_out.warnings(self.mapper.settings);
        self.exec.warnings.extend(warnings);
        let (mut problems, warning) = self.storage.unknown(self.workflow);
        self.exec.warnings.extend(warning);
        self.missing.sort_by_key(|missing| (missing.job, missing.file));
        problems.extend(self.missing.iter().map(|missing| {
            missing_text(
                self.workflow.files.name(missing.file),
                self.name_of(missing.job),
                missing.others,
                missing.hint.as_deref(),
            )
        }));
        PlanError::check(problems)
    }

    /// Adds all transfers of one compute job.
    fn stage_job(
        &mut self,
        n: JobIndex,
        level: u32,
        width: u32,
        graph: &Graph<JobIndex>,
        uses: &OrderedUses,
    ) {
        let Some(job) = self.numbers[n] else { return };
        let site = self.exec.jobs[job].staging;
        let current = CurrentJob {
            n,
            job,
            site,
            level,
            width,
        };
        if self.exec.is_lite(&self.exec.jobs[job]) {
            let inputs = uses.inputs(n).iter().map(|ordered| ordered.file);
            let files = inputs.chain(uses.outputs(n).map(|(ordered, _)| ordered.file));
            let mapper = self.mapper.settings.staging_mapper;
            self.exec.directories.add_job(mapper, files);
        }
        if self.mapper.settings.refiner == Refiner::Empty {
            return self.leave_in_place(n, site, uses);
        }
        let mut programs = Vec::new();
        let first_edge = self.exec.edges.len();
        let mut dropped = FxHashSet::default();
        for ordered in uses.inputs(n) {
            if self.is_workflow_here(job, ordered.file) {
                self.exec.files.change_at(ordered.file, site).is_in_place = true;
                continue;
            }
            self.pass_to_nested(current, graph, *ordered);
            if self.comes_from_parent(current, graph, ordered.file)
                || self.bypass(job, *ordered)
                || self.is_staged(current, ordered.file)
            {
                continue;
            }
            let file_use = self.uses_of(job)[ordered.at as usize].clone();
            if !self.stage_input(current, &file_use, &mut programs) {
                dropped.insert(ordered.file);
            }
        }
        if self.add_chmod(current, &programs) && self.mapper.settings.refiner == Refiner::Basic {
            // The job's only transfer precedes its chmod job.
            let transfers: FxHashSet<JobId> = programs.iter().map(|&(_, transfer)| transfer).collect();
            let mut edges = self.exec.edges.split_off(first_edge);
            edges.retain(|(before, after)| *after != job || !transfers.contains(before));
            self.exec.edges.append(&mut edges);
        }
        let outputs = || {
            uses.outputs(n)
                .filter(|(ordered, _)| !dropped.contains(&ordered.file))
        };
        self.exec
            .cache
            .extend(outputs().map(|(ordered, _)| (ordered.file, site)));
        // Site by site, as in Pegasus.
        for output in 0..self.mapper.sites.outputs.len() {
            for (ordered, _) in outputs().filter(|&(_, is_stored)| is_stored) {
                let file_use = self.uses_of(job)[ordered.at as usize].clone();
                self.stage_output(current, &file_use, output as u16);
            }
        }
        self.finish_outputs(job);
        if !dropped.is_empty() {
            self.forget(job, &dropped);
        }
    }

    /// Records the files that stay with the refiner Empty: the user provides inputs in the work directory,
    /// and outputs stay there.
    fn leave_in_place(&mut self, n: JobIndex, site: SiteId, uses: &OrderedUses) {
        for ordered in uses.inputs(n) {
            self.exec.cache.push((ordered.file, site));
            if self.producers[ordered.file].is_none() {
                self.exec.files.change_at(ordered.file, site).is_in_place = true;
                self.exec.files.change(ordered.file).stays = true;
            }
        }
        let outputs = uses.outputs(n);
        self.exec
            .cache
            .extend(outputs.map(|(ordered, _)| (ordered.file, site)));
    }

    /// Returns the files that a job or cluster uses.
    fn uses_of(&self, job: JobId) -> &[FileUse] {
        self.exec.uses(self.workflow, self.exec.jobs[job].task)
    }

    /// Returns the name of a job or cluster in the plan.
    fn name_of(&self, n: JobIndex) -> &str {
        self.numbers[n].map_or("", |job| &self.exec.jobs[job].name)
    }

    /// Removes inputs without location from a job, or from the jobs of a cluster.
    fn forget(&mut self, job: JobId, files: &FxHashSet<FileId>) {
        let task = self.exec.jobs[job].task;
        let jobs = match task {
            Task::Cluster(cluster, _) => {
                let members = &self.exec.clusters[cluster].members;
                &self.exec.members[members.clone()]
            }
            _ => std::slice::from_ref(&self.exec.jobs[job]),
        };
        for job in jobs {
            if let Task::Compute(n) = job.task {
                let uses = without(&self.workflow.jobs[n].uses, files);
                self.exec.changed.insert(n, uses);
            }
        }
        if let Task::Cluster(cluster, _) = task {
            let uses = &mut self.exec.clusters[cluster].uses;
            uses.retain(|u| !files.contains(&u.file));
        }
    }

    fn assign(
        &mut self,
        key: Key,
        CurrentJob {
            job, level, width, ..
        }: CurrentJob,
    ) -> Share {
        self.partitioner.assign(key, Some(job), level, width)
    }

    /// Returns the job that transfers a share of files: a new one for the first of them.
    fn transfer_job(&mut self, share: Share) -> JobId {
        if let Some(transfer) = self.partitioner.jobs_of(share).transfer {
            return transfer;
        }
        let list = ListId::new(self.exec.transfers.len());
        self.exec.transfers.push(TransferSet::default());
        let (flow, site, side) = share.key;
        let (kind, task) = match flow {
            Flow::In => ("stage_in", Task::StageIn(list)),
            Flow::Out => ("stage_out", Task::StageOut(list)),
        };
        let share_name = match self.only_job(share) {
            Some(job) => format!("{job}_0"),
            None => self.share_name(share),
        };
        let name = format!("{kind}_{}_{share_name}", side.as_str());
        let transfer = self.add_job(name, task, self.site_of(side, site), site);
        self.partitioner.jobs_of(share).transfer = Some(transfer);
        transfer
    }

    /// Returns the job that registers a share of files: a new one for the first of them.
    fn registration_job(&mut self, share: Share) -> JobId {
        if let Some(registration) = self.partitioner.jobs_of(share).registration {
            return registration;
        }
        let share_name = self.only_job(share).map(str::to_owned);
        let name = format!(
            "register_{}",
            share_name.unwrap_or_else(|| self.share_name(share))
        );
        let task = Task::Register(ListId::new(self.exec.registrations.len()));
        self.exec.registrations.push(Registration::default());
        let registration = self.add_job(name, task, self.mapper.sites.local(), share.key.1);
        self.partitioner.jobs_of(share).registration = Some(registration);
        registration
    }

    /// Returns the name of the one job whose files a share has: with the refiner Basic.
    fn only_job(&self, share: Share) -> Option<&str> {
        let job = share
            .job
            .filter(|_| self.mapper.settings.refiner == Refiner::Basic)?;
        Some(&self.exec.jobs[job].name)
    }

    /// Returns the name of a share with the files of several jobs.
    fn share_name(
        &self,
        Share {
            key, level, number, ..
        }: Share,
    ) -> String {
        let (prefix, site) = (&self.mapper.prefix, self.site_name(key.1));
        match (self.mapper.settings.refiner, key.0) {
            (Refiner::Bundle, Flow::In) => format!("{prefix}{site}_{number}"),
            _ => format!("{prefix}{site}_{level}_{number}"),
        }
    }

    fn set_of(&mut self, transfer: JobId) -> &mut TransferSet {
        let number = match self.exec.jobs[transfer].task {
            Task::StageIn(n) | Task::StageOut(n) | Task::InterSite(n) => n,
            _ => ListId::new(0),
        };
        &mut self.exec.transfers[number]
    }

    /// Copies a file of a parent from another site in an inter-site job.
    fn inter_site(&mut self, job: JobId, site: SiteId, producer: JobIndex, file: FileId) {
        if self.one_site {
            return;
        }
        let Some(source) = self.numbers[producer] else {
            return;
        };
        let from = self.exec.jobs[source].staging;
        if from == site {
            return;
        }
        if let Some(&Staged {
            transfer: Some(transfer),
            ..
        }) = self.staged.get(&(file, site))
        {
            self.exec.edges.push((transfer, job));
            return;
        }
        if self.work_url(from, file, Access::Put) == self.work_url(site, file, Access::Put) {
            return;
        }
        let transfer = match self.inter {
            Some((of, transfer)) if of == job => transfer,
            _ => {
                let runs = side(self.mapper.settings, self.mapper.sites, site, Direction::Inter);
                let base = format!("stage_inter_{}_{}_0", runs.as_str(), self.exec.jobs[job].name);
                let task = Task::InterSite(ListId::new(self.exec.transfers.len()));
                self.exec.transfers.push(TransferSet::default());
                let transfer = self.add_job(base, task, self.site_of(runs, site), site);
                self.inter = Some((job, transfer));
                transfer
            }
        };
        self.set_of(transfer).files.push(FileTransfer {
            file,
            sources: vec![(Place::Scratch(from), None)],
            destination: Place::Scratch(site),
            generate_checksum: false,
            optional: false,
            metadata: None,
        });
        self.exec.edges.push((source, transfer));
        self.exec.edges.push((transfer, job));
        self.exec.cache.push((file, site));
        self.staged.insert(
            (file, site),
            Staged {
                transfer: Some(transfer),
                chmod: None,
            },
        );
    }

    /// Returns the URL of a file in the work directory of a site.
    fn work_url(&self, site: SiteId, file: FileId, access: Access) -> String {
        let base = self.mapper.sites.work_url(site, access);
        let directory = directory_of(self.exec, self.mapper.sites, site, file);
        format!("{base}/{directory}/{}", self.workflow.files.name(file))
    }

    fn site_of(&self, side: Side, site: SiteId) -> SiteId {
        match side {
            Side::Local => self.mapper.sites.local(),
            Side::Remote => site,
        }
    }

    fn add_job(&mut self, name: String, task: Task, site: SiteId, staging: SiteId) -> JobId {
        let setup = self.mapper.auxiliary_setup(task, site, self.exec);
        self.exec.add(ExecJob {
            name: name.into(),
            task,
            site,
            staging,
            setup,
        })
    }

    fn site_name(&self, site: SiteId) -> &str {
        &self.mapper.sites.get(site).name
    }
}

/// Returns the file uses without those of some files.
fn without(uses: &[FileUse], files: &FxHashSet<FileId>) -> Vec<FileUse> {
    uses.iter()
        .filter(|u| !files.contains(&u.file))
        .cloned()
        .collect()
}

/// Returns the metadata that a user or producer of a file gives.
fn attributes(file_use: &FileUse) -> Attributes {
    let all: Vec<(String, String)> = file_use
        .metadata
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .collect();
    (!all.is_empty()).then(|| all.into_boxed_slice())
}

/// Returns whether two URLs or paths name the same file.
fn same_place(a: &str, b: &str) -> bool {
    fn parts(url: &str) -> impl Iterator<Item = &str> {
        url.strip_prefix("file://")
            .unwrap_or(url)
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
    }
    parts(a).eq(parts(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_follows_the_order_of_the_level_above() {
        let names = ["part_F1", "part_F6", "mix_A", "mix_B", "mix_C"];
        // Of the roots, part_F6 comes first; mix_C waits for both.
        let edges = [(0, 2), (0, 4), (1, 3), (1, 4)];
        let graph = Graph::new(names.len(), &edges);
        let hashes = names.map(java_hash_order::hash);
        let found = levels(&graph, vec![0, 1], &[2, 2, 0, 0, 0], &hashes);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], [1, 0]);
        assert_eq!(found[1][0], 3);
        let mut all = found.concat();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn places_are_compared_by_path() {
        assert!(same_place("file:///a/./b", "/a/b"));
        assert!(!same_place("file:///a/b", "/a/c"));
        assert!(!same_place("http://h/a", "https://h/a"));
    }
}
