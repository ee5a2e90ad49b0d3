//! `pegasus-remove`: ends a running workflow.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use monitord_compat::run_lock::is_locked;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pmc_batch::submit::{cancel, submitted_job};
use pmc_files::{Folder, Owner};
use pmc_monitor::dir::RunDir;
use pmc_monitor::history::History;

use super::{environment, open};
use crate::cli::pegasus;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::submit::Submit;
use pmc_terminal::print;

/// Maximum time for the executor to stop its tasks.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Ends a workflow. Returns the exit code.
pub fn remove(options: &pegasus::Remove) -> Result<u8, Failure> {
    let submit = open(&options.dir)?;
    refuse_that_of_other(&submit)?;
    if submit.condor.is_some() {
        let number = pmc_batch::condor::remove(&submit.dir, &environment()).or_code(exit::TASKS_FAILED)?;
        print(&format!("The HTCondor job {number} is removed\n"));
        return Ok(exit::SUCCESS);
    }
    if let Some(job) = submitted_job(&submit.dir) {
        cancel(&submit.dir, &job, &environment()).or_code(exit::TASKS_FAILED)?;
        print(&format!("The {} job {} is cancelled\n", job.scheduler, job.id));
        return Ok(exit::SUCCESS);
    }
    if is_locked(&submit.dag) != Some(true) {
        let error = anyhow!("the workflow in {} is not running", submit.dir.display());
        return Err(Failure::new(exit::TASKS_FAILED, error));
    }
    let process = executor(&submit)?;
    kill(process, Signal::SIGTERM)
        .map_err(|error| anyhow!("cannot stop the process {process}: {error}"))
        .or_code(exit::TASKS_FAILED)?;
    let deadline = Instant::now() + STOP_LIMIT;
    while is_locked(&submit.dag) == Some(true) {
        if Instant::now() > deadline {
            let error = anyhow!("the process {process} does not end");
            return Err(Failure::new(exit::TASKS_FAILED, error));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    print(&format!("The workflow in {} is stopped\n", submit.dir.display()));
    Ok(exit::SUCCESS)
}

/// Refuses a directory of another user: its files say which process or batch job is ended, and it would be
/// ended with the rights of this user.
fn refuse_that_of_other(submit: &Submit) -> Result<(), Failure> {
    let owner = Folder::open(&submit.dir).and_then(|folder| folder.owner());
    if owner.is_ok_and(|owner| owner == Owner::User) {
        return Ok(());
    }
    let error = anyhow!("the workflow in {} is that of another user", submit.dir.display());
    Err(Failure::new(exit::TASKS_FAILED, error).hint("only that user can end it"))
}

/// Returns the executor of the active run. The log has its number, but not its host.
fn executor(submit: &Submit) -> Result<Pid, Failure> {
    let dir = RunDir::open(&submit.dir).or_code(exit::TASKS_FAILED)?;
    let history = History::open(dir).or_code(exit::TASKS_FAILED)?;
    let process = history.runs.last().and_then(|run| run.process);
    let process = process.filter(|process| is_executor(*process));
    let process = process.and_then(|process| i32::try_from(process).ok());
    process.map(Pid::from_raw).ok_or_else(|| {
        let error = anyhow!("the workflow in {} runs on another host", submit.dir.display());
        Failure::new(exit::TASKS_FAILED, error).hint("end its process there, or its batch job")
    })
}

/// Returns whether a process of this machine is an executor.
fn is_executor(process: u32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    // The system cuts names at 15 bytes.
    name.trim_end() == "pmc" || name.starts_with("pegasus-mpi-clu")
}
