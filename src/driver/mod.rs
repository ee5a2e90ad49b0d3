//! Runs a DAG: the loop around the scheduler.
//!
//! The loop brings messages, time and signals to the scheduler, and its decisions to workers, logs and the
//! observer.

mod asked_hosts;
pub(crate) mod assignment;
mod away;
mod bad_hosts;
mod checkpoint_store;
mod checkpoints;
mod checkpoints_on_nodes;
mod combine;
mod conclusion;
mod control;
mod dag_run;
mod dags;
mod disk;
mod drain;
mod durability;
mod end_of_time;
mod error;
mod event_loop;
mod events;
mod flush;
mod gangs;
mod guests;
mod holds;
mod memory;
mod nodes;
mod notices;
mod numbers;
mod outbox;
mod outside;
mod pmix;
mod position;
mod redirects;
mod report;
mod requests;
mod restarts;
mod rests;
mod run_end;
mod serving;
mod setup;
mod subworkflows;
mod task_abort;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use pmc_dag::TaskId;
use pmc_system::clock;
use rustc_hash::FxHashSet;

pub use error::RunError;
pub use events::{RunEvent, TaskEnd};
pub use memory::MemoryExcess;
pub use position::Position;
pub use report::{Aborted, FailedTask, RunSummary};

use self::bad_hosts::BadHosts;
use self::checkpoints::Checkpoints;
use self::conclusion::End;
use self::disk::DiskWatch;
use self::drain::Drain;
use self::end_of_time::EndOfTime;
use self::holds::Holds;
use self::nodes::Nodes;
use self::notices::Notices;
use self::outbox::DriverOutbox;
use self::outside::Outside;
use self::requests::Requests;
use self::rests::Rests;
use self::serving::Serving;
use self::setup::Setup;
use self::subworkflows::Subworkflows;
use crate::control::{Control, Server};
use crate::database::Database;
use crate::durability::sync::Syncer;
use crate::host;
use crate::interrupt::Interrupt;
use crate::options::Options;
use crate::protocol::{Rank, ToMaster, ToWorker};
use crate::scheduler::{Event, Master, MasterError, WaitReason};
use crate::transport::{CombiningTransport, MasterTransport, agents};

/// Maximum time for workers to exit, including the grace of tasks and host scripts.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The same after a signal: a second later, launchers send SIGKILL.
const HURRIED_CLOSE_TIMEOUT: Duration = Duration::from_millis(900);

/// Receives the events of a run.
pub type Observer<'a> = dyn FnMut(&RunEvent<'_>) + Send + 'a;

/// Runs a DAG with the workers of a transport. When this returns, all workers have exited except those in
/// [`RunError::unresponsive_workers`] or [`RunSummary::unresponsive_workers`].
///
/// # Errors
/// The run could not begin or had to be aborted. The rescue file lists the tasks that are done.
pub fn run<T: MasterTransport>(
    transport: &mut T,
    options: &Options,
    interrupt: &Interrupt,
    observer: &mut Observer<'_>,
) -> Result<RunSummary, RunError> {
    start(transport, options, interrupt, observer, |driver| {
        driver.receive_all()
    })
}

/// Like [`run`], with workers that do the master's work themselves when they have a message.
///
/// # Errors
/// As [`run`].
pub fn run_combining<T: CombiningTransport>(
    transport: &mut T,
    options: &Options,
    interrupt: &Interrupt,
    observer: &mut Observer<'_>,
) -> Result<RunSummary, RunError> {
    start(transport, options, interrupt, observer, |driver| driver.combine())
}

