//! The job that follows: it is handed in at the start of this one, so that it comes whatever ends this one.

use std::collections::BTreeMap;
use std::path::Path;

use monitord_compat::batch_jobs::Event;
use pmc_batch::submit::{self, SubmitError};
use pmc_batch::{BatchJob, Script};
use pmc_calls::shell::shell_quote;

use super::ledger::Ledger;
use super::say;

/// The job of this process, and its script.
pub struct Chain<'a> {
    /// The job.
    pub job: &'a BatchJob,
    /// The DAG file.
    pub dag: &'a Path,
    /// The environment of this process.
    pub environment: BTreeMap<String, String>,
}

impl Chain<'_> {
    fn script(&self) -> Script {
        Script {
            scheduler: self.job.scheduler,
            path: self.dag.with_extension(self.job.scheduler.suffix()),
        }
    }

    /// Hands in the next job, if there is none yet.
    pub fn hand_in(&self, ledger: &mut Ledger) {
        if ledger.next().is_some() {
            return;
        }
        let script = self.script();
        let directory = script.path.parent().unwrap_or(Path::new("."));
        match submit::submit_after(&script, directory, &self.environment, self.job) {
            Ok(next) => {
                say(&format!("The job {} follows this one", next.id));
                note(
                    ledger,
                    Event::Next {
                        next: next.to_string(),
                    },
                );
            }
            Err(error) => say(&self.refusal(&script, &error)),
        }
    }

    fn refusal(&self, script: &Script, error: &SubmitError) -> String {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        format!(
            "No job follows this one: {first}. If tasks are left, submit it again: {}",
            submit::command_line(script.scheduler, &script.path)
        )
    }

    /// Cancels the next job.
    pub fn cancel_next(&self, ledger: &mut Ledger) {
        let Some(next) = ledger.next() else {
            return;
        };
        let Some(job) = BatchJob::parse(&next) else {
            return;
        };
        match submit::cancel_job(&job, &self.environment) {
            Ok(()) => {
                say(&format!("The job {}, which was to follow, is cancelled", job.id));
                note(ledger, Event::Cancel { next });
            }
            Err(error) => {
                let words = job.scheduler.cancel_words().join(" ");
                let id = shell_quote(&job.id);
                say(&format!("{error}. Nothing is left for it: {words} {id}"));
            }
        }
    }

    /// Cancels the job of this process: what runs it does not end by itself.
    pub fn cancel_own(&self) {
        if let Err(error) = submit::cancel_job(self.job, &self.environment) {
            say(&error.to_string());
        }
    }
}

/// Writes an event. Without its ledger, a run goes on.
pub fn note(ledger: &mut Ledger, event: Event) {
    if let Err(error) = ledger.add(event) {
        say(&format!(
            "The list of batch jobs cannot be written: {}",
            pmc_dag::reason(&error)
        ));
    }
}
