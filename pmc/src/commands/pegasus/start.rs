//! Starts a planned workflow: in the background on this machine, or as a batch job.
//!
//! A plan for a cluster is submitted if a scheduler's program is on `PATH`. All other plans run on this
//! machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use monitord_compat::dagman_out::{self, Counts, Stamp};
use monitord_compat::run_lock::is_locked;
use pmc_batch::submit::{self, JOB_FILE, Submitted};
use pmc_batch::{Scheduler, Script};
use pmc_dag::{Dag, rescue};
use pmc_files::OFlags;
use pmc_plan::fingerprint::Facts;

use super::own_program;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::submit::Submit;
use pmc_files::with_suffix;

/// Output of a run in the background.
const OUTPUT: &str = "pmc-run.out";
/// Maximum time to wait until a run in the background has written its first lines. A slow one goes on.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Maximum bytes of the output of a run to repeat.
const MAX_MESSAGE: u64 = 4096;

/// Where a workflow runs.
#[derive(Debug)]
pub enum Started {
    /// In a process on this machine.
    Here {
        /// Its number.
        process: u32,
    },
    /// As a batch job.
    Submitted(Submitted),
}

impl Started {
    /// Returns the message for people. Tools look for its words.
    pub fn text(&self, submit: &Submit) -> String {
        let dir = submit.dir.display();
        let place = match self {
            Started::Here { process } => format!("process {process}; its output goes to {dir}/{OUTPUT}"),
            Started::Submitted(job) => format!(
                "{} job {}",
                job.scheduler,
                job.job_id.as_deref().unwrap_or("of unknown number")
            ),
        };
        format!(
            "\nYour workflow has been started and is running in the base directory:\n\n{dir}\n\n({place})\n\n\
             *** To monitor the workflow you can run ***\n\npegasus-status -l {dir}\n\n\
             *** To remove your workflow run ***\n\npegasus-remove {dir}\n\n"
        )
    }
}

/// Starts a workflow and returns when it has begun, or waits in the queue of the scheduler.
pub fn start(submit: &Submit) -> Result<Started, Failure> {
    if is_locked(&submit.dag) == Some(true) {
        let error = anyhow!("the workflow in {} is running already", submit.dir.display());
        return Err(Failure::new(exit::TASKS_FAILED, error));
    }
    let dag = Dag::open(&submit.dag)
        .with_context(|| format!("cannot use the DAG {}", submit.dag.display()))
        .or_code(exit::NOT_RUN)?;
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let scheduler = Facts::read(&submit.dag)
        .is_some_and(|facts| facts.cluster)
        .then(|| submit::detect(&environment))
        .flatten();
    announce(submit, &dag)
        .context("cannot write the log of the workflow")
        .or_code(exit::NOT_RUN)?;
    match scheduler {
        Some(scheduler) => {
            let script = script(submit, scheduler)?;
            submit::submit_script(&script, &submit.dir, &environment)
                .or_code(exit::TASKS_FAILED)
                .map(Started::Submitted)
        }
        None => start_here(submit),
    }
}

/// Returns the batch script for a scheduler.
fn script(submit: &Submit, scheduler: Scheduler) -> Result<Script, Failure> {
    let path = submit.dag.with_extension(scheduler.suffix());
    if path.is_file() {
        return Ok(Script { scheduler, path });
    }
    let error = anyhow!("the plan has no script for {scheduler}: no {}", path.display());
    let hint = format!("plan with --batch {scheduler}");
    Err(Failure::new(exit::TASKS_FAILED, error).hint(hint))
}

/// Adds a table of progress to the log of an earlier run. Otherwise the Python client would take the end of
/// that run for the end of this one.
fn announce(submit: &Submit, dag: &Dag) -> io::Result<()> {
    let log = with_suffix(&submit.dag, ".dagman.out");
    if !log.is_file() {
        return Ok(());
    }
    let done = rescue::read(&with_suffix(&submit.dag, ".rescue"), dag).map_or(0, |done| done.len());
    let counts = Counts {
        total: dag.len(),
        done,
        ..Counts::default()
    };
    let mut lines = Vec::new();
    let stamp = Stamp::new(chrono::Local::now().naive_local());
    dagman_out::progress(&mut lines, &stamp, &counts);
    let mut file = pmc_files::open_for_writing(&log, OFlags::RDWR | OFlags::APPEND, 0)?;
    let mut last = [b'\n'];
    if let Some(at) = size(&log).checked_sub(1) {
        file.read_exact_at(&mut last, at)?;
    }
    if last != *b"\n" {
        // The log was cut off within a line.
        lines.insert(0, b'\n');
    }
    file.write_all(&lines)
}

/// Starts the workflow in a process of its own.
fn start_here(submit: &Submit) -> Result<Started, Failure> {
    // `pegasus-remove` must not cancel an earlier batch job.
    let _ = fs::remove_file(submit.dir.join(JOB_FILE));
    let program = own_program("pmc")?;
    let output = submit.dir.join(OUTPUT);
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
    let opened = pmc_files::open_for_writing(&output, flags, 0o666);
    let file = opened
        .with_context(|| format!("cannot write {}", output.display()))
        .or_code(exit::NOT_RUN)?;
    let log = with_suffix(&submit.dag, ".dagman.out");
    let before = (size(&log), size(&output));
    let child = Command::new(&program)
        .args(["pegasus", "run", "--foreground"])
        .arg(&submit.dir)
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_or_else(|_| Stdio::null(), Stdio::from))
        .stderr(Stdio::from(file))
        .spawn();
    let mut child = child
        .with_context(|| format!("cannot start {}", program.display()))
        .or_code(exit::NOT_RUN)?;
    let process = child.id();
    match wait_for_start(&mut child, &log, before.0).or_code(exit::NOT_RUN)? {
        None | Some(0 | 1) => Ok(Started::Here { process }),
        Some(_) => {
            let message = tail(&output, before.1);
            let error = anyhow!("{}", message.trim().trim_start_matches("pmc: "));
            Err(Failure::new(exit::TASKS_FAILED, error))
        }
    }
}

/// Waits until the run has written to its log. Returns its exit code if it ends before.
fn wait_for_start(child: &mut Child, log: &Path, before: u64) -> io::Result<Option<i32>> {
    let deadline = Instant::now() + START_LIMIT;
    while size(log) == before && Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status.code().unwrap_or(i32::from(exit::NOT_RUN))));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(None)
}

fn size(path: &Path) -> u64 {
    path.metadata().map_or(0, |data| data.len())
}

/// Returns the text of a file from a position on, at most its last [`MAX_MESSAGE`] bytes.
fn tail(path: &Path, from: u64) -> String {
    let read = || {
        let mut file = pmc_files::open(path)?;
        let from = from.max(size(path).saturating_sub(MAX_MESSAGE));
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(MAX_MESSAGE).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}
