//! Which series are complete, which one a task is given, and which ones are kept.

use std::collections::{BTreeMap, BTreeSet};

use crate::saved_file::SavedFile;
use crate::{Prefix, Sidecar};

/// Number of complete series that are kept.
const KEPT: usize = 2;

/// The files with one prefix in a series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Files {
    /// Ranks that have announced themselves.
    ranks: u32,
    /// Bytes of the file of each rank that has closed it.
    closed: BTreeMap<u32, u64>,
}

/// The files of a task that belong together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    files: BTreeMap<Prefix, Files>,
    /// Files that are open, by prefix and rank.
    open: BTreeSet<(Prefix, u32)>,
    /// Files were open when their attempt ended.
    is_cut: bool,
    /// Why it is not given.
    withheld: Option<String>,
    /// When its last file was closed: seconds since 1970.
    closed: f64,
}

impl Series {
    /// Number of files that have been closed.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files.values().map(|files| files.closed.len()).sum()
    }

    /// Bytes of these files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let all = self.files.values().flat_map(|files| files.closed.values());
        all.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// When the last of them was closed: seconds since 1970.
    #[must_use]
    pub fn closed(&self) -> f64 {
        self.closed
    }

    /// Why it is not given to a task, if that is so.
    #[must_use]
    pub fn withheld(&self) -> Option<&str> {
        self.withheld.as_deref()
    }

    /// The prefixes and ranks of the files that have been closed.
    pub fn names(&self) -> impl Iterator<Item = (&Prefix, u32)> {
        let of = |(prefix, files): (_, &Files)| {
            let ranks: Vec<u32> = files.closed.keys().copied().collect();
            ranks.into_iter().map(move |rank| (prefix, rank))
        };
        self.files.iter().flat_map(of)
    }

    /// Returns whether the task itself has saved a file of it.
    fn is_own(&self) -> bool {
        self.files.keys().any(|prefix| !prefix.is_watched())
    }

    /// Returns the prefixes that count, if the task itself saves files, or if it does not.
    fn prefixes(&self, is_own: bool) -> impl Iterator<Item = (&Prefix, &Files)> {
        self.files
            .iter()
            .filter(move |(prefix, _)| !is_own || !prefix.is_watched())
    }

    /// True if all announced ranks have closed their files, none is open, and these are files of all prefixes
    /// that the series `before` has.
    fn is_complete(&self, before: Option<&Self>, is_own: bool) -> bool {
        let is_whole = |(_, files): (_, &Files)| files.closed.len() as u64 == u64::from(files.ranks);
        let mut needed = before.into_iter().flat_map(|before| before.prefixes(is_own));
        let has_all = needed.all(|(prefix, _)| self.files.contains_key(prefix));
        let is_open = self
            .open
            .iter()
            .any(|(prefix, _)| !is_own || !prefix.is_watched());
        let has_some = self.prefixes(is_own).next().is_some();
        !is_open && !self.is_cut && has_some && has_all && self.prefixes(is_own).all(is_whole)
    }
}

/// All series of a task that are there.
///
/// A task that saves its state itself may have files of type `checkpoint`, too, which `pegasus-lite` saves in
/// series of its own. These do not count then: they know nothing of what the task saves, and when.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AllSeries(BTreeMap<u64, Series>);

