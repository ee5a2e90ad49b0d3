//! What people get to know of gangs.

use std::time::Duration;

use pmc_dag::{Request, TaskId};

use crate::protocol::{Rank, SubmitId};
use crate::scheduler::gangs::choice::spread;
use crate::scheduler::gangs::reservation::Reservation;
use crate::scheduler::hosts::Room;
use crate::scheduler::run::Master;
use crate::scheduler::tasks::State;

impl Master {
    fn name_of(&self, task: TaskId) -> String {
        let (dag, local) = self.locate(task);
        String::from_utf8_lossy(dag.name(local)).into_owned()
    }

    /// The task for which a part of a host is reserved.
    pub(in crate::scheduler) fn reserved_for(&self, host: u32) -> Option<String> {
        let reservation = self.gangs.reservation.as_ref()?;
        let is_part = reservation.parts.iter().any(|(part, _)| *part == host);
        is_part.then(|| self.name_of(reservation.task))
    }

    /// The hosts that a gang holds, as an expression.
    pub(in crate::scheduler) fn hosts_of_gang(&self, task: TaskId) -> Option<String> {
        if self.gangs.hold_nothing() {
            return None;
        }
        let gang = self.gangs.running.values().find(|gang| gang.task == task)?;
        let names = gang
            .parts
            .iter()
            .map(|part| self.hosts.get(part.host).name.as_str());
        Some(pmc_hosts::compress(&names.collect::<Vec<_>>()))
    }

    /// When the latest attempt of a worker began, as [`Master::advance`] counts; `None` if it had none.
    #[must_use]
    pub fn began(&self, rank: Rank) -> Option<Duration> {
        self.gangs.began.get(rank.0 as usize).copied().flatten()
    }

    /// The workers that take part in an attempt of this worker, and their hosts; this one first.
    #[must_use]
    pub fn taking_part(&self, lead: Rank, submit: SubmitId) -> Vec<(u32, String)> {
        let host_of = |rank: Rank| self.host_of(rank).unwrap_or_default().to_owned();
        let gang = self.gangs.running.get(&submit);
        let parts = gang.into_iter().flat_map(|gang| &gang.parts);
        let others = parts.map(|part| part.rank).filter(|rank| *rank != lead);
        let all = std::iter::once(lead).chain(others);
        all.map(|rank| (rank.0, host_of(rank))).collect()
    }

    /// Why a gang waits; `None` for other tasks, and if it is to be queued.
    pub(in crate::scheduler) fn reason_of_gang(&self, task: TaskId) -> Option<String> {
        let (needed, there) = self.nodes_of_gang(task)?;
        if there < needed {
            return Some(format!(
                "it needs {needed} nodes that have what its ranks request, {there} are there"
            ));
        }
        if self.nodes[task.index()].state != State::Queued {
            return None;
        }
        if let Some(names) = self.missed_by_gang(task) {
            return Some(format!(
                "it needs {} at once, and {}",
                hosts(needed),
                of_person(&names)
            ));
        }
        match &self.gangs.reservation {
            Some(kept) if kept.task == task => Some(self.describe_reservation(kept)),
            Some(kept) => Some(format!(
                "it needs {} at once, and {} is before it: parts of hosts are reserved for that",
                hosts(needed),
                self.name_of(kept.task)
            )),
            None => Some(format!(
                "it needs {} at once, which are not free together",
                hosts(needed)
            )),
        }
    }

    /// Returns the hosts that a person has reserved and without which a gang fits on no hosts.
    fn missed_by_gang(&self, task: TaskId) -> Option<Vec<&str>> {
        let chain = self.nodes[task.index()].chain;
        let shape = self.queue.shape(self.queue.shape_of(chain));
        let gang = self.gangs.kind(shape.gang?);
        let mut closed = Vec::new();
        let mut open = self.candidates(gang, shape.request, &[], None);
        open.retain(|candidate| {
            let host = self.hosts.get(candidate.host);
            let is_open = host.is_open_to(gang);
            if !is_open {
                closed.push(host.name.as_str());
            }
            is_open
        });
        closed.sort_unstable();
        let is_missed = !closed.is_empty() && spread(gang.layout, &open, self.most_gang_hosts()).is_none();
        is_missed.then_some(closed)
    }

    /// Says which hosts are free for a gang, and when the others are expected.
    fn describe_reservation(&self, kept: &Reservation) -> String {
        let now = self.now();
        let mut free = Vec::new();
        let mut expected = Vec::new();
        let mut unknown = Vec::new();
        let mut last = Duration::ZERO;
        for (number, part) in &kept.parts {
            let name = self.hosts.get(*number).name.as_str();
            match self.moment(*number, part) {
                moment if moment <= now => free.push(name),
                Duration::MAX => unknown.push(name),
                moment => {
                    last = last.max(moment.saturating_sub(now));
                    expected.push(name);
                }
            }
        }
        for names in [&mut free, &mut expected, &mut unknown] {
            names.sort_unstable();
        }
        let all = hosts(kept.parts.len() as u32);
        let mut parts = Vec::new();
        if !free.is_empty() {
            let verb = if free.len() == 1 { "is" } else { "are" };
            parts.push(format!(
                "{} {verb} free and reserved for it",
                pmc_hosts::compress(&free)
            ));
        }
        if !expected.is_empty() {
            let verb = if expected.len() == 1 { "is" } else { "are" };
            let seconds = last.as_secs_f64().ceil();
            let names = pmc_hosts::compress(&expected);
            parts.push(format!("{names} {verb} expected in {seconds} s"));
        }
        if !unknown.is_empty() {
            let names = pmc_hosts::compress(&unknown);
            parts.push(format!("nobody knows how long tasks on {names} take"));
        }
        format!("it needs {all} at once: {}", parts.join(", "))
    }

    /// Says for whom the hosts are reserved on which a request would fit.
    pub(in crate::scheduler) fn reserved_instead(&self, request: Request) -> Option<String> {
        let kept = self.gangs.reservation.as_ref()?;
        let has_room = |host: u32, room: Room| self.hosts.has_room(host, request, room);
        let fits = |host: &u32| has_room(*host, Room::Free) && !has_room(*host, Room::Unreserved);
        let mut names: Vec<&str> = kept
            .parts
            .iter()
            .map(|(host, _)| *host)
            .filter(|host| fits(host))
            .map(|host| self.hosts.get(host).name.as_str())
            .collect();
        names.sort_unstable();
        (!names.is_empty()).then(|| {
            format!(
                "what is free of {} is reserved for {}, which needs {} at once",
                pmc_hosts::compress(&names),
                self.name_of(kept.task),
                hosts(kept.parts.len() as u32)
            )
        })
    }
}

/// Says that a person has reserved hosts.
pub(in crate::scheduler) fn of_person(names: &[&str]) -> String {
    let verb = if names.len() == 1 { "is" } else { "are" };
    let names = pmc_hosts::compress(names);
    format!("{names} {verb} reserved (pmc nodes --unreserve {names})")
}

fn hosts(count: u32) -> String {
    match count {
        1 => "1 host".to_owned(),
        count => format!("{count} hosts"),
    }
}
