//! Standard error of a lite job: lines of `pegasus-lite` in the form of Pegasus' job scripts, and between
//! them what its transfers, its container and its program print.

use std::fmt::Display;

/// Name at the beginning of a line, or behind its time.
const NAME: &str = "PegasusLite: ";

/// Beginning of the first line. Tools recognize the job by it.
const VERSION: &str = "PegasusLite: version ";

/// Beginning of a message that says why a job fails.
const ERROR: &str = "ERROR: ";

/// Beginning of the message that names the directory of the job.
const DIRECTORY: &str = "Work dir is ";

/// Width of a heading.
const WIDTH: usize = 82;

/// Length of `2026-11-21 10:36:32 `.
const TIME_LENGTH: usize = 20;

/// A step of a job, which begins with a heading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The directory of the job is made.
    Directory,
    /// The image of its container is fetched.
    FetchImage,
    /// The checksum of the image is verified.
    CheckImage,
    /// The engine loads the image.
    LoadImage,
    /// Inputs and programs are fetched.
    StageIn,
    /// Their checksums are verified.
    CheckInputs,
    /// Checkpoint files are fetched.
    CheckpointIn,
    /// The program runs.
    Program,
    /// The container runs, and in it the program.
    Container,
    /// Checkpoint files are delivered.
    CheckpointOut,
    /// Outputs are delivered.
    StageOut,
    /// The directory is removed.
    Remove,
}

impl Step {
    const ALL: [Step; 12] = [
        Step::Directory,
        Step::FetchImage,
        Step::CheckImage,
        Step::LoadImage,
        Step::StageIn,
        Step::CheckInputs,
        Step::CheckpointIn,
        Step::Program,
        Step::Container,
        Step::CheckpointOut,
        Step::StageOut,
        Step::Remove,
    ];

    /// Title in the heading.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Step::Directory => "[Pegasus Lite] Setting up workdir",
            Step::FetchImage => "[Pegasus Lite] Staging in container",
            Step::CheckImage => "[Pegasus Lite] Checking file integrity for transferred container files",
            Step::LoadImage => "[Pegasus Lite] Loading the container image",
            Step::StageIn => "Staging in input data and executables",
            Step::CheckInputs => "Checking file integrity for input files",
            Step::CheckpointIn => "Staging in checkpoint files",
            Step::Program => "[Pegasus Lite] Executing the user task",
            Step::Container => "[Pegasus Lite] Executing the user task in the container",
            Step::CheckpointOut => "Staging out checkpoint files",
            Step::StageOut => "Staging out output files",
            Step::Remove => "[Pegasus Lite] Removing workdir",
        }
    }

    /// What the step does, as part of a sentence.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Step::Directory => "its directory was made",
            Step::FetchImage => "the image of its container was fetched",
            Step::CheckImage => "the image of its container was verified",
            Step::LoadImage => "the image of its container was loaded",
            Step::StageIn => "its inputs were fetched",
            Step::CheckInputs => "its inputs were verified",
            Step::CheckpointIn => "its checkpoint files were fetched",
            Step::Program => "its program ran",
            Step::Container => "its container ran",
            Step::CheckpointOut => "its checkpoint files were delivered",
            Step::StageOut => "its outputs were delivered",
            Step::Remove => "its directory was removed",
        }
    }

    /// Returns whether what others print in this step is from the program, or from its container.
    #[must_use]
    pub fn is_program(self) -> bool {
        matches!(self, Step::Program | Step::Container)
    }

    /// Returns the heading: an empty line and the title, without a line feed at the end.
    #[must_use]
    pub fn heading(self) -> String {
        let title = self.title();
        let rest = WIDTH.saturating_sub(title.len() + 2);
        let (before, after) = ("#".repeat(rest - rest / 2), "#".repeat(rest / 2));
        format!("\n{before} {title} {after}")
    }

    fn of_heading(line: &str) -> Option<Self> {
        if !line.starts_with("##") || !line.ends_with("##") {
            return None;
        }
        let title = line.trim_matches('#').trim();
        Step::ALL.into_iter().find(|step| step.title() == title)
    }
}

/// Returns the first line, without a line feed. `version` is that of Pegasus.
#[must_use]
pub fn version(version: &str) -> String {
    format!("{VERSION}{version}")
}

/// Returns a message with the time `YYYY-MM-DD hh:mm:ss`, without a line feed.
#[must_use]
pub fn message(time: impl Display, message: impl Display) -> String {
    format!("{time} {NAME}{message}")
}

/// Returns a message that says why the job fails. Like [`message`].
#[must_use]
pub fn error(time: impl Display, text: impl Display) -> String {
    message(time, format_args!("{ERROR}{text}"))
}

/// Returns the message that names the directory of the job. Like [`message`].
#[must_use]
pub fn directory(time: impl Display, directory: impl Display) -> String {
    message(time, format_args!("{DIRECTORY}{directory}"))
}

/// Returns the last lines: the run time in seconds, and the exit code that counts for monitoring.
#[must_use]
pub fn end(seconds: u64, code: u8) -> String {
    format!("{NAME}runtime {seconds}\n{NAME}exitcode {code}")
}

/// The standard error of a lite job, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiteLog {
    /// What the program and its container printed there.
    pub program: String,
    /// Why the job failed, if it was not the program: messages of `pegasus-lite`, errors of transfers, and
    /// what other programs printed that it called.
    pub problems: String,
    /// The last step in which a problem may be, before the directory was removed.
    pub step: Option<Step>,
    /// Directory of the job on its node, which is removed at the end.
    pub directory: Option<String>,
}

