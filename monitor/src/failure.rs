//! Explains a failed task from the files of its last attempt.

use std::borrow::Cow;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use monitord_compat::job_output_reader::{JobOutput, text_outside_records};
use monitord_compat::lite_log::{self, LiteLog};
use monitord_compat::reason::Reason;
use pmc_packed::{Channel, TaskOutput};

use crate::ending::Ending;

/// Maximum lines of output to keep.
const MAX_LINES: usize = 10;
/// Maximum bytes of such a line to keep: a file of zeros is one line, and each page and terminal shows it.
const MAX_LINE: usize = 4096;
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
            lines: lines[omitted..].iter().map(|line| beginning(line)).collect(),
            omitted,
        }
    }

    /// Returns whether there are no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// Returns a line, without the end of a long one.
fn beginning(line: &str) -> String {
    match line.len() > MAX_LINE {
        true => format!("{}…", &line[..line.floor_char_boundary(MAX_LINE)]),
        false => line.to_owned(),
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
    /// `pegasus-lite` ran the program, in a directory of the attempt that is removed, or in a container.
    pub is_lite: bool,
    /// Command of the whole task, if the program alone cannot run again.
    pub whole_command: Vec<String>,
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
    /// Why it failed, if more is known than its ending.
    pub reason: Option<Reason>,
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
    /// Another attempt runs meanwhile.
    pub is_running: bool,
}

/// Note on a failed attempt whose program succeeded.
pub(crate) const SUCCEEDED: &str = "the program succeeded, but kickstart reported a failure";

/// Explains why a task failed, from the output of its last attempt.
#[must_use]
pub fn explain(place: &mut TaskOutput, last: &LastAttempt, attempts: u32) -> FailedTask {
    let (out_file, out, err) = read_output(place, &last.task, last.is_running);
    let mut failure = FailedTask {
        task: last.task.clone(),
        transformation: None,
        command: Vec::new(),
        is_lite: false,
        whole_command: Vec::new(),
        ending: Ending::from_wait_status(last.status),
        duration: last.runtime,
        attempts,
        host: None,
        stderr: Tail::default(),
        stdout: Tail::default(),
        reason: None,
        note: None,
        directory: None,
        environment: Vec::new(),
        secrets: None,
        stdin: None,
        peak_kib: None,
        output_file: out_file,
    };
    let lite = LiteLog::read(&err);
    failure.is_lite = lite.is_some();
    failure.directory = lite.as_ref().and_then(|log| log.directory.clone());
    let output = JobOutput::read(&out);
    let Some(record) = output.decisive_invocation() else {
        failure.stdout = Tail::of(&text_outside_records(&out), MAX_LINES);
        failure.stderr = Tail::of(&text_of_failure(lite.as_ref(), &err, ""), MAX_LINES);
        failure.note = Some(without_record(lite.as_ref()));
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
        failure.note = Some(match &lite {
            None => SUCCEEDED.into(),
            Some(log) => after_success(log),
        });
    }
    let captured = without_notices(record.stderr.as_deref().unwrap_or_default());
    let stderr = match &lite {
        // What the node says after the end of a program that failed is no cause.
        Some(log) if raw.is_some_and(|raw| raw != 0) => format!("{}\n{captured}", log.program.trim_end()),
        lite => text_of_failure(lite.as_ref(), &err, &captured),
    };
    failure.stderr = Tail::of(&stderr, MAX_LINES);
    failure.stdout = Tail::of(record.stdout.as_deref().unwrap_or_default(), MAX_LINES);
    let command = record.main.executable.iter().chain(&record.main.arguments);
    failure.command = command.cloned().collect();
    failure.transformation.clone_from(&record.transformation);
    failure.host.clone_from(&record.host_name);
    if lite.is_none() {
        failure.directory.clone_from(&record.cwd);
    }
    failure.stdin = record.stdin.clone().filter(|path| path != "/dev/null");
    failure.peak_kib = record.main.max_rss.and_then(|kib| u64::try_from(kib).ok());
    failure
}

/// Returns the standard error of an attempt that its program has not failed, or that has no record:
/// messages of the wrapper follow what the program printed.
fn text_of_failure(lite: Option<&LiteLog>, err: &str, captured: &str) -> String {
    let captured = captured.trim_end();
    match lite {
        None => format!("{captured}\n{err}"),
        Some(log) => format!("{}{captured}\n{}", log.program, log.problems),
    }
}

fn without_record(lite: Option<&LiteLog>) -> String {
    let step = lite.and_then(|log| log.step).filter(|step| !step.is_program());
    step.map_or_else(
        || "no invocation record".to_owned(),
        |step| {
            format!(
                "the program did not start: the job failed when {}",
                step.describe()
            )
        },
    )
}

/// Returns the note on a lite job whose program succeeded.
fn after_success(log: &LiteLog) -> String {
    let step = log.step.filter(|step| !step.is_program());
    let when = step.map_or(String::new(), |step| format!(" when {}", step.describe()));
    format!("the program succeeded, but the job failed{when}")
}

/// Removes notices from the log of a failed transfer: lines such as
/// `2026-11-21 10:36:32,251    INFO:  Starting transfers`. Returns other texts unchanged.
fn without_notices(text: &str) -> Cow<'_, str> {
    if !text.lines().any(lite_log::is_error_of_transfer) {
        return Cow::Borrowed(text);
    }
    let kept = text.lines().filter(|line| !lite_log::is_notice_of_transfer(line));
    Cow::Owned(kept.map(|line| format!("{line}\n")).collect())
}