/// Processes the messages of a run, from its first task to its end.
type Loop<T> = fn(&mut Driver<'_, T>) -> Result<End, RunError>;

fn start<T: MasterTransport>(
    transport: &mut T,
    options: &Options,
    interrupt: &Interrupt,
    observer: &mut Observer<'_>,
    event_loop: Loop<T>,
) -> Result<RunSummary, RunError> {
    let setup = Setup::new(options, transport);
    let result = setup.and_then(|mut setup| {
        if !transport.is_dynamic() {
            refuse_if_agents_are_left(options)?;
        }
        guests::refuse_if_host_is_left(options, Path::new(""))?;
        let begun = transport
            .membership_mut()
            .map_or(Ok(()), |membership| membership.begin());
        if let Err(error) = begun {
            // The logs say that this run has ended.
            setup.root.logs.finish(false);
            let _ = setup.root.logs.flush();
            let error = error.into();
            let left = setup.root.dag.len();
            let facts = run_end::Facts {
                left,
                ..run_end::Facts::default()
            };
            run_end::note(options, facts, Err(&error));
            return Err(error);
        }
        let database = Database::start(options, &setup.root.dag)?;
        let result = Driver::new(setup, transport, options, interrupt, observer).run(event_loop);
        let problem = database.and_then(|database| database.finish(interrupt.signal().is_some()));
        result.map(|summary| RunSummary {
            database: problem,
            ..summary
        })
    });
    result.map_err(|mut error| {
        if !error.is_closed() {
            error.unresponsive_workers = stop_workers(transport, &ToWorker::Abort, CLOSE_TIMEOUT);
        }
        error
    })
}

/// Refuses a run without agents while agents of a master that was killed may run its tasks.
fn refuse_if_agents_are_left(options: &Options) -> Result<(), RunError> {
    let left = agents::left(&options.dag);
    let hosts = left.map_err(|error| RunError::system("Unable to read the list of agents", error))?;
    if hosts.is_empty() {
        return Ok(());
    }
    let kind = error::Kind::AgentsLeft {
        hosts: hosts.into_iter().collect::<Vec<_>>().join(", "),
        dag: options.dag.display().to_string(),
    };
    Err(kind.into())
}

/// Stops all workers and waits for them. Returns those that have not exited.
fn stop_workers(transport: &mut impl MasterTransport, message: &ToWorker, timeout: Duration) -> Vec<Rank> {
    send_to_all(transport, message);
    transport.close(timeout)
}

fn send_to_all(transport: &mut impl MasterTransport, message: &ToWorker) {
    for rank in 1..=transport.workers() {
        // A worker that cannot be reached is found out by `close`.
        let _ = transport.send(Rank(rank), message.clone());
    }
}

/// The scheduler and what carries out its decisions: the parts of the driver work with both.
struct Run<'a, T> {
    master: Master,
    out: DriverOutbox<'a, T>,
    syncer: Option<Syncer>,
    options: &'a Options,
    interrupt: &'a Interrupt,
    time: EndOfTime,
    /// The time is over: tasks that run were asked to end, and no others start.
    is_stopping: bool,
    notices: Notices,
    checkpoints: Checkpoints,
    drain: Option<Drain>,
    /// Why no tasks start now.
    holds: Holds,
    /// A task has ended the run.
    task_abort: Option<Aborted>,
}

impl<T: MasterTransport> Run<'_, T> {
    /// Has the scheduler handle an event.
    fn handle(&mut self, event: Event) -> Result<(), RunError> {
        Ok(self.master.handle(event, &mut self.out)?)
    }
}

/// The loop, and the parts whose turn it is.
struct Driver<'a, T> {
    run: Run<'a, T>,
    begin: setup::Begin,
    disk: DiskWatch,
    nodes: Nodes,
    /// Tasks that wait before their next attempt.
    rests: Rests,
    bad_hosts: BadHosts,
    subworkflows: Subworkflows,
    /// Set if the run takes tasks.
    serving: Option<Serving>,
    /// Requests of other processes.
    control: Control,
    /// Those to tasks that run.
    requests: Requests,
    /// Nodes that the batch system drains.
    drained_nodes: FxHashSet<String>,
    /// When to drain because a process has asked for it.
    drain_at: Option<Instant>,
    /// The task and reason of the last message about a waiting task.
    waiting: Option<(TaskId, WaitReason)>,
    /// From the moment when all workers are ready to the end of the last task.
    makespan: Duration,
    /// Number of workers whose host is prepared.
    prepared: u32,
    /// Messages that were received and not handled; empty except after an error.
    inbox: VecDeque<(Rank, ToMaster)>,
    /// Cores that this process may use.
    cores: usize,
    outside: Option<Outside>,
    /// Ends before the server that it asks.
    _bridge: Option<pmix::Bridge>,
    server: Option<Server>,
    /// The end of the wall time, and whether the run drains, as tools on other hosts know it.
    told_limits: (Option<Instant>, bool),
}

