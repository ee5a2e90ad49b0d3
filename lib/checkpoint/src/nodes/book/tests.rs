//! The book, and a model of nodes that do what it orders.

mod flushes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::Sidecar;

fn file(series: u64, submit: u64, rank: u32, ranks: u32) -> SavedFile {
    let prefix = Prefix::try_from("p").unwrap();
    SavedFile::of(&Sidecar {
        series,
        submit,
        rank,
        ranks,
        bytes: 10,
        ..Sidecar::new("r".to_owned(), "t".to_owned(), prefix)
    })
}

fn address(node: NodeId) -> Vec<String> {
    vec![format!("n{node}:1")]
}

fn begun(nodes: &[NodeId]) -> Book {
    let mut book = Book::default();
    let mut orders = Vec::new();
    nodes
        .iter()
        .for_each(|node| book.begin(*node, address(*node), &mut orders));
    assert_eq!(orders, []);
    book
}

#[test]
fn a_file_gets_a_second_place_and_is_given_from_there() {
    let mut book = begun(&[1, 2, 3]);
    let mut orders = Vec::new();
    assert_eq!(book.want(1, ("r", "t"), 7), (0, None));
    book.has(1, file(1, 7, 0, 1), &mut orders);
    let copy = MasterSays::Copy {
        file: file(1, 7, 0, 1),
        sources: vec![address(1)],
    };
    assert_eq!(orders, [(2, copy)]);
    orders.clear();
    book.has(2, file(1, 7, 0, 1), &mut orders);
    let safe = || MasterSays::Safe {
        run: "r".to_owned(),
        task: "t".to_owned(),
        series: 1,
    };
    assert_eq!(orders, [(1, safe()), (2, safe())]);
    orders.clear();
    // The node is lost: the other one has the file, and a third one gets it.
    book.lose(1, &mut orders);
    assert!(
        matches!(&orders[..], [(3, MasterSays::Copy { .. })]),
        "{orders:?}"
    );
    let (last, series) = book.want(3, ("r", "t"), 9);
    let given = GivenFile {
        file: file(1, 7, 0, 1),
        is_here: false,
        sources: vec![address(2)],
    };
    assert_eq!((last, series), (1, Some((1, vec![given]))));
    // What is done is removed, also what is still coming.
    orders.clear();
    book.done("r", "t", &mut orders);
    let told: Vec<NodeId> = orders.iter().map(|(node, _)| *node).collect();
    assert_eq!(told, [2, 3]);
    assert_eq!(book.want(3, ("r", "t"), 9), (0, None));
}

#[test]
fn nodes_are_not_asked_for_ever_for_a_file_that_none_can_get() {
    let mut book = begun(&[1, 2, 3]);
    let mut orders = Vec::new();
    book.has(1, file(1, 7, 0, 1), &mut orders);
    let mut asked = 0;
    while let Some((node, MasterSays::Copy { file, .. })) = orders.pop() {
        asked += 1;
        assert!(asked < 100, "{asked}");
        book.has_not(node, &file, &mut orders);
    }
    assert_eq!(asked, MAX_FAILURES);
    // The store holds it, as no node can.
    assert_eq!(book.flushes(), 1);
    // Another node can do it, perhaps.
    book.begin(4, address(4), &mut orders);
    let is_copy =
        |(node, order): &(NodeId, MasterSays)| *node == 4 && matches!(order, MasterSays::Copy { .. });
    assert!(orders.iter().any(is_copy), "{orders:?}");
}

