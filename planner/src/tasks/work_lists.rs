//! Where the work lists of jobs are.

use pmc_calls::Part;
use rustc_hash::FxHashSet;

use crate::exec::{JobId, Task};

use super::plan::PlannedJob;

/// Locations of work lists that are not in a file in the job's directory. Before the lists are written, there
/// are none.
#[derive(Debug, Default)]
pub(crate) struct WorkLists {
    /// Offset and length in the shared file; length 0 for other jobs.
    pub(crate) parts: Vec<(u64, u32)>,
    /// Jobs whose list is beside the DAG.
    pub(crate) beside: FxHashSet<JobId>,
}

impl WorkLists {
    /// Returns offset and length of a job's list in the shared file of a large plan.
    pub(super) fn part(&self, id: JobId) -> Option<Part> {
        let &(start, length) = self.parts.get(id.index())?;
        let length = u64::from(length);
        (length > 0).then_some(Part { start, length })
    }
    /// Returns the name of the shared file.
    pub(crate) fn file_name(base: &str) -> String {
        format!("{base}.orders")
    }
    /// Returns the absolute path of the file with a job's list.
    pub(super) fn file(&self, job: PlannedJob<'_>) -> String {
        let plan = job.plan;
        if self.part(job.id).is_some() {
            format!("{}/{}", plan.submit, Self::file_name(&plan.base))
        } else if self.beside.contains(&job.id) {
            format!("{}/{}.in", plan.submit, job.name)
        } else if job.ships_files() && job.has_description() && !job.is_nested() {
            format!("{}{}", job.name, job.list_suffix())
        } else {
            plan.job_file(job.id, job.list_suffix())
        }
    }
    /// Returns the file for the standard input of a job: that of the workflow, or that with the job's list.
    pub(super) fn stdin(&self, job: PlannedJob<'_>) -> Option<String> {
        let reads = job.reads_list() && self.part(job.id).is_none();
        job.stdin_file().or_else(|| reads.then(|| self.file(job)))
    }
}

/// Suffix of a description for `pegasus-lite`.
const DESCRIPTION: &str = ".json";
/// Suffix of a list that the monitoring daemon must not find.
const UNSEEN: &str = ".entries";

impl PlannedJob<'_> {
    /// Returns the suffix of the job's list. Without a record of kickstart, the monitoring daemon takes a
    /// file `JOB.in` beside the DAG for a list of commands, and fails on the second line in it.
    pub(crate) fn list_suffix(self) -> &'static str {
        if self.has_description() {
            return DESCRIPTION;
        }
        let is_found = self.plan.layout.of(self.id) == ".";
        if is_found && !self.is_wrapped() {
            UNSEEN
        } else {
            ".in"
        }
    }

    /// Returns whether the job can read its list from a part of a file. Only this project's transfer tool
    /// can.
    pub(crate) fn reads_parts(self) -> bool {
        if self.has_description() {
            return !self.plan.files_apart;
        }
        let name = self.setup.executable.strip_prefix(self.plan.own_tools.as_str());
        !self.plan.files_apart && !matches!(self.task, Task::Register(_)) && name == Some("/pegasus-transfer")
    }
}
