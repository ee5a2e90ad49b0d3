//! `pegasus-kickstart`: runs one program and prints its invocation record.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use nix::sys::stat::{Mode, umask};

use pegasus_kickstart::context::{Context, Environment, OwnUsage};
use pegasus_kickstart::interrupts::ProcessSignals;
use pegasus_kickstart::invoke::{self, Report, exit};
use pegasus_kickstart::machine::Host;
use pegasus_kickstart::options::{self, Options, Request};

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

fn main() -> ExitCode {
    let began = (SystemTime::now(), Instant::now());
    let mut words = std::env::args_os();
    let program = words.next().unwrap_or_default();
    match options::parse(words) {
        Ok(Request::Version) => {
            // A reader that is gone does not want the version.
            let _ = writeln!(io::stdout(), "{COMPATIBLE_VERSION}");
            ExitCode::SUCCESS
        }
        Ok(Request::Usage) => {
            let _ = io::stderr().write_all(USAGE.as_bytes());
            exit::NOT_RUNNABLE.into()
        }
        Ok(Request::Run(options)) => run(&options, program, began, None),
        Err(error) => {
            let problem = format!("ERROR: {}", error.problem);
            notice(&problem);
            run(&error.options, program, began, Some(&problem))
        }
    }
}

fn run(
    options: &Options,
    program: OsString,
    began: (SystemTime, Instant),
    refused: Option<&str>,
) -> ExitCode {
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let context = Context {
        began,
        environment: std::env::vars_os().collect::<Environment>(),
        directory: invoke::current_directory(),
        umask: current_umask(),
        program: std::env::current_exe().unwrap_or_else(|_| program.into()),
        stdin: stdin.as_fd(),
        stdout: stdout.as_fd(),
        stderr: stderr.as_fd(),
        own_usage: OwnUsage::Process,
        own_group: false,
    };
    let host = Host::gather(!options.omit_machine);
    let report = match refused {
        Some(problem) => invoke::refuse(options, context, &host, problem),
        None => ProcessSignals::install()
            .and_then(|mut signals| invoke::run(options, context, &host, &mut signals, &mut notice)),
    };
    match report {
        Ok(report) => print(&report, options.sync),
        Err(error) => {
            notice(&format!("ERROR: cannot begin: {error}"));
            exit::INITIALISATION.into()
        }
    }
}

/// Writes the record to the log or, failing that, to standard output.
fn print(report: &Report, sync: bool) -> ExitCode {
    let logged = report
        .log
        .as_ref()
        .map(|log| report.write_to(log).and_then(|()| sync_if(sync, log)));
    match logged {
        Some(Ok(())) => return report.exit_code.into(),
        Some(Err(error)) => notice(&format!(
            "WARNING: cannot write the log: {error}; the record goes to standard output"
        )),
        None => {}
    }
    let printed = io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map(File::from)
        .and_then(|out| report.write_to(&out).and_then(|()| sync_if(sync, &out)));
    match printed {
        Ok(()) => report.exit_code.into(),
        Err(error) => {
            notice(&format!("ERROR: cannot write the record: {error}"));
            exit::FAILURE.into()
        }
    }
}

fn sync_if(sync: bool, file: &File) -> io::Result<()> {
    if !sync {
        return Ok(());
    }
    match file.sync_data() {
        // A pipe cannot be synchronised.
        Err(error) if error.raw_os_error() != Some(nix::libc::EINVAL) => Err(error),
        _ => Ok(()),
    }
}

fn notice(message: &str) {
    let _ = writeln!(
        io::stderr(),
        "pegasus-kickstart[{}]: {message}",
        std::process::id()
    );
}

/// The only way to ask for the mask is to change it; no other thread runs yet.
fn current_umask() -> u32 {
    let mask = umask(Mode::empty());
    umask(mask);
    mask.bits()
}
