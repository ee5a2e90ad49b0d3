//! Which nodes have which files, and who waits for one.
//!
//! The first agent that asks for a file has to fetch it from outside of the nodes: the staging site. Those
//! that ask meanwhile wait for it. When it is there, each agent that has it gives it to a few others at a
//! time. They give it on while it is still coming in ([`PeerRequest::Gives`]), and then have it, too. So a
//! file that all nodes want crosses the staging link once, and spreads like a tree.
//!
//! This is a state machine without a clock or a socket. An agent that waits for too long fetches the file
//! itself ([`PeerRequest::Alone`]). Whatever an agent fetches or gives is forgotten when it is silent or
//! lost, and others take its place.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::is_key;

/// Maximum nodes to which one gives an entry at a time. Each node of such a tree sends twice what it gets:
/// with lines of one speed, the file comes to all nodes at half of it, however many they are.
const FAN_OUT: usize = 2;

/// Maximum nodes that give an entry. What further nodes have is not remembered.
const MAX_HOLDERS: usize = 64;

/// Maximum entries. Agents fetch others without the help of the directory.
const MAX_ENTRIES: usize = 1 << 16;

/// Maximum entries for which an agent asks at a time.
const MAX_ASKED: usize = 1 << 10;

/// Maximum addresses of an agent, and bytes of one.
const MAX_ADDRESSES: usize = 8;
const MAX_ADDRESS: usize = 300;

/// Number of an agent.
pub type AgentId = u64;

/// A request of an agent.
type AskId = (AgentId, u64);

/// Answers, in the order in which they are to be sent.
pub type Answers = Vec<(AgentId, PeerAnswer)>;

type Key = Arc<str>;

/// Which agents have which files.
#[derive(Debug, Default)]
pub struct Directory {
    agents: FxHashMap<AgentId, Agent>,
    entries: FxHashMap<Key, Entry>,
}

/// What an agent says to the master about the files of its node. Such messages may get lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerRequest {
    /// The agent begins anew: nothing that it said before holds.
    Begin {
        /// Where it gives entries to others.
        addresses: Vec<String>,
    },
    /// A job needs an entry. The answer may take long.
    Ask {
        /// Number of this request.
        number: u64,
        /// Key of the entry.
        key: String,
    },
    /// The node has an entry.
    Have {
        /// Its key.
        key: String,
        /// Logical name of its file.
        name: String,
        /// Size of its file.
        bytes: u64,
    },
    /// The agent waits no longer: the job fetches the entry itself.
    Alone {
        /// Number of the request.
        number: u64,
    },
    /// The other node has not given the entry. The request goes on.
    Failed {
        /// Number of the request.
        number: u64,
    },
    /// The job has followed its order, or has failed.
    End {
        /// Number of the request.
        number: u64,
        /// The entry has no room in the cache.
        is_too_large: bool,
    },
    /// The entry of this request is coming in, and the agent can give it on meanwhile.
    Gives {
        /// Number of the request.
        number: u64,
    },
}

/// What the master says about the files of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerAnswer {
    /// Where the entry is.
    Source {
        /// Number of the request.
        number: u64,
        /// Addresses of another node that has it. Without one, the job fetches it from the staging site.
        addresses: Vec<String>,
    },
    /// The master has forgotten what the agent has said: it is to begin anew.
    Again,
}

impl PeerAnswer {
    /// The job is to fetch the entry from the staging site.
    #[must_use]
    pub fn fetch(number: u64) -> Self {
        Self::Source {
            number,
            addresses: Vec::new(),
        }
    }
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
    /// Agents that have it.
    holders: Vec<AgentId>,
    /// Who fetches it from the staging site.
    fetcher: Option<AskId>,
    /// Who gets it from which agent.
    gets: FxHashMap<AskId, AgentId>,
    /// To how many each agent gives it now, if to any.
    gives: FxHashMap<AgentId, usize>,
    /// Requests whose agents can give it on while it comes in.
    growing: FxHashMap<AgentId, AskId>,
    /// Those of them that may have a free place, the first ones in front: they are close to a holder.
    free: VecDeque<AgentId>,
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
        if self.growing.get(&ask.0) == Some(&ask) {
            self.growing.remove(&ask.0);
        }
        if let Some(gives) = self.gives.get_mut(&from) {
            *gives -= 1;
            if *gives == 0 {
                self.gives.remove(&from);
            }
        }
        if self.growing.contains_key(&from) && !self.free.contains(&from) {
            self.free.push_back(from);
        }
        Some(from)
    }

    fn given_by(&self, agent: AgentId) -> usize {
        self.gives.get(&agent).copied().unwrap_or_default()
    }

    /// Notes that an agent can give the entry on while it gets it. Not if others get it from this agent: that
    /// is another file, and the agent may get this one from them.
    fn grow(&mut self, ask: AskId) {
        if self.gets.contains_key(&ask) && self.given_by(ask.0) == 0 && !self.growing.contains_key(&ask.0) {
            self.growing.insert(ask.0, ask);
            self.free.push_back(ask.0);
        }
    }

    /// Returns whether an agent that is to give the entry on gets it, over others, from one that has it. An
    /// agent that asks gets it from nobody, so no circle can come about.
    fn is_fed(&self, agent: AgentId) -> bool {
        let mut agent = agent;
        for _ in 0..=self.growing.len() {
            if self.holders.contains(&agent) {
                return true;
            }
            match self.growing.get(&agent).and_then(|ask| self.gets.get(ask)) {
                Some(from) => agent = *from,
                None => return false,
            }
        }
        false
    }

    /// Returns an agent that can give the entry to one more.
    fn source(&mut self) -> Option<AgentId> {
        let holders = self
            .holders
            .iter()
            .map(|holder| (self.given_by(*holder), *holder));
        if let Some((_, holder)) = holders
            .filter(|(gives, _)| *gives < FAN_OUT)
            .min_by_key(|(gives, _)| *gives)
        {
            return Some(holder);
        }
        // Those that get nothing any more, or are full, leave the list.
        while let Some(agent) = self.free.front().copied() {
            if self.given_by(agent) < FAN_OUT && self.is_fed(agent) {
                return Some(agent);
            }
            self.free.pop_front();
        }
        None
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

    /// Lets nobody get the entry from an agent any more.
    fn drop_holder(&mut self, agent: AgentId) {
        self.holders.retain(|holder| *holder != agent);
        self.growing.remove(&agent);
        self.free.retain(|free| *free != agent);
    }

    /// Gives orders to those that wait, as long as there are some.
    fn go_on(&mut self, agents: &FxHashMap<AgentId, Agent>, answers: &mut Answers) {
        while let Some(ask) = self.waiting.front().copied() {
            let source = if let Some(source) = self.source() {
                *self.gives.entry(source).or_default() += 1;
                self.gets.insert(ask, source);
                Some(source)
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

impl Directory {
    /// Takes what an agent says.
    pub fn handle(&mut self, agent: AgentId, request: PeerRequest, answers: &mut Answers) {
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
            PeerRequest::Gives { number } => {
                let gives = self
                    .agents
                    .get(&agent)
                    .is_some_and(|known| !known.addresses.is_empty());
                if let Some(key) = self.key_of((agent, number)).filter(|_| gives) {
                    self.change(&key, answers, |entry| entry.grow((agent, number)));
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
    pub fn forget(&mut self, agent: AgentId, answers: &mut Answers) {
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
        let is_held = |entry: &Entry| entry.holders.iter().any(|holder| *holder != agent);
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
            entry.holders.push(agent);
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
