//! PMI-1, by which the ranks of an MPI program find each other: lines in, lines out.
//!
//! Each rank asks its proxy. What ranks *put* is known to all others after the next barrier: then the new
//! pairs of each host go to the front end, and those of all hosts come back.

use std::collections::{BTreeMap, BTreeSet};

use crate::frames::{NameRequest, Pair, PmiEnd};

/// Longest name of a launch, longest key and longest value.
const MAX_NAME: usize = 256;
const MAX_KEY: usize = 256;
const MAX_VALUE: usize = 4096;

/// Longest line.
pub(crate) const MAX_LINE: usize = 16 << 10;

/// Most pairs of a launch.
const MAX_PAIRS: usize = 1 << 24;

/// What all ranks may ask for.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Name of the launch.
    pub(crate) name: String,
    /// Number of all ranks.
    pub(crate) size: u32,
    /// Which ranks share a host.
    pub(crate) mapping: String,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A line for a rank.
    Answer(u32, String),
    /// All ranks of this host are at the barrier: their new pairs.
    Barrier(Vec<Pair>),
    /// A rank ends the program.
    Abort { rank: u32, code: i32 },
    /// A rank asks for a name: the answer comes by [`Server::named`].
    Name { rank: u32, request: NameRequest },
    /// A rank speaks something else: it hears nothing more.
    Drop(u32),
}

/// The side of a proxy.
#[derive(Debug)]
pub(crate) struct Server {
    facts: Facts,
    /// The ranks of this host, and the number of their program.
    programs: BTreeMap<u32, u32>,
    pairs: BTreeMap<String, String>,
    /// What was put since the last barrier.
    fresh: Vec<Pair>,
    at_barrier: BTreeSet<u32>,
    ends: BTreeMap<u32, PmiEnd>,
    /// Ranks that send a command of several lines, and those that have asked for a name.
    in_spawn: BTreeSet<u32>,
    asked: BTreeMap<u32, NameRequest>,
}

/// Words of a line, `key=value`.
fn values(line: &str) -> BTreeMap<&str, &str> {
    line.split_ascii_whitespace()
        .filter_map(|word| word.split_once('='))
        .collect()
}

impl Server {
    /// `programs` are the ranks of this host, with the number of their program.
    pub(crate) fn new(facts: Facts, programs: BTreeMap<u32, u32>) -> Self {
        let mapping = facts.mapping.clone();
        let known = (mapping.len() <= MAX_VALUE).then(|| ("PMI_process_mapping".to_owned(), mapping));
        Self {
            facts,
            programs,
            // A mapping that is too long is left out: libraries then ask each other.
            pairs: known.into_iter().collect(),
            fresh: Vec::new(),
            at_barrier: BTreeSet::new(),
            ends: BTreeMap::new(),
            in_spawn: BTreeSet::new(),
            asked: BTreeMap::new(),
        }
    }

    /// Whether a rank has said that it ends.
    pub(crate) fn end_of(&self, rank: u32) -> PmiEnd {
        self.ends.get(&rank).copied().unwrap_or_default()
    }

    /// Handles a line of a rank.
    pub(crate) fn line(&mut self, rank: u32, line: &str) -> Vec<Action> {
        let line = line.trim();
        if self.in_spawn.contains(&rank) {
            if line != "endcmd" {
                return Vec::new();
            }
            self.in_spawn.remove(&rank);
            return vec![answer(rank, "cmd=spawn_result rc=-1 status=not_supported")];
        }
        if line.starts_with("mcmd=spawn") {
            self.in_spawn.insert(rank);
            return Vec::new();
        }
        let words = values(line);
        let value = |key: &str| words.get(key).copied();
        let Some(command) = value("cmd") else {
            return vec![Action::Drop(rank)];
        };
        let text = match command {
            "init" => {
                self.ends.insert(rank, PmiEnd::Open);
                // The only version there is of the wire protocol that ranks of all libraries speak.
                let is_known = value("pmi_version") == Some("1");
                format!(
                    "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc={}",
                    if is_known { 0 } else { -1 }
                )
            }
            "get_maxes" => {
                format!("cmd=maxes kvsname_max={MAX_NAME} keylen_max={MAX_KEY} vallen_max={MAX_VALUE}")
            }
            "get_appnum" => {
                let program = self.programs.get(&rank).copied().unwrap_or(0);
                format!("cmd=appnum rc=0 appnum={program}")
            }
            "get_my_kvsname" => format!("cmd=my_kvsname rc=0 kvsname={}", self.facts.name),
            "get_universe_size" => format!("cmd=universe_size rc=0 size={}", self.facts.size),
            "put" => self.put(value("key"), value("value")),
            "get" => self.get(value("key")),
            "barrier_in" => return self.enter_barrier(rank),
            "finalize" => {
                self.ends.insert(rank, PmiEnd::Finalized);
                "cmd=finalize_ack rc=0".to_owned()
            }
            "abort" => {
                let code = value("exitcode").and_then(|code| code.parse().ok()).unwrap_or(1);
                return vec![Action::Abort { rank, code }];
            }
            "publish_name" | "unpublish_name" | "lookup_name" => {
                return self.ask_for_name(rank, command, value("service"), value("port"));
            }
            _ => return vec![Action::Drop(rank)],
        };
        vec![answer(rank, &text)]
    }

