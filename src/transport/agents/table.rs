//! Which agent has which ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

use pmc_link::SessionId;
use rustc_hash::FxHashMap;

use super::messages::AgentHello;
use crate::protocol::Rank;

/// An agent that has joined.
#[derive(Debug)]
pub(super) struct AgentEntry {
    pub(super) host: String,
    pub(super) ranks: Range<u32>,
    /// Its number, if a master has started it.
    number: Option<u32>,
    /// An earlier master has started it, and this one goes on with it.
    is_taken_over: bool,
    /// Neither lost nor ended.
    pub(super) present: bool,
    /// It does not answer.
    pub(super) is_silent: bool,
    /// Why the master takes nothing more from it, if it does not.
    pub(super) dismissed: Option<String>,
}

/// The agents of a run. Ranks are never used twice.
#[derive(Debug, Default)]
pub(super) struct AgentTable {
    agents: BTreeMap<SessionId, AgentEntry>,
    /// The session of rank r is at r - 1; 0 for ranks of an earlier master.
    sessions: Vec<SessionId>,
    /// The last session of each agent that a master has started, by its number.
    numbers: BTreeMap<u32, SessionId>,
    /// Numbers of agents that were asked to go, or dismissed.
    let_go: BTreeSet<u32>,
    /// The agents of each host that are there.
    by_host: FxHashMap<String, Vec<SessionId>>,
    /// Agents that may be gone, because another one has joined on their host since; and when.
    doubted: BTreeMap<SessionId, Instant>,
}

impl AgentTable {
    /// Adds an agent. It gets the next ranks, or keeps its own.
    /// `None` if those are taken.
    pub(super) fn add(&mut self, session: SessionId, hello: &AgentHello, slots: u32) -> Option<Range<u32>> {
        // What an agent keeps was given to it by an earlier master.
        let first_rank = hello.first_rank;
        let first = first_rank;
        let end = first.map(|first| first.saturating_add(slots));
        if end.is_some_and(|end| end > self.last_rank() + 1) || first == Some(0) {
            return None;
        }
        let first = first.unwrap_or(self.last_rank() + 1);
        let ranks = first..first.checked_add(slots)?;
        if ranks.clone().any(|rank| self.session_of(Rank(rank)).is_some()) {
            return None;
        }
        let len = self.sessions.len().max(ranks.end as usize - 1);
        self.sessions.resize(len, 0);
        for rank in ranks.clone() {
            self.sessions[rank as usize - 1] = session;
        }
        self.numbers.extend(hello.number.map(|number| (number, session)));
        let entry = AgentEntry {
            host: hello.host.clone(),
            ranks: ranks.clone(),
            number: hello.number,
            is_taken_over: first_rank.is_some(),
            present: true,
            is_silent: false,
            dismissed: None,
        };
        self.by_host.entry(hello.host.clone()).or_default().push(session);
        self.agents.insert(session, entry);
        Some(ranks)
    }

    /// Doubts whether the other agents are there that are on the host of this one, which has joined now: the
    /// host may have started again. Those of different numbers are meant to be there together.
    pub(super) fn doubt_others(&mut self, session: SessionId, now: Instant) {
        let Some(agent) = self.agents.get(&session) else {
            return;
        };
        let others = self.by_host.get(&agent.host).into_iter().flatten();
        for other in others.filter(|other| **other != session) {
            let number = self.agents.get(other).and_then(|other| other.number);
            if agent.number.is_none() || number.is_none() {
                self.doubted.insert(*other, now);
            }
        }
    }

    /// Doubts those agents no more that were heard of since.
    pub(super) fn end_doubts(&mut self, has_heard: impl Fn(SessionId, Instant) -> bool) {
        self.doubted.retain(|session, since| !has_heard(*session, *since));
    }

    /// True if an agent may be gone that counts as one that is there.
    pub(super) fn has_doubts(&self) -> bool {
        !self.doubted.is_empty()
    }

