//! Submits a batch script to its scheduler.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pmc_calls::shell::shell_quote;

use crate::job::BatchJob;
use crate::scheduler::{Scheduler, Script};

/// File of a submit directory with scheduler and number of the batch job that was submitted last.
pub const JOB_FILE: &str = "pmc-job.txt";
/// Maximum size in bytes of that file.
const MAX_JOB_FILE: u64 = 4096;

/// A submitted batch job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The scheduler.
    pub scheduler: Scheduler,
    /// The script.
    pub script: PathBuf,
    /// Its identifier; `None` if the output of the submit command has none.
    pub job_id: Option<String>,
}

/// Why a script has not been submitted.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// There is no scheduler on this machine.
    #[error(
        "--submit: none of sbatch, bsub, flux and qsub is on PATH; submit on a machine that has one, or name the \
         scheduler with --batch"
    )]
    NoScheduler,
    /// The scheduler's program is missing.
    #[error("{program} is not on PATH, which hands scripts to {scheduler}{}", left(script.as_deref(), *scheduler))]
    Missing {
        /// Program.
        program: &'static str,
        /// Scheduler.
        scheduler: Scheduler,
        /// The script, if it is written already.
        script: Option<PathBuf>,
    },
    /// The program could not be started, or its input not be read.
    #[error("cannot run {program}: {source}{}", left(Some(script), *scheduler))]
    Start {
        /// Program.
        program: &'static str,
        /// Scheduler.
        scheduler: Scheduler,
        /// The script.
        script: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The scheduler refuses the job.
    #[error("{program} refused the job ({status}){}{}", message_suffix(message), left(Some(script), *scheduler))]
    Refused {
        /// Program.
        program: &'static str,
        /// Scheduler.
        scheduler: Scheduler,
        /// The script.
        script: PathBuf,
        /// How the program ended.
        status: String,
        /// Its output.
        message: String,
    },
}

fn message_suffix(message: &str) -> String {
    match message {
        "" => String::new(),
        message => format!(": {message}"),
    }
}

/// Returns the command to submit the script by hand.
fn left(script: Option<&Path>, scheduler: Scheduler) -> String {
    match script {
        None => String::new(),
        Some(script) => format!(
            "\nThe workflow is planned; when that is repaired, submit it with: {}",
            command_line(scheduler, script)
        ),
    }
}

/// The command that submits a script, for people; some schedulers put output files where it is given.
pub fn command_line(scheduler: Scheduler, script: &Path) -> String {
    let quoted = |path: &Path| shell_quote(&path.display().to_string()).into_owned();
    let relative = matches!(
        scheduler,
        Scheduler::Torque | Scheduler::PbsPro | Scheduler::Cobalt
    );
    match (relative, script.parent(), script.file_name()) {
        (true, Some(dir), Some(name)) => format!(
            "(cd {} && {})",
            quoted(dir),
            scheduler.submit_command(&quoted(Path::new(name)))
        ),
        _ => scheduler.submit_command(&quoted(script)),
    }
}

/// A program on `PATH`.
pub(crate) fn find(program: &str, environment: &BTreeMap<String, String>) -> Option<PathBuf> {
    let path = environment.get("PATH")?;
    path.split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| Path::new(directory).join(program))
        .find(|path| {
            path.metadata()
                .is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        })
}

/// Returns whether the program that submits to a scheduler is on `PATH`.
#[must_use]
pub fn is_installed(scheduler: Scheduler, environment: &BTreeMap<String, String>) -> bool {
    find(scheduler.submit_words()[0], environment).is_some()
}

/// Makes sure, before anything is planned, that a job could be submitted: the first of the schedulers that
/// were named must have its program on `PATH`; without names, gives the one that is there.
///
/// # Errors
/// No program.
pub fn find_scheduler(
    named: &[Scheduler],
    environment: &BTreeMap<String, String>,
) -> Result<Option<Scheduler>, SubmitError> {
    if let Some(&scheduler) = named.first() {
        return match find(scheduler.submit_words()[0], environment) {
            Some(_) => Ok(None),
            None => Err(SubmitError::Missing {
                program: scheduler.submit_words()[0],
                scheduler,
                script: None,
            }),
        };
    }
    match detect(environment) {
        Some(scheduler) => Ok(Some(scheduler)),
        None => Err(SubmitError::NoScheduler),
    }
}

