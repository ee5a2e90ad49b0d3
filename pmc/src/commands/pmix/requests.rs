//! Answers what tools ask for. The thread of the PMIx library comes here, and must not wait.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pmc_pmix::{Host, Processes, Refusal, Taken, Tools, Wants};

use super::input::{Inputs, Piece};
use super::output_format::OutputFormat;
use super::redirect::{Redirecting, Running};
use crate::commands::attach::select::Chosen;

/// Maximum attempts that are redirected: each takes a thread.
const MAX_REDIRECTS: usize = 100;

/// What tools may ask for, and what they have asked for.
pub struct PmixRequests {
    dag: PathBuf,
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
    format: OutputFormat,
    changes: Changes,
    redirect: Option<RedirectPull>,
    /// Redirects whose output nobody passes on yet.
    begun: Vec<Redirecting>,
}

/// A pull of a tool that gets the output instead of the files.
#[derive(Clone)]
struct RedirectPull {
    /// Those that were there when it began; one of them is its tool.
    tools: Tools,
    is_over: Arc<AtomicBool>,
}

/// What tools have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// The last pull has ended.
    pub is_reset: bool,
    /// There is a new pull.
    pub has_new: bool,
}

impl PmixRequests {
    /// A run of this DAG, with this name. Writes what tools choose into `chosen`.
    pub fn new(dag: &Path, namespace: String, chosen: Arc<Mutex<Chosen>>) -> Self {
        Self {
            dag: dag.to_owned(),
            namespace,
            state: Mutex::default(),
            chosen,
            inputs: Inputs::new(dag),
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

    /// Returns the redirects that have begun since the last call.
    pub fn take_redirects(&self) -> Vec<Redirecting> {
        std::mem::take(&mut self.state().begun)
    }

    /// Returns what the pulls want of lines.
    pub fn format(&self) -> OutputFormat {
        self.state().format
    }

    /// Returns whether a tool wants output.
    pub fn has_pulls(&self) -> bool {
        self.state().pulls > 0
    }

    /// Ends the pulls of tools that have gone. Without any tool, it ends all pulls. It ends a redirect if one
    /// of the tools has gone that were connected when it began: one of them is its tool.
    pub fn end_pulls(&self, has_tools: bool) {
        let mut state = self.state();
        if state.pulls > 0 && !has_tools {
            self.reset(&mut state);
        }
        self.end_lost_redirect(&mut state);
    }

    fn end_lost_redirect(&self, state: &mut State) {
        let is_lost = |redirect: &RedirectPull| !redirect.tools.are_there();
        if state.redirect.as_ref().is_some_and(is_lost) {
            self.reset(state);
        }
    }

    fn reset(&self, state: &mut State) {
        state.pulls = 0;
        state.begun.clear();
        if let Some(redirect) = state.redirect.take() {
            redirect.is_over.store(true, Ordering::Release);
        }
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

impl State {
    /// Notes a redirect that is about to begin. Returns its attempts, and what ends it.
    fn reserve(&mut self, ranks: &[u32]) -> Result<(BTreeMap<u32, Running>, RedirectPull), Refusal> {
        let ranks: BTreeSet<u32> = ranks.iter().copied().collect();
        if ranks.len() > MAX_REDIRECTS {
            return Err(Refusal::NotSupported);
        }
        let running = ranks.iter().map(|rank| {
            let running = self.running.get(rank).ok_or(Refusal::NotFound)?;
            Ok((*rank, running.clone()))
        });
        let running = running.collect::<Result<_, _>>()?;
        let pull = RedirectPull {
            tools: Tools::now(),
            is_over: Arc::default(),
        };
        self.redirect = Some(pull.clone());
        self.pulls = 1;
        Ok((running, pull))
    }

    /// Returns whether this redirect was not ended meanwhile.
    fn has(&self, pull: &RedirectPull) -> bool {
        let current = self.redirect.as_ref();
        current.is_some_and(|current| Arc::ptr_eq(&current.is_over, &pull.is_over))
    }
}

impl PmixRequests {
    /// Begins to redirect output of attempts that run. The run may take its time to answer: nothing is locked
    /// meanwhile.
    fn redirect(
        &self,
        running: &BTreeMap<u32, Running>,
        pull: &RedirectPull,
        streams: [bool; 2],
    ) -> Result<(), Refusal> {
        let begun = running.iter().map(|(rank, running)| {
            let over = (pull.tools.clone(), Arc::clone(&pull.is_over));
            Redirecting::begin(&self.dag, (*rank, running), streams, over)
        });
        // If one is refused, the connections of the others end, and so they do.
        let begun = begun.collect::<Result<Vec<_>, _>>();
        let mut state = self.state();
        if !state.has(pull) {
            // Its tool has gone.
            return Err(Refusal::NotFound);
        }
        match begun {
            Ok(begun) => {
                state.begun = begun;
                Ok(())
            }
            Err(refusal) => {
                state.redirect = None;
                state.pulls = 0;
                Err(refusal)
            }
        }
    }
}

impl Host for PmixRequests {
    fn pull(&self, processes: &[Processes], streams: [bool; 2], wants: Wants) -> Result<(), Refusal> {
        if wants.has(Wants::UNKNOWN) || streams == [false, false] {
            return Err(Refusal::NotSupported);
        }
        let mut state = self.state();
        self.end_lost_redirect(&mut state);
        let format = OutputFormat::new(wants);
        let is_redirect = wants.has(Wants::REDIRECT);
        // All tools that pull from an attempt get the same bytes. Which pull ends is not said, so that a
        // redirect must be the only one.
        if state.pulls > 0 && (state.format != format || is_redirect || state.redirect.is_some()) {
            return Err(Refusal::NotSupported);
        }
        let found = self.find(&state, processes)?;
        // Of those that pull already, it is the same.
        state.format = format;
        if is_redirect {
            let ranks = found.ok_or(Refusal::NotSupported)?;
            let (running, pull) = state.reserve(&ranks)?;
            drop(state);
            return self.redirect(&running, &pull, streams);
        }
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
