//! The program `pegasus-mpi-cluster`: from command line and environment to exit code.

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::{self, Instead, Typed};
use crate::driver::{RunError, RunSummary};
use crate::interrupt::Interrupt;
use crate::launch::{self, Launch};
use crate::options::{Options, WorkerOptions};
use crate::run::{LocalRun, run_local};
use crate::{host, logging};

const FAILURE: u8 = 1;

/// Runs the program. `words` is the command line, the program's name included.
#[must_use]
pub fn main(words: Vec<OsString>, environment: Vec<(OsString, OsString)>) -> ExitCode {
    let lookup = |name: &str| {
        environment
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.clone())
    };
    let launch = launch::detect(lookup);
    let program = words
        .first()
        .cloned()
        .unwrap_or_else(|| "pegasus-mpi-cluster".into());
    let arguments = words.get(1..).unwrap_or_default();
    match cli::parse(&program, arguments, lookup, launch != Launch::Alone) {
        Err(Instead::Print {
            text,
            code,
            everywhere,
        }) => {
            if everywhere || launch.is_first() {
                print(&text);
            }
            ExitCode::from(code)
        }
        Ok(typed) => {
            let worker = WorkerOptions::from_typed(&typed, environment);
            match launch {
                Launch::Alone => alone(&typed, &program, worker),
                Launch::Launched { .. } => launched(&typed, &program, worker, &launch),
            }
        }
    }
}

/// Without a launcher: everything in this process.
fn alone(typed: &Typed, program: &OsStr, worker: WorkerOptions) -> ExitCode {
    // Affinity is kept: whoever restricts a single process means it.
    let workers = typed.workers.unwrap_or_else(host::usable_cpus);
    if let Err(message) = check(typed, workers) {
        return refuse(message);
    }
    print(&cli::version());
    logging::init(typed.verbosity);
    let interrupt = Arc::new(Interrupt::new());
    if let Err(error) = catch_signals(&interrupt) {
        return refuse(&format!("Unable to handle signals: {}", pmc_dag::reason(&error)));
    }
    let run = LocalRun {
        options: Options::from_typed(typed, program),
        worker,
        workers,
    };
    conclude(&run_local(&run, &interrupt, &mut |_| {}))
}

/// Checks that need to know how many workers there are. The error is the message.
pub(crate) fn check(typed: &Typed, workers: u32) -> Result<(), &'static str> {
    if workers < 1 {
        return Err("At least one worker process is required");
    }
    if typed.set_affinity && typed.host_cpus > 0 {
        return Err("--host-cpus is not compatible with --set-affinity");
    }
    Ok(())
}

#[cfg(not(feature = "mpi"))]
fn launched(typed: &Typed, _: &OsStr, _: WorkerOptions, launch: &Launch) -> ExitCode {
    let Launch::Launched { sign, .. } = launch else {
        return ExitCode::from(FAILURE);
    };
    if launch.is_first() {
        let hint = if typed.workers.is_some() {
            "start it without the launcher to use --workers"
        } else {
            "build it with the feature `mpi`, or start it without the launcher to run on one machine"
        };
        print(&format!(
            "This program was started by an MPI launcher ({sign} is set) but built without MPI: {hint}\n"
        ));
    }
    ExitCode::from(FAILURE)
}

#[cfg(feature = "mpi")]
fn launched(typed: &Typed, program: &OsStr, worker: WorkerOptions, launch: &Launch) -> ExitCode {
    crate::app_mpi::launched(typed, program, worker, launch)
}

/// Makes the signals that ask for an end known to the run; not those that whoever started the
/// program wants to be ignored, as `nohup` does.
pub(crate) fn catch_signals(interrupt: &Arc<Interrupt>) -> std::io::Result<()> {
    let ignored = std::fs::read_to_string("/proc/self/status").map_or(0, |status| ignored_signals(&status));
    let wanted = [SIGTERM, SIGINT, SIGHUP]
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(wanted)?;
    let interrupt = Arc::clone(interrupt);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                interrupt.raise(signal);
            }
        })?;
    Ok(())
}

/// The set of ignored signals in the text of `/proc/self/status`; bit 0 is signal 1.
fn ignored_signals(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Last words of a run, and its exit code.
pub(crate) fn conclude(result: &Result<RunSummary, RunError>) -> ExitCode {
    match result {
        Ok(summary) if summary.aborted.is_some() => {
            print("ABORT: Workflow aborted\n");
            ExitCode::from(FAILURE)
        }
        Ok(summary) if summary.success() => {
            tracing::info!("Workflow succeeded");
            ExitCode::SUCCESS
        }
        Ok(summary) => {
            if let Some(cycle) = &summary.cycle {
                print(&format!("{cycle}\n"));
            }
            tracing::error!("Workflow failed");
            ExitCode::from(FAILURE)
        }
        Err(error) => {
            if let Some(position) = error.position() {
                print(&format!("{position}\n"));
            }
            print(&format!("ABORT: {error}\n"));
            ExitCode::from(FAILURE)
        }
    }
}

pub(crate) fn refuse(message: &str) -> ExitCode {
    print(&format!("{message}\n"));
    ExitCode::from(FAILURE)
}

/// Prints to stderr; there is nobody to tell if that fails.
pub(crate) fn print(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_bits() {
        assert_eq!(ignored_signals("Name:\tx\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!(ignored_signals("Name:\tx\n"), 0);
        let here = std::fs::read_to_string("/proc/self/status").unwrap();
        // Rust programs ignore SIGPIPE.
        assert_eq!(ignored_signals(&here) >> 12 & 1, 1);
    }
}