/// Returns the file or pack with the output of the last attempt that has ended, its text, and the text of
/// standard error. `is_running`: another attempt runs meanwhile.
#[must_use]
pub fn read_output(
    place: &mut TaskOutput,
    task: &str,
    is_running: bool,
) -> (Option<PathBuf>, String, String) {
    let task = task.as_bytes();
    let Some(mut number) = place.last(task) else {
        return (None, String::new(), String::new());
    };
    let mut out = read(place, task, Channel::Out, number);
    if is_running && number > 0 && !has_ended(&out) {
        // These are the files of the attempt that runs.
        number -= 1;
        out = read(place, task, Channel::Out, number);
    }
    let err = read(place, task, Channel::Err, number);
    (place.place(task, number), out, err)
}

/// Returns whether an output has the record of the executor, which writes it at the end of an attempt.
fn has_ended(out: &str) -> bool {
    JobOutput::read(out).tasks.iter().any(|task| task.name.is_some())
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
    use monitord_compat::lite_log::Step;

    use super::*;

    fn last(task: &str, status: i32) -> LastAttempt {
        LastAttempt {
            task: task.into(),
            status,
            runtime: Some(Duration::from_millis(18)),
            is_running: false,
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

    /// Explains a lite job with these steps and this output.
    fn explain_lite(steps: &[(Step, &str)], out: &str) -> FailedTask {
        let dir = tempfile::tempdir().expect("temporary directory");
        let time = "2026-11-27 11:45:58";
        let mut err = format!(
            "{}\n{}\n",
            lite_log::version("5.1.3"),
            lite_log::directory(time, "/tmp/pegasus.x")
        );
        for (step, lines) in steps {
            err.push_str(&format!("{}\n{lines}", step.heading()));
        }
        err.push_str(&format!("{}\n{}\n", Step::Remove.heading(), lite_log::end(1, 3)));
        std::fs::write(dir.path().join("t.err.000"), err).expect("file");
        std::fs::write(dir.path().join("t.out.000"), out).expect("file");
        explain(&mut TaskOutput::new(dir.path()), &last("t", 768), 1)
    }

    #[test]
    fn a_failed_program_of_a_lite_job_shows_only_what_it_wrote() {
        let ended = "2026-11-27 11:45:58 PegasusLite: The task ended with exit code 3; its outputs are not delivered\n";
        let engine = format!("Trying to pull box\n{ended}");
        let failure = explain_lite(&[(Step::StageIn, ""), (Step::Container, &engine)], RECORD);
        assert_eq!(failure.stderr.lines, ["Trying to pull box", "asked to fail"]);
        assert!(failure.is_lite && failure.note.is_none(), "{failure:?}");
        // Without kickstart.
        let printed = format!("KeyError: x\n{ended}");
        let failure = explain_lite(&[(Step::Program, &printed)], "half a result\n");
        assert_eq!(failure.stderr.lines, ["KeyError: x"]);
        assert_eq!(failure.stdout.lines, ["half a result"]);
        // Only on standard output.
        let failure = explain_lite(&[(Step::Program, ended)], "Traceback\n");
        assert!(failure.stderr.is_empty(), "{failure:?}");
    }

    #[test]
    fn a_lite_job_whose_program_is_not_the_cause_shows_its_step() {
        let error = lite_log::error("2026-11-27 11:45:58", "t: 1 of 1 transfers failed");
        let failure = explain_lite(&[(Step::StageIn, &format!("{error}\n"))], "");
        assert_eq!(failure.stderr.lines, ["t: 1 of 1 transfers failed"]);
        let note = failure.note.as_deref();
        assert_eq!(
            note,
            Some("the program did not start: the job failed when its inputs were fetched")
        );
        let record = RECORD.replace("raw: 768", "raw: 0");
        let steps = [(Step::Program, ""), (Step::StageOut, &*format!("{error}\n"))];
        let failure = explain_lite(&steps, &record);
        assert_eq!(
            failure.stderr.lines,
            ["asked to fail", "t: 1 of 1 transfers failed"]
        );
        let note = failure.note.as_deref();
        assert_eq!(
            note,
            Some("the program succeeded, but the job failed when its outputs were delivered")
        );
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
