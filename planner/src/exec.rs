//! The executable workflow: the jobs of the abstract workflow, and jobs that move, register and remove files.
//! Jobs, sites and sets of files are dense numbers, so that a million jobs fit into memory.

use std::ops::Range;

use crate::catalog::transformation::Container;
use crate::data_mode::{DataMode, FileDirectories};
use crate::file_state::{Bypassed, FileStates};
pub(crate) use crate::ids::{EntryId, JobId, ListId, SetupId, SiteId};
use crate::model::{FileId, FileUse, JobIndex, JobKind, Link, Workflow};

/// A job of the executable workflow.
#[derive(Clone, Debug)]
pub(crate) struct ExecJob {
    /// Unique name.
    pub(crate) name: Box<str>,
    /// What it does.
    pub(crate) task: Task,
    /// Site that it runs on.
    pub(crate) site: SiteId,
    /// Site whose work directory it works in.
    pub(crate) staging: SiteId,
    /// Program and profiles, index into [`Exec::setups`].
    pub(crate) setup: SetupId,
}

/// What a job does; the numbers are indices into the lists of [`Exec`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Runs a job of the abstract workflow.
    Compute(JobIndex),
    /// Runs several jobs of the abstract workflow: [`Exec::clusters`].
    Cluster(ListId, Aggregator),
    /// Copies inputs into the work directory: [`Exec::transfers`].
    StageIn(ListId),
    /// Copies outputs to the output sites: [`Exec::transfers`].
    StageOut(ListId),
    /// Copies files between work directories: [`Exec::transfers`].
    InterSite(ListId),
    /// Enters outputs into the replica catalog: [`Exec::registrations`].
    Register(ListId),
    /// Makes the work directory of its site.
    CreateDir,
    /// Removes files from the work directory: [`Exec::removals`].
    CleanUp(ListId),
    /// Removes the work directory of its site.
    RemoveDir,
    /// Makes staged programs executable: [`Exec::chmods`].
    Chmod(ListId),
    /// Does nothing. The only job of a plan without work.
    NoOp,
}

impl Task {
    /// Type and its description in the event file.
    pub(crate) fn kind(self) -> (u8, &'static str) {
        match self {
            Task::Compute(_) | Task::Cluster(..) => (1, "compute"),
            Task::StageIn(_) => (2, "stage-in-tx"),
            Task::StageOut(_) => (3, "stage-out-tx"),
            Task::Register(_) => (4, "registration"),
            Task::InterSite(_) => (5, "inter-site-tx"),
            // The jobs that do nothing take part in making directories, or stand for them, as in Pegasus.
            Task::CreateDir | Task::NoOp => (6, "create-dir"),
            Task::CleanUp(_) | Task::RemoveDir => (8, "cleanup"),
            Task::Chmod(_) => (9, "chmod"),
        }
    }
    /// Returns the transformation for kickstart and events; empty for compute jobs, which have their own.
    pub(crate) fn transformation(self) -> &'static str {
        match self {
            Task::Compute(_) => "",
            Task::Cluster(_, aggregator) => aggregator.transformation(),
            Task::StageIn(_) | Task::StageOut(_) | Task::InterSite(_) => "pegasus::transfer",
            Task::Register(_) => "pegasus::rc-client",
            Task::CreateDir => "pegasus::dirmanager",
            Task::CleanUp(_) | Task::RemoveDir => "pegasus::cleanup",
            Task::Chmod(_) => "system::chmod",
            Task::NoOp => "pegasus::noop",
        }
    }
}

/// Program that runs the jobs of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Aggregator {
    /// pegasus-cluster, one after the other.
    #[default]
    SeqExec,
    /// pegasus-mpi-cluster, on a DAG of its own.
    MpiExec,
}