    fn put(&mut self, key: Option<&str>, value: Option<&str>) -> String {
        let fits = |text: &str, most: usize| !text.is_empty() && text.len() <= most;
        match (key, value) {
            (Some(key), Some(value))
                if fits(key, MAX_KEY) && value.len() <= MAX_VALUE && self.pairs.len() < MAX_PAIRS =>
            {
                let (key, value) = (key.to_owned(), value.to_owned());
                self.pairs.insert(key.clone(), value.clone());
                self.fresh.push(Pair { key, value });
                "cmd=put_result rc=0 msg=success".to_owned()
            }
            _ => "cmd=put_result rc=-1 msg=too_long".to_owned(),
        }
    }

    fn get(&self, key: Option<&str>) -> String {
        match key.and_then(|key| self.pairs.get(key)) {
            Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
            None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".to_owned(),
        }
    }

    fn enter_barrier(&mut self, rank: u32) -> Vec<Action> {
        self.at_barrier.insert(rank);
        match self.at_barrier.len() == self.programs.len() {
            true => vec![Action::Barrier(std::mem::take(&mut self.fresh))],
            false => Vec::new(),
        }
    }

    /// Takes pairs of all hosts.
    pub(crate) fn learn(&mut self, pairs: Vec<Pair>) {
        self.pairs
            .extend(pairs.into_iter().map(|pair| (pair.key, pair.value)));
    }

    /// All ranks are past the barrier.
    pub(crate) fn pass_barrier(&mut self) -> Vec<Action> {
        let ranks = std::mem::take(&mut self.at_barrier);
        ranks
            .into_iter()
            .map(|rank| answer(rank, "cmd=barrier_out rc=0"))
            .collect()
    }

    fn ask_for_name(
        &mut self,
        rank: u32,
        command: &str,
        name: Option<&str>,
        port: Option<&str>,
    ) -> Vec<Action> {
        let name = name.unwrap_or_default().to_owned();
        let request = match command {
            "publish_name" => NameRequest::Publish {
                name,
                port: port.unwrap_or_default().to_owned(),
            },
            "unpublish_name" => NameRequest::Unpublish { name },
            _ => NameRequest::Look { name },
        };
        self.asked.insert(rank, request.clone());
        vec![Action::Name { rank, request }]
    }

    /// What a rank has asked about a name: the port, or `None` if that is not possible.
    pub(crate) fn named(&mut self, rank: u32, port: Option<&str>) -> Vec<Action> {
        let (command, what) = match self.asked.remove(&rank) {
            Some(NameRequest::Publish { .. }) => ("publish_result", None),
            Some(NameRequest::Unpublish { .. }) => ("unpublish_result", None),
            Some(NameRequest::Look { .. }) => ("lookup_result", port),
            None => return Vec::new(),
        };
        let text = match (port, what) {
            (None, _) => format!("cmd={command} info=failed rc=-1 msg=failed"),
            (Some(_), None) => format!("cmd={command} info=ok rc=0 msg=success"),
            (Some(_), Some(port)) => format!("cmd={command} info=ok rc=0 msg=success port={port}"),
        };
        vec![answer(rank, &text)]
    }
}

fn answer(rank: u32, text: &str) -> Action {
    Action::Answer(rank, format!("{text}\n"))
}

/// The names of a launch, as the front end has them. Returns the port, or that it is not possible.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<String, String>);

