//! Explains a failed task from the files of its last attempt.

use std::borrow::Cow;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use monitord_compat::job_output_reader::{JobOutput, text_outside_records};
use pmc_packed::{Channel, TaskOutput};

use crate::ending::Ending;

/// Maximum lines of output to keep.
const MAX_LINES: usize = 10;
/// Maximum bytes to read of an output file: records are small, other output may not be.
const MAX_READ: u64 = 16 << 20;

/// Last lines of an output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The lines.
    pub lines: Vec<String>,
    /// Number of lines before them.
    pub omitted: usize,
}

impl Tail {
    /// Returns the last `count` lines of a text, without empty lines at both ends.
    #[must_use]
    pub fn of(text: &str, count: usize) -> Self {
        let lines: Vec<&str> = text
            .trim_end()
            .lines()
            .skip_while(|line| line.trim().is_empty())
            .collect();
        let omitted = lines.len().saturating_sub(count);
        Tail {
            lines: lines[omitted..].iter().map(|line| (*line).to_owned()).collect(),
            omitted,
        }
    }

    /// Returns whether there are no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// A task that failed for good.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedTask {
    /// Name of the task.
    pub task: String,
    /// Transformation, if the record names it.
    pub transformation: Option<String>,
    /// Program and arguments, if the record names them.
    pub command: Vec<String>,
    /// Ending of its program, or of the task if there is no record.
    pub ending: Ending,
    /// Duration of the last attempt.
    pub duration: Option<Duration>,
    /// Number of attempts.
    pub attempts: u32,
    /// Host of the last attempt.
    pub host: Option<String>,
    /// End of standard error.
    pub stderr: Tail,
    /// End of standard output.
    pub stdout: Tail,
    /// Remark on the failure, for instance of the wrapper.
    pub note: Option<String>,
    /// Working directory of the program.
    pub directory: Option<String>,
    /// Variables that the plan sets for the program, as `KEY=VALUE`.
    pub environment: Vec<String>,
    /// Script that sets further variables, which are secret, and runs its arguments.
    pub secrets: Option<String>,
    /// File of standard input.
    pub stdin: Option<String>,
    /// Peak resident memory of the program, KiB.
    pub peak_kib: Option<u64>,
    /// File or pack with the record and standard output of the task.
    pub output_file: Option<PathBuf>,
}

/// The last attempt of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastAttempt {
    /// Name of the task.
    pub task: String,
    /// Raw wait status.
    pub status: i32,
    /// Duration.
    pub runtime: Option<Duration>,
}

/// Note on a failed attempt whose program succeeded.
pub(crate) const SUCCEEDED: &str = "the program succeeded, but kickstart reported a failure";

/// Explains why a task failed, from the output of its last attempt.
#[must_use]
pub fn explain(place: &mut TaskOutput, last: &LastAttempt, attempts: u32) -> FailedTask {
    let (out_file, out, err) = read_output(place, &last.task);
    let mut failure = FailedTask {
        task: last.task.clone(),
        transformation: None,
        command: Vec::new(),
        ending: Ending::from_wait_status(last.status),
        duration: last.runtime,
        attempts,
        host: None,
        stderr: Tail::of(&err, MAX_LINES),
        stdout: Tail::default(),
        note: None,
        directory: None,
        environment: Vec::new(),
        secrets: None,
        stdin: None,
        peak_kib: None,
        output_file: out_file,
    };
    let output = JobOutput::read(&out);
    let Some(record) = output.decisive_invocation() else {
        failure.stdout = Tail::of(&text_outside_records(&out), MAX_LINES);
        failure.note = Some("no invocation record".into());
        return failure;
    };
    let raw = record.main.raw_status.and_then(|raw| i32::try_from(raw).ok());
    if let Some(raw) = raw.filter(|&raw| raw != 0) {
        failure.ending = Ending::from_wait_status(raw);
        if let Some(why) = &record.main.start_error {
            failure.note = Some(
                why.trim_start_matches(|c: char| c.is_ascii_digit())
                    .trim()
                    .to_owned(),
            );
        }
    } else {
        failure.note = Some(SUCCEEDED.into());
    }
    // Messages of the wrapper follow those of the program.
    let captured = without_notices(record.stderr.as_deref().unwrap_or_default());
    failure.stderr = Tail::of(&format!("{}\n{err}", captured.trim_end()), MAX_LINES);
    failure.stdout = Tail::of(record.stdout.as_deref().unwrap_or_default(), MAX_LINES);
    let command = record.main.executable.iter().chain(&record.main.arguments);
    failure.command = command.cloned().collect();
    failure.transformation.clone_from(&record.transformation);
    failure.host.clone_from(&record.host_name);
    failure.directory.clone_from(&record.cwd);
    failure.stdin = record.stdin.clone().filter(|path| path != "/dev/null");
    failure.peak_kib = record.main.max_rss.and_then(|kib| u64::try_from(kib).ok());
    failure
}

