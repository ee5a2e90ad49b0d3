//! Receives agents and their messages, in the thread of the server.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pmc_link::{Hub, JoinError, Service, SessionId};
use pmc_node_files::directory::{Answers, Directory, PeerAnswer, PeerRequest};
use pmc_system::clock;
use pmc_system::sync::Condvar;
use rustc_hash::FxHashMap;

use super::messages::{self, AgentHello, AgentWelcome, Content};
use super::roster::{Earlier, Roster};
use super::table::{AgentEntry, AgentTable};
use crate::open_files;
use crate::protocol::{NodeChange, Rank, SubmitId, ToMaster};
use crate::transport::combiner::Combiner;
use crate::transport::parts::Arrivals;

/// What an agent is told that is not needed on its host.
pub(crate) const SECOND_AGENT: &str = "This host has an agent of the run already";

/// Maximum slots of an agent.
const MAX_SLOTS: u32 = 10_000;

/// Maximum memory of a host in MB: that of `--host-memory`. Sums over all hosts do not overflow.
const MAX_MEMORY_MB: u64 = u32::MAX as u64;

/// What a newcomer gets to know, and which newcomers there may be.
pub(super) struct Rules {
    /// Without the first rank.
    pub(super) welcome: AgentWelcome,
    /// One launcher starts all agents, also those that are there.
    pub(super) starts_all: bool,
}

/// Passes on what agents say to the thread of the master.
pub(super) struct Reception {
    pub(super) hub: Arc<Hub>,
    pub(super) combiner: Arc<Combiner>,
    pub(super) rules: Rules,
    table: Mutex<AgentTable>,
    roster: Mutex<(Roster, Earlier)>,
    /// What the nodes have in the caches of lite jobs.
    directory: Mutex<Directory>,
    /// Data that has come ahead of its message.
    arrivals: Mutex<AgentArrivals>,
    /// Number of this master among those of the DAG.
    epoch: u64,
    /// No more agents may join.
    is_closed: AtomicBool,
    /// What the user should know.
    notices: Mutex<Vec<String>>,
    /// Wakes the thread that waits for the end of all agents.
    gone: Condvar,
}

