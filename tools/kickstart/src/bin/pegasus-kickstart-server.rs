//! `pegasus-kickstart-server`: does what `pegasus-kickstart` does again and again for an executor, which starts it.
//!
//! A program of its own, since it holds transfers and registration, which each kickstart would pay for when it starts.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use nix::sys::signal::{SigHandler, Signal, signal};
use pegasus_kickstart::context::Inherited;
use pegasus_kickstart::interrupts::ProcessSignals;
use pegasus_kickstart::invoke::exit;
use pegasus_kickstart::{program, serve};

/// In records, the server goes by the name of the program that it stands for.
const KICKSTART: &str = "pegasus-kickstart";

fn main() -> ExitCode {
    share_heap();
    handle_no_signals();
    let served = ProcessSignals::install().and_then(|signals| {
        let kickstart = std::env::current_exe()?.with_file_name(KICKSTART);
        serve::run(Inherited::of_process(kickstart), signals)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let message = format!("ERROR: cannot serve an executor, which starts this program: {error}");
            program::notice(io::stderr().as_fd(), &message);
            exit::INITIALISATION.into()
        }
    }
}

/// Takes away the handlers that the standard library installs for the message of a stack overflow. Without any, no
/// signal has to be blocked while a process starts.
fn handle_no_signals() {
    for fault in [Signal::SIGSEGV, Signal::SIGBUS] {
        #[expect(unsafe_code, reason = "the default action runs no code of ours")]
        // It cannot fail for these.
        let _ = unsafe { signal(fault, SigHandler::SigDfl) };
    }
}

/// Has the thread that transfers and registers take memory from where this one does, which keeps what is freed: fresh
/// memory costs more than what is done with it.
fn share_heap() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "there is one thread yet, and the calls set numbers")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1 << 20);
        libc::mallopt(libc::M_TOP_PAD, 256 << 10);
    }
}
