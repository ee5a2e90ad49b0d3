//! The loop around the master: takes messages, clock and signals to it, and what it says to
//! workers and logs.

mod drain;
mod error;
mod events;
mod lend;
mod position;
mod report;
mod safety;
mod told;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::Local;
use pmc_dag::{Dag, TaskId};

pub use error::RunError;
pub use events::{RunEvent, TaskEnd};
pub use position::Position;
pub use report::{Aborted, FailedTask, RunSummary};

use self::drain::Drain;
use self::told::Teller;
use crate::durability::lock::DagLock;
use crate::durability::shared_files;
use crate::durability::sync::Syncer;
use crate::forwarding::Forwarding;
use crate::host;
use crate::interrupt::Interrupt;
use crate::logging::FATAL;
use crate::logs::Logs;
use crate::merge;
use crate::options::{Options, Stdio};
use crate::protocol::{Rank, SubmitId, ToMaster, ToWorker};
use crate::scheduler::{Event, Master, MasterConfig, MasterError, Outbox, Record, Summary};
use crate::transport::{CombiningTransport, MasterTransport, TransportError, WaitPolicy};

/// Status of a task whose forwarded data could not be written.
const NOT_FORWARDED: i32 = 256;

/// How long a worker that has another task may wait for an answer.
const UNHURRIED: Duration = Duration::from_millis(3);

/// So many messages, if they are there, are received before the first of them is handled.
const TOGETHER: usize = 32;

/// How long workers may take to end, the grace of tasks and host scripts included.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The same after a signal: launchers send the next one, which cannot be caught, a second later.
const HURRIED_CLOSE_TIMEOUT: Duration = Duration::from_millis(900);

