//! `jobstate.log` as `.dagman.out`, which the loader reads, for runs that have only the former.

use std::io::{self, BufWriter, Write as _};
use std::path::Path;

use chrono::{DateTime, Local, NaiveDateTime};
use monitord_compat::dagman_out::{self, Stamp};
use rustc_hash::FxHashMap;

use crate::dir::RunDir;
use crate::events::{Event, EventLog, Micros, SECOND, TaskRef};

/// Writes `jobstate.log` of a run in the format of `.dagman.out` into the file `path`. Returns false without
/// that log.
///
/// # Errors
/// The log cannot be read, or the file cannot be written.
pub(super) fn convert(dir: &RunDir, path: &Path) -> io::Result<bool> {
    let Some(mut log) = EventLog::open(&dir.dagman_out(), &dir.jobstate_log())? else {
        return Ok(false);
    };
    let name = dir.dag.file_name().unwrap_or_default().as_encoded_bytes();
    let mut out = BufWriter::new(pmc_files::create_anew(path)?);
    let mut conversion = Conversion {
        dag: name,
        numbers: FxHashMap::default(),
        stamp: (Micros::MIN, Stamp::new(local(0))),
        text: Vec::new(),
    };
    let mut written = Ok(());
    log.read(|time, event| {
        conversion.text.clear();
        conversion.event(time, event);
        if written.is_ok() {
            written = out.write_all(&conversion.text);
        }
    })?;
    written?;
    out.flush()?;
    Ok(true)
}

struct Conversion<'a> {
    /// Name of the DAG file.
    dag: &'a [u8],
    /// The last submit number of each task: not all lines have it.
    numbers: FxHashMap<Vec<u8>, u64>,
    /// A second, and how it is written.
    stamp: (Micros, Stamp),
    text: Vec<u8>,
}

impl Conversion<'_> {
    fn event(&mut self, time: Micros, event: Event<'_>) {
        let second = time.div_euclid(SECOND);
        if self.stamp.0 != second {
            self.stamp = (second, Stamp::new(local(second)));
        }
        let (out, stamp) = (&mut self.text, &self.stamp.1);
        let number = |task: TaskRef<'_>| self.numbers.get(task.name).copied().unwrap_or_default();
        match event {
            // The log does not name the process.
            Event::Process(_) => {}
            Event::RunStart => {
                dagman_out::start(out, stamp, 0, self.dag);
                self.numbers.clear();
            }
            Event::RunEnd(status) => dagman_out::finish(out, stamp, 0, status == 0),
            Event::Queued(task) if task.submit_number == 0 => dagman_out::preparing(out, stamp, task.name),
            Event::Queued(task) => {
                let number = u64::from(task.submit_number);
                dagman_out::queued(out, stamp, task.name, number);
                self.numbers.insert(task.name.to_owned(), number);
            }
            Event::Started(task) => dagman_out::started(out, stamp, task.name, number(task)),
            Event::Unplanned(task, status) => dagman_out::prepared(out, stamp, task.name, status),
            Event::Reason(task, reason) => {
                let number = u64::from(task.submit_number);
                dagman_out::reason(out, stamp, task.name, number, reason);
            }
            Event::Ended(task, status) => dagman_out::ended(out, stamp, task.name, number(task), status),
            Event::Lost(task) => dagman_out::evicted(out, stamp, task.name, number(task)),
            Event::Abandoned(task) => dagman_out::aborted(out, stamp, task.name, number(task)),
        }
    }
}

/// Returns the local time of a second since the epoch.
fn local(second: i64) -> NaiveDateTime {
    let time = DateTime::from_timestamp(second, 0).unwrap_or_default();
    time.with_timezone(&Local).naive_local()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::tests::TestRun;

    /// Both logs of a run say the same. Only whole seconds are left, and the line about the failure of a
    /// task that was lost too often.
    #[test]
    fn the_loader_reads_what_the_log_says() {
        let run = TestRun::new("TASK a x\nTASK b x\nTASK c x\n");
        let lines = [
            "100.5 INTERNAL *** PMC_STARTED ***",
            "100.6 a SUBMIT 1.0 - - 1",
            "100.6 a EXECUTE 1.0 - - 1",
            "100.7 b SUBMIT 2.0 - - 2",
            "100.7 b EXECUTE 2.0 - - 2",
            "101.0 a JOB_TERMINATED 1.0 - - 1",
            "101.0 a JOB_FAILURE 768 - - 1",
            "101.0 a SUBMIT 3.0 - - 3",
            "101.0 a EXECUTE 3.0 - - 3",
            "102.0 b JOB_EVICTED 2.0 - - 2",
            "102.0 b SUBMIT 4.0 - - 4",
            "102.1 b EXECUTE 4.0 - - 4",
            "103.0 a JOB_SUCCESS 0 - - 3",
            "104.0 INTERNAL *** PMC_REASON b 4.0 time_limit 2000000 ***",
            "104.0 b JOB_FAILURE 15 - - 4",
            "105.0 INTERNAL *** PMC_FINISHED 1 ***",
        ];
        let states: String = lines.iter().map(|line| format!("1700000{line}\n")).collect();
        run.append("jobstate.log", &states);
        let before = run.open();
        let path = run.dir.path().join("copy");
        assert!(convert(&before.dir, &path).unwrap());
        std::fs::rename(&path, run.dir.path().join("w.dag.dagman.out")).unwrap();
        let after = run.open();
        let facts = |history: &crate::history::History| {
            let attempts = history.attempts.iter().enumerate();
            let attempts: Vec<_> = attempts
                .map(|(number, attempt)| {
                    (
                        attempt.task,
                        attempt.status,
                        attempt.end / SECOND,
                        attempt.was_evicted(),
                        history.submit_number(number),
                        history.reason(number).is_some(),
                    )
                })
                .collect();
            (attempts, history.all(), history.phase())
        };
        assert_eq!(facts(&before), facts(&after));
        assert_eq!(before.attempts.len(), 4);

        let none = TestRun::new("TASK a x\n");
        assert!(!convert(&none.open().dir, &none.dir.path().join("copy")).unwrap());
    }
}
