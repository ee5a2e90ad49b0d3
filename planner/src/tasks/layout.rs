//! Directories of the jobs' files below the submit directory.

use crate::data_mode::hashed;
use crate::exec::{Exec, JobId, Task};
use crate::model::Workflow;
use crate::refine::settings::SubmitMapper;

/// Directory of each job.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    directories: Vec<Box<str>>,
    of_job: Vec<u32>,
}

impl Layout {
    /// Assigns directories to all jobs, in order of creation.
    pub(crate) fn new(mapper: &SubmitMapper, workflow: &Workflow, exec: &Exec) -> Self {
        let mut this = Layout {
            directories: Vec::new(),
            of_job: Vec::with_capacity(exec.jobs.len()),
        };
        let mut numbers: rustc_hash::FxHashMap<String, u32> = rustc_hash::FxHashMap::default();
        for (n, job) in exec.jobs.iter().enumerate() {
            let directory = match (mapper, exec.leading(job.task)) {
                (SubmitMapper::Hashed { levels, multiplier }, _) => hashed(n as u64, *levels, *multiplier),
                (SubmitMapper::Named, Some(k)) => {
                    let profiles = &exec.setups[job.setup].profiles;
                    let name = match profiles.pegasus("relative.submit.dir") {
                        Some(directory) => directory,
                        None => &workflow.jobs[k].transformation.name,
                    };
                    inside(name)
                }
                _ => ".".to_owned(),
            };
            let number = match numbers.get(&directory) {
                Some(&number) => number,
                None => {
                    let number = this.directories.len() as u32;
                    this.directories.push(directory.as_str().into());
                    numbers.insert(directory, number);
                    number
                }
            };
            this.of_job.push(number);
        }
        // Jobs of a cluster share the directory of the cluster.
        let jobs = exec.jobs.len();
        this.of_job.resize(jobs + exec.members.len(), 0);
        for (n, job) in exec.jobs.iter().enumerate() {
            if let Task::Cluster(cluster, _) = job.task {
                let members = &exec.clusters[cluster].members;
                let directory = this.of_job[n];
                this.of_job[jobs + members.start..jobs + members.end].fill(directory);
            }
        }
        this
    }
    /// Returns the directory of a job.
    pub(crate) fn of(&self, job: JobId) -> &str {
        &self.directories[self.of_job[job] as usize]
    }
    /// Returns all directories.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &str> {
        self.directories.iter().map(AsRef::as_ref)
    }
}

/// Normalizes a relative directory so that it cannot leave the submit directory.
fn inside(name: &str) -> String {
    let parts: Vec<&str> = name
        .split('/')
        .filter(|part| !part.is_empty() && *part != "." && *part != "..")
        .collect();
    if parts.is_empty() {
        ".".into()
    } else {
        parts.join("/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_directories_stay_inside() {
        assert_eq!(inside("../../etc"), "etc");
        assert_eq!(inside("/a//b/."), "a/b");
        assert_eq!(inside(".."), ".");
    }
}
