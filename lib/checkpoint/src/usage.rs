//! What tasks have saved, and what that has cost them: the sum of their statistics.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use pmc_files::LineReader;

use crate::{FileRecord, Use, due};

/// What a task has saved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskUsage {
    /// Number of complete series.
    pub complete: u64,
    /// Number of the newest one; 0 without one.
    pub series: u64,
    /// When it was complete: seconds since 1970.
    pub closed: f64,
    /// Files that were written.
    pub written: u64,
    /// Bytes of them.
    pub bytes_written: u64,
    /// Files that were read.
    pub read: u64,
    /// Bytes of them.
    pub bytes_read: u64,
    /// Files with errors, which do not count.
    pub errors: u64,
    /// Times of the attempts, by submit number.
    attempts: BTreeMap<u64, Attempt>,
}

/// The times of an attempt, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
struct Attempt {
    /// From its begin to its last file.
    elapsed: f64,
    /// For which each rank was blocked.
    blocked: BTreeMap<u32, f64>,
}

impl TaskUsage {
    fn add(&mut self, record: &FileRecord) {
        self.errors += u64::from(record.errors != 0);
        let (files, bytes) = match record.usage {
            Use::Written => (&mut self.written, &mut self.bytes_written),
            Use::Read => (&mut self.read, &mut self.bytes_read),
        };
        *files += 1;
        *bytes = bytes.saturating_add(record.bytes);
        if record.complete {
            self.complete += 1;
            self.series = record.series;
            self.closed = record.closed;
        }
        let attempt = self.attempts.entry(record.submit).or_default();
        attempt.elapsed = attempt.elapsed.max(record.elapsed);
        *attempt.blocked.entry(record.rank).or_default() += record.seconds();
    }

    /// Seconds for which saving and reading have blocked the task: those of the slowest rank of each attempt.
    #[must_use]
    pub fn blocked(&self) -> f64 {
        let slowest = |attempt: &Attempt| attempt.blocked.values().copied().fold(0.0, f64::max);
        self.attempts.values().map(slowest).sum()
    }

    /// Part of the time of the task, up to its last file.
    #[must_use]
    pub fn share(&self) -> f64 {
        let elapsed: f64 = self.attempts.values().map(|attempt| attempt.elapsed).sum();
        match elapsed > 0.0 {
            true => (self.blocked() / elapsed).clamp(0.0, 1.0),
            false => 0.0,
        }
    }

    /// Seconds from one series to the next that would keep the part of the time below the limit, if it is
    /// above.
    #[must_use]
    pub fn advised_interval(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "nobody saves so often")]
        let complete = self.complete as f64;
        let is_slow = complete >= 2.0 && self.share() > due::MAX_SHARE;
        is_slow.then(|| (self.blocked() / complete / due::MAX_SHARE).ceil())
    }
}

/// What all tasks of a DAG have saved, by the directories of the tasks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage(pub BTreeMap<String, TaskUsage>);

impl Usage {
    /// Reads the statistics of a DAG. Without them, no task has saved anything. Torn lines are left out.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn read(dag: &Path) -> io::Result<Self> {
        let mut usage = Self::default();
        match LineReader::open(&FileRecord::path(dag)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(usage),
            reader => reader?.read(|_, line| usage.add(line))?,
        }
        Ok(usage)
    }

    fn add(&mut self, line: &[u8]) {
        if let Some(record) = FileRecord::parse(line) {
            self.0.entry(record.task.clone()).or_default().add(&record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Prefix;

    fn record(submit: u64, rank: u32, series: u64, write: f64, elapsed: f64) -> FileRecord {
        FileRecord {
            task: "t".to_owned(),
            submit,
            rank,
            prefix: Prefix::try_from("p").unwrap(),
            series,
            usage: Use::Written,
            bytes: 100,
            open: 0.0,
            read: 0.0,
            write,
            close: 0.0,
            errors: 0,
            closed: 1000.0 + elapsed,
            elapsed,
            host: "n1".to_owned(),
            complete: rank == 1,
        }
    }

    #[test]
    fn the_slowest_rank_counts() {
        let directory = tempfile::tempdir().unwrap();
        let dag = directory.path().join("w.dag");
        assert_eq!(Usage::read(&dag).unwrap(), Usage::default());
        let records = [
            record(1, 0, 1, 1.0, 10.0),
            record(1, 1, 1, 2.0, 11.0),
            record(1, 0, 2, 1.0, 20.0),
            record(1, 1, 2, 0.5, 20.0),
            record(2, 1, 3, 1.5, 20.0),
        ];
        let mut text: String = records.iter().map(FileRecord::line).collect();
        text.push_str("{\"task\":\"t\",\"subm");
        std::fs::write(FileRecord::path(&dag), text).unwrap();
        let usage = Usage::read(&dag).unwrap();
        let task = &usage.0["t"];
        assert_eq!((task.complete, task.series, task.closed), (3, 3, 1020.0));
        assert_eq!((task.written, task.bytes_written, task.read), (5, 500, 0));
        assert_eq!(task.blocked(), 4.0);
        assert_eq!(task.share(), 0.1);
        // A series takes 4/3 s.
        assert_eq!(task.advised_interval(), Some(27.0));
    }
}