#[test]
fn copies_go_where_the_user_has_chosen() {
    // Who gets the copy of a file on a node, without and with the others of the list.
    let receiver = |central: &str, from: NodeId, others: &[NodeId]| {
        let mut book = Book::default();
        let mut orders = Vec::new();
        book.set_central(Some(central.parse().unwrap()));
        for node in others.iter().copied().chain([from]) {
            book.begin(node, address(node), &mut orders);
            book.note_host(node, format!("n{node}"));
        }
        book.has(from, file(1, 7, 0, 1), &mut orders);
        let copies = orders.iter().filter_map(|(node, order)| match order {
            MasterSays::Copy { .. } => Some(*node),
            _ => None,
        });
        copies.collect::<Vec<_>>()
    };
    assert_eq!(receiver("{partner}", 1, &[2, 3, 4]), [2]);
    assert_eq!(receiver("n[3-4]:/a", 1, &[2, 3, 4]), [4]);
    assert_eq!(receiver("n[3-4]:/a", 2, &[1, 3, 4]), [3]);
    // A member of the list has its own files: the partner comes first.
    assert_eq!(receiver("n[1-4](n+1):/a", 3, &[1, 2, 4]), [4]);
    // None of the list is there.
    assert_eq!(receiver("n[7-8]:/a", 1, &[2, 3]), [2]);
    assert!(receiver("{shared}", 1, &[2, 3]).is_empty());
}

#[test]
fn each_series_is_flushed_if_the_store_is_the_place_of_copies() {
    let mut book = begun(&[1, 2]);
    let mut orders = Vec::new();
    book.set_central(Some("{shared}".parse().unwrap()));
    book.note_sight(1);
    for series in 1..=3 {
        book.has(1, file(series, 7, 0, 1), &mut orders);
        assert_eq!(book.take_jobs(), [bring(Some(1), series, series, None)]);
        book.brought(Some(1), series, &file(series, 7, 0, 1), true);
        assert_eq!(book.take_jobs(), [accept(series)]);
        book.accepted("r", "t", series, true, &mut orders);
        book.take_jobs();
    }
    let is_copy = |(_, order): &(NodeId, MasterSays)| matches!(order, MasterSays::Copy { .. });
    assert!(!orders.iter().any(is_copy), "{orders:?}");
    let is_safe = |(_, order): &(NodeId, MasterSays)| matches!(order, MasterSays::Safe { series: 3, .. });
    assert!(orders.iter().any(is_safe), "{orders:?}");
}

#[test]
fn only_the_newest_of_those_that_wait_is_copied() {
    let mut book = begun(&[1, 2]);
    let mut orders = Vec::new();
    for series in 1..=5 {
        book.has(1, file(series, 7, 0, 1), &mut orders);
    }
    let copied = |orders: &Orders| -> Vec<u64> {
        let of = orders.iter().filter_map(|(_, order)| match order {
            MasterSays::Copy { file, .. } => Some(file.series),
            _ => None,
        });
        of.collect()
    };
    // Two at a time.
    assert_eq!(copied(&orders), [1, 2]);
    orders.clear();
    book.has(2, file(1, 7, 0, 1), &mut orders);
    assert_eq!(copied(&orders), [5]);
    orders.clear();
    // The two newest safe ones stay, and newer ones.
    book.has(2, file(5, 7, 0, 1), &mut orders);
    assert!(
        !orders
            .iter()
            .any(|(_, order)| matches!(order, MasterSays::Drop { .. })
                && !matches!(order, MasterSays::Drop { below: 1, .. }))
    );
    book.has(1, file(6, 7, 0, 1), &mut orders);
    orders.clear();
    book.has(2, file(6, 7, 0, 1), &mut orders);
    let dropped = orders.iter().filter_map(|(node, order)| match order {
        MasterSays::Drop { below, .. } => Some((*node, *below)),
        _ => None,
    });
    assert_eq!(dropped.collect::<Vec<_>>(), [(1, 5), (2, 5)]);
}

