//! `[cluster-task …]` and `[cluster-summary …]` as pegasus-cluster 5.1 writes them. Those of
//! pegasus-mpi-cluster, which have other keys, are in [`crate::cluster_record`].

use std::io::Write as _;
use std::time::Duration;

use chrono::{DateTime, FixedOffset};

use crate::cluster_record::{iso_time, seconds};

/// The place of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The command before the list.
    Setup,
    /// A command of the list.
    Listed {
        /// Number, counted from 1.
        number: u64,
        /// Line, counted from 1.
        line: u64,
    },
    /// The command after the list.
    Cleanup,
}

/// The outcome of one command.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskRecord<'a> {
    /// Its place.
    pub place: Place,
    /// Start, local time.
    pub start: DateTime<FixedOffset>,
    /// Duration.
    pub duration: Duration,
    /// Raw wait status.
    pub status: i32,
    /// Process id; 0 if it did not start.
    pub pid: u32,
    /// Program.
    pub app: &'a [u8],
}

/// The outcome of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryRecord<'a> {
    /// True if the exit code is 0.
    pub success: bool,
    /// Number of the last line read.
    pub lines: u64,
    /// Number of commands run.
    pub tasks: u64,
    /// Commands that succeeded.
    pub succeeded: u64,
    /// Commands that failed.
    pub failed: u64,
    /// Number of commands before and after the list.
    pub extra: u64,
    /// Duration so far.
    pub duration: Duration,
    /// Start, local time.
    pub start: DateTime<FixedOffset>,
    /// Process id of pegasus-cluster.
    pub pid: u32,
    /// pegasus-cluster as it was called.
    pub app: &'a [u8],
}

impl TaskRecord<'_> {
    /// Appends the record and a line feed.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (start, duration) = (iso_time(self.start), seconds(self.duration));
        let (id, line) = match self.place {
            Place::Setup => ("setup".to_owned(), String::new()),
            Place::Listed { number, line } => (number.to_string(), format!("line={line}, ")),
            Place::Cleanup => ("cleanup".to_owned(), String::new()),
        };
        write!(
            out,
            "[cluster-task id={id}, start=\"{start}\", duration={duration}, status={}, {line}pid={}, app=\"",
            self.status, self.pid
        )
        .expect("writing to memory does not fail");
        push_app(self.app, out);
        out.extend_from_slice(b"\"]\n");
    }
}

impl SummaryRecord<'_> {
    /// Appends the record and a line feed.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Self {
            lines,
            tasks,
            succeeded,
            failed,
            extra,
            pid,
            ..
        } = self;
        let stat = if self.success { "ok" } else { "fail" };
        let (start, duration) = (iso_time(self.start), seconds(self.duration));
        write!(
            out,
            "[cluster-summary stat=\"{stat}\", lines={lines}, tasks={tasks}, succeeded={succeeded}, \
             failed={failed}, extra={extra}, duration={duration}, start=\"{start}\", pid={pid}, app=\""
        )
        .expect("writing to memory does not fail");
        push_app(self.app, out);
        out.extend_from_slice(b"\"]\n");
    }
}

/// Appends the name of a program. It must not contain line feeds or quotes, which would end the line or
/// value.
fn push_app(app: &[u8], out: &mut Vec<u8>) {
    out.extend(app.iter().map(|&b| {
        if b.is_ascii_control() || b == b'"' {
            b'?'
        } else {
            b
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> DateTime<FixedOffset> {
        DateTime::parse_from_rfc3339(text).unwrap()
    }

    #[test]
    fn records_have_all_fields() {
        let task = TaskRecord {
            place: Place::Listed { number: 2, line: 7 },
            start: time("2011-04-27T14:31:25.3421-07:00"),
            duration: Duration::from_micros(618_900),
            status: 256,
            pid: 18544,
            app: b"/bin/usleep",
        };
        let mut out = Vec::new();
        task.write(&mut out);
        TaskRecord {
            place: Place::Setup,
            app: b"a\n\"b",
            ..task
        }
        .write(&mut out);
        SummaryRecord {
            success: false,
            lines: 3,
            tasks: 3,
            succeeded: 2,
            failed: 1,
            extra: 1,
            duration: Duration::from_millis(1143),
            start: time("2011-04-27T14:31:25.338-07:00"),
            pid: 18542,
            app: b"pegasus-cluster",
        }
        .write(&mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "[cluster-task id=2, start=\"2011-04-27T14:31:25.342-07:00\", duration=0.619, status=256, line=7, \
             pid=18544, app=\"/bin/usleep\"]\n\
             [cluster-task id=setup, start=\"2011-04-27T14:31:25.342-07:00\", duration=0.619, status=256, \
             pid=18544, app=\"a??b\"]\n\
             [cluster-summary stat=\"fail\", lines=3, tasks=3, succeeded=2, failed=1, extra=1, duration=1.143, \
             start=\"2011-04-27T14:31:25.338-07:00\", pid=18542, app=\"pegasus-cluster\"]\n"
        );
    }

    #[test]
    fn the_reader_reads_the_records() {
        let mut out = Vec::new();
        TaskRecord {
            place: Place::Listed { number: 1, line: 1 },
            start: time("2026-03-04T05:06:07+00:00"),
            duration: Duration::from_millis(250),
            status: 9,
            pid: 5,
            app: b"/bin/x",
        }
        .write(&mut out);
        let task = crate::cluster_record_reader::task(std::str::from_utf8(&out).unwrap()).unwrap();
        assert_eq!(task.id.as_deref(), Some("1"));
        assert_eq!((task.duration, task.status), (Some(0.25), Some(9)));
        assert_eq!(task.app.as_deref(), Some("/bin/x"));
    }
}
