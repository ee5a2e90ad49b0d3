//! Which nodes have which entries of the caches of lite jobs, and who waits for one.
//!
//! The first agent that asks for an entry has to fetch it from the staging site. Those that ask
//! meanwhile wait for it. When it is there, each agent that has it gives it to a few others at a time, which
//! then have it, too. So a file that all nodes want crosses the staging link once, and spreads like a tree.
//!
//! This is a state machine without a clock or a socket. An agent that waits for too long fetches the file
//! itself ([`PeerRequest::Alone`]). Whatever an agent fetches or gives is forgotten when it is silent or
//! lost, and others take its place.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::messages::{PeerAnswer, PeerRequest};

/// Maximum nodes to which one gives an entry at a time.
const FAN_OUT: usize = 4;

/// Maximum nodes that give an entry. What further nodes have is not remembered.
const MAX_HOLDERS: usize = 64;

/// Maximum entries. Agents fetch others without the help of the directory.
const MAX_ENTRIES: usize = 1 << 16;

/// Maximum entries for which an agent asks at a time.
const MAX_ASKED: usize = 1 << 10;

/// Maximum addresses of an agent, and bytes of one.
const MAX_ADDRESSES: usize = 8;
const MAX_ADDRESS: usize = 300;

/// Maximum length of a key.
const MAX_KEY: usize = 64;

/// Number of an agent.
type AgentId = u64;

/// A request of an agent.
type AskId = (AgentId, u64);

/// Answers, in the order in which they are to be sent.
pub(super) type Answers = Vec<(AgentId, PeerAnswer)>;

type Key = Arc<str>;

#[derive(Debug, Default)]
pub(super) struct Directory {
    agents: FxHashMap<AgentId, Agent>,
    entries: FxHashMap<Key, Entry>,
}

#[derive(Debug, Default)]
struct Agent {
    /// Where it gives entries to others, in the order in which they should try.
    addresses: Vec<String>,
    /// What it asks for, waits for, or gets, by the numbers of its requests.
    asked: FxHashMap<u64, Key>,
    has: FxHashSet<Key>,
    /// Entries that had no room in its cache. Nobody waits until it has fetched one of them.
    too_large: FxHashSet<Key>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Agents that have it, and to how many each one gives it now.
    holders: Vec<(AgentId, usize)>,
    /// Who fetches it from the staging site.
    fetcher: Option<AskId>,
    /// Who gets it from which agent.
    gets: FxHashMap<AskId, AgentId>,
    waiting: VecDeque<AskId>,
}

impl Entry {
    fn is_unknown(&self) -> bool {
        self.holders.is_empty() && self.fetcher.is_none() && self.gets.is_empty() && self.waiting.is_empty()
    }

    /// Ends the order of an agent, or its waiting. Returns from whom it got the entry.
    fn end(&mut self, ask: AskId) -> Option<AgentId> {
        self.waiting.retain(|waiting| *waiting != ask);
        self.fetcher.take_if(|fetcher| *fetcher == ask);
        let from = self.gets.remove(&ask)?;
        if let Some((_, gives)) = self.holders.iter_mut().find(|(holder, _)| *holder == from) {
            *gives = gives.saturating_sub(1);
        }
        Some(from)
    }

    /// Ends a request whose agent has no room for the entry. Returns those that are to fetch it now: they
    /// have waited for this one, and would wait in vain again on a cluster whose nodes are all alike. The
    /// first of them is the one that later ones wait for.
    fn end_without_room(&mut self, ask: AskId) -> VecDeque<AskId> {
        let is_fetcher = self.fetcher == Some(ask);
        self.end(ask);
        if !is_fetcher || !self.holders.is_empty() {
            return VecDeque::new();
        }
        self.fetcher = self.waiting.front().copied();
        std::mem::take(&mut self.waiting)
    }

    fn drop_holder(&mut self, agent: AgentId) {
        self.holders.retain(|(holder, _)| *holder != agent);
    }

    /// Gives orders to those that wait, as long as there are some.
    fn go_on(&mut self, agents: &FxHashMap<AgentId, Agent>, answers: &mut Answers) {
        while let Some(ask) = self.waiting.front().copied() {
            let free = self.holders.iter_mut().filter(|(_, gives)| *gives < FAN_OUT);
            let source = if let Some((holder, gives)) = free.min_by_key(|(_, gives)| *gives) {
                *gives += 1;
                self.gets.insert(ask, *holder);
                Some(*holder)
            } else if self.holders.is_empty() && self.fetcher.is_none() && self.gets.is_empty() {
                self.fetcher = Some(ask);
                None
            } else {
                return;
            };
            self.waiting.pop_front();
            let addresses = source.and_then(|source| agents.get(&source));
            let addresses = addresses.map_or_else(Vec::new, |agent| agent.addresses.clone());
            let number = ask.1;
            answers.push((ask.0, PeerAnswer::Source { number, addresses }));
        }
    }
}

