//! The flush: what nodes have saved goes into the stores beside DAG files, so that it survives the run.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use pmc_checkpoint::TaskStore;
use pmc_checkpoint::nodes::{MasterSays, NodeId, SavedFile, StoreJob};
use pmc_system::clock;

use super::checkpoint_store::{Done, StoreServer, StoreThreads, Work};
use super::checkpoints_on_nodes::{OnNodes, shown};
use super::{Aborted, Driver, Run};
use crate::protocol::{Rank, ToMaster, ToWorker};
use crate::transport::MasterTransport;

/// Time between two looks whether nodes that are to end may go.
const LEAVE_INTERVAL: Duration = Duration::from_millis(100);

/// How long the end of a run waits for a flush that does not get on.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a run that must end waits for it at all.
const HURRIED_PATIENCE: Duration = Duration::from_secs(5);

impl<T: MasterTransport> Run<'_, T> {
    /// Begins to flush the newest series of each task: the run is to end.
    pub(super) fn begin_flush(&mut self) {
        if !self.checkpoints.on_nodes.book.is_empty() {
            self.checkpoints.on_nodes.book.flush_all();
            self.do_store_jobs();
        }
    }

    /// Has done what is to be done in the stores.
    pub(super) fn do_store_jobs(&mut self) {
        // What cannot be done may lead to something else.
        loop {
            let jobs = self.checkpoints.on_nodes.book.take_jobs();
            if jobs.is_empty() {
                return;
            }
            jobs.into_iter().for_each(|job| self.do_store_job(job));
        }
    }

    fn do_store_job(&mut self, job: StoreJob) {
        match job {
            StoreJob::Bring {
                by: Some(node),
                transfer,
                file,
                sources,
            } => match self.checkpoints.on_nodes.dag_of(&file.run) {
                Some(dag) => {
                    let dag = dag.as_os_str().as_bytes().to_vec();
                    let order = MasterSays::Flush {
                        dag,
                        transfer,
                        file,
                        sources,
                    };
                    let order = ToWorker::Checkpoint(Box::new(order));
                    self.out.send_message(Rank(node), order);
                }
                None => {
                    let failed = Some("its run has no store".to_owned());
                    self.note_brought(Some(node), transfer, &file, failed);
                }
            },
            StoreJob::Bring {
                by: None,
                transfer,
                file,
                sources,
            } => {
                let work = self.stored_task(&file.run, &file.task).map(|task| Work::Bring {
                    task,
                    transfer,
                    file: file.clone(),
                    sources,
                });
                if !self.give_work(work) {
                    let failed = Some("no thread brings it".to_owned());
                    self.note_brought(None, transfer, &file, failed);
                }
            }
            StoreJob::Accept {
                run,
                task,
                series,
                submit,
            } => {
                let work = self
                    .stored_task(&run, &task)
                    .map(|task| Work::Accept { task, series, submit });
                if !self.give_work(work) {
                    let mut orders = Vec::new();
                    let book = &mut self.checkpoints.on_nodes.book;
                    book.accepted(&run, &task, series, false, &mut orders);
                    self.send_orders(orders);
                }
            }
            StoreJob::Remove { run, task, below } => {
                let work = self.stored_task(&run, &task);
                self.give_work(work.map(|task| Work::Remove { task, below }));
            }
        }
    }

    /// Gives work to the threads. False if that cannot be done.
    fn give_work(&mut self, work: Option<Work>) -> bool {
        let flushing = &mut self.checkpoints.on_nodes.flushing;
        if flushing.threads.is_none() && !flushing.has_no_threads {
            match StoreThreads::start(&self.options.dag, &self.interrupt.waker()) {
                Ok(threads) => flushing.threads = Some(threads),
                Err(error) => {
                    flushing.has_no_threads = true;
                    tracing::error!("Checkpoints on nodes do not go into the store: {error}");
                }
            }
        }
        match (&flushing.threads, work) {
            (Some(threads), Some(work)) => {
                threads.send(work);
                true
            }
            _ => false,
        }
    }

    /// Returns the files of a task in the store of its DAG.
    pub(super) fn stored_task(&self, run: &str, task: &str) -> Option<TaskStore> {
        let mut stores = self.checkpoints.on_nodes.stores.values();
        stores.find(|store| store.id() == run)?.task_in(task)
    }

    /// Notes that a file was brought into a store, or why it was not.
    pub(super) fn note_brought(
        &mut self,
        by: Option<NodeId>,
        transfer: u64,
        file: &SavedFile,
        failed: Option<String>,
    ) {
        let book = &mut self.checkpoints.on_nodes.book;
        let is_given_up = book.brought(by, transfer, file, failed.is_none());
        if let Some(why) = failed {
            let SavedFile { series, prefix, .. } = file;
            let task = shown(&file.task);
            if is_given_up {
                tracing::warn!(
                    "Task {task}: checkpoint {series} does not come into the store, file {prefix}: {why}"
                );
            } else {
                tracing::debug!("Task {task}: a node cannot bring {prefix} of checkpoint {series}: {why}");
            }
        }
    }

    /// Takes what the threads have done, and lets nodes go whose files others have.
    pub(super) fn tend_checkpoints(&mut self) {
        let flushing = &self.checkpoints.on_nodes.flushing;
        let done = flushing
            .threads
            .as_ref()
            .map_or_else(Vec::new, StoreThreads::take);
        for done in done {
            match done {
                Done::Brought {
                    transfer,
                    file,
                    failed,
                } => self.note_brought(None, transfer, &file, failed),
                Done::Accepted {
                    run,
                    task,
                    series,
                    failed,
                } => {
                    match &failed {
                        None => {
                            tracing::debug!("Checkpoint {series} of task {} is in the store", shown(&task))
                        }
                        Some(why) => tracing::warn!(
                            "Task {}: checkpoint {series} does not come into the store: {why}",
                            shown(&task)
                        ),
                    }
                    let mut orders = Vec::new();
                    let book = &mut self.checkpoints.on_nodes.book;
                    book.accepted(&run, &task, series, failed.is_none(), &mut orders);
                    self.send_orders(orders);
                }
            }
        }
        self.do_store_jobs();
        self.let_nodes_go();
    }

    /// When to look again whether nodes may go.
    pub(super) fn next_flush_look(&self) -> Option<Instant> {
        let flushing = &self.checkpoints.on_nodes.flushing;
        flushing.next_look.filter(|_| !flushing.leaving.is_empty())
    }

    /// Notes that a node waits until it may go.
    pub(super) fn note_leaving(&mut self, node: NodeId) {
        self.checkpoints.on_nodes.flushing.leaving.insert(node);
        self.checkpoints.on_nodes.flushing.next_look = None;
        self.let_nodes_go();
    }

    fn let_nodes_go(&mut self) {
        let on_nodes = &mut self.checkpoints.on_nodes;
        let now = clock::now();
        let flushing = &mut on_nodes.flushing;
        if flushing.leaving.is_empty() || flushing.next_look.is_some_and(|at| now < at) {
            return;
        }
        flushing.next_look = now.checked_add(LEAVE_INTERVAL);
        let free = on_nodes.book.free_nodes();
        let known: BTreeSet<NodeId> = on_nodes.book.nodes().collect();
        let waiting = std::mem::take(&mut flushing.leaving);
        let may_go = |node: &NodeId| free.contains(node) || !known.contains(node);
        let (go, stay): (Vec<NodeId>, _) = waiting.into_iter().partition(may_go);
        flushing.leaving = stay.into_iter().collect();
        self.send_orders(go.into_iter().map(|node| (node, MasterSays::MayGo)).collect());
    }

    /// Lets all nodes go, and ends what works in the stores.
    pub(super) fn end_flush(&mut self) {
        // Also those that are about to begin.
        let nodes = self.checkpoints.on_nodes.used_nodes();
        let orders = nodes.into_iter().map(|node| (node, MasterSays::MayGo));
        self.send_orders(orders.collect());
        let flushing = std::mem::take(&mut self.checkpoints.on_nodes.flushing);
        if let Some(threads) = flushing.threads {
            threads.end();
        }
    }

    /// Gives the files of a task in the store to nodes that do not see it.
    pub(super) fn serve_store(&mut self, task: &TaskStore, files: &[SavedFile]) {
        let OnNodes { flushing, book, .. } = &mut self.checkpoints.on_nodes;
        if flushing.server.is_none() {
            match StoreServer::start(&self.options.dag) {
                Ok(server) => {
                    book.serve_store(server.addresses.clone());
                    flushing.server = Some(server);
                }
                Err(error) => {
                    tracing::warn!("Checkpoints in the store are for nodes only that see it: {error}");
                    return;
                }
            }
        }
        if let Some(server) = &flushing.server {
            files.iter().for_each(|file| server.offer(task, file));
        }
    }
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Brings the newest series of tasks that are not done into the store, as long as there is time for it.
    pub(super) fn flush_at_end(&mut self, aborted: Option<&Aborted>) {
        let is_done = self.run.master.summary().success;
        if is_done || self.run.checkpoints.on_nodes.book.is_empty() {
            return self.run.end_flush();
        }
        self.run.begin_flush();
        let begun = clock::now();
        let hurried = begun.checked_add(HURRIED_PATIENCE);
        let drained = self.run.drain.as_ref().and_then(|drain| drain.until);
        let until = match aborted {
            Some(Aborted::Signal(_)) => Some(begun),
            Some(Aborted::WallTime | Aborted::Task { .. }) => hurried,
            Some(Aborted::HeldBack) | None => self.run.time.kill_at().into_iter().chain(drained).min(),
        };
        let (mut progress, mut moved_at) = (0, begun);
        loop {
            self.run.tend_checkpoints();
            self.run.out.send_held();
            let book = &self.run.checkpoints.on_nodes.book;
            let now = clock::now();
            if book.progress() != progress {
                (progress, moved_at) = (book.progress(), now);
            }
            let is_over = until.is_some_and(|until| now >= until) || now >= moved_at + PATIENCE;
            let is_stopped = aborted.is_none() && self.run.interrupt.signal().is_some();
            if book.flushes() == 0 || is_over || is_stopped {
                break;
            }
            self.hear_last(LEAVE_INTERVAL);
        }
        let left: Vec<_> = self.run.checkpoints.on_nodes.book.unflushed().collect();
        if let Some((_, first)) = left.first() {
            tracing::warn!(
                "{} tasks have checkpoints that are only on nodes, {} the first of them: the next run has them \
                 if it gets these nodes again",
                left.len(),
                shown(first)
            );
        }
        self.run.end_flush();
    }

    /// Takes what nodes say of checkpoints. Results are kept for later.
    fn hear_last(&mut self, timeout: Duration) {
        match self.run.out.transport.receive(timeout) {
            Ok(Some((from, ToMaster::Checkpoint(said)))) => self.run.hear_checkpoints(from, *said),
            Ok(Some((from, ToMaster::Node(change)))) => self.run.note_node(from, &change),
            Ok(Some(message)) => self.inbox.push_back(message),
            Ok(None) => {}
            // Nobody can be heard any more: the time passes.
            Err(error) => {
                tracing::debug!("{error}");
                pmc_system::thread::sleep(timeout);
            }
        }
    }
}
