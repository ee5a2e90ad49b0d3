//! The job that follows: it is handed in at the start of this one, so that it comes whatever ends this one.
//!
//! A batch system may take long to answer, or be away. The workflow does not wait for it: a thread hands the
//! job in, again and again if need be.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use monitord_compat::batch_jobs::Event;
use pmc_batch::submit::{self, SubmitError};
use pmc_batch::{BatchJob, Script};
use pmc_calls::shell::shell_quote;

use super::ledger::Ledger;
use super::say;

/// How long to wait for an answer before the user hears of it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The first pause between two tries; each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(960);

/// How long to wait at the end for an answer that is on its way.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// How often the next job is cancelled at the end, at most.
const MAX_CANCELS: u32 = 4;

/// Pause between two of these.
const CANCEL_PAUSE: Duration = Duration::from_secs(10);

/// The next job while it is handed in.
pub struct HandIn {
    answer: Option<Receiver<Result<BatchJob, SubmitError>>>,
    since: Instant,
    pause: Duration,
    has_said: bool,
}

impl HandIn {
    /// Begins to hand in the next job of a chain, unless there is one.
    pub fn begin(chain: &Chain<'_>, ledger: &Ledger) -> Option<Self> {
        ledger.next().is_none().then(|| Self {
            answer: Some(chain.submit()),
            since: Instant::now(),
            pause: FIRST_PAUSE,
            has_said: false,
        })
    }

    /// Does what is due; waits so long for an answer. Returns whether the job is handed in.
    pub fn advance(&mut self, chain: &Chain<'_>, ledger: &mut Ledger, wait: Duration) -> bool {
        let Some(answer) = &self.answer else {
            if self.since.elapsed() >= self.pause {
                (self.answer, self.since) = (Some(chain.submit()), Instant::now());
                self.pause = (self.pause * 2).min(MAX_PAUSE);
            }
            return false;
        };
        let refusal = match answer.recv_timeout(wait) {
            Ok(Ok(next)) => {
                say(&format!("The job {} follows this one", next.id));
                let next = next.to_string();
                note(ledger, Event::Next { next });
                return true;
            }
            Ok(Err(error)) => error.to_string(),
            Err(RecvTimeoutError::Disconnected) => "there is no thread that hands it in".to_owned(),
            Err(RecvTimeoutError::Timeout) => {
                // It may still come: a second one would be one too many.
                if self.since.elapsed() >= ANSWER_TIMEOUT {
                    self.say_once(chain, "the batch system does not answer");
                }
                return false;
            }
        };
        (self.answer, self.since) = (None, Instant::now());
        self.say_once(chain, refusal.lines().next().unwrap_or_default());
        false
    }

    /// Waits for an answer that is on its way. If the job is wanted and there is none, it is tried once more.
    /// Returns whether the job is handed in.
    pub fn end(mut self, chain: &Chain<'_>, ledger: &mut Ledger, is_wanted: bool) -> bool {
        if self.answer.is_none() && !is_wanted {
            return false;
        }
        self.answer.get_or_insert_with(|| chain.submit());
        self.advance(chain, ledger, LAST_WAIT)
    }

    fn say_once(&mut self, chain: &Chain<'_>, why: &str) {
        if !std::mem::replace(&mut self.has_said, true) {
            chain.say_none(why);
        }
    }
}

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

    /// Begins to hand in the next job.
    fn submit(&self) -> Receiver<Result<BatchJob, SubmitError>> {
        let (sender, receiver) = channel();
        let (script, environment, job) = (self.script(), self.environment.clone(), self.job.clone());
        // Without a thread, it is tried again later.
        let _ = std::thread::Builder::new()
            .name("hand-in".to_owned())
            .spawn(move || {
                let directory = script.path.parent().unwrap_or(Path::new("."));
                let _ = sender.send(submit::submit_after(&script, directory, &environment, &job));
            });
        receiver
    }

    /// Says that no job follows, as far as is known.
    fn say_none(&self, why: &str) {
        let script = self.script();
        say(&format!(
            "No job follows this one: {why}. It is tried again. If tasks are left, submit it by hand: {}",
            submit::command_line(script.scheduler, &script.path)
        ));
    }

    /// Cancels the next job. Returns whether there is none any more.
    pub fn cancel_next(&self, ledger: &mut Ledger) -> bool {
        let Some(next) = ledger.next() else {
            return true;
        };
        let Some(job) = BatchJob::parse(&next) else {
            return true;
        };
        match submit::cancel_job(&job, &self.environment) {
            Ok(()) => {
                say(&format!("The job {}, which was to follow, is cancelled", job.id));
                note(ledger, Event::Cancel { next });
                true
            }
            Err(error) => {
                let words = job.scheduler.cancel_words().join(" ");
                let id = shell_quote(&job.id);
                say(&format!("{error}. Nothing is left for it: {words} {id}"));
                false
            }
        }
    }

    /// Cancels the next job at the end of this one, also if the batch system is away for a moment.
    pub fn cancel_next_in_the_end(&self, ledger: &mut Ledger) {
        for _ in 1..MAX_CANCELS {
            if self.cancel_next(ledger) {
                return;
            }
            std::thread::sleep(CANCEL_PAUSE);
        }
        self.cancel_next(ledger);
    }

    /// Cancels the job of this process: what runs it does not end by itself.
    pub fn cancel_own(&self) {
        if let Err(error) = submit::cancel_job(self.job, &self.environment) {
            say(&error.to_string());
        }
    }
}

/// Writes an event. Without its ledger, a run goes on. Returns whether it was written.
pub fn note(ledger: &mut Ledger, event: Event) -> bool {
    let written = ledger.add(event);
    if let Err(error) = &written {
        say(&format!(
            "The list of batch jobs cannot be written: {}",
            pmc_dag::reason(error)
        ));
    }
    written.is_ok()
}
