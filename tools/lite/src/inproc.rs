//! `pegasus-lite` inside another process: same steps, log, records and exit code, but no new process.

use std::ffi::OsString;

use clap::Parser as _;
use pegasus_kickstart::context::Context;
use pegasus_kickstart::interrupts::Interrupts;
use pegasus_kickstart::machine::Host;

use crate::job::{self, Outcome};
use crate::job_context::JobContext;
use crate::messages::Log;
use crate::program::Args;

/// Runs the job that the `arguments` after the program's name describe. `context` is what the program would
/// inherit; its program is kickstart, beside which the other programs are. `host` has its machine.
///
/// Returns `None` if the program is needed: nothing was changed or written then, and the program itself
/// reports all problems before the work.
pub fn run(
    arguments: &[OsString],
    context: &Context<'_>,
    host: &Host,
    interrupts: &mut dyn Interrupts,
) -> Option<Outcome> {
    let name = OsString::from(pmc_calls::LITE);
    let args = Args::try_parse_from(std::iter::once(&name).chain(arguments)).ok()?;
    let description = args.description(&context.directory).ok()?;
    if args.needs_process(&description) {
        return None;
    }
    let around = JobContext {
        context: context.clone(),
        log: Log::new(context.stderr).ok()?,
        host: Some(host),
    };
    Some(job::run(&description, &around, interrupts))
}