    /// Forgets that an agent is there.
    fn forget_presence(&mut self, session: SessionId) {
        self.doubted.remove(&session);
        let host = self.agents.get(&session).map(|agent| agent.host.as_str());
        if let Some(here) = host.and_then(|host| self.by_host.get_mut(host)) {
            here.retain(|other| *other != session);
        }
    }

    /// Undoes [`AgentTable::add`]: the agent was not let in. Its ranks are nobody's.
    pub(super) fn take_back(&mut self, session: SessionId) {
        self.forget_presence(session);
        let Some(agent) = self.agents.remove(&session) else {
            return;
        };
        for rank in agent.ranks {
            self.sessions[rank as usize - 1] = 0;
        }
        self.numbers.retain(|_, of| *of != session);
    }

    /// Ranks up to this one were used by an earlier master.
    pub(super) fn reserve(&mut self, ranks: u32) {
        let len = self.sessions.len().max(ranks as usize);
        self.sessions.resize(len, 0);
    }

    pub(super) fn last_rank(&self) -> u32 {
        u32::try_from(self.sessions.len()).unwrap_or(u32::MAX)
    }

    pub(super) fn session_of(&self, rank: Rank) -> Option<SessionId> {
        let session = self.sessions.get((rank.0 as usize).checked_sub(1)?)?;
        Some(*session).filter(|session| *session != 0)
    }

    pub(super) fn get(&self, session: SessionId) -> Option<&AgentEntry> {
        self.agents.get(&session)
    }

    pub(super) fn has(&self, session: SessionId, rank: Rank) -> bool {
        self.session_of(rank) == Some(session)
    }

    /// Notes why an agent is dismissed. Returns it if it was not before.
    pub(super) fn dismiss(&mut self, session: SessionId, reason: &str) -> Option<&AgentEntry> {
        let agent = self.agents.get_mut(&session)?;
        if agent.dismissed.is_some() {
            return None;
        }
        agent.dismissed = Some(reason.to_owned());
        self.let_go.extend(agent.number);
        Some(agent)
    }

    /// Notes that an agent is gone. Returns it if it was there.
    pub(super) fn remove(&mut self, session: SessionId) -> Option<&AgentEntry> {
        self.forget_presence(session);
        let agent = self.agents.get_mut(&session)?;
        std::mem::take(&mut agent.present).then_some(agent)
    }

    /// Notes that an agent is asked to go, and shall not come again.
    pub(super) fn let_go(&mut self, session: SessionId) {
        let number = self.agents.get(&session).and_then(|agent| agent.number);
        self.let_go.extend(number);
    }

    /// True if the agent of this number may come again: it is neither there, nor was it asked to go.
    pub(super) fn may_come_again(&self, number: u32) -> bool {
        !self.let_go.contains(&number) && !self.is_present(number)
    }

    /// True if the agent of this number is there.
    pub(super) fn is_present(&self, number: u32) -> bool {
        let session = self.numbers.get(&number);
        let agent = session.and_then(|session| self.agents.get(session));
        agent.is_some_and(|agent| agent.present)
    }

    /// True if there is an agent on this host that was there before this master.
    pub(super) fn has_taken_over(&self, host: &str) -> bool {
        self.present()
            .any(|agent| agent.is_taken_over && agent.host == host)
    }

    /// True if the agent of this number has ever joined.
    pub(super) fn has_number(&self, number: usize) -> bool {
        u32::try_from(number).is_ok_and(|number| self.numbers.contains_key(&number))
    }

    /// Hosts that had agents and have none any more.
    pub(super) fn gone_hosts(&self) -> Vec<String> {
        let present: BTreeSet<&str> = self.present().map(|agent| agent.host.as_str()).collect();
        let all: BTreeSet<&str> = self.agents.values().map(|agent| agent.host.as_str()).collect();
        all.difference(&present).map(|host| (*host).to_owned()).collect()
    }

    /// Number of agents that have ever joined.
    pub(super) fn joined(&self) -> usize {
        self.agents.len()
    }

