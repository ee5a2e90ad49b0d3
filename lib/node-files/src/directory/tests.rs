use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const KEY: &str = "a1";

impl Directory {
    /// Checks that the parts agree, and that each agent that waits waits for somebody.
    fn check(&self) {
        for (key, entry) in &self.entries {
            assert!(!entry.is_unknown(), "{key} is of no use");
            let works = entry.fetcher.is_some() || !entry.gets.is_empty();
            assert!(
                entry.waiting.is_empty() || works,
                "nobody works for those that wait for {key}"
            );
            let all = entry
                .waiting
                .iter()
                .chain(&entry.fetcher)
                .chain(entry.gets.keys());
            for (agent, number) in all {
                assert_eq!(self.agents[agent].asked.get(number), Some(key));
            }
            for holder in &entry.holders {
                assert!(self.agents[holder].has.contains(key));
            }
            for from in entry.gets.values().chain(entry.gives.keys()) {
                let gets = entry.gets.values().filter(|other| *other == from).count();
                let gives = entry.given_by(*from);
                assert!(
                    gets == gives && gets <= FAN_OUT,
                    "{from} gives {gives}, {gets} get"
                );
            }
            for (agent, ask) in &entry.growing {
                assert!(ask.0 == *agent && entry.gets.contains_key(ask));
            }
            // Each chain of receivers begins at an agent that has the entry and does not receive it.
            for ask in entry.gets.keys() {
                let (mut at, mut steps) = (*ask, 0);
                while let Some(next) = entry.gets.get(&at).and_then(|from| entry.growing.get(from)) {
                    at = *next;
                    steps += 1;
                    assert!(steps <= entry.gets.len(), "{key} goes round in a circle");
                }
            }
        }
        for agent in self.agents.values() {
            assert!(agent.has.iter().all(|key| self.entries.contains_key(key)));
        }
    }
}

/// A directory whose agents have begun.
fn directory(agents: u64) -> (Directory, Answers) {
    let (mut directory, mut answers) = (Directory::default(), Vec::new());
    for agent in 1..=agents {
        directory.handle(agent, begin(agent), &mut answers);
    }
    (directory, answers)
}

fn begin(agent: u64) -> PeerRequest {
    PeerRequest::Begin {
        addresses: vec![agent.to_string()],
    }
}

fn ask(number: u64) -> PeerRequest {
    ask_for(number, KEY)
}

fn ask_for(number: u64, key: &str) -> PeerRequest {
    let key = key.to_owned();
    PeerRequest::Ask { number, key }
}

fn have() -> PeerRequest {
    have_of(KEY)
}

fn have_of(key: &str) -> PeerRequest {
    PeerRequest::Have {
        key: key.to_owned(),
        name: "f".to_owned(),
        bytes: 1,
    }
}

fn end(number: u64) -> PeerRequest {
    let is_too_large = false;
    PeerRequest::End { number, is_too_large }
}

/// The answer of the request with the number of its agent: where that gets the entry.
fn from(agent: u64, source: Option<u64>) -> (u64, PeerAnswer) {
    let addresses = source.iter().map(u64::to_string).collect();
    (
        agent,
        PeerAnswer::Source {
            number: agent,
            addresses,
        },
    )
}

#[test]
fn one_fetches_and_the_others_get_it_from_those_that_have_it() {
    let (mut directory, mut answers) = directory(12);
    for agent in 1..=12 {
        directory.handle(agent, ask(agent), &mut answers);
        directory.check();
    }
    assert_eq!(std::mem::take(&mut answers), [from(1, None)]);
    directory.handle(1, have(), &mut answers);
    directory.handle(1, end(1), &mut answers);
    assert_eq!(std::mem::take(&mut answers), [from(2, Some(1)), from(3, Some(1))]);
    // The second one has it, too, and both have room for others.
    directory.handle(2, have(), &mut answers);
    directory.handle(2, end(2), &mut answers);
    let second = [from(4, Some(2)), from(5, Some(2)), from(6, Some(1))];
    assert_eq!(std::mem::take(&mut answers), second);
    directory.check();
}

