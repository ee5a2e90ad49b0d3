//! What the ledger says of earlier jobs, and its next lines.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use monitord_compat::batch_jobs::{self, Entry, Event};

/// The ledger of a run.
pub struct Ledger {
    dag: PathBuf,
    /// The job of this process.
    job: String,
    /// What earlier programs have written.
    pub before: Vec<Entry>,
}

/// How far a workflow was at the end of a job, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    end: String,
    done: usize,
}

impl Ledger {
    /// Reads the ledger of a DAG. One that another user may have written says nothing: commands are run and
    /// jobs are cancelled that it names.
    pub fn open(dag: &Path, job: String) -> Self {
        Self {
            dag: dag.to_owned(),
            job,
            before: batch_jobs::read_own(dag).unwrap_or_default(),
        }
    }

    /// Appends an event, and makes sure that it is on disk. This process knows of it in any case.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, event: Event) -> io::Result<()> {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let entry = Entry {
            at: (at.as_secs_f64() * 1000.0).round() / 1000.0,
            job: self.job.clone(),
            event,
        };
        let written = batch_jobs::append(&self.dag, &entry);
        self.before.push(entry);
        written
    }

    /// Returns the number of this job in its chain, from 0: it continues a chain if the job before has handed
    /// it in.
    pub fn chain(&self) -> u32 {
        let next = self.before.iter().rev().find_map(|entry| match &entry.event {
            Event::Next { next } if *next == self.job => Some(&entry.job),
            _ => None,
        });
        let before = next.and_then(|job| {
            self.before.iter().rev().find_map(|entry| match entry.event {
                Event::Begin { chain, .. } if entry.job == *job => Some(chain),
                _ => None,
            })
        });
        before.map_or(0, |chain| chain.saturating_add(1))
    }

    /// Returns the job that is handed in to follow this one, if there is one.
    pub fn next(&self) -> Option<String> {
        let own = self.before.iter().rev().filter(|entry| entry.job == self.job);
        let mut changes = own.filter_map(|entry| match &entry.event {
            Event::Next { next } => Some(Some(next.clone())),
            Event::Cancel { .. } => Some(None),
            _ => None,
        });
        changes.next().flatten()
    }

    /// Returns the job before this one if it did not say how it ended.
    pub fn unended(&self) -> Option<&str> {
        let last = self.before.iter().rfind(|entry| entry.job != self.job)?;
        let of_job = self.before.iter().filter(|entry| entry.job == last.job);
        let has_ended = of_job.rev().find_map(|entry| match entry.event {
            Event::End { .. } => Some(true),
            Event::Begin { .. } => Some(false),
            _ => None,
        });
        (has_ended == Some(false)).then_some(last.job.as_str())
    }

    /// Returns how often the workflow has ended like this in a row without progress, this time included.
    pub fn without_progress(&self, end: &str, done: usize, has_saved: bool) -> u32 {
        if has_saved {
            return 1;
        }
        let marks = self.before.iter().rev().filter_map(|entry| match &entry.event {
            Event::End { end, done, .. } => Some(Mark {
                end: end.clone(),
                done: *done,
            }),
            _ => None,
        });
        let same = marks.take_while(|mark| mark.end == end && mark.done == done);
        1 + u32::try_from(same.count()).unwrap_or(u32::MAX - 1)
    }

    /// Returns the last message of a task.
    pub fn message(&self, task: &str) -> Option<&String> {
        self.before.iter().rev().find_map(|entry| match &entry.event {
            Event::Message { task: of, text } if of == task => Some(text),
            _ => None,
        })
    }

    /// Returns the command that ran the workflow in this job, and the number of further jobs that it may
    /// have.
    pub fn command(&self) -> Option<(Vec<String>, u32)> {
        let own = self.before.iter().rev().filter(|entry| entry.job == self.job);
        let mut begun = own.filter_map(|entry| match &entry.event {
            Event::Begin {
                command, resubmit, ..
            } => Some((command.clone(), *resubmit)),
            _ => None,
        });
        begun.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(chain: u32) -> Event {
        Event::Begin {
            nodes: Vec::new(),
            slots: None,
            limit: None,
            chain,
            resubmit: 9,
            command: vec!["run".to_owned()],
            successor: false,
        }
    }

    fn end(end: &str, done: usize) -> Event {
        Event::End {
            end: end.to_owned(),
            action: "again".to_owned(),
            done,
        }
    }

    #[test]
    fn a_chain_is_counted_over_its_jobs() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        let mut chains = Vec::new();
        for number in 1..=3 {
            let mut ledger = Ledger::open(&dag, format!("slurm {number}"));
            chains.push(ledger.chain());
            ledger.add(begin(ledger.chain())).unwrap();
            let next = format!("slurm {}", number + 1);
            ledger.add(Event::Next { next: next.clone() }).unwrap();
            assert_eq!(ledger.next(), Some(next));
        }
        assert_eq!(chains, [0, 1, 2]);
        // Submitted by hand.
        let mut other = Ledger::open(&dag, "slurm 9".to_owned());
        assert_eq!((other.chain(), other.next()), (0, None));
        assert_eq!(other.unended(), Some("slurm 3"));
        other.add(begin(0)).unwrap();
        assert_eq!(other.command(), Some((vec!["run".to_owned()], 9)));
        other.add(end("time", 3)).unwrap();
        assert_eq!(Ledger::open(&dag, "slurm 10".to_owned()).unended(), None);
    }

    #[test]
    fn a_torn_line_is_ended_before_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        let mut ledger = Ledger::open(&dag, "slurm 1".to_owned());
        ledger.add(begin(0)).unwrap();
        let path = folder.path().join("x.dag.jobs");
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"at\":1,\"jo");
        std::fs::write(&path, text).unwrap();
        ledger.add(end("time", 3)).unwrap();
        assert_eq!(Ledger::open(&dag, "slurm 1".to_owned()).before.len(), 2);
    }

    #[test]
    fn the_same_end_counts_until_there_is_progress() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        let mut ledger = Ledger::open(&dag, "slurm 1".to_owned());
        assert_eq!(ledger.without_progress("time", 0, false), 1);
        for (what, done) in [("time", 3), ("time", 4), ("time", 4)] {
            ledger.add(end(what, done)).unwrap();
        }
        assert_eq!(ledger.without_progress("time", 4, false), 3);
        assert_eq!(ledger.without_progress("time", 4, true), 1);
        assert_eq!(ledger.without_progress("time", 5, false), 1);
        assert_eq!(ledger.without_progress("killed", 4, false), 1);
    }
    #[test]
    fn what_cannot_be_written_is_known_to_this_process() {
        let folder = tempfile::tempdir().unwrap();
        let dag = folder.path().join("x.dag");
        std::fs::create_dir(folder.path().join("x.dag.jobs")).unwrap();
        let mut ledger = Ledger::open(&dag, "slurm 1".to_owned());
        let next = "slurm 2".to_owned();
        assert!(ledger.add(Event::Next { next: next.clone() }).is_err());
        assert_eq!(
            ledger.next(),
            Some(next),
            "it is cancelled if nothing is left for it"
        );
    }
}