/// Returns the scheduler whose program is on `PATH`. Slurm comes first, since it may bring a `qsub` of its
/// own.
#[must_use]
pub fn detect(environment: &BTreeMap<String, String>) -> Option<Scheduler> {
    for scheduler in [Scheduler::Slurm, Scheduler::Lsf] {
        if find(scheduler.submit_words()[0], environment).is_some() {
            return Some(scheduler);
        }
    }
    if let Some(qsub) = find("qsub", environment) {
        let version = Command::new(qsub)
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .map(|output| {
                let text = [output.stdout, output.stderr].concat();
                String::from_utf8_lossy(&text).to_ascii_lowercase()
            })
            .unwrap_or_default();
        return Some(match version {
            version if version.contains("cobalt") => Scheduler::Cobalt,
            version if version.contains("pbs_version") || version.contains("openpbs") => Scheduler::PbsPro,
            _ => Scheduler::Torque,
        });
    }
    find("flux", environment).map(|_| Scheduler::Flux)
}

/// Submits a script in its submit directory, and keeps the number of the job there, for [`cancel`].
///
/// # Errors
/// A program that is missing or refuses.
pub fn submit_script(
    script: &Script,
    submit_dir: &Path,
    environment: &BTreeMap<String, String>,
) -> Result<Submitted, SubmitError> {
    let scheduler = script.scheduler;
    let words = scheduler.submit_words();
    let program = words[0];
    let Some(path) = find(program, environment) else {
        return Err(SubmitError::Missing {
            program,
            scheduler,
            script: Some(script.path.clone()),
        });
    };
    let output = run(&path, script, submit_dir).map_err(|source| SubmitError::Start {
        program,
        scheduler,
        script: script.path.clone(),
        source,
    })?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = if message.trim().is_empty() {
            printed.trim()
        } else {
            message.trim()
        };
        return Err(SubmitError::Refused {
            program,
            scheduler,
            script: script.path.clone(),
            status: output.status.to_string(),
            message: message.to_owned(),
        });
    }
    let job_id = scheduler.job_id(&printed).map(str::to_owned);
    if let Some(job) = job_id.as_deref().and_then(|id| BatchJob::new(scheduler, id)) {
        // The job is submitted: a full disk must not make that a failure.
        let file = pmc_files::create_anew(&submit_dir.join(JOB_FILE));
        let _ = file.and_then(|mut file| writeln!(file, "{job}"));
    }
    Ok(Submitted {
        scheduler,
        script: script.path.clone(),
        job_id,
    })
}

/// Submits a script as [`submit_script`] does, for a job that begins when this one has ended, however.
///
/// # Errors
/// A program that is missing or refuses, or that says no number.
pub fn submit_after(
    script: &Script,
    submit_dir: &Path,
    environment: &BTreeMap<String, String>,
    after: &BatchJob,
) -> Result<BatchJob, SubmitError> {
    let words = script.scheduler.submit_after_words(&after.id);
    let program = script.scheduler.submit_words()[0];
    let path = find(program, environment).ok_or_else(|| SubmitError::Missing {
        program,
        scheduler: script.scheduler,
        script: Some(script.path.clone()),
    })?;
    let mut command = Command::new(path);
    command.current_dir(submit_dir).stdin(Stdio::null());
    // What this job has is no wish for the next one.
    for name in environment.keys().filter(|name| is_of_job(name)) {
        command.env_remove(name);
    }
    let start = |source| SubmitError::Start {
        program,
        scheduler: script.scheduler,
        script: script.path.clone(),
        source,
    };
    let (arguments, reads_script) = match words.split_last() {
        Some((last, rest)) if last == "<" => (rest, true),
        _ => (&words[..], false),
    };
    command.args(&arguments[1..]);
    if reads_script {
        command.stdin(pmc_files::open(&script.path).map_err(start)?);
    } else {
        command.arg(script.path.file_name().unwrap_or(script.path.as_os_str()));
    }
    let output = command.output().map_err(start)?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let id = script
        .scheduler
        .job_id(&printed)
        .filter(|_| output.status.success());
    id.and_then(|id| BatchJob::new(script.scheduler, id))
        .ok_or_else(|| {
            let message = String::from_utf8_lossy(&output.stderr);
            let last = message.lines().map(str::trim).rfind(|line| !line.is_empty());
            SubmitError::Refused {
                program,
                scheduler: script.scheduler,
                script: script.path.clone(),
                status: output.status.to_string(),
                message: crate::status::plain(last.unwrap_or_default()),
            }
        })
}

