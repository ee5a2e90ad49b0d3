//! Everything that a plan leaves in the submit directory, one kind of file a module.

pub(crate) mod batch;
pub(crate) mod cluster;
pub(crate) mod command;
pub(crate) mod dag;
pub(crate) mod events;
pub(crate) mod layout;
pub(crate) mod limits;
pub(crate) mod lists;
pub(crate) mod records;
pub(crate) mod shell;
pub(crate) mod stat;
pub(crate) mod submit_dir;

use crate::model::{JobIndex, Workflow};
use crate::refine::exec::{Exec, ExecJob, JobId, Place, Task};
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
        format!(
            "{}/{}/{}{suffix}",
            self.submit,
            self.layout.of(id),
            self.job(id).name
        )
    }
    /// Logical identifier: that in the workflow, `null` for auxiliary jobs.
    pub(crate) fn logical_id(&self, job: &ExecJob) -> &str {
        match job.task {
            Task::Compute(JobIndex(n)) => &self.workflow.jobs[n as usize].id,
            _ => "null",
        }
    }
    /// Complete name of what a job runs.
    pub(crate) fn transformation(&self, job: &ExecJob) -> String {
        match job.task {
            Task::Compute(JobIndex(n)) => self.workflow.jobs[n as usize].transformation.to_string(),
            task => task.transformation().to_owned(),
        }
    }
    /// Site and URL of a file at a place.
    pub(crate) fn url(&self, place: &Place, lfn: &str) -> (String, String) {
        match place {
            Place::Scratch(site) => (
                self.sites.get(*site).name.clone(),
                self.sites.scratch_url(*site, lfn),
            ),
            Place::ScratchLink(site) => (
                self.sites.get(*site).name.clone(),
                format!("symlink://{}", self.sites.scratch_path(*site, lfn)),
            ),
            Place::Storage(output) => {
                let storage = &self.sites.outputs[usize::from(*output)];
                (storage.name.clone(), format!("{}/{lfn}", storage.put))
            }
            Place::Url(url, site) => (site.to_string(), url.to_string()),
        }
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
