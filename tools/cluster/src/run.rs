//! Goes through the list.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use chrono::{DateTime, FixedOffset};
use monitord_compat::sequence_record::{Place, SummaryRecord, TaskRecord};
use nix::libc;
use thiserror::Error;

use crate::app::application;
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

/// Raw wait status of what a shell says of a program that is not there.
const NOT_FOUND: i32 = 127 << 8;
/// The same of one that cannot be run.
const NOT_RUNNABLE: i32 = 126 << 8;

/// Why the list was not gone through.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The file for records.
    #[error("cannot open {} for the records: {reason}", path.display())]
    Records {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// The list.
    #[error("cannot read the list {}: {reason}", path.as_ref().map_or("on standard input".into(), |p| p.display().to_string()))]
    List {
        /// Which file; `None` for standard input.
        path: Option<PathBuf>,
        /// Why.
        reason: io::Error,
    },
    /// Output, records, threads, signals.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        reason: io::Error,
    },
}

impl RunError {
    /// The exit code for it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            RunError::Records { .. } => exit::RECORDS,
            RunError::List { .. } => exit::LIST,
            RunError::System { .. } => exit::SYSTEM,
        }
    }
}

/// What all threads share.
struct Run<'o> {
    options: &'o Options,
    list: Mutex<List>,
    report: Report,
    children: Arc<Children>,
    /// Nothing more is started.
    over: AtomicBool,
    succeeded: AtomicU64,
    failed: AtomicU64,
    broken: Mutex<Option<io::Error>>,
    /// Several commands at a time: what they print must be kept apart.
    parallel: bool,
    warn: &'o (dyn Fn(&str) + Sync),
}

