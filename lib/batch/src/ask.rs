//! Runs the command that asks a batch system for a job.

use std::io::{self, Read as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::job::BatchJob;
use crate::status::{self, JobStatus};

/// Maximum time of an answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum bytes of an answer that are read.
const MAX_ANSWER: u64 = 1 << 20;

/// How often a command is looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why a batch system has said nothing of a job.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Its program could not be run.
    #[error("{program} cannot be run: {source}")]
    Run {
        /// Program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It does not answer.
    #[error("{program} does not answer within {} s", patience.as_secs())]
    Silent {
        /// Program.
        program: String,
        /// How long it had.
        patience: Duration,
    },
    /// It refuses.
    #[error("{program} failed: {message}")]
    Refused {
        /// Program.
        program: String,
        /// The end of what it has printed.
        message: String,
    },
    /// It does not know the job.
    #[error("{0} does not know the job")]
    Unknown(String),
}

/// Asks for a job. Waits at most `patience` for the answer.
///
/// # Errors
/// There is no answer, or the batch system does not know the job, perhaps not any more.
pub fn ask(job: &BatchJob, patience: Duration) -> Result<JobStatus, AskError> {
    let words = status::query(job);
    let printed = output(&words, patience)?;
    status::parse(job.scheduler, &printed).ok_or_else(|| AskError::Unknown(words[0].clone()))
}

/// Runs a command, and returns what it prints to standard output.
///
/// # Errors
/// It cannot be run, has failed, or has not ended in this time.
pub fn output(words: &[String], patience: Duration) -> Result<String, AskError> {
    let program = words.first().cloned().unwrap_or_default();
    let failed = |source| AskError::Run {
        program: program.clone(),
        source,
    };
    let mut command = Command::new(&program);
    command
        .args(words.iter().skip(1))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    // The threads end with the command, or with what it has left behind; nobody waits for that.
    let read = |stream: Option<Box<dyn io::Read + Send>>| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let reader = thread::Builder::new().name("answer".to_owned());
        let started = reader.spawn(move || {
            let mut bytes = Vec::new();
            let read = stream.map(|stream| stream.take(MAX_ANSWER).read_to_end(&mut bytes));
            let _ = sender.send((read, bytes).1);
        });
        started.map(|_| receiver)
    };
    let out = read(stdout.take().map(|stream| Box::new(stream) as _)).map_err(failed)?;
    let err = read(stderr.take().map(|stream| Box::new(stream) as _)).map_err(failed)?;
    let begun = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if begun.elapsed() >= patience => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(AskError::Silent { program, patience });
            }
            None => thread::sleep(POLL_INTERVAL),
        }
    };
    let rest = patience.saturating_sub(begun.elapsed()).max(POLL_INTERVAL);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let printed = out.recv_timeout(rest).map(text).unwrap_or_default();
    if status.success() {
        return Ok(printed);
    }
    let message = err.recv_timeout(rest).map(text).unwrap_or_default();
    let last = message.lines().map(str::trim).rfind(|line| !line.is_empty());
    let message = last.map_or_else(|| status.to_string(), status::plain);
    Err(AskError::Refused { program, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, patience: Duration) -> Result<String, AskError> {
        let words = ["/bin/sh", "-c", script].map(str::to_owned);
        output(&words, patience)
    }

    #[test]
    fn an_answer_is_what_is_printed() {
        assert_eq!(run("echo a; echo b >&2", ANSWER_TIMEOUT).unwrap(), "a\n");
        let error = run(
            "echo first >&2; echo 'slurm: down\u{7}' >&2; exit 3",
            ANSWER_TIMEOUT,
        )
        .unwrap_err();
        assert_eq!(error.to_string(), "/bin/sh failed: slurm: down");
        let missing = output(&["/nowhere/squeue".to_owned()], ANSWER_TIMEOUT).unwrap_err();
        assert!(missing.to_string().starts_with("/nowhere/squeue cannot be run: "));
    }

    #[test]
    fn a_batch_system_that_does_not_answer_is_left() {
        let error = run("exec sleep 1000", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, AskError::Silent { .. }), "{error}");
    }
}
