//! What a person, or the batch system, asks for hosts: no more tasks there, others elsewhere, or an end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use nix::sys::signal::Signal;
use pmc_batch::node_states::is_same_host;
use pmc_control::{Answer, MAX_TASKS, NodeStatus, NodeTask};
use pmc_system::clock;

use super::{Driver, Run, RunError};
use crate::protocol::{Rank, SubmitId};
use crate::scheduler::Event;
use crate::transport::MasterTransport;

/// Why an agent is not let in any more whose host was given up.
const GIVEN_UP: &str = "its host was given up (pmc nodes --gone)";

impl<T: MasterTransport> Driver<'_, T> {
    /// Returns the hosts of the run.
    pub(super) fn host_statuses(&mut self) -> Vec<NodeStatus> {
        let mut nodes = self.run.master.node_statuses();
        self.name_tasks(&mut nodes);
        self.bad_hosts.mark(&mut nodes);
        nodes.extend(self.nodes.early_hosts());
        nodes
    }

    /// Says what runs on each host, and since when.
    fn name_tasks(&mut self, nodes: &mut [NodeStatus]) {
        let since_epoch = clock::system_time()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let begin = since_epoch.saturating_sub(clock::elapsed(self.begin.at));
        let mut running: Vec<_> = self.run.master.assignments().collect();
        running.sort_by_key(|(rank, ..)| self.run.master.began(*rank));
        let places: BTreeMap<String, usize> = nodes.iter().map(|node| node.host.clone()).zip(0..).collect();
        for (rank, task, submit) in running {
            let began = self.run.master.began(rank).unwrap_or_default();
            for (_, host) in self.run.master.taking_part(rank, submit) {
                let node = places.get(&host).and_then(|at| nodes.get_mut(*at));
                if let Some(node) = node.filter(|node| node.tasks.len() < MAX_TASKS) {
                    node.tasks.push(NodeTask {
                        task: self.run.out.dags.name(task),
                        start_time: begin.saturating_add(began).as_millis() as f64 / 1e3,
                    });
                }
            }
        }
    }

    pub(super) fn drain_node(&mut self, host: &str) -> Result<Answer, RunError> {
        let ranks = self.run.master.workers_of(host);
        if ranks.is_empty() {
            return Ok(Answer::Refused(format!(
                "no worker of this run is on the host {host}"
            )));
        }
        if !self.run.master.is_dynamic() {
            let reason = "only a run with agents can go on without one of its nodes (--agents)";
            return Ok(Answer::Refused(reason.to_owned()));
        }
        tracing::info!("Asked to drain the node {host}");
        self.retire(&ranks)?;
        Ok(Answer::Done(format!(
            "no more tasks start on {host}; its {} slots leave when their tasks have ended",
            ranks.len()
        )))
    }

    /// Leaves a node alone that the batch system takes out of service.
    pub(super) fn leave_draining_node(&mut self, node: &str) -> Result<(), RunError> {
        if !self.run.master.is_dynamic() || self.drained_nodes.contains(node) {
            return Ok(());
        }
        let nodes = self.run.master.node_statuses();
        let Some(found) = nodes.iter().find(|known| is_same_host(&known.host, node)) else {
            return Ok(());
        };
        let ranks = self.run.master.workers_of(&found.host);
        if !ranks.is_empty() {
            self.drained_nodes.insert(node.to_owned());
            self.run.out.warn(&format!(
                "The batch system drains {node}: no more tasks start there"
            ));
            self.retire(&ranks)?;
        }
        Ok(())
    }

    /// Lets workers leave when their tasks have ended.
    fn retire(&mut self, ranks: &[Rank]) -> Result<(), RunError> {
        for rank in ranks {
            if let Some(membership) = self.run.out.transport.membership_mut() {
                membership.release(*rank);
            }
            self.run.handle(Event::Retire(*rank))?;
        }
        self.run.notify_tasks(Some(ranks), Duration::ZERO);
        Ok(())
    }

    /// Lets only tasks start on hosts that name them, or others again.
    pub(super) fn reserve_nodes(&mut self, hosts: &[String], is_reserved: bool) -> Answer {
        let early = self.nodes.early_hosts();
        let is_known =
            |host: &String| self.run.master.is_host(host) || early.iter().any(|node| node.host == *host);
        if let Some(unknown) = hosts.iter().find(|host| !is_known(host)) {
            return Answer::Refused(format!("no worker of this run is on the host {unknown}"));
        }
        for host in hosts {
            self.run.master.reserve_host(host, is_reserved, &mut self.run.out);
        }
        let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let names = pmc_hosts::compress(&names);
        let verb = if hosts.len() == 1 { "is" } else { "are" };
        if !is_reserved {
            tracing::info!("Asked to start tasks on {names} again");
            return Answer::Done(format!("{names} {verb} not reserved: tasks start there"));
        }
        tracing::info!("Asked to reserve {names}");
        let running: usize = hosts.iter().map(|host| self.run.attempts_on(host).len()).sum();
        let what = match running {
            0 => "no task runs there".to_owned(),
            1 => "the task that runs there goes on".to_owned(),
            running => format!("the {running} tasks that run there go on"),
        };
        Answer::Done(format!(
            "{names} {verb} reserved: only tasks that name it by --on start there; {what}"
        ))
    }

    /// Goes on without a host. Its tasks run elsewhere when its agent has said that they have ended there, or
    /// must have ended them.
    pub(super) fn give_up_node(&mut self, host: &str) -> Result<Answer, RunError> {
        let ranks = self.run.master.workers_of(host);
        if ranks.is_empty() {
            return Ok(Answer::Refused(match self.run.master.is_host(host) {
                true => format!("the host {host} is gone already"),
                false => format!("no worker of this run is on the host {host}"),
            }));
        }
        let Some(membership) = self.run.out.transport.membership_mut() else {
            let reason = "only a run with agents can go on without one of its nodes (--agents)";
            return Ok(Answer::Refused(reason.to_owned()));
        };
        tracing::info!("Asked to give up the host {host}");
        let mut longest = Duration::ZERO;
        for rank in &ranks {
            longest = longest.max(membership.until_lost(*rank).unwrap_or_default());
            membership.dismiss(*rank, GIVEN_UP);
        }
        for rank in &ranks {
            // It may still have tasks. That they have ended is said by what watches its lease.
            self.run.handle(Event::Silent(*rank))?;
        }
        let seconds = longest.as_secs_f64().ceil();
        Ok(Answer::Done(match self.run.attempts_on(host).len() {
            0 => format!("{host} is given up; nothing runs there"),
            _ => format!(
                "{host} is given up; what runs there runs elsewhere as soon as its agent says that it has \
                 ended, in {seconds} s at the latest, when the agent must have ended it"
            ),
        }))
    }
}

