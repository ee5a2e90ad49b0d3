//! Workers that come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pmc_control::NodeStatus;
use pmc_dag::TaskId;
use pmc_system::clock;
use pmc_system::planted::{Planted, is_planted};

use super::error::Kind;
use super::{Run, RunError};
use crate::protocol::{EarlierAttempt, NodeChange, Rank, Registration, SubmitId, TaskResult, ToMaster};
use crate::scheduler::{Adoption, Event, MasterError};
use crate::transport::{MasterTransport, Membership};

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

impl Nodes {
    /// Keeps a message that came before the start, or before its worker has registered: an agent of an
    /// earlier master first says what its workers ran. Returns the message if it is to be handled now.
    pub(super) fn keep_early<T: MasterTransport>(
        &mut self,
        run: &Run<'_, T>,
        from: Rank,
        message: ToMaster,
    ) -> Option<ToMaster> {
        // A node whose workers have left still says what it has saved.
        let of_node = matches!(message, ToMaster::Checkpoint(_));
        let is_known = self.started && (of_node || run.master.host_of(from).is_some());
        if is_known || !run.out.transport.is_dynamic() {
            return Some(message);
        }
        match message {
            ToMaster::Register(registration) if self.started => {
                return Some(ToMaster::Register(registration));
            }
            ToMaster::Register(registration) => {
                self.early.entry(from).or_default().registration = Some(registration);
            }
            ToMaster::Node(NodeChange::Lost) => {
                self.early.remove(&from);
            }
            ToMaster::Failed { .. } | ToMaster::Terminating => return Some(message),
            message => self.early.entry(from).or_default().messages.push(message),
        }
        None
    }

    /// Takes what a worker has said before it registered.
    pub(super) fn take_kept(&mut self, from: Rank) -> Vec<ToMaster> {
        let kept = self.early.remove(&from);
        kept.map_or_else(Vec::new, |early| early.messages)
    }

    /// True if the first tasks may start.
    pub(super) fn may_start<T: MasterTransport>(&self, run: &Run<'_, T>) -> bool {
        let Some(membership) = run.out.transport.membership() else {
            return run.master.may_start();
        };
        let registered = self.early.values();
        let registered = registered.filter(|early| early.registration.is_some()).count();
        let registered = u32::try_from(registered).unwrap_or(u32::MAX);
        // A DAG without tasks is run by workers, as without agents.
        let summary = run.master.summary();
        let is_done = summary.tasks > 0 && summary.success && !is_planted(Planted::NeedlessAgents);
        let needs_none = is_done && membership.all_have_come(registered);
        needs_none || (registered > 0 && membership.may_start(registered))
    }

