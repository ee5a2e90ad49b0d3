//! Threads that ask the run for captured output, so that one task without output does not hold up the others.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pmc_control::{ControlError, Output, TapRequest, Tool};

use super::Message;

/// Maximum requests at a time: what bounds the work and the memory of the run.
pub const MAX_REQUESTS: usize = 8;

/// Asks.
pub struct Asker {
    dag: PathBuf,
    messages: SyncSender<Message>,
    requests: Sender<(u64, TapRequest)>,
    taken: Arc<Mutex<Receiver<(u64, TapRequest)>>>,
    threads: usize,
    /// Requests without an answer.
    open: usize,
}

/// An answer.
pub struct Answer {
    /// The one that asked.
    pub follower: u64,
    /// `None` if the run refuses.
    pub output: Result<Option<Output>, ControlError>,
    /// Time that it took.
    pub time: Duration,
}

impl Asker {
    /// Asks the run of a DAG.
    pub fn new(dag: &Path, messages: SyncSender<Message>) -> Self {
        let (requests, taken) = channel();
        Self {
            dag: dag.to_owned(),
            messages,
            requests,
            taken: Arc::new(Mutex::new(taken)),
            threads: 0,
            open: 0,
        }
    }

    /// Returns whether another request can be sent.
    pub fn is_free(&self) -> bool {
        self.open < MAX_REQUESTS
    }

    /// Sends a request. Its answer comes as a message.
    pub fn ask(&mut self, follower: u64, request: TapRequest) {
        if self.open == self.threads && !self.start() {
            return;
        }
        // A thread holds the other end.
        if self.requests.send((follower, request)).is_ok() {
            self.open += 1;
        }
    }

    /// Takes note of an answer.
    pub fn note_answer(&mut self) {
        self.open -= 1;
    }

    fn start(&mut self) -> bool {
        let (dag, taken) = (self.dag.clone(), Arc::clone(&self.taken));
        let messages = self.messages.clone();
        let serve = move || {
            let mut tool = None;
            loop {
                let next = taken.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok((follower, request)) = next else { break };
                let begun = Instant::now();
                let output = ask(&dag, &mut tool, request);
                let time = begun.elapsed();
                let answer = Answer {
                    follower,
                    output,
                    time,
                };
                if messages.send(Message::Answer(Box::new(answer))).is_err() {
                    break;
                }
            }
        };
        let started = std::thread::Builder::new().name("asker".into()).spawn(serve);
        self.threads += usize::from(started.is_ok());
        started.is_ok()
    }
}

/// Asks over the last connection, or over a new one: the run closes those that are not used for a while.
fn ask(dag: &Path, old: &mut Option<Tool>, request: TapRequest) -> Result<Option<Output>, ControlError> {
    if let Some(mut tool) = old.take()
        && let Ok(output) = tool.tap(request.clone())
    {
        *old = Some(tool);
        return Ok(output.ok());
    }
    let mut tool = Tool::connect(dag)?;
    let output = tool.tap(request)?;
    *old = Some(tool);
    Ok(output.ok())
}
