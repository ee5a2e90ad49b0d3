//! Workers that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use pmc_control::NodeStatus;
use pmc_dag::TaskId;

use super::error::Kind;
use super::{Driver, RunError, RunEvent};
use crate::protocol::{EarlierAttempt, NodeChange, Rank, Registration, SubmitId, TaskResult, ToMaster};
use crate::scheduler::{Adoption, Event, MasterError};
use crate::transport::MasterTransport;

/// What the loop knows about workers that come and go.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// When to look for awaited workers next.
    pub(super) next_check: Option<Instant>,
    /// Since when nothing that is left fits on a host that is there.
    stranded_since: Option<Instant>,
    /// The first tasks may start: workers that come now take part at once.
    started: bool,
    /// Workers that came before, and what they said since. They register in the order of their ranks.
    early: BTreeMap<Rank, Early>,
    /// Results that do not count: their tasks were done before the run.
    ignored: BTreeSet<(Rank, SubmitId)>,
}

#[derive(Debug, Default)]
struct Early {
    /// Comes after what the worker runs for an earlier master.
    registration: Option<Registration>,
    messages: Vec<ToMaster>,
}

/// Maximum hosts that a message names.
const MAX_NAMED: usize = 10;

/// The first ones of these hosts, and the number of the others.
fn named(hosts: &[String]) -> String {
    let first = hosts.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>();
    match hosts.len().saturating_sub(MAX_NAMED) {
        0 => first.join(", "),
        others => format!("{} and {others} other hosts", first.join(", ")),
    }
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Reports to the scheduler what has become of a worker's agent.
    pub(super) fn note_change(&mut self, from: Rank, change: &NodeChange) -> Result<(), RunError> {
        let event = match change {
            NodeChange::Silent => Event::Silent(from),
            NodeChange::Back => Event::Back(from),
            NodeChange::Leaving => Event::Retire(from),
            NodeChange::Lost => Event::Lost(from),
            NodeChange::Cache(news) => Event::Cache(from, news.clone()),
        };
        if let NodeChange::Lost = change {
            self.subworkflows.note_end(from, None);
        }
        match self.master.handle(event, &mut self.out) {
            // Its agent was there, but the worker has not registered.
            Err(MasterError::UnknownRank(_)) => Ok(()),
            handled => Ok(handled?),
        }
    }

    /// Keeps a message that came before the start, or before its worker has registered: an agent of an
    /// earlier master first says what its workers ran. Returns the message if it is to be handled now.
    pub(super) fn keep_early(&mut self, from: Rank, message: ToMaster) -> Option<ToMaster> {
        let is_known = self.nodes.started && self.master.host_of(from).is_some();
        if is_known || !self.out.transport.is_dynamic() {
            return Some(message);
        }
        match message {
            ToMaster::Register(registration) if self.nodes.started => {
                return Some(ToMaster::Register(registration));
            }
            ToMaster::Register(registration) => {
                self.nodes.early.entry(from).or_default().registration = Some(registration);
            }
            ToMaster::Node(NodeChange::Lost) => {
                self.nodes.early.remove(&from);
            }
            ToMaster::Failed { .. } | ToMaster::Terminating => return Some(message),
            message => self.nodes.early.entry(from).or_default().messages.push(message),
        }
        None
    }

    /// Handles what a worker has said before it registered.
    pub(super) fn handle_kept(&mut self, from: Rank) -> Result<(), RunError> {
        let kept = self.nodes.early.remove(&from);
        for message in kept.into_iter().flat_map(|early| early.messages) {
            self.handle(from, message)?;
        }
        Ok(())
    }

    /// True if the first tasks may start.
    pub(super) fn may_start(&self) -> bool {
        if self.out.transport.is_dynamic() {
            let registered = self.nodes.early.values();
            let registered = registered.filter(|early| early.registration.is_some()).count();
            let registered = u32::try_from(registered).unwrap_or(u32::MAX);
            // A DAG without tasks is run by workers, as without agents.
            let summary = self.master.summary();
            let is_done = summary.tasks > 0 && summary.success;
            let needs_none = is_done && self.out.transport.all_have_come(registered);
            needs_none || (registered > 0 && self.out.transport.may_start(registered))
        } else {
            self.master.may_start()
        }
    }

    /// Returns the hosts of workers that have come before the start.
    pub(super) fn early_hosts(&self) -> Vec<NodeStatus> {
        let early = self.nodes.early.values();
        let mut hosts: BTreeMap<&str, NodeStatus> = BTreeMap::new();
        for registration in early.filter_map(|early| early.registration.as_ref()) {
            let new = || NodeStatus {
                host: registration.host.clone(),
                state: "joined".to_owned(),
                slots: 0,
                busy: 0,
                cpus: registration.threads,
                free_cpus: registration.threads,
                memory_mib: registration.memory_mb,
                free_memory_mib: registration.memory_mb,
                away: false,
            };
            let host = hosts.entry(&registration.host).or_insert_with(new);
            host.slots += 1;
            host.away |= registration.away;
        }
        hosts.into_values().collect()
    }

    /// Begins the run with the workers that have come.
    pub(super) fn start_workers(&mut self) -> Result<(), RunError> {
        self.nodes.started = true;
        let early = std::mem::take(&mut self.nodes.early);
        let mut said = Vec::new();
        for (rank, early) in early {
            let Some(registration) = early.registration else {
                self.nodes.early.insert(rank, early);
                continue;
            };
            self.handle(rank, ToMaster::Register(registration))?;
            said.push((rank, early.messages));
        }
        self.master.start(&mut self.out)?;
        for (rank, messages) in said {
            for message in messages {
                self.handle(rank, message)?;
            }
        }
        self.check_fit()
    }

    /// Goes on with an attempt that an earlier master started.
    pub(super) fn adopt(&mut self, from: Rank, attempt: EarlierAttempt) -> Result<(), RunError> {
        let submit = attempt.submit;
        if attempt.dag.is_some() {
            self.nodes.ignored.insert((from, submit));
            self.kill_earlier(from, attempt);
            return Ok(());
        }
        let adopted = match self.out.root.dag.find(&attempt.task) {
            None => false,
            Some(task) => {
                let adoption = Adoption {
                    task,
                    submit,
                    cpus: attempt.cpu_set,
                    gpus: attempt.gpu_set,
                };
                match self.master.handle(Event::Adopt(from, adoption), &mut self.out) {
                    Ok(()) => true,
                    Err(MasterError::NotAdopted { .. }) => false,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        if !adopted {
            // Usually the dead master had written that the task is done, but the agent does not know it.
            let task = String::from_utf8_lossy(&attempt.task);
            tracing::debug!("Attempt {} of task {task} does not count any more", submit.0);
            self.nodes.ignored.insert((from, submit));
        }
        Ok(())
    }

    /// True if this result does not count for the DAGs of the run.
    pub(super) fn is_ignored(&mut self, from: Rank, result: &TaskResult) -> bool {
        let is_ignored = self.nodes.ignored.remove(&(from, result.submit));
        if is_ignored {
            self.keep_earlier(from, result);
            self.subworkflows.note_end(from, Some(result.submit));
        }
        is_ignored
    }

    /// Looks whether awaited workers have come.
    pub(super) fn check_nodes(&mut self) -> Result<(), RunError> {
        let checked = self.out.transport.check();
        for notice in self.out.transport.notices() {
            tracing::warn!("{notice}");
            (self.out.observer)(&RunEvent::Notice(&notice));
        }
        self.nodes.next_check = checked?;
        Ok(())
    }

    /// Ends the run if nothing that is left can run on the workers that are there, and no others come.
    pub(super) fn check_stranded(&mut self) -> Result<(), RunError> {
        let Some(task) = self.master.stranded() else {
            self.nodes.stranded_since = None;
            return Ok(());
        };
        let name = self.out.name(task);
        let now = Instant::now();
        let patience = self.out.transport.patience(self.master.workers());
        if self.nodes.stranded_since.is_none() && !patience.is_zero() {
            let why = if self.master.lacks_directory(task) {
                "needs the directory of the DAG file, which no host that is there sees".to_owned()
            } else {
                let shortage = self.master.shortage(task);
                let shortage = shortage.map_or(String::new(), |shortage| format!(" ({shortage})"));
                format!("fits on no host that is there{shortage}")
            };
            tracing::warn!("Task {name} {why}: waiting {} s for others", patience.as_secs());
        }
        let since = *self.nodes.stranded_since.get_or_insert(now);
        if now.saturating_duration_since(since) < patience {
            let next = since.checked_add(patience);
            self.nodes.next_check = self.nodes.next_check.into_iter().chain(next).min();
            return Ok(());
        }
        let gone = self.out.transport.gone_hosts();
        if gone.is_empty() {
            return Err(self.no_host_for(task, name).into());
        }
        let figures = self.master.summary();
        let kind = Kind::Stranded {
            task: name,
            seconds: patience.as_secs(),
            gone: named(&gone),
            left: figures.tasks - figures.done_before - figures.succeeded as usize,
        };
        Err(kind.into())
    }

    /// Fails if a task fits on no host, once all workers have come.
    pub(super) fn check_fit(&self) -> Result<(), RunError> {
        if !self.out.transport.is_dynamic() || !self.out.transport.patience(self.master.workers()).is_zero() {
            return Ok(());
        }
        match self.master.task_without_host() {
            None => Ok(()),
            Some(id) => {
                let task = String::from_utf8_lossy(self.out.root.dag.name(id)).into_owned();
                Err(self.no_host_for(id, task).into())
            }
        }
    }

    /// Says that a task fits on no host.
    fn no_host_for(&self, id: TaskId, task: String) -> MasterError {
        if self.master.lacks_directory(id) {
            MasterError::NoHostWithDirectory { task }
        } else {
            let shortage = self.master.shortage(id);
            MasterError::NoCapableHost { task, shortage }
        }
    }
}
