//! A run that takes tasks while it goes on: `pmc serve`.
//!
//! A task is accepted when its line is in the DAG file, which the next run reads as every DAG file. So what
//! was accepted is resumed like the tasks of a plan. The tasks join the DAG of the run itself, and have its
//! logs, rescue file and packs. Tools learn of an end when its rescue record is written.

mod adding;
mod ends;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use pmc_control::{AddRequest, Answer};
use pmc_dag::{Dag, TaskId};
use pmc_files::OFlags;
use pmc_system::planted::{Planted, is_planted};
use pmc_system::{clock, disk};
use rustc_hash::FxHashSet;

use self::ends::{End, Follower};
use super::{Driver, Run, RunError};
use crate::control::Reply;
use crate::durability::sync;
use crate::options::Options;
use crate::transport::MasterTransport;

/// Time at the end of a run for tools that ask on and on to hear that it ends.
const LAST_WORD: Duration = Duration::from_millis(300);

/// What a run has that takes tasks.
pub(super) struct Serving {
    dag: PathBuf,
    /// The DAG file, for appending.
    file: File,
    /// Its length, which is that of whole additions.
    length: u64,
    /// Requests that came before the workers.
    early: Vec<(AddRequest, SyncSender<Reply>)>,
    /// It takes no more tasks.
    is_stopped: bool,
    idle_limit: Option<Duration>,
    /// Since when it has had nothing to do.
    idle_since: Option<Instant>,
    /// The ends of tasks in this run, in their order.
    ends: Vec<End>,
    /// The number of the end of each task; the last ones may be missing.
    end_of: Vec<u32>,
    /// Tasks that will not run, because one before them has failed.
    unreachable: FxHashSet<TaskId>,
    /// Tasks that have not ended.
    left: usize,
    followers: Vec<Follower>,
    /// When a tool was last told of ends, and that there may be more.
    told_at: Option<Instant>,
}

impl Serving {
    /// Opens the DAG file of a run that takes tasks, and removes an addition that was cut off. The caller
    /// holds the lock.
    pub(super) fn open(options: &Options, dag: &Dag, done: usize) -> Result<Option<Self>, RunError> {
        let Some(serve) = options.serve else {
            return Ok(None);
        };
        let failed = |error| RunError::system("Unable to open the DAG file for more tasks", error);
        if dag.subdag_ids().len() > 0 {
            // Their tasks have the numbers that the next ones need.
            let error = io::Error::new(
                io::ErrorKind::InvalidInput,
                "it has sub-workflows (SUBDAG), and a run that takes tasks cannot have any",
            );
            return Err(failed(error));
        }
        let flags = OFlags::WRONLY | OFlags::APPEND;
        let file = pmc_files::open_output(&options.dag, flags, 0o666).map_err(failed)?;
        let length = dag.text_len();
        if !is_planted(Planted::TornAddition) {
            disk::set_len(&file, length).map_err(failed)?;
        }
        Ok(Some(Self {
            dag: options.dag.clone(),
            file,
            length,
            early: Vec::new(),
            is_stopped: false,
            idle_limit: serve.idle_limit,
            idle_since: None,
            ends: Vec::new(),
            end_of: Vec::new(),
            unreachable: FxHashSet::default(),
            left: dag.len().saturating_sub(done),
            followers: Vec::new(),
            told_at: None,
        }))
    }

    /// Takes no more tasks. Returns the answer to the tool that asks for it.
    pub(super) fn stop(&mut self) -> Answer {
        self.is_stopped = true;
        tracing::info!("Asked to take no more tasks");
        Answer::Done(match self.left {
            0 => "it takes no more tasks; all have ended, so that the run ends".to_owned(),
            1 => "it takes no more tasks; the run ends when the one that is left has ended".to_owned(),
            left => format!("it takes no more tasks; the run ends when the {left} that are left have ended"),
        })
    }

