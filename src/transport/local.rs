//! Workers as threads of the master's process. Messages are passed as values.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use super::combiner::Combiner;
use super::{CombiningTransport, MasterTransport, Traffic, TransportError, WorkerTransport};
use crate::interrupt::Interrupt;
use crate::protocol::{Rank, ToMaster, ToWorker};
use crate::requests::AttemptHandle;

/// The task of a worker thread, for those who end it from outside.
pub trait StopTask: AttemptHandle {
    /// Asks the running task to end, and lets no other one start.
    fn terminate(&self);
    /// Kills the running task, and lets no other one start.
    fn kill(&self);
    /// Returns whether [`Self::terminate`] or [`Self::kill`] was called.
    fn is_aborted(&self) -> bool;
    /// Waits until no task runs, at most `timeout`. True if none runs.
    fn wait_idle(&self, timeout: Duration) -> bool;
}

/// A worker to be started: what its thread runs, and what ends its task.
pub struct LocalWorkerSetup<F> {
    /// Runs the worker until the master ends it.
    pub serve: F,
    /// Ends the worker's task.
    pub stop: Arc<dyn StopTask>,
}

/// The master's side; owns the workers' threads.
pub struct LocalMaster {
    combiner: Arc<Combiner>,
    workers: Vec<Worker>,
    /// Time between SIGTERM and SIGKILL for tasks of an aborted run.
    grace: Duration,
    traffic: Traffic,
}

struct Worker {
    outbound: Sender<ToWorker>,
    stop: Arc<dyn StopTask>,
    thread: Option<JoinHandle<()>>,
}

/// A worker's side.
pub struct LocalWorker {
    rank: Rank,
    inbound: Receiver<ToWorker>,
    combiner: Arc<Combiner>,
}

impl LocalMaster {
    /// Starts `workers` workers, which `setup` makes. `interrupt` ends the waiting of
    /// [`MasterTransport::receive`]. Tasks of an aborted run have the time `grace` to end.
    ///
    /// # Errors
    /// The system refused a thread.
    pub fn start<F: FnOnce(LocalWorker) + Send + 'static>(
        workers: u32,
        interrupt: &Interrupt,
        grace: Duration,
        setup: impl Fn() -> LocalWorkerSetup<F>,
    ) -> Result<Self, TransportError> {
        let combiner = Arc::new(Combiner::default());
        let waker = Arc::clone(&combiner);
        interrupt.on_raise(move || waker.wake());
        let mut master = Self {
            combiner,
            workers: Vec::new(),
            grace,
            traffic: Traffic::default(),
        };
        for rank in (1..=workers).map(Rank) {
            let (outbound, inbound) = unbounded();
            let side = LocalWorker {
                rank,
                inbound,
                combiner: Arc::clone(&master.combiner),
            };
            let LocalWorkerSetup { serve, stop } = setup();
            let thread = std::thread::Builder::new()
                .name(format!("worker-{}", rank.0))
                .spawn(move || serve(side))
                .map_err(|source| TransportError::StartWorker { rank, source })?;
            master.workers.push(Worker {
                outbound,
                stop,
                thread: Some(thread),
            });
        }
        Ok(master)
    }
}

impl MasterTransport for LocalMaster {
    fn workers(&self) -> u32 {
        u32::try_from(self.workers.len()).unwrap_or(u32::MAX)
    }

    fn send(&mut self, to: Rank, message: ToWorker) -> Result<(), TransportError> {
        self.traffic.sent += message.encoded_len() as u64;
        let worker = self.workers.get(to.0.wrapping_sub(1) as usize);
        let worker = worker.ok_or(TransportError::UnknownRank(to))?;
        if let ToWorker::Abort = message {
            worker.stop.terminate();
        }
        // A worker whose thread has ended has reported the reason.
        let _ = worker.outbound.send(message);
        Ok(())
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<(Rank, ToMaster)>, TransportError> {
        let received = self.combiner.receive(timeout);
        if let Some((from, message)) = &received {
            self.note_received(*from, message);
        }
        Ok(received)
    }

    fn attempt_of(&self, worker: Rank) -> Option<&dyn AttemptHandle> {
        let worker = self.workers.get(worker.0.wrapping_sub(1) as usize)?;
        Some(&*worker.stop)
    }

    fn supports_prefill(&self) -> bool {
        false
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn close(&mut self, timeout: Duration) -> Vec<Rank> {
        let remaining = |end: Instant| end.saturating_duration_since(Instant::now());
        let grace = Instant::now() + self.grace.min(timeout);
        let end = Instant::now() + timeout;
        for worker in &self.workers {
            if worker.stop.is_aborted() && !worker.stop.wait_idle(remaining(grace)) {
                worker.stop.kill();
            }
        }
        let mut silent = Vec::new();
        for (rank, worker) in (1..).map(Rank).zip(&mut self.workers) {
            // A process that the kernel cannot end must not hold up the end of the run.
            if worker.stop.wait_idle(remaining(end)) {
                worker.thread.take().map(JoinHandle::join);
            } else {
                silent.push(rank);
            }
        }
        silent
    }
}

impl CombiningTransport for LocalMaster {
    fn combiner(&self) -> Arc<Combiner> {
        Arc::clone(&self.combiner)
    }

    fn note_received(&mut self, _: Rank, message: &ToMaster) {
        let stored = match message {
            ToMaster::Finished(result) => result.stored_len(),
            _ => 0,
        };
        self.traffic.received += message.encoded_len() as u64 + stored;
    }
}

impl Drop for LocalMaster {
    fn drop(&mut self) {
        for worker in &self.workers {
            if worker.thread.is_some() {
                worker.stop.kill();
            }
        }
    }
}

impl WorkerTransport for LocalWorker {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn send(&mut self, message: ToMaster) -> Result<(), TransportError> {
        self.combiner.submit(self.rank, message);
        Ok(())
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<ToWorker>, TransportError> {
        match self.inbound.recv_timeout(timeout) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(TransportError::MasterEnded),
        }
    }
}