impl<'a, T: MasterTransport> Driver<'a, T> {
    fn new(
        setup: Setup,
        transport: &'a mut T,
        options: &'a Options,
        interrupt: &'a Interrupt,
        observer: &'a mut Observer<'_>,
    ) -> Self {
        let has_lock = setup.root.lock.is_some();
        let mut out = DriverOutbox::new(transport, setup.root, observer, options);
        let begin = setup.begin;
        let time = EndOfTime::new(begin.at, options.wall_limit(), options.stop_grace);
        let mut notices = Notices::default();
        notices.learn(&out.dags.root.dag);
        out.notes_ends = options.bad_host_limit > 0 && out.transport.is_dynamic();
        let control = Control::default();
        let server = setup::serve(
            &control,
            has_lock,
            (options, options.batch_job.as_ref()),
            interrupt,
        );
        let subworkflows = Subworkflows::new(&out.dags.root.dag, control.clone(), setup.spare_files);
        Self {
            run: Run {
                master: setup.master,
                out,
                syncer: setup.syncer,
                options,
                interrupt,
                time,
                is_stopping: false,
                notices,
                checkpoints: Checkpoints::default(),
                drain: None,
                holds: Holds::default(),
                task_abort: None,
            },
            begin,
            disk: DiskWatch::new(options),
            nodes: Nodes::default(),
            rests: Rests::default(),
            bad_hosts: BadHosts::new(options.bad_host_limit),
            subworkflows,
            serving: setup.serving,
            control,
            requests: Requests::default(),
            drained_nodes: FxHashSet::default(),
            drain_at: None,
            waiting: None,
            makespan: Duration::ZERO,
            prepared: 0,
            inbox: VecDeque::new(),
            cores: host::usable_cpus() as usize,
            outside: Outside::start(options, interrupt),
            _bridge: server.as_ref().and_then(|_| pmix::Bridge::start(options)),
            server,
            told_limits: (None, false),
        }
    }

    fn run(mut self, event_loop: Loop<T>) -> Result<RunSummary, RunError> {
        match self.run_tasks(event_loop) {
            Ok(end) => self.conclude(end),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Hosts of agents that were there and are not any more. When the run closes, all go.
    fn lost_nodes(&self) -> Vec<String> {
        let membership = self.run.out.transport.membership();
        membership.map_or_else(Vec::new, |membership| membership.gone_hosts())
    }

    /// What is known of the run at its end.
    fn facts(&self, lost_nodes: Vec<String>) -> run_end::Facts {
        let summary = self.run.master.summary();
        run_end::Facts {
            drained_by: self.run.drain.as_ref().map(|drain| drain.by),
            done: summary.done,
            left: summary.tasks - summary.done,
            saved: self.run.notices.saved,
            lost_nodes,
            seconds: clock::elapsed(self.begin.at).as_secs(),
        }
    }

    /// Stops the workers after an error and writes what is known. Later errors are ignored: they are likely
    /// to have the same cause.
    fn fail(mut self, mut error: RunError) -> RunError {
        let fits_nowhere = matches!(
            error.kind(),
            error::Kind::Master(
                MasterError::NoCapableHost { .. }
                    | MasterError::NoHostWithDirectory { .. }
                    | MasterError::TooFewNodes { .. }
                    | MasterError::NeedsAgents { .. }
            )
        );
        self.end_redirects();
        let lost_nodes = self.lost_nodes();
        self.flush_at_end(None);
        error.unresponsive_workers = stop_workers(self.run.out.transport, &ToWorker::Abort, CLOSE_TIMEOUT);
        error.set_closed();
        let _ = self.handle_last_results();
        let _ = self.subworkflows.close(&mut self.run);
        // As in the original, the logs of a run that could not begin have no finish lines.
        if !fits_nowhere {
            self.run.out.dags.root.logs.finish(false);
        }
        // If the logs cannot be written, the journal stays for the next run.
        let _ = self
            .run
            .out
            .dags
            .root
            .logs
            .flush()
            .is_ok()
            .then(|| self.run.settle());
        run_end::note(self.run.options, self.facts(lost_nodes), Err(&error));
        error
    }
}
