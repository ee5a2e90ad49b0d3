//! What `pegasus-kickstart` does with a command line, for the program and for the server.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;

use nix::errno::Errno;

use crate::context::Context;
use crate::interrupts::Interrupts;
use crate::invoke::{self, Report, exit};
use crate::machine::Host;
use crate::options::{self, Options, Request};
use crate::spares::Spares;

/// The version of Pegasus whose kickstart this is a replacement of.
const COMPATIBLE_VERSION: &str = "5.1.3";

const USAGE: &str = "\
Usage: pegasus-kickstart [options] PROGRAM [ARGUMENT...]
       pegasus-kickstart [options] -I FILE

Runs PROGRAM and prints a record of the run: times, usage, exit status, files, output.

 -n TEXT        transformation, namespace::name:version
 -N TEXT        id of the task in the abstract workflow
 -R TEXT        site
 -L TEXT        label of the workflow
 -T TEXT        time of the abstract workflow
 -w DIR         working directory
 -W DIR         the same; it is made if it does not exist
 -i FILE        standard input of the program (default /dev/null, - is that of kickstart)
 -o FILE        standard output of the program; - is that of kickstart, !FILE appends,
                ^FILE renames an existing file (default: into the record)
 -e FILE        standard error of the program, likewise
 -l FILE        append the record to FILE instead of standard output
 -B N|all       characters of captured output to keep, counted from the end (262144)
 -q             leave captured output out of the record if all went well
 -f             environment and limits in the record even if all went well
 -H             leave the machine out of the record
 -S [LFN=]FILE  state size, times and owner of FILE before the run; @LIST names a list
 -s [LFN=]FILE  the same after the run, with SHA-256
 -X             make PROGRAM executable first
 -k SECONDS     send SIGTERM after this time
 -K SECONDS     send SIGKILL this much later (5)
 -I FILE        program and arguments from FILE, one a line; last option
 -F             force the record to disk
 -c             ignored
 -V             print the version
 -h, -?         print this text

KICKSTART_SETUP, _PREJOB, _POSTJOB and _CLEANUP name commands to run before and after.
Tracing (-t, -z, -Z) is not available.
";

/// How an invocation went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Exit code.
    pub code: u8,
    /// Bytes of the record.
    pub written: u64,
}

/// Does what the `words` after the program's name ask for. Record, text and messages go to the streams of the
/// context. `host` tells about the host, with its machine or without.
pub fn run<'h>(
    words: impl IntoIterator<Item = OsString>,
    context: Context<'_>,
    host: impl FnOnce(bool) -> Cow<'h, Host>,
    interrupts: &mut dyn Interrupts,
) -> Outcome {
    let (stdout, stderr, spares) = (context.stdout, context.stderr, context.spares);
    let nothing_written = |code| Outcome { code, written: 0 };
    let (options, refused) = match options::parse(words) {
        Ok(Request::Version) => {
            // A reader that is gone does not want the version.
            let _ = writeln!(Raw(stdout), "{COMPATIBLE_VERSION}");
            return nothing_written(0);
        }
        Ok(Request::Usage) => {
            let _ = Raw(stderr).write_all(USAGE.as_bytes());
            return nothing_written(exit::NOT_RUNNABLE);
        }
        Ok(Request::Run(options)) => (options, None),
        Err(error) => (error.options, Some(format!("ERROR: {}", error.problem))),
    };
    let host = host(!options.omit_machine);
    let report = match refused {
        Some(problem) => {
            notice(stderr, &problem);
            invoke::refuse(&options, context, &host, &problem)
        }
        None => invoke::run(&options, context, &host, interrupts, &mut |line| {
            notice(stderr, line);
        }),
    };
    match report {
        Ok(report) => print(&report, &options, [stdout, stderr], spares),
        Err(error) => {
            notice(stderr, &format!("ERROR: cannot begin: {error}"));
            nothing_written(exit::INITIALISATION)
        }
    }
}

/// Writes the record to the log or, failing that, to standard output.
fn print(
    report: &Report,
    options: &Options,
    [stdout, stderr]: [BorrowedFd<'_>; 2],
    spares: &Spares,
) -> Outcome {
    let logged = report.log.as_ref().map(|log| {
        let written = report.write_to(log, &mut spares.text())?;
        sync_if(options.sync, || log.sync_data())?;
        io::Result::Ok(written)
    });
    let done = |written| Outcome {
        code: report.exit_code,
        written,
    };
    match logged {
        Some(Ok(written)) => return done(written),
        Some(Err(error)) => notice(
            stderr,
            &format!("WARNING: cannot write the log: {error}; the record goes to standard output"),
        ),
        None => {}
    }
    let printed = report
        .write_to(Raw(stdout), &mut spares.text())
        .and_then(|written| {
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

/// Tells the user something: one line on `stderr`.
pub fn notice(stderr: BorrowedFd<'_>, message: &str) {
    let line = format!("pegasus-kickstart[{}]: {message}\n", std::process::id());
    // There is nobody else to tell.
    let _ = Raw(stderr).write_all(line.as_bytes());
}

/// Writes to a descriptor of somebody else.
struct Raw<'a>(BorrowedFd<'a>);

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        nix::unistd::write(self.0, bytes).map_err(Errno::into)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
