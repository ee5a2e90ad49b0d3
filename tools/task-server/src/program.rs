//! `pegasus-kickstart-server`: runs task after task for an executor, which starts it.
//!
//! It is a program of its own since it contains transfers and registration. In `pegasus-kickstart` they would
//! make every start slower.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use nix::sys::signal::{SigHandler, Signal, signal};
use pegasus_kickstart::context::Inherited;
use pegasus_kickstart::interrupts::ProcessSignals;
use pegasus_kickstart::{cli, exit};
use pmc_calls::KICKSTART;

/// Name of this program in messages.
const SERVER: &str = "pegasus-kickstart-server";

/// Runs the program: arguments, environment and exit status are those of the process.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(argument) = std::env::args_os().nth(1) {
        return describe(argument == "--version");
    }
    share_heap();
    remove_signal_handlers();
    let served = ProcessSignals::install().and_then(|signals| {
        let kickstart = std::env::current_exe()?.with_file_name(KICKSTART);
        crate::run(Inherited::of_process(kickstart), signals)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let message = format!("ERROR: cannot serve an executor, which starts this program: {error}");
            cli::notice(io::stderr().as_fd(), &message);
            exit::INITIALISATION.into()
        }
    }
}

/// Prints the version, or how this program is used.
fn describe(version: bool) -> ExitCode {
    if version {
        pmc_terminal::print(concat!(
            "pegasus-kickstart-server ",
            env!("CARGO_PKG_VERSION"),
            "\n"
        ));
        return pmc_terminal::finish(SERVER, 0);
    }
    pmc_terminal::message(
        "usage: pegasus-kickstart-server [--version]\n\npegasus-mpi-cluster starts this program.",
    );
    pmc_terminal::finish(SERVER, exit::NOT_RUNNABLE)
}

/// Removes the handlers that the standard library installs to report stack overflows. A process without
/// handlers need not block signals while it starts another one.
fn remove_signal_handlers() {
    for fault in [Signal::SIGSEGV, Signal::SIGBUS] {
        #[expect(unsafe_code, reason = "nix marks the call unsafe for handlers")]
        // SAFETY: the default action runs no code of this process. The call cannot fail for these signals.
        let _ = unsafe { signal(fault, SigHandler::SigDfl) };
    }
}

/// Makes all threads share one heap that keeps freed memory: fresh memory costs more than a small transfer.
fn share_heap() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "mallopt has no safe wrapper")]
    // SAFETY: no other thread exists yet, and the calls set numbers.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_TOP_PAD, 256 << 10);
    }
}
