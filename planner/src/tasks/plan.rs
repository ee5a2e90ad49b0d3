//! The plan as the makers of commands and the writers of files see it.

use crate::exec::{Exec, ExecJob, JobId, Place, Setup, SetupId, SiteId, Task};
use crate::model::{FileId, Workflow};
use crate::refine::settings::{Abilities, Settings};
use crate::refine::sites::{Access, Sites};
use crate::refine::staging_sites::directory_of;

use super::checksums::Checksums;
use super::layout::Layout;
use super::nesting::Nesting;
use super::secrets::Secrets;

/// A complete plan, before its tasks have commands.
pub(crate) struct Plan<'a> {
    pub(crate) workflow: &'a Workflow,
    pub(crate) exec: &'a Exec,
    pub(crate) sites: &'a Sites,
    pub(crate) settings: &'a Settings,
    /// Entries of the transformation catalog, for metadata and hooks.
    pub(crate) catalog: &'a crate::catalog::transformation::TransformationCatalog,
    /// Final path of the submit directory.
    pub(crate) submit: String,
    /// Base name of the workflow's files.
    pub(crate) base: String,
    /// Value of kickstart's `-L`.
    pub(crate) run_label: String,
    /// Modification time of the workflow file, for kickstart's `-T`.
    pub(crate) stamp: String,
    /// Identifier of the workflow.
    pub(crate) uuid: &'a str,
    /// Directory of the tools of the planner's own installation.
    pub(crate) own_tools: String,
    /// Path of kickstart on each site.
    pub(crate) kickstarts: Vec<String>,
    /// Directory of each job's files, relative to the submit directory.
    pub(crate) layout: Layout,
    /// Numbers of files of the abstract workflow: only read, written and read, only written.
    pub(crate) files: [usize; 3],
    /// Each job has separate files for its lists, as in Pegasus.
    pub(crate) files_apart: bool,
    /// Each job has separate files for the names that kickstart records.
    pub(crate) names_apart: bool,
    /// Where the checksums of files are found, for jobs with directories of their own.
    pub(crate) checksums: Checksums,
    /// Jobs with directories of their own are scripts, for the tools of Pegasus.
    pub(crate) has_job_scripts: bool,
    /// What nested sub-workflows take over from this plan.
    pub(crate) nesting: Nesting,
    /// Jobs in topological order.
    pub(crate) order: Vec<JobId>,
    /// What only the owner of the plan may read.
    pub(crate) secrets: Secrets,
}

/// Maximum jobs of a small plan. Larger plans name files in command lines and share one file for work lists.
pub(crate) const MAX_SMALL_PLAN: usize = 1000;

/// A job of a plan, or of a cluster of the plan.
#[derive(Clone, Copy)]
pub(crate) struct PlannedJob<'p> {
    pub(crate) plan: &'p Plan<'p>,
    pub(crate) id: JobId,
    job: &'p ExecJob,
    /// Its program and profiles.
    pub(crate) setup: &'p Setup,
}

impl PlannedJob<'_> {
    pub(crate) fn setup_id(self) -> SetupId {
        self.job.setup
    }
}

/// Gives the fields of the job itself.
impl std::ops::Deref for PlannedJob<'_> {
    type Target = ExecJob;
    fn deref(&self) -> &ExecJob {
        self.job
    }
}

impl<'a> Plan<'a> {
    /// Returns what jobs can rely on when they run.
    pub(crate) fn abilities(&self) -> Abilities {
        self.settings.generator.abilities()
    }
    /// Returns a job of the plan or of a cluster, with the plan.
    pub(crate) fn at<'p>(&'p self, id: JobId) -> PlannedJob<'p> {
        let job = self.job(id);
        PlannedJob {
            plan: self,
            id,
            job,
            setup: &self.exec.setups[job.setup],
        }
    }
    /// Returns a job of the plan or of a cluster.
    pub(crate) fn job(&self, id: JobId) -> &'a ExecJob {
        match self.exec.jobs.get(id.index()) {
            Some(job) => job,
            None => &self.exec.members[id.index() - self.exec.jobs.len()],
        }
    }
    /// Returns the number of a clustered job, given its position in [`Exec::members`].
    pub(crate) fn member(&self, position: usize) -> JobId {
        JobId::new(self.exec.jobs.len() + position)
    }
    /// Returns whether a job runs in a cluster.
    pub(crate) fn is_member(&self, id: JobId) -> bool {
        id.index() >= self.exec.jobs.len()
    }
    /// Returns the absolute path of a job's file with this suffix.
    pub(crate) fn job_file(&self, id: JobId, suffix: &str) -> String {
        let mut path = String::new();
        self.push_job_file(id, suffix, &mut path);
        path
    }
    /// Appends the absolute path of a job's file to a text.
    pub(crate) fn push_job_file(&self, id: JobId, suffix: &str, text: &mut String) {
        for part in [
            &self.submit,
            "/",
            self.layout.of(id),
            "/",
            &self.job(id).name,
            suffix,
        ] {
            text.push_str(part);
        }
    }
    /// Returns the id in the workflow, `null` for auxiliary jobs.
    pub(crate) fn logical_id(&self, job: &ExecJob) -> &str {
        match job.task {
            Task::Compute(n) => &self.workflow.jobs[n].id,
            _ => "null",
        }
    }
    /// Appends the complete name of a job's transformation to a text.
    pub(crate) fn push_transformation(&self, job: &ExecJob, text: &mut String) {
        match job.task {
            Task::Compute(n) => self.workflow.jobs[n].transformation.push_to(text),
            task => text.push_str(task.transformation()),
        }
    }
    /// Returns the site of a file at a place, and the parts of its URL.
    pub(crate) fn url_parts<'t>(
        &'t self,
        place: &'t Place,
        file: FileId,
        access: Access,
    ) -> (&'t str, [&'t str; 6]) {
        let lfn = self.workflow.files.name(file);
        let in_work = |site: SiteId, scheme: &'t str, base: &'t str| {
            let directory = directory_of(self.exec, self.sites, site, file);
            let name = self.sites.get(site).name.as_str();
            (name, [scheme, base, "/", directory, "/", lfn])
        };
        match place {
            Place::Scratch(site) => in_work(*site, "", self.sites.work_url(*site, access)),
            Place::ScratchLink(site) => {
                let scratch = self.sites.get(*site).scratch.as_ref();
                in_work(*site, "symlink://", scratch.map_or("", |s| s.path.as_str()))
            }
            Place::Storage(output) => {
                let storage = &self.sites.outputs[usize::from(*output)];
                let base = match access {
                    Access::Get => &storage.get,
                    Access::Put => &storage.put,
                };
                (&storage.name, ["", base, "/", lfn, "", ""])
            }
            Place::Url(url, site) => (site, ["", url, "", "", "", ""]),
        }
    }
    /// Returns site and URL of a file at a place.
    pub(crate) fn url(&self, place: &Place, file: FileId, access: Access) -> (String, String) {
        let (site, parts) = self.url_parts(place, file, access);
        (site.to_owned(), parts.concat())
    }
}
