//! `[cluster-task …]` and `[cluster-summary …]`: the records in the output of tasks and runs.
//!
//! The layout is that of pegasus-mpi-cluster 5.1. Values are not escaped: monitoring looks for the first
//! quote after each value.

use std::io::Write as _;
use std::time::Duration;

use chrono::{DateTime, FixedOffset, SubsecRound as _};

/// The outcome of one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRecord<'a> {
    /// Identifier from the `#@` line, if there was one.
    pub id: Option<&'a [u8]>,
    /// Name of the task.
    pub name: &'a [u8],
    /// Start, local time.
    pub start: DateTime<FixedOffset>,
    /// Duration.
    pub duration: Duration,
    /// Raw wait status.
    pub status: i32,
    /// Program as written in the DAG.
    pub app: &'a [u8],
    /// Host.
    pub hostname: &'a str,
    /// Rank of the worker.
    pub slot: u32,
    /// CPUs granted.
    pub cpus: u32,
    /// Memory granted in MB.
    pub memory_mb: u64,
}

impl TaskRecord<'_> {
    /// Returns the start as the record has it, in milliseconds since the epoch.
    #[must_use]
    pub fn start_ms(&self) -> i64 {
        self.start.round_subsecs(3).timestamp_millis()
    }

    /// Returns a duration as the record has it, in milliseconds.
    #[must_use]
    pub fn duration_ms(duration: Duration) -> u128 {
        (duration.as_nanos() + 500_000) / 1_000_000
    }

    /// Appends the record and a line feed. The record follows output of the task in the same line if that
    /// output does not end with a line feed.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"[cluster-task ");
        if let Some(id) = self.id {
            out.extend_from_slice(b"id=");
            out.extend_from_slice(id);
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(b"name=");
        out.extend_from_slice(self.name);
        let (start, duration) = (iso_time(self.start), seconds(self.duration));
        write!(
            out,
            ", start=\"{start}\", duration={duration}, status={}, app=\"",
            self.status
        )
        .expect("writing to memory does not fail");
        out.extend_from_slice(self.app);
        let Self {
            hostname,
            slot,
            cpus,
            memory_mb,
            ..
        } = self;
        writeln!(
            out,
            "\", hostname=\"{hostname}\", slot={slot}, cpus={cpus}, memory={memory_mb}]"
        )
        .expect("writing to memory does not fail");
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryRecord<'a> {
    /// True if all tasks of the DAG have succeeded, in this run or before.
    pub success: bool,
    /// Tasks in the DAG.
    pub tasks: u64,
    /// Attempts started in this run.
    pub submitted: u64,
    /// Attempts that succeeded.
    pub succeeded: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Start of the run, local time.
    pub start: DateTime<FixedOffset>,
    /// Duration of the run.
    pub duration: Duration,
    /// Process id of the master.
    pub pid: u32,
    /// Program as it was called.
    pub app: &'a [u8],
    /// Sum of the durations of all attempts.
    pub runtime: Duration,
    /// Number of workers.
    pub slots: u32,
    /// CPUs of all hosts; 0 if it is not filled in, as in the original.
    pub cpus: u32,
}

impl SummaryRecord<'_> {
    /// Appends the record and a line feed.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Self {
            tasks,
            submitted,
            succeeded,
            failed,
            pid,
            slots,
            cpus,
            ..
        } = self;
        let stat = if self.success { "ok" } else { "failed" };
        let (start, duration) = (iso_time(self.start), seconds(self.duration));
        write!(
            out,
            "[cluster-summary stat=\"{stat}\", tasks={tasks}, submitted={submitted}, \
             succeeded={succeeded}, failed={failed}, extra=0, start=\"{start}\", \
             duration={duration}, pid={pid}, app=\""
        )
        .expect("writing to memory does not fail");
        out.extend_from_slice(self.app);
        writeln!(
            out,
            "\", runtime={}, slots={slots}, cpus={cpus}]",
            seconds(self.runtime)
        )
        .expect("writing to memory does not fail");
    }
}

/// Formats a time as `2026-03-04T05:06:07.089+01:00`, rounded to milliseconds.
pub(crate) fn iso_time(at: DateTime<FixedOffset>) -> impl std::fmt::Display {
    at.round_subsecs(3).format("%Y-%m-%dT%H:%M:%S%.3f%:z")
}

/// Formats seconds with three decimals, rounded.
pub(crate) fn seconds(duration: Duration) -> String {
    let millis = TaskRecord::duration_ms(duration);
    format!("{}.{:03}", millis / 1000, millis % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> DateTime<FixedOffset> {
        DateTime::parse_from_rfc3339(text).unwrap()
    }

    fn task() -> TaskRecord<'static> {
        TaskRecord {
            id: None,
            name: b"a",
            start: time("2026-03-04T05:06:07.0894+01:00"),
            duration: Duration::from_micros(1_234_500),
            status: 768,
            app: b"/bin/echo",
            hostname: "n1",
            slot: 3,
            cpus: 1,
            memory_mb: 0,
        }
    }

    fn text(record: &TaskRecord<'_>) -> String {
        let mut out = Vec::new();
        record.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_task_record_has_all_fields() {
        assert_eq!(
            text(&task()),
            "[cluster-task name=a, start=\"2026-03-04T05:06:07.089+01:00\", duration=1.235, status=768, \
             app=\"/bin/echo\", hostname=\"n1\", slot=3, cpus=1, memory=0]\n"
        );
        assert!(
            text(&TaskRecord {
                id: Some(b"17"),
                ..task()
            })
            .starts_with("[cluster-task id=17, name=a, ")
        );
    }

    #[test]
    fn rounding_carries_into_the_second() {
        let record = TaskRecord {
            start: time("2026-12-31T23:59:59.9996-00:30"),
            ..task()
        };
        assert!(
            text(&record).contains("start=\"2027-01-01T00:00:00.000-00:30\""),
            "{}",
            text(&record)
        );
    }

    #[test]
    fn a_record_may_be_long() {
        let name = vec![b'x'; 100_000];
        assert!(
            text(&TaskRecord {
                name: &name,
                ..task()
            })
            .len()
                > 100_000
        );
    }

    #[test]
    fn a_summary_record_has_all_fields() {
        let mut out = Vec::new();
        SummaryRecord {
            success: true,
            tasks: 4,
            submitted: 5,
            succeeded: 4,
            failed: 1,
            start: time("2026-03-04T05:06:07+00:00"),
            duration: Duration::from_secs(2),
            pid: 99,
            app: b"./pegasus-mpi-cluster",
            runtime: Duration::from_millis(1500),
            slots: 2,
            cpus: 0,
        }
        .write(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "[cluster-summary stat=\"ok\", tasks=4, submitted=5, succeeded=4, failed=1, extra=0, \
             start=\"2026-03-04T05:06:07.000+00:00\", duration=2.000, pid=99, app=\"./pegasus-mpi-cluster\", \
             runtime=1.500, slots=2, cpus=0]\n"
        );
    }
}
