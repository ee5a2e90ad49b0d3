//! Workers: each executes one task at a time and owns the files its output goes to.

mod forward;
mod kill;
mod program;
mod spawn;
mod stdio;
mod task;

use std::sync::Arc;
use std::time::Duration;

pub use forward::LONGEST_FILE;
pub use kill::KillSwitch;
pub use stdio::{latest_task_files, worker_stderr, worker_stdout};
use task::{Failure, Runner};

use crate::message::{ToMaster, ToWorker};
use crate::options::WorkerOptions;
use crate::transport::{TransportError, WorkerTransport};

/// How long a task that was asked to end may take before it is killed.
pub const GRACE: Duration = Duration::from_millis(500);

/// Runs a worker until the master sends it home. The tasks are executed by this very thread:
/// somebody else must use `kill` if the master wants an end while one runs.
///
/// # Errors
/// The master cannot be reached any more.
pub fn serve(
    transport: &mut impl WorkerTransport,
    options: Arc<WorkerOptions>,
    kill: Arc<KillSwitch>,
) -> Result<(), TransportError> {
    let host = crate::host::describe(options.host_memory, options.host_cpus);
    let runner = Runner::new(options, kill, transport.rank(), host.host.clone());
    let mut runner = match runner {
        Ok(runner) => runner,
        Err(message) => return transport.send(ToMaster::Failed { message }),
    };
    transport.send(ToMaster::Register(host))?;
    loop {
        match transport.receive(Duration::MAX)? {
            None => {}
            Some(ToWorker::Setup { host_rank }) => runner.set_host_rank(host_rank),
            Some(ToWorker::Run(task)) => match runner.run(&task) {
                Ok(result) => transport.send(ToMaster::Finished(result))?,
                Err(Failure::Aborted) => return Ok(()),
                Err(Failure::Fatal(message)) => return transport.send(ToMaster::Failed { message }),
            },
            Some(ToWorker::Shutdown | ToWorker::Abort) => return Ok(()),
        }
    }
}