impl LiteLog {
    /// Takes the text apart. `None` if it is not of a lite job.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        if !text.lines().any(|line| line.starts_with(VERSION)) {
            return None;
        }
        let mut log = LiteLog::default();
        let mut step = None;
        let mut lines = text.lines().peekable();
        while let Some(line) = lines.next() {
            let is_before_heading =
                line.is_empty() && lines.peek().is_some_and(|next| Step::of_heading(next).is_some());
            if is_before_heading || line.starts_with(NAME) {
                continue;
            }
            if let Some(next) = Step::of_heading(line) {
                step = Some(next);
                if next != Step::Remove {
                    log.step = step;
                }
            } else if let Some((before, message)) = own_message(line) {
                // What a program printed last may have no end of line.
                if step.is_some_and(Step::is_program) && !before.is_empty() {
                    push(&mut log.program, before);
                }
                log.note(message);
            } else if step.is_some_and(Step::is_program) {
                push(&mut log.program, line);
            } else if !is_notice_of_transfer(line) {
                push(&mut log.problems, line);
            }
        }
        Some(log)
    }

    /// Takes a message of `pegasus-lite`.
    fn note(&mut self, message: &str) {
        if let Some(error) = message.strip_prefix(ERROR) {
            push(&mut self.problems, error);
        } else if let Some(directory) = message.strip_prefix(DIRECTORY) {
            // Inside of a job are those of a cluster.
            self.directory = Some(directory.to_owned());
        }
    }
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Returns the text of a message of `pegasus-lite`, and what is before it in the line.
fn own_message(line: &str) -> Option<(&str, &str)> {
    let at = line.find(NAME)?;
    let (before, time) = line.get(..at)?.split_at_checked(at.checked_sub(TIME_LENGTH)?)?;
    is_time(time).then(|| (before, &line[at + NAME.len()..]))
}

/// Returns whether a text is a time like `2026-11-21 10:36:32`, with or without more behind it.
fn is_time(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_digit() || b"-: ,".contains(&byte))
}

/// Returns whether a line is a notice of `pegasus-transfer`, such as
/// `2026-11-21 10:36:32,251    INFO:  Starting transfers`.
#[must_use]
pub fn is_notice_of_transfer(line: &str) -> bool {
    matches!(level_of_transfer(line), Some("INFO" | "DEBUG"))
}

/// Returns whether a line is an error that `pegasus-transfer` reports.
#[must_use]
pub fn is_error_of_transfer(line: &str) -> bool {
    matches!(level_of_transfer(line), Some("ERROR" | "CRITICAL"))
}

fn level_of_transfer(line: &str) -> Option<&str> {
    let (date, rest) = line.split_at_checked(TIME_LENGTH + 3)?;
    let (level, _) = rest.split_once(':')?;
    is_time(date).then_some(level.trim())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIME: &str = "2026-11-27 11:45:58";

    /// A log with these lines in its steps.
    fn log(steps: &[(Step, &str)]) -> String {
        let mut text = format!(
            "{}\n{}\n{}\n",
            version("5.1.3"),
            message(TIME, "Executing on host n1 IP=192.0.2.2"),
            directory(TIME, "/tmp/pegasus.x")
        );
        for (step, lines) in steps {
            text.push_str(&format!("{}\n{lines}", step.heading()));
        }
        text + &format!("{}\n{}\n", Step::Remove.heading(), end(0, 3))
    }

    #[test]
    fn only_the_lines_of_others_and_the_problems_stay() {
        let ended = message(
            TIME,
            "The task ended with exit code 3; its outputs are not delivered",
        );
        let transfer = format!("{TIME},251    INFO:  Starting transfers\n");
        let printed = format!("KeyError: x\n\n## a title of its own ##\nno end{ended}\n");
        let found = LiteLog::read(&log(&[(Step::StageIn, &transfer), (Step::Program, &printed)]));
        let found = found.expect("it is of a lite job");
        assert_eq!(found.program, "KeyError: x\n\n## a title of its own ##\nno end\n");
        assert_eq!((found.problems.as_str(), found.step), ("", Some(Step::Program)));
        assert_eq!(found.directory.as_deref(), Some("/tmp/pegasus.x"));

        let failed = format!(
            "{TIME},251    INFO:  Starting transfers\n{TIME},252   ERROR:  a -> b: no such file\nscp: no route\n{}\n",
            error(TIME, "a: 1 transfer failed")
        );
        let found = LiteLog::read(&log(&[(Step::StageIn, &failed)])).expect("it is of a lite job");
        assert_eq!(
            found.problems,
            format!("{TIME},252   ERROR:  a -> b: no such file\nscp: no route\na: 1 transfer failed\n")
        );
        assert_eq!((found.program.as_str(), found.step), ("", Some(Step::StageIn)));
        assert_eq!(LiteLog::read("PegasusLite: data\nan error\n"), None);
    }

    #[test]
    fn headings_are_found_again() {
        for step in Step::ALL {
            let heading = step.heading();
            assert_eq!(Step::of_heading(heading.trim_start()), Some(step));
            assert!(heading.trim_start().len() >= WIDTH, "{heading}");
        }
        assert_eq!(Step::of_heading("##### my title #####"), None);
    }

    proptest! {
        #[test]
        fn what_a_program_prints_stays(lines in prop::collection::vec("[a-z#: \\-é0-9]{0,30}", 0..8)) {
            let printed: String = lines.iter().map(|line| format!("{line}\n")).collect();
            let found = LiteLog::read(&log(&[(Step::Program, &printed)])).expect("it is of a lite job");
            prop_assert_eq!(found.program, printed);
        }

        #[test]
        fn no_text_is_too_much(text in "\\PC{0,60}") {
            let _ = LiteLog::read(&format!("{VERSION}1\n{text}{NAME}{text}"));
        }
    }
}
