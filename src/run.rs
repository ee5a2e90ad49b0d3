//! A run on this machine, inside the calling program.

use std::sync::Arc;

use crate::driver::{self, RunError, RunEvent, RunSummary};
use crate::interrupt::Interrupt;
use crate::options::{Options, WorkerOptions};
use crate::transport::local::{LocalMaster, LocalWorker, LocalWorkerSetup};
use crate::worker::{self, KillSwitch, Shared};

/// A run with worker threads in this process.
#[derive(Clone, Debug)]
pub struct LocalRun {
    /// What to run.
    pub options: Options,
    /// What the workers need to know.
    pub worker: WorkerOptions,
    /// Number of workers: tasks that run at a time.
    pub workers: u32,
}

/// Runs a DAG on this machine and tells `observer` what happens. Another thread may end the run
/// through `interrupt`; the running tasks are then ended, too.
///
/// Nothing is printed: events for a log are sent to the subscriber of `tracing`, if there is one.
///
/// # Errors
/// The run could not begin or had to be given up. What was done until then is in the rescue file.
pub fn run_local(
    run: &LocalRun,
    interrupt: &Interrupt,
    observer: &mut (dyn FnMut(&RunEvent<'_>) + Send),
) -> Result<RunSummary, RunError> {
    let options = Arc::new(run.worker.clone());
    let shared = Arc::new(Shared::default());
    let setup = || {
        let (options, shared) = (Arc::clone(&options), Arc::clone(&shared));
        let kill = Arc::new(KillSwitch::new());
        LocalWorkerSetup {
            stop: Arc::clone(&kill) as _,
            // It fails only if the master is gone, and then there is no one to report to.
            serve: move |mut side: LocalWorker| drop(worker::serve(&mut side, options, kill, &shared)),
        }
    };
    let mut transport = LocalMaster::start(run.workers, interrupt, worker::GRACE, setup)?;
    driver::run_combining(&mut transport, &run.options, interrupt, observer)
}
