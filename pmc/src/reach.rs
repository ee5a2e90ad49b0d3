//! Reaches a run, wherever it goes on: what its files say on this host; else the command of this process runs
//! again on the host of the run, inside its batch job or through ssh.
//!
//! Only a run of the user of this process is reached so, or any by root: see [`Place::read`].

mod streams;

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::anyhow;
use pmc_batch::BatchJob;
use pmc_batch::launch::srun;
use pmc_batch::reach::command_on_host;
use pmc_batch::status::{JobState, parse, query};
use pmc_calls::shell::shell_quote;
use pmc_control::{Answer, Place, Request, RunLimits};
use pmc_monitor::events::SECOND;
use pmc_monitor::history::{History, Phase};
use pmc_monitor::progress::Progress;
use pmc_terminal::escape;

use crate::clock::now;
use crate::exit;
use crate::failure::{Failure, OrCode as _};

/// Variable of a command that was started on another host: it asks there, wherever that is.
const REACHED: &str = "PMC_REACHED";

/// Exit code of ssh if it does not get there.
const SSH_FAILED: i32 = 255;

/// Exit code of srun if it does not. No command that asks a run ends with it.
const SRUN_FAILED: i32 = 1;

/// Begins in the directory of this process.
const START: &str = "cd \"$1\" && shift && exec \"$@\"";

/// Returns whether a process of this program on another host has started this one, and passes its output on.
#[must_use]
pub fn is_reached() -> bool {
    std::env::var_os(REACHED).is_some()
}

/// Returns where the run of a DAG goes on, if that is another host than this one.
pub fn elsewhere(dag: &Path) -> Option<Place> {
    if is_reached() {
        return None;
    }
    let own = nix::unistd::gethostname().ok()?;
    Place::read(dag).filter(|place| own != *place.host)
}

/// Runs the command of this process there. Returns its exit code.
///
/// # Errors
/// The host cannot be reached. The message names it.
pub fn run_there(place: &Place, has_input: bool) -> Result<u8, Failure> {
    let words: Result<Vec<String>, OsString> =
        std::env::args_os().skip(1).map(OsString::into_string).collect();
    let words = words.map_err(|word| anyhow!("the word {} is not UTF-8", word.display()));
    let words = words.or_code(exit::USAGE)?;
    let own = std::env::current_exe().or_code(exit::NOT_RUN)?;
    let here = std::env::current_dir().or_code(exit::NOT_RUN)?;
    let mut command = ["/bin/sh", "-c", START, "sh"].map(str::to_owned).to_vec();
    command.push(here.display().to_string());
    command.extend(["/usr/bin/env".to_owned(), format!("{REACHED}=1")]);
    command.push(own.display().to_string());
    command.extend(words.iter().cloned());
    let mut all = command_on_host(place.job.as_ref(), &place.host, &command);
    if all[0] == srun::PROGRAM {
        // Without it, Ctrl-C shows the state of the step first.
        all.insert(1, "--disable-status".to_owned());
    }
    let by_hand = words.iter().map(|word| shell_quote(word).into_owned());
    let by_hand = by_hand.collect::<Vec<_>>().join(" ");
    let unreachable = |why: &str| {
        let host = escape(&place.host);
        let error = anyhow!("the run goes on on the host {host}, which cannot be reached from here: {why}");
        Failure::new(exit::NOT_RUN, error).hint(format!("call it there: pmc {by_hand}"))
    };
    let is_srun = all[0] == srun::PROGRAM;
    let piped_if = |piped: bool| if piped { Stdio::piped() } else { Stdio::inherit() };
    let mut process = Command::new(&all[0]);
    process
        .args(&all[1..])
        .stdin(if has_input {
            Stdio::inherit()
        } else {
            Stdio::null()
        })
        .stdout(piped_if(std::io::stdout().is_terminal()))
        .stderr(piped_if(is_srun || std::io::stderr().is_terminal()));
    for (name, _) in std::env::vars_os() {
        if srun::is_option(&name) {
            process.env_remove(name);
        }
    }
    let mut child = process
        .spawn()
        .map_err(|error| unreachable(&format!("{} does not start: {error}", all[0])))?;
    let status = streams::pass_on(&mut child, is_srun).or_code(exit::NOT_RUN)?;
    let failed = if is_srun { SRUN_FAILED } else { SSH_FAILED };
    match status.code() {
        Some(code) if code == failed => Err(match place.job.as_ref().and_then(batch_state) {
            Some((job, state)) => {
                Failure::new(exit::NOT_RUN, anyhow!("the run does not go on: {job} {state}"))
                    .hint("`pmc status` shows how far it is, and the command that goes on with it")
            }
            None => unreachable(&format!("{} failed", all[0])),
        }),
        Some(code) => Ok(u8::try_from(code).unwrap_or(exit::NOT_RUN)),
        None => Err(unreachable(&format!("{} was killed", all[0]))),
    }
}

/// Returns the name of a batch job that does not run now, and what it does instead. `None` if it may run.
fn batch_state(job: &BatchJob) -> Option<(String, &'static str)> {
    let words = query(job);
    let asked = Command::new(&words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let status = parse(job.scheduler, &String::from_utf8_lossy(&asked.stdout));
    let is_unknown = String::from_utf8_lossy(&asked.stderr).contains("Invalid job id");
    let state = match status.map(|status| status.state) {
        Some(JobState::Waiting) => "waits in the queue",
        Some(JobState::Ended(_)) => "has ended",
        None if is_unknown => "has ended",
        _ => return None,
    };
    Some((format!("the batch job {}", escape(&job.id)), state))
}

/// Returns why a run has not done what it was asked for, from an answer of another kind than the request
/// wants.
pub fn refusal(answer: Answer) -> String {
    match answer {
        Answer::NotSupported(reason) | Answer::Refused(reason) => reason,
        _ => "the run is of another version".to_owned(),
    }
}

/// Returns the failure of a command that gets such an answer.
pub fn refused(answer: Answer) -> Failure {
    let code = match answer {
        Answer::NotSupported(_) => exit::NOT_SUPPORTED,
        _ => exit::NOT_RUN,
    };
    Failure::new(code, anyhow!("{}", escape(&refusal(answer))))
}

/// Returns what ends the run although tasks are left, as far as the run says it. It can be asked on its own
/// host; for others, a file has it.
pub fn limits(history: &History, progress: &Progress) -> RunLimits {
    if progress.phase != Phase::Running {
        return RunLimits::default();
    }
    if let Some(place) = elsewhere(&history.dir.dag) {
        return place.limits(u64::try_from(now() / SECOND).unwrap_or_default());
    }
    match pmc_control::ask(&history.dir.dag, &Request::Limits) {
        Ok(Answer::Limits(limits)) => limits,
        _ => RunLimits::default(),
    }
}
