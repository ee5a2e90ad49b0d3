//! Workers as threads of the master's process. Messages are handed over as they are.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use super::combiner::Combiner;
use super::{CombiningTransport, MasterTransport, Traffic, TransportError, WorkerTransport};
use crate::interrupt::Interrupt;
use crate::options::WorkerOptions;
use crate::protocol::{Rank, ToMaster, ToWorker};
use crate::worker::{self, KillSwitch, Shared};

/// The master's side; owns the workers' threads.
pub struct LocalMaster {
    combiner: Arc<Combiner>,
    workers: Vec<Worker>,
    traffic: Traffic,
}

struct Worker {
    outbound: Sender<ToWorker>,
    kill: Arc<KillSwitch>,
    thread: Option<JoinHandle<()>>,
}

/// A worker's side.
struct LocalWorker {
    rank: Rank,
    inbound: Receiver<ToWorker>,
    combiner: Arc<Combiner>,
}

impl LocalMaster {
    /// Starts the workers. `interrupt` ends the waiting of [`MasterTransport::receive`].
    ///
    /// # Errors
    /// The system does not allow so many threads.
    pub fn start(
        workers: u32,
        options: &Arc<WorkerOptions>,
        interrupt: &Interrupt,
    ) -> Result<Self, TransportError> {
        let shared = Arc::new(Shared::default());
        let combiner = Arc::new(Combiner::default());
        let waker = Arc::clone(&combiner);
        interrupt.on_raise(move || waker.call());
        let mut master = Self {
            combiner,
            workers: Vec::new(),
            traffic: Traffic::default(),
        };
        for rank in 1..=workers {
            let (outbound, inbound) = unbounded();
            let kill = Arc::new(KillSwitch::new());
            let mut side = LocalWorker {
                rank: Rank(rank),
                inbound,
                combiner: Arc::clone(&master.combiner),
            };
            let (options, switch) = (Arc::clone(options), Arc::clone(&kill));
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name(format!("worker-{rank}"))
                .spawn(move || {
                    // An error means that the master is gone, and with it whoever could be told.
                    let _ = worker::serve(&mut side, options, switch, &shared);
                });
            let thread = thread.map_err(|error| {
                TransportError(format!(
                    "Unable to start worker {rank}: {}",
                    pmc_dag::reason(&error)
                ))
            })?;
            master.workers.push(Worker {
                outbound,
                kill,
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
        let worker = worker.ok_or_else(|| TransportError(format!("There is no worker {}", to.0)))?;
        if matches!(message, ToWorker::Abort) {
            worker.kill.terminate();
        }
        // A worker whose thread has ended has said why.
        let _ = worker.outbound.send(message);
        Ok(())
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<(Rank, ToMaster)>, TransportError> {
        let received = self.combiner.receive(timeout);
        if let Some((_, message)) = &received {
            self.traffic.received += message.encoded_len() as u64;
        }
        Ok(received)
    }

    fn supports_prefill(&self) -> bool {
        false
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn close(&mut self, timeout: Duration) -> Vec<Rank> {
        let grace = Instant::now() + worker::GRACE.min(timeout);
        let end = Instant::now() + timeout;
        for worker in &self.workers {
            if worker.kill.is_aborted()
                && !worker
                    .kill
                    .wait_idle(grace.saturating_duration_since(Instant::now()))
            {
                worker.kill.kill();
            }
        }
        let mut silent = Vec::new();
        for (rank, worker) in (1..).map(Rank).zip(&mut self.workers) {
            // A process that the kernel does not let go must not hold up the end of the run.
            if worker
                .kill
                .wait_idle(end.saturating_duration_since(Instant::now()))
            {
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

    fn note_received(&mut self, message: &ToMaster) {
        self.traffic.received += message.encoded_len() as u64;
    }
}

impl Drop for LocalMaster {
    fn drop(&mut self) {
        for worker in &self.workers {
            if worker.thread.is_some() {
                worker.kill.kill();
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
            Err(RecvTimeoutError::Disconnected) => Err(TransportError("The master has ended".to_owned())),
        }
    }
}
