//! Attempts that were submitted and have not begun.
//!
//! They are inserted when they begin, with all later rows: rows of one attempt that are written together lie
//! beside each other, and none of them is changed later.

use std::fmt::Write as _;

use rustc_hash::FxHashMap;

/// An attempt that has not begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    /// Sequence number among all attempts.
    pub seq: i64,
    /// Submission, seconds since the epoch.
    pub time: i64,
    /// Identifies the attempt in its run.
    pub sched_id: Box<str>,
}

/// Attempts that have not begun, by job.
#[derive(Debug, Default)]
pub(super) struct Queue {
    attempts: FxHashMap<Box<str>, Queued>,
    /// Largest sequence number so far.
    newest: i64,
    /// Largest sequence number that [`Queue::take_new`] has covered.
    saved: i64,
    /// True if the store may hold some of them.
    is_stored: bool,
}

impl Queue {
    /// Adds attempts from a text of [`Queue::take_new`]. `has_begun` returns whether the attempt of a
    /// job with a sequence number was inserted since.
    pub fn read<E>(&mut self, text: &str, has_begun: impl Fn(&str, i64) -> Result<bool, E>) -> Result<(), E> {
        self.is_stored = true;
        for (job, queued) in text.split('\n').filter_map(read_line) {
            self.saved = self.saved.max(queued.seq);
            if !has_begun(job, queued.seq)? {
                self.attempts.insert(job.into(), queued);
            }
        }
        Ok(())
    }

    pub fn get(&self, job: &str) -> Option<&Queued> {
        self.attempts.get(job)
    }

    pub fn insert(&mut self, job: &str, queued: Queued) {
        self.newest = self.newest.max(queued.seq);
        self.attempts.insert(job.into(), queued);
    }

    pub fn take(&mut self, job: &str) -> Option<Queued> {
        self.attempts.remove(job)
    }

    /// Removes all attempts and returns them in their order.
    pub fn take_all(&mut self) -> Vec<(Box<str>, Queued)> {
        let mut all: Vec<_> = std::mem::take(&mut self.attempts).into_iter().collect();
        all.sort_by_key(|(_, queued)| queued.seq);
        all
    }

    /// Returns the largest sequence number in the queue, 0 if it is empty.
    pub fn last(&self) -> i64 {
        self.attempts.values().map(|queued| queued.seq).max().unwrap_or(0)
    }

    /// Returns whether the store holds only attempts that have begun since.
    pub fn is_stale(&self) -> bool {
        self.is_stored && self.attempts.is_empty()
    }

    /// Notes that the store holds no attempts any more.
    pub fn set_cleared(&mut self) {
        self.is_stored = false;
    }

    /// Returns the text that a store has to save: attempts that came since the last call and have not begun,
    /// one a line with sequence number, time, id in the run and job.
    pub fn take_new(&mut self) -> Option<String> {
        // The queue may be long, and usually none of it is new.
        if self.newest <= self.saved {
            return None;
        }
        let mut text = String::new();
        let saved = std::mem::replace(&mut self.saved, self.newest);
        for (job, Queued { seq, time, sched_id }) in &self.attempts {
            if *seq > saved {
                let _ = writeln!(text, "{seq} {time} {sched_id} {job}");
            }
        }
        self.is_stored |= !text.is_empty();
        Some(text).filter(|text| !text.is_empty())
    }
}

fn read_line(line: &str) -> Option<(&str, Queued)> {
    // Words of the log contain no blanks.
    let mut words = line.splitn(4, ' ');
    let queued = Queued {
        seq: words.next()?.parse().ok()?,
        time: words.next()?.parse().ok()?,
        sched_id: words.next()?.into(),
    };
    Some((words.next()?, queued))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn a_saved_queue_reads_back() {
        let queued = |seq| Queued {
            seq,
            time: 1_772_600_767 + seq,
            sched_id: format!("{seq}.0").into(),
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
            again.read(text, |_, seq| Ok::<_, Infallible>(seq == 2)).unwrap();
        }
        assert_eq!((again.get("b"), again.last()), (None, 4));
        assert_eq!(again.take_new(), None);
        assert!(!again.is_stale());
        let all = again.take_all();
        let expected = [("c\r".into(), queued(3)), ("d".into(), queued(4))];
        assert_eq!(all, expected);
        assert!(again.is_stale());
        again.set_cleared();
        assert!(!again.is_stale());
    }
}
