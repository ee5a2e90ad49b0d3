//! Everything that a plan leaves in the submit directory, one kind of file a module.

pub(crate) mod batch;
pub(crate) mod cluster;
pub(crate) mod command;
pub(crate) mod dag;
pub(crate) mod events;
pub(crate) mod in_order;
pub(crate) mod layout;
pub(crate) mod limits;
pub(crate) mod lists;
pub(crate) mod records;
pub(crate) mod shell;
pub(crate) mod stat;
pub(crate) mod submit_dir;

use crate::exec::{Exec, ExecJob, JobId, Place, Task};
use crate::model::{JobIndex, Workflow};
use crate::refine::settings::Settings;
use crate::refine::sites::Sites;

/// All that is known about a plan when its files are written.
pub(crate) struct Plan<'a> {
    pub(crate) workflow: &'a Workflow,
    pub(crate) exec: &'a Exec,
    pub(crate) sites: &'a Sites,
    pub(crate) settings: &'a Settings,
    /// Transformation catalog entries, for metadata and hooks.
    pub(crate) catalog: &'a crate::catalog::transformation::TransformationCatalog,
    /// Submit directory, as it will be called in the end.
    pub(crate) submit: String,
    /// Base name of the files of the workflow.
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
    pub(crate) layout: layout::Layout,
    /// Files of the abstract workflow that are only read, written and read, only written.
    pub(crate) files: [usize; 3],
    /// Each job has its lists and orders in files of its own, as with Pegasus.
    pub(crate) files_apart: bool,
    /// Where the orders of auxiliary jobs are, once they are written.
    pub(crate) orders: std::sync::OnceLock<lists::Orders>,
    /// Jobs parents before children.
    pub(crate) order: Vec<JobId>,
}

/// Name of the copy of the properties. The number is fixed, so that two plans of one workflow are equal.
pub(crate) const PROPERTIES: &str = "pegasus.1.properties";

/// Plans of more jobs than this name files in command lines and keep orders in one file.
pub(crate) const APART_LIMIT: usize = 1000;

impl<'a> Plan<'a> {
    /// A job, be it one of the plan or one in a cluster.
    pub(crate) fn job(&self, id: JobId) -> &'a ExecJob {
        match self.exec.jobs.get(id as usize) {
            Some(job) => job,
            None => &self.exec.members[id as usize - self.exec.jobs.len()],
        }
    }
    /// Number of a job in a cluster, by its position in [`Exec::members`].
    pub(crate) fn member(&self, position: u32) -> JobId {
        self.exec.jobs.len() as u32 + position
    }
    /// Whether a job runs in a cluster.
    pub(crate) fn is_member(&self, id: JobId) -> bool {
        id as usize >= self.exec.jobs.len()
    }
    /// Absolute path of a file of a job, with its suffix.
    pub(crate) fn job_file(&self, id: JobId, suffix: &str) -> String {
        let mut path = String::new();
        self.push_job_file(id, suffix, &mut path);
        path
    }
    /// The same, appended to a text.
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
    /// Logical identifier: that in the workflow, `null` for auxiliary jobs.
    pub(crate) fn logical_id(&self, job: &ExecJob) -> &str {
        match job.task {
            Task::Compute(JobIndex(n)) => &self.workflow.jobs[n as usize].id,
            _ => "null",
        }
    }
    /// Complete name of what a job runs, appended to a text.
    pub(crate) fn push_transformation(&self, job: &ExecJob, text: &mut String) {
        match job.task {
            Task::Compute(JobIndex(n)) => self.workflow.jobs[n as usize].transformation.push_to(text),
            task => text.push_str(task.transformation()),
        }
    }
    /// Site of a file at a place, and the parts of its URL.
    pub(crate) fn url_parts<'t>(&'t self, place: &'t Place, lfn: &'t str) -> (&'t str, [&'t str; 4]) {
        match place {
            Place::Scratch(site) => {
                let site = self.sites.get(*site);
                let base = site.scratch.as_ref().map_or("", |s| s.url.as_str());
                (&site.name, ["", base, "/./", lfn])
            }
            Place::ScratchLink(site) => {
                let site = self.sites.get(*site);
                let base = site.scratch.as_ref().map_or("", |s| s.path.as_str());
                (&site.name, ["symlink://", base, "/./", lfn])
            }
            Place::Storage(output) => {
                let storage = &self.sites.outputs[usize::from(*output)];
                (&storage.name, ["", &storage.put, "/", lfn])
            }
            Place::Url(url, site) => (site, ["", url, "", ""]),
        }
    }
    /// Site and URL of a file at a place.
    pub(crate) fn url(&self, place: &Place, lfn: &str) -> (String, String) {
        let (site, parts) = self.url_parts(place, lfn);
        (site.to_owned(), parts.concat())
    }
    /// Site and URL under which a registered file can be read.
    pub(crate) fn read_url(&self, place: &Place, lfn: &str) -> (String, String) {
        match place {
            Place::Storage(output) => {
                let storage = &self.sites.outputs[usize::from(*output)];
                (storage.name.clone(), format!("{}/{lfn}", storage.get))
            }
            place => self.url(place, lfn),
        }
    }
}