impl Reception {
    pub(super) fn new(
        hub: Arc<Hub>,
        combiner: Arc<Combiner>,
        rules: Rules,
        epoch: u64,
        roster: (Roster, Earlier),
        folder: &Path,
    ) -> Self {
        let mut table = AgentTable::default();
        table.reserve(roster.1.last_rank);
        Self {
            hub,
            combiner,
            rules,
            table: Mutex::new(table),
            roster: Mutex::new(roster),
            directory: Mutex::default(),
            arrivals: Mutex::new(AgentArrivals::new(folder)),
            epoch,
            is_closed: AtomicBool::new(false),
            notices: Mutex::default(),
            gone: Condvar::default(),
        }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, AgentTable> {
        // The table is valid at every moment, even if a thread panicked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of agents that are there and answer. If the host of one has another agent, it counts when it
    /// was heard of since.
    pub(super) fn answering(&self) -> usize {
        self.table_without_doubts().answering()
    }

    /// True if an agent may be gone of which nothing was heard since its host has another one.
    pub(super) fn has_doubts(&self) -> bool {
        self.table_without_doubts().has_doubts()
    }

    fn table_without_doubts(&self) -> MutexGuard<'_, AgentTable> {
        let mut table = self.table();
        if table.has_doubts() {
            table.end_doubts(|session, since| self.hub.has_heard(session, since));
        }
        table
    }

    /// Waits until no agent is left, at most `timeout`. Returns the ranks of those that are.
    pub(super) fn wait_gone(&self, timeout: std::time::Duration) -> Vec<Rank> {
        let table = self.table();
        let is_there = |table: &mut AgentTable| table.present().next().is_some();
        let table = self
            .gone
            .wait_timeout_while(&self.table, table, timeout, is_there);
        table
            .present()
            .flat_map(|agent| agent.ranks.clone().map(Rank))
            .collect()
    }

    /// Reports all workers of an agent to the master.
    fn tell(&self, session: SessionId, change: &NodeChange) {
        let ranks = match self.table().get(session) {
            Some(agent) => agent.ranks.clone(),
            None => return,
        };
        for rank in ranks.map(Rank) {
            self.combiner.submit(rank, ToMaster::Node(change.clone()));
        }
    }

    /// Reports to the master what it should know of the cache of a node.
    fn tell_cache(&self, session: SessionId, request: &PeerRequest) {
        let Some(news) = messages::news(request) else {
            return;
        };
        let rank = self.table().get(session).map(|agent| Rank(agent.ranks.start));
        if let Some(rank) = rank {
            let change = NodeChange::Cache(news);
            self.combiner.submit(rank, ToMaster::Node(change));
        }
    }

    /// Changes the directory of caches, and sends the answers that follow from it.
    fn change_directory(&self, change: impl FnOnce(&mut Directory, &mut Answers)) {
        let mut answers = Vec::new();
        let directory = self.directory.lock();
        change(
            &mut directory.unwrap_or_else(PoisonError::into_inner),
            &mut answers,
        );
        for (agent, answer) in answers {
            self.hub.unnumbered(agent, &messages::encode(&answer));
        }
    }

    fn arrivals(&self) -> MutexGuard<'_, AgentArrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of frames that brought this message.
    pub(super) fn frames_of(&self, from: Rank, message: &ToMaster) -> u64 {
        match message {
            ToMaster::Finished(result) => 1 + self.arrivals().take(from, result.submit),
            _ => 1,
        }
    }

    fn roster(&self) -> MutexGuard<'_, (Roster, Earlier)> {
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of agents of an earlier master that have not come back.
    pub(super) fn awaited(&self) -> usize {
        self.roster().1.agents.len()
    }

    /// True if there may be agents of an earlier master that have not come back.
    pub(super) fn awaits_earlier(&self) -> bool {
        let roster = self.roster();
        !roster.1.agents.is_empty() || roster.1.is_incomplete
    }

    /// Numbers of those of them that a master has started.
    pub(super) fn awaited_numbers(&self) -> BTreeSet<u32> {
        self.roster().1.numbers()
    }

    /// Counts the agents of earlier masters that have not come back as lost.
    pub(super) fn forget_earlier(&self) {
        let mut roster = self.roster();
        let earlier = std::mem::take(&mut roster.1);
        for (session, host) in earlier.agents {
            self.notice(format!("The agent on {host} has not come back"));
            note(roster.0.gone(session));
        }
        if earlier.is_incomplete {
            note(roster.0.begin());
        }
    }

    /// Lets no more agents join.
    pub(super) fn close(&self) {
        // Each agent with the table has joined before, or will see this.
        let _table = self.table();
        self.is_closed.store(true, Ordering::Release);
    }

    /// Keeps a message for the user.
    pub(super) fn notice(&self, text: String) {
        self.notice_list().push(text);
    }

    pub(super) fn take_notices(&self) -> Vec<String> {
        std::mem::take(&mut *self.notice_list())
    }

    fn notice_list(&self) -> MutexGuard<'_, Vec<String>> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the list of agents: all have ended.
    pub(super) fn end(&self) {
        self.roster().0.remove();
    }

    /// Gives up an agent that sends what makes no sense: it is lost, and the run goes on without it.
    pub(super) fn dismiss(&self, session: SessionId, reason: &str) {
        let host = match self.table().dismiss(session, reason) {
            Some(agent) => agent.host.clone(),
            None => return,
        };
        self.notice(format!(
            "The agent on {host} takes no part any more: {reason}. Its tasks run again elsewhere"
        ));
        self.hub.dismiss(session);
    }

    fn remove(&self, session: SessionId, how: &str) {
        let host = {
            let mut table = self.table();
            let Some(agent) = table.remove(session) else {
                return;
            };
            agent.host.clone()
        };
        note(self.roster().0.gone((self.epoch, session)));
        self.gone.notify_all();
        self.change_directory(|directory, answers| directory.forget(session, answers));
        tracing::debug!("The agent on {host} {how}");
        self.tell(session, &NodeChange::Lost);
    }
}

impl Reception {
    /// Takes note of what has become of the session that an agent had before.
    fn replace(&self, hello: &AgentHello) -> Result<(), String> {
        let Some((epoch, session)) = hello.before else {
            return Ok(());
        };
        if epoch == self.epoch {
            self.hub.forget(session);
            self.remove(session, "has come anew");
            let table = self.table();
            let reason = table.get(session).and_then(|agent| agent.dismissed.as_ref());
            return reason.map_or(Ok(()), |reason| Err(reason.clone()));
        }
        if hello.first_rank.is_some() && !self.roster().1.agents.contains_key(&(epoch, session)) {
            return Err("The tasks of this agent do not count any more".to_owned());
        }
        Ok(())
    }

