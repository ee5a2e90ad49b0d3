//! Reads the output file of a job: invocation records of kickstart, records of clusters, parts that a job
//! script added, and other text between them.

use crate::cluster_record_reader::{self as cluster, ClusterSummary, ClusterTask};
use crate::record_reader::{Record, RecordError};

/// First line of a part that a job script added.
const MULTIPART: &str = "---------------pegasus-multipart";
const INVOCATION: &str = "- invocation:";

/// The records of one file, in the order of the file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobOutput {
    /// Invocation records.
    pub invocations: Vec<Record>,
    /// `[cluster-task …]` records.
    pub tasks: Vec<ClusterTask>,
    /// The first `[cluster-summary …]` record.
    pub summary: Option<ClusterSummary>,
    /// Sum of all checks of input files.
    pub integrity: Option<IntegritySummary>,
    /// Damage, with the line of the file where the record begins, counted from 1.
    pub damage: Vec<(usize, RecordError)>,
}

/// The `integrity_summary` of pegasus-integrity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IntegritySummary {
    /// Files whose checksum is right.
    pub succeeded: i64,
    /// Files whose checksum is wrong.
    pub failed: i64,
    /// Seconds.
    pub duration: f64,
}

impl JobOutput {
    /// Reads the text of a file. Other text than records is skipped.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let mut output = Self::default();
        let mut part = Part::Text;
        let mut number = 0;
        let mut at = 0;
        while at < text.len() {
            let start = at;
            let length = memchr::memchr(b'\n', &text.as_bytes()[at..]).map_or(text.len() - at, |end| end + 1);
            at += length;
            number += 1;
            let line = &text[start..at];
            let inside = matches!(part, Part::Invocation { .. });
            // All lines inside a record are indented. Outside, a record may follow output without a line
            // feed.
            let first = line.as_bytes()[0];
            if inside && matches!(first, b' ' | b'\n') {
                if at == text.len()
                    && let Some(task) = cluster_record(line)
                {
                    // The job was killed in the middle of a line.
                    output.end(text, &part, start);
                    part = Part::Text;
                    output.cluster_line(task);
                }
                continue;
            }
            let invocation = line.find(INVOCATION).filter(|at| *at == 0 || !inside);
            let record = if invocation.is_some() {
                None
            } else {
                cluster_record(line)
            };
            let multipart = line.starts_with(MULTIPART);
            if invocation.is_none() && record.is_none() && !multipart {
                continue;
            }
            output.end(text, &part, start);
            part = match (invocation, record) {
                (Some(_), _) => Part::Invocation {
                    from: at,
                    line: number,
                },
                (None, Some(record)) => {
                    output.cluster_line(record);
                    Part::Text
                }
                (None, None) => Part::Multipart { from: at },
            };
        }
        output.end(text, &part, text.len());
        output
    }

    /// Returns the invocation that explains how the job ended: the first that failed, as clusters stop there,
    /// else the last one.
    #[must_use]
    pub fn decisive_invocation(&self) -> Option<&Record> {
        let mut complete = self
            .invocations
            .iter()
            .filter(|record| record.main.raw_status.is_some());
        let failed = complete.clone().find(|record| record.main.raw_status != Some(0));
        failed.or_else(|| complete.next_back())
    }

    fn end(&mut self, text: &str, part: &Part, end: usize) {
        match *part {
            Part::Text => {}
            Part::Invocation { from, line } => {
                let (record, error) = Record::read(&text[from..end]);
                self.damage.extend(error.map(|error| (line, error)));
                self.invocations.push(record);
            }
            Part::Multipart { from } => {
                if let Some(summary) = integrity_summary(&text[from..end]) {
                    let all = self.integrity.get_or_insert_default();
                    all.succeeded = all.succeeded.saturating_add(summary.succeeded);
                    all.failed = all.failed.saturating_add(summary.failed);
                    all.duration += summary.duration;
                }
            }
        }
    }

    fn cluster_line(&mut self, line: &str) {
        if let Some(task) = cluster::task(line) {
            self.tasks.push(task);
        } else if let Some(summary) = cluster::summary(line) {
            self.summary.get_or_insert(summary);
        }
    }
}

/// The part of a file that is being read.
#[derive(Clone, Copy)]
enum Part {
    /// Text outside of records.
    Text,
    Invocation {
        from: usize,
        line: usize,
    },
    Multipart {
        from: usize,
    },
}

/// Returns the record of a cluster or task at the end of a line.
fn cluster_record(line: &str) -> Option<&str> {
    let at = memchr::memmem::find(line.as_bytes(), b"[cluster-")?;
    let record = line[at..].trim_end();
    (record.starts_with(cluster::TASK) || record.starts_with(cluster::SUMMARY)).then_some(record)
}

/// Returns the text outside of records: what programs without kickstart printed.
#[must_use]
pub fn text_outside_records(text: &str) -> String {
    let mut rest = String::new();
    let mut inside = false;
    for line in text.lines() {
        if line.contains(INVOCATION) {
            inside = true;
        } else if line.starts_with("[cluster-") {
            inside = false;
            continue;
        }
        if !inside {
            rest.push_str(line);
            rest.push('\n');
        }
    }
    rest
}

