//! The program as one process of an MPI launcher.

use std::ffi::OsStr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use super::{check, conclude, print, refuse};
use crate::cli::{self, RawArgs};
use crate::interrupt::Interrupt;
use crate::launch::Launch;
use crate::options::{Options, WorkerOptions, folder};
use crate::protocol::Rank;
use crate::signals::{self, Process};
use crate::transport::mpi::{Mpi, Waiting};
use crate::worker::{self, RunningAttempt, Sentinel, Watched};
use crate::{driver, host, logging};

/// Time for the last output of this process to reach the launcher before all processes are killed.
const OUTPUT_DELAY: Duration = Duration::from_secs(1);

/// Runs the master or a worker, depending on the rank.
pub(super) fn launched(
    args: &RawArgs,
    program: &OsStr,
    mut worker: WorkerOptions,
    launch: &Launch,
) -> ExitCode {
    let Launch::Launched { sign, size, .. } = launch else {
        return ExitCode::FAILURE;
    };
    let refuse_once = |message: &str| {
        if launch.is_first() {
            refuse(message)
        } else {
            ExitCode::FAILURE
        }
    };
    if args.workers.is_some() {
        return refuse_once(&format!(
            "--workers is for runs without an MPI launcher, but there is one ({sign} is set): \
             the launcher's number of processes counts"
        ));
    }
    // A copy of this process that knows nothing of MPI.
    let sentinel = Sentinel::start_or_warn();
    // MPI has connections to other ranks.
    pmc_spawn::open_files::raise();
    let mpi = match Mpi::start(&worker.environment) {
        Ok(mpi) => mpi,
        Err(error) => return refuse_once(&error.to_string()),
    };
    if let Some(size) = size.filter(|size| *size > 1 && mpi.size() == 1) {
        return refuse_once(&format!(
            "The launcher has started {size} processes ({sign} is set), but MPI knows of one only: \
             use the launcher of the MPI library that this program was built with, or tell srun \
             which one it is (--mpi)"
        ));
    }
    let first = mpi.rank() == Rank(0);
    if let Err(message) = check(args, mpi.size().saturating_sub(1)) {
        // As in the original, every process prints the message.
        return if first || mpi.size() > 1 {
            refuse(&message.to_string())
        } else {
            ExitCode::FAILURE
        };
    }
    if first {
        print(&cli::version());
    }
    logging::init(args.verbosity);
    // A worker may bind tasks only to CPUs that it may use itself.
    if !args.keep_affinity || args.set_affinity {
        tracing::debug!("Rank {}: Clearing CPU and memory affinity", mpi.rank().0);
        host::reset_affinity();
    } else if worker.host_cpus == 0 {
        worker.host_cpus = host::allocated_cpus_of_host(&worker.environment);
    }
    let interrupt = Arc::new(Interrupt::new());
    let process = if first { Process::Master } else { Process::Worker };
    if let Err(error) = signals::catch(&interrupt, process) {
        print(&format!(
            "Unable to handle signals: {}\n",
            pmc_dag::reason(&error)
        ));
        mpi.abort(1);
    }
    // Not earlier: when MPI starts, processes of one host open files of each other.
    host::protect_process();
    let waiting = if args.no_sleep_on_recv {
        Waiting::Busy
    } else {
        Waiting::Sleep
    };
    if first {
        // The master has no tasks.
        drop(sentinel);
        master(mpi, waiting, &interrupt, &args.options(program))
    } else {
        let watched = sentinel.map(|sentinel| Watched { sentinel, worker: 0 });
        let current = Arc::new(RunningAttempt::watched(watched));
        work(mpi, waiting, &interrupt, worker, current)
    }
}

fn master(mpi: Mpi, waiting: Waiting, interrupt: &Arc<Interrupt>, options: &Options) -> ExitCode {
    let mut transport = mpi.master(waiting, Arc::clone(interrupt), folder(&options.worker_files));
    let result = driver::run(&mut transport, options, interrupt, &mut |_| {});
    let code = conclude(&result);
    let unresponsive = match &result {
        Ok(summary) => &summary.unresponsive_workers,
        Err(error) => &error.unresponsive_workers,
    };
    if !unresponsive.is_empty() {
        tracing::error!("{} workers do not answer", unresponsive.len());
        drop(transport);
        std::thread::sleep(OUTPUT_DELAY);
        mpi.abort(1);
    }
    transport.release();
    drop(transport);
    mpi.end(code)
}

fn work(
    mpi: Mpi,
    waiting: Waiting,
    interrupt: &Arc<Interrupt>,
    options: WorkerOptions,
    current: Arc<RunningAttempt>,
) -> ExitCode {
    let mut transport = mpi.worker(waiting, Arc::clone(interrupt));
    let served = worker::serve_process(&mut transport, Arc::new(options), current, interrupt);
    if let Err(error) = served.and_then(|()| transport.goodbye()) {
        print(&format!("ABORT: Worker {}: {error}\n", mpi.rank().0));
        drop(transport);
        std::thread::sleep(OUTPUT_DELAY);
        mpi.abort(1);
    }
    drop(transport);
    mpi.end(ExitCode::SUCCESS)
}
