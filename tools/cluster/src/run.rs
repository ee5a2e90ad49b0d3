//! Runs the commands of the list.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use chrono::{DateTime, FixedOffset};
use monitord_compat::sequence_record::{Place, SummaryRecord, TaskRecord};
use nix::libc;
use thiserror::Error;

use crate::children::Children;
use crate::list::{List, Listed};
use crate::options::{Cpus, Failures, Options};
use crate::report::{Progress, Report};

/// Exit codes.
pub mod exit {
    /// Wrong usage.
    pub const USAGE: u8 = 1;
    /// The file for records cannot be opened.
    pub const RECORDS: u8 = 2;
    /// The list cannot be read.
    pub const LIST: u8 = 3;
    /// Output or records cannot be written, or a thread not started.
    pub const SYSTEM: u8 = 4;
    /// A command failed, or a signal ended the run.
    pub const FAILED: u8 = 5;
}

/// Raw wait status for a program that was not found, as a shell gives it.
const NOT_FOUND: i32 = 127 << 8;
/// The same for a program that cannot be run.
const NOT_RUNNABLE: i32 = 126 << 8;

/// Why the list was not run to its end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The file for records cannot be opened.
    #[error("cannot open {} for the records: {reason}", path.display())]
    Records {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        reason: io::Error,
    },
    /// The list cannot be read.
    #[error("cannot read the list {}: {reason}", list_name(path.as_deref()))]
    List {
        /// The file; `None` means standard input.
        path: Option<PathBuf>,
        /// Error of the system.
        reason: io::Error,
    },
    /// Output cannot be written, or a thread not started.
    #[error("{what}: {reason}")]
    System {
        /// What failed.
        what: &'static str,
        /// Error of the system.
        reason: io::Error,
    },
}

fn list_name(path: Option<&Path>) -> String {
    path.map_or("on standard input".into(), |path| path.display().to_string())
}

impl RunError {
    /// Returns the exit code for the error.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Records { .. } => exit::RECORDS,
            RunError::List { .. } => exit::LIST,
            RunError::System { .. } => exit::SYSTEM,
        }
    }
}

/// State shared by all threads.
struct Run<'o> {
    options: &'o Options,
    list: Mutex<List>,
    report: Report,
    children: Arc<Children>,
    /// True if no more commands are started.
    stopping: AtomicBool,
    succeeded: AtomicU64,
    failed: AtomicU64,
    /// The first error of reading the list.
    read_error: Mutex<Option<io::Error>>,
    /// True if several commands run at a time: their outputs must not mix.
    parallel: bool,
    warn: &'o (dyn Fn(&str) + Sync),
}