#[test]
fn others_take_the_place_of_an_agent_that_fails_or_is_lost() {
    let (mut directory, mut answers) = directory(4);
    for agent in 1..=3 {
        directory.handle(agent, ask(agent), &mut answers);
    }
    // The job of the first one was killed, and the second agent is lost.
    directory.handle(1, end(1), &mut answers);
    directory.forget(2, &mut answers);
    directory.check();
    assert_eq!(
        std::mem::take(&mut answers),
        [from(1, None), from(2, None), from(3, None)]
    );
    directory.handle(3, have(), &mut answers);
    directory.handle(3, end(3), &mut answers);
    for agent in [1, 4] {
        directory.handle(agent, ask(agent), &mut answers);
    }
    assert_eq!(std::mem::take(&mut answers), [from(1, Some(3)), from(4, Some(3))]);
    // What has the entry is lost while it gives it: one fetches it again, the other one waits.
    directory.forget(3, &mut answers);
    directory.handle(1, PeerRequest::Failed { number: 1 }, &mut answers);
    assert_eq!(answers, []);
    directory.handle(4, PeerRequest::Failed { number: 4 }, &mut answers);
    directory.check();
    assert_eq!(std::mem::take(&mut answers), [from(4, None)]);
    directory.handle(4, have(), &mut answers);
    assert_eq!(std::mem::take(&mut answers), [from(1, Some(4))]);
    // A request that is not known is to end at once.
    directory.handle(4, PeerRequest::Failed { number: 9 }, &mut answers);
    assert_eq!(answers, [(4, PeerAnswer::fetch(9))]);
}

fn gives(number: u64) -> PeerRequest {
    PeerRequest::Gives { number }
}

#[test]
fn a_file_is_given_on_while_it_is_coming_in() {
    let (mut directory, mut answers) = directory(9);
    for agent in 1..=9 {
        directory.handle(agent, ask(agent), &mut answers);
    }
    // The one that fetches it from the staging site does not know how far it is.
    directory.handle(1, gives(1), &mut answers);
    assert_eq!(std::mem::take(&mut answers), [from(1, None)]);
    directory.handle(1, have(), &mut answers);
    directory.handle(1, end(1), &mut answers);
    assert_eq!(std::mem::take(&mut answers), [from(2, Some(1)), from(3, Some(1))]);
    directory.handle(2, gives(2), &mut answers);
    directory.handle(2, gives(2), &mut answers);
    assert_eq!(std::mem::take(&mut answers), [from(4, Some(2)), from(5, Some(2))]);
    // And these give it on in turn.
    directory.handle(4, gives(4), &mut answers);
    assert_eq!(std::mem::take(&mut answers), [from(6, Some(4)), from(7, Some(4))]);
    directory.check();
}

/// Else two nodes could wait for each other.
#[test]
fn nobody_gets_a_file_from_one_that_gets_it_no_more() {
    let (mut directory, mut answers) = directory(8);
    for agent in 1..=7 {
        directory.handle(agent, ask(agent), &mut answers);
    }
    directory.handle(1, have(), &mut answers);
    directory.handle(1, end(1), &mut answers);
    directory.handle(2, gives(2), &mut answers);
    directory.handle(4, gives(4), &mut answers);
    // 6 and 7 get it from 4, that one from 2, and 2 from 1. That one is lost, and 2 says so first.
    directory.forget(1, &mut answers);
    answers.clear();
    directory.handle(2, PeerRequest::Failed { number: 2 }, &mut answers);
    directory.handle(8, ask(8), &mut answers);
    directory.check();
    assert_eq!(answers, [], "4 gives what never comes to its end");
    for agent in [3, 4, 5, 6, 7] {
        directory.handle(agent, PeerRequest::Failed { number: agent }, &mut answers);
    }
    directory.check();
    assert_eq!(
        answers.len(),
        1,
        "one fetches it from the staging site: {answers:?}"
    );
}

