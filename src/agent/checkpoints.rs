//! What tasks of this node have saved, and copies of what those of other nodes have: the disk of the node,
//! and what its agent and the master say to each other about it.
//!
//! Nothing here wakes up before a task of the node saves its state, or the master orders something.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::unistd::geteuid;
use pmc_checkpoint::nodes::{Given, MasterSays, NodeSays, SavedFile};
use pmc_checkpoint::{FileRecord, Notice, Settings, Store, StoreError, TaskStore};
use pmc_link::Link;

use super::peers::{GivesFiles, Peers};
use crate::node::transfer::{self, Fetch, Target};
use crate::node::{self, Nodes};
use crate::protocol::{Rank, SubmitId, ToMaster};
use crate::transport::agents::messages;

/// How long an attempt waits for the master.
const MASTER_PATIENCE: Duration = Duration::from_secs(60);

/// How long the end of a program waits until its newest series is safe.
const SAFE_PATIENCE: Duration = Duration::from_secs(60);

/// How long files stay that no run uses.
const UNUSED_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long the end of a node waits until it has carried out orders.
const ORDER_PATIENCE: Duration = Duration::from_secs(10);

/// How long a node that is to end waits until others have its files.
const LEAVE_PATIENCE: Duration = Duration::from_secs(60);

/// The store of a run, and the directory of a task.
type TaskKey = (String, String);

/// The disk of this node.
pub(super) struct Checkpoints {
    /// Has a directory for each store.
    folder: PathBuf,
    /// First slot of this agent: it speaks for the node.
    rank: Rank,
    /// The DAG file of the run.
    dag: PathBuf,
    /// This node sees the directory of the DAG file.
    sees_store: bool,
    /// There are statistics of files.
    logs: bool,
    link: Arc<Link>,
    peers: Arc<Peers>,
    state: Mutex<State>,
    /// An answer has come, or a series is safe.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The master knows this node. The number is that of the master.
    known_to: Option<u64>,
    /// Files that other nodes may have, by key.
    offered: BTreeMap<String, PathBuf>,
    /// Keys of copies that are coming in.
    coming: BTreeSet<String>,
    /// What was asked, and the answers that have come.
    wants: BTreeMap<u64, Want>,
    last_number: u64,
    /// The newest safe series.
    safe: BTreeMap<TaskKey, u64>,
    /// This node need not wait for others when it is to end.
    may_go: bool,
    /// Who carries out orders of the master that take a while.
    orders: Option<Orders>,
}

/// A thread that carries out orders.
struct Orders {
    sender: Sender<MasterSays>,
    /// It is closed when the thread has ended.
    ended: Receiver<Infallible>,
}

struct Want {
    question: NodeSays,
    answer: Option<Result<Given, String>>,
}

impl fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoints")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

/// Returns where checkpoint files lie, as the user or the site has chosen.
pub(super) fn settings(environment: &[(OsString, OsString)]) -> Settings {
    let text = |name: &str| variable(environment, name)?.to_str().map(str::to_owned);
    Settings::find(text).unwrap_or_else(|error| {
        tracing::error!("Checkpoints lie where they do without settings: {error}");
        Settings::default()
    })
}

fn variable<'a>(environment: &'a [(OsString, OsString)], name: &str) -> Option<&'a OsStr> {
    let (_, value) = environment.iter().find(|(own, _)| own == name)?;
    Some(value)
}

/// Free bytes of the file system of a directory.
fn free_bytes(path: &Path) -> Option<u64> {
    let status = rustix::fs::statvfs(path).ok()?;
    Some(status.f_bavail.saturating_mul(status.f_frsize))
}

