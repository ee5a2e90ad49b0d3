//! Checksums of files that jobs with directories of their own exchange, and which of their inputs nodes
//! share.

use rustc_hash::{FxHashMap, FxHashSet};

use crate::exec::{Exec, ExecJob, FileTransfer, JobId, Place, SiteId, Task};
use crate::ids::Id as _;
use crate::model::{FileId, FileKind, FileUse, Link, Workflow};
use crate::refine::settings::{Integrity, LiteCache, Settings};
use crate::refine::sites::{Access, Sites};
use crate::task_request::is_no_wrapper;

/// Suffix of the metadata file of a job, with checksums.
pub(super) const META: &str = ".meta";

/// Where the checksums of files are found.
#[derive(Debug, Default)]
pub(crate) struct Checksums {
    /// The job whose metadata file has the checksum.
    keepers: FxHashMap<FileId, JobId>,
    /// Checksums of catalogs.
    pub(super) known: FxHashMap<FileId, Box<str>>,
    /// Files that several jobs of a site fetch over the network.
    pub(super) shared: FxHashSet<(FileId, SiteId)>,
    /// Images in which several jobs of a site run, and that come over the network.
    pub(super) images: FxHashSet<(FileId, SiteId)>,
}

impl Checksums {
    /// Finds the checksums of all files that jobs with directories of their own read or write.
    pub(crate) fn new(workflow: &Workflow, exec: &Exec, sites: &Sites, settings: &Settings) -> Self {
        let mut this = Checksums::default();
        if settings.integrity == Integrity::None {
            return this;
        }
        for (id, job) in JobId::first(exec.jobs.len()).zip(&exec.jobs) {
            match job.task {
                Task::Compute(_) | Task::Cluster(..) if keeps_checksums(exec, job) => {
                    let uses = exec.uses(workflow, job.task).iter();
                    let outputs = uses.filter(|u| u.link.writes() && u.link != Link::Checkpoint);
                    this.keepers.extend(outputs.map(|u| (u.file, id)));
                }
                Task::StageIn(n) if sites.is_lite(job.staging) => {
                    for moved in &exec.transfers[n].files {
                        if moved.generate_checksum {
                            this.keepers.insert(moved.file, id);
                        } else if let Some(sha256) = checksum(moved.metadata.as_deref().unwrap_or_default()) {
                            this.known.insert(moved.file, sha256.into());
                        }
                    }
                }
                _ => {}
            }
        }
        if settings.lite_cache != LiteCache::Off {
            this.shared = shared(workflow, exec, sites, is_read);
            this.images = shared(workflow, exec, sites, is_loaded);
        }
        this
    }

    /// Returns the job whose metadata file has the checksum of a file.
    pub(crate) fn keeper(&self, file: FileId) -> Option<JobId> {
        self.keepers.get(&file).copied()
    }

    /// Returns whether the copy that a transfer job makes is compared with the checksum of the output.
    pub(crate) fn verifies(&self, task: Task, file: &FileTransfer) -> bool {
        let is_staged = |(place, _): &(Place, _)| matches!(place, Place::Scratch(_));
        matches!(task, Task::StageOut(_))
            && !file.optional
            && file.sources.iter().all(is_staged)
            && self.keeper(file.file).is_some()
    }
}

/// Finds those inputs of a kind that several jobs of a site fetch over the network.
fn shared(
    workflow: &Workflow,
    exec: &Exec,
    sites: &Sites,
    is_it: fn(&ExecJob, &&FileUse) -> bool,
) -> FxHashSet<(FileId, SiteId)> {
    let (mut once, mut shared) = (FxHashSet::default(), FxHashSet::default());
    for job in exec.jobs.iter().filter(|job| exec.is_lite(job)) {
        let is_staged_far = !is_file(sites.work_url(job.staging, Access::Get));
        for u in exec.uses(workflow, job.task).iter().filter(|u| u.link.reads()) {
            let key = (u.file, job.site);
            let is_far = match exec.bypassed(job, u) {
                Some(bypassed) => bypassed.sources.iter().all(|(url, _)| !is_file(url)),
                None => is_staged_far,
            };
            if is_far && is_it(job, &u) && !once.insert(key) {
                shared.insert(key);
            }
        }
    }
    shared
}

/// Returns whether a file is the image in which a job runs. For a cluster it is a file like others: each of
/// its jobs has a container.
pub(super) fn is_loaded(job: &ExecJob, u: &&FileUse) -> bool {
    u.kind == FileKind::Image && matches!(job.task, Task::Compute(_))
}

/// Returns whether a file comes into the directory of a job before its program starts.
pub(super) fn is_read(job: &ExecJob, u: &&FileUse) -> bool {
    u.link.reads() && u.link != Link::Checkpoint && !is_loaded(job, u)
}

fn is_file(url: &str) -> bool {
    url.starts_with("file:") || url.starts_with('/')
}

/// Returns the SHA-256 among metadata of a file.
fn checksum(metadata: &[(String, String)]) -> Option<&str> {
    let of = |key: &str| {
        metadata
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, value)| value.as_str())
    };
    let is_sha256 = of("checksum.type").is_some_and(|kind| kind.eq_ignore_ascii_case("sha256"));
    of("checksum.value").filter(|_| is_sha256)
}

/// Returns whether a job records the checksums of its outputs: kickstart does.
pub(super) fn keeps_checksums(exec: &Exec, job: &ExecJob) -> bool {
    let gridstart = exec.setups[job.setup].profiles.pegasus("gridstart");
    exec.is_lite(job) && !gridstart.is_some_and(is_no_wrapper)
}
