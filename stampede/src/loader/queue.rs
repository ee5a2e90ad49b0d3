//! Tries that were submitted and have not begun. They are written when they begin, with all that follows: rows of a
//! try that are written at once lie beside each other, and none of them is changed.

use std::fmt::Write as _;

use rustc_hash::FxHashMap;

/// A try that has not begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    /// Its place among all tries.
    pub seq: i64,
    /// When it was submitted, seconds since the epoch.
    pub time: i64,
    /// Number of the execution.
    pub number: Box<str>,
}

/// Tries that have not begun, by their jobs.
#[derive(Debug, Default)]
pub(super) struct Queue {
    tries: FxHashMap<Box<str>, Queued>,
    /// The last one that came.
    newest: i64,
    /// [`Queue::take_new`] has told those up to this one.
    told: i64,
    /// Whether the store has some of them, or had.
    stored: bool,
}

impl Queue {
    /// Goes on with a text that a store kept; `is_written` tells of a number whether that try was written since.
    pub fn read<E>(&mut self, text: &str, is_written: impl Fn(i64) -> Result<bool, E>) -> Result<(), E> {
        self.stored = true;
        for (job, queued) in text.split('\n').filter_map(read_line) {
            self.told = self.told.max(queued.seq);
            if !is_written(queued.seq)? {
                self.tries.insert(job.into(), queued);
            }
        }
        Ok(())
    }

    pub fn get(&self, job: &str) -> Option<&Queued> {
        self.tries.get(job)
    }

    pub fn insert(&mut self, job: &str, queued: Queued) {
        self.newest = self.newest.max(queued.seq);
        self.tries.insert(job.into(), queued);
    }

    pub fn take(&mut self, job: &str) -> Option<Queued> {
        self.tries.remove(job)
    }

    /// All, in their order.
    pub fn take_all(&mut self) -> Vec<(Box<str>, Queued)> {
        let mut all: Vec<_> = std::mem::take(&mut self.tries).into_iter().collect();
        all.sort_by_key(|(_, queued)| queued.seq);
        all
    }

    /// The largest number of a try.
    pub fn last(&self) -> i64 {
        self.tries.values().map(|queued| queued.seq).max().unwrap_or(0)
    }

    /// Whether a store holds nothing but tries that were written since.
    pub fn is_stale(&self) -> bool {
        self.stored && self.tries.is_empty()
    }

    /// The store has forgotten all.
    pub fn forgotten(&mut self) {
        self.stored = false;
    }

    /// What a store has to keep: tries that came since the last call and have not begun, a line each: place, time,
    /// number of the execution, job.
    pub fn take_new(&mut self) -> Option<String> {
        // There may be many, and mostly none of them is new.
        if self.newest <= self.told {
            return None;
        }
        let mut text = String::new();
        let told = std::mem::replace(&mut self.told, self.newest);
        for (job, Queued { seq, time, number }) in &self.tries {
            if *seq > told {
                let _ = writeln!(text, "{seq} {time} {number} {job}");
            }
        }
        self.stored |= !text.is_empty();
        Some(text).filter(|text| !text.is_empty())
    }
}

fn read_line(line: &str) -> Option<(&str, Queued)> {
    // Words of the log have no blanks.
    let mut words = line.splitn(4, ' ');
    let queued = Queued {
        seq: words.next()?.parse().ok()?,
        time: words.next()?.parse().ok()?,
        number: words.next()?.into(),
    };
    Some((words.next()?, queued))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn a_store_gets_those_that_wait_and_gives_them_back() {
        let queued = |seq| Queued {
            seq,
            time: 1_772_600_767 + seq,
            number: format!("{seq}.0").into(),
        };
        let mut queue = Queue::default();
        ["a", "b", "c\r"]
            .into_iter()
            .zip(1..)
            .for_each(|(job, seq)| queue.insert(job, queued(seq)));
        assert_eq!(queue.take("a"), Some(queued(1)));
        let first = queue.take_new().unwrap();
        assert_eq!(queue.take_new(), None);
        queue.insert("d", queued(4));
        let second = queue.take_new().unwrap();
        assert_eq!(second, "4 1772600771 4.0 d\n");

        let mut again = Queue::default();
        for text in [&first, &second] {
            again.read(text, |seq| Ok::<_, Infallible>(seq == 2)).unwrap();
        }
        assert_eq!((again.get("b"), again.last()), (None, 4));
        assert_eq!(again.take_new(), None);
        assert!(!again.is_stale());
        let all = again.take_all();
        let expected = [("c\r".into(), queued(3)), ("d".into(), queued(4))];
        assert_eq!(all, expected);
        assert!(again.is_stale());
        again.forgotten();
        assert!(!again.is_stale());
    }
}