impl Checkpoints {
    /// The disk of this node, for tasks of a run with this DAG file.
    pub(super) fn new(
        (settings, environment): (&Settings, &[(OsString, OsString)]),
        rank: Rank,
        (dag, sees_store): (&Path, bool),
        link: &Arc<Link>,
        peers: &Arc<Peers>,
    ) -> Arc<Self> {
        let chosen = settings.local.as_ref();
        let chosen = chosen.and_then(|local| local.roomiest(free_bytes));
        let temporary = variable(environment, "TMPDIR").map(Path::new);
        let base = chosen.or(temporary.filter(|path| path.is_absolute()));
        let base = base.unwrap_or(Path::new("/tmp"));
        let this = Arc::new(Self {
            folder: base.join(format!("pmc-checkpoints-{}", geteuid())),
            rank,
            dag: dag.to_owned(),
            sees_store,
            logs: settings.logs,
            link: Arc::clone(link),
            peers: Arc::clone(peers),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        remove_unused(&this.folder);
        let own = Arc::downgrade(&this);
        peers.give_checkpoints(own);
        this
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid at every moment, even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, said: NodeSays) {
        let message = ToMaster::Checkpoint(Box::new(said));
        let body = messages::address(self.rank, |body| message.encode(body));
        self.link.send(body);
    }

    /// Notes a connection to the master. It learns of this node if that has files, or if the master before
    /// knew it.
    pub(super) fn connected(&self) {
        let mut state = self.state();
        let is_known = state.known_to.is_some();
        if state.known_to == self.epoch() {
            return;
        }
        if is_known || !Store::ids_on_node(&self.folder).is_empty() {
            self.begin(&mut state);
            for want in state.wants.values().filter(|want| want.answer.is_none()) {
                self.say(want.question.clone());
            }
        }
    }

    fn epoch(&self) -> Option<u64> {
        self.link.session().map(|(epoch, _)| epoch)
    }

    /// Says to the master that this node is there.
    fn begin(&self, state: &mut State) {
        state.known_to = self.epoch();
        let addresses = self.peers.addresses();
        let runs = Store::ids_on_node(&self.folder);
        self.say(NodeSays::Begin { addresses, runs });
    }

    /// Takes what the master says. Returns at once.
    pub(super) fn hear(self: &Arc<Self>, said: MasterSays) {
        match said {
            MasterSays::Given { number, given } => {
                if let Some(want) = self.state().wants.get_mut(&number) {
                    want.answer = Some(given);
                }
                self.changed.notify_all();
            }
            MasterSays::Safe { run, task, series } => {
                let mut state = self.state();
                let safe = state.safe.entry((run, task)).or_default();
                *safe = series.max(*safe);
                drop(state);
                self.changed.notify_all();
            }
            MasterSays::Begin => {
                let mut state = self.state();
                if state.known_to != self.epoch() {
                    self.begin(&mut state);
                }
            }
            MasterSays::MayGo => self.need_not_wait(),
            MasterSays::Notice(notice) => node::hear_notice(&self.dag, Notice::from(notice)),
            order => self.order(order),
        }
    }

    /// Has a thread of its own carry out an order.
    fn order(self: &Arc<Self>, order: MasterSays) {
        let mut state = self.state();
        let sender = match &state.orders {
            Some(orders) => orders.sender.clone(),
            None => {
                let (sender, orders) = channel();
                let own = Arc::clone(self);
                let (is_alive, ended) = channel::<Infallible>();
                let obey = move || {
                    own.obey(&orders);
                    drop(is_alive);
                };
                let thread = std::thread::Builder::new().name("checkpoints".to_owned());
                if let Err(error) = thread.spawn(obey) {
                    tracing::error!("Checkpoints of other nodes are not kept: {error}");
                    return;
                }
                let kept = sender.clone();
                state.orders = Some(Orders { sender: kept, ended });
                sender
            }
        };
        // The thread ends with this process.
        let _ = sender.send(order);
    }

    fn obey(self: &Arc<Self>, orders: &Receiver<MasterSays>) {
        for order in orders {
            let result = match order {
                MasterSays::Tell { run } => self.tell(&run),
                MasterSays::Drop { run, task, below } => self.remove(&run, &task, below),
                MasterSays::Discard(file) => self.discard(&file),
                MasterSays::Copy { file, sources } => {
                    self.copy_in_background(file, sources);
                    Ok(())
                }
                MasterSays::Flush {
                    dag,
                    transfer,
                    file,
                    sources,
                } => {
                    self.flush_in_background(dag, transfer, file, sources);
                    Ok(())
                }
                _ => Ok(()),
            };
            if let Err(error) = result {
                tracing::warn!("Checkpoints on this node: {error}");
            }
        }
    }

    /// Says which files of a store this node has.
    fn tell(&self, run: &str) -> Result<(), StoreError> {
        for task in self.store(run)?.tasks()? {
            for sidecar in task.take_stock()? {
                self.has(&task, SavedFile::of(&sidecar));
            }
        }
        Ok(())
    }

    /// Removes the series of a task below a number.
    fn remove(&self, run: &str, task: &str, below: u64) -> Result<(), StoreError> {
        let store = self.store(run)?;
        let Some(task) = store.task_in(task) else {
            return Ok(());
        };
        if below == u64::MAX {
            self.state()
                .safe
                .remove(&(run.to_owned(), task.directory().to_owned()));
            task.remove()?;
        } else {
            // The master may have heard of them again while its order was on its way.
            let files = task.take_stock_below(below)?;
            task.remove_below(below)?;
            let files = files.iter().map(SavedFile::of);
            files.for_each(|file| self.has_not(file));
        }
        self.state().offered.retain(|_, path| path.exists());
        Ok(())
    }

    fn discard(&self, file: &SavedFile) -> Result<(), StoreError> {
        if let Some(task) = self.store(&file.run)?.task_in(&file.task) {
            task.remove_file(file.series, &file.prefix, file.rank)?;
        }
        let mut state = self.state();
        state.offered.remove(&file.key());
        state.offered.remove(&file.sidecar_key());
        Ok(())
    }

    /// Gets a copy of a file, while other orders are carried out.
    fn copy_in_background(self: &Arc<Self>, file: SavedFile, sources: Vec<Vec<String>>) {
        // The master repeats an order that it has forgotten.
        if !self.state().coming.insert(file.key()) {
            return;
        }
        let own = Arc::clone(self);
        let copy = file.clone();
        let copy = move || {
            let task = own
                .store(&copy.run)
                .ok()
                .and_then(|store| store.task_in(&copy.task));
            match task {
                Some(task) if transfer::has(&task, &copy) => own.has(&task, copy.clone()),
                Some(task) if own.fetch(&own.dag, &task, &copy, &sources) => {}
                _ => own.has_not(copy.clone()),
            }
            own.state().coming.remove(&copy.key());
            own.changed.notify_all();
        };
        if std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(copy)
            .is_err()
        {
            self.state().coming.remove(&file.key());
            self.has_not(file);
        }
    }

    /// Brings a file into the store beside a DAG file, while other orders are carried out.
    fn flush_in_background(
        self: &Arc<Self>,
        dag: Vec<u8>,
        transfer: u64,
        file: SavedFile,
        sources: Vec<Vec<String>>,
    ) {
        let (own, flushed) = (Arc::clone(self), file.clone());
        let flush = move || {
            let failed = own
                .flush(Path::new(OsStr::from_bytes(&dag)), &file, &sources)
                .err();
            own.say(NodeSays::Flushed {
                transfer,
                file,
                failed,
            });
        };
        let thread = std::thread::Builder::new().name("checkpoint".to_owned());
        if let Err(error) = thread.spawn(flush) {
            let failed = Some(error.to_string());
            self.say(NodeSays::Flushed {
                transfer,
                file: flushed,
                failed,
            });
        }
    }

    fn flush(&self, dag: &Path, file: &SavedFile, sources: &[Vec<String>]) -> Result<(), String> {
        let into = self
            .beside_dag(dag, file)
            .ok_or("the node does not see the store")?;
        let into = into.incoming();
        if transfer::has(&into, file) {
            return Ok(());
        }
        let target = Target {
            task: &into,
            folder: &self.folder,
            is_durable: true,
        };
        if sources.is_empty() {
            let own = self.store(&file.run).map_err(|error| error.to_string())?;
            let own = own.task_in(&file.task).ok_or("there is no such task")?;
            return target.copy(&own, file);
        }
        let mut last = "it has no source".to_owned();
        for addresses in sources {
            match target.fetch(self.peers.as_ref(), addresses, file) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the files of a task in the store beside a DAG file, if this node sees it.
    fn beside_dag(&self, dag: &Path, file: &SavedFile) -> Option<TaskStore> {
        let store = self.sees_store.then(|| Store::open(dag).ok().flatten())??;
        store.task_in(&file.task).filter(|task| task.run() == file.run)
    }

    /// Waits until others have what this node has, which is to end.
    pub(super) fn leave(&self) {
        {
            let state = self.state();
            if state.known_to.is_none() || state.may_go {
                return;
            }
        }
        self.say(NodeSays::Leaves);
        let end = Instant::now() + LEAVE_PATIENCE;
        let _ = self.wait(end, |state| state.may_go.then_some(()));
    }

    /// Lets this node end at once: nobody answers, or nobody waits for it.
    pub(super) fn need_not_wait(&self) {
        self.state().may_go = true;
        self.changed.notify_all();
    }

    /// Carries out what the master has ordered, and removes directories in which nothing is left, also those
    /// of tasks that are done: the master asks only nodes that have files of a task to remove them.
    pub(super) fn tidy(&self) {
        self.end_orders(ORDER_PATIENCE);
        Store::remove_empty_on_node(&self.folder);
    }

    /// Waits until all orders are carried out, but not longer than `patience`. Returns whether they are.
    fn end_orders(&self, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        let orders = self.state().orders.take();
        let are_obeyed = orders.is_none_or(|Orders { sender, ended }| {
            drop(sender);
            ended.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
        });
        // Files that come make directories.
        let have_come = self.wait(end, |state| state.coming.is_empty().then_some(()));
        are_obeyed && have_come.is_some()
    }

    /// Waits until something has come, at most until `end`.
    fn wait<R>(&self, end: Instant, mut has_come: impl FnMut(&mut State) -> Option<R>) -> Option<R> {
        let mut state = self.state();
        loop {
            if let Some(result) = has_come(&mut state) {
                return Some(result);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl GivesFiles for Checkpoints {
    fn find(&self, key: &str) -> Option<File> {
        let path = self.state().offered.get(key).cloned()?;
        pmc_files::open(&path).ok()
    }
}

impl Nodes for Checkpoints {
    fn want(&self, submit: SubmitId, dag: &Path, task: &[u8]) -> Result<Given, String> {
        let number = {
            let mut state = self.state();
            if state.known_to.is_none() {
                self.begin(&mut state);
            }
            state.last_number += 1;
            let number = state.last_number;
            let question = NodeSays::Want {
                number,
                dag: dag.as_os_str().as_bytes().to_vec(),
                task: task.to_vec(),
                submit: submit.0,
            };
            self.say(question.clone());
            let want = Want {
                question,
                answer: None,
            };
            state.wants.insert(number, want);
            number
        };
        let end = Instant::now() + MASTER_PATIENCE;
        let answer = self.wait(end, |state| state.wants.get_mut(&number)?.answer.take());
        self.state().wants.remove(&number);
        answer.unwrap_or_else(|| Err("the master of the run does not answer".to_owned()))
    }

    fn store(&self, run: &str) -> Result<Store, StoreError> {
        let store = Store::make_on_node(&self.folder, run)?;
        // Whoever removes what is not used looks at the time.
        if let Ok(directory) = File::open(store.path()) {
            let _ = directory.set_modified(SystemTime::now());
        }
        Ok(store)
    }

    fn has(&self, task: &TaskStore, file: SavedFile) {
        let (path, sidecar) = task.paths(file.series, &file.prefix, file.rank);
        let mut state = self.state();
        state.offered.insert(file.key(), path);
        state.offered.insert(file.sidecar_key(), sidecar);
        self.say(NodeSays::Has(file));
    }

    fn has_not(&self, file: SavedFile) {
        let mut state = self.state();
        state.offered.remove(&file.key());
        state.offered.remove(&file.sidecar_key());
        self.say(NodeSays::HasNot(file));
    }

    fn fetch(&self, dag: &Path, task: &TaskStore, file: &SavedFile, sources: &[Vec<String>]) -> bool {
        let target = Target {
            task,
            folder: &self.folder,
            is_durable: false,
        };
        for addresses in sources {
            match target.fetch(self.peers.as_ref(), addresses, file) {
                Ok(()) => {
                    self.has(task, file.clone());
                    return true;
                }
                Err(error) => tracing::debug!(
                    "Checkpoint file {} {} of series {} from {}: {error}",
                    file.task,
                    file.prefix,
                    file.series,
                    addresses.first().map_or("", String::as_str)
                ),
            }
        }
        let stored = self.beside_dag(dag, file);
        let is_there = stored.is_some_and(|stored| target.copy(&stored, file).is_ok());
        if is_there {
            self.has(task, file.clone());
        }
        is_there
    }

    fn withhold(&self, (run, task): (&str, &str), series: u64, reason: &str) {
        self.say(NodeSays::Withhold {
            run: run.to_owned(),
            task: task.to_owned(),
            series,
            reason: reason.to_owned(),
        });
    }

    fn wait_safe(&self, (run, task): (&str, &str), series: u64) {
        let key = (run.to_owned(), task.to_owned());
        let end = Instant::now() + SAFE_PATIENCE;
        let is_safe = |state: &mut State| state.safe.get(&key).filter(|safe| **safe >= series).copied();
        let _ = self.wait(end, is_safe);
    }

    fn record(&self, dag: &Path, record: FileRecord) {
        if !self.logs {
            return;
        }
        let dag = dag.as_os_str().as_bytes().to_vec();
        self.say(NodeSays::Closed { dag, record });
    }

    fn message(&self, dag: &Path, task: &[u8], text: String) {
        self.say(NodeSays::Message {
            dag: dag.as_os_str().as_bytes().to_vec(),
            task: task.to_vec(),
            text,
        });
    }
}

impl Fetch for Peers {
    fn fetch(&self, address: &str, key: &str, into: &mut File) -> Result<Option<u64>, String> {
        Self::fetch(self, address, key, into)
    }
}

/// Removes what no run of this user has used for long.
fn remove_unused(folder: &Path) {
    for run in Store::ids_on_node(folder) {
        let path = folder.join(run);
        let is_old = std::fs::symlink_metadata(&path)
            .and_then(|status| status.modified())
            .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > UNUSED_LIMIT));
        if is_old {
            // What cannot be removed is tried again by the next agent.
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests;
