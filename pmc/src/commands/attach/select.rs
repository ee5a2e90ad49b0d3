//! Which tasks are shown.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::anyhow;
use pmc_dag::pattern::matches;
use pmc_monitor::history::{History, State};
use pmc_monitor::plan::TaskNumber;

use crate::cli;
use crate::commands::log::find::find_task;
use crate::exit;
use crate::failure::Failure;

/// The tasks that a user wants to see.
pub enum Selection {
    /// All.
    All,
    /// These. The tool ends when they have ended.
    Named(HashSet<TaskNumber>),
    /// Those of a transformation.
    Transformation(String),
    /// Those on a host.
    Host(String),
    /// Attempts that others choose while the tool runs.
    #[cfg_attr(not(feature = "pmix"), expect(dead_code, reason = "for tools of PMIx"))]
    Chosen(Arc<Mutex<Chosen>>),
}

/// Attempts that were chosen.
#[derive(Debug, Default)]
pub struct Chosen {
    /// All.
    pub all: bool,
    /// Those with these submit numbers.
    pub submit_numbers: HashSet<u32>,
}

impl Selection {
    /// Finds the tasks that the command line selects.
    pub fn new(arguments: &cli::Attach, history: &History) -> Result<Self, Failure> {
        if !arguments.tasks.is_empty() {
            return Ok(Self::Named(named(&arguments.tasks, history)?));
        }
        if arguments.running {
            return Ok(Self::Named(history.in_state(State::Running).collect()));
        }
        if let Some(name) = &arguments.transformation {
            let mut classes = history.plan.classes().iter();
            if !classes.any(|class| class.transformation == *name) {
                let dag = history.dir.dag.display();
                return Err(Failure::new(
                    exit::USAGE,
                    anyhow!("{dag}: no task is of the transformation {name}"),
                ));
            }
            return Ok(Self::Transformation(name.clone()));
        }
        Ok(match &arguments.host {
            Some(host) => Self::Host(host.clone()),
            None => Self::All,
        })
    }

    /// Returns whether a task may be shown. The host of an attempt decides only when it is known.
    pub fn may_have(&self, task: TaskNumber, history: &History) -> bool {
        match self {
            Self::All | Self::Host(_) | Self::Chosen(_) => true,
            Self::Named(tasks) => tasks.contains(&task),
            Self::Transformation(name) => history.plan.class(task).transformation == *name,
        }
    }

    /// Returns whether an attempt is shown; `None` if its host is not known yet.
    pub fn has(&self, index: usize, history: &History) -> Option<bool> {
        let attempt = &history.attempts[index];
        match self {
            Self::Chosen(chosen) => {
                let chosen = chosen.lock().unwrap_or_else(PoisonError::into_inner);
                Some(chosen.all || chosen.submit_numbers.contains(&history.submit_number(index)))
            }
            Self::Host(host) => Some(history.hosts.name(attempt.host)? == host),
            _ => Some(self.may_have(attempt.task, history)),
        }
    }
}

/// Returns the name of a task, which must exist.
pub fn one(name: &str, history: &History) -> Result<String, Failure> {
    let task = find_task(history, OsStr::new(name))?;
    Ok(history.plan.text_name(task))
}

/// Finds tasks by names and patterns.
fn named(given: &[String], history: &History) -> Result<HashSet<TaskNumber>, Failure> {
    let mut tasks = HashSet::new();
    for name in given {
        if let Some(task) = history.plan.find(name.as_bytes()) {
            tasks.insert(task);
            continue;
        }
        let before = tasks.len();
        if name.contains(['*', '?']) {
            let all = 0..u32::try_from(history.plan.len()).unwrap_or(u32::MAX);
            tasks.extend(all.filter(|task| matches(name.as_bytes(), history.plan.name(*task))));
        }
        if tasks.len() == before {
            tasks.insert(find_task(history, OsStr::new(name))?);
        }
    }
    Ok(tasks)
}