    /// Returns when the run has to act for it.
    pub(super) fn next(&self) -> Option<Instant> {
        let idle = self.idle_since.zip(self.idle_limit).filter(|_| !self.is_stopped);
        let idle = idle.and_then(|(since, limit)| since.checked_add(limit));
        let followers = self.followers.iter().map(|follower| follower.until);
        // As long as something is left to do, nobody waits for this.
        let last_word = self
            .told_at
            .filter(|_| self.is_stopped && self.idle_since.is_some());
        let last_word = last_word.and_then(|at| at.checked_add(LAST_WORD));
        followers.chain(idle).chain(last_word).min()
    }

    /// Returns whether the run goes on although nothing is left to do. `is_ending`: it starts no more tasks.
    fn keeps_the_run(&mut self, is_ending: bool) -> bool {
        let now = clock::now();
        let since = *self.idle_since.get_or_insert(now);
        if let Some(limit) = self.idle_limit
            && !self.is_stopped
            && now.saturating_duration_since(since) >= limit
        {
            self.is_stopped = true;
            tracing::info!("Nothing to do for {} s: the run ends", limit.as_secs());
        }
        if !self.is_stopped && !is_ending {
            return true;
        }
        self.is_stopped = true;
        self.tell_that_it_ends();
        // Those that were told a moment ago are about to ask again.
        self.told_at
            .take_if(|at| now.saturating_duration_since(*at) >= LAST_WORD);
        self.told_at.is_some()
    }
}

/// Refuses a request about tasks that are added.
pub(super) fn takes_no_tasks() -> Answer {
    Answer::Refused("this run takes no tasks: it was not started by `pmc serve`".to_owned())
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Returns whether the run goes on, although nothing is left to do, because it takes tasks.
    pub(super) fn takes_tasks(&mut self) -> bool {
        let is_ending = self.run.is_ending();
        self.serving
            .as_mut()
            .is_some_and(|serving| serving.keeps_the_run(is_ending))
    }

    /// Adds tasks, once the run has begun, and answers the tool.
    pub(super) fn add_tasks(&mut self, add: AddRequest, answer: SyncSender<Reply>) -> Result<(), RunError> {
        let reply = match &mut self.serving {
            None => takes_no_tasks(),
            // A task that fits on no host would end the run before it has begun.
            Some(serving) if !self.run.master.has_started() && !self.run.master.is_dynamic() => {
                serving.early.push((add, answer));
                return Ok(());
            }
            Some(serving) => serving.add(&mut self.run, &add.tasks)?,
        };
        // A tool that has gone needs no answer. What was accepted stays accepted.
        let _ = answer.send(Reply::Answer(reply));
        Ok(())
    }

    /// Adds tasks of requests that came before the workers.
    pub(super) fn add_early_tasks(&mut self) -> Result<(), RunError> {
        let early = self.serving.as_mut().map(|serving| &mut serving.early);
        for (add, answer) in early.map(std::mem::take).unwrap_or_default() {
            self.add_tasks(add, answer)?;
        }
        Ok(())
    }

    /// Syncs the DAG file at the end of a run that takes tasks: what is left is for the next one.
    pub(super) fn settle_additions(&self) -> Result<(), RunError> {
        match &self.serving {
            Some(serving) if self.run.options.sync_interval.is_some() => sync::file(&serving.file)
                .map_err(|error| RunError::system("Unable to write the DAG file to the disk", error)),
            _ => Ok(()),
        }
    }

    /// Tells tools of the tasks that have ended. Their rescue records are written.
    pub(super) fn tell_ends(&mut self) {
        let finals = std::mem::take(&mut self.run.out.finals);
        if let Some(serving) = &mut self.serving {
            serving.note(&self.run, finals);
            serving.tell(&self.run);
        }
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// The DAG that grows.
    fn own_dag(&self) -> &Dag {
        &self.out.dags.root.dag
    }
}