/// Returns whether a text may be a key: nobody can make others open a path with it.
fn is_key(text: &str) -> bool {
    (1..=MAX_KEY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

impl Directory {
    /// Takes what an agent says.
    pub(super) fn handle(&mut self, agent: AgentId, request: PeerRequest, answers: &mut Answers) {
        match request {
            PeerRequest::Begin { mut addresses } => {
                self.forget(agent, answers);
                addresses.retain(|address| address.len() <= MAX_ADDRESS);
                addresses.truncate(MAX_ADDRESSES);
                self.agents.entry(agent).or_default().addresses = addresses;
            }
            PeerRequest::Ask { number, key } => self.ask((agent, number), &key, answers),
            PeerRequest::Have { key, .. } => self.have(agent, &key, answers),
            PeerRequest::Alone { number } => {
                if let Some(key) = self.key_of((agent, number)) {
                    self.change(&key, answers, |entry| {
                        entry.end((agent, number));
                        // Those that wait on wait for this one, unless there is another one already.
                        entry.fetcher.get_or_insert((agent, number));
                    });
                }
            }
            PeerRequest::Failed { number } => {
                if !self.failed((agent, number), answers) {
                    answers.push((agent, PeerAnswer::fetch(number)));
                }
            }
            PeerRequest::End { number, is_too_large } => {
                let Some(known) = self.agents.get_mut(&agent) else {
                    return;
                };
                let Some(key) = known.asked.remove(&number) else {
                    return;
                };
                if !is_too_large {
                    self.change(&key, answers, |entry| {
                        entry.end((agent, number));
                    });
                    return;
                }
                if known.too_large.len() < MAX_ENTRIES {
                    known.too_large.insert(Arc::clone(&key));
                }
                let mut alone = VecDeque::new();
                self.change(&key, answers, |entry| {
                    alone = entry.end_without_room((agent, number));
                });
                answers.extend(
                    alone
                        .into_iter()
                        .map(|(agent, number)| (agent, PeerAnswer::fetch(number))),
                );
            }
        }
    }

    /// Forgets an agent: it is silent, or lost. Others take its place.
    pub(super) fn forget(&mut self, agent: AgentId, answers: &mut Answers) {
        let Some(known) = self.agents.remove(&agent) else {
            return;
        };
        // First all of it: no request of this agent shall take the place of another one.
        for (number, key) in &known.asked {
            if let Some(entry) = self.entries.get_mut(key) {
                entry.end((agent, *number));
            }
        }
        for key in &known.has {
            self.change(key, answers, |entry| entry.drop_holder(agent));
        }
        for key in known.asked.values() {
            self.change(key, answers, |_| {});
        }
    }

    /// Takes the entry from the agent that did not give it, and lets the other one ask again. Returns false
    /// if that one has no order to get it.
    fn failed(&mut self, ask: AskId, answers: &mut Answers) -> bool {
        let Some(key) = self.key_of(ask) else { return false };
        let from = self.entries.get_mut(&key).and_then(|entry| {
            let from = entry.gets.contains_key(&ask).then(|| entry.end(ask))??;
            entry.drop_holder(from);
            entry.waiting.push_front(ask);
            Some(from)
        });
        if let Some(from) = from.and_then(|from| self.agents.get_mut(&from)) {
            from.has.remove(&key);
        }
        self.change(&key, answers, |_| {});
        from.is_some()
    }

    fn key_of(&self, (agent, number): AskId) -> Option<Key> {
        self.agents.get(&agent)?.asked.get(&number).cloned()
    }

    fn ask(&mut self, ask: AskId, key: &str, answers: &mut Answers) {
        let (agent, number) = ask;
        let has_room = self.entries.len() < MAX_ENTRIES || self.entries.contains_key(key);
        let known = self.agents.get_mut(&agent);
        let known = known.filter(|known| {
            has_room && is_key(key) && known.asked.len() < MAX_ASKED && !known.asked.contains_key(&number)
        });
        let Some(known) = known else {
            answers.push((agent, PeerAnswer::fetch(number)));
            return;
        };
        let key = match self.entries.get_key_value(key) {
            Some((key, _)) => Arc::clone(key),
            None => Arc::from(key),
        };
        known.asked.insert(number, Arc::clone(&key));
        // It has the entry no more, or in another directory.
        let had = known.has.remove(&key);
        let fits = !known.too_large.contains(&key);
        let is_held = |entry: &Entry| entry.holders.iter().any(|(holder, _)| *holder != agent);
        if !fits && !self.entries.get(&key).is_some_and(is_held) {
            self.change(&key, answers, |entry| entry.drop_holder(agent));
            answers.push((agent, PeerAnswer::fetch(number)));
            return;
        }
        self.entries.entry(Arc::clone(&key)).or_default();
        self.change(&key, answers, |entry| {
            if had {
                entry.drop_holder(agent);
            }
            entry.waiting.push_back(ask);
        });
    }

    fn have(&mut self, agent: AgentId, key: &str, answers: &mut Answers) {
        if !is_key(key) || (self.entries.len() >= MAX_ENTRIES && !self.entries.contains_key(key)) {
            return;
        }
        let Some(known) = self.agents.get_mut(&agent) else {
            return;
        };
        let key = match self.entries.get_key_value(key) {
            Some((key, _)) => Arc::clone(key),
            None => Arc::from(key),
        };
        known.too_large.remove(&key);
        let entry = self.entries.entry(Arc::clone(&key)).or_default();
        let has_room = entry.holders.len() < MAX_HOLDERS && !known.addresses.is_empty();
        if has_room && known.has.insert(Arc::clone(&key)) {
            // It may have had the entry before, and still be giving it.
            let gives = entry.gets.values().filter(|from| **from == agent).count();
            entry.holders.push((agent, gives));
        }
        self.change(&key, answers, |_| {});
    }

    /// Changes an entry, and gives orders to those that wait for it.
    fn change(&mut self, key: &Key, answers: &mut Answers, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        change(entry);
        entry.go_on(&self.agents, answers);
        if entry.is_unknown() {
            self.entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
