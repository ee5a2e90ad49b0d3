//! Threads that work in the stores beside DAG files, which may be slow, and the server from which nodes get
//! the files of stores that they do not see.
//!
//! Nothing here begins before nodes have saved something that goes into a store.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use pmc_checkpoint::TaskStore;
use pmc_checkpoint::nodes::{NodeId, SavedFile};
use pmc_link::{Commands, Endpoint, Gang, Offered, PeerServer, RunKey, Running};
use pmc_wire::command::Call;

use crate::node::transfer::{self, Fetch, Target};
use crate::transport::agents::endpoint_path;

/// Number of threads: what one of them waits for does not hold up the others.
const THREADS: usize = 4;

/// What a thread is to do.
#[derive(Debug)]
pub(super) enum Work {
    /// Bring a file from a node into a series that does not count yet.
    Bring {
        task: TaskStore,
        transfer: u64,
        file: SavedFile,
        sources: Vec<Vec<String>>,
    },
    /// Let the series count.
    Accept {
        task: TaskStore,
        series: u64,
        submit: u64,
    },
    /// Remove the series below a number.
    Remove { task: TaskStore, below: u64 },
}

/// What has become of it.
#[derive(Debug)]
pub(super) enum Done {
    Brought {
        transfer: u64,
        file: SavedFile,
        failed: Option<String>,
    },
    Accepted {
        run: String,
        task: String,
        series: u64,
        failed: Option<String>,
    },
}

/// What works in the stores of a run.
#[derive(Debug, Default)]
pub(super) struct Flushing {
    pub(super) threads: Option<StoreThreads>,
    /// The threads could not be started: it was said.
    pub(super) has_no_threads: bool,
    pub(super) server: Option<StoreServer>,
    /// Nodes that wait until they may go.
    pub(super) leaving: BTreeSet<NodeId>,
    /// When to look again whether they may.
    pub(super) next_look: Option<Instant>,
}

