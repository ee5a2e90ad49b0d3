//! Which batch job something is, or runs in.

use std::fmt;

use crate::scheduler::Scheduler;

/// Maximum bytes of the number of a job.
const MAX_ID: usize = 255;

/// A batch job. Its text is `SCHEDULER ID`: `slurm 17`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchJob {
    /// Its batch system.
    pub scheduler: Scheduler,
    /// Its number, as commands of the batch system want it.
    pub id: String,
}

impl BatchJob {
    /// Returns a job, if this can be the number of one: it is a word, and no option of a command.
    #[must_use]
    pub fn new(scheduler: Scheduler, id: &str) -> Option<Self> {
        let is_word = !id.starts_with('-') && !id.contains(|c: char| c.is_whitespace() || c.is_control());
        let is_id = is_word && (1..=MAX_ID).contains(&id.len());
        is_id.then(|| Self {
            scheduler,
            id: id.to_owned(),
        })
    }

    /// Reads the text of a job.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (scheduler, id) = text.trim_end().split_once(' ')?;
        Self::new(Scheduler::parse(scheduler)?, id)
    }

    /// Returns the job in which a process with this environment runs.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let is_torque = || {
            let version = variable("PBS_VERSION").unwrap_or_default();
            version.starts_with("TORQUE") || variable("PBS_NUM_PPN").is_some()
        };
        let job = |scheduler, name| Self::new(scheduler, &variable(name)?);
        // Slurm first: it may set variables of PBS for scripts that were written for that.
        job(Scheduler::Slurm, "SLURM_JOB_ID")
            .or_else(|| job(Scheduler::Lsf, "LSB_JOBID"))
            .or_else(|| job(Scheduler::Cobalt, "COBALT_JOBID"))
            .or_else(|| match is_torque() {
                true => job(Scheduler::Torque, "PBS_JOBID"),
                false => job(Scheduler::PbsPro, "PBS_JOBID"),
            })
            // The first is that of a batch script, which is an instance of Flux of its own.
            .or_else(|| job(Scheduler::Flux, "FLUX_ENCLOSING_ID"))
            .or_else(|| job(Scheduler::Flux, "FLUX_JOB_ID"))
    }
}

impl fmt::Display for BatchJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.scheduler, self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_job_is_read_again() {
        for (scheduler, id) in [
            (Scheduler::Slurm, "17"),
            (Scheduler::PbsPro, "17[3].head"),
            (Scheduler::Flux, "ƒ3ETxsR9H"),
        ] {
            let job = BatchJob::new(scheduler, id).unwrap();
            assert_eq!(BatchJob::parse(&format!("{job}\n")), Some(job));
        }
        for wrong in [
            "",
            "slurm",
            "slurm ",
            "slurm -u",
            "slurm 1 2",
            "sge 1",
            "slurm 1\u{7}",
        ] {
            assert_eq!(BatchJob::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_process_knows_its_batch_job() {
        let text = |variables: &[(&str, &str)]| {
            let value = |name: &str| variables.iter().find(|(other, _)| *other == name);
            let job = BatchJob::of_environment(|name| value(name).map(|(_, value)| (*value).to_owned()));
            job.map(|job| job.to_string())
        };
        assert_eq!(text(&[]), None);
        assert_eq!(
            text(&[("SLURM_JOB_ID", "7"), ("PBS_JOBID", "7")]).as_deref(),
            Some("slurm 7")
        );
        assert_eq!(text(&[("PBS_JOBID", "7.head")]).as_deref(), Some("pbspro 7.head"));
        let torque = [("PBS_JOBID", "7.head"), ("PBS_VERSION", "TORQUE-6.1.2")];
        assert_eq!(text(&torque).as_deref(), Some("torque 7.head"));
        assert_eq!(text(&[("LSB_JOBID", "9")]).as_deref(), Some("lsf 9"));
        assert_eq!(text(&[("COBALT_JOBID", "3")]).as_deref(), Some("cobalt 3"));
        let flux = [("FLUX_JOB_ID", "f2"), ("FLUX_ENCLOSING_ID", "f1")];
        assert_eq!(text(&flux).as_deref(), Some("flux f1"));
    }
}
