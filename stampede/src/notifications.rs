//! Notifications: commands that a workflow asks for when it or one of its jobs starts or ends.
//!
//! The planner writes the hooks of a workflow into the file that `braindump.yml` calls `notify`. Its lines,
//! the variables of the commands and the log of their output are those of `pegasus-monitord`. Only a session
//! that follows a run sends them.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chrono::{Local, TimeZone as _};
use monitord_compat::properties::Properties;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use pmc_files::{Folder, OFlags, Owner};
use rustc_hash::FxHashMap;

use crate::error::Notice;
use crate::loader::JobEnd;
use crate::markers::timestamp;

/// Log of the output of the commands.
const LOG: &str = "monitord-notifications.log";
/// Maximum size in bytes of a file of notifications.
const MAX_FILE: u64 = 256 << 20;
/// Time between SIGTERM and SIGKILL for a command that exceeds its time limit.
const GRACE: Duration = Duration::from_secs(5);
/// Pause between checks for the end of the last commands.
const PAUSE: Duration = Duration::from_millis(20);
/// Commands at a time, unless a setting says otherwise.
const MAX_RUNNING: usize = 10;

/// How to send notifications. `None` leaves a setting to the properties of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum commands at a time; 0 sends none.
    pub max: Option<usize>,
    /// Time limit of each command; zero is none.
    pub timeout: Option<Duration>,
}

impl Limits {
    /// Fills in what is not set. Returns `None` if no notifications are to be sent.
    fn resolve(self, properties: &Properties) -> Option<(usize, Duration)> {
        let get = |key: &str| properties.get(&format!("pegasus.monitord.notifications{key}"));
        let is_off = |text: &str| ["false", "no", "off", "0"].contains(&text.to_ascii_lowercase().as_str());
        let number = |key: &str| get(key).and_then(|text| text.parse::<usize>().ok());
        let max = self.max.or_else(|| number(".max")).unwrap_or(MAX_RUNNING);
        let seconds = || number(".timeout").map(|seconds| Duration::from_secs(seconds as u64));
        let timeout = self.timeout.or_else(seconds).unwrap_or_default();
        (max > 0 && !get("").is_some_and(is_off)).then_some((max, timeout))
    }
}

/// When a command is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Start,
    Success,
    Error,
    End,
    All,
}

impl When {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "start" => Self::Start,
            "on_success" | "success" => Self::Success,
            "on_error" | "error" => Self::Error,
            "at_end" | "end" => Self::End,
            "all" => Self::All,
            _ => return None,
        })
    }
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    when: When,
    /// The condition as it is written.
    word: String,
    command: String,
}

impl Rule {
    /// Returns the event that the command gets, if it is to be started. `status` is `None` at the
    /// start.
    fn event(&self, status: Option<i64>) -> Option<&str> {
        match (self.when, status) {
            (When::All, None) => Some("start"),
            (When::All, Some(_)) => Some("at_end"),
            (When::Start, None) | (When::End, Some(_)) | (When::Success, Some(0)) => Some(&self.word),
            (When::Error, Some(status)) if status != 0 => Some(&self.word),
            _ => None,
        }
    }
}

/// The lines of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rules {
    workflow: Vec<Rule>,
    jobs: FxHashMap<String, Vec<Rule>>,
    /// By clustered job; the number of the constituent counts from 1.
    constituents: FxHashMap<String, Vec<(i64, Rule)>>,
}

impl Rules {
    /// Parses a file. Calls `invalid` with the number of each line that is none.
    fn parse(text: &str, uuid: &str, mut invalid: impl FnMut(usize)) -> Self {
        let mut rules = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if !line.is_empty() && !line.starts_with('#') && rules.add(line, uuid).is_none() {
                invalid(number);
            }
        }
        rules
    }

    fn add(&mut self, line: &str, uuid: &str) -> Option<()> {
        let (kind, rest) = word(line)?;
        let (id, rest) = word(rest)?;
        let kind = kind.to_ascii_lowercase();
        let (number, rest) = if kind == "invocation" {
            let (number, rest) = word(rest)?;
            (number.parse::<i64>().ok()?, rest)
        } else {
            (0, rest)
        };
        let (condition, command) = word(rest)?;
        if command.is_empty() {
            return None;
        }
        let rule = match When::parse(condition) {
            Some(when) => Rule {
                when,
                word: condition.to_owned(),
                command: command.to_owned(),
            },
            None => return (condition == "never").then_some(()),
        };
        match &*kind {
            "workflow" if id == uuid => self.workflow.push(rule),
            "job" | "daxjob" | "dagjob" => self.jobs.entry(id.to_owned()).or_default().push(rule),
            "invocation" => {
                let rules = self.constituents.entry(id.to_owned()).or_default();
                rules.push((number, rule));
            }
            _ => return None,
        }
        Some(())
    }

    fn is_empty(&self) -> bool {
        self.workflow.is_empty() && self.jobs.is_empty() && self.constituents.is_empty()
    }
}