fn integrity_summary(text: &str) -> Option<IntegritySummary> {
    let mut summary = IntegritySummary::default();
    let mut lines = text
        .lines()
        .skip_while(|line| !line.starts_with("- integrity_summary:"));
    lines.next()?;
    for line in lines.take_while(|line| line.starts_with(' ')) {
        let (key, value) = line.trim().split_once(": ")?;
        match key {
            "succeeded" => summary.succeeded = value.parse().ok()?,
            "failed" => summary.failed = value.parse().ok()?,
            "duration" => summary.duration = value.parse().ok().filter(|value: &f64| value.is_finite())?,
            _ => {}
        }
    }
    Some(summary)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RECORD: &str =
        "- invocation: True\n  transformation: \"t\"\n  mainjob:\n    status:\n      raw: 0\n";
    const TASK: &str = "[cluster-task id=4, name=a, start=\"2026-11-21T07:28:44.084+00:00\", duration=0.051, \
                        status=0, app=\"/x\", hostname=\"n\", slot=1, cpus=1, memory=0]\n";

    #[test]
    fn a_cluster_has_several_records() {
        let summary =
            "[cluster-summary stat=\"ok\", duration=0.5, start=\"2026-11-21T07:28:44.084+00:00\"]\n";
        let output = JobOutput::read(&format!("hello{RECORD}{TASK}{RECORD}{TASK}{summary}{TASK}"));
        assert_eq!((output.invocations.len(), output.tasks.len()), (2, 3));
        assert_eq!(output.summary.and_then(|summary| summary.duration), Some(0.5));
        assert!(output.damage.is_empty());
    }

    #[test]
    fn adjacent_records_are_separate() {
        assert_eq!(
            JobOutput::read(&format!("{RECORD}{RECORD}{TASK}"))
                .invocations
                .len(),
            2
        );
    }

    #[test]
    fn captured_output_that_looks_like_a_record_is_skipped() {
        let text = format!(
            "{RECORD}  files:\n    stdout:\n      data: |\n        - invocation: True\n        {TASK}{TASK}"
        );
        let output = JobOutput::read(&text);
        assert_eq!((output.invocations.len(), output.tasks.len()), (1, 1));
    }

    #[test]
    fn a_torn_record_keeps_its_first_fields() {
        let output = JobOutput::read(&format!(
            "- invocation: True\n  transformation: \"t\"\n  start: 202{TASK}"
        ));
        assert_eq!(output.tasks.len(), 1);
        assert_eq!(output.invocations[0].transformation.as_deref(), Some("t"));
        assert_eq!(output.damage, [(1, RecordError::Incomplete)]);
    }

    #[test]
    fn damage_affects_one_record_only() {
        let output = JobOutput::read(&format!("{RECORD}- invocation: True\n  a: [\n{RECORD}{TASK}"));
        assert_eq!(output.invocations.len(), 3);
        assert!(
            matches!(output.damage[..], [(6, RecordError::NotYaml { .. })]),
            "{:?}",
            output.damage
        );
        assert_eq!(output.invocations[2], output.invocations[0]);
    }

    #[test]
    fn integrity_checks_are_summed_up() {
        let part = format!(
            "{MULTIPART}\n- integrity_verification_attempts:\n  - lfn: \"f\"\n- integrity_summary:\n    succeeded: 4\n    failed: 3\n    duration: 0.432\n"
        );
        let output = JobOutput::read(&format!("{part}{RECORD}{part}{TASK}"));
        assert_eq!(
            output.integrity,
            Some(IntegritySummary {
                succeeded: 8,
                failed: 6,
                duration: 0.864
            })
        );
        assert_eq!(output.invocations.len(), 1);
    }

    #[test]
    fn the_first_failure_is_decisive() {
        let failed = RECORD.replace("raw: 0", "raw: 256").replace("\"t\"", "\"bad\"");
        let name = |text: &str| {
            let output = JobOutput::read(text);
            output
                .decisive_invocation()
                .and_then(|record| record.transformation.clone())
        };
        assert_eq!(
            name(&format!("{RECORD}{failed}{RECORD}{TASK}")).as_deref(),
            Some("bad")
        );
        assert_eq!(name(RECORD).as_deref(), Some("t"));
        assert_eq!(name("- invocation: True\n  transformation: \"t\"\n"), None);
    }

    #[test]
    fn text_outside_records_is_what_programs_printed() {
        assert_eq!(
            text_outside_records(&format!("hello\nworld\n{TASK}")),
            "hello\nworld\n"
        );
        assert_eq!(text_outside_records(RECORD), "");
    }

    proptest! {
        #[test]
        fn never_panics(parts in prop::collection::vec(prop_oneof![
            Just(RECORD.to_owned()), Just(TASK.to_owned()), Just(format!("{MULTIPART}\n")),
            "([a-c:\"'\n>|&*\\-\\[\\]{}? \\\\]|\\PC){0,20}", (0..RECORD.len()).prop_map(|n| RECORD[..n].to_owned()),
            (0..TASK.len()).prop_map(|n| TASK[..n].to_owned()),
        ], 0..8)) {
            let _ = JobOutput::read(&parts.concat());
        }
    }
}
