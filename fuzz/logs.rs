//! What monitoring reads of a run: its logs, records and facts.

use std::io::Write as _;
use std::path::Path;

use monitord_compat::batch_jobs as batch_jobs_reader;
use monitord_compat::braindump_reader::Braindump;
use monitord_compat::job_output_reader::{JobOutput, text_outside_records};
use monitord_compat::run_end::EndOfRun;
use monitord_compat::static_bp_reader::Event;
use monitord_compat::{braindump, dagman_out, dagman_out_reader, jobstate_log};
use pmc_monitor::events::EventLog;

const RECORD: &str = "- invocation: True\n  transformation: \"t\"\n  mainjob:\n    status:\n      raw: 0\n";
const CLUSTER_TASK: &str = "[cluster-task id=4, name=a, start=\"2026-11-21T07:28:44.084+00:00\", duration=0.051, \
                            status=0, app=\"/x\", hostname=\"n\", slot=1, cpus=1, memory=0]\n";

/// Output of a job: invocation records and others. Records before and after it are found.
pub fn invocation_record(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let output = JobOutput::read(&text);
    let lines = text.split('\n').count();
    for (line, _) in &output.damage {
        assert!((1..=lines).contains(line), "line {line} of {lines}");
    }
    if let Some(record) = output.decisive_invocation() {
        assert!(output.invocations.contains(record));
    }
    assert!(text_outside_records(&text).lines().count() <= lines);
    let more = JobOutput::read(&format!("{RECORD}{CLUSTER_TASK}{text}\n{CLUSTER_TASK}{RECORD}"));
    assert!(more.invocations.len() >= 2 && more.tasks.len() >= 2);
    assert_eq!(more.invocations.first(), more.invocations.last());
}

/// Calls the readers of the front end with a log in a file.
fn follow(data: &[u8], is_dagman: bool) {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file can be made");
    let none = Path::new("/none");
    let log = if is_dagman {
        EventLog::open(file.path(), none)
    } else {
        EventLog::open(none, file.path())
    };
    let mut log = log.expect("it is a regular file").expect("it exists");
    let mut count = 0;
    // A log grows while it is read.
    let (first, second) = data.split_at(data.len() / 2);
    for part in [first, second] {
        file.write_all(part).expect("the file can be written");
        log.read(|_, _| count += 1).expect("the file can be read");
    }
    assert!(count <= data.len(), "an event needs a line");
}

/// A `.dagman.out`.
pub fn dagman_out(data: &[u8]) {
    for line in data.split(|byte| *byte == b'\n') {
        let _ = dagman_out_reader::read(line);
        let _ = dagman_out_reader::read_rest(line);
        if let Some(stamp) = dagman_out::Stamp::of(line) {
            assert!(stamp.begins(line));
            let mut written = Vec::new();
            dagman_out::finish(&mut written, &stamp, 1, true);
            assert!(dagman_out::is_finish(&written) && !written[..written.len() - 1].contains(&b'\n'));
        }
        if let Some(task) = dagman_out::submitted(line) {
            assert!(task.len() < line.len());
        }
        let _ = (dagman_out::pid(line), dagman_out::is_finish(line));
    }
    follow(data, true);
}

/// A `jobstate.log`.
pub fn jobstate_log(data: &[u8]) {
    for line in data.split_inclusive(|byte| *byte == b'\n') {
        if let Some((at, _)) = jobstate_log::time_and_finish(line) {
            let mut written = Vec::new();
            jobstate_log::finish(&mut written, at, true);
            assert_eq!(jobstate_log::time_and_finish(&written), Some((at, true)));
        }
    }
    follow(data, false);
}

/// The events of the planner.
pub fn static_bp(data: &[u8]) {
    for line in String::from_utf8_lossy(data).lines() {
        if let Some(event) = Event::read(line) {
            assert!(event.name.len() <= line.len());
            let _ = event.get("xwf.id");
        }
    }
}

/// A `braindump.yml`. Any text can be one of its values.
pub fn braindump(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Err(error) = Braindump::read(&text) {
        assert!((1..=text.len() + 1).contains(&error.line), "{error}");
    }
    let written = braindump::write(&[("dax".to_owned(), Some(text.clone().into_owned()))]);
    let read = Braindump::read(&written).expect("what is written can be read");
    assert_eq!(read.get("dax"), Some(&*text));
}

/// The ledger of a run, and the line about its end. What is read is written as it was.
pub fn batch_jobs(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for entry in batch_jobs_reader::parse(&text) {
        let again = batch_jobs_reader::parse(&entry.line());
        // Times are read as JSON has them, and may differ in their last bit.
        let again: Vec<_> = again.iter().map(|again| (&again.job, &again.event)).collect();
        assert_eq!(again, [(&entry.job, &entry.event)]);
    }
    if let Some(end) = EndOfRun::parse(&text) {
        assert_eq!(EndOfRun::parse(&end.line()), Some(end));
    }
}
