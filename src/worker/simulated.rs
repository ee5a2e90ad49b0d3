//! Workers whose tasks are those of a simulation: the loop, its messages and its signals are the real ones.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use pmc_batch::status::BatchHost;
use pmc_system::clock;
use pmc_system::simulated::{context, park};

use super::error::Failure;
use super::messages::MessageWatch;
use super::running::RunningAttempt;
use super::watch::Watch as _;
use super::{GRACE, SIGNAL_CHECK_INTERVAL};
use crate::interrupt::Interrupt;
use crate::protocol::{
    Assignment, EndCause, ForwardedData, Membership, Outcome, Rank, Registration, SubmitId, TaskResult,
    ToMaster, ToWorker,
};
use crate::transport::local::StopTask as _;
use crate::transport::{TransportError, WorkerTransport};

/// How often a worker looks at a task that was asked to end.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A task of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SimulatedTask(pub u64);

/// The end of a task of a simulation.
#[derive(Clone, Debug, Default)]
pub struct SimulatedEnd {
    /// Its wait status.
    pub status: i32,
    /// What it has forwarded.
    pub forwards: Vec<ForwardedData>,
    /// It was the lead of a gang, and the network has cut a connection of it.
    pub is_cut: bool,
}

/// A host of a simulation, and its tasks. They outlive the agent that has started them.
pub trait Host {
    /// What the host offers.
    fn registration(&self) -> Registration;
    /// Starts the process of a task.
    fn start(&self, rank: Rank, task: &Assignment) -> SimulatedTask;
    /// When a process will end by itself.
    fn end_of(&self, task: SimulatedTask) -> Option<Instant>;
    /// The end of a process, if it has ended.
    fn ended(&self, task: SimulatedTask) -> Option<SimulatedEnd>;
    /// Sends a signal to a process.
    fn signal(&self, task: SimulatedTask, signal: i32);
    /// The host is a member of a gang from now on: the lead may start processes here.
    fn join(&self, membership: &Membership);
    /// The host is to leave a gang: nothing more of it starts, and what runs gets SIGTERM. False if the host
    /// is no member.
    fn begin_to_leave(&self, submit: SubmitId) -> bool;
    /// Kills what is left of a gang, and forgets it. Returns whether the network has cut a connection of it.
    fn leave(&self, submit: SubmitId) -> bool;
    /// The gangs of which the host is a member.
    fn memberships(&self) -> Vec<SubmitId>;
    /// Keys of the files that a task needs, before its program starts.
    fn inputs(&self, task: SimulatedTask) -> Vec<String>;
    /// Begins to bring the file with a key. False if another task of the host does so.
    fn begin_file(&self, key: &str) -> bool;
    /// Ends that.
    fn end_file(&self, key: &str);
    /// Returns whether the host has the file with a key.
    fn has_file(&self, key: &str) -> bool;
    /// Copies a file from the host with this address. False if that does not have it.
    ///
    /// # Errors
    /// It does not answer.
    fn copy(&self, address: &str, key: &str) -> io::Result<bool>;
    /// Fetches a file from outside of all hosts.
    fn fetch(&self, key: &str);
    /// A file is there that a task needs.
    fn take_input(&self, task: SimulatedTask, key: &str);
    /// The number of its agent and its name in the batch system, if agents may start the next master.
    fn succession(&self) -> Option<(u32, String)>;
    /// What the batch system says of the node of the batch script.
    fn batch_host(&self) -> Option<BatchHost>;
    /// Starts the next master here.
    fn start_successor(&self);
}

/// Brings files that tasks need.
pub(crate) trait Inputs {
    /// Brings the files with these keys, in a thread of its own.
    fn bring(&self, keys: Vec<String>, task: SimulatedTask);
}

/// The context of a process that is on a host: see [`pmc_system::simulated::context`].
pub struct OnHost(pub Box<dyn Host>, RefCell<Option<Box<dyn Inputs>>>);

impl OnHost {
    /// That of an agent which starts.
    #[must_use]
    pub fn new(host: Box<dyn Host>) -> Self {
        Self(host, RefCell::default())
    }

    /// From now on, tasks get their files with this.
    pub(crate) fn bring_with(&self, inputs: Box<dyn Inputs>) {
        self.1.replace(Some(inputs));
    }
}

/// Lets a task get its files, if it needs some.
fn bring_inputs(host: &dyn Host, task: SimulatedTask) {
    let keys = host.inputs(task);
    if let Some(context) = context::<OnHost>().filter(|_| !keys.is_empty())
        && let Some(inputs) = &*context.1.borrow()
    {
        inputs.bring(keys, task);
    }
}

/// The host on which this thread is, if it is one of a simulation.
pub(crate) fn host() -> Option<Rc<OnHost>> {
    context()
}

/// Like [`super::serve_process`].
pub(super) fn serve(
    transport: &mut impl WorkerTransport,
    host: &dyn Host,
    current: &RunningAttempt,
    interrupt: &Interrupt,
) -> Result<(), TransportError> {
    let rank = transport.rank();
    let mut messages = MessageWatch::new(transport, current, interrupt);
    messages.send(ToMaster::Register(host.registration()))?;
    loop {
        let answer = match messages.receive(SIGNAL_CHECK_INTERVAL * 1000)? {
            Some(ToWorker::Shutdown | ToWorker::Abort) => return Ok(()),
            Some(ToWorker::Setup { .. }) => continue,
            Some(ToWorker::Run(task)) => run(host, rank, &task, current, &mut messages),
            // The agent itself joins and leaves gangs.
            None
            | Some(
                ToWorker::Request(_)
                | ToWorker::Retract
                | ToWorker::Join(_)
                | ToWorker::Leave { .. }
                | ToWorker::Checkpoint(_),
            ) => {
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
    current.begin_simulated();
    bring_inputs(host, process);
    let mut aborted_at = None;
    let end = loop {
        messages.poll();
        for signal in current.take_signals() {
            host.signal(process, signal);
        }
        if let Some(end) = host.ended(process) {
            break end;
        }
        let mut next = host.end_of(process);
        if current.is_aborted() {
            // An abort has sent SIGTERM.
            let since = *aborted_at.get_or_insert_with(clock::now);
            if clock::elapsed(since) >= GRACE {
                host.signal(process, libc::SIGKILL);
            }
            let soon = clock::now() + POLL_INTERVAL;
            next = next.into_iter().chain([soon]).min();
        }
        park(next);
    };
    current.end_simulated();
    if current.is_aborted() {
        return Err(Failure::Aborted);
    }
    let mut outcome = Outcome::new(end.status, clock::elapsed(begun));
    if end.is_cut && end.status != 0 {
        outcome.cause = Some(EndCause::Cut);
    }
    let mut result = TaskResult::new(task.submit, outcome);
    result.forwards = end.forwards;
    Ok(result)
}
