//! Workers: each executes one task at a time and owns the files its output goes to.

mod environment;
mod forward;
mod gpus;
mod host_script;
mod kill;
mod process;
mod program;
mod stdio;
mod task;
mod task_server;
mod watch;

use std::ffi::OsString;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gpus::Devices;
pub use kill::KillSwitch;
pub(crate) use stdio::fill_numbers;
pub use stdio::{latest_task_files, worker_stderr, worker_stdout};
use task::{Failure, Runner};
use watch::{Messages, Nothing};

use crate::interrupt::Interrupt;
use crate::options::WorkerOptions;
use crate::protocol::{Registration, TaskResult, ToMaster, ToWorker};
use crate::transport::{TransportError, WorkerTransport};

/// How long a task that was asked to end may take before it is killed.
pub const GRACE: Duration = Duration::from_millis(500);

/// GPUs that tasks may use: `wanted`, or if that is 0 as many as there are.
#[must_use]
pub fn count_gpus(wanted: u32, environment: &[(OsString, OsString)]) -> u32 {
    Devices::named(environment).count(wanted)
}

/// What this machine has for tasks.
#[must_use]
pub fn describe_host(options: &WorkerOptions) -> Registration {
    let gpus = count_gpus(options.host_gpus, &options.environment);
    crate::host::describe(options.host_memory, options.host_cpus, gpus)
}

/// What workers in one process share.
#[derive(Default)]
pub struct Shared {
    host: OnceLock<Registration>,
}

/// Runs a worker until the master sends it home. The tasks are executed by this very thread:
/// somebody else must use `kill` if the master wants an end while one runs.
///
/// # Errors
/// The master cannot be reached any more.
pub fn serve(
    transport: &mut impl WorkerTransport,
    options: Arc<WorkerOptions>,
    kill: Arc<KillSwitch>,
    shared: &Shared,
) -> Result<(), TransportError> {
    let runner = Runner::new(Arc::clone(&options), kill, transport.rank(), crate::host::name());
    let mut runner = match runner {
        Ok(runner) => runner,
        Err(message) => return transport.send(ToMaster::Failed { message }),
    };
    let host = shared.host.get_or_init(|| describe_host(&options)).clone();
    transport.send(ToMaster::Register(host))?;
    let served = serve_with(transport, &mut runner);
    runner.close();
    served
}

/// Works for the master.
fn serve_with(transport: &mut impl WorkerTransport, runner: &mut Runner) -> Result<(), TransportError> {
    loop {
        let done = match transport.receive(Duration::MAX)? {
            None => continue,
            Some(ToWorker::Setup { host_rank }) => Done::SetUp(runner.set_up(host_rank, &mut Nothing)),
            Some(ToWorker::Run(task)) => Done::Task(runner.run(&task, &mut Nothing)),
            // Nothing is sent to these workers in advance.
            Some(ToWorker::Retract) => continue,
            Some(ToWorker::Shutdown | ToWorker::Abort) => return Ok(()),
        };
        match done.message() {
            Ok(None) => {}
            Ok(Some(message)) => transport.send(message)?,
            Err(Failure::Aborted) => return Ok(()),
            Err(Failure::Fatal(message)) => return transport.send(ToMaster::Failed { message }),
        }
    }
}

/// What came of something that the master had asked for.
enum Done {
    /// Whether the master waits for an answer.
    SetUp(Result<bool, Failure>),
    Task(Result<TaskResult, Failure>),
}

impl Done {
    /// What to tell the master.
    fn message(self) -> Result<Option<ToMaster>, Failure> {
        Ok(match self {
            Self::SetUp(asked) => asked?.then_some(ToMaster::Ready),
            Self::Task(result) => Some(ToMaster::Finished(result?)),
        })
    }
}

/// Longest wait for a message without a look at the signals.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// Runs a worker that is a process of its own until the master sends it home. While a task runs, the
/// worker looks for messages now and then, and ends the task if the master or a signal wants so.
///
/// # Errors
/// The master cannot be reached any more.
pub fn serve_watchfully(
    transport: &mut impl WorkerTransport,
    options: Arc<WorkerOptions>,
    interrupt: &Interrupt,
) -> Result<(), TransportError> {
    let host = describe_host(&options);
    let kill = Arc::new(KillSwitch::new());
    let runner = Runner::new(options, Arc::clone(&kill), transport.rank(), host.host.clone());
    let mut messages = Messages::new(transport, &kill, interrupt);
    let mut runner = match runner {
        Ok(runner) => {
            messages.send(ToMaster::Register(host))?;
            Some(runner)
        }
        Err(message) => {
            messages.send(ToMaster::Failed { message })?;
            None
        }
    };
    loop {
        let Some(message) = messages.receive(IDLE_LOOK)? else {
            continue;
        };
        let done = match (message, &mut runner) {
            (ToWorker::Shutdown | ToWorker::Abort, _) => break,
            // What came before was begun already.
            (ToWorker::Retract, _) => continue,
            // Its end was announced.
            (_, None) => continue,
            (ToWorker::Setup { host_rank }, Some(runner)) => {
                Done::SetUp(runner.set_up(host_rank, &mut messages))
            }
            (ToWorker::Run(task), Some(runner)) => Done::Task(runner.run(&task, &mut messages)),
        };
        match done.message() {
            Ok(None) | Err(Failure::Aborted) => {}
            Ok(Some(message)) => messages.send(message)?,
            Err(Failure::Fatal(message)) => messages.send(ToMaster::Failed { message })?,
        }
    }
    if let Some(mut runner) = runner {
        runner.close();
    }
    Ok(())
}