impl Aggregator {
    /// Parses its name in properties and profiles.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "seqexec" | "pegasus-cluster" => Some(Aggregator::SeqExec),
            "mpiexec" | "pegasus-mpi-cluster" => Some(Aggregator::MpiExec),
            _ => None,
        }
    }
    /// Returns its transformation.
    pub(crate) fn transformation(self) -> &'static str {
        match self {
            Aggregator::SeqExec => "pegasus::seqexec",
            Aggregator::MpiExec => "pegasus::mpiexec",
        }
    }
}

/// Jobs that run as one.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    /// Its jobs, parents before children: a part of [`Exec::members`].
    pub(crate) members: Range<usize>,
    /// The job that runs them.
    pub(crate) job: JobId,
    /// Program that runs them.
    pub(crate) aggregator: Aggregator,
    /// Files that they use together.
    pub(crate) uses: Vec<FileUse>,
    /// Edges between them (parent, child), as positions in [`Exec::members`].
    pub(crate) edges: Vec<(usize, usize)>,
}

/// Source or destination of a file. Writers of URLs append the name of the file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// The work directory of a site.
    Scratch(SiteId),
    /// A symbolic link in the work directory of a site.
    ScratchLink(SiteId),
    /// The storage directory of an output site, by its position in the list of output sites.
    Storage(u16),
    /// A complete URL and the site that it is on.
    Url(Box<str>, Box<str>),
}

/// Keys and values, mostly none.
pub(crate) type Attributes = Option<Box<[(String, String)]>>;

/// One file to be moved.
#[derive(Clone, Debug)]
pub(crate) struct FileTransfer {
    /// The file.
    pub(crate) file: FileId,
    /// Sources with their priorities, best first.
    pub(crate) sources: Vec<(Place, Option<u32>)>,
    /// Destination.
    pub(crate) destination: Place,
    /// The transfer computes a checksum, since the catalog has none.
    pub(crate) generate_checksum: bool,
    /// The source may be missing: an optional output or a checkpoint.
    pub(crate) optional: bool,
    /// Metadata of the file.
    pub(crate) metadata: Attributes,
}

/// Files that one transfer job moves.
#[derive(Clone, Debug, Default)]
pub(crate) struct TransferSet {
    /// Files in the order of the requests.
    pub(crate) files: Vec<FileTransfer>,
}

/// Files that one registration job enters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registration {
    /// File, its location and its metadata.
    pub(crate) entries: Vec<(FileId, Place, Attributes)>,
    /// Compute jobs whose metadata files belong to the entries.
    pub(crate) producers: Vec<JobId>,
}

/// Program and profiles, shared by jobs with equal ones.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Path of the program.
    pub(crate) executable: std::sync::Arc<str>,
    /// Profiles from all sources, merged.
    pub(crate) profiles: crate::profiles::Profiles,
    /// The program is staged by the workflow.
    pub(crate) staged: bool,
    /// How its jobs get their files.
    pub(crate) mode: DataMode,
    /// What its jobs run: a nested sub-workflow, or a program.
    pub(crate) kind: JobKind,
    /// What the program runs in.
    pub(crate) container: Option<std::sync::Arc<Container>>,
    /// Its jobs run in clusters that have directories of their own, and share those.
    pub(crate) in_cluster: bool,
    /// It is the planner of a nested sub-workflow, and fetches what it reads from a server into a directory
    /// of its own.
    pub(crate) fetches_for_planner: bool,
    /// Its jobs need several hosts at once.
    pub(crate) nodes: Option<crate::task_request::JobNodes>,
    /// Index of the catalog entry that has hooks and metadata of the transformation.
    pub(crate) entry: Option<EntryId>,
}

