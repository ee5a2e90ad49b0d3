//! A run on this machine, inside the calling program.

use std::sync::Arc;

use crate::driver::{self, RunError, RunEvent, RunSummary};
use crate::interrupt::Interrupt;
use crate::options::{Options, WorkerOptions};
use crate::transport::local::LocalMaster;

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
    let worker = Arc::new(run.worker.clone());
    let mut transport = LocalMaster::start(run.workers, &worker, interrupt)?;
    driver::run_lending(&mut transport, &run.options, interrupt, observer)
}
