//! Runs the program of a job.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use monitord_compat::invocation_record::{ChecksummedFile, Status};
use nix::sys::signal::Signal;
use pegasus_kickstart::cache::InvocationCache;
use pegasus_kickstart::cli;
use pegasus_kickstart::context::{Context, Inherited};
use pegasus_kickstart::environment::Environment;
use pegasus_kickstart::exit;
use pegasus_kickstart::interrupts::{Interrupt, Interrupts};
use pegasus_kickstart::invoke::Report;
use pegasus_kickstart::lookup;
use pegasus_kickstart::machine::Host;
use pegasus_kickstart::spawn::{Program, spawn};
use pegasus_kickstart::wait::{Limit, Target, wait};

use crate::description::Run;
use crate::messages::log;

/// How the program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code.
    pub(crate) code: u8,
    /// The signal that arrived meanwhile.
    pub(crate) signal: Option<Signal>,
    /// SHA-256 of the outputs, by logical name.
    pub(crate) checksums: Vec<(Vec<u8>, String)>,
}

/// Runs the program in `directory`, which is the working directory of the process.
pub(crate) fn run(
    run: &Run,
    directory: &Path,
    inherited: Inherited,
    interrupts: &mut dyn Interrupts,
) -> Ended {
    let mut watched = Watched {
        interrupts,
        signal: None,
    };
    let mut checksums = Vec::new();
    let code = match run {
        Run::Kickstart(words) => {
            let mut observe = |report: &Report| checksums = checksums_of(report);
            kickstart(words, directory, inherited, &mut watched, &mut observe)
        }
        Run::Program(words) => {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            match program(&words, &inherited.environment, directory, None, &mut watched) {
                Ok(code) => code,
                Err(error) => {
                    log(format_args!("cannot run {}: {error}", words[0].display()));
                    exit::NOT_RUNNABLE
                }
            }
        }
    };
    Ended {
        code,
        signal: watched.signal,
        checksums,
    }
}

/// Runs a program that is not that of the job. Its output goes to a file, if there is one.
///
/// # Errors
/// It cannot be run.
pub(crate) fn outside(
    words: &[OsString],
    environment: &Environment,
    directory: &Path,
    output: Option<&File>,
    interrupts: &mut dyn Interrupts,
) -> io::Result<Ended> {
    let mut watched = Watched {
        interrupts,
        signal: None,
    };
    let code = program(words, environment, directory, output, &mut watched)?;
    Ok(Ended {
        code,
        signal: watched.signal,
        checksums: Vec::new(),
    })
}

/// Interrupts of a program, remembering the first signal.
struct Watched<'a> {
    interrupts: &'a mut dyn Interrupts,
    signal: Option<Signal>,
}

impl Interrupts for Watched<'_> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.interrupts.descriptor()
    }

    fn take(&mut self) -> Option<Interrupt> {
        let interrupt = self.interrupts.take();
        if let Some(Interrupt::Forward(signal)) = interrupt {
            self.signal.get_or_insert(signal);
        }
        interrupt
    }

    fn pause(&mut self, pause: Option<Duration>) -> Option<io::Result<()>> {
        self.interrupts.pause(pause)
    }

    fn reports_children(&self) -> bool {
        self.interrupts.reports_children()
    }
}

fn kickstart(
    words: &[String],
    directory: &Path,
    inherited: Inherited,
    interrupts: &mut dyn Interrupts,
    observe: &mut dyn FnMut(&Report),
) -> u8 {
    let mut inherited = inherited;
    let pwd = directory.as_os_str().as_encoded_bytes();
    inherited.environment.set(b"PWD", pwd);
    let cache = InvocationCache::default();
    let context = Context::of_process(inherited, directory.to_owned(), &cache);
    let words = words.iter().map(OsString::from);
    let host = |machine| Cow::Owned(Host::gather(machine));
    cli::run_and_show(words, context, host, interrupts, observe).code
}

/// Returns the checksums of the outputs in a record.
fn checksums_of(report: &Report) -> Vec<(Vec<u8>, String)> {
    let files = report.record.files.iter();
    files
        .filter_map(|entry| match (&entry.lfn, &entry.output) {
            (Some(lfn), Some(ChecksummedFile::Checksum { sha256, .. })) => {
                Some((lfn.clone(), sha256.clone()))
            }
            _ => None,
        })
        .collect()
}

/// Runs a program without kickstart. Its streams are those of this process, but for its output if there is a
/// file for it.
fn program(
    words: &[OsString],
    environment: &Environment,
    directory: &Path,
    output: Option<&File>,
    interrupts: &mut dyn Interrupts,
) -> io::Result<u8> {
    let mut environment = environment.clone();
    environment.set(b"PWD", directory.as_os_str().as_encoded_bytes());
    let found = lookup::find(&words[0], directory, environment.get(b"PATH"))?;
    let copy = |stream: BorrowedFd<'_>| stream.try_clone_to_owned();
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    let streams: [OwnedFd; 3] = [
        copy(stdin.as_fd())?,
        copy(output.map_or(stdout.as_fd(), AsFd::as_fd))?,
        copy(stderr.as_fd())?,
    ];
    let program = Program {
        file: &found.file,
        words,
        environment: &environment,
        directory: None,
        keep: &[],
        own_group: false,
    };
    let pid = spawn(&program, &streams, &mut InvocationCache::default().spawner())?;
    let target = Target {
        pid,
        leads_group: false,
    };
    let (status, _) = wait(target, &mut Limit::none(), interrupts, &mut |line| log(line))?;
    Ok(match status {
        Status::Exited { code } => code,
        Status::Signalled { signal, .. } => {
            exit::SIGNAL.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX))
        }
        Status::Failed { .. } => exit::NOT_RUNNABLE,
    })
}
