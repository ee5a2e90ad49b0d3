//! What `pegasus-kickstart` does with a command line, for the program and for the task server.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::context::Context;
use crate::exit;
use crate::interrupts::Interrupts;
use crate::invoke::{self, Report};
use crate::machine::Host;
use crate::options::{self, Options, Request};

/// The version of Pegasus whose kickstart this program replaces.
const COMPATIBLE_VERSION: &str = "5.1.3";

/// The result of a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Exit code.
    pub code: u8,
    /// Bytes of the record.
    pub written: u64,
    /// Peak resident memory of a job, KiB; 0 if it is unknown.
    pub peak_kib: u64,
}

/// Does what the `words` after the program's name ask for. Record, text and messages go to the streams of the
/// context. `host` returns the host, with its machine or without.
pub fn run<'h>(
    words: impl IntoIterator<Item = OsString>,
    context: Context<'_>,
    host: impl FnOnce(bool) -> Cow<'h, Host>,
    interrupts: &mut dyn Interrupts,
) -> Outcome {
    run_and_show(words, context, host, interrupts, &mut |_| {})
}

/// As [`run`], and shows the record to `observer` before it is written.
pub fn run_and_show<'h>(
    words: impl IntoIterator<Item = OsString>,
    context: Context<'_>,
    host: impl FnOnce(bool) -> Cow<'h, Host>,
    interrupts: &mut dyn Interrupts,
    observer: &mut dyn FnMut(&Report),
) -> Outcome {
    let (stdout, stderr) = (context.stdout, context.stderr);
    let without_record = |code| Outcome {
        code,
        written: 0,
        peak_kib: 0,
    };
    // Help and version need no reader: errors of writing them do not count.
    let (options, problem) = match options::parse(words) {
        Ok(Request::CompatibleVersion) => {
            let _ = writeln!(Raw(stdout), "{COMPATIBLE_VERSION}");
            return without_record(0);
        }
        Ok(Request::Version) => {
            let version = env!("CARGO_PKG_VERSION");
            let _ = writeln!(
                Raw(stdout),
                "pegasus-kickstart {version} (compatible with {COMPATIBLE_VERSION})"
            );
            return without_record(0);
        }
        Ok(Request::Help) => {
            let _ = Raw(stdout).write_all(options::usage().as_bytes());
            return without_record(0);
        }
        Ok(Request::Usage) => {
            let _ = Raw(stderr).write_all(options::usage().as_bytes());
            return without_record(exit::NOT_RUNNABLE);
        }
        Ok(Request::Run(options)) => (options, None),
        Err(error) => (error.options, Some(format!("ERROR: {}", error.problem))),
    };
    let host = host(!options.omit_machine);
    let report = match problem {
        Some(problem) => {
            notice(stderr, &problem);
            invoke::refuse(&options, context, &host, &problem)
        }
        None => invoke::run(&options, context, &host, interrupts, &mut |line| {
            notice(stderr, line);
        }),
    };
    match report {
        Ok(report) => {
            observer(&report);
            print(&report, &options, [stdout, stderr])
        }
        Err(error) => {
            notice(stderr, &format!("ERROR: cannot begin: {error}"));
            without_record(exit::INITIALISATION)
        }
    }
}

/// Writes the record to the log. Without a log, or if that fails, writes it to standard output.
fn print(report: &Report, options: &Options, [stdout, stderr]: [BorrowedFd<'_>; 2]) -> Outcome {
    let logged = report.log.as_ref().map(|log| {
        let written = report.write_to(log)?;
        sync_if(options.sync, || log.sync_data())?;
        io::Result::Ok(written)
    });
    let done = |written| Outcome {
        code: report.exit_code,
        written,
        peak_kib: report.peak_kib,
    };
    match logged {
        Some(Ok(written)) => return done(written),
        Some(Err(error)) => notice(
            stderr,
            &format!("WARNING: cannot write the log: {error}; the record goes to standard output"),
        ),
        None => {}
    }
    let printed = report.write_to(Raw(stdout)).and_then(|written| {
        sync_if(options.sync, || {
            File::from(stdout.try_clone_to_owned()?).sync_data()
        })?;
        Ok(written)
    });
    match printed {
        Ok(written) => done(written),
        Err(error) => {
            notice(stderr, &format!("ERROR: cannot write the record: {error}"));
            Outcome {
                code: exit::FAILURE,
                written: 0,
                peak_kib: report.peak_kib,
            }
        }
    }
}

fn sync_if(sync: bool, call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    if !sync {
        return Ok(());
    }
    match call() {
        // A pipe cannot be synchronised.
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        _ => Ok(()),
    }
}

/// Writes a message for the user to `stderr`, one line.
pub fn notice(stderr: BorrowedFd<'_>, message: &str) {
    let line = format!("pegasus-kickstart[{}]: {message}\n", std::process::id());
    // There is no other place to report this.
    let _ = Raw(stderr).write_all(line.as_bytes());
}

/// Writes to a borrowed descriptor.
struct Raw<'a>(BorrowedFd<'a>);

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        nix::unistd::write(self.0, bytes).map_err(Errno::into)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
