//! The program `pegasus-mpi-cluster`: from command line and environment to exit code.

mod gang;
#[cfg(feature = "mpi")]
mod mpi;
mod with_agents;

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::sync::Arc;

use crate::cli::{self, EarlyExit, RawArgs};
use crate::driver::{Aborted, RunError, RunSummary};
use crate::exit;
use crate::interrupt::Interrupt;
use crate::launch::{self, Launch};
use crate::logging::print;
use crate::options::WorkerOptions;
use crate::run::{LocalRun, run_local};
use crate::signals::{self, Process};
use crate::{host, logging, stacks};

/// Runs the program. `words` is the command line, including the name of the program.
#[must_use]
pub fn main(words: Vec<OsString>, environment: Vec<(OsString, OsString)>) -> ExitCode {
    let lookup = |name: &str| {
        environment
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.clone())
    };
    let launch = launch::detect(lookup, launch::is_batch_script);
    let program = words
        .first()
        .cloned()
        .unwrap_or_else(|| "pegasus-mpi-cluster".into());
    let arguments = words.get(1..).unwrap_or_default();
    if let Some(code) = stacks::main(arguments) {
        return code;
    }
    match cli::parse(&program, arguments, lookup) {
        Err(EarlyExit {
            text,
            code,
            everywhere,
        }) => {
            if everywhere || launch.is_first() {
                print(&text);
            }
            ExitCode::from(code)
        }
        Ok(mut args) => {
            if let Err(error) = gang::resolve(&mut args, lookup) {
                return refuse(&error.to_string());
            }
            let worker = args.worker_options(environment);
            if args.agent {
                return with_agents::agent(&args, arguments, worker);
            }
            if args.agents.is_some() {
                return with_agents::master(&args, &program, worker, &launch);
            }
            match launch {
                Launch::Alone => alone(&args, &program, worker),
                Launch::Launched { .. } => launched(&args, &program, worker, &launch),
            }
        }
    }
}

/// Runs master and workers in this process.
fn alone(args: &RawArgs, program: &OsStr, mut worker: WorkerOptions) -> ExitCode {
    // Keeps the affinity: a restriction of a single process is intended.
    let workers = args
        .workers
        .unwrap_or_else(|| host::allocated_cpus(&worker.environment));
    let interrupt = match begin(args, workers) {
        Ok(interrupt) => interrupt,
        Err(code) => return code,
    };
    // Tasks are bound only to CPUs that exist.
    if !args.set_affinity {
        worker.host_cpus = host::cpus_for_workers(worker.host_cpus, workers, &worker.environment);
    }
    let run = LocalRun {
        options: args.options(program),
        worker,
        workers,
    };
    conclude(&run_local(&run, &interrupt, &mut |_| {}))
}

/// Begins a run with the tasks in this process, or in agents that may be on this machine.
fn begin(args: &RawArgs, workers: u32) -> Result<Arc<Interrupt>, ExitCode> {
    check(args, workers).map_err(|message| refuse(&message.to_string()))?;
    print(&cli::version());
    logging::init(args.verbosity);
    let interrupt = Arc::new(Interrupt::new());
    signals::catch(&interrupt, Process::Alone)
        .map_err(|error| refuse(&format!("Unable to handle signals: {}", pmc_dag::reason(&error))))?;
    host::protect_process();
    Ok(interrupt)
}

/// Why a run is refused before it begins.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("At least one worker process is required")]
    NoWorkers,
    #[error("--host-cpus is not compatible with --set-affinity")]
    HostCpusWithAffinity,
}

/// Checks that depend on the number of workers.
fn check(args: &RawArgs, workers: u32) -> Result<(), Refused> {
    if workers < 1 {
        return Err(Refused::NoWorkers);
    }
    if args.set_affinity && args.host_cpus > 0 {
        return Err(Refused::HostCpusWithAffinity);
    }
    Ok(())
}

#[cfg(not(feature = "mpi"))]
fn launched(args: &RawArgs, _: &OsStr, _: WorkerOptions, launch: &Launch) -> ExitCode {
    let Launch::Launched { sign, .. } = launch else {
        return ExitCode::from(exit::FAILURE);
    };
    if launch.is_first() {
        let hint = if args.workers.is_some() {
            "start it without the launcher to use --workers"
        } else {
            "build it with the feature `mpi`, or start it without the launcher to run on one machine"
        };
        print(&format!(
            "This program was started by an MPI launcher ({sign} is set) but built without MPI: {hint}\n"
        ));
    }
    ExitCode::from(exit::FAILURE)
}

#[cfg(feature = "mpi")]
fn launched(args: &RawArgs, program: &OsStr, worker: WorkerOptions, launch: &Launch) -> ExitCode {
    mpi::launched(args, program, worker, launch)
}

/// Prints the last message of a run and returns its exit code.
fn conclude(result: &Result<RunSummary, RunError>) -> ExitCode {
    match result {
        Ok(RunSummary {
            aborted: Some(aborted),
            ..
        }) => {
            if *aborted != Aborted::HeldBack {
                print("ABORT: Workflow aborted\n");
            }
            ExitCode::from(match aborted {
                Aborted::Task { exit } => *exit,
                Aborted::Signal(_) | Aborted::WallTime | Aborted::HeldBack => exit::FAILURE,
            })
        }
        Ok(summary) if summary.success() => {
            tracing::info!("Workflow succeeded");
            ExitCode::from(exit::SUCCESS)
        }
        Ok(summary) => {
            if let Some(cycle) = &summary.cycle {
                print(&format!("{cycle}\n"));
            }
            if summary.drained.is_some() {
                tracing::error!("Workflow drained: the rest is for the next run");
                return ExitCode::from(exit::DRAINED);
            }
            tracing::error!("Workflow failed");
            ExitCode::from(exit::FAILURE)
        }
        Err(error) => {
            if let Some(position) = error.position() {
                print(&format!("{position}\n"));
            }
            print(&format!("ABORT: {error}\n"));
            ExitCode::from(if error.is_stranded() {
                exit::STRANDED
            } else {
                exit::FAILURE
            })
        }
    }
}

fn refuse(message: &str) -> ExitCode {
    print(&format!("{message}\n"));
    ExitCode::from(exit::FAILURE)
}