#[test]
fn what_a_node_brings_back_does_not_count_after_a_newer_attempt() {
    let mut book = begun(&[1, 2]);
    let mut orders = Vec::new();
    book.has(1, file(1, 7, 0, 1), &mut orders);
    book.has(2, file(1, 7, 0, 1), &mut orders);
    // A node that nobody knows has series 2 of this attempt. The next one goes on from the first.
    assert_eq!(book.want(2, ("r", "t"), 9).0, 1);
    book.has(2, file(2, 9, 0, 1), &mut orders);
    orders.clear();
    book.begin(3, address(3), &mut orders);
    orders.clear();
    book.has(3, file(2, 7, 0, 1), &mut orders);
    assert_eq!(orders, [(3, MasterSays::Discard(file(2, 7, 0, 1)))]);
    let (_, series) = book.want(1, ("r", "t"), 10);
    let (number, files) = series.unwrap();
    assert_eq!((number, files[0].file.submit), (2, 9));
    // What the store has counts for the numbers.
    book.in_store(file(8, 8, 0, 1));
    assert_eq!(book.want(1, ("r", "t"), 11).0, 8);
}

#[test]
fn a_copy_that_fails_is_tried_elsewhere() {
    let mut book = begun(&[1, 2, 3]);
    let mut orders = Vec::new();
    book.has(1, file(1, 7, 0, 1), &mut orders);
    assert!(matches!(&orders[..], [(2, MasterSays::Copy { .. })]));
    orders.clear();
    book.has_not(2, &file(1, 7, 0, 1), &mut orders);
    assert!(
        matches!(&orders[..], [(3, MasterSays::Copy { .. })]),
        "{orders:?}"
    );
    orders.clear();
    // Alone again, and a node comes.
    book.lose(3, &mut orders);
    book.lose(2, &mut orders);
    assert_eq!(orders.iter().filter(|(node, _)| *node == 1).count(), 0);
    orders.clear();
    book.begin(4, address(4), &mut orders);
    assert!(
        matches!(&orders[..], [(4, MasterSays::Copy { .. })]),
        "{orders:?}"
    );
}

fn bring(by: Option<NodeId>, transfer: u64, series: u64, from: Option<NodeId>) -> StoreJob {
    StoreJob::Bring {
        by,
        transfer,
        file: file(series, 7, 0, 1),
        sources: from.map(address).into_iter().collect(),
    }
}

/// Takes the orders to bring files: numbers of the transfers, and the files.
fn transfers(book: &mut Book) -> Vec<(u64, SavedFile)> {
    let of = |job| match job {
        StoreJob::Bring { transfer, file, .. } => Some((transfer, file)),
        _ => None,
    };
    book.take_jobs().into_iter().filter_map(of).collect()
}

fn accept(series: u64) -> StoreJob {
    let (run, task) = ("r".to_owned(), "t".to_owned());
    StoreJob::Accept {
        run,
        task,
        series,
        submit: 7,
    }
}

#[test]
fn a_node_that_ends_soon_may_go_when_others_have_its_files() {
    let mut book = begun(&[1, 2]);
    let mut orders = Vec::new();
    book.has(1, file(1, 7, 0, 1), &mut orders);
    assert!(book.free_nodes().is_empty());
    book.leave(1, &mut orders);
    assert!(book.free_nodes().is_empty());
    book.has(2, file(1, 7, 0, 1), &mut orders);
    assert_eq!(book.free_nodes(), BTreeSet::from([1]));
    // Only one node is left.
    assert_eq!(book.take_jobs(), [bring(None, 1, 1, Some(1))]);
    book.leave(2, &mut orders);
    assert!(book.free_nodes().is_empty());
    book.brought(None, 1, &file(1, 7, 0, 1), true);
    book.accepted("r", "t", 1, true, &mut orders);
    assert_eq!(book.free_nodes(), BTreeSet::from([1, 2]));
}

#[test]
fn an_older_series_gets_its_second_place_back_when_the_newest_is_lost() {
    let mut book = begun(&[1, 2, 3]);
    let mut orders = Vec::new();
    book.has(1, file(1, 7, 0, 1), &mut orders);
    book.has(2, file(1, 7, 0, 1), &mut orders);
    book.has(1, file(2, 7, 0, 1), &mut orders);
    orders.clear();
    book.lose(1, &mut orders);
    assert!(
        matches!(&orders[..], [(3, MasterSays::Copy { file, .. })] if file.series == 1),
        "{orders:?}"
    );
}

