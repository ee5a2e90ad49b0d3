//! The slots of an agent: threads that run one task at a time, like the workers of other transports.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use pmc_link::{Link, MAX_BODY};

use crate::interrupt::Interrupt;
use crate::options::WorkerOptions;
use crate::protocol::{EXECUTOR_FAILURE, NodeChange, Rank, SubmitId, TaskResult, ToMaster, ToWorker};
use crate::transport::agents::messages::{self, KeptAttempt};
use crate::transport::{TransportError, WorkerTransport};
use crate::worker;

/// Room that a message needs beside its data.
const MARGIN: usize = 64 << 10;

/// An attempt that a slot has been given.
#[derive(Clone, Debug)]
struct Given {
    submit: SubmitId,
    task: Vec<u8>,
}

/// What the link's thread and a slot's thread know of the slot.
#[derive(Default)]
struct SlotState {
    /// Attempts without a result: the first one runs, the others are prefilled.
    given: VecDeque<Given>,
}

struct Slot {
    state: Arc<Mutex<SlotState>>,
    inbound: Sender<ToWorker>,
    thread: JoinHandle<()>,
}

/// All slots of an agent.
pub(super) struct Slots {
    first_rank: u32,
    slots: Vec<Slot>,
    /// Slots whose threads have not ended.
    alive: Arc<AtomicUsize>,
    link: Arc<Link>,
}

/// A slot's side of the link.
struct SlotTransport {
    rank: Rank,
    link: Arc<Link>,
    inbound: Receiver<ToWorker>,
    state: Arc<Mutex<SlotState>>,
}

fn lock(state: &Mutex<SlotState>) -> MutexGuard<'_, SlotState> {
    // The state is valid at every moment, even if a thread panicked.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Slots {
    /// Starts a thread for each rank. Each registers its worker with the master.
    pub(super) fn start(
        ranks: Range<u32>,
        link: &Arc<Link>,
        options: &Arc<WorkerOptions>,
    ) -> Result<Self, TransportError> {
        let first_rank = ranks.start;
        let alive = Arc::new(AtomicUsize::new(ranks.len()));
        let mut slots = Vec::with_capacity(ranks.len());
        for rank in ranks.map(Rank) {
            let (inbound, receiver) = unbounded();
            let state = Arc::new(Mutex::default());
            let mut transport = SlotTransport {
                rank,
                link: Arc::clone(link),
                inbound: receiver,
                state: Arc::clone(&state),
            };
            let (options, alive, link) = (Arc::clone(options), Arc::clone(&alive), Arc::clone(link));
            let serve = move || {
                // Signals to the agent are handled by its main thread.
                let ended = worker::serve_process(&mut transport, options, &Interrupt::new());
                if let Err(error) = ended {
                    tracing::debug!("Slot {}: {error}", rank.0);
                }
                if alive.fetch_sub(1, Ordering::AcqRel) == 1 {
                    link.goodbye();
                }
            };
            let thread = std::thread::Builder::new()
                .name(format!("worker-{}", rank.0))
                .spawn(serve)
                .map_err(|source| TransportError::StartWorker { rank, source })?;
            slots.push(Slot {
                state,
                inbound,
                thread,
            });
        }
        Ok(Self {
            first_rank,
            slots,
            alive,
            link: Arc::clone(link),
        })
    }

    /// Passes a message of the master on.
    pub(super) fn deliver(&self, rank: Rank, message: ToWorker) {
        let slot = rank.0.checked_sub(self.first_rank);
        let Some(slot) = slot.and_then(|index| self.slots.get(index as usize)) else {
            tracing::error!(
                "The master sent a message to worker {}, which is not here",
                rank.0
            );
            return;
        };
        if let ToWorker::Run(task) = &message {
            lock(&slot.state).given.push_back(Given {
                submit: task.submit,
                task: task.name.clone(),
            });
        }
        // A slot whose thread has ended needs no messages.
        let _ = slot.inbound.send(message);
    }

    /// Sends a message to all slots.
    pub(super) fn deliver_all(&self, message: &ToWorker) {
        for slot in &self.slots {
            let _ = slot.inbound.send(message.clone());
        }
    }

    /// Asks the master for no more tasks.
    pub(super) fn leave(&self) {
        for rank in self.ranks().map(Rank) {
            let leaving = ToMaster::Node(NodeChange::Leaving);
            self.link
                .send(messages::address(rank, |body| leaving.encode(body)));
        }
    }

    /// True if all threads have ended, and so all tasks.
    pub(super) fn have_ended(&self) -> bool {
        self.alive.load(Ordering::Acquire) == 0
    }

    /// Waits for the end of all threads, at most `timeout`. True if they have ended.
    pub(super) fn wait(self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        while !self.have_ended() {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for slot in self.slots {
            // Its panic was printed.
            let _ = slot.thread.join();
        }
        true
    }

    /// The ranks.
    pub(super) fn ranks(&self) -> Range<u32> {
        self.first_rank..self.first_rank + u32::try_from(self.slots.len()).unwrap_or(0)
    }

    /// The attempts without a result, with the ranks of their slots. Several of one slot: the first runs.
    pub(super) fn attempts(&self) -> Vec<KeptAttempt> {
        let slots = (self.first_rank..).zip(&self.slots);
        let given = slots.flat_map(|(rank, slot)| {
            let given = lock(&slot.state).given.clone();
            given.into_iter().map(move |given| KeptAttempt {
                rank,
                submit: given.submit,
                task: given.task,
            })
        });
        given.collect()
    }
}

impl WorkerTransport for SlotTransport {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn send(&mut self, message: ToMaster) -> Result<(), TransportError> {
        let message = bounded(message);
        {
            let mut state = lock(&self.state);
            match &message {
                ToMaster::Finished(result) => state.given.retain(|given| given.submit != result.submit),
                ToMaster::Retracted { submits } => {
                    state.given.retain(|given| !submits.contains(&given.submit));
                }
                _ => {}
            }
        }
        let body = messages::address(self.rank, |body| message.encode(body));
        if self.link.send(body) {
            Ok(())
        } else {
            Err(TransportError::MasterEnded)
        }
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<ToWorker>, TransportError> {
        match self.inbound.recv_timeout(timeout) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TransportError::MasterEnded),
        }
    }
}

/// A result whose data is too long for a message becomes a failure.
fn bounded(message: ToMaster) -> ToMaster {
    let ToMaster::Finished(result) = message else {
        return message;
    };
    let bytes: usize = result.forwards.iter().map(|forward| forward.data.len()).sum();
    if bytes <= MAX_BODY - MARGIN {
        return ToMaster::Finished(result);
    }
    tracing::error!(
        "Attempt {} forwards {bytes} bytes: over agents, a task can forward {} MiB at most",
        result.submit.0,
        (MAX_BODY - MARGIN) >> 20
    );
    let mut outcome = result.outcome;
    outcome.status = EXECUTOR_FAILURE;
    ToMaster::Finished(TaskResult {
        submit: result.submit,
        outcome,
        forwards: Vec::new(),
    })
}
