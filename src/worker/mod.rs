//! Workers: each executes one task at a time and owns the files its output goes to.

mod forward;
mod host_script;
mod kill;
mod program;
mod spawn;
mod stdio;
mod task;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

pub use forward::LONGEST_FILE;
pub use kill::KillSwitch;
pub(crate) use stdio::fill_numbers;
pub use stdio::{latest_task_files, worker_stderr, worker_stdout};
use task::{Failure, Runner};

use crate::interrupt::Interrupt;
use crate::message::{Assignment, TaskResult, ToMaster, ToWorker};
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
    let served = serve_with(transport, &mut runner);
    runner.close();
    served
}

fn serve_with(transport: &mut impl WorkerTransport, runner: &mut Runner) -> Result<(), TransportError> {
    loop {
        let done = match transport.receive(Duration::MAX)? {
            None => continue,
            Some(ToWorker::Setup { host_rank }) => Done::SetUp(runner.set_up(host_rank)),
            Some(ToWorker::Run(task)) => Done::Task(runner.run(&task)),
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

/// What the thread that executes tasks is told.
enum Job {
    SetUp { host_rank: u32 },
    Run(Box<Assignment>),
}

/// How long a worker that was told by a signal to end waits for the master's word: mostly the
/// whole run is told so, and the master then ends it in good order.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(3);

/// How long to wait for the thread that executes tasks at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(8);

/// How often a worker looks for messages while its task runs; nothing but an abort is urgent.
const LOOK: Duration = Duration::from_millis(10);

/// Longest wait for a message without a look at the signals.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// Runs a worker until the master sends it home. The tasks are executed by another thread, so
/// that this one, which is the only one to use the transport, can look for an abort.
///
/// # Errors
/// The master cannot be reached any more.
pub fn serve_beside(
    transport: &mut impl WorkerTransport,
    options: Arc<WorkerOptions>,
    interrupt: &Interrupt,
) -> Result<(), TransportError> {
    let host = crate::host::describe(options.host_memory, options.host_cpus);
    let kill = Arc::new(KillSwitch::new());
    let started = Runner::new(options, Arc::clone(&kill), transport.rank(), host.host.clone());
    let (to_runner, jobs) = unbounded();
    let (to_here, results) = unbounded();
    let started = started.and_then(|runner| {
        let thread = std::thread::Builder::new().name("tasks".to_owned());
        let spawned = thread.spawn(move || execute(runner, &jobs, &to_here));
        spawned.map_err(|error| format!("Unable to start a thread: {}", pmc_dag::reason(&error)))
    });
    match started {
        Ok(_) => transport.send(ToMaster::Register(host))?,
        Err(message) => transport.send(ToMaster::Failed { message })?,
    }
    let mut running = 0_u32;
    let mut signalled: Option<Instant> = None;
    loop {
        if running > 0 {
            match results.recv_timeout(LOOK) {
                Ok(done) => {
                    running -= 1;
                    match done.message() {
                        Ok(None) | Err(Failure::Aborted) => {}
                        Ok(Some(message)) => transport.send(message)?,
                        Err(Failure::Fatal(message)) => transport.send(ToMaster::Failed { message })?,
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => running = 0,
            }
        }
        if let Some(signal) = interrupt.signal() {
            let since = *signalled.get_or_insert_with(Instant::now);
            end_task(&kill, GRACE.saturating_sub(since.elapsed()));
            if since.elapsed() >= SIGNAL_PATIENCE {
                let message = format!("Stopped by signal {signal}");
                transport.send(ToMaster::Failed { message })?;
                signalled = since.checked_add(Duration::from_secs(3600));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let timeout = if running > 0 { Duration::ZERO } else { IDLE_LOOK };
        match transport.receive(timeout)? {
            None => {}
            Some(ToWorker::Setup { host_rank }) => {
                running += 1;
                let _ = to_runner.send(Job::SetUp { host_rank });
            }
            Some(ToWorker::Run(task)) => {
                running += 1;
                // If the thread has ended, it has said why.
                let _ = to_runner.send(Job::Run(task));
            }
            Some(ToWorker::Shutdown) => break,
            Some(ToWorker::Abort) => {
                end_task(&kill, GRACE);
                break;
            }
        }
    }
    // The thread closes the files and ends what the host script has left. A task that the kernel
    // does not let go must not hold up the end.
    drop(to_runner);
    let end = Instant::now() + CLOSE_TIMEOUT;
    while results.recv_deadline(end).is_ok() {}
    Ok(())
}

/// Executes tasks until nobody has any more.
fn execute(mut runner: Runner, jobs: &Receiver<Job>, results: &Sender<Done>) {
    for job in jobs {
        let done = match job {
            Job::SetUp { host_rank } => Done::SetUp(runner.set_up(host_rank)),
            Job::Run(task) => Done::Task(runner.run(&task)),
        };
        if results.send(done).is_err() {
            break;
        }
    }
    runner.close();
}

/// Asks the running task to end, and makes it if it does not within `grace`.
fn end_task(kill: &KillSwitch, grace: Duration) {
    kill.terminate();
    if !kill.wait_idle(grace) {
        kill.kill();
        // The kernel may still hold it; this worker ends anyway.
        let _ = kill.wait_idle(GRACE);
    }
}