/// Runs the list. Returns the exit code. `program` is the name by which this program was called; `warn`
/// prints a message for the user.
///
/// # Errors
/// The list cannot be read to its end, or output cannot be written.
pub fn run(
    options: &Options,
    program: &OsStr,
    children: &Arc<Children>,
    warn: &(dyn Fn(&str) + Sync),
) -> Result<u8, RunError> {
    let (start, clock) = (now(), Instant::now());
    let list = open_list(options)?;
    let records = options.records.as_ref().map(|path| {
        append(path).map_err(|reason| RunError::Records {
            path: path.clone(),
            reason,
        })
    });
    let progress = options
        .progress
        .as_ref()
        .and_then(|path| open_progress(path, warn));
    let threads = match options.cpus {
        Cpus::Number(number) => number,
        Cpus::Auto => thread::available_parallelism().map_or(1, usize::from),
    };
    let run = Run {
        options,
        list: Mutex::new(List::new(list)),
        report: Report::new(Box::new(io::stdout()), records.transpose()?, progress),
        children: Arc::clone(children),
        stopping: AtomicBool::new(false),
        succeeded: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        read_error: Mutex::new(None),
        parallel: threads > 1,
        warn,
    };
    let mut extra = run.run_side_command(options.setup.as_deref(), Place::Setup);
    run.run_list(threads)?;
    extra += run.run_side_command(options.cleanup.as_deref(), Place::Cleanup);
    let read_error = lock(&run.read_error).take();
    let (succeeded, failed) = (
        run.succeeded.load(Ordering::SeqCst),
        run.failed.load(Ordering::SeqCst),
    );
    let success = (failed == 0 || options.failures == Failures::Ignore)
        && read_error.is_none()
        && !run.children.is_stopped();
    run.report.summary(&SummaryRecord {
        success,
        lines: lock(&run.list).lines(),
        tasks: succeeded + failed,
        succeeded,
        failed,
        extra,
        duration: clock.elapsed(),
        start,
        pid: std::process::id(),
        app: program.as_bytes(),
    });
    if let Some(reason) = read_error {
        return Err(RunError::List {
            path: options.list.clone(),
            reason,
        });
    }
    if let Some(reason) = run.report.error() {
        return Err(RunError::System {
            what: "cannot write output or records",
            reason,
        });
    }
    Ok(if success { 0 } else { exit::FAILED })
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

fn open_list(options: &Options) -> Result<Box<dyn BufRead + Send>, RunError> {
    let Some(path) = &options.list else {
        return Ok(Box::new(BufReader::new(io::stdin())));
    };
    let file = File::open(path).map_err(|reason| RunError::List {
        path: Some(path.clone()),
        reason,
    })?;
    Ok(Box::new(BufReader::new(file)))
}

fn open_progress(path: &Path, warn: &dyn Fn(&str)) -> Option<Progress> {
    match append(path) {
        Ok(file) => {
            let host = gethostname::gethostname();
            Some(Progress::new(file, &host.to_string_lossy(), std::process::id()))
        }
        Err(error) => {
            warn(&format!(
                "no progress is reported: cannot open {}: {error}",
                path.display()
            ));
            None
        }
    }
}

fn now() -> DateTime<FixedOffset> {
    chrono::Local::now().fixed_offset()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run<'_> {
    /// Runs all commands of the list.
    fn run_list(&self, threads: usize) -> Result<(), RunError> {
        if threads <= 1 {
            self.run_commands();
            return Ok(());
        }
        thread::scope(|scope| {
            for n in 0..threads {
                let started = thread::Builder::new()
                    .name(format!("runner {n}"))
                    .spawn_scoped(scope, || self.run_commands());
                // If only some threads can be started, they run the whole list.
                if let Err(reason) = started
                    && n == 0
                {
                    return Err(RunError::System {
                        what: "cannot start a thread",
                        reason,
                    });
                }
            }
            Ok(())
        })
    }

    /// Runs one command after the other until the list ends.
    fn run_commands(&self) {
        while let Some(listed) = self.next_command() {
            let place = Place::Listed {
                number: listed.number,
                line: listed.line,
            };
            let status = match &listed.words {
                Ok(words) => self.execute(place, words),
                Err(problem) => {
                    (self.warn)(&format!("line {}: {problem}", listed.line));
                    self.record_not_started(place, b"", NOT_FOUND);
                    Some(NOT_FOUND)
                }
            };
            let Some(status) = status else { return };
            if self.is_success(status) {
                self.succeeded.fetch_add(1, Ordering::SeqCst);
            } else {
                self.failed.fetch_add(1, Ordering::SeqCst);
                if self.options.failures == Failures::Stop {
                    self.stopping.store(true, Ordering::SeqCst);
                }
            }
        }
    }

    fn next_command(&self) -> Option<Listed> {
        let mut list = lock(&self.list);
        if self.stopping.load(Ordering::SeqCst) || self.children.is_stopped() {
            return None;
        }
        list.next_command().unwrap_or_else(|error| {
            self.stopping.store(true, Ordering::SeqCst);
            lock(&self.read_error).get_or_insert(error);
            None
        })
    }

    fn is_success(&self, status: i32) -> bool {
        status == 0
            || (libc::WIFEXITED(status) && self.options.success_codes.contains(&libc::WEXITSTATUS(status)))
    }

    /// Runs a command that is not part of the list. Its result does not count. Returns the number of commands
    /// run.
    fn run_side_command(&self, command: Option<&[u8]>, place: Place) -> u64 {
        let Some(command) = command else { return 0 };
        match pmc_dag::list::split(command) {
            Ok(words) if words.is_empty() => 0,
            Ok(words) => u64::from(self.execute(place, &words).is_some()),
            Err(problem) => {
                let variable = if place == Place::Setup {
                    "SEQEXEC_SETUP"
                } else {
                    "SEQEXEC_CLEANUP"
                };
                (self.warn)(&format!("{variable}: {problem}"));
                0
            }
        }
    }

    /// Opens a file for the output of a command, if outputs must not mix.
    fn output_file(&self, program: &[u8]) -> Option<(File, File)> {
        if !self.parallel {
            return None;
        }
        tempfile::tempfile()
            .and_then(|file| Ok((file.try_clone()?, file)))
            .inspect_err(|error| {
                (self.warn)(&format!(
                    "cannot keep the output of {} apart: {error}",
                    lossy(program)
                ));
            })
            .ok()
    }

    /// Runs a command. Returns its raw wait status, or `None` if a signal arrived before.
    fn execute(&self, place: Place, words: &[Vec<u8>]) -> Option<i32> {
        let (first, rest) = words.split_first()?;
        let app = pmc_calls::application(words);
        let mut command = Command::new(OsStr::from_bytes(first));
        command.args(rest.iter().map(|word| OsStr::from_bytes(word)));
        if self.options.list.is_none() {
            // Standard input holds the list.
            command.stdin(Stdio::null());
        }
        let mut output = None;
        if let Some((copy, file)) = self.output_file(first) {
            command.stdout(Stdio::from(copy));
            output = Some(file);
        }
        let (start, clock) = (now(), Instant::now());
        let mut child = match self.children.start(&mut command) {
            Ok(Some(child)) => child,
            Ok(None) => return None,
            Err(error) => {
                (self.warn)(&format!("cannot start {}: {error}", lossy(first)));
                let status = if error.kind() == io::ErrorKind::NotFound {
                    NOT_FOUND
                } else {
                    NOT_RUNNABLE
                };
                self.record_not_started(place, app, status);
                return Some(status);
            }
        };
        // Closes its copy of the output file.
        drop(command);
        let pid = child.id();
        self.report.command_started(place, start, pid, app);
        if self.options.debug {
            self.report
                .debug(&format!("{} starts {} as process {pid}", name(place), lossy(app)));
        }
        let status = self.children.wait(&mut child).unwrap_or_else(|error| {
            (self.warn)(&format!("lost track of {}: {error}", lossy(first)));
            NOT_RUNNABLE
        });
        let task = TaskRecord {
            place,
            start,
            duration: clock.elapsed(),
            status,
            pid,
            app,
        };
        self.report.command_ended(&task, output);
        if self.options.debug {
            self.report
                .debug(&format!("{} ends with status {status}", name(place)));
        }
        Some(status)
    }

    /// Writes the record of a command that did not run.
    fn record_not_started(&self, place: Place, app: &[u8], status: i32) {
        let task = TaskRecord {
            place,
            start: now(),
            duration: Duration::ZERO,
            status,
            pid: 0,
            app,
        };
        self.report.command_ended(&task, None);
    }
}

fn lossy(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

fn name(place: Place) -> String {
    match place {
        Place::Setup => "the setup".into(),
        Place::Cleanup => "the cleanup".into(),
        Place::Listed { number, line } => format!("command {number} (line {line})"),
    }
}
