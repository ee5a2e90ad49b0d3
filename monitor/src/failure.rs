//! Why a task failed, from what its last try left in the submit directory.

use std::borrow::Cow;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use monitord_compat::job_output_reader::{JobOutput, text_outside_records};

use crate::ending::Ending;

/// How many lines of a failed task's output are told.
const TAIL: usize = 10;
/// No more than this is read of an output file: records are small, what is around them may not be.
const READ_LIMIT: u64 = 16 << 20;

/// Some last lines of an output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The lines.
    pub lines: Vec<String>,
    /// How many lines there are before them.
    pub omitted: usize,
}

impl Tail {
    /// The last `count` lines of a text, empty lines at both ends not counted.
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

    /// There is nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// A task that failed for good.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedTask {
    /// Name.
    pub task: String,
    /// Transformation, if the record names it.
    pub transformation: Option<String>,
    /// Program and arguments, if the record names them.
    pub command: Vec<String>,
    /// How its program ended, or the task if there is no record.
    pub ending: Ending,
    /// How long the last try took.
    pub duration: Option<Duration>,
    /// How often it was tried.
    pub tries: u32,
    /// Where it ran.
    pub host: Option<String>,
    /// End of standard error.
    pub stderr: Tail,
    /// End of standard output; looked at if there is no standard error.
    pub stdout: Tail,
    /// What the executor or the wrapper said about it.
    pub note: Option<String>,
    /// Directory that its program ran in.
    pub directory: Option<String>,
    /// Largest resident memory of its program, KiB.
    pub peak_kib: Option<u64>,
    /// File with the record and standard output of the task.
    pub output_file: Option<PathBuf>,
}

/// The last try of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastTry {
    /// Name.
    pub task: String,
    /// Status as `wait` gives it.
    pub status: i32,
    /// How long it took.
    pub runtime: Option<Duration>,
}

/// Why a task failed, from the files that its last try left in the submit directory.
#[must_use]
pub fn explain(submit: &Path, last: &LastTry, tries: u32) -> FailedTask {
    let (out_file, out, err) = output(submit, &last.task);
    let mut failure = FailedTask {
        task: last.task.clone(),
        transformation: None,
        command: Vec::new(),
        ending: Ending::from_wait_status(last.status),
        duration: last.runtime,
        tries,
        host: None,
        stderr: Tail::of(&err, TAIL),
        stdout: Tail::default(),
        note: None,
        directory: None,
        peak_kib: None,
        output_file: out_file,
    };
    let output = JobOutput::read(&out);
    let Some(record) = output.decisive_invocation() else {
        failure.stdout = Tail::of(&text_outside_records(&out), TAIL);
        failure.note = Some("it left no invocation record".into());
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
        failure.note = Some("its program succeeded, but what belongs to it failed".into());
    }
    // The wrapper's own messages follow those of the program.
    let captured = without_notices(record.stderr.as_deref().unwrap_or_default());
    failure.stderr = Tail::of(&format!("{}\n{err}", captured.trim_end()), TAIL);
    failure.stdout = Tail::of(record.stdout.as_deref().unwrap_or_default(), TAIL);
    let command = record.main.executable.iter().chain(&record.main.arguments);
    failure.command = command.cloned().collect();
    failure.transformation.clone_from(&record.transformation);
    failure.host.clone_from(&record.host_name);
    failure.directory.clone_from(&record.cwd);
    failure.peak_kib = record.main.max_rss.and_then(|kib| u64::try_from(kib).ok());
    failure
}

/// Leaves out what is no problem in the log of a transfer: lines such as
/// `2026-11-21 10:36:32,251    INFO:  Starting transfers`. Other texts stay as they are.
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

/// Output file of the last try, its text, and the text on standard error.
fn output(submit: &Path, task: &str) -> (Option<PathBuf>, String, String) {
    let file = |stream: &str, number: u32| submit.join(format!("{task}.{stream}.{number:03}"));
    let Some(last) = (0..).take_while(|&number| file("out", number).exists()).last() else {
        return (None, String::new(), String::new());
    };
    let path = file("out", last);
    let out = read(&path);
    (Some(path), out, read(&file("err", last)))
}

fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        // What was read before an error is still worth showing.
        let _ = file.take(READ_LIMIT).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(task: &str, status: i32) -> LastTry {
        LastTry {
            task: task.into(),
            status,
            runtime: Some(Duration::from_millis(18)),
        }
    }

    const RECORD: &str = "- invocation: True\n  transformation: \"work\"\n  hostname: node1\n  mainjob:\n    status:\n      raw: 768\n    \
        executable:\n      file_name: /opt/step\n    argument_vector:\n      - \"-i\"\n  files:\n    stderr:\n      data: |\n        told to fail\n        \n\
        [cluster-task id=4, name=t, status=768]\n";

    #[test]
    fn the_last_try_explains_a_failure() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("file");
        write("t.out.000", "an earlier try");
        write("t.out.001", RECORD);
        write("t.err.001", "wrapper: gave up\n");
        let failure = explain(dir.path(), &last("t", 256), 2);
        assert_eq!((failure.ending, failure.tries), (Ending::Exit(3), 2));
        assert_eq!(failure.stderr.lines, ["told to fail", "wrapper: gave up"]);
        assert_eq!(failure.command, ["/opt/step", "-i"]);
        assert_eq!(
            failure.output_file.as_deref(),
            Some(dir.path().join("t.out.001").as_path())
        );
        assert_eq!(failure.note, None);
    }

    #[test]
    fn a_task_without_a_record_shows_what_there_is() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::write(dir.path().join("t.out.000"), "half a result\n").expect("file");
        let failures = [last("t", 9), last("u", 256)].map(|last| explain(dir.path(), &last, 1));
        assert_eq!(failures[0].ending, Ending::Signal(9));
        assert_eq!(failures[0].stdout.lines, ["half a result"]);
        assert_eq!(failures[1].output_file, None);
    }

    #[test]
    fn of_a_transfer_only_problems_are_told() {
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
