//! What tasks of this node have saved, and copies of what those of other nodes have: the disk of the node,
//! and what its agent and the master say to each other about it.
//!
//! Nothing here wakes up before a task of the node saves its state, or the master orders something.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::unistd::geteuid;
use pmc_checkpoint::nodes::{Given, MasterSays, NodeSays, SavedFile};
use pmc_checkpoint::{FileRecord, Notice, Sidecar, Store, StoreError, TaskStore};
use pmc_link::Link;

use super::peers::{GivesFiles, Peers};
use crate::node::{self, Nodes};
use crate::protocol::{Rank, SubmitId, ToMaster};
use crate::transport::agents::messages;

/// Variable with the directory below which nodes keep files.
const DIRECTORY_VARIABLE: &str = "TCS_LOCALCHKDIR";

/// How long an attempt waits for the master.
const MASTER_PATIENCE: Duration = Duration::from_secs(60);

/// How long the end of a program waits until its newest series is safe.
const SAFE_PATIENCE: Duration = Duration::from_secs(60);

/// How long files stay that no run uses.
const UNUSED_LIMIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// Maximum bytes of a sidecar.
const MAX_SIDECAR: u64 = 64 << 20;

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
    /// Where orders of the master go that take a while.
    orders: Option<Sender<MasterSays>>,
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

/// Returns whether what tasks of this node save lies on nodes, although the node sees the directory of the
/// DAG file: the user has named a directory for that.
pub(super) fn are_wanted(environment: &[(OsString, OsString)]) -> bool {
    chosen_directory(environment).is_some()
}

fn chosen_directory(environment: &[(OsString, OsString)]) -> Option<PathBuf> {
    variable(environment, DIRECTORY_VARIABLE)
}

fn variable(environment: &[(OsString, OsString)], name: &str) -> Option<PathBuf> {
    let (_, value) = environment.iter().find(|(own, _)| own == name)?;
    Some(PathBuf::from(value)).filter(|path| path.is_absolute())
}

impl Checkpoints {
    /// The disk of this node, for tasks of a run with this DAG file.
    pub(super) fn new(
        environment: &[(OsString, OsString)],
        rank: Rank,
        dag: &Path,
        link: &Arc<Link>,
        peers: &Arc<Peers>,
    ) -> Arc<Self> {
        let base = chosen_directory(environment).or_else(|| variable(environment, "TMPDIR"));
        let base = base.unwrap_or_else(|| "/tmp".into());
        let this = Arc::new(Self {
            folder: base.join(format!("pmc-checkpoints-{}", geteuid())),
            rank,
            dag: dag.to_owned(),
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
            MasterSays::Notice(notice) => node::hear_notice(&self.dag, Notice::from(notice)),
            order => self.order(order),
        }
    }

    /// Has a thread of its own carry out an order.
    fn order(self: &Arc<Self>, order: MasterSays) {
        let mut state = self.state();
        let sender = match &state.orders {
            Some(orders) => orders.clone(),
            None => {
                let (sender, orders) = channel();
                let own = Arc::clone(self);
                let obey = move || own.obey(&orders);
                let thread = std::thread::Builder::new().name("checkpoints".to_owned());
                if let Err(error) = thread.spawn(obey) {
                    tracing::error!("Checkpoints of other nodes are not kept: {error}");
                    return;
                }
                state.orders = Some(sender.clone());
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

    /// Returns whether this node has a file.
    fn is_here(task: &TaskStore, file: &SavedFile) -> bool {
        let opened = task.open(file.series, &file.prefix, file.rank);
        opened.is_ok_and(|(_, sidecar)| SavedFile::of(&sidecar) == *file)
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
                Some(task) if Self::is_here(&task, &copy) => own.has(&task, copy.clone()),
                Some(task) if own.fetch(&task, &copy, &sources) => {}
                _ => own.has_not(copy.clone()),
            }
            own.state().coming.remove(&copy.key());
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

    /// Gets a file from one node.
    fn fetch_from(&self, task: &TaskStore, file: &SavedFile, addresses: &[String]) -> Result<(), String> {
        let sidecar = self.get(addresses, &file.sidecar_key(), &mut temporary(&self.folder)?)?;
        let sidecar = Sidecar::parse(&sidecar).map_err(|error| error.to_string())?;
        if SavedFile::of(&sidecar) != *file {
            return Err("it gives the sidecar of another file".to_owned());
        }
        let made = task.create(file.series, &file.prefix, file.rank);
        let mut made = made.map_err(|error| error.to_string())?;
        let got = self.get_bytes(addresses, &file.key(), &mut made);
        if let Err(error) = got {
            task.discard(file.series, &file.prefix, file.rank);
            return Err(error);
        }
        task.publish_on_node(&sidecar)
            .map_err(|error| error.to_string())?;
        match task.is_whole(file.series, &file.prefix, file.rank) {
            Ok(true) => Ok(()),
            checked => {
                // The next reader would find it damaged.
                let _ = task.remove_file(file.series, &file.prefix, file.rank);
                Err(checked.map_or_else(|error| error.to_string(), |_| "it gives other bytes".to_owned()))
            }
        }
    }

    /// Gets a text by its key.
    fn get(&self, addresses: &[String], key: &str, into: &mut File) -> Result<String, String> {
        self.get_bytes(addresses, key, into)?;
        let mut text = String::new();
        let read = into
            .seek(SeekFrom::Start(0))
            .and_then(|_| into.take(MAX_SIDECAR).read_to_string(&mut text));
        read.map(|_| text).map_err(|error| error.to_string())
    }

    /// Gets bytes by their key, from the first address that answers.
    fn get_bytes(&self, addresses: &[String], key: &str, into: &mut File) -> Result<(), String> {
        let mut last = "it has no address".to_owned();
        for address in addresses {
            let emptied = into.set_len(0).and_then(|()| into.seek(SeekFrom::Start(0)));
            emptied.map_err(|error| error.to_string())?;
            match self.peers.fetch(address, key, into) {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => last = "it has the file no more".to_owned(),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Removes directories in which nothing is left.
    pub(super) fn tidy(&self) {
        for run in Store::ids_on_node(&self.folder) {
            let _ = std::fs::remove_dir(self.folder.join(run));
        }
        let _ = std::fs::remove_dir(&self.folder);
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

    fn fetch(&self, task: &TaskStore, file: &SavedFile, sources: &[Vec<String>]) -> bool {
        for addresses in sources {
            match self.fetch_from(task, file, addresses) {
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
        false
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

/// Makes a file without a name.
fn temporary(folder: &Path) -> Result<File, String> {
    tempfile::tempfile_in(folder).map_err(|error: io::Error| error.to_string())
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
