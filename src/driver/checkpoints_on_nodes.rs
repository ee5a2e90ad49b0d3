//! Checkpoints that lie on the nodes of a run with agents: who has which file, and what follows from that.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use pmc_checkpoint::nodes::{Book, Given, MasterSays, NodeId, NodeSays, Orders, SavedFile};
use pmc_checkpoint::{Settings, Store, StoreError, task_directory, task_name};
use pmc_system::clock;

use super::Run;
use super::checkpoint_store::Flushing;
use crate::node;
use crate::protocol::{NodeChange, Rank, ToWorker};
use crate::transport::MasterTransport;

/// What the driver knows of checkpoints on nodes.
#[derive(Debug, Default)]
pub(super) struct OnNodes {
    pub(super) book: Book,
    /// The stores of DAGs whose tasks have saved something, by their DAG files.
    pub(super) stores: BTreeMap<PathBuf, Store>,
    /// Tasks of which the book has what is in their stores: id of the store, directory.
    learnt: BTreeSet<(String, String)>,
    /// A worker of each host that has an agent.
    agents: BTreeMap<String, Rank>,
    /// Those whose hosts see the directory of the DAG file.
    seeing: BTreeSet<NodeId>,
    pub(super) flushing: Flushing,
    /// A node has said something: all others are to begin.
    are_used: bool,
    /// When the first of them has.
    begun: Option<Instant>,
}

impl OnNodes {
    /// The nodes that may have something to do with checkpoints.
    pub(super) fn used_nodes(&self) -> BTreeSet<NodeId> {
        let agents = self.agents.values().filter(|_| self.are_used);
        self.book.nodes().chain(agents.map(|rank| rank.0)).collect()
    }

