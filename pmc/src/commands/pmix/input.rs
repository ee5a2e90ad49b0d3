//! Input that tools push.
//!
//! A piece is answered when the tasks have taken it. The PMIx library of a tool does not wait for that when
//! it collects the tool's standard input, and the library of the server reads whatever comes. So the thread
//! of the server waits here, up to a limit, when too much is on its way: then the kernel stops the tool.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pmc_control::MAX_INPUT;
use pmc_pmix::{Refusal, Taken};

use crate::commands::attach::push::{Target, each, taking};
use crate::exit;
use crate::failure::Failure;

/// Bytes that wait for the tasks of one push.
const MAX_WAITING: usize = 4 << 20;
/// Time for the tasks to take some of them when more than [`MAX_WAITING`] wait.
const ROOM_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which the thread of a push ends if nothing comes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Submit numbers and tasks; none for all tasks that take input.
pub type Targets = Option<Vec<(u32, String)>>;

/// Input for some tasks.
pub struct Piece {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The input ends after them.
    pub is_end: bool,
    /// Where the answer goes.
    pub taken: Taken,
}

/// All input that is on its way.
pub struct Inputs {
    dag: PathBuf,
    /// A queue for each set of tasks that tools push to.
    queues: Arc<Mutex<HashMap<Targets, Arc<Queue>>>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Piece>,
    /// Bytes of pieces that were not answered.
    waiting: usize,
    /// Its thread has ended.
    is_closed: bool,
}

impl Inputs {
    /// Input for tasks of the run of a DAG.
    pub fn new(dag: &Path) -> Self {
        Self {
            dag: dag.to_owned(),
            queues: Arc::default(),
        }
    }

    /// Passes a piece to the tasks; it is answered later.
    pub fn push(&self, targets: Targets, piece: Piece) {
        let mut queues = lock(&self.queues);
        let mut queue = queues.get(&targets).cloned();
        let is_closed = queue.as_ref().is_some_and(|queue| queue.state().is_closed);
        if is_closed && piece.taken.is_last() {
            return piece.taken.answer(Ok(()));
        }
        queue.take_if(|_| is_closed);
        let queue = match queue {
            Some(queue) => queue,
            None => {
                let queue = Arc::new(Queue::default());
                let (taker, dag, tasks) = (Arc::clone(&queue), self.dag.clone(), targets.clone());
                let serve = move || taker.serve(&dag, tasks);
                let started = std::thread::Builder::new().name("input".into()).spawn(serve);
                if started.is_err() {
                    return piece.taken.answer(Err(Refusal::Failed));
                }
                queues.retain(|_, queue| !queue.state().is_closed);
                queues.insert(targets, Arc::clone(&queue));
                queue
            }
        };
        drop(queues);
        queue.push(piece);
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn push(&self, piece: Piece) {
        let mut state = self.state();
        let end = Instant::now() + ROOM_TIMEOUT;
        while state.waiting > MAX_WAITING && !state.is_closed {
            let Some(left) = end.checked_duration_since(Instant::now()) else {
                return piece.taken.answer(Err(Refusal::Timeout));
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.is_closed {
            return piece.taken.answer(Err(Refusal::Failed));
        }
        state.waiting += piece.bytes.len();
        state.pieces.push_back(piece);
        self.changed.notify_all();
    }

    /// Passes pieces to tasks until there are no more, or until a task takes none.
    fn serve(&self, dag: &Path, tasks: Targets) {
        let is_all = tasks.is_none();
        let mut result = find(dag, tasks);
        while let Some(pieces) = self.next() {
            let answer = match &mut result {
                Ok(targets) => pass(targets, is_all, &pieces),
                Err(failure) => Err(refusal(failure)),
            };
            let is_over = answer.is_err() || pieces.iter().any(|piece| piece.is_end);
            let length: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
            if is_over {
                // Before the answer: what the tool pushes next begins anew.
                self.state().is_closed = true;
            }
            for piece in pieces {
                piece.taken.answer(answer);
            }
            self.state().waiting -= length;
            self.changed.notify_all();
            if is_over {
                break;
            }
        }
        let left = std::mem::take(&mut self.state().pieces);
        // They are refused.
        drop(left);
    }

    /// Takes what has come, as far as the run takes it at once. `None` if nothing comes for a long time.
    fn next(&self) -> Option<Vec<Piece>> {
        let mut state = self.state();
        let end = Instant::now() + IDLE_TIMEOUT;
        while state.pieces.is_empty() {
            let Some(left) = end.checked_duration_since(Instant::now()) else {
                state.is_closed = true;
                return None;
            };
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut pieces = Vec::new();
        let mut length = 0;
        while let Some(piece) = state.pieces.front()
            && (pieces.is_empty() || length + piece.bytes.len() <= MAX_INPUT)
        {
            length += piece.bytes.len();
            let is_end = piece.is_end;
            pieces.extend(state.pieces.pop_front());
            if is_end {
                break;
            }
        }
        Some(pieces)
    }
}

/// Returns the tasks, after asking the run whether they take input.
fn find(dag: &Path, tasks: Targets) -> Result<Vec<Target>, Failure> {
    let Some(tasks) = tasks else {
        let names = taking(dag)?;
        return Ok(names.into_iter().map(|task| Target::new(dag, task)).collect());
    };
    let mut targets = Vec::new();
    for (submit_number, task) in tasks {
        let mut target = Target::new(dag, task);
        target.push(&[], false)?;
        if target.submit_number() != Some(u64::from(submit_number)) {
            let error = anyhow::anyhow!("the attempt {submit_number} has ended");
            return Err(Failure::new(exit::NOT_RUN, error));
        }
        targets.push(target);
    }
    Ok(targets)
}

fn pass(targets: &mut Vec<Target>, is_all: bool, pieces: &[Piece]) -> Result<(), Refusal> {
    let bytes: Vec<u8> = pieces
        .iter()
        .flat_map(|piece| piece.bytes.iter().copied())
        .collect();
    let is_end = pieces.iter().any(|piece| piece.is_end);
    // A piece may be larger than what the run takes at once.
    for portion in bytes.chunks(MAX_INPUT) {
        each(targets, is_all, portion, false).map_err(|failure| refusal(&failure))?;
    }
    if is_end || bytes.is_empty() {
        each(targets, is_all, &[], is_end).map_err(|failure| refusal(&failure))?;
    }
    Ok(())
}

fn refusal(failure: &Failure) -> Refusal {
    if failure.code == exit::NOT_SUPPORTED {
        Refusal::NotSupported
    } else {
        Refusal::Failed
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
