//! Pushes the standard input of the tool to tasks.
//!
//! A task takes as much as its pipe has room for; then the tool waits, and reads no further. So nothing
//! gathers anywhere if a task does not read.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use pmc_control::{Answer, MAX_INPUT, PushRequest, Request, Tool, ask};
use pmc_dag::reason;
use pmc_terminal::{escape, message};

use super::Message;
use crate::exit;
use crate::failure::{Failure, OrCode as _};

/// Shortest wait until a task that has no room is asked again.
const SHORT: Duration = Duration::from_micros(500);
/// Longest wait.
const LONG: Duration = Duration::from_millis(100);
/// Wait for a task that has not started.
const START: Duration = Duration::from_millis(200);
/// A connection that was not used for this long is made anew, because the run closes it soon. A request whose
/// answer is lost could not be repeated: the task may have taken the input.
const IDLE: Duration = Duration::from_secs(2);

/// The tasks that get the input.
pub enum Targets {
    /// All that run and take some.
    All,
    /// These.
    Named(Vec<String>),
}

/// Starts to push. A failure comes as a message.
///
/// Returns whether a task has not taken yet what was read.
pub fn start(
    dag: &Path,
    targets: Targets,
    complete: bool,
    messages: SyncSender<Message>,
) -> io::Result<Arc<AtomicBool>> {
    let dag = dag.to_owned();
    let is_waiting = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_waiting);
    let push = move || {
        if let Err(failure) = push_all(&dag, targets, complete, &noted) {
            // Without a receiver, the tool has ended.
            let _ = messages.send(Message::NotPushed(Box::new(failure)));
        }
    };
    std::thread::Builder::new().name("push".into()).spawn(push)?;
    Ok(is_waiting)
}

fn push_all(dag: &Path, targets: Targets, complete: bool, is_waiting: &AtomicBool) -> Result<(), Failure> {
    let is_all = matches!(targets, Targets::All);
    let names = match targets {
        Targets::Named(names) => names,
        Targets::All => taking(dag)?,
    };
    let mut targets: Vec<Target> = names.into_iter().map(|task| Target::new(dag, task)).collect();
    // Before anything is read, it is known whether they take input.
    each(&mut targets, is_all, &[], false)?;
    let mut buffer = vec![0; MAX_INPUT];
    loop {
        match io::stdin().read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                is_waiting.store(true, Ordering::Release);
                each(&mut targets, is_all, &buffer[..count], false)?;
                is_waiting.store(false, Ordering::Release);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let error = anyhow!("cannot read standard input: {}", reason(&error));
                return Err(Failure::new(exit::NOT_RUN, error));
            }
        }
    }
    if complete {
        each(&mut targets, is_all, &[], true)?;
    }
    Ok(())
}

/// Returns the running tasks that take input.
pub fn taking(dag: &Path) -> Result<Vec<String>, Failure> {
    match ask(dag, &Request::InputTasks).or_code(exit::NOT_RUN)? {
        Answer::Tasks(names) if names.is_empty() => {
            let error = anyhow!("no running task has standard input (start it with --stdin push)");
            Err(Failure::new(exit::NOT_SUPPORTED, error))
        }
        Answer::Tasks(names) => Ok(names),
        other => Err(refused(other)),
    }
}

/// Pushes bytes to each target. Of all tasks, those that take no more are left out.
pub fn each(targets: &mut Vec<Target>, is_all: bool, bytes: &[u8], is_end: bool) -> Result<(), Failure> {
    let mut at = 0;
    while let Some(target) = targets.get_mut(at) {
        match target.push(bytes, is_end) {
            Ok(()) => at += 1,
            Err(failure) if is_all && targets.len() > 1 => {
                message(format!("pmc: {}", failure.error));
                targets.remove(at);
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

/// A task that gets input.
pub struct Target {
    dag: PathBuf,
    task: String,
    /// Worker and attempt, once the run has named them.
    attempt: Option<(u32, u64)>,
    tool: Option<(Tool, Instant)>,
    is_waiting: bool,
}

impl Target {
    /// A task of the run of a DAG.
    pub fn new(dag: &Path, task: String) -> Self {
        Self {
            dag: dag.to_owned(),
            task,
            attempt: None,
            tool: None,
            is_waiting: false,
        }
    }

    /// Returns the submit number of the attempt that takes the input, once the run has named it.
    #[cfg(feature = "pmix")]
    pub fn submit_number(&self) -> Option<u64> {
        self.attempt.map(|(_, submit_number)| submit_number)
    }

    /// Pushes bytes until the task has taken them all. Waits for its start.
    pub fn push(&mut self, bytes: &[u8], is_end: bool) -> Result<(), Failure> {
        let (mut left, mut wait) = (bytes, SHORT);
        loop {
            match self.ask(left, is_end)? {
                Answer::Taken {
                    worker,
                    attempt,
                    count,
                } => {
                    self.attempt = Some((worker, attempt));
                    let count = usize::try_from(count).unwrap_or(left.len()).min(left.len());
                    left = &left[count..];
                    if left.is_empty() {
                        return Ok(());
                    }
                    wait = if count > 0 { SHORT } else { (wait * 2).min(LONG) };
                    std::thread::sleep(wait);
                }
                Answer::NotYet(state) => {
                    if !std::mem::replace(&mut self.is_waiting, true) && state != "running" {
                        let (task, state) = (escape(&self.task), escape(&state));
                        message(format!("pmc: waiting for the start of {task}: it is {state}"));
                    }
                    std::thread::sleep(START);
                }
                other => return Err(refused(other)),
            }
        }
    }

    fn ask(&mut self, bytes: &[u8], is_end: bool) -> Result<Answer, Failure> {
        let mut tool = match self.tool.take() {
            Some((tool, used)) if used.elapsed() < IDLE => tool,
            _ => Tool::connect(&self.dag).or_code(exit::NOT_RUN)?,
        };
        let request = PushRequest {
            task: self.task.clone(),
            attempt: self.attempt,
            length: bytes.len(),
            is_end,
            bytes: bytes.to_vec(),
        };
        let answer = tool.ask(&Request::Push(request)).map_err(|error| {
            let error = anyhow!("task {} has not taken all input: {error}", escape(&self.task));
            Failure::new(exit::NOT_RUN, error)
        })?;
        self.tool = Some((tool, Instant::now()));
        Ok(answer)
    }
}

fn refused(answer: Answer) -> Failure {
    match answer {
        Answer::NotSupported(reason) => Failure::new(exit::NOT_SUPPORTED, anyhow!("{}", escape(&reason))),
        other => Failure::of_answer(&other),
    }
}
