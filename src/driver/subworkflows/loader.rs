//! Opens and reads the files of sub-workflows, in a thread of its own: a large DAG or a slow file system
//! must not hold up the run.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pmc_dag::rescue::DoneSet;
use pmc_dag::{Stdin, TaskId};
use pmc_system::channel::{Receiver, Sender, unbounded};
use pmc_system::thread::{self, JoinHandle};

use super::Refusal;
use crate::driver::dag_run::DagRun;
use crate::driver::guests::{Submission, refuse_if_host_is_left};
use crate::driver::numbers::AttemptNumbers;
use crate::driver::restarts::Restarts;
use crate::driver::{MemoryExcess, RunError, durability, refuse_if_agents_are_left, setup};
use crate::logs::Logs;
use crate::options::{Options, folder};
use crate::protocol::{Place, SubmitId};

/// Maximum open files for forwarded data of a sub-workflow.
const MAX_TARGETS: usize = 8;

/// What needs a DAG.
pub(in crate::driver) enum Origin {
    /// This attempt of a task, which is a sub-workflow.
    Task(TaskId, SubmitId),
    /// A tool that hands it over.
    Tool(Submission),
}

/// A DAG that is to be opened.
pub(in crate::driver) struct Order {
    pub(in crate::driver) origin: Origin,
    /// Where its tasks run.
    pub(in crate::driver) directory: PathBuf,
    pub(in crate::driver) depth: u32,
    /// As [`DagRun::label`].
    pub(in crate::driver) label: String,
    pub(in crate::driver) options: Options,
    /// Its workers may be lost.
    pub(in crate::driver) may_lose: bool,
    /// A task of the run has made it.
    pub(in crate::driver) is_prepared: bool,
    /// For a guest, the DAG file of the run without links.
    pub(in crate::driver) host: PathBuf,
}

impl Order {
    pub(super) fn is_guest(&self) -> bool {
        matches!(self.origin, Origin::Tool(_))
    }

    /// The task that is the sub-workflow.
    pub(super) fn task(&self) -> Option<TaskId> {
        match self.origin {
            Origin::Task(task, _) => Some(task),
            Origin::Tool(_) => None,
        }
    }

    /// Tells a tool that the run ends before the DAG could join.
    pub(super) fn refuse_tool(&self) {
        if let Origin::Tool(submission) = &self.origin {
            submission.refuse(&Refusal::Ending);
        }
    }
}

/// A DAG with its files, whose logs have begun.
pub(super) struct Loaded {
    pub(super) run: DagRun,
    pub(super) done: DoneSet,
    pub(super) rescue: (PathBuf, Arc<File>),
    /// Files and directories of a new plan, which its planner leaves to the run to sync.
    pub(super) plan: Vec<PathBuf>,
}

type Answer = (Order, Result<Box<Loaded>, Refusal>);

/// The thread.
pub(super) struct Loader {
    orders: Option<Sender<Order>>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    thread: Option<JoinHandle>,
}

impl Loader {
    /// Starts the thread. It calls `wake` after each answer.
    pub(super) fn start(wake: Arc<dyn Fn() + Send + Sync>) -> io::Result<Self> {
        let (orders, received) = unbounded();
        let answers = Arc::default();
        let to = Arc::clone(&answers);
        let thread = thread::spawn("sub-workflows", move || serve(&received, &to, &*wake))?;
        Ok(Self {
            orders: Some(orders),
            answers,
            thread: Some(thread),
        })
    }

    pub(super) fn load(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The thread ends only after the orders have ended.
            orders.send(order);
        }
    }

    /// Returns the next answer, if there is one.
    pub(super) fn take(&self) -> Option<Answer> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.pop_front()
    }

    /// Ends the thread after the orders that it has. Returns the answers that were not taken.
    pub(super) fn finish(mut self) -> VecDeque<Answer> {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            thread.join();
        }
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn serve(orders: &Receiver<Order>, answers: &Mutex<VecDeque<Answer>>, wake: &dyn Fn()) {
    while let Ok(order) = orders.recv_timeout(Duration::MAX) {
        let loaded = open(&order);
        let mut waiting = answers.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push_back((order, loaded.map(Box::new)));
        drop(waiting);
        wake();
    }
}

/// Opens everything in the order of a run of its own.
fn open(order: &Order) -> Result<Loaded, Refusal> {
    let options = &order.options;
    let failed = |error: RunError| Refusal::Open(error);
    let shown = || options.dag.display().to_string();
    let lock = setup::lock(options).map_err(failed)?;
    if order.is_guest() {
        refuse_if_agents_are_left(options).map_err(failed)?;
        refuse_if_host_is_left(options, &order.host).map_err(failed)?;
    }
    let dag = Arc::new(setup::read_dag(options, setup::MAX_JOINING_DAG, false).map_err(failed)?);
    if dag.ids().any(|task| dag.abort_on(task).is_some()) {
        return Err(Refusal::AbortOn(shown()));
    }
    if !order.is_guest() && dag.ids().any(|task| dag.task(task).stdin == Some(&Stdin::Push)) {
        return Err(Refusal::Push(shown()));
    }
    let name = options.dag.file_name().unwrap_or_default();
    if pmc_packed::has_packs(folder(&options.dag), name) {
        return Err(Refusal::Packed(shown()));
    }
    let (done, recovered) = durability::read_done(options, &dag).map_err(failed)?;
    // If a task is done, an earlier run has synced the plan.
    let mut plan = Vec::new();
    if order.is_prepared && options.sync_interval.is_some() && done.is_empty() {
        add_files_below(folder(&options.dag), &mut plan);
    }
    let restarts = Restarts::of_earlier_runs(options, &dag);
    let begin = || -> Result<(Logs, Option<AttemptNumbers>, File), RunError> {
        let numbers = AttemptNumbers::new(options, &dag, order.may_lose)?;
        let mut logs = Logs::open(options, &dag, &done)?;
        logs.share_resources();
        logs.start(options, &done, false)?;
        logs.flush()?;
        durability::end_recovery(recovered, &mut logs)?;
        let rescue = logs.rescue_file();
        let rescue = rescue.map_err(|error| RunError::system("Unable to prepare synchronisation", error))?;
        Ok((logs, numbers, rescue))
    };
    let (logs, numbers, rescue) = begin().map_err(failed)?;
    Ok(Loaded {
        run: DagRun {
            dag,
            place: Some(Place::new(&options.dag, &order.directory)),
            logs,
            forwarding: durability::forwarding(options, MAX_TARGETS),
            synced_rescue_len: 0,
            numbers,
            restarts,
            failed: BTreeMap::new(),
            memory_excess: MemoryExcess::default(),
            changed: BTreeMap::new(),
            label: order.label.clone(),
            lock,
        },
        done,
        rescue: (Path::to_owned(&options.rescue), Arc::new(rescue)),
        plan,
    })
}

/// Adds the files and directories below a directory, then the directory itself.
fn add_files_below(directory: &Path, found: &mut Vec<PathBuf>) {
    // What cannot be read now is not read by tasks, either.
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => add_files_below(&entry.path(), found),
            Ok(kind) if kind.is_file() => found.push(entry.path()),
            _ => {}
        }
    }
    found.push(directory.to_owned());
}