/// With two caches on a node, a job may ask for what another one gives: nodes would wait for each other.
#[test]
fn a_node_that_gives_a_file_gives_on_no_other_one_of_its_key() {
    let (mut directory, mut answers) = directory(3);
    for agent in [1, 2] {
        directory.handle(agent, ask(agent), &mut answers);
        directory.handle(agent, have(), &mut answers);
    }
    directory.handle(3, ask(3), &mut answers);
    assert_eq!(answers.last(), Some(&from(3, Some(2))));
    directory.handle(2, ask(22), &mut answers);
    directory.handle(2, gives(22), &mut answers);
    assert!(directory.entries[KEY].growing.is_empty());
    directory.check();
}

fn too_large(number: u64) -> PeerRequest {
    let is_too_large = true;
    PeerRequest::End { number, is_too_large }
}

#[test]
fn nobody_waits_for_a_node_without_room() {
    let (mut directory, mut answers) = directory(5);
    for agent in 1..=3 {
        directory.handle(agent, ask(agent), &mut answers);
    }
    directory.handle(1, too_large(1), &mut answers);
    let fetch =
        |agents: std::ops::RangeInclusive<u64>| agents.map(|agent| from(agent, None)).collect::<Vec<_>>();
    assert_eq!(std::mem::take(&mut answers), fetch(1..=3));
    directory.check();
    // It fetches the entry again, at once. The others wait for a node that may have room.
    directory.handle(1, ask(1), &mut answers);
    directory.handle(4, ask(4), &mut answers);
    assert_eq!(std::mem::take(&mut answers), fetch(1..=1));
    directory.check();
    // A node with more space has kept it, and gives it to those without room, too.
    directory.handle(2, have(), &mut answers);
    directory.handle(1, end(1), &mut answers);
    directory.handle(1, ask(1), &mut answers);
    assert_eq!(std::mem::take(&mut answers), [from(4, Some(2)), from(1, Some(2))]);
    directory.check();
}

#[test]
fn a_node_without_room_says_nothing_about_others() {
    let (mut directory, mut answers) = directory(3);
    directory.handle(1, ask(1), &mut answers);
    directory.handle(1, too_large(1), &mut answers);
    assert!(directory.entries.is_empty(), "the entry is of no use");
    directory.handle(2, ask(2), &mut answers);
    directory.handle(3, ask(3), &mut answers);
    assert_eq!(std::mem::take(&mut answers), [from(1, None), from(2, None)]);
    directory.handle(2, have(), &mut answers);
    assert_eq!(std::mem::take(&mut answers), [from(3, Some(2))]);
    // Its cache has room now.
    directory.handle(1, have(), &mut answers);
    assert!(directory.agents[&1].too_large.is_empty());
    directory.check();
}

#[test]
fn what_is_no_key_or_too_much_is_fetched_without_the_directory() {
    let (mut directory, mut answers) = directory(1);
    for key in ["", "../a", "a/b", &"a".repeat(crate::MAX_KEY + 1)] {
        directory.handle(1, have_of(key), &mut answers);
        directory.handle(1, ask_for(1, key), &mut answers);
        assert_eq!(std::mem::take(&mut answers), [from(1, None)]);
    }
    // An agent that has not begun.
    directory.handle(7, ask(7), &mut answers);
    directory.handle(7, have(), &mut answers);
    assert_eq!(std::mem::take(&mut answers), [from(7, None)]);
    for number in 1..=MAX_ASKED as u64 {
        directory.handle(1, ask_for(number, &format!("k{number}")), &mut answers);
    }
    directory.handle(1, ask_for(0, "more"), &mut answers);
    assert_eq!(answers.len(), MAX_ASKED + 1);
    assert!(!directory.entries.contains_key("more"));
    directory.check();
}