    /// Returns the hosts of workers that have come before the start.
    pub(super) fn early_hosts(&self) -> Vec<NodeStatus> {
        let early = self.early.values();
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
                reserved_for: None,
                tasks: Vec::new(),
            };
            let host = hosts.entry(&registration.host).or_insert_with(new);
            host.slots += 1;
            host.away |= registration.away;
        }
        hosts.into_values().collect()
    }

    /// Lets workers that come from now on take part at once. Returns those that have come, and what they have
    /// said since.
    pub(super) fn start(&mut self) -> Vec<(Rank, Registration, Vec<ToMaster>)> {
        self.started = true;
        let mut come = Vec::new();
        for (rank, early) in std::mem::take(&mut self.early) {
            match early.registration {
                Some(registration) => come.push((rank, registration, early.messages)),
                None => drop(self.early.insert(rank, early)),
            }
        }
        come
    }

    /// Returns whether the first tasks may start, as far as workers come and go.
    pub(super) fn has_started(&self) -> bool {
        self.started
    }

    /// Goes on with an attempt that an earlier master started.
    pub(super) fn adopt<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        from: Rank,
        attempt: EarlierAttempt,
    ) -> Result<(), RunError> {
        let submit = attempt.submit;
        let adopted = match run.out.dags.root.dag.find(&attempt.task) {
            None => false,
            Some(task) => {
                let adoption = Adoption {
                    task,
                    submit,
                    cpus: attempt.cpu_set,
                    gpus: attempt.gpu_set,
                };
                match run.master.handle(Event::Adopt(from, adoption), &mut run.out) {
                    Ok(()) => true,
                    Err(MasterError::NotAdopted { .. }) => false,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        if adopted {
            run.notices.note_earlier(submit);
        } else {
            // Usually the dead master had written that the task is done, but the agent does not know it.
            let task = String::from_utf8_lossy(&attempt.task);
            tracing::debug!("Attempt {} of task {task} does not count any more", submit.0);
            self.ignore(from, submit);
        }
        Ok(())
    }

    /// Lets the result of an attempt not count.
    pub(super) fn ignore(&mut self, from: Rank, submit: SubmitId) {
        self.ignored.insert((from, submit));
    }

    /// True if this result does not count for the DAGs of the run. That is asked once.
    pub(super) fn is_ignored(&mut self, from: Rank, result: &TaskResult) -> bool {
        self.ignored.remove(&(from, result.submit))
    }

    /// Looks whether awaited workers have come.
    pub(super) fn check<T: MasterTransport>(&mut self, run: &mut Run<'_, T>) -> Result<(), RunError> {
        let Some(membership) = run.out.transport.membership_mut() else {
            return Ok(());
        };
        let (checked, notices) = (membership.check(), membership.notices());
        for notice in notices {
            run.out.warn(&notice);
        }
        self.next_check = checked?;
        Ok(())
    }

    /// Ends the run if nothing that is left can run on the workers that are there, and no others come.
    pub(super) fn check_stranded<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
    ) -> Result<(), RunError> {
        let Some(task) = run.master.stranded() else {
            self.stranded_since = None;
            return Ok(());
        };
        let name = run.out.dags.name(task);
        let now = clock::now();
        let patience = run.patience();
        if self.stranded_since.is_none() && !patience.is_zero() {
            let why = if let Some((needed, there)) = run.master.nodes_of_gang(task) {
                format!("needs {needed} nodes, {there} are there")
            } else if run.master.lacks_directory(task) {
                "needs the directory of the DAG file, which no host that is there sees".to_owned()
            } else {
                let shortage = run.master.shortage(task);
                let shortage = shortage.map_or(String::new(), |shortage| format!(" ({shortage})"));
                format!("fits on no host that is there{shortage}")
            };
            tracing::warn!("Task {name} {why}: waiting {} s for others", patience.as_secs());
        }
        let since = *self.stranded_since.get_or_insert(now);
        if now.saturating_duration_since(since) < patience {
            let next = since.checked_add(patience);
            self.next_check = self.next_check.into_iter().chain(next).min();
            return Ok(());
        }
        let membership = run.out.transport.membership();
        let gone = membership.map_or_else(Vec::new, Membership::gone_hosts);
        if gone.is_empty() || run.master.is_gang(task) {
            return Err(run.no_host_for(task, name).into());
        }
        let figures = run.master.summary();
        let kind = Kind::Stranded {
            task: name,
            seconds: patience.as_secs(),
            gone: named(&gone),
            left: figures.tasks - figures.done_before - figures.succeeded as usize,
        };
        Err(kind.into())
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// Reports to the scheduler what has become of a worker's agent.
    pub(super) fn note_change(&mut self, from: Rank, change: &NodeChange) -> Result<(), RunError> {
        if let NodeChange::Leaving = change {
            self.notify_tasks(Some(&[from]), Duration::ZERO);
        }
        self.note_node(from, change);
        let event = match change {
            NodeChange::Silent => Event::Silent(from),
            NodeChange::Back => Event::Back(from),
            NodeChange::Leaving => Event::Retire(from),
            NodeChange::Lost => Event::Lost(from),
            NodeChange::Cache(news) => Event::Cache(from, news.clone()),
        };
        match self.master.handle(event, &mut self.out) {
            // Its agent was there, but the worker has not registered.
            Err(MasterError::UnknownRank(_)) => Ok(()),
            handled => Ok(handled?),
        }
    }

    /// How long to wait for other workers if those that are there cannot run what is left.
    fn patience(&self) -> Duration {
        let membership = self.out.transport.membership();
        membership.map_or(Duration::ZERO, |agents| agents.patience(self.master.workers()))
    }

    /// True if workers may come that are not there.
    pub(super) fn may_others_come(&self) -> bool {
        !self.patience().is_zero()
    }

    /// Fails if a task fits on no host, once all workers have come.
    pub(super) fn check_fit(&self) -> Result<(), RunError> {
        if self.may_others_come() {
            return Ok(());
        }
        match self.master.task_without_host() {
            None => Ok(()),
            Some(id) => {
                let task = String::from_utf8_lossy(self.out.dags.root.dag.name(id)).into_owned();
                Err(self.no_host_for(id, task).into())
            }
        }
    }

    /// Says that a task fits on no host.
    fn no_host_for(&self, id: TaskId, task: String) -> MasterError {
        if let Some((needed, there)) = self.master.nodes_of_gang(id) {
            return self.master.too_few_nodes(task, needed, there);
        }
        if self.master.lacks_directory(id) {
            MasterError::NoHostWithDirectory { task }
        } else {
            let shortage = self.master.shortage(id);
            MasterError::NoCapableHost { task, shortage }
        }
    }
}
