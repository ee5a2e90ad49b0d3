//! The node service: what the process of some workers does for their tasks beside running them. Tasks that
//! save their state get files for it here.
//!
//! The service listens at an abstract socket, whose name each task finds in a variable. Only processes of the
//! same user may connect, and only attempts that run count. Its thread sleeps until a task connects.

mod attempt;
mod connection;
mod mail;
mod place;
mod statistics;
pub(crate) mod transfer;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use pmc_checkpoint::{Notice, Store};
use pmc_system::clock;
use pmc_wire::{checkpoint, peers};
use rustc_hash::FxHashMap;

use self::attempt::Attempt;
pub use self::place::Nodes;
pub(crate) use self::statistics::append as append_record;
use crate::protocol::SubmitId;

/// Maximum connections at a time: the ranks of an MPI program that run on one host.
const MAX_CONNECTIONS: usize = 1 << 12;

/// Pause after a connection that cannot be accepted: too many files are open, perhaps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The services of this process. Programs have one; tests have several runs in a process.
static SERVICES: Mutex<BTreeMap<PathBuf, Arc<NodeService>>> = Mutex::new(BTreeMap::new());

/// What the runs of this process say to their tasks.
static NOTICES: Mutex<BTreeMap<PathBuf, Notice>> = Mutex::new(BTreeMap::new());

/// The service for the tasks of one run.
#[derive(Debug)]
pub struct NodeService {
    /// Name of the socket.
    name: String,
    /// The DAG file of the run.
    dag: PathBuf,
    attempts: Mutex<FxHashMap<SubmitId, Arc<Attempt>>>,
    connections: AtomicUsize,
    /// Set if files lie on nodes, not beside the DAG file.
    nodes: Mutex<Option<Arc<dyn Nodes>>>,
}

/// An attempt that may use the service. It ends when this is dropped.
#[derive(Debug)]
pub struct ServedAttempt {
    service: Arc<NodeService>,
    submit: SubmitId,
    attempt: Arc<Attempt>,
}

impl NodeService {
    /// Returns the service of this process for a run. `None` if it cannot be started.
    #[must_use]
    pub fn for_run(dag: &Path) -> Option<Arc<Self>> {
        let mut services = lock(&SERVICES);
        if let Some(service) = services.get(dag) {
            return Some(Arc::clone(service));
        }
        match Self::start(dag) {
            Ok(service) => {
                services.insert(dag.to_owned(), Arc::clone(&service));
                Some(service)
            }
            Err(error) => {
                tracing::debug!("Tasks cannot save checkpoints: {}", pmc_dag::reason(&error));
                None
            }
        }
    }

    fn start(dag: &Path) -> io::Result<Arc<Self>> {
        let random = getrandom::u64().map_err(io::Error::other)?;
        let name = format!("pmc-node-{random:016x}");
        let listener = peers::listen(&name)?;
        let this = Arc::new(Self {
            name,
            dag: dag.to_owned(),
            attempts: Mutex::default(),
            connections: AtomicUsize::new(0),
            nodes: Mutex::default(),
        });
        let own = Arc::clone(&this);
        std::thread::Builder::new()
            .name("node-service".to_owned())
            .spawn(move || own.accept_all(&listener))?;
        Ok(this)
    }

    /// From now on, the files of new attempts lie on nodes, not beside the DAG file.
    pub fn keep_on_nodes(&self, nodes: Arc<dyn Nodes>) {
        *lock(&self.nodes) = Some(nodes);
    }

    /// Lets the processes of an attempt save and read checkpoints, until the result is dropped. `dag` is the
    /// DAG file of the task, which has the store beside it.
    #[must_use]
    pub fn begin(self: &Arc<Self>, submit: SubmitId, task: &[u8], dag: &Path) -> ServedAttempt {
        let nodes = lock(&self.nodes).clone();
        let attempt = Arc::new(Attempt::new(submit, task, dag, nodes));
        lock(&self.attempts).insert(submit, Arc::clone(&attempt));
        ServedAttempt {
            service: Arc::clone(self),
            submit,
            attempt,
        }
    }

    fn attempt(&self, submit: SubmitId) -> Option<Arc<Attempt>> {
        lock(&self.attempts).get(&submit).cloned()
    }

    /// Makes the store of the run, in which the run looks whether there are any. That of a sub-workflow is
    /// beside its own DAG file.
    fn note_use(&self) {
        if lock(&self.nodes).is_some() {
            // The master makes it, and tells the nodes.
            return;
        }
        if let Err(error) = Store::make(&self.dag) {
            tracing::debug!("The run will not tell its tasks anything: {error}");
        }
    }

    /// Returns what the run says to its tasks.
    fn notice(&self) -> Notice {
        let own = lock(&NOTICES).get(&self.dag).copied().unwrap_or_default();
        if lock(&self.nodes).is_some() {
            return own;
        }
        let store = Store::open(&self.dag).ok().flatten();
        own.or(store.map(|store| store.notice()).unwrap_or_default())
    }

    fn accept_all(self: &Arc<Self>, listener: &UnixListener) {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => self.accept(stream),
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn accept(self: &Arc<Self>, stream: UnixStream) {
        let is_full = self.connections.load(Ordering::Relaxed) >= MAX_CONNECTIONS;
        if is_full || peers::check_owner(&stream).is_err() {
            return;
        }
        self.connections.fetch_add(1, Ordering::Relaxed);
        let own = Arc::clone(self);
        let talk = move || {
            if let Err(error) = connection::talk(&own, &stream) {
                tracing::debug!("A task that saves its state: {}", pmc_dag::reason(&error));
            }
            own.connections.fetch_sub(1, Ordering::Relaxed);
        };
        if std::thread::Builder::new().spawn(talk).is_err() {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl ServedAttempt {
    /// Returns the variable by which the task finds the service, and its value.
    #[must_use]
    pub fn variable(&self) -> (&'static str, String) {
        let address = checkpoint::address(&self.service.name, self.submit.0);
        (checkpoint::VARIABLE, address)
    }

    /// Notes that the attempt has failed by itself. Perhaps it did so because of the series that it was
    /// given.
    pub fn fail(self) {
        self.attempt.end(true);
    }
}

impl Drop for ServedAttempt {
    fn drop(&mut self) {
        lock(&self.service.attempts).remove(&self.submit);
        self.attempt.end(false);
    }
}

/// Tells the tasks of a run something: those of this process at once, others when they look into the store,
/// if there is one.
pub(crate) fn set_notice(dag: &Path, notice: Notice) {
    lock(&NOTICES).insert(dag.to_owned(), notice);
    let written = Store::open(dag).and_then(|store| store.map_or(Ok(()), |store| store.set_notice(notice)));
    if let Err(error) = written {
        tracing::warn!("Unable to tell tasks to save their state: {error}");
    }
}

/// Notes what the master says to the tasks of this process.
pub(crate) fn hear_notice(dag: &Path, notice: Notice) {
    lock(&NOTICES).insert(dag.to_owned(), notice);
}

/// Returns the seconds since 1970.
pub(crate) fn now() -> f64 {
    let now = clock::system_time().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is inside is valid at every moment, even if a thread panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