    /// Writes that an agent has joined, then that what it was before is gone: the next master must not miss
    /// an agent that may run tasks.
    fn list(&self, session: SessionId, ranks: &Range<u32>, hello: &AgentHello) -> io::Result<()> {
        let mut roster = self.roster();
        roster.0.join(session, ranks, &hello.host, hello.number)?;
        if let Some(before) = hello.before
            && roster.1.remove(before)
        {
            note(roster.0.gone(before));
        }
        Ok(())
    }
}

impl Reception {
    /// True if this host has its agent already: one that was taken for gone has come back, or one launcher
    /// has started agents on all hosts.
    fn is_second(&self, table: &AgentTable, hello: &AgentHello) -> bool {
        let is_new = hello.first_rank.is_none();
        hello.number.is_some_and(|number| table.is_present(number))
            || (is_new && self.rules.starts_all && table.has_taken_over(&hello.host))
    }
}

/// Returns how many of these slots the host of an agent has open files for.
fn fewer_if_needed(hello: &AgentHello, slots: u32) -> u32 {
    // Those of an agent that comes back have their tasks.
    if hello.first_rank.is_some() || slots <= hello.max_slots {
        return slots;
    }
    let fewer = hello.max_slots.max(1);
    open_files::warn_of_fewer(&hello.host, fewer, slots);
    fewer
}

/// Logs that the list of agents cannot be written. The run goes on: the next master waits in vain for an
/// agent that is gone, no longer than the lease.
fn note(written: io::Result<()>) {
    if let Err(error) = written {
        tracing::error!("Unable to write the list of agents: {}", pmc_dag::reason(&error));
    }
}

/// Forwarded data, and the number of parts in which it came.
struct AgentArrivals {
    data: Arrivals,
    /// Parts of messages that have not come.
    parts: FxHashMap<Rank, u64>,
    /// Parts of messages that the master has not handled.
    came: FxHashMap<(Rank, SubmitId), u64>,
}

impl AgentArrivals {
    fn new(folder: &Path) -> Self {
        Self {
            data: Arrivals::new(folder),
            parts: FxHashMap::default(),
            came: FxHashMap::default(),
        }
    }

    fn add(&mut self, rank: Rank, part: &[u8]) {
        *self.parts.entry(rank).or_default() += 1;
        self.data.add(rank, part);
    }

    fn complete(&mut self, rank: Rank, message: &mut ToMaster) {
        self.data.complete(rank, message);
        if let ToMaster::Finished(result) = message
            && let Some(parts) = self.parts.remove(&rank)
        {
            self.came.insert((rank, result.submit), parts);
        }
    }

