//! Reads the records `[cluster-task …]` and `[cluster-summary …]` of pegasus-mpi-cluster
//! ([`crate::cluster_record`]) and pegasus-cluster ([`crate::sequence_record`]).

use crate::record_reader::{epoch, finite};

/// A `[cluster-task …]` record, as far as monitoring uses it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterTask {
    /// Identifier from the `#@` line or, in a cluster, the number of the task.
    pub id: Option<String>,
    /// Name of the task; pegasus-cluster writes none.
    pub name: Option<String>,
    /// Seconds since the epoch.
    pub start: Option<f64>,
    /// Seconds.
    pub duration: Option<f64>,
    /// Raw wait status.
    pub status: Option<i64>,
    /// Program.
    pub app: Option<String>,
    /// Host where it ran; pegasus-cluster writes none.
    pub hostname: Option<String>,
}

/// A `[cluster-summary …]` record, as far as monitoring uses it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterSummary {
    /// Seconds since the epoch.
    pub start: Option<f64>,
    /// Seconds.
    pub duration: Option<f64>,
}

/// Beginning of the record of a task.
pub const TASK: &str = "[cluster-task ";
/// Beginning of the record of a cluster.
pub const SUMMARY: &str = "[cluster-summary ";

/// Reads a record that begins with [`TASK`]; `None` without it or without an end.
#[must_use]
pub fn task(line: &str) -> Option<ClusterTask> {
    let mut task = ClusterTask::default();
    let text = |value: &str| Some(value.to_owned());
    pairs(line.strip_prefix(TASK)?, |key, value| match key {
        "id" => task.id = text(value),
        "name" => task.name = text(value),
        "start" => task.start = epoch(value),
        "duration" => task.duration = finite(value),
        "status" => task.status = value.parse().ok(),
        "app" => task.app = text(value),
        "hostname" => task.hostname = text(value),
        _ => {}
    })?;
    Some(task)
}

/// Reads a record that begins with [`SUMMARY`]; `None` without it or without an end.
#[must_use]
pub fn summary(line: &str) -> Option<ClusterSummary> {
    let mut summary = ClusterSummary::default();
    pairs(line.strip_prefix(SUMMARY)?, |key, value| match key {
        "start" => summary.start = epoch(value),
        "duration" => summary.duration = finite(value),
        _ => {}
    })?;
    Some(summary)
}

/// Calls `take` with each key and value. `None` if the record has no end.
fn pairs(mut text: &str, mut take: impl FnMut(&str, &str)) -> Option<()> {
    loop {
        text = text.trim_start_matches([',', ' ']);
        if text.starts_with(']') {
            return Some(());
        }
        let (key, rest) = text.split_once('=')?;
        let (value, rest) = match rest.strip_prefix('"') {
            Some(rest) => rest.split_once('"')?,
            // A name may contain any character but a blank.
            None => match rest.split_once(", ") {
                Some((value, rest)) => (value, rest),
                None => (rest.strip_suffix(']')?, "]"),
            },
        };
        take(key, value);
        text = rest;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::DateTime;
    use proptest::prelude::*;

    use super::*;
    use crate::cluster_record::TaskRecord;

    #[test]
    fn reads_what_is_written() {
        let mut out = Vec::new();
        TaskRecord {
            id: Some(b"7"),
            name: b"a]b",
            start: DateTime::parse_from_rfc3339("2026-03-04T05:06:07.089+01:00").unwrap(),
            duration: Duration::from_millis(1234),
            status: 768,
            app: b"/bin/echo",
            hostname: "n1",
            slot: 3,
            cpus: 1,
            memory_mb: 0,
        }
        .write(&mut out);
        let read = task(String::from_utf8(out).unwrap().trim_end()).unwrap();
        let expected = ClusterTask {
            id: Some("7".to_owned()),
            name: Some("a]b".to_owned()),
            start: Some(1_772_597_167.089),
            duration: Some(1.234),
            status: Some(768),
            app: Some("/bin/echo".to_owned()),
            hostname: Some("n1".to_owned()),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn a_summary_is_no_task() {
        let line = "[cluster-summary stat=\"ok\", lines=6, tasks=3, succeeded=3, failed=0, extra=0, duration=0.047, \
                    start=\"2026-11-21T07:28:44.086+00:00\", pid=1, app=\"/x\"]";
        let expected = ClusterSummary {
            start: Some(1_795_246_124.086),
            duration: Some(0.047),
        };
        assert_eq!(summary(line), Some(expected));
        assert_eq!(task(line), None);
    }

    proptest! {
        #[test]
        fn a_torn_record_is_none(cut in 0_usize..60) {
            let line = "[cluster-task id=1, name=x, start=\"2026-11-21T07:28:44.086+00:00\", duration=1]";
            prop_assert_eq!(task(&line[..cut]), None);
        }

        #[test]
        fn never_panics(text in "([a-c,=\"\\] é]|\\PC){0,60}") {
            let _ = task(&format!("{TASK}{text}"));
        }
    }
}
