//! Runs a program with a time limit and keeps its output.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// Default time limit. Generous, because the machine may be busy.
const DEFAULT_LIMIT: Duration = Duration::from_secs(180);

/// A program, its arguments and where it runs.
pub struct Program {
    words: Vec<OsString>,
    directory: PathBuf,
    environment: BTreeMap<OsString, Option<OsString>>,
    limit: Duration,
}

impl Program {
    /// Creates a command without arguments. A name without a slash is looked up on `PATH`.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            words: vec![program.as_ref().to_owned()],
            directory: std::env::temp_dir(),
            environment: BTreeMap::new(),
            limit: DEFAULT_LIMIT,
        }
    }

    /// Creates a command from a command line, which is split at blanks.
    pub fn from_line(line: &str) -> Self {
        let mut words = line.split_whitespace();
        Self::new(words.next().expect("a command")).args(words)
    }

    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Self {
        self.words.push(word.as_ref().to_owned());
        self
    }

    pub fn args(mut self, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.words
            .extend(words.into_iter().map(|w| w.as_ref().to_owned()));
        self
    }

    /// Sets the working directory. The default is the directory for temporary files.
    pub fn in_directory(mut self, directory: &Path) -> Self {
        directory.clone_into(&mut self.directory);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment
            .insert(name.into(), Some(value.as_ref().to_owned()));
        self
    }

    pub fn envs<'a>(mut self, pairs: impl IntoIterator<Item = &'a (String, String)>) -> Self {
        for (name, value) in pairs {
            self = self.env(name, value);
        }
        self
    }

    pub fn limit(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// The program and its arguments.
    pub fn words(&self) -> &[OsString] {
        &self.words
    }

    /// Starts the program and waits until it ends.
    pub fn run(self) -> CommandResult {
        self.start().wait()
    }

    /// Starts the program.
    pub fn start(self) -> Running {
        let line = self
            .words
            .iter()
            .map(|w| w.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        // Files, not pipes: a process that the program leaves behind cannot keep them open.
        let out = tempfile::tempfile().expect("a temporary file");
        let err = tempfile::tempfile().expect("a temporary file");
        let mut command = Command::new(&self.words[0]);
        command
            .args(&self.words[1..])
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .process_group(0);
        command.stdout(out.try_clone().expect("a second descriptor"));
        command.stderr(err.try_clone().expect("a second descriptor"));
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start `{line}`: {e}"));
        Running {
            line,
            child,
            out,
            err,
            started: Instant::now(),
            limit: self.limit,
            ended: false,
        }
    }
}

/// A running program. Its process group is killed when a test fails.
pub struct Running {
    line: String,
    child: Child,
    out: File,
    err: File,
    started: Instant,
    limit: Duration,
    ended: bool,
}

impl Running {
    /// Returns whether the program still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child to wait for").is_none()
    }

    /// Returns the number of the program's process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the program itself.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a process number");
        kill(Pid::from_raw(pid), signal).expect("a child that has not been waited for");
    }

    /// Waits until the program ends; kills it at the time limit.
    pub fn wait(mut self) -> CommandResult {
        let mut pause = Duration::from_millis(5);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child to wait for") {
                break Some(status);
            }
            if self.started.elapsed() > self.limit {
                self.kill();
                break None;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        };
        self.ended = true;
        CommandResult {
            line: std::mem::take(&mut self.line),
            status,
            stdout: text(&mut self.out),
            stderr: text(&mut self.err),
            elapsed: self.started.elapsed(),
        }
    }

    fn kill(&mut self) {
        if let Ok(pid) = i32::try_from(self.child.id()) {
            // The group may be gone already.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .expect("a readable temporary file");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Exit status and output of a program.
pub struct CommandResult {
    line: String,
    status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
    pub elapsed: Duration,
}

impl CommandResult {
    /// Returns the exit code; after a signal, 128 plus its number, as in a shell.
    pub fn code(&self) -> i32 {
        let Some(status) = self.status else {
            panic!("timed out: {}", self.details())
        };
        status
            .code()
            .or(status.signal().map(|s| 128 + s))
            .expect("a code or a signal")
    }

    /// Asserts success.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code(), 0, "should succeed: {}", self.details());
        self
    }

    /// Asserts an orderly failure: an exit code from 1 to 125, no signal, no panic.
    #[track_caller]
    pub fn refused(self) -> Self {
        assert!(
            (1..=125).contains(&self.code()),
            "should fail with an exit code: {}",
            self.details()
        );
        let everything = format!("{}{}", self.stdout, self.stderr);
        assert!(
            !everything.contains("panicked at"),
            "panicked: {}",
            self.details()
        );
        self
    }

    /// Describes the command, its exit status and its output for the message of a failed test.
    pub fn details(&self) -> String {
        let mut all = format!("`{}`\n", self.line);
        let _ = match self.status {
            Some(status) => writeln!(all, "ended with {status} after {:.1?}", self.elapsed),
            None => writeln!(all, "killed after {:.1?}", self.elapsed),
        };
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            let lines: Vec<&str> = text.lines().collect();
            let omitted = lines.len().saturating_sub(40);
            let _ = writeln!(
                all,
                "--- {name}{}",
                if omitted > 0 { " (last lines)" } else { "" }
            );
            for line in &lines[omitted..] {
                let _ = writeln!(all, "{line}");
            }
        }
        all
    }
}

/// Waits until something is so.
#[track_caller]
pub fn wait_until(what: &str, seconds: u64, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(seconds), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