/// Splits off the first word.
fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(char::is_whitespace).unwrap_or(text.len());
    (end > 0).then(|| (&text[..end], text[end..].trim_start()))
}

/// Facts of a run for the variables of the commands.
#[derive(Clone, Debug)]
pub(crate) struct About<'a> {
    /// Submit directory, in which the commands run.
    pub(crate) dir: &'a Path,
    /// Submit directory as planned.
    pub(crate) submit_dir: Option<&'a str>,
    pub(crate) uuid: &'a str,
    /// Label and index of the workflow.
    pub(crate) label: String,
    /// The log of the run.
    pub(crate) log: &'a Path,
    /// It is a sub-workflow, whose outermost workflow says what is left out.
    pub(crate) is_nested: bool,
}

type Variables = Vec<(&'static str, String)>;

#[derive(Debug)]
struct Running {
    child: Child,
    command: String,
    variables: Variables,
    output: [File; 2],
    started: Instant,
    /// When SIGTERM was sent.
    ended: Option<Instant>,
}

/// Sends the notifications of a run.
#[derive(Debug)]
pub(crate) struct Notifier {
    rules: Rules,
    dir: PathBuf,
    submit_dir: String,
    uuid: String,
    label: String,
    run_log: PathBuf,
    log: PathBuf,
    max: usize,
    timeout: Duration,
    pending: VecDeque<(String, Variables)>,
    running: Vec<Running>,
}

impl Notifier {
    /// Reads the file of notifications. Returns `None` if there are none, or none are to be sent. `log` makes
    /// the path of a file beside the database.
    pub(crate) fn open(
        file: &Path,
        limits: Limits,
        properties: &Properties,
        about: &About<'_>,
        log: impl FnOnce(&str) -> PathBuf,
        notice: &mut dyn FnMut(Notice),
    ) -> Option<Self> {
        let (opened, owner) = pmc_files::open_with_owner(file).ok()?;
        let text = String::from_utf8(pmc_files::read_rest(&opened, MAX_FILE).ok()?).ok()?;
        let mut invalid = Vec::new();
        let rules = Rules::parse(&text, about.uuid, |line| invalid.push(line));
        for line in invalid {
            let what = format!("{}:{line}: not a notification, skipped", file.display());
            notice(Notice::Notification { what });
        }
        let (max, timeout) = limits.resolve(properties)?;
        if rules.is_empty() {
            return None;
        }
        // The commands run in this directory: one of another user can have other programs in it.
        let place = Folder::open(about.dir).and_then(|folder| folder.owner());
        if owner != Owner::User || !place.is_ok_and(|owner| owner != Owner::Other) {
            if !about.is_nested {
                let file = file.display();
                let what = format!("{file}: another user's commands are not started: no notifications");
                notice(Notice::Notification { what });
            }
            return None;
        }
        Some(Self {
            rules,
            dir: about.dir.to_owned(),
            submit_dir: about
                .submit_dir
                .map_or_else(|| about.dir.display().to_string(), str::to_owned),
            uuid: about.uuid.to_owned(),
            label: about.label.clone(),
            run_log: about.log.to_owned(),
            log: log(LOG),
            max,
            timeout,
            pending: VecDeque::new(),
            running: Vec::new(),
        })
    }

    /// The run starts, or ends with a status.
    pub(crate) fn workflow(&mut self, time: i64, status: Option<i32>) {
        let status = status.map(i64::from);
        for rule in &self.rules.workflow {
            if let Some(event) = rule.event(status) {
                let mut variables = self.common(event, time, &self.uuid);
                variables.push(("PEGASUS_STDOUT", self.run_log.display().to_string()));
                variables.extend(status.map(|status| ("PEGASUS_STATUS", status.to_string())));
                self.pending.push_back((rule.command.clone(), variables));
            }
        }
    }

    /// An attempt of a job starts.
    pub(crate) fn job_started(&mut self, time: i64, job: &str) {
        let Some(rules) = self.rules.jobs.get(job) else {
            return;
        };
        for rule in rules {
            if let Some(event) = rule.event(None) {
                let mut variables = self.common(event, time, job);
                variables.extend(self.files(&[format!("{job}.out"), format!("{job}.err")]));
                self.pending.push_back((rule.command.clone(), variables));
            }
        }
    }

    /// An attempt of a job has ended.
    pub(crate) fn job_ended(&mut self, time: i64, job: &str, end: &JobEnd) {
        let mut new = Vec::new();
        let mut add = |rule: &Rule, status: i64, number: Option<i64>| {
            if let Some(event) = rule.event(Some(status)) {
                let mut variables = self.common(event, time, job);
                variables.extend(number.map(|number| ("PEGASUS_INVID", number.to_string())));
                variables.extend(self.files(&end.files));
                variables.push(("PEGASUS_STATUS", exit_code(status).to_string()));
                new.push((rule.command.clone(), variables));
            }
        };
        for rule in self.rules.jobs.get(job).into_iter().flatten() {
            add(rule, end.status, None);
        }
        for (number, rule) in self.rules.constituents.get(job).into_iter().flatten() {
            let of_constituent = |(known, status): &(i64, i64)| (known == number).then_some(*status);
            if let Some(status) = end.constituents.iter().find_map(of_constituent) {
                add(rule, status, Some(*number));
            }
        }
        self.pending.extend(new);
    }

    fn files(&self, names: &[String; 2]) -> [(&'static str, String); 2] {
        let path = |name: &str| format!("{}/{name}", self.submit_dir);
        [
            ("PEGASUS_STDOUT", path(&names[0])),
            ("PEGASUS_STDERR", path(&names[1])),
        ]
    }

    fn common(&self, event: &str, time: i64, job: &str) -> Variables {
        let local = Local.timestamp_opt(time, 0).single();
        vec![
            ("PEGASUS_EVENT", event.to_owned()),
            ("PEGASUS_EVENT_TIMESTAMP", time.to_string()),
            (
                "PEGASUS_EVENT_TIMESTAMP_ISO",
                local.map(timestamp).unwrap_or_default(),
            ),
            ("PEGASUS_SUBMIT_DIR", self.submit_dir.clone()),
            ("PEGASUS_JOBID", job.to_owned()),
            ("PEGASUS_WFID", self.label.clone()),
        ]
    }

    /// Notes which commands have ended, and starts others.
    pub(crate) fn poll(&mut self, notice: &mut dyn FnMut(Notice)) {
        let mut at = 0;
        while at < self.running.len() {
            let running = &mut self.running[at];
            match running.child.try_wait() {
                Ok(None) => {
                    running.enforce(self.timeout);
                    at += 1;
                }
                Ok(Some(status)) => {
                    let ended = self.running.swap_remove(at);
                    if let Err(source) = self.log_end(ended, status) {
                        let path = self.log.clone();
                        notice(Notice::Marker { path, source });
                    }
                }
                // It is no child of this process any more.
                Err(_) => drop(self.running.swap_remove(at)),
            }
        }
        while self.running.len() < self.max
            && let Some((command, variables)) = self.pending.pop_front()
        {
            match self.start(&command, &variables) {
                Ok((child, output)) => self.running.push(Running {
                    child,
                    command,
                    variables,
                    output,
                    started: Instant::now(),
                    ended: None,
                }),
                Err(error) => {
                    let what = format!(
                        "cannot start the notification {command}: {}",
                        pmc_dag::reason(&error)
                    );
                    notice(Notice::Notification { what });
                }
            }
        }
    }

    /// Waits for the end of all commands. When `stop` is set, those that have not begun are left out.
    pub(crate) fn finish(&mut self, stop: &AtomicBool, notice: &mut dyn FnMut(Notice)) {
        loop {
            self.poll(notice);
            if self.running.is_empty() && self.pending.is_empty() {
                return;
            }
            if stop.load(Ordering::Relaxed) {
                for (command, _) in self.pending.drain(..) {
                    let what = format!("the notification {command} was not sent");
                    notice(Notice::Notification { what });
                }
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn start(&self, command: &str, variables: &Variables) -> io::Result<(Child, [File; 2])> {
        let words = pmc_dag::words::split(command.as_bytes());
        let mut words = words.into_iter().map(OsString::from_vec);
        let program = words.next().ok_or(io::ErrorKind::InvalidInput)?;
        let (out, err) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let mut command = Command::new(program);
        pmc_spawn::open_files::restore_in(&mut command);
        let child = command
            .args(words)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(err.try_clone()?)
            // A signal for the terminal's processes does not end it.
            .process_group(0)
            .spawn()?;
        Ok((child, [out, err]))
    }

    /// Appends the output of a command to the log.
    fn log_end(&self, ended: Running, status: ExitStatus) -> io::Result<()> {
        let variable = |wanted: &str| {
            let found = ended.variables.iter().find(|(name, _)| *name == wanted);
            found.map_or("", |(_, value)| value.as_str())
        };
        let status = status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
        let mut text = format!(
            "{}\nNotification time  : {}\nNotification event : {} - {}\nNotification action: {}\n\
             Notification status: {status}\n\nNotification environment\n",
            "-".repeat(80),
            timestamp(Local::now()),
            variable("PEGASUS_JOBID"),
            variable("PEGASUS_EVENT"),
            ended.command
        )
        .into_bytes();
        for (name, value) in &ended.variables {
            text.extend_from_slice(format!("{name} : {value}\n").as_bytes());
        }
        for (name, mut file) in ["stdout", "stderr"].into_iter().zip(ended.output) {
            text.extend_from_slice(format!("\n{name}:\n").as_bytes());
            file.rewind()?;
            file.take(MAX_FILE).read_to_end(&mut text)?;
        }
        text.extend_from_slice(b"\n\n");
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let mut log = pmc_files::open_for_writing(&self.log, flags, 0o644)?;
        log.write_all(&text)
    }
}

impl Running {
    /// Ends a command that exceeds its time limit.
    fn enforce(&mut self, timeout: Duration) {
        let group = Pid::from_raw(i32::try_from(self.child.id()).unwrap_or(i32::MAX));
        match self.ended {
            None if !timeout.is_zero() && self.started.elapsed() > timeout => {
                // It may have ended since.
                let _ = killpg(group, Signal::SIGTERM);
                self.ended = Some(Instant::now());
            }
            Some(ended) if ended.elapsed() > GRACE => {
                let _ = killpg(group, Signal::SIGKILL);
            }
            _ => {}
        }
    }
}

/// Returns the exit code in a raw wait status; the negative number of a signal.
fn exit_code(status: i64) -> i64 {
    match status & 0x7f {
        0 => status >> 8,
        signal => -signal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as the planners write them.
    const FILE: &str = "WORKFLOW u-1 start /bin/echo 'a b'\nWORKFLOW u-2 all other\n\n# comment\n\
        JOB work_ID1 on_error /bin/mail  x\nJOB work_ID1 never no\nINVOCATION merge_1 2 at_end /bin/date\n\
        INVOCATION merge_1 x at_end /bin/date\nJOB work_ID2\nDAXJOB sub all run\nJOB work_ID1 sometimes x\n";

    #[test]
    fn lines_are_parsed() {
        let mut invalid = Vec::new();
        let rules = Rules::parse(FILE, "u-1", |line| invalid.push(line));
        assert_eq!(invalid, [2, 8, 9, 11]);
        assert_eq!(rules.workflow.len(), 1);
        assert_eq!(rules.workflow[0].command, "/bin/echo 'a b'");
        assert_eq!(rules.jobs["work_ID1"].len(), 1);
        assert_eq!(rules.jobs["work_ID1"][0].command, "/bin/mail  x");
        assert_eq!(rules.constituents["merge_1"][0].0, 2);
        assert_eq!(rules.jobs["sub"][0].when, When::All);
    }

    #[test]
    fn conditions_choose_events() {
        let events = |word: &str| {
            let rule = Rule {
                when: When::parse(word).unwrap(),
                word: word.to_owned(),
                command: String::new(),
            };
            [None, Some(0), Some(256)].map(|status| rule.event(status).map(str::to_owned))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(events("start"), [some("start"), None, None]);
        assert_eq!(events("success"), [None, some("success"), None]);
        assert_eq!(events("on_error"), [None, None, some("on_error")]);
        assert_eq!(events("at_end"), [None, some("at_end"), some("at_end")]);
        assert_eq!(events("all"), [some("start"), some("at_end"), some("at_end")]);
    }

    #[test]
    fn properties_set_limits() {
        let resolve = |limits: Limits, text: &str| limits.resolve(&Properties::parse(text));
        let own = Limits {
            max: Some(3),
            timeout: Some(Duration::from_secs(7)),
        };
        assert_eq!(resolve(Limits::default(), ""), Some((10, Duration::ZERO)));
        let text = "pegasus.monitord.notifications.max = 2\npegasus.monitord.notifications.timeout = 30\n";
        assert_eq!(
            resolve(Limits::default(), text),
            Some((2, Duration::from_secs(30)))
        );
        assert_eq!(resolve(own, text), Some((3, Duration::from_secs(7))));
        assert_eq!(resolve(own, "pegasus.monitord.notifications = false"), None);
        assert_eq!(resolve(Limits { max: Some(0), ..own }, ""), None);
    }

    #[test]
    fn statuses_become_exit_codes() {
        assert_eq!((exit_code(0), exit_code(3 << 8), exit_code(9)), (0, 3, -9));
    }
}