    /// Returns the DAG file with the store that has this id.
    pub(super) fn dag_of(&self, run: &str) -> Option<&Path> {
        let mut stores = self.stores.iter();
        stores
            .find(|(_, store)| store.id() == run)
            .map(|(dag, _)| dag.as_path())
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// Takes what a node says.
    pub(super) fn hear_checkpoints(&mut self, from: Rank, said: NodeSays) {
        let mut orders = Vec::new();
        let node = from.0;
        if !std::mem::replace(&mut self.checkpoints.on_nodes.are_used, true) {
            self.begin_use_of_nodes();
        }
        if let NodeSays::Has(file) = &said {
            if self.is_done(file) {
                let discard = MasterSays::Discard(file.clone());
                return self.send_orders(vec![(node, discard)]);
            }
            self.learn_once(&file.run, &file.task);
        }
        let on_nodes = &mut self.checkpoints.on_nodes;
        let sees_store = on_nodes.seeing.contains(&node);
        let book = &mut on_nodes.book;
        book.set_time(clock::elapsed(*on_nodes.begun.get_or_insert_with(clock::now)));
        match said {
            NodeSays::Begin { addresses, runs } => {
                book.begin(node, addresses, &mut orders);
                if sees_store {
                    book.note_sight(node);
                }
                self.learn_stores();
                let is_of_run = |run: &String| self.checkpoints.on_nodes.dag_of(run).is_some();
                let known = runs.into_iter().filter(is_of_run);
                orders.extend(known.map(|run| (node, MasterSays::Tell { run })));
                orders.push((node, MasterSays::Notice(self.checkpoints.notice.into())));
            }
            NodeSays::Want {
                number,
                dag,
                task,
                submit,
            } => {
                let given = self.give(node, Path::new(OsStr::from_bytes(&dag)), &task, submit);
                orders.push((node, MasterSays::Given { number, given }));
            }
            NodeSays::Has(file) => {
                book.has(node, file.clone(), &mut orders);
                self.note_holders(&file);
            }
            NodeSays::HasNot(file) => {
                book.has_not(node, &file, &mut orders);
                self.note_holders(&file);
            }
            NodeSays::Withhold {
                run,
                task,
                series,
                reason,
            } => self.withhold((&run, &task), series, reason),
            NodeSays::Flushed {
                transfer,
                file,
                failed,
            } => self.note_brought(Some(node), transfer, &file, failed),
            NodeSays::Leaves => {
                book.leave(node, &mut orders);
                self.note_leaving(node);
            }
            NodeSays::Closed { dag, record } => {
                if let Some(dag) = self.dag_of_run(Path::new(OsStr::from_bytes(&dag))) {
                    node::append_record(&dag, &record);
                }
            }
            NodeSays::Message { dag, task, text } => {
                if let Some(dag) = self.dag_of_run(Path::new(OsStr::from_bytes(&dag))) {
                    let store = Store::make(&dag).and_then(|store| store.task(&task));
                    if let Err(error) = store.and_then(|store| store.set_message(&text)) {
                        tracing::debug!("The message of a task is not kept: {error}");
                    }
                }
            }
        }
        self.send_orders(orders);
    }

    /// Tells all nodes to begin to keep files: the first task has saved its state.
    fn begin_use_of_nodes(&mut self) {
        let on_nodes = &mut self.checkpoints.on_nodes;
        match Settings::find(|name| std::env::var(name).ok()) {
            Ok(settings) => on_nodes.book.set_central(settings.central),
            Err(error) => tracing::error!("Copies of checkpoints go to any node: {error}"),
        }
        let agents = on_nodes.agents.values();
        let orders = agents.map(|rank| (rank.0, MasterSays::Begin)).collect();
        self.send_orders(orders);
    }

    /// Notes that a series is not to be given any more, also for the next master.
    fn withhold(&mut self, (run, task): (&str, &str), series: u64, reason: String) {
        let shown = shown(task);
        tracing::warn!("Task {shown}: checkpoint {series} is not used again: {reason}");
        let stored = self.stored_task(run, task);
        if let Some(Err(error)) = stored.map(|stored| stored.withhold(series, &reason)) {
            tracing::error!("Task {shown}: {error}");
        }
        self.checkpoints.on_nodes.book.withhold(run, task, series, reason);
    }

    /// Lets the next attempt of a task start where its newest series is, if there is room.
    fn note_holders(&mut self, file: &SavedFile) {
        let on_nodes = &self.checkpoints.on_nodes;
        let name = task_name(&file.task).filter(|_| on_nodes.dag_of(&file.run) == Some(&self.options.dag));
        if let Some(task) = name.and_then(|name| self.out.dags.root.dag.find(&name)) {
            let (bytes, nodes) = on_nodes.book.holders(&file.run, &file.task);
            let ranks: Vec<Rank> = nodes.into_iter().map(Rank).collect();
            self.master.note_saved(task, bytes, &ranks);
        }
    }

    /// Sends orders, and has done what is to be done in the stores.
    pub(super) fn send_orders(&mut self, orders: Orders) {
        for (node, order) in orders {
            self.out
                .send_message(Rank(node), ToWorker::Checkpoint(Box::new(order)));
        }
        self.do_store_jobs();
    }

    /// Lets the book have what the store of its DAG has of a task, if it has not.
    fn learn_once(&mut self, run: &str, task: &str) {
        let key = (run.to_owned(), task.to_owned());
        if !self.checkpoints.on_nodes.learnt.contains(&key) {
            self.learn(run, task);
            self.checkpoints.on_nodes.learnt.insert(key);
        }
    }

    /// Lets the book have what the store of its DAG has of a task. Returns these files.
    fn learn(&mut self, run: &str, task: &str) -> Vec<SavedFile> {
        let contents = self.stored_task(run, task).map(|stored| stored.contents());
        let contents = match contents {
            None => return Vec::new(),
            Some(Ok(contents)) => contents,
            Some(Err(error)) => {
                tracing::warn!(
                    "Task {}: what it has saved in the store is not used: {error}",
                    shown(task)
                );
                return Vec::new();
            }
        };
        let book = &mut self.checkpoints.on_nodes.book;
        let files: Vec<SavedFile> = contents.sidecars.iter().map(SavedFile::of).collect();
        files.iter().for_each(|file| book.in_store(file.clone()));
        for (series, reason) in contents.withheld {
            book.withhold(run, task, series, reason);
        }
        files
    }

    /// Returns the path of a DAG file that a node has named, if it is one of this run.
    fn dag_of_run(&mut self, dag: &Path) -> Option<PathBuf> {
        let root = &self.options.dag;
        let mut all = self.out.dags.all().filter_map(|run| run.dag_file());
        (root == dag || all.any(|own| own == dag)).then(|| dag.to_owned())
    }

    /// Opens the stores that the DAGs of the run have.
    fn learn_stores(&mut self) {
        let root = self.options.dag.clone();
        let joined = self
            .out
            .dags
            .all()
            .filter_map(|run| run.dag_file().map(Path::to_owned));
        let dags: Vec<PathBuf> = std::iter::once(root).chain(joined).collect();
        for dag in dags {
            if let Ok(Some(store)) = Store::open(&dag) {
                self.checkpoints.on_nodes.stores.insert(dag, store);
            }
        }
    }

    /// Returns the store of a DAG of the run, which is made if it is missing.
    fn store_of(&mut self, dag: &Path) -> Result<&Store, StoreError> {
        let stores = &mut self.checkpoints.on_nodes.stores;
        if !stores.contains_key(dag) {
            stores.insert(dag.to_owned(), Store::make(dag)?);
        }
        self.checkpoints.are_some = true;
        Ok(&self.checkpoints.on_nodes.stores[dag])
    }

    /// Returns from where an attempt goes on.
    fn give(&mut self, node: NodeId, dag: &Path, task: &[u8], submit: u64) -> Result<Given, String> {
        let dag = self.dag_of_run(dag).ok_or("the run has no such DAG")?;
        let directory = task_directory(task).map_err(|error| error.to_string())?;
        let run = self
            .store_of(&dag)
            .map_err(|error| error.to_string())?
            .id()
            .to_owned();
        let stored = self.learn(&run, &directory);
        if !stored.is_empty()
            && !self.checkpoints.on_nodes.seeing.contains(&node)
            && let Some(store) = self.stored_task(&run, &directory)
        {
            self.serve_store(&store, &stored);
        }
        let book = &mut self.checkpoints.on_nodes.book;
        let (last, series) = book.want(node, (&run, &directory), submit);
        let name = String::from_utf8_lossy(task);
        match &series {
            Some((number, _)) if *number == last => {
                tracing::info!("Task {name} can go on from checkpoint {number}");
            }
            Some((number, _)) => {
                tracing::warn!(
                    "Task {name} goes on from checkpoint {number}: those up to {last} cannot be had"
                );
            }
            None if last > 0 => tracing::warn!("Task {name} has no checkpoint that it can go on from"),
            None => {}
        }
        Ok(Given { run, last, series })
    }

    /// Returns whether a file is that of a task that is done, or of no task of the run.
    fn is_done(&mut self, file: &SavedFile) -> bool {
        let Some(dag) = self.checkpoints.on_nodes.dag_of(&file.run).map(Path::to_owned) else {
            return true;
        };
        let Some(name) = task_name(&file.task) else {
            return true;
        };
        if dag != self.options.dag {
            // A DAG that has ended has no store.
            return !Store::path_for(&dag).exists();
        }
        let task = self.out.dags.root.dag.find(&name);
        task.is_none_or(|task| self.master.is_done(task))
    }

    /// Notes a worker that has registered.
    pub(super) fn note_agent(&mut self, from: Rank, host: &str, is_away: bool) {
        if !self.out.transport.is_dynamic() {
            return;
        }
        let OnNodes {
            agents,
            are_used,
            seeing,
            book,
            ..
        } = &mut self.checkpoints.on_nodes;
        if !is_away {
            seeing.insert(from.0);
            book.note_sight(from.0);
        }
        let known = agents.get(host).copied();
        // The others of its agent follow.
        if known.is_none() {
            agents.insert(host.to_owned(), from);
            book.note_host(from.0, host.to_owned());
            book.await_nodes(agents.len());
            if *are_used {
                self.send_orders(vec![(from.0, MasterSays::Begin)]);
            }
        }
    }

    /// Notes what has become of a node.
    pub(super) fn note_node(&mut self, from: Rank, change: &NodeChange) {
        if let NodeChange::Lost = change {
            let on_nodes = &mut self.checkpoints.on_nodes;
            on_nodes.agents.retain(|_, rank| *rank != from);
            on_nodes.book.await_nodes(on_nodes.agents.len());
            on_nodes.seeing.remove(&from.0);
            on_nodes.flushing.leaving.remove(&from.0);
        }
        let book = &mut self.checkpoints.on_nodes.book;
        if book.is_empty() {
            return;
        }
        let mut orders = Vec::new();
        match change {
            NodeChange::Silent => book.silence(from.0, true, &mut orders),
            NodeChange::Back => book.silence(from.0, false, &mut orders),
            NodeChange::Lost => book.lose(from.0, &mut orders),
            NodeChange::Leaving => book.leave(from.0, &mut orders),
            NodeChange::Cache(_) => {}
        }
        self.send_orders(orders);
    }

    /// Tells nodes what the run says to its tasks.
    pub(super) fn tell_notice_to_nodes(&mut self) {
        let notice = MasterSays::Notice(self.checkpoints.notice.into());
        let nodes = self.checkpoints.on_nodes.book.nodes();
        let orders = nodes.map(|node| (node, notice.clone())).collect();
        self.send_orders(orders);
    }

    /// Has nodes remove what they have of a task that is done.
    pub(super) fn remove_from_nodes(&mut self, dag: &Path, name: &[u8]) {
        let OnNodes {
            book, stores, learnt, ..
        } = &mut self.checkpoints.on_nodes;
        let (Some(store), Ok(task)) = (stores.get(dag), task_directory(name)) else {
            return;
        };
        let mut orders = Vec::new();
        learnt.remove(&(store.id().to_owned(), task.clone()));
        book.done(store.id(), &task, &mut orders);
        self.send_orders(orders);
    }
}

/// Returns the name of the task with a directory, for messages.
pub(super) fn shown(directory: &str) -> String {
    let name = task_name(directory).unwrap_or_default();
    String::from_utf8_lossy(&name).into_owned()
}
