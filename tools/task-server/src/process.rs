//! Programs for which the server cannot stand in: it starts them in its group and waits.

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;

use pegasus_kickstart::cli::{Outcome, notice};
use pegasus_kickstart::context::Context;
use pegasus_kickstart::exit;
use pegasus_kickstart::interrupts::{Filtered, Interrupt};
use pegasus_kickstart::spawn::{Program, spawn};
use pegasus_kickstart::wait::{Limit, Target, wait};
use pmc_wire::Tool;

use crate::lifeline::TaskInterrupts;

/// Runs a program with what a task inherits.
pub(crate) fn run(
    tool: Tool,
    words: &[OsString],
    context: &Context<'_>,
    interrupts: &mut TaskInterrupts<'_>,
) -> Outcome {
    let (code, peak_kib) = try_run(tool, words, context, interrupts).unwrap_or_else(|error| {
        let message = format!("ERROR: cannot run {}: {error}", tool.name());
        notice(context.stderr, &message);
        (exit::NOT_RUNNABLE, 0)
    });
    Outcome {
        code,
        written: 0,
        peak_kib,
    }
}

/// Returns the exit code, and the peak resident memory in KiB.
fn try_run(
    tool: Tool,
    words: &[OsString],
    context: &Context<'_>,
    interrupts: &mut TaskInterrupts<'_>,
) -> io::Result<(u8, u64)> {
    let file = context.program.with_file_name(tool.name());
    let name = file.clone().into_os_string();
    let all: Vec<OsString> = std::iter::once(name).chain(words.iter().cloned()).collect();
    let program = Program {
        file: &file,
        words: &all,
        environment: &context.environment,
        directory: None,
        keep: &context.keep,
        own_group: false,
        // Nobody would wait for it, and the next attempt must not meet it.
        die_with_parent: true,
    };
    let copy = |stream: BorrowedFd<'_>| stream.try_clone_to_owned();
    let streams = [copy(context.stdin)?, copy(context.stdout)?, copy(context.stderr)?];
    let pid = spawn(&program, &streams, &mut context.cache.spawner())?;
    drop(streams);
    let target = Target {
        pid,
        leads_group: false,
    };
    let mut notice = |line: &str| notice(context.stderr, line);
    // Signals to the group reach it by themselves.
    let mut interrupts = Filtered(interrupts, |interrupt| interrupt == Interrupt::Child);
    let (status, usage) = wait(target, &mut Limit::none(), &mut interrupts, &mut notice)?;
    Ok((exit::of(&status), usage.max_rss_kib))
}