impl Names {
    /// Handles a request.
    pub(crate) fn handle(&mut self, request: NameRequest) -> Option<String> {
        match request {
            NameRequest::Publish { name, .. } if self.0.contains_key(&name) => None,
            NameRequest::Publish { name, port } => {
                self.0.insert(name, port.clone());
                Some(port)
            }
            NameRequest::Unpublish { name } => self.0.remove(&name),
            NameRequest::Look { name } => self.0.get(&name).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server() -> Server {
        let facts = Facts {
            name: "kvs".to_owned(),
            size: 4,
            mapping: "(vector,(0,2,2))".to_owned(),
        };
        Server::new(facts, [(2, 0), (3, 1)].into())
    }

    fn said(server: &mut Server, rank: u32, line: &str) -> String {
        match server.line(rank, line).as_slice() {
            [Action::Answer(to, text)] if *to == rank => text.trim_end().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_rank_begins_and_ends() {
        let mut server = server();
        assert_eq!(server.end_of(3), PmiEnd::Silent);
        for (line, answer) in [
            (
                "cmd=init pmi_version=1 pmi_subversion=1\n",
                "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            ),
            (
                "cmd=get_maxes",
                "cmd=maxes kvsname_max=256 keylen_max=256 vallen_max=4096",
            ),
            ("cmd=get_appnum", "cmd=appnum rc=0 appnum=1"),
            ("cmd=get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=kvs"),
            ("cmd=get_universe_size", "cmd=universe_size rc=0 size=4"),
            (
                "cmd=get kvsname=kvs key=PMI_process_mapping",
                "cmd=get_result rc=0 msg=success value=(vector,(0,2,2))",
            ),
        ] {
            assert_eq!(said(&mut server, 3, line), answer);
        }
        assert_eq!(server.end_of(3), PmiEnd::Open);
        assert_eq!(said(&mut server, 3, "cmd=finalize"), "cmd=finalize_ack rc=0");
        assert_eq!(server.end_of(3), PmiEnd::Finalized);
    }

    #[test]
    fn pairs_are_known_after_a_barrier() {
        let mut server = server();
        assert_eq!(
            said(&mut server, 2, "cmd=put kvsname=kvs key=a value=b"),
            "cmd=put_result rc=0 msg=success"
        );
        assert_eq!(server.line(2, "cmd=barrier_in"), []);
        let pair = |key: &str, value: &str| Pair {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        assert_eq!(
            server.line(3, "cmd=barrier_in"),
            [Action::Barrier(vec![pair("a", "b")])]
        );
        server.learn(vec![pair("a", "b"), pair("c", "d")]);
        let out = |rank| Action::Answer(rank, "cmd=barrier_out rc=0\n".to_owned());
        assert_eq!(server.pass_barrier(), [out(2), out(3)]);
        assert_eq!(
            said(&mut server, 3, "cmd=get key=c"),
            "cmd=get_result rc=0 msg=success value=d"
        );
        assert!(said(&mut server, 3, "cmd=get key=e").contains("rc=-1"));
        let long = format!("cmd=put key=x value={}", "y".repeat(MAX_VALUE + 1));
        assert!(said(&mut server, 3, &long).contains("rc=-1"));
        // The next barrier begins without pairs.
        server.line(2, "cmd=barrier_in");
        assert_eq!(server.line(3, "cmd=barrier_in"), [Action::Barrier(vec![])]);
    }

    #[test]
    fn processes_are_not_spawned_and_programs_are_aborted() {
        let mut server = server();
        for line in ["mcmd=spawn", "nprocs=2", "execname=x"] {
            assert_eq!(server.line(2, line), []);
        }
        assert!(said(&mut server, 2, "endcmd").starts_with("cmd=spawn_result rc=-1"));
        assert_eq!(
            server.line(2, "cmd=abort exitcode=3"),
            [Action::Abort { rank: 2, code: 3 }]
        );
        assert_eq!(server.line(2, "GET / HTTP/1.1"), [Action::Drop(2)]);
    }

    #[test]
    fn names_are_those_of_the_launch() {
        let (mut server, mut names) = (server(), Names::default());
        let mut ask = |line: &str| {
            let [Action::Name { rank, request }] = &server.line(2, line)[..] else {
                panic!("{line}");
            };
            let port = names.handle(request.clone());
            match &server.named(*rank, port.as_deref())[..] {
                [Action::Answer(2, text)] => text.trim_end().to_owned(),
                other => panic!("{other:?}"),
            }
        };
        assert!(ask("cmd=lookup_name service=s").contains("rc=-1"));
        assert_eq!(
            ask("cmd=publish_name service=s port=p"),
            "cmd=publish_result info=ok rc=0 msg=success"
        );
        assert!(ask("cmd=publish_name service=s port=q").contains("rc=-1"));
        assert_eq!(
            ask("cmd=lookup_name service=s"),
            "cmd=lookup_result info=ok rc=0 msg=success port=p"
        );
        assert!(ask("cmd=unpublish_name service=s").contains("rc=0"));
        assert_eq!(server.named(3, Some("x")), []);
    }

    const LIKE_LINES: &str = "(m?cmd=(init|put|get|barrier_in|abort|spawn|finalize))\
                              ( (key|value|exitcode)=[a-z0-9-]{0,3}){0,3}";

    proptest! {
        #[test]
        fn arbitrary_lines_are_no_panic(lines in prop::collection::vec((0_u32..5, ".*"), 0..20)) {
            let mut server = server();
            for (rank, line) in lines {
                server.line(rank, &line);
            }
        }

        #[test]
        fn lines_like_those_of_ranks_are_no_panic(
            lines in prop::collection::vec((2_u32..4, LIKE_LINES), 0..20),
        ) {
            let mut server = server();
            for (rank, line) in lines {
                server.line(rank, &line);
            }
        }
    }
}