/// Runs a DAG with the workers of a transport. All of them have ended when this returns, unless
/// [`RunError::silent_workers`] or [`RunSummary::silent_workers`] says otherwise.
///
/// # Errors
/// The run could not begin or had to be given up. What was done until then is in the rescue file.
pub fn run<T: MasterTransport>(
    transport: &mut T,
    options: &Options,
    interrupt: &Interrupt,
    observer: &mut (dyn FnMut(&RunEvent<'_>) + Send),
) -> Result<RunSummary, RunError> {
    start(transport, options, interrupt, observer, |driver| {
        driver.receive_all()
    })
}

/// As [`run`], with workers that do the master's work themselves when they have a message.
///
/// # Errors
/// As [`run`].
pub fn run_lending<T: CombiningTransport>(
    transport: &mut T,
    options: &Options,
    interrupt: &Interrupt,
    observer: &mut (dyn FnMut(&RunEvent<'_>) + Send),
) -> Result<RunSummary, RunError> {
    start(transport, options, interrupt, observer, |driver| driver.lend())
}

/// How the messages of a run are worked off, from its first task to its end.
type Loop<T> = fn(&mut Driver<'_, T>) -> Result<End, RunError>;

fn start<T: MasterTransport>(
    transport: &mut T,
    options: &Options,
    interrupt: &Interrupt,
    observer: &mut (dyn FnMut(&RunEvent<'_>) + Send),
    work: Loop<T>,
) -> Result<RunSummary, RunError> {
    let begin = Begin {
        at: Instant::now(),
        time: Local::now().fixed_offset(),
    };
    let result = prepare(options, transport.workers(), transport.supports_prefill()).and_then(|ready| {
        #[cfg(feature = "stampede")]
        let database = crate::database::Database::start(options, &ready.dag)?;
        #[cfg_attr(not(feature = "stampede"), expect(unused_mut, reason = "nobody listens"))]
        let mut driver = Driver::new(ready, transport, options, interrupt, observer, begin);
        #[cfg(feature = "stampede")]
        {
            driver.out.teller = Teller::new(database.as_ref().map(|database| database.listener()));
        }
        let result = driver.run(work);
        #[cfg(feature = "stampede")]
        let result = {
            let problem = database.and_then(|database| database.finish(interrupt.signal().is_some()));
            result.map(|summary| RunSummary {
                database: problem,
                ..summary
            })
        };
        result
    });
    result.map_err(|mut error| {
        if !error.is_closed() {
            error.silent_workers = stop_workers(transport, ToWorker::Abort, CLOSE_TIMEOUT);
        }
        error
    })
}

/// When the run began.
#[derive(Clone, Copy)]
struct Begin {
    at: Instant,
    time: chrono::DateTime<chrono::FixedOffset>,
}

/// What is there before the first message.
struct Ready {
    // Held to the end of the run.
    _lock: Option<DagLock>,
    dag: Arc<Dag>,
    master: Master,
    logs: Logs,
    forwarding: Forwarding,
    syncer: Option<Syncer>,
}

/// Opens everything, in the order of the original: what fails first leaves the same files behind.
fn prepare(options: &Options, workers: u32, distant: bool) -> Result<Ready, RunError> {
    #[cfg(feature = "stampede")]
    crate::database::check(options)?;
    let lock = if options.lock {
        tracing::debug!("Locking DAG file...");
        Some(DagLock::acquire(&options.dag)?)
    } else {
        None
    };
    let dag = Arc::new(Dag::open(&options.dag).map_err(|error| RunError::dag(&options.dag, error))?);
    let (done, recovered) = safety::read_done(options, &dag)?;
    let mut logs = Logs::open(options, &dag, &done)?;
    let (limit, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)
        .map_err(|error| RunError::system("Unable to get the limit of open files", error))?;
    tracing::debug!("Open files limit = {limit}");
    let most = shared_files::most_open(options.max_fds, limit)?;
    tracing::info!("Setting max cached files = {most}");
    tracing::info!("Master starting with {workers} workers");
    logs.start(options, &done)?;
    logs.flush()?;
    safety::forget(recovered, &mut logs)?;
    let syncer = safety::syncer(options, &logs)?;
    let config = MasterConfig {
        tries: options.tries,
        max_failures: options.max_failures,
    };
    let mut master = Master::new(Arc::clone(&dag), done, workers, config);
    if distant {
        master = master.sending_ahead();
    }
    Ok(Ready {
        _lock: lock,
        dag,
        master,
        logs,
        forwarding: safety::forwarding(options, most),
        syncer,
    })
}

/// Whether there is nothing to be read: `/dev/null` is for those who want no rescue file, and other
/// devices have no end.
fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    path.metadata()
        .is_ok_and(|data| data.file_type().is_char_device() || data.file_type().is_block_device())
}

/// Sends all workers home and waits for them. Gives those that do not answer.
fn stop_workers(transport: &mut impl MasterTransport, message: ToWorker, timeout: Duration) -> Vec<Rank> {
    tell_workers(transport, &message);
    transport.close(timeout)
}

/// Sends all workers home.
fn tell_workers(transport: &mut impl MasterTransport, message: &ToWorker) {
    for rank in 1..=transport.workers() {
        // Who cannot be reached will not answer, either.
        let _ = transport.send(Rank(rank), message.clone());
    }
}

struct Driver<'a, T> {
    master: Master,
    out: Out<'a, T>,
    forwarding: Forwarding,
    syncer: Option<Syncer>,
    /// Length of the rescue file that is known to `syncer`.
    noted: u64,
    options: &'a Options,
    interrupt: &'a Interrupt,
    begin: Begin,
    /// When the wall time ends.
    deadline: Option<Instant>,
    /// Nothing new is started any more.
    drain: Option<Drain>,
    /// From the moment when all workers were there to that when the last task ended.
    makespan: Duration,
    /// Workers whose host is prepared.
    prepared: u32,
    /// Messages that were received and not handled: none, but after an error.
    inbox: VecDeque<(Rank, ToMaster)>,
    /// Cores that this process may use.
    cores: usize,
    _lock: Option<DagLock>,
}

/// Takes what the master says to where it belongs.
struct Out<'a, T> {
    transport: &'a mut T,
    logs: Logs,
    dag: Arc<Dag>,
    observer: &'a mut (dyn FnMut(&RunEvent<'_>) + Send),
    /// First error of the transport; the master cannot take it.
    error: Option<TransportError>,
    /// The execution whose end the master is told now failed because of forwarded data.
    not_forwarded: Option<SubmitId>,
    /// Tasks whose latest try failed.
    failed: BTreeMap<TaskId, report::Failure>,
    dagdir: &'a Path,
    teller: Teller,
}

impl<T: MasterTransport> Outbox for Out<'_, T> {
    fn send(&mut self, to: Rank, message: ToWorker) {
        if let Err(error) = self.transport.send(to, message) {
            self.error.get_or_insert(error);
        }
    }

    fn record(&mut self, record: Record<'_>) {
        self.logs.record(&record);
        let name = |task| String::from_utf8_lossy(self.dag.name(task));
        match record {
            Record::Resources { .. } => {}
            Record::Queued(task, _) => {
                tracing::debug!("Queueing task {}", name(task));
                (self.observer)(&RunEvent::Queued {
                    task: self.dag.name(task),
                });
            }
            Record::Fragmented(task, _) => {
                tracing::warn!(
                    "CPU fragmentation detected when scheduling task {}: not setting affinity",
                    name(task)
                );
            }
            Record::Started(task, _, rank) => {
                tracing::trace!("Scheduling task {}", name(task));
                tracing::debug!("Submitting task {} to slot {}", name(task), rank.0);
                (self.observer)(&RunEvent::Started {
                    task: self.dag.name(task),
                    rank,
                });
            }
            Record::Ended {
                task,
                submit,
                rank,
                status,
                done,
            } => {
                self.teller.ended(rank, submit, &self.dag, task);
                if status == 0 {
                    tracing::debug!("Task {} finished with exitcode 0", name(task));
                    self.failed.remove(&task);
                } else if self.not_forwarded == Some(submit) {
                    tracing::error!("Task {} failed due to collective I/O errors", name(task));
                } else {
                    tracing::error!("Task {} failed with exitcode {status}", name(task));
                }
                if status != 0 {
                    let failure = self.failed.entry(task).or_default();
                    failure.status = status;
                    failure.tries += 1;
                }
                let task = self.dag.name(task);
                (self.observer)(&RunEvent::Ended(TaskEnd::new(
                    task,
                    rank,
                    status,
                    done,
                    self.dagdir,
                )));
            }
        }
    }
}

/// Why the loop ended.
enum End {
    Finished,
    Aborted(Aborted),
}

impl<'a, T: MasterTransport> Driver<'a, T> {
    fn new(
        ready: Ready,
        transport: &'a mut T,
        options: &'a Options,
        interrupt: &'a Interrupt,
        observer: &'a mut (dyn FnMut(&RunEvent<'_>) + Send),
        begin: Begin,
    ) -> Self {
        let Ready {
            _lock,
            dag,
            master,
            logs,
            forwarding,
            syncer,
        } = ready;
        let out = Out {
            transport,
            logs,
            dag,
            observer,
            error: None,
            not_forwarded: None,
            failed: BTreeMap::new(),
            dagdir: &options.dag,
            teller: Teller::default(),
        };
        let deadline = options.wall_limit().and_then(|limit| begin.at.checked_add(limit));
        Self {
            master,
            out,
            forwarding,
            syncer,
            noted: 0,
            options,
            interrupt,
            begin,
            deadline,
            drain: None,
            makespan: Duration::ZERO,
            prepared: 0,
            inbox: VecDeque::new(),
            cores: host::usable_cpus() as usize,
            _lock,
        }
    }

    fn run(mut self, work: Loop<T>) -> Result<RunSummary, RunError> {
        let end = match self.work(work) {
            Ok(end) => end,
            Err(mut error) => {
                let fits_nowhere = matches!(
                    error.kind(),
                    error::Kind::Master(MasterError::NoCapableHost { .. })
                );
                error.silent_workers = stop_workers(self.out.transport, ToWorker::Abort, CLOSE_TIMEOUT);
                error.set_closed();
                // There is an error already; further ones, likely of the same kind, are not news.
                let _ = self.last_results();
                // The logs of a run that could not begin end where they are, as in the original.
                if !fits_nowhere {
                    self.out.logs.finish(false);
                }
                // What cannot be ended in good order is left to the next run.
                let _ = self.out.logs.flush().is_ok().then(|| self.settle());
                return Err(error);
            }
        };
        self.conclude(end)
    }

    /// From the registration of the workers to the end of the last task, or an abort.
    fn work(&mut self, work: Loop<T>) -> Result<End, RunError> {
        if let Some(minutes) = self.options.max_wall_minutes {
            tracing::info!("Setting max walltime to {minutes:.6} minutes");
        }
        while !self.master.registered_all() {
            if let Some(aborted) = self.aborted_early() {
                return Ok(End::Aborted(aborted));
            }
            self.receive()?;
        }
        self.master.start(&mut self.out)?;
        while self.options.host_script && self.prepared < self.out.transport.workers() {
            if let Some(aborted) = self.aborted_early() {
                return Ok(End::Aborted(aborted));
            }
            self.receive()?;
        }
        let started = Instant::now();
        tracing::info!("Starting workflow");
        let Summary {
            tasks, done_before, ..
        } = self.master.summary();
        (self.out.observer)(&RunEvent::Begun { tasks, done_before });
        let end = work(self);
        self.makespan = started.elapsed();
        end
    }

    /// Works off the messages in this thread.
    fn receive_all(&mut self) -> Result<End, RunError> {
        loop {
            if let Some(end) = self.advance()? {
                return Ok(end);
            }
            self.receive()?;
        }
    }

    /// Does what follows from the messages so far, and says whether the run has ended.
    fn advance(&mut self) -> Result<Option<End>, RunError> {
        self.drain_if_asked()?;
        // What starts now may rely on what has ended: a clean-up job removes the inputs of tasks
        // that must not run again.
        self.out.logs.flush_rescue()?;
        self.master.schedule(&mut self.out);
        self.flush()?;
        if self.master.is_finished() {
            return Ok(Some(End::Finished));
        }
        Ok(self.aborted().map(End::Aborted))
    }

    /// Whether the run is to be given up.
    fn aborted(&self) -> Option<Aborted> {
        if let Some(signal) = self.interrupt.signal() {
            return Some(Aborted::Signal(signal));
        }
        let now = Instant::now();
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return Some(Aborted::WallTime);
        }
        let drain = self.drain.as_ref()?;
        let over = drain.until.is_some_and(|until| now >= until);
        over.then_some(Aborted::Signal(drain.signal))
    }

    /// Waits for a message and takes it and all others that are there to the master.
    fn receive(&mut self) -> Result<(), RunError> {
        let until = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let mut timeout = self.next_deadline().map_or(Duration::MAX, until);
        if self.master.has_sent_ahead() {
            timeout = timeout.min(UNHURRIED);
        }
        let wait_policy = if self.master.running() < self.cores {
            WaitPolicy::IdleCore
        } else if self.master.has_sent_ahead() {
            WaitPolicy::Batch
        } else {
            WaitPolicy::Normal
        };
        self.out.transport.set_wait_policy(wait_policy);
        // A timeout of zero would not wait at all; the deadline is looked at after this call.
        timeout = timeout.max(Duration::from_micros(1));
        let mut inbox = std::mem::take(&mut self.inbox);
        let result = loop {
            let mut received = Ok(());
            while inbox.len() < TOGETHER {
                match self.out.transport.receive(timeout) {
                    Ok(Some(message)) => inbox.push_back(message),
                    Ok(None) => break,
                    Err(error) => {
                        received = Err(error.into());
                        break;
                    }
                }
                timeout = Duration::ZERO;
            }
            let is_all = inbox.len() < TOGETHER;
            let result = self.handle_all(&mut inbox).and(received);
            if is_all || result.is_err() {
                break result;
            }
        };
        self.inbox = inbox;
        result
    }

    /// Takes messages to the master. After an error, those behind it are left.
    fn handle_all(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> Result<(), RunError> {
        while let Some((from, message)) = messages.pop_front() {
            self.master.look_ahead(|n| messages.get(n).map(|(from, _)| *from));
            self.handle(from, message)?;
        }
        Ok(())
    }

    /// When the run is given up if nothing happens.
    fn next_deadline(&self) -> Option<Instant> {
        let drained = self.drain.as_ref().and_then(|drain| drain.until);
        self.deadline.into_iter().chain(drained).min()
    }

    fn handle(&mut self, from: Rank, message: ToMaster) -> Result<(), RunError> {
        let event = match message {
            ToMaster::Register(registration) => {
                self.out.teller.registered(from, &registration.host);
                Event::Registered(from, registration)
            }
            ToMaster::Ready => {
                self.prepared += 1;
                return Ok(());
            }
            ToMaster::Finished(result) => {
                self.out.teller.finished(&result);
                Event::Finished(from, self.forward(from, result)?)
            }
            ToMaster::Returned { submits } => Event::Returned(from, submits),
            ToMaster::Failed { message } => Event::Failed(from, message),
        };
        Ok(self.master.handle(event, &mut self.out)?)
    }

    fn flush(&mut self) -> Result<(), RunError> {
        if let Some(error) = self.out.error.take() {
            return Err(error.into());
        }
        self.out.logs.flush()?;
        self.note_written()
    }

    /// The end of a run that has begun: figures, merged output, last lines of the logs.
    fn conclude(mut self, end: End) -> Result<RunSummary, RunError> {
        let aborted = match end {
            End::Finished => {
                tracing::info!("Workflow finished");
                None
            }
            // Said when the signal came.
            End::Aborted(reason @ Aborted::Signal(_))
                if self.drain.is_some() && self.interrupt.signal().is_none() =>
            {
                tracing::error!("Aborting workflow");
                Some(reason)
            }
            End::Aborted(reason) => {
                match reason {
                    Aborted::Signal(signal) => tracing::error!(target: FATAL, "Caught signal {signal}"),
                    Aborted::WallTime => tracing::error!(target: FATAL, "Workflow wall time exceeded!"),
                }
                tracing::error!("Aborting workflow");
                Some(reason)
            }
        };
        // Workers elsewhere close their files before these are read.
        let (message, timeout) = match aborted {
            None => (ToWorker::Shutdown, CLOSE_TIMEOUT),
            Some(Aborted::WallTime) => (ToWorker::Abort, CLOSE_TIMEOUT),
            Some(Aborted::Signal(_)) => (ToWorker::Abort, HURRIED_CLOSE_TIMEOUT),
        };
        tell_workers(self.out.transport, &message);
        // Those that have nothing running but their servers end while the rest is written: their files are complete, and
        // this machine sees them as they are.
        let meanwhile =
            aborted.is_none() && !self.options.host_script && !self.out.transport.supports_prefill();
        let silent_workers = if meanwhile {
            Vec::new()
        } else {
            self.out.transport.close(timeout)
        };
        let mut result = self.last_results();
        if self.master.summary().max_failures_reached {
            tracing::error!("Max failures reached: DAG prematurely aborted");
        }
        let mut summary = self.summary(aborted, silent_workers);
        report::log(&summary, self.out.transport.traffic(), self.forwarding.hit_rate());
        if self.options.console {
            result = result.and_then(|()| report::print_record(&summary, self.begin.time, &self.options.app));
            if let Stdio::Merged { stdout, stderr } = &self.options.stdio {
                tracing::info!("Merging task stdio from workers...");
                let merged = merge::merge(&self.options.dag, summary.workers, stdout, stderr);
                result = result.and(merged.map_err(RunError::from));
            }
        }
        if result.is_ok() {
            tracing::info!("Sending workers shutdown messages...");
        }
        let success = result.is_ok() && summary.success();
        self.out.logs.finish(success);
        let flushed = self.out.logs.flush().map_err(RunError::from);
        let flushed = flushed.and_then(|()| self.settle());
        if meanwhile {
            summary.silent_workers = self.out.transport.close(timeout);
        }
        if let Err(mut error) = result.and(flushed) {
            error.silent_workers = summary.silent_workers;
            error.set_closed();
            return Err(error);
        }
        Ok(summary)
    }

    /// What workers had sent before they ended: their tasks need not run again.
    fn last_results(&mut self) -> Result<(), RunError> {
        let mut inbox = std::mem::take(&mut self.inbox);
        while let Some((from, message)) = inbox
            .pop_front()
            .or_else(|| self.out.transport.receive(Duration::ZERO).ok().flatten())
        {
            if let ToMaster::Finished(_) = message {
                self.handle(from, message)?;
            }
        }
        Ok(self.out.logs.flush()?)
    }

    fn summary(&mut self, aborted: Option<Aborted>, silent_workers: Vec<Rank>) -> RunSummary {
        let failed = std::mem::take(&mut self.out.failed);
        let failures = failed.into_iter().map(|(task, failure)| FailedTask {
            name: self.out.dag.name(task).to_vec(),
            status: failure.status,
            tries: failure.tries,
        });
        let figures = self.master.summary();
        let drain = self
            .drain
            .as_ref()
            .filter(|_| aborted.is_none() && self.master.is_cut_short());
        let drained = drain.map(|drain| drain.signal);
        // Looked for only where it may be the reason: that takes time in proportion to the DAG.
        let stuck =
            aborted.is_none() && drained.is_none() && !figures.success && !figures.max_failures_reached;
        let cycle = stuck.then(|| pmc_dag::cycle::find(&self.out.dag)).flatten();
        let dag = &self.options.dag;
        RunSummary {
            cycle: cycle.map(|cycle| Position::of_cycle(dag, &self.out.dag, &cycle)),
            figures,
            aborted,
            drained,
            failures: failures.collect(),
            workers: self.out.transport.workers(),
            wall_time: self.begin.at.elapsed(),
            makespan: self.makespan,
            silent_workers,
            database: None,
        }
    }
}
