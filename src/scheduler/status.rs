//! Hosts and tasks as a person sees them.

use pmc_dag::TaskId;
use pmc_status::{MAX_PARENTS, NodeStatus, TaskStatus};

use crate::protocol::Rank;
use crate::scheduler::nodes::Member;
use crate::scheduler::run::{Master, Phase};
use crate::scheduler::tasks::State;

impl Master {
    /// Returns all hosts, also those that are gone. Linear in hosts and workers.
    #[must_use]
    pub fn node_statuses(&self) -> Vec<NodeStatus> {
        let member = |rank: &Rank| self.slots[rank.0 as usize - 1].member;
        let describe = |(number, host): (u32, &crate::scheduler::hosts::Host)| {
            let holds = |rank: &&Rank| self.running_on(**rank).is_some() || self.gangs.has_part(**rank);
            let busy = host.ranks.iter().filter(holds);
            let has = |wanted: fn(Member) -> bool| host.ranks.iter().map(member).any(wanted);
            let state = if host.ranks.is_empty() {
                "gone"
            } else if self.preparing.contains_key(&number) {
                "preparing"
            } else if has(Member::takes_tasks) {
                if host.named_only { "reserved" } else { "working" }
            } else if has(|member| member == Member::Leaving) {
                "leaving"
            } else {
                "silent"
            };
            let is_there = !host.ranks.is_empty();
            NodeStatus {
                host: host.name.clone(),
                state: state.to_owned(),
                slots: host.ranks.len() as u32,
                busy: busy.count() as u32,
                cpus: host.cpus,
                // Nothing is free on a host that is gone.
                free_cpus: if is_there { host.free_cpus } else { 0 },
                memory_mib: host.memory_mb,
                free_memory_mib: if is_there { host.free_memory_mb } else { 0 },
                away: host.away,
                reserved_for: self.reserved_for(number),
                tasks: Vec::new(),
            }
        };
        (0..).zip(self.hosts.all()).map(describe).collect()
    }

    /// Returns the workers of a host; none if there is no such host.
    pub fn workers_of(&self, host: &str) -> Vec<Rank> {
        let number = self.hosts.number(host);
        number.map_or_else(Vec::new, |number| self.hosts.get(number).ranks.clone())
    }

    /// Returns the host of a worker that has registered at some time.
    pub fn host_of(&self, rank: Rank) -> Option<&str> {
        let slot = self.slots.get((rank.0 as usize).checked_sub(1)?)?;
        (slot.member != Member::Unknown).then(|| self.hosts.get(slot.host).name.as_str())
    }

    /// Returns whether a task is done.
    pub fn is_done(&self, task: TaskId) -> bool {
        self.nodes
            .get(task.index())
            .is_some_and(|node| node.state == State::Done)
    }

    /// Returns whether a task has failed finally.
    pub fn has_failed(&self, task: TaskId) -> bool {
        self.nodes
            .get(task.index())
            .is_some_and(|node| node.state == State::Failed)
    }

    /// Returns what a task does or waits for. Linear in tasks and edges.
    #[must_use]
    pub fn task_status(&self, task: TaskId) -> TaskStatus {
        let node = &self.nodes[task.index()];
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let running = self.assignments().find(|(_, running, _)| *running == task);
        let on = |rank: Rank| self.hosts.get(self.slots[rank.0 as usize - 1].host).name.clone();
        let host = self
            .hosts_of_gang(task)
            .or_else(|| running.map(|(rank, ..)| on(rank)));
        let (dag, local) = self.locate(task);
        let number = |parent: &TaskId| parent.index() + (task.0 - local.0) as usize;
        let is_open = |parent: &TaskId| self.nodes[number(parent)].state != State::Done;
        let parents = match node.state {
            State::Waiting => {
                let children = |parent: &TaskId| dag.children(*parent).contains(&local);
                let parents = dag.ids().filter(is_open).filter(children);
                parents
                    .take(MAX_PARENTS)
                    .map(|parent| text(dag.name(parent)))
                    .collect()
            }
            _ => Vec::new(),
        };
        TaskStatus {
            task: text(dag.name(local)),
            state: node.state.word().to_owned(),
            attempt: (node.submit > 0).then_some(node.submit),
            host,
            parents_left: if node.state == State::Waiting {
                node.parents_left
            } else {
                0
            },
            parents,
            reason: self.reason(task, node.state),
        }
    }

    /// Returns the name of a failed task without which a task that waits cannot run. Linear in tasks and
    /// edges.
    pub fn failed_before(&self, task: TaskId) -> Option<String> {
        let (dag, local) = self.locate(task);
        let base = (task.0 - local.0) as usize;
        let state = |task: TaskId| self.nodes[base + task.index()].state;
        if state(local) != State::Waiting {
            return None;
        }
        let mut is_blocked = vec![false; dag.len()];
        for failed in dag.ids().filter(|task| state(*task) == State::Failed) {
            let mut open = vec![failed];
            while let Some(next) = open.pop() {
                if next == local {
                    return Some(String::from_utf8_lossy(dag.name(failed)).into_owned());
                }
                for child in dag.children(next) {
                    if !std::mem::replace(&mut is_blocked[child.index()], true) {
                        open.push(*child);
                    }
                }
            }
        }
        None
    }

    fn reason(&self, task: TaskId, state: State) -> Option<String> {
        if self.is_withdrawn(task) && matches!(state, State::Waiting | State::Ready) {
            return Some("its workflow drains: no more of its tasks start".to_owned());
        }
        if let Some(failed) = self.failed_before(task) {
            return Some(format!("{failed} has failed: it cannot run any more"));
        }
        if !matches!(state, State::Waiting | State::Ready | State::Queued | State::Late) {
            return None;
        }
        if self.is_stopped() {
            return Some("the run drains: no more tasks start".to_owned());
        }
        if state == State::Waiting {
            return None;
        }
        if state == State::Late {
            return self.lacks_time(task).map(|reason| reason.to_string());
        }
        if self.phase == Phase::Registering || self.present == 0 {
            return Some(match self.is_dynamic() {
                true => "the run waits for agents: none that could take tasks is there".to_owned(),
                false => "the run waits for its workers: too few are there".to_owned(),
            });
        }
        if let Some(reason) = self.reason_of_gang(task) {
            return Some(reason);
        }
        let request = self.request(task);
        let mut able = self.hosts.all().iter().filter(|host| !host.ranks.is_empty());
        if !able.any(|host| host.could_take(request)) {
            return Some(if self.lacks_directory(task) {
                "it needs the directory of the DAG file, which no host that has enough sees".to_owned()
            } else {
                "it requests more than any host of the run has".to_owned()
            });
        }
        if let Some(reason) = self.reserved_by_person(request) {
            return Some(reason);
        }
        if let Some(reason) = self.reserved_instead(request) {
            return Some(reason);
        }
        let (first, reason) = self.waiting()?;
        let (dag, local) = self.locate(first);
        let (own_dag, own) = self.locate(task);
        let name = String::from_utf8_lossy(dag.name(local));
        Some(if first == task {
            reason.to_string()
        } else if dag.priority(local) > own_dag.priority(own) {
            format!("{name} has a higher priority and waits, too: {reason}")
        } else {
            format!("{name} is before it and waits, too: {reason}")
        })
    }
}
