//! Answers what tools ask for. The thread of the PMIx library comes here, and must not wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pmc_pmix::{Host, Processes, Refusal, Taken, Wants};

use super::form::Form;
use super::input::{Inputs, Piece};
use crate::commands::attach::select::Chosen;

/// An attempt that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Name of its task.
    pub task: String,
    /// Host; empty if it is not known.
    pub host: String,
}

/// What tools may ask for, and what they have asked for.
pub struct Desk {
    namespace: String,
    state: Mutex<State>,
    chosen: Arc<Mutex<Chosen>>,
    inputs: Inputs,
}

#[derive(Default)]
struct State {
    /// By submit number.
    running: BTreeMap<u32, Running>,
    /// Pulls that have not ended. The library does not say which one ends.
    pulls: usize,
    form: Form,
    changes: Changes,
}

/// What tools have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The last pull has ended.
    pub is_reset: bool,
    /// There is a new pull.
    pub has_new: bool,
}

impl Desk {
    /// A run with this name. Writes what tools choose into `chosen`.
    pub fn new(namespace: String, chosen: Arc<Mutex<Chosen>>, inputs: Inputs) -> Self {
        Self {
            namespace,
            state: Mutex::default(),
            chosen,
            inputs,
        }
    }

    /// Name of the run.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Sets the attempts that run.
    pub fn set_running(&self, running: BTreeMap<u32, Running>) {
        self.state().running = running;
    }

    /// Returns what was changed since the last call.
    pub fn take_changes(&self) -> Changes {
        std::mem::take(&mut self.state().changes)
    }

    /// Returns what the pulls want of lines.
    pub fn form(&self) -> Form {
        self.state().form
    }

    /// Returns whether a tool wants output.
    pub fn has_pulls(&self) -> bool {
        self.state().pulls > 0
    }

    /// Ends all pulls: no tool is connected.
    pub fn end_pulls(&self) {
        self.reset(&mut self.state());
    }

    fn reset(&self, state: &mut State) {
        state.pulls = 0;
        state.changes.is_reset = true;
        *self.chosen() = Chosen::default();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chosen(&self) -> MutexGuard<'_, Chosen> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the submit numbers, none for all attempts.
    fn find(&self, state: &State, processes: &[Processes]) -> Result<Option<Vec<u32>>, Refusal> {
        let mut found = Some(Vec::new());
        for process in processes {
            if process.namespace != self.namespace {
                return Err(Refusal::NotFound);
            }
            match process.rank {
                None => found = None,
                Some(rank) if !state.running.contains_key(&rank) => return Err(Refusal::NotFound),
                Some(rank) => found.iter_mut().for_each(|found| found.push(rank)),
            }
        }
        match &found {
            Some(found) if found.is_empty() => Err(Refusal::NotFound),
            _ => Ok(found),
        }
    }
}

impl Host for Desk {
    fn pull(&self, processes: &[Processes], streams: [bool; 2], wants: Wants) -> Result<(), Refusal> {
        if wants.has(Wants::UNKNOWN | Wants::REDIRECT) || streams == [false, false] {
            return Err(Refusal::NotSupported);
        }
        let mut state = self.state();
        let form = Form::new(wants);
        // All tools that pull from an attempt get the same bytes.
        if state.pulls > 0 && state.form != form {
            return Err(Refusal::NotSupported);
        }
        let found = self.find(&state, processes)?;
        state.form = form;
        state.pulls += 1;
        state.changes.has_new = true;
        let mut chosen = self.chosen();
        match found {
            None => chosen.all = true,
            Some(ranks) => chosen.submit_numbers.extend(ranks),
        }
        Ok(())
    }

    fn stop(&self) {
        let mut state = self.state();
        state.pulls = state.pulls.saturating_sub(1);
        if state.pulls == 0 {
            self.reset(&mut state);
        }
    }

    fn push(&self, processes: &[Processes], bytes: &[u8], wants: Wants, taken: Taken) {
        let targets = {
            let state = self.state();
            let name = |rank: u32| {
                state
                    .running
                    .get(&rank)
                    .map(|running| (rank, running.task.clone()))
            };
            self.find(&state, processes)
                .map(|found| found.map(|ranks| ranks.into_iter().filter_map(name).collect()))
        };
        let piece = Piece {
            bytes: bytes.to_owned(),
            is_end: wants.has(Wants::COMPLETE),
            taken,
        };
        match targets {
            Err(refusal) => piece.taken.answer(Err(refusal)),
            Ok(_) if wants.has(Wants::UNKNOWN) => piece.taken.answer(Err(Refusal::NotSupported)),
            Ok(targets) => self.inputs.push(targets, piece),
        }
    }

    fn list(&self, add: &mut dyn FnMut(u32, &str, &str)) {
        for (rank, running) in &self.state().running {
            add(*rank, &running.task, &running.host);
        }
    }
}
