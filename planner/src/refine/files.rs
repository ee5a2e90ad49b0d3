//! Files that each job of the executable workflow reads and writes, by work directory.

use crate::model::{FileId, Workflow};

use crate::exec::{Exec, JobId, Place, SiteId, Task};

/// One file of a job in a work directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    /// The file.
    pub(crate) file: FileId,
    /// Site of the work directory.
    pub(crate) site: SiteId,
    /// The job needs the file.
    pub(crate) reads: bool,
    /// The job makes the file, or changes it.
    pub(crate) writes: bool,
}

/// Calls `each` with every file in a work directory that a job needs or makes. A file may occur twice.
pub(crate) fn of_job(workflow: &Workflow, exec: &Exec, job: JobId, mut each: impl FnMut(Access)) {
    let this = &exec.jobs[job];
    let access = |file, site, reads, writes| Access {
        file,
        site,
        reads,
        writes,
    };
    match this.task {
        Task::Compute(_) | Task::Cluster(..) => {
            for u in exec.uses(workflow, this.task) {
                if u.link.reads() || u.link.writes() {
                    each(access(u.file, this.staging, u.link.reads(), u.link.writes()));
                }
            }
        }
        Task::StageIn(n) | Task::InterSite(n) | Task::StageOut(n) => {
            for moved in &exec.transfers[n].files {
                for (source, _) in &moved.sources {
                    if let Place::Scratch(site) = source {
                        each(access(moved.file, *site, true, false));
                    }
                }
                if let Place::Scratch(site) | Place::ScratchLink(site) = moved.destination {
                    each(access(moved.file, site, false, true));
                }
            }
        }
        Task::Chmod(n) => {
            for &file in &exec.chmods[n] {
                each(access(file, this.staging, true, false));
            }
        }
        // Registration needs names only.
        Task::Register(_) | Task::CreateDir | Task::CleanUp(_) | Task::RemoveDir | Task::NoOp => {}
    }
}
