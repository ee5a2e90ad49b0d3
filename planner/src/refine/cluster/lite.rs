//! Clusters with directories of their own on their nodes: their jobs share the directory, so that files that
//! they pass to each other need not leave it.

use rustc_hash::FxHashMap;

use crate::data_mode::DataMode;
use crate::error::PlanError;
use crate::exec::{Exec, ExecJob, JobId, Setup, SetupId};
use crate::ids::Id as _;
use crate::model::{FileId, FileUse, Link, TransferFlag, Workflow};

use super::Unit;

/// Returns how the jobs of a cluster get their files.
///
/// # Errors
/// They do not agree.
pub(super) fn mode(exec: &Exec, name: &str, jobs: &[ExecJob]) -> Result<DataMode, PlanError> {
    let Some(first) = jobs.first() else {
        return Ok(DataMode::Shared);
    };
    let mode = |job: &ExecJob| exec.setups[job.setup].mode;
    let place = |job: &ExecJob| (mode(job).is_lite(), job.staging);
    let Some(other) = jobs.iter().find(|job| place(job) != place(first)) else {
        return Ok(mode(first));
    };
    Err(PlanError::refinement(format!(
        "the cluster {name} would have jobs with different data configurations: {} has {}, {} has {}; give them the same \
         one, or different labels",
        first.name,
        mode(first).name(),
        other.name,
        mode(other).name()
    )))
}

/// Who reads the files of the workflow.
#[derive(Debug, Default)]
pub(super) struct Readers {
    /// The one job or cluster of the plan that reads a file, `None` if there are several.
    of_file: FxHashMap<FileId, Option<JobId>>,
}

impl Readers {
    /// Finds the readers of all files, if there are jobs with directories of their own. A unit becomes the
    /// job with its number.
    pub(super) fn new(workflow: &Workflow, exec: &Exec, units: &[Unit]) -> Self {
        let mut this = Self::default();
        if !exec.jobs.iter().any(|job| exec.is_lite(job)) {
            return this;
        }
        for (number, unit) in JobId::first(units.len()).zip(units) {
            for &job in &unit.jobs {
                let uses = exec.uses(workflow, exec.jobs[job].task).iter();
                for u in uses.filter(|u| u.link.reads()) {
                    let reader = this.of_file.entry(u.file).or_insert(Some(number));
                    *reader = reader.filter(|&known| known == number);
                }
            }
        }
        this
    }

    /// Returns whether an output of a cluster is for its own jobs only.
    pub(super) fn is_internal(&self, u: &FileUse, cluster: JobId) -> bool {
        u.link == Link::Output
            && u.transfer == TransferFlag::Not
            && !u.register
            && self.of_file.get(&u.file) == Some(&Some(cluster))
    }
}

/// Setups of jobs in clusters, made from those that they had.
#[derive(Debug, Default)]
pub(super) struct MemberSetups {
    made: FxHashMap<SetupId, SetupId>,
}

impl MemberSetups {
    /// Returns the setup of a job that shares the directory of its cluster.
    pub(super) fn of(&mut self, exec: &mut Exec, setup: SetupId) -> SetupId {
        *self.made.entry(setup).or_insert_with(|| {
            let inside = Setup {
                in_cluster: true,
                ..exec.setups[setup].clone()
            };
            exec.setups.push(inside);
            SetupId::new(exec.setups.len() - 1)
        })
    }
}
