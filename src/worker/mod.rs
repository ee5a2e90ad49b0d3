//! Workers: each runs one task at a time and owns the files of its output.

mod attempt;
mod away;
mod captures;
mod ended;
mod environment;
mod error;
mod forward;
mod gang;
mod gpus;
mod host_script;
mod input;
mod launch;
mod leftovers;
mod member;
mod memory;
mod messages;
mod output_check;
mod packing;
mod process;
mod program;
mod relayed;
mod runner;
mod running;
mod sentinel;
mod shortage;
#[cfg(feature = "simulated")]
pub mod simulated;
mod stdio;
mod strays;
mod task_server;
mod watch;

use std::ffi::OsString;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use error::Failure;
use gpus::Devices;
pub(crate) use leftovers::end_gang;
pub(crate) use member::{GangCommand, member_environment, start as start_command};
use messages::MessageWatch;
use runner::Runner;
pub use running::RunningAttempt;
pub use sentinel::{Sentinel, Watched};
pub(crate) use stdio::{append_shared, begin_files, fill_numbers, share_files, store_output};
pub use stdio::{latest_task_files, worker_stderr, worker_stdout};
use watch::{NoWatch, Watch};

use crate::host::HostSize;
use crate::interrupt::Interrupt;
use crate::options::WorkerOptions;
use crate::protocol::{Registration, ToMaster, ToWorker};
use crate::transport::{TransportError, WorkerTransport};

/// Time between SIGTERM and SIGKILL for the tasks of an aborted run.
pub const GRACE: Duration = Duration::from_millis(500);

/// Maximum wait of a worker process between checks for signals.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A worker without a task for this time looks for what the last ones have left.
const IDLE: Duration = Duration::from_secs(1);

/// Returns the number of GPUs for tasks: `configured`, or all that there are if that is 0.
#[must_use]
pub fn count_gpus(configured: u32, environment: &[(OsString, OsString)]) -> u32 {
    Devices::from_environment(environment).count(configured)
}

/// Returns what this machine offers to tasks.
#[must_use]
pub fn describe_host(options: &WorkerOptions) -> Registration {
    let gpus = count_gpus(options.host_gpus, &options.environment);
    let name = options.host_name.as_deref();
    let size = HostSize {
        memory_mb: options.host_memory,
        cpus: options.host_cpus,
        gpus,
    };
    Registration {
        away: options.away.is_some(),
        ..crate::host::describe(name, size, &options.environment)
    }
}

/// State that the workers of one process share.
#[derive(Default)]
pub struct Shared {
    host: OnceLock<Registration>,
}

/// Runs a worker thread until the master ends it. Tasks run on this thread: to end one, another thread must
/// use `current`.
///
/// # Errors
/// The master has ended.
pub fn serve(
    transport: &mut impl WorkerTransport,
    options: Arc<WorkerOptions>,
    current: Arc<RunningAttempt>,
    shared: &Shared,
) -> Result<(), TransportError> {
    let host = shared.host.get_or_init(|| describe_host(&options)).clone();
    let runner = Runner::new(Arc::clone(&options), current, transport.rank(), host.host.clone());
    let mut runner = match runner {
        Ok(runner) => runner,
        Err(error) => return transport.send(failed(&error)),
    };
    transport.send(ToMaster::Register(host))?;
    let served = serve_registered(transport, &mut runner);
    runner.close();
    served
}

fn serve_registered(transport: &mut impl WorkerTransport, runner: &mut Runner) -> Result<(), TransportError> {
    loop {
        let patience = match runner.has_leftovers() {
            true => IDLE,
            false => Duration::MAX,
        };
        let answer = match transport.receive(patience)? {
            // This transport has no prefill, so there is nothing to give back.
            None => {
                runner.look_for_leftovers();
                continue;
            }
            Some(ToWorker::Retract) => continue,
            Some(ToWorker::Shutdown | ToWorker::Abort) => return Ok(()),
            Some(message) => handle(message, runner, &mut NoWatch),
        };
        match answer {
            Ok(None) => {}
            Ok(Some(answer)) => transport.send(answer)?,
            Err(Failure::Aborted) => return Ok(()),
            Err(Failure::Error(error)) => return transport.send(failed(&error)),
        }
    }
}

/// Runs a worker process until the master ends it. While a task runs, the worker polls for messages, and ends
/// the task if the master or a signal demands it.
///
/// # Errors
/// The master cannot be reached any more.
pub fn serve_process(
    transport: &mut impl WorkerTransport,
    options: Arc<WorkerOptions>,
    current: Arc<RunningAttempt>,
    interrupt: &Interrupt,
) -> Result<(), TransportError> {
    #[cfg(feature = "simulated")]
    if let Some(host) = simulated::host() {
        return simulated::serve(transport, host.0.as_ref(), &current, interrupt);
    }
    let host = describe_host(&options);
    let runner = Runner::new(options, Arc::clone(&current), transport.rank(), host.host.clone());
    let mut messages = MessageWatch::new(transport, &current, interrupt);
    let mut runner = match runner {
        Ok(runner) => {
            messages.send(ToMaster::Register(host))?;
            Some(runner)
        }
        Err(error) => {
            messages.send(failed(&error))?;
            None
        }
    };
    loop {
        let Some(message) = messages.receive(SIGNAL_CHECK_INTERVAL)? else {
            if let Some(runner) = &mut runner {
                runner.look_for_leftovers();
            }
            continue;
        };
        let answer = match (message, &mut runner) {
            (ToWorker::Shutdown | ToWorker::Abort, _) => break,
            // All earlier tasks have started.
            (ToWorker::Retract, _) => continue,
            // The master knows that this worker failed.
            (_, None) => continue,
            (message, Some(runner)) => handle(message, runner, &mut messages),
        };
        match answer {
            Ok(None) | Err(Failure::Aborted) => {}
            Ok(Some(answer)) => messages.send(answer)?,
            Err(Failure::Error(error)) => messages.send(failed(&error))?,
        }
    }
    if let Some(mut runner) = runner {
        runner.close();
    }
    Ok(())
}

/// Does what a message asks for, and returns the answer.
fn handle(
    message: ToWorker,
    runner: &mut Runner,
    watch: &mut dyn Watch,
) -> Result<Option<ToMaster>, Failure> {
    match message {
        ToWorker::Setup { host_rank } => Ok(runner.set_up(host_rank, watch)?.then_some(ToMaster::Ready)),
        ToWorker::Run(task) => Ok(Some(ToMaster::Finished(runner.run(&task, watch)?))),
        ToWorker::Join(membership) => Ok(Some(ToMaster::NotJoined {
            submit: membership.submit,
            why: "it is no agent (--agents)".to_owned(),
        })),
        ToWorker::Leave { submit } => Ok(Some(ToMaster::left(submit))),
        // Requests are answered while messages are received.
        ToWorker::Request(_) | ToWorker::Retract | ToWorker::Shutdown | ToWorker::Abort => Ok(None),
        // The agent itself hears it.
        ToWorker::Checkpoint(_) => Ok(None),
    }
}

fn failed(error: &error::WorkerError) -> ToMaster {
    let message = error.to_string();
    match error {
        error::WorkerError::HostScript(_) => ToMaster::NotReady { message },
        _ => ToMaster::Failed { message },
    }
}