/// A step of the model.
#[derive(Clone, Debug)]
enum Step {
    /// The first thing that is to be done with the store is done, or fails.
    Job(bool),
    /// The run is to end.
    FlushAll,
    /// Ten minutes pass.
    Wait,
    /// The attempt closes the next series on its node.
    Save,
    /// The first order that a node has is done, or fails.
    Obey(bool),
    /// A node is lost, with its disk; if it is that of the attempt, the next attempt begins elsewhere.
    Lose(prop::sample::Index),
    /// The connection to a node ends: it says all again, and its orders may be lost.
    Again(prop::sample::Index, bool),
    /// A node says twice what it has.
    Repeat(prop::sample::Index),
    /// The master dies: all nodes tell the next one.
    Master,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Save),
        6 => any::<bool>().prop_map(|fails| Step::Obey(!fails)),
        6 => Just(Step::Obey(true)),
        1 => any::<prop::sample::Index>().prop_map(Step::Lose),
        1 => any::<(prop::sample::Index, bool)>().prop_map(|(node, lost)| Step::Again(node, lost)),
        1 => any::<prop::sample::Index>().prop_map(Step::Repeat),
        1 => Just(Step::Master),
        4 => any::<bool>().prop_map(Step::Job),
        1 => Just(Step::FlushAll),
        1 => Just(Step::Wait),
    ];
    prop::collection::vec(step, 0..120)
}

/// Nodes with their disks, one task, and messages on their way.
struct Model {
    book: Book,
    disks: BTreeMap<NodeId, BTreeSet<(u64, u64)>>,
    orders: Orders,
    /// What the store has, and what has arrived there and does not count.
    store: BTreeSet<(u64, u64)>,
    arrived: BTreeSet<(u64, u64)>,
    jobs: Vec<StoreJob>,
    now: Duration,
    at: NodeId,
    submit: u64,
    next: u64,
    new_node: NodeId,
    /// The newest series that was said to be safe. It outlives the loss of one node, not of two before its
    /// files have second places again.
    safe: u64,
    /// A node was lost, and orders that follow are not done.
    has_lost: bool,
}

impl Model {
    fn new() -> Self {
        let nodes = [1, 2, 3];
        Self {
            book: begun(&nodes),
            disks: nodes.iter().map(|node| (*node, BTreeSet::new())).collect(),
            orders: Vec::new(),
            store: BTreeSet::new(),
            arrived: BTreeSet::new(),
            jobs: Vec::new(),
            now: Duration::ZERO,
            at: 1,
            submit: 1,
            next: 1,
            new_node: 4,
            safe: 0,
            has_lost: false,
        }
    }

    fn tell(&mut self, node: NodeId) {
        for (series, submit) in self.disks[&node].clone() {
            self.book.has(node, file(series, submit, 0, 1), &mut self.orders);
        }
    }

    fn pick(&self, index: prop::sample::Index) -> NodeId {
        let nodes: Vec<NodeId> = self.disks.keys().copied().collect();
        nodes[index.index(nodes.len())]
    }

    /// Begins an attempt on a node: it must get the newest series that is there at all.
    fn begin(&mut self, node: NodeId) -> Result<(), TestCaseError> {
        self.submit += 1;
        self.at = node;
        self.book.note_sight(node);
        for (series, submit) in self.store.clone() {
            self.book.in_store(file(series, submit, 0, 1));
        }
        let (last, series) = self.book.want(node, ("r", "t"), self.submit);
        let is_to_stay = |(node, series): &(NodeId, u64)| {
            let drops =
                |order: &MasterSays| matches!(order, MasterSays::Drop { below, .. } if series < below);
            !self.orders.iter().any(|(to, order)| to == node && drops(order))
        };
        let of = |(node, disk): (&NodeId, &BTreeSet<(u64, u64)>)| {
            let node = *node;
            let series = disk.iter().map(move |(series, _)| (node, *series));
            series.collect::<Vec<_>>()
        };
        let there = self.disks.iter().flat_map(of).filter(is_to_stay);
        let stored = self.store.iter().map(|(series, _)| *series).max();
        let there = there.map(|(_, series)| series).max().max(stored);
        // One that is told while the order to remove it is on its way may be given, too.
        let given = series.as_ref().map(|(number, _)| *number);
        let is_on = |disk: &BTreeSet<(u64, u64)>| disk.iter().any(|(series, _)| Some(*series) == given);
        prop_assert!(given >= there, "{:?} {:?}", given, there);
        let is_stored = self.store.iter().any(|(series, _)| Some(*series) == given);
        prop_assert!(given.is_none() || is_stored || self.disks.values().any(is_on));
        prop_assert!(last >= there.unwrap_or(0));
        prop_assert!(series.map_or(0, |(number, _)| number) >= self.safe);
        self.next = last + 1;
        Ok(())
    }