/// The executable workflow, built by the refinement.
#[derive(Debug, Default)]
pub(crate) struct Exec {
    /// Jobs in order of creation.
    pub(crate) jobs: Vec<ExecJob>,
    /// Clusters of compute jobs.
    pub(crate) clusters: Vec<Cluster>,
    /// Compute jobs that run in clusters; where their numbers and those of [`Exec::jobs`] meet, theirs
    /// follow.
    pub(crate) members: Vec<ExecJob>,
    /// (parent, child), kept free of duplicates by [`Exec::tidy_edges`].
    pub(crate) edges: Vec<(JobId, JobId)>,
    /// File lists of transfer jobs.
    pub(crate) transfers: Vec<TransferSet>,
    /// File lists of registration jobs.
    pub(crate) registrations: Vec<Registration>,
    /// File lists of clean-up jobs.
    pub(crate) removals: Vec<Vec<FileId>>,
    /// Lists of programs to make executable.
    pub(crate) chmods: Vec<Vec<FileId>>,
    /// Programs and profiles.
    pub(crate) setups: Vec<Setup>,
    /// What is known of the files, beyond their uses.
    pub(crate) files: FileStates,
    /// Lines of the cache file for inputs that bypass the staging site: file, URL, site.
    pub(crate) bypassing: Vec<(FileId, Box<str>, Box<str>)>,
    /// Directories of files in the work directories of staging sites.
    pub(crate) directories: FileDirectories,
    /// Lines of the cache file: file, and site of its work directory.
    pub(crate) cache: Vec<(FileId, SiteId)>,
    /// Inputs of nested sub-workflows in the work directory, but for those that only their planner needs.
    pub(crate) nested_inputs: rustc_hash::FxHashMap<JobId, Vec<FileId>>,
    /// New file uses of abstract jobs that do without some files. Moved into the workflow at the end.
    pub(crate) changed: rustc_hash::FxHashMap<JobIndex, Vec<FileUse>>,
    /// Jobs that data reuse removed.
    pub(crate) deleted: usize,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
}

impl Exec {
    /// Adds a job.
    pub(crate) fn add(&mut self, job: ExecJob) -> JobId {
        self.jobs.push(job);
        JobId::new(self.jobs.len() - 1)
    }
    /// Returns the files that a compute job or cluster uses.
    pub(crate) fn uses<'a>(&'a self, workflow: &'a Workflow, task: Task) -> &'a [FileUse] {
        match task {
            Task::Compute(n) if !self.changed.is_empty() => match self.changed.get(&n) {
                Some(uses) => uses,
                None => &workflow.jobs[n].uses,
            },
            Task::Compute(n) => &workflow.jobs[n].uses,
            Task::Cluster(n, _) => &self.clusters[n].uses,
            _ => &[],
        }
    }
    /// Returns from where a job fetches a file past its staging site; `None` if it does not.
    pub(crate) fn bypassed(&self, job: &ExecJob, u: &FileUse) -> Option<&Bypassed> {
        if !u.link.reads() || u.link == Link::Checkpoint {
            return None;
        }
        let bypassed = self.files.at(u.file, job.site).bypassed.as_deref();
        bypassed.filter(|bypassed| bypassed.by_all || u.bypass)
    }
    /// Returns whether an input may be missing when its job starts: an optional one that another job makes.
    pub(crate) fn may_be_missing(&self, u: &FileUse) -> bool {
        u.optional && !self.files.of(u.file).is_found
    }
    /// Returns whether a job works in a directory on its node: one of its own, or that of its cluster.
    pub(crate) fn is_lite(&self, job: &ExecJob) -> bool {
        let setup = &self.setups[job.setup];
        let is_compute = matches!(job.task, Task::Compute(_) | Task::Cluster(..));
        is_compute && setup.kind == JobKind::Compute && setup.mode.is_lite()
    }
    /// Returns whether a job has a directory of its own on its node.
    pub(crate) fn has_own_directory(&self, job: &ExecJob) -> bool {
        (self.is_lite(job) && !self.setups[job.setup].in_cluster) || self.fetches_for_planner(job)
    }
    /// Returns whether a job is the planner of a nested sub-workflow that fetches its files from a server.
    pub(crate) fn fetches_for_planner(&self, job: &ExecJob) -> bool {
        self.setups[job.setup].fetches_for_planner
    }
    /// Returns whether a job is a nested sub-workflow.
    pub(crate) fn is_nested(&self, job: &ExecJob) -> bool {
        self.setups[job.setup].kind != JobKind::Compute
    }
    /// Returns type of a job and its description in the event file.
    pub(crate) fn event_type(&self, job: &ExecJob) -> (u8, &'static str) {
        match self.setups[job.setup].kind {
            JobKind::Compute => job.task.kind(),
            kind => kind.event_type(),
        }
    }
    /// Returns whether `pegasus-lite` runs a job: it has a directory of its own, or runs in a container.
    pub(crate) fn has_description(&self, job: &ExecJob) -> bool {
        let setup = &self.setups[job.setup];
        let is_compute = matches!(job.task, Task::Compute(_)) && setup.kind == JobKind::Compute;
        self.has_own_directory(job) || (is_compute && setup.container.is_some())
    }
    /// Returns whether programs in containers share the work directory of a site with other jobs.
    pub(crate) fn has_shared_containers(&self) -> bool {
        let mut setups = self.setups.iter();
        setups.any(|setup| setup.container.is_some() && !setup.mode.is_lite())
    }
    /// Returns the first job of the abstract workflow that a job runs.
    pub(crate) fn leading(&self, task: Task) -> Option<JobIndex> {
        match task {
            Task::Compute(n) => Some(n),
            Task::Cluster(n, _) => {
                let first = self.members.get(self.clusters[n].members.start)?;
                self.leading(first.task)
            }
            _ => None,
        }
    }
    /// Returns all compute jobs, inside and outside of clusters, with the abstract job that they run.
    pub(crate) fn computing(&self) -> impl Iterator<Item = (&ExecJob, JobIndex)> {
        self.jobs
            .iter()
            .chain(&self.members)
            .filter_map(|job| match job.task {
                Task::Compute(n) => Some((job, n)),
                _ => None,
            })
    }
    /// Sorts the edges by parent and child and drops duplicates.
    pub(crate) fn tidy_edges(&mut self) {
        // Stable sort is fast for edges that are mostly sorted.
        self.edges.sort();
        self.edges.dedup();
    }
    /// Returns the current graph of the jobs.
    pub(crate) fn graph(&mut self) -> crate::graph::Graph<JobId> {
        self.tidy_edges();
        crate::graph::Graph::new(self.jobs.len(), &self.edges)
    }
}