/// Removes notices from the log of a failed transfer: lines such as
/// `2026-11-21 10:36:32,251    INFO:  Starting transfers`. Returns other texts unchanged.
fn without_notices(text: &str) -> Cow<'_, str> {
    let level = |line: &str| {
        let (date, rest) = line.split_at_checked(23)?;
        let stamp = date
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b"-: ,".contains(&byte));
        let (level, _) = rest.split_once(':')?;
        stamp.then(|| level.trim().to_owned())
    };
    let notice = |line: &str| matches!(level(line).as_deref(), Some("INFO" | "DEBUG"));
    if !text
        .lines()
        .any(|line| matches!(level(line).as_deref(), Some("ERROR" | "CRITICAL")))
    {
        return Cow::Borrowed(text);
    }
    Cow::Owned(
        text.lines()
            .filter(|line| !notice(line))
            .map(|line| format!("{line}\n"))
            .collect(),
    )
}

/// Returns the file or pack with the output of the last attempt, its text, and the text of standard error.
#[must_use]
pub fn read_output(place: &mut TaskOutput, task: &str) -> (Option<PathBuf>, String, String) {
    let task = task.as_bytes();
    let Some(last) = place.last(task) else {
        return (None, String::new(), String::new());
    };
    let [out, err] = [Channel::Out, Channel::Err].map(|channel| read(place, task, channel, last));
    (place.place(task, last), out, err)
}

fn read(place: &mut TaskOutput, task: &[u8], channel: Channel, number: u32) -> String {
    let mut bytes = Vec::new();
    if let Ok(stream) = place.open(task, channel, number) {
        // The text before a read error is still useful.
        let _ = stream.take(MAX_READ).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(task: &str, status: i32) -> LastAttempt {
        LastAttempt {
            task: task.into(),
            status,
            runtime: Some(Duration::from_millis(18)),
        }
    }

    const RECORD: &str = "- invocation: True\n  transformation: \"work\"\n  hostname: node1\n  mainjob:\n    status:\n      raw: 768\n    \
        executable:\n      file_name: /opt/step\n    argument_vector:\n      - \"-i\"\n  files:\n    stderr:\n      data: |\n        asked to fail\n        \n\
        [cluster-task id=4, name=t, status=768]\n";

    #[test]
    fn the_last_attempt_explains_a_failure() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("file");
        write("t.out.000", "an earlier attempt");
        write("t.out.001", RECORD);
        write("t.err.001", "wrapper: gave up\n");
        let failure = explain(&mut TaskOutput::new(dir.path()), &last("t", 256), 2);
        assert_eq!((failure.ending, failure.attempts), (Ending::Exit(3), 2));
        assert_eq!(failure.stderr.lines, ["asked to fail", "wrapper: gave up"]);
        assert_eq!(failure.command, ["/opt/step", "-i"]);
        assert_eq!(
            failure.output_file.as_deref(),
            Some(dir.path().join("t.out.001").as_path())
        );
        assert_eq!(failure.note, None);
    }

    #[test]
    fn a_task_without_a_record_shows_its_output() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::write(dir.path().join("t.out.000"), "half a result\n").expect("file");
        let mut place = TaskOutput::new(dir.path());
        let failures = [last("t", 9), last("u", 256)].map(|last| explain(&mut place, &last, 1));
        assert_eq!(failures[0].ending, Ending::Signal(9));
        assert_eq!(failures[0].stdout.lines, ["half a result"]);
        assert_eq!(failures[1].output_file, None);
    }

    #[test]
    fn notices_of_transfers_are_removed() {
        let log = "2026-11-21 10:36:32,251    INFO:  1 transfers loaded\n\
            2026-11-21 10:36:32,252   ERROR:  a -> b: no such file\nplain\n";
        assert_eq!(
            without_notices(log),
            "2026-11-21 10:36:32,252   ERROR:  a -> b: no such file\nplain\n"
        );
        let other = "2026-11-21 10:36:32,251    INFO:  all is well\nplain\n";
        assert_eq!(without_notices(other), other);
    }
}