impl<T: MasterTransport> Run<'_, T> {
    /// The attempts that run on a host, also those that only have a part of it.
    fn attempts_on(&self, host: &str) -> BTreeSet<(Rank, SubmitId)> {
        let running = self.master.assignments();
        let running = running.map(|(rank, _, submit)| (rank, submit));
        let is_there = |(rank, submit): &(Rank, SubmitId)| {
            let parts = self.master.taking_part(*rank, *submit);
            parts.iter().any(|(_, on)| on == host)
        };
        running.filter(is_there).collect()
    }

    /// Sends a signal to all tasks that run on a host.
    pub(super) fn kill_on_host(&mut self, host: &str, signal: i32) -> Answer {
        if Signal::try_from(signal).is_err() {
            return Answer::Refused(format!("there is no signal {signal}"));
        }
        if self.master.workers_of(host).is_empty() {
            return Answer::Refused(format!("no worker of this run is on the host {host}"));
        }
        let attempts = self.attempts_on(host);
        tracing::info!("Asked to send signal {signal} to the tasks on {host}");
        for (rank, submit) in &attempts {
            self.signal(*rank, *submit, signal);
        }
        Answer::Done(match attempts.len() {
            0 => format!("no task runs on {host}"),
            1 => format!("signal {signal} is sent to the task that runs on {host}"),
            count => format!("signal {signal} is sent to the {count} tasks that run on {host}"),
        })
    }
}