    fn obey(&mut self, works: bool) {
        if self.orders.is_empty() {
            return;
        }
        let (node, order) = self.orders.remove(0);
        self.has_lost &= !self.orders.is_empty();
        let Some(disk) = self.disks.get_mut(&node) else {
            return;
        };
        match order {
            MasterSays::Copy { file, sources } => {
                let is_at = |node: &NodeId| sources.contains(&address(*node));
                let there = self
                    .disks
                    .iter()
                    .any(|(node, disk)| is_at(node) && disk.contains(&(file.series, file.submit)));
                let has = self.disks[&node].contains(&(file.series, file.submit));
                if has || there && works {
                    self.disks
                        .entry(node)
                        .or_default()
                        .insert((file.series, file.submit));
                    self.book.has(node, file, &mut self.orders);
                } else {
                    self.book.has_not(node, &file, &mut self.orders);
                }
            }
            MasterSays::Drop { below, .. } => {
                let removed: Vec<_> = disk
                    .iter()
                    .filter(|(series, _)| *series < below)
                    .copied()
                    .collect();
                disk.retain(|(series, _)| *series >= below);
                for (series, submit) in removed {
                    let file = file(series, submit, 0, 1);
                    self.book.has_not(node, &file, &mut self.orders);
                }
            }
            MasterSays::Discard(file) => _ = disk.remove(&(file.series, file.submit)),
            MasterSays::Safe { series, .. } => self.safe = self.safe.max(series),
            _ => {}
        }
    }

    fn job(&mut self, works: bool) -> Result<(), TestCaseError> {
        self.jobs.extend(self.book.take_jobs());
        if self.jobs.is_empty() {
            return Ok(());
        }
        let newest = self.store.last().copied();
        match self.jobs.remove(0) {
            StoreJob::Bring {
                by,
                transfer,
                file,
                sources,
            } => {
                let key = (file.series, file.submit);
                let gives = |(node, disk): (&NodeId, &BTreeSet<(u64, u64)>)| {
                    let is_asked =
                        Some(*node) == by && sources.is_empty() || sources.contains(&address(*node));
                    is_asked && disk.contains(&key)
                };
                let is_there = works && self.disks.iter().any(gives);
                if by.is_some_and(|by| !self.disks.contains_key(&by)) {
                    return Ok(());
                }
                if is_there {
                    self.arrived.insert(key);
                }
                self.book.brought(by, transfer, &file, is_there);
            }
            StoreJob::Accept { series, submit, .. } => {
                prop_assert!(self.arrived.contains(&(series, submit)));
                if works {
                    // What came from other attempts is removed.
                    self.arrived.retain(|(number, _)| *number != series);
                    self.store.insert((series, submit));
                }
                self.book.accepted("r", "t", series, works, &mut self.orders);
            }
            StoreJob::Remove { below, .. } => self.store.retain(|(series, _)| *series >= below),
        }
        prop_assert!(self.store.last().copied() >= newest);
        self.jobs.extend(self.book.take_jobs());
        Ok(())
    }

