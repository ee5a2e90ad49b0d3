//! Runs the program of a job.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use monitord_compat::invocation_record::ChecksummedFile;
use nix::sys::signal::Signal;
use pegasus_kickstart::cli::{self, Outcome};
use pegasus_kickstart::exit;
use pegasus_kickstart::interrupts::{Filtered, Interrupt, Interrupts};
use pegasus_kickstart::invoke::Report;
use pegasus_kickstart::lookup;
use pegasus_kickstart::spawn::{Program, spawn};
use pegasus_kickstart::wait::{Limit, Target, wait};
use pmc_job_files::Run;

use crate::job_context::JobContext;

/// How the program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code.
    pub(crate) code: u8,
    /// The signal that arrived meanwhile.
    pub(crate) signal: Option<Signal>,
    /// SHA-256 of the outputs, by logical name.
    pub(crate) checksums: Vec<(Vec<u8>, String)>,
    /// Bytes of the record.
    pub(crate) written: u64,
    /// Peak resident memory of a process, KiB; 0 if it is unknown.
    pub(crate) peak_kib: u64,
}

/// Runs the program in `directory`.
pub(crate) fn run(
    run: &Run,
    directory: &Path,
    around: &JobContext<'_>,
    interrupts: &mut dyn Interrupts,
) -> Ended {
    let mut signal = None;
    let mut watched = Filtered(interrupts, |interrupt| note_end(&mut signal, interrupt));
    let mut checksums = Vec::new();
    let Outcome {
        code,
        written,
        peak_kib,
    } = match run {
        Run::Kickstart(words) => {
            let mut observe = |report: &Report| checksums = checksums_of(report);
            let words = words.iter().map(OsString::from);
            let context = around.kickstart_in(directory);
            let host = |machine| around.host(machine);
            cli::run_and_show(words, context, host, &mut watched, &mut observe)
        }
        Run::Program(words) => {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            program(&words, directory, None, around, &mut watched).unwrap_or_else(|error| {
                around
                    .log
                    .error(format_args!("cannot run {}: {error}", words[0].display()));
                without_record(exit::NOT_RUNNABLE, 0)
            })
        }
    };
    Ended {
        code,
        signal,
        checksums,
        written,
        peak_kib,
    }
}

fn without_record(code: u8, peak_kib: u64) -> Outcome {
    Outcome {
        code,
        written: 0,
        peak_kib,
    }
}

/// Runs a program that is not that of the job. Its output goes to a file, if there is one.
///
/// # Errors
/// It cannot be run.
pub(crate) fn outside(
    words: &[OsString],
    directory: &Path,
    output: Option<&File>,
    around: &JobContext<'_>,
    interrupts: &mut dyn Interrupts,
) -> io::Result<Ended> {
    let mut signal = None;
    let mut watched = Filtered(interrupts, |interrupt| note_end(&mut signal, interrupt));
    let outcome = program(words, directory, output, around, &mut watched)?;
    Ok(Ended {
        code: outcome.code,
        signal,
        checksums: Vec::new(),
        written: 0,
        peak_kib: outcome.peak_kib,
    })
}

/// Returns whether a signal ends the job. The others ask its program to save itself.
fn ends_the_job(signal: Signal) -> bool {
    !matches!(signal, Signal::SIGUSR1 | Signal::SIGUSR2)
}

/// Returns whether an interrupt is for a job whose program has ended.
pub(crate) fn is_for_the_job(interrupt: Interrupt) -> bool {
    !matches!(interrupt, Interrupt::Forward(signal) if !ends_the_job(signal))
}

/// Notes the first signal that ends the job. Its program gets all of them.
fn note_end(end: &mut Option<Signal>, interrupt: Interrupt) -> bool {
    if let Interrupt::Forward(signal) = interrupt
        && ends_the_job(signal)
    {
        end.get_or_insert(signal);
    }
    true
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

/// Runs a program without kickstart. Its streams are those of the job, but for its output if there is a file
/// for it.
fn program(
    words: &[OsString],
    directory: &Path,
    output: Option<&File>,
    around: &JobContext<'_>,
    interrupts: &mut dyn Interrupts,
) -> io::Result<Outcome> {
    let context = &around.context;
    let environment = around.environment_in(directory);
    let found = lookup::find(&words[0], directory, environment.get(b"PATH"))?;
    let copy = |stream: BorrowedFd<'_>| stream.try_clone_to_owned();
    let streams: [OwnedFd; 3] = [
        copy(context.stdin)?,
        copy(output.map_or(context.stdout, AsFd::as_fd))?,
        copy(context.stderr)?,
    ];
    let program = Program {
        file: &found.file,
        words,
        environment: &environment,
        directory: Some(directory),
        keep: &context.keep,
        own_group: context.own_group,
        die_with_parent: false,
    };
    let pid = spawn(&program, &streams, &mut context.cache.spawner())?;
    // The program has its own copies.
    drop(streams);
    let target = Target {
        pid,
        leads_group: context.own_group,
    };
    let (status, usage) = wait(target, &mut Limit::none(), interrupts, &mut |line| {
        around.log.say(line)
    })?;
    Ok(without_record(exit::of(&status), usage.max_rss_kib))
}