    /// Notes whether an agent answers. Returns it.
    pub(super) fn set_silent(&mut self, session: SessionId, is_silent: bool) -> Option<&AgentEntry> {
        let agent = self.agents.get_mut(&session)?;
        agent.is_silent = is_silent;
        Some(agent)
    }

    /// Number of agents that are there and answer, without those that may be gone.
    pub(super) fn answering(&self) -> usize {
        let doubted = self.doubted.keys().filter_map(|session| self.agents.get(session));
        let doubted = doubted.filter(|agent| !agent.is_silent).count();
        self.present().filter(|agent| !agent.is_silent).count() - doubted
    }

    pub(super) fn present(&self) -> impl Iterator<Item = &AgentEntry> {
        self.agents.values().filter(|agent| agent.present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(number: u32) -> AgentHello {
        AgentHello {
            host: "n1".to_owned(),
            slots: 1,
            max_slots: 10,
            number: Some(number),
            before: None,
            first_rank: None,
        }
    }

    #[test]
    fn an_agent_that_is_taken_back_can_come_with_the_same_ranks() {
        let mut table = AgentTable::default();
        table.reserve(4);
        let back = AgentHello {
            first_rank: Some(2),
            ..hello(0)
        };
        assert_eq!(table.add(1, &back, 3), Some(2..5));
        table.take_back(1);
        assert!(!table.is_present(0) && table.joined() == 0 && table.session_of(Rank(3)).is_none());
        assert_eq!(table.add(2, &back, 3), Some(2..5));
    }

    #[test]
    fn an_agent_counts_beside_the_next_one_of_its_host_once_it_is_heard_of() {
        let now = Instant::now();
        let mut table = AgentTable::default();
        let join = |table: &mut AgentTable, session, host: &str, number| {
            let hello = AgentHello {
                host: host.to_owned(),
                number,
                ..hello(0)
            };
            table.add(session, &hello, 1).unwrap();
            table.doubt_others(session, now);
        };
        join(&mut table, 1, "n1", None);
        join(&mut table, 2, "n2", None);
        assert_eq!((table.answering(), table.has_doubts()), (2, false));
        // The host has started again, and nothing says yet that its agent is gone.
        join(&mut table, 3, "n1", None);
        assert_eq!((table.answering(), table.has_doubts()), (2, true));
        table.end_doubts(|_, _| false);
        assert_eq!(table.answering(), 2);
        table.set_silent(1, true);
        assert_eq!(table.answering(), 2, "it counts as missing once");
        table.set_silent(1, false);
        table.end_doubts(|session, since| session == 1 && since == now);
        assert_eq!((table.answering(), table.has_doubts()), (3, false));
        join(&mut table, 4, "n1", None);
        table.remove(1);
        table.remove(3);
        assert_eq!(
            (table.answering(), table.has_doubts()),
            (2, false),
            "they are lost"
        );
        // Those that a master has started on one host are told apart by their numbers.
        join(&mut table, 5, "n3", Some(5));
        join(&mut table, 6, "n3", Some(6));
        assert_eq!((table.answering(), table.has_doubts()), (4, false));
        join(&mut table, 7, "n3", None);
        table.take_back(5);
        assert_eq!((table.answering(), table.has_doubts()), (3, true));
    }

    #[test]
    fn agents_that_are_gone_may_come_again_unless_they_were_asked_to_go() {
        let mut table = AgentTable::default();
        assert!(table.may_come_again(0), "it did not come");
        table.add(1, &hello(0), 1).unwrap();
        assert!(!table.may_come_again(0), "it is there");
        table.remove(1);
        assert!(table.may_come_again(0));
        table.add(2, &hello(0), 1).unwrap();
        table.let_go(2);
        table.remove(2);
        assert!(!table.may_come_again(0), "it was asked to go");
        table.add(3, &hello(1), 1).unwrap();
        table.dismiss(3, "nonsense");
        table.remove(3);
        assert!(!table.may_come_again(1), "it was dismissed");
    }
}