/// The threads.
#[derive(Debug)]
pub(super) struct StoreThreads {
    work: Sender<Work>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    work: Mutex<Receiver<Work>>,
    done: Mutex<Vec<Done>>,
    is_over: AtomicBool,
    key: RunKey,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is inside is valid at every moment, even if a thread panicked.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StoreThreads {
    /// Starts the threads of a run with agents. `wake` is called when something is done.
    ///
    /// # Errors
    /// The key of the run cannot be read, or the system starts no threads.
    pub(super) fn start(dag: &Path, wake: &Arc<dyn Fn() + Send + Sync>) -> Result<Self, String> {
        let endpoint = Endpoint::read(&endpoint_path(dag)).map_err(|error| error.to_string())?;
        let (work, receiver) = channel();
        let shared = Arc::new(Shared {
            work: Mutex::new(receiver),
            done: Mutex::default(),
            is_over: AtomicBool::new(false),
            key: endpoint.key,
        });
        let start = |_| {
            let (own, wake) = (Arc::clone(&shared), Arc::clone(wake));
            let thread = std::thread::Builder::new().name("checkpoints".to_owned());
            thread.spawn(move || own.work(wake.as_ref()))
        };
        let threads: Result<Vec<_>, _> = (0..THREADS).map(start).collect();
        Ok(Self {
            work,
            threads: threads.map_err(|error| error.to_string())?,
            shared,
        })
    }

    /// Has a thread do something.
    pub(super) fn send(&self, work: Work) {
        // They wait for it as long as this is there.
        let _ = self.work.send(work);
    }

    /// Takes what was done.
    pub(super) fn take(&self) -> Vec<Done> {
        std::mem::take(&mut lock(&self.shared.done))
    }

    /// Ends the threads. What they have begun to bring stays, and does not count.
    pub(super) fn end(self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        drop(self.work);
        for thread in self.threads {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn work(&self, wake: &(dyn Fn() + Send + Sync)) {
        loop {
            let work = lock(&self.work).recv();
            let Ok(work) = work else { return };
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            if let Some(done) = self.do_work(work) {
                lock(&self.done).push(done);
                wake();
            }
        }
    }

    fn do_work(&self, work: Work) -> Option<Done> {
        match work {
            Work::Bring {
                task,
                transfer,
                file,
                sources,
            } => {
                let failed = self.bring(&task.incoming(), &file, &sources).err();
                Some(Done::Brought {
                    transfer,
                    file,
                    failed,
                })
            }
            Work::Accept { task, series, submit } => Some(Done::Accepted {
                run: task.run().to_owned(),
                task: task.directory().to_owned(),
                series,
                failed: task.accept(series, submit).err().map(|error| error.to_string()),
            }),
            Work::Remove { task, below } => {
                if let Err(error) = task.remove_below(below) {
                    tracing::debug!("Checkpoints that are not needed any more stay: {error}");
                }
                None
            }
        }
    }

    fn bring(&self, into: &TaskStore, file: &SavedFile, sources: &[Vec<String>]) -> Result<(), String> {
        if transfer::has(into, file) {
            return Ok(());
        }
        let target = Target {
            task: into,
            folder: into.store(),
            is_durable: true,
        };
        let mut last = "no node has it".to_owned();
        for addresses in sources {
            match target.fetch(self, addresses, file) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Fetch for Shared {
    fn fetch(&self, address: &str, key: &str, into: &mut File) -> Result<Option<u64>, String> {
        let goes_on = || !self.is_over.load(Ordering::Relaxed);
        let fetched = pmc_link::fetch(&self.key, address, key, into, &goes_on, &|_| {});
        fetched.map_err(|error| error.to_string())
    }
}

/// Gives files of stores to nodes that do not see these.
pub(super) struct StoreServer {
    _server: PeerServer,
    offered: Arc<Mutex<BTreeMap<String, PathBuf>>>,
    /// Where nodes find it.
    pub(super) addresses: Vec<String>,
}

impl std::fmt::Debug for StoreServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreServer")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl StoreServer {
    /// Listens where the master of the run does, at another port.
    ///
    /// # Errors
    /// The key of the run cannot be read, or no port can be had.
    pub(super) fn start(dag: &Path) -> Result<Self, String> {
        let endpoint = Endpoint::read(&endpoint_path(dag)).map_err(|error| error.to_string())?;
        let offered: Arc<Mutex<BTreeMap<String, PathBuf>>> = Arc::default();
        let known = Arc::clone(&offered);
        let find = move |key: &str| {
            let path = lock(&known).get(key).cloned()?;
            let file = pmc_files::open(&path).ok()?;
            Some(Offered {
                file,
                lock: None,
                growing: None,
            })
        };
        let listen = endpoint.listen_like_master();
        let server = PeerServer::start(&endpoint.key, &listen, find, Box::new(NoCommands));
        let server = server.map_err(|error| error.to_string())?;
        let hosts = endpoint.addresses.iter();
        let hosts = hosts.filter_map(|address| Some(address.rsplit_once(':')?.0));
        let addresses = hosts.map(|host| format!("{host}:{}", server.port())).collect();
        Ok(Self {
            _server: server,
            offered,
            addresses,
        })
    }

    /// Gives this file of a store from now on.
    pub(super) fn offer(&self, task: &TaskStore, file: &SavedFile) {
        let (path, sidecar) = task.paths(file.series, &file.prefix, file.rank);
        let mut offered = lock(&self.offered);
        offered.insert(file.key(), path);
        offered.insert(file.sidecar_key(), sidecar);
    }
}

/// The master is in no gang.
struct NoCommands;

impl NoCommands {
    fn refusal<T>() -> Result<T, String> {
        Err("the master runs no commands".to_owned())
    }
}

impl Commands for NoCommands {
    fn knows(&self, _: Gang) -> Result<bool, String> {
        Self::refusal()
    }

    fn learn(&self, _: Gang, _: &[u8]) -> Result<(), String> {
        Self::refusal()
    }

    fn start(&self, _: Gang, _: &Call) -> Result<Running, String> {
        Self::refusal()
    }

    fn cut(&self, _: Gang) {}
}