/// Numbers of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs of the abstract workflow.
    pub tasks: usize,
    /// Jobs of the abstract workflow that data reuse removed.
    pub deleted: usize,
    /// Jobs of the abstract workflow that are nested workflows.
    pub nested_tasks: usize,
    /// Jobs of the abstract workflow that are nested DAGs.
    pub nested_dag_tasks: usize,
    /// Nested workflows.
    pub nested: usize,
    /// Nested DAGs.
    pub nested_dags: usize,
    /// Compute jobs outside of clusters.
    pub compute: usize,
    /// Clusters of compute jobs.
    pub clustered: usize,
    /// Stage-in jobs.
    pub stage_in: usize,
    /// Stage-out jobs.
    pub stage_out: usize,
    /// Jobs that copy files between sites.
    pub inter_site: usize,
    /// Registration jobs.
    pub register: usize,
    /// Jobs that make directories.
    pub create_dir: usize,
    /// Jobs that remove files or directories.
    pub cleanup: usize,
    /// Jobs that make programs executable.
    pub chmod: usize,
    /// All jobs of the DAG.
    pub total: usize,
    /// Edges of the DAG.
    pub edges: usize,
}

impl Counts {
    /// Returns the number of jobs by kind.
    pub fn kinds(&self) -> [(&'static str, usize); 10] {
        [
            ("compute", self.compute),
            ("clustered", self.clustered),
            ("sub-workflows", self.nested + self.nested_dags),
            ("stage-in", self.stage_in),
            ("inter-site", self.inter_site),
            ("stage-out", self.stage_out),
            ("registration", self.register),
            ("create-dir", self.create_dir),
            ("chmod", self.chmod),
            ("clean-up", self.cleanup),
        ]
    }
}