    fn take(&mut self, rank: Rank, submit: SubmitId) -> u64 {
        if self.came.is_empty() {
            return 0;
        }
        self.came.remove(&(rank, submit)).unwrap_or(0)
    }
}

impl Service for Reception {
    fn join(&self, session: SessionId, hello: &[u8]) -> Result<Vec<u8>, JoinError> {
        let hello: AgentHello =
            messages::decode(hello).ok_or("What the agent says makes no sense: it is another program")?;
        let slots = match self.rules.welcome.slots {
            0 => hello.slots,
            _ if hello.first_rank.is_some() => hello.slots,
            slots => slots,
        };
        if !(1..=MAX_SLOTS).contains(&slots) {
            return Err(format!("An agent can have 1 to {MAX_SLOTS} slots, not {slots}").into());
        }
        let slots = fewer_if_needed(&hello, slots);
        if !pmc_hosts::is_name(&hello.host) {
            return Err("The agent gives a name that no host has (--host-name)".into());
        }
        self.replace(&hello)?;
        let ranks = {
            let mut table = self.table();
            if self.is_closed.load(Ordering::Acquire) {
                return Err("The run has ended".into());
            }
            if self.is_second(&table, &hello) {
                return Err(SECOND_AGENT.into());
            }
            let ranks = table.add(session, &hello, slots);
            let ranks = ranks.ok_or("The ranks of this agent are those of another one")?;
            table.doubt_others(session, clock::now());
            ranks
        };
        if let Err(error) = self.list(session, &ranks, &hello) {
            self.table().take_back(session);
            let reason = pmc_dag::reason(&error);
            tracing::error!(
                "Unable to write the list of agents: {reason}. The agent on {} waits",
                hello.host
            );
            return Err(JoinError::Later(format!(
                "the list of agents cannot be written: {reason}"
            )));
        }
        tracing::debug!(
            "The agent on {} has joined with slots {} to {}",
            hello.host,
            ranks.start,
            ranks.end - 1
        );
        let welcome = AgentWelcome {
            first_rank: ranks.start,
            slots,
            ..self.rules.welcome.clone()
        };
        Ok(messages::encode(&welcome))
    }

    fn joined(&self, _: SessionId) {}

    fn message(&self, session: SessionId, body: &[u8]) {
        let content = messages::addressed(body);
        let Some((rank, content)) = content.filter(|(rank, _)| self.table().has(session, *rank)) else {
            self.dismiss(session, "it sent a message that names none of its slots");
            return;
        };
        let message = match content {
            Content::Part(part) => return self.arrivals().add(rank, part),
            Content::Message(message) => ToMaster::decode(message),
        };
        match message {
            Ok(mut message) => {
                if let ToMaster::Register(registration) = &mut message
                    && let Some(agent) = self.table().get(session)
                {
                    // One agent must not speak for the host of another one.
                    registration.host.clone_from(&agent.host);
                    registration.memory_mb = registration.memory_mb.min(MAX_MEMORY_MB);
                }
                self.arrivals().complete(rank, &mut message);
                self.combiner.submit(rank, message);
            }
            Err(error) => self.dismiss(session, &format!("it sent an invalid message ({error})")),
        }
    }

    fn unnumbered(&self, session: SessionId, body: &[u8]) {
        match messages::decode(body) {
            Some(request) => {
                self.tell_cache(session, &request);
                self.change_directory(|directory, answers| directory.handle(session, request, answers));
            }
            None => tracing::error!("An agent sent a message about caches that makes no sense"),
        }
    }

    fn silent(&self, session: SessionId) {
        self.change_directory(|directory, answers| directory.forget(session, answers));
        let is_missed = |agent: &&AgentEntry| agent.present && agent.dismissed.is_none();
        if let Some(agent) = self.table().set_silent(session, true).filter(is_missed) {
            tracing::warn!("The agent on {} does not answer", agent.host);
        }
        self.tell(session, &NodeChange::Silent);
    }

    fn back(&self, session: SessionId) {
        if let Some(agent) = self.table().set_silent(session, false) {
            tracing::info!("The agent on {} answers again", agent.host);
        }
        self.hub
            .unnumbered(session, &messages::encode(&PeerAnswer::Again));
        self.tell(session, &NodeChange::Back);
    }

    fn lost(&self, session: SessionId) {
        self.remove(session, "is lost");
    }

    fn ended(&self, session: SessionId) {
        self.remove(session, "has ended");
    }
}