/// Runs the list; gives the exit code. `program` is this program as it was called; `warn` tells the user.
///
/// # Errors
/// What keeps the list from being gone through.
pub fn run(
    options: &Options,
    program: &OsStr,
    children: &Arc<Children>,
    warn: &(dyn Fn(&str) + Sync),
) -> Result<u8, RunError> {
    let (start, clock) = (now(), Instant::now());
    let append = |path: &PathBuf| OpenOptions::new().append(true).create(true).open(path);
    let list: Box<dyn io::BufRead + Send> = match &options.list {
        Some(path) => {
            let file = File::open(path).map_err(|reason| RunError::List {
                path: Some(path.clone()),
                reason,
            })?;
            Box::new(BufReader::new(file))
        }
        None => Box::new(BufReader::new(io::stdin())),
    };
    let records = match &options.records {
        Some(path) => Some(append(path).map_err(|reason| RunError::Records {
            path: path.clone(),
            reason,
        })?),
        None => None,
    };
    let pid = std::process::id();
    let progress = options.progress.as_ref().and_then(|path| match append(path) {
        Ok(file) => {
            let host = gethostname::gethostname();
            Some(Progress::new(file, &host.to_string_lossy(), pid))
        }
        Err(error) => {
            warn(&format!(
                "no progress is reported: cannot open {}: {error}",
                path.display()
            ));
            None
        }
    });
    let threads = match options.cpus {
        Cpus::Number(number) => number,
        Cpus::Auto => thread::available_parallelism().map_or(1, usize::from),
    };
    let run = Run {
        options,
        list: Mutex::new(List::new(list)),
        report: Report::new(Box::new(io::stdout()), records, progress),
        children: Arc::clone(children),
        over: AtomicBool::new(false),
        succeeded: AtomicU64::new(0),
        failed: AtomicU64::new(0),
        broken: Mutex::new(None),
        parallel: threads > 1,
        warn,
    };
    let mut extra = run.besides(options.setup.as_deref(), Place::Setup);
    run.go(threads)?;
    extra += run.besides(options.cleanup.as_deref(), Place::Cleanup);
    let broken = run.broken.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (succeeded, failed) = (
        run.succeeded.load(Ordering::SeqCst),
        run.failed.load(Ordering::SeqCst),
    );
    let good = (failed == 0 || options.failures == Failures::Ignore)
        && broken.is_none()
        && !run.children.is_stopped();
    let lines = run.list.lock().unwrap_or_else(PoisonError::into_inner).lines();
    run.report.summary(&SummaryRecord {
        success: good,
        lines,
        tasks: succeeded + failed,
        succeeded,
        failed,
        extra,
        duration: clock.elapsed(),
        start,
        pid,
        app: program.as_bytes(),
    });
    if let Some(reason) = broken {
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
    Ok(if good { 0 } else { exit::FAILED })
}

fn now() -> DateTime<FixedOffset> {
    chrono::Local::now().fixed_offset()
}

impl Run<'_> {
    /// Runs all commands of the list.
    fn go(&self, threads: usize) -> Result<(), RunError> {
        if threads <= 1 {
            self.work();
            return Ok(());
        }
        thread::scope(|scope| {
            for n in 0..threads {
                let started = thread::Builder::new()
                    .name(format!("runner {n}"))
                    .spawn_scoped(scope, || self.work());
                // Those that are there do the work alone.
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

    /// Runs one command after the other until there are no more.
    fn work(&self) {
        while let Some(listed) = self.next() {
            let place = Place::Listed {
                number: listed.number,
                line: listed.line,
            };
            let status = match &listed.words {
                Ok(words) => self.execute(place, words),
                Err(problem) => {
                    (self.warn)(&format!("line {}: {problem}", listed.line));
                    self.not_started(place, b"", NOT_FOUND);
                    Some(NOT_FOUND)
                }
            };
            let Some(status) = status else { return };
            if self.is_success(status) {
                self.succeeded.fetch_add(1, Ordering::SeqCst);
            } else {
                self.failed.fetch_add(1, Ordering::SeqCst);
                if self.options.failures == Failures::Stop {
                    self.over.store(true, Ordering::SeqCst);
                }
            }
        }
    }

    fn next(&self) -> Option<Listed> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        if self.over.load(Ordering::SeqCst) || self.children.is_stopped() {
            return None;
        }
        match list.next_command() {
            Ok(listed) => listed,
            Err(error) => {
                self.over.store(true, Ordering::SeqCst);
                let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
                broken.get_or_insert(error);
                None
            }
        }
    }

    fn is_success(&self, status: i32) -> bool {
        status == 0
            || (libc::WIFEXITED(status) && self.options.success_codes.contains(&libc::WEXITSTATUS(status)))
    }

    /// Runs a command that is not of the list; its result does not count. Gives how many were run.
    fn besides(&self, command: Option<&[u8]>, place: Place) -> u64 {
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

    /// Runs a command; gives its raw status, or `None` if a signal came before.
    fn execute(&self, place: Place, words: &[Vec<u8>]) -> Option<i32> {
        let (first, rest) = words.split_first()?;
        let app = application(words);
        let mut command = Command::new(OsStr::from_bytes(first));
        command.args(rest.iter().map(|word| OsStr::from_bytes(word)));
        if self.options.list.is_none() {
            // What comes in there is the list.
            command.stdin(Stdio::null());
        }
        let mut printed = None;
        if self.parallel {
            let file = tempfile::tempfile().and_then(|file| Ok((file.try_clone()?, file)));
            match file {
                Ok((copy, file)) => {
                    command.stdout(Stdio::from(copy));
                    printed = Some(file);
                }
                Err(error) => {
                    (self.warn)(&format!(
                        "cannot keep the output of {} apart: {error}",
                        shown(first)
                    ));
                }
            }
        }
        let (start, clock) = (now(), Instant::now());
        let mut child = match self.children.start(&mut command) {
            Ok(Some(child)) => child,
            Ok(None) => return None,
            Err(error) => {
                (self.warn)(&format!("cannot start {}: {error}", shown(first)));
                let status = if error.kind() == io::ErrorKind::NotFound {
                    NOT_FOUND
                } else {
                    NOT_RUNNABLE
                };
                self.not_started(place, app, status);
                return Some(status);
            }
        };
        // The copy of the file in it would stay open.
        drop(command);
        let pid = child.id();
        self.report.begun(place, start, pid, app);
        if self.options.debug {
            self.report
                .debug(&format!("{} starts {} as process {pid}", name(place), shown(app)));
        }
        let status = self.children.wait(&mut child).unwrap_or_else(|error| {
            (self.warn)(&format!("lost track of {}: {error}", shown(first)));
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
        self.report.ended(&task, printed);
        if self.options.debug {
            self.report
                .debug(&format!("{} ends with status {status}", name(place)));
        }
        Some(status)
    }

    /// Leaves a record of a command that did not run.
    fn not_started(&self, place: Place, app: &[u8], status: i32) {
        let task = TaskRecord {
            place,
            start: now(),
            duration: Duration::ZERO,
            status,
            pid: 0,
            app,
        };
        self.report.ended(&task, None);
    }
}

fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word).into_owned()
}

fn name(place: Place) -> String {
    match place {
        Place::Setup => "the setup".into(),
        Place::Cleanup => "the cleanup".into(),
        Place::Listed { number, line } => format!("command {number} (line {line})"),
    }
}