/// A step of an agent.
#[derive(Clone, Debug)]
enum Step {
    Ask(u64, &'static str),
    /// The oldest request with an answer ends in this way.
    Act(u64, u8),
    /// An entry leaves its cache, or has been there all the time.
    Have(u64, &'static str),
    Alone(u64),
    /// What it gets is coming in.
    Gives(u64),
    Lost(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let agent = || 1_u64..=6;
    let key = || prop_oneof![3 => Just("a"), 1 => Just("b")];
    let step = prop_oneof![
        6 => (agent(), key()).prop_map(|(agent, key)| Step::Ask(agent, key)),
        8 => (agent(), any::<u8>()).prop_map(|(agent, how)| Step::Act(agent, how)),
        1 => (agent(), key()).prop_map(|(agent, key)| Step::Have(agent, key)),
        1 => agent().prop_map(Step::Alone),
        4 => agent().prop_map(Step::Gives),
        1 => agent().prop_map(Step::Lost),
    ];
    vec(step, 1..120)
}

/// What agents know.
#[derive(Default)]
struct World {
    directory: Directory,
    /// Requests, by agent and number: the key, and the answer.
    open: std::collections::BTreeMap<AskId, (&'static str, Option<Vec<String>>)>,
    last: u64,
}

impl World {
    fn say(&mut self, agent: u64, request: PeerRequest) {
        let mut answers = Vec::new();
        self.directory.handle(agent, request, &mut answers);
        self.take(answers);
    }

    fn take(&mut self, answers: Answers) {
        for (agent, answer) in answers {
            let PeerAnswer::Source { number, addresses } = answer else {
                panic!("not an answer of the directory");
            };
            let (_, known) = self.open.get_mut(&(agent, number)).expect("somebody has asked");
            assert_eq!(known.replace(addresses), None, "each request has one answer");
        }
        self.directory.check();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask(agent, key) => {
                self.last += 1;
                let number = self.last;
                self.open.insert((agent, number), (key, None));
                self.say(agent, ask_for(number, key));
            }
            Step::Act(agent, how) => {
                let mut answered = self
                    .open
                    .iter()
                    .filter(|((who, _), (_, known))| *who == agent && known.is_some());
                let Some((&(_, number), (key, Some(addresses)))) = answered.next() else {
                    return;
                };
                let (key, is_peer) = ((*key).to_owned(), !addresses.is_empty());
                if is_peer && how % 4 == 0 {
                    self.open.get_mut(&(agent, number)).expect("it is open").1 = None;
                    return self.say(agent, PeerRequest::Failed { number });
                }
                self.open.remove(&(agent, number));
                if how % 4 != 1 {
                    self.say(agent, have_of(&key));
                }
                let is_too_large = how == 1;
                self.say(agent, PeerRequest::End { number, is_too_large });
            }
            Step::Have(agent, key) => {
                self.say(agent, have_of(key));
            }
            Step::Alone(agent) => {
                let mut waiting = self
                    .open
                    .iter_mut()
                    .filter(|((who, _), (_, known))| *who == agent && known.is_none());
                if let Some((&(_, number), (_, known))) = waiting.next() {
                    *known = Some(Vec::new());
                    self.say(agent, PeerRequest::Alone { number });
                }
            }
            Step::Gives(agent) => {
                let getting: Vec<u64> = self
                    .open
                    .keys()
                    .filter(|(who, _)| *who == agent)
                    .map(|ask| ask.1)
                    .collect();
                for number in getting {
                    self.say(agent, PeerRequest::Gives { number });
                }
            }
            Step::Lost(agent) => {
                self.open.retain(|(who, _), _| *who != agent);
                let mut answers = Vec::new();
                self.directory.forget(agent, &mut answers);
                self.take(answers);
                self.say(agent, begin(agent));
            }
        }
    }
}

proptest! {
    #[test]
    fn whoever_asks_gets_an_answer_whatever_becomes_of_the_others(steps in steps()) {
        let mut world = World::default();
        for agent in 1..=6 {
            world.say(agent, begin(agent));
        }
        for step in steps {
            world.step(step);
        }
        // All that have an answer follow their orders, until nobody waits.
        for _ in 0..10_000 {
            let Some(&(agent, _)) = world.open.iter().find(|(_, (_, known))| known.is_some()).map(|(ask, _)| ask) else {
                break;
            };
            world.step(Step::Act(agent, 2));
        }
        prop_assert_eq!(world.open.len(), 0, "nobody is left waiting");
        prop_assert!(world.directory.entries.values().all(|entry| entry.waiting.is_empty()));
    }
}
