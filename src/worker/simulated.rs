//! Workers whose tasks are those of a simulation: the loop, its messages and its signals are the real ones.

use std::rc::Rc;
use std::time::{Duration, Instant};

use pmc_system::clock;
use pmc_system::simulated::{context, park};

use super::error::Failure;
use super::messages::MessageWatch;
use super::running::RunningAttempt;
use super::watch::Watch as _;
use super::{GRACE, SIGNAL_CHECK_INTERVAL};
use crate::interrupt::Interrupt;
use crate::protocol::{
    Assignment, ForwardedData, Outcome, Rank, Registration, TaskResult, ToMaster, ToWorker,
};
use crate::transport::local::StopTask as _;
use crate::transport::{TransportError, WorkerTransport};

/// How often a worker looks at a task that was asked to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A task of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimulatedTask(pub u64);

/// A host of a simulation, and its tasks. They outlive the agent that has started them.
pub trait Host {
    /// What the host offers.
    fn registration(&self) -> Registration;
    /// Starts the process of a task.
    fn start(&self, rank: Rank, task: &Assignment) -> SimulatedTask;
    /// When a process will end by itself.
    fn end_of(&self, task: SimulatedTask) -> Option<Instant>;
    /// The wait status of a process, and what it has forwarded, if it has ended.
    fn ended(&self, task: SimulatedTask) -> Option<(i32, Vec<ForwardedData>)>;
    /// Sends SIGTERM or SIGKILL to a process.
    fn signal(&self, task: SimulatedTask, kills: bool);
}

/// The context of a process that is on a host: see [`pmc_system::simulated::context`].
pub struct OnHost(pub Box<dyn Host>);

/// The host on which this thread is, if it is one of a simulation.
pub(super) fn host() -> Option<Rc<OnHost>> {
    context()
}

/// Like [`super::serve_process`].
pub(super) fn serve(
    transport: &mut impl WorkerTransport,
    host: &dyn Host,
    interrupt: &Interrupt,
) -> Result<(), TransportError> {
    let (current, rank) = (RunningAttempt::new(), transport.rank());
    let mut messages = MessageWatch::new(transport, &current, interrupt);
    messages.send(ToMaster::Register(host.registration()))?;
    loop {
        let answer = match messages.receive(SIGNAL_CHECK_INTERVAL * 1000)? {
            Some(ToWorker::Shutdown | ToWorker::Abort) => return Ok(()),
            Some(ToWorker::Setup { .. }) => continue,
            Some(ToWorker::Run(task)) => run(host, rank, &task, &current, &mut messages),
            // The agent itself joins and leaves gangs.
            None
            | Some(ToWorker::Request(_) | ToWorker::Retract | ToWorker::Join(_) | ToWorker::Leave { .. }) => {
                continue;
            }
        };
        match answer {
            Ok(result) => messages.send(ToMaster::Finished(result))?,
            Err(Failure::Aborted) => {}
            Err(Failure::Error(error)) => messages.send(super::failed(&error))?,
        }
    }
}

fn run<T: WorkerTransport>(
    host: &dyn Host,
    rank: Rank,
    task: &Assignment,
    current: &RunningAttempt,
    messages: &mut MessageWatch<'_, T>,
) -> Result<TaskResult, Failure> {
    current.begin(task.submit);
    if current.is_aborted() {
        return Err(Failure::Aborted);
    }
    let (process, begun) = (host.start(rank, task), clock::now());
    let mut aborted_at = None;
    let (status, forwards) = loop {
        messages.poll();
        if let Some(ended) = host.ended(process) {
            break ended;
        }
        let mut next = host.end_of(process);
        if current.is_aborted() {
            let since = *aborted_at.get_or_insert_with(|| {
                host.signal(process, false);
                clock::now()
            });
            if clock::elapsed(since) >= GRACE {
                host.signal(process, true);
            }
            let soon = clock::now() + POLL_INTERVAL;
            next = next.into_iter().chain([soon]).min();
        }
        park(next);
    };
    if current.is_aborted() {
        return Err(Failure::Aborted);
    }
    let mut result = TaskResult::new(task.submit, Outcome::new(status, clock::elapsed(begun)));
    result.forwards = forwards;
    Ok(result)
}