/// Returns whether a variable is one by which Slurm describes a job. `SLURM_CONF` says which cluster it is.
fn is_of_job(name: &str) -> bool {
    name.starts_with("SLURM_") && name != "SLURM_CONF"
}

/// Cancels a job.
///
/// # Errors
/// A program that is missing or refuses; the job may have ended.
pub fn cancel_job(job: &BatchJob, environment: &BTreeMap<String, String>) -> Result<(), CancelError> {
    let words = job.scheduler.cancel_words();
    let program = words[0];
    let failed = |message: String| CancelError {
        program,
        job_id: job.id.clone(),
        message,
    };
    let path = find(program, environment).ok_or_else(|| failed("it is not on PATH".into()))?;
    let output = Command::new(path)
        .args(&words[1..])
        .arg(&job.id)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// Returns the batch job that was submitted last, if its number is known.
#[must_use]
pub fn submitted_job(submit_dir: &Path) -> Option<BatchJob> {
    BatchJob::parse(&pmc_files::read_to_string(&submit_dir.join(JOB_FILE), MAX_JOB_FILE).ok()?)
}

/// Cancels the batch job of [`submitted_job`], and forgets it.
///
/// # Errors
/// A program that is missing or refuses; the job may have ended.
pub fn cancel(
    submit_dir: &Path,
    job: &BatchJob,
    environment: &BTreeMap<String, String>,
) -> Result<(), CancelError> {
    cancel_job(job, environment)?;
    let _ = fs::remove_file(submit_dir.join(JOB_FILE));
    Ok(())
}

/// Why a batch job has not been cancelled.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{program} did not cancel the job {job_id}: {message}")]
pub struct CancelError {
    program: &'static str,
    job_id: String,
    message: String,
}

/// Runs the submit command in the submit directory, so that the output files of the job go there.
fn run(program: &Path, script: &Script, dir: &Path) -> io::Result<Output> {
    let mut command = Command::new(program);
    command.current_dir(dir).stdin(Stdio::null());
    match script.scheduler.submit_words() {
        [_, "<"] => {
            command.stdin(pmc_files::open(&script.path)?);
        }
        words => {
            command.args(&words[1..]);
            command.arg(script.path.file_name().unwrap_or(script.path.as_os_str()));
        }
    }
    command.output()
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    /// The submit directory may be that of another user.
    #[test]
    fn the_number_of_a_job_is_written_through_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, sbatch, precious) = (
            folder.path(),
            folder.path().join("sbatch"),
            folder.path().join("precious"),
        );
        fs::write(&sbatch, "#!/bin/sh\necho Submitted batch job 17\n").unwrap();
        fs::set_permissions(&sbatch, Permissions::from_mode(0o755)).unwrap();
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, dir.join(JOB_FILE)).unwrap();
        let script = Script {
            scheduler: Scheduler::Slurm,
            path: dir.join("x.slurm"),
        };
        let environment = BTreeMap::from([("PATH".to_owned(), dir.display().to_string())]);
        submit_script(&script, dir, &environment).unwrap();
        assert_eq!(submitted_job(dir), BatchJob::new(Scheduler::Slurm, "17"));
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    }
}