impl AllSeries {
    /// Returns the series, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Series)> {
        self.0.iter().map(|(number, series)| (*number, series))
    }

    /// Returns a series.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&Series> {
        self.0.get(&number)
    }

    /// Returns the highest number, 0 if there is none. The series of the next attempt follow it.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.0.keys().next_back().copied().unwrap_or(0)
    }

    /// Notes that a series is there, perhaps without files.
    pub fn begin(&mut self, number: u64) {
        self.0.entry(number).or_default();
    }

    /// Notes that a rank has a file open.
    pub fn open(&mut self, number: u64, prefix: Prefix, rank: u32) {
        self.0.entry(number).or_default().open.insert((prefix, rank));
    }

    /// Notes that a rank has given up a file that it had open: the series will lack it.
    pub fn discard(&mut self, number: u64, prefix: &Prefix, rank: u32) {
        if let Some(series) = self.0.get_mut(&number) {
            series.open.remove(&(prefix.clone(), rank));
            series.is_cut = true;
        }
    }

    /// Notes that a series has a file that was open when its attempt ended.
    pub fn cut(&mut self, number: u64) {
        self.0.entry(number).or_default().is_cut = true;
    }

    /// Notes that a rank has closed its file.
    pub fn close(&mut self, sidecar: &Sidecar) {
        self.add(&SavedFile::of(sidecar));
    }

    /// Notes a file that a rank has closed.
    pub fn add(&mut self, file: &SavedFile) {
        let series = self.0.entry(file.series).or_default();
        series.open.remove(&(file.prefix.clone(), file.rank));
        let files = series.files.entry(file.prefix.clone()).or_default();
        files.ranks = files.ranks.max(file.ranks);
        files.closed.insert(file.rank, file.bytes);
        series.closed = series.closed.max(file.closed);
    }

    /// Notes why a series is not given.
    pub fn withhold(&mut self, number: u64, reason: String) {
        self.0.entry(number).or_default().withheld = Some(reason);
    }

    /// Returns the complete series, oldest first. The oldest one has the files that it has; each of the next
    /// ones has files of the same prefixes, or of more.
    #[must_use]
    pub fn complete(&self) -> Vec<u64> {
        let mut complete = Vec::new();
        let mut before = None;
        let is_own = self.0.values().any(Series::is_own);
        for (number, series) in self.iter() {
            if series.is_complete(before, is_own) {
                complete.push(number);
                before = Some(series);
            }
        }
        complete
    }

    /// Returns the complete series that may be given, oldest first.
    #[must_use]
    pub fn good(&self) -> Vec<u64> {
        let is_good = |number: &u64| self.get(*number).is_some_and(|series| series.withheld.is_none());
        self.complete().into_iter().filter(is_good).collect()
    }

    /// Returns the series from which the next attempt goes on: the newest complete one that is not withheld.
    #[must_use]
    pub fn given(&self) -> Option<u64> {
        self.good().pop()
    }

    /// Returns the series that are not needed any more: those that are older than the two newest complete
    /// ones that may be given. One that has an open file stays.
    #[must_use]
    pub fn superfluous(&self) -> Vec<u64> {
        let good = self.good();
        let Some(oldest) = good.len().checked_sub(KEPT).and_then(|at| good.get(at)) else {
            return Vec::new();
        };
        let older = self
            .0
            .range(..oldest)
            .filter(|(_, series)| series.open.is_empty());
        older.map(|(number, _)| *number).collect()
    }

    /// Forgets a series.
    pub fn remove(&mut self, number: u64) {
        self.0.remove(&number);
    }

    /// Forgets what was open: the attempt has ended.
    pub fn end_attempt(&mut self) {
        for series in self.0.values_mut() {
            series.is_cut |= !series.open.is_empty();
            series.open.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix(number: usize) -> Prefix {
        Prefix::try_from(format!("p{number}")).unwrap()
    }

    fn file(series: u64, name: usize, rank: u32, ranks: u32) -> Sidecar {
        Sidecar {
            series,
            rank,
            ranks,
            bytes: 10,
            closed: series as f64,
            ..Sidecar::new("r".to_owned(), "t".to_owned(), prefix(name))
        }
    }

    #[test]
    fn a_series_needs_the_files_of_all_ranks_and_prefixes() {
        let mut all = AllSeries::default();
        all.close(&file(1, 0, 0, 2));
        assert_eq!((all.given(), all.complete()), (None, vec![]));
        all.close(&file(1, 0, 1, 2));
        assert_eq!(all.given(), Some(1));
        all.open(1, prefix(1), 0);
        assert_eq!(all.given(), None);
        all.close(&file(1, 1, 0, 2));
        all.close(&file(1, 1, 1, 2));
        assert_eq!(all.given(), Some(1));
        assert_eq!(
            (all.get(1).unwrap().count(), all.get(1).unwrap().bytes()),
            (4, 40)
        );
        // Later ones have the same prefixes.
        all.close(&file(2, 0, 0, 2));
        all.close(&file(2, 0, 1, 2));
        assert_eq!(all.given(), Some(1));
        all.close(&file(2, 1, 0, 2));
        all.close(&file(2, 1, 1, 2));
        assert_eq!(all.given(), Some(2));
        // A file that was open at the end of an attempt.
        all.close(&file(3, 0, 0, 1));
        all.open(3, prefix(1), 0);
        all.end_attempt();
        assert_eq!((all.given(), all.last()), (Some(2), 3));
        // One whose writer has given it up.
        all.open(4, prefix(0), 0);
        all.discard(4, &prefix(0), 0);
        all.close(&file(4, 1, 0, 1));
        assert_eq!(all.complete(), [1, 2]);
    }

    /// Ranks that save again and again, in any order within a series, and are killed at some point.
    fn saved(
        ranks: u32,
        prefixes: usize,
        order: &[prop::sample::Index],
        opens_first: bool,
    ) -> (AllSeries, Vec<u64>) {
        let (mut all, mut whole) = (AllSeries::default(), Vec::new());
        let mut number = 0;
        let mut left: Vec<(usize, u32)> = Vec::new();
        for index in order {
            if left.is_empty() {
                number += 1;
                left = (0..prefixes)
                    .flat_map(|name| (0..ranks).map(move |rank| (name, rank)))
                    .collect();
                if opens_first {
                    left.iter()
                        .for_each(|(name, rank)| all.open(number, prefix(*name), *rank));
                }
            }
            let (name, rank) = left.swap_remove(index.index(left.len()));
            all.close(&file(number, name, rank, ranks));
            if left.is_empty() {
                whole.push(number);
            }
        }
        all.end_attempt();
        (all, whole)
    }

    proptest! {
        /// Rules 1 and 3: what is given has all files, and it is the newest that has.
        #[test]
        fn the_newest_whole_series_is_given(
            ranks in 1_u32..5,
            prefixes in 1_usize..4,
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        ) {
            let (all, whole) = saved(ranks, prefixes, &order, true);
            prop_assert_eq!(all.given(), whole.last().copied());
            prop_assert_eq!(all.complete(), whole);
        }

        /// As above for tasks that open a file when they have closed the one before: nobody knows how many
        /// files the first series would have had.
        #[test]
        fn later_series_have_the_files_of_the_first(
            ranks in 1_u32..5,
            prefixes in 1_usize..4,
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
        ) {
            let (all, whole) = saved(ranks, prefixes, &order, false);
            if let Some(last) = whole.last() {
                prop_assert_eq!(all.given(), Some(*last));
            }
        }

        /// Rule 3: what is withheld is not given, but the one before.
        #[test]
        fn a_series_that_is_withheld_is_passed_over(
            count in 1_u64..6,
            withheld in prop::collection::btree_set(1_u64..6, 0..5),
        ) {
            let mut all = AllSeries::default();
            (1..=count).for_each(|number| all.close(&file(number, 0, 0, 1)));
            withheld.iter().for_each(|number| all.withhold(*number, "damaged".to_owned()));
            let expected = (1..=count).rev().find(|number| !withheld.contains(number));
            prop_assert_eq!(all.given(), expected);
        }

        /// Rule 4: removing what is superfluous changes nothing that is given, now or after the newest is
        /// withheld.
        #[test]
        fn two_series_are_kept(
            ranks in 1_u32..4,
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..60),
            bad in prop::collection::btree_set(1_u64..20, 0..4),
        ) {
            let (mut all, _) = saved(ranks, 1, &order, true);
            bad.iter().filter(|number| **number <= all.last()).copied().collect::<Vec<_>>()
                .into_iter().for_each(|number| all.withhold(number, "spoiled".to_owned()));
            let (before, good, last) = (all.given(), all.good(), all.last());
            all.superfluous().into_iter().for_each(|number| all.remove(number));
            prop_assert_eq!(all.given(), before);
            prop_assert_eq!(all.last(), last);
            prop_assert_eq!(all.good(), &good[good.len().saturating_sub(KEPT)..]);
            if let Some(given) = before {
                all.withhold(given, "damaged".to_owned());
                prop_assert_eq!(all.given(), good.len().checked_sub(2).map(|at| good[at]));
            }
        }
    }

    #[test]
    fn what_lite_saves_does_not_count_beside_what_the_task_saves() {
        let watched = |series| Sidecar {
            prefix: Prefix::try_from("pegasusLiteFiles").unwrap(),
            ..file(series, 0, 0, 1)
        };
        let mut all = AllSeries::default();
        (1..=3).for_each(|series| all.close(&watched(series)));
        assert_eq!(all.given(), Some(3));
        // The program saves for itself, more often.
        all.close(&file(2, 0, 0, 1));
        assert_eq!(all.complete(), [2]);
        all.open(7, watched(7).prefix, 0);
        all.close(&file(7, 0, 0, 1));
        assert_eq!(all.complete(), [2, 7]);
    }

    #[test]
    fn a_series_with_an_open_file_is_not_removed() {
        let mut all = AllSeries::default();
        all.open(1, prefix(1), 0);
        (2..5).for_each(|number| all.close(&file(number, 0, 0, 1)));
        assert_eq!(all.superfluous(), [2]);
        all.end_attempt();
        assert_eq!(all.superfluous(), [1, 2]);
    }
}
