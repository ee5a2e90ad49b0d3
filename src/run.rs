//! Runs on this machine, inside the calling program, or in agents.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::{self, Observer, RunError, RunSummary};
use crate::interrupt::Interrupt;
use crate::open_files;
use crate::options::{Options, WorkerOptions};
use crate::transport::agents::{AgentMaster, AgentOptions};
use crate::transport::local::{LocalMaster, LocalWorker, LocalWorkerSetup};
use crate::worker::{self, RunningAttempt, Sentinel, Shared, Watched};

/// A run with worker threads in this process.
#[derive(Clone, Debug)]
pub struct LocalRun {
    /// What to run.
    pub options: Options,
    /// Settings of the workers.
    pub worker: WorkerOptions,
    /// Number of workers, each of which runs one task at a time.
    pub workers: u32,
}

/// Runs a DAG on this machine and calls `observer` with its events. Another thread may end the run and its
/// tasks through `interrupt`.
///
/// Raises the limit of open files of this process; the processes that it starts have the earlier one.
///
/// Prints nothing; log events go to the subscriber of `tracing`, if there is one.
///
/// # Errors
/// The run could not begin or had to be aborted. The rescue file lists the tasks that are done.
pub fn run_local(
    run: &LocalRun,
    interrupt: &Interrupt,
    observer: &mut Observer<'_>,
) -> Result<RunSummary, RunError> {
    let options = Arc::new(run.worker.clone());
    let shared = Arc::new(Shared::default());
    let (sentinel, numbers) = (Sentinel::start_or_warn(), AtomicU32::new(0));
    let setup = || {
        let (options, shared) = (Arc::clone(&options), Arc::clone(&shared));
        let worker = numbers.fetch_add(1, Ordering::Relaxed);
        let sentinel = sentinel.clone();
        let current = Arc::new(RunningAttempt::watched(
            sentinel.map(|sentinel| Watched { sentinel, worker }),
        ));
        LocalWorkerSetup {
            stop: Arc::clone(&current) as _,
            // It fails only if the master is gone, and then there is no one to report to.
            serve: move |mut side: LocalWorker| drop(worker::serve(&mut side, options, current, &shared)),
        }
    };
    let workers = run.workers.min(open_files::max_slots());
    if workers < run.workers {
        open_files::warn_of_fewer("This machine", workers, run.workers);
    }
    let mut transport = LocalMaster::start(workers, interrupt, worker::GRACE, setup)?;
    driver::run_combining(&mut transport, &run.options, interrupt, observer)
}

/// A run whose tasks run in agents.
#[derive(Clone, Debug)]
pub struct AgentRun {
    /// What to run.
    pub options: Options,
    /// The agents.
    pub agents: AgentOptions,
}

/// Runs a DAG in agents; otherwise like [`run_local`].
///
/// # Errors
/// The run could not begin or had to be aborted. The rescue file lists the tasks that are done.
pub fn run_with_agents(
    run: &AgentRun,
    interrupt: &Interrupt,
    observer: &mut Observer<'_>,
) -> Result<RunSummary, RunError> {
    // There is a connection to each agent.
    pmc_spawn::open_files::raise();
    let mut transport = AgentMaster::new(run.agents.clone(), interrupt);
    driver::run_combining(&mut transport, &run.options, interrupt, observer)
}