    fn lose(&mut self, node: NodeId) -> Result<(), TestCaseError> {
        let has_safe = |disk: &&BTreeSet<(u64, u64)>| disk.iter().any(|(series, _)| *series == self.safe);
        let is_safe = self.disks.values().filter(has_safe).count() >= 2;
        self.disks.remove(&node);
        self.orders.retain(|(to, _)| *to != node);
        self.book.lose(node, &mut self.orders);
        if std::mem::replace(&mut self.has_lost, true) || !is_safe {
            self.safe = 0;
        }
        let new = self.new_node;
        self.new_node += 1;
        self.disks.insert(new, BTreeSet::new());
        self.book.begin(new, address(new), &mut self.orders);
        if self.at == node {
            let next = *self.disks.keys().next().unwrap();
            self.begin(next)?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Save => {
                let saved = (self.next, self.submit);
                self.disks.entry(self.at).or_default().insert(saved);
                let file = file(self.next, self.submit, 0, 1);
                self.book.has(self.at, file, &mut self.orders);
                self.next += 1;
            }
            Step::Obey(works) => self.obey(*works),
            Step::Job(works) => self.job(*works)?,
            Step::FlushAll => self.book.flush_all(),
            Step::Wait => {
                self.now += Duration::from_secs(600);
                self.book.set_time(self.now);
            }
            Step::Lose(index) => self.lose(self.pick(*index))?,
            Step::Again(index, loses_orders) => {
                let node = self.pick(*index);
                if *loses_orders {
                    self.orders.retain(|(to, _)| *to != node);
                }
                self.book.begin(node, address(node), &mut self.orders);
                self.tell(node);
            }
            Step::Repeat(index) => self.tell(self.pick(*index)),
            Step::Master => {
                self.orders.clear();
                self.jobs.clear();
                self.book = Book::default();
                self.book.set_time(self.now);
                for (series, submit) in self.store.clone() {
                    self.book.in_store(file(series, submit, 0, 1));
                }
                let nodes: Vec<NodeId> = self.disks.keys().copied().collect();
                for node in nodes {
                    self.book.begin(node, address(node), &mut self.orders);
                    self.tell(node);
                }
            }
        }
        Ok(())
    }
}

proptest! {
    /// Whatever is lost or repeated: an attempt gets the newest series that is there; one that was safe is
    /// there after the loss of a node; and in the end all are safe, and two are kept.
    #[test]
    fn nothing_safe_is_lost_with_a_node(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.step(step)?;
        }
        model.step(&Step::Save)?;
        model.step(&Step::Save)?;
        model.step(&Step::Save)?;
        // What was lost of orders is said again.
        let nodes: Vec<NodeId> = model.disks.keys().copied().collect();
        for node in nodes {
            model.orders.retain(|(to, _)| *to != node);
            model.book.begin(node, address(node), &mut model.orders);
            model.tell(node);
        }
        model.step(&Step::Wait)?;
        model.book.flush_all();
        model.jobs.extend(model.book.take_jobs());
        while !model.orders.is_empty() || !model.jobs.is_empty() {
            model.obey(true);
            model.job(true)?;
        }
        prop_assert_eq!(model.book.flushes(), 0);
        prop_assert_eq!(model.store.last().copied(), Some((model.next - 1, model.submit)));
        prop_assert!(model.store.len() <= 2);
        let newest = model.next - 1;
        let has = |disk: &BTreeSet<(u64, u64)>| disk.contains(&(newest, model.submit));
        prop_assert_eq!(model.disks.values().filter(|disk| has(disk)).count(), 2);
        // Nothing is left below the two newest safe ones.
        let mut safe = BTreeMap::new();
        for (series, _) in model.disks.values().flatten() {
            *safe.entry(*series).or_insert(0) += 1;
        }
        safe.retain(|_, count| *count >= 2);
        if let Some((second, _)) = safe.iter().rev().nth(1) {
            let mut there = model.disks.values().flatten();
            prop_assert!(there.all(|(series, _)| series >= second), "{:?}", model.disks);
        }
    }
}
