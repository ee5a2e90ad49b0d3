//! What a job requests of its run, and how the run judges its end, from its profiles.

use std::collections::BTreeMap;
use std::str::FromStr;

use pmc_dag::{CheckpointSignal, GangOptions, RetryDelay};
use pmc_expressions::Amount;

use crate::diagnostic::Diagnostic;
use crate::exec::Task;
use crate::profiles::{Namespace, Profiles};
use crate::task_request::{self, CPUS, GPUS, JobNodes, MEMORY, PRIORITY, ProfileKey};

use super::plan::PlannedJob;

/// Suffix of the properties with the limits of categories.
pub(crate) const MAX_JOBS: &str = ".maxjobs";

/// What a job requests of its run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// MiB.
    pub(crate) memory_mb: Option<u64>,
    pub(crate) cpus: Option<u32>,
    pub(crate) gpus: Option<u32>,
    pub(crate) priority: Option<i64>,
    /// Attempts.
    pub(crate) tries: Option<u32>,
    /// Factor of the memory after an attempt that ran out of it.
    pub(crate) more_memory: Option<String>,
    /// Pause before the next attempt, as the user has written it.
    pub(crate) retry_delay: Option<String>,
    /// The signal at which the program saves its state, as the task option has it.
    pub(crate) checkpoint_signal: Option<String>,
    /// Exit code of a program that has saved its state.
    pub(crate) checkpoint_exit: Option<u8>,
    /// Expected run time in seconds, as the user has written it.
    pub(crate) expected_time: Option<String>,
    /// Expressions for the requests after an attempt that failed.
    pub(crate) expressions: Vec<(Amount, String)>,
    /// Hosts that the job needs at one moment. Its other requests are then those of a rank.
    pub(crate) gang: GangOptions,
    /// Category whose running jobs are limited.
    pub(crate) category: Option<String>,
    /// Standard input that is no file of the workflow: the profile `pmc_stdin`.
    pub(crate) stdin: Option<String>,
    /// More task options of pegasus-mpi-cluster, as the user has quoted them.
    pub(crate) options: String,
}

/// How the run judges the end of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checks {
    /// The exit code that ends the whole run, and the exit code that the run has then.
    pub(crate) abort_on: Option<(u8, Option<u8>)>,
    /// Texts in the output.
    pub(crate) messages: Vec<(Kind, String)>,
}

/// What a message in the output means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The job has failed.
    Failure,
    /// Without it, the job has failed.
    Success,
}

/// Returns the messages in profiles. A value holds several if they are separated by `@`, as in the profiles
/// of clusters.
pub(crate) fn messages(profiles: &Profiles) -> impl Iterator<Item = (Kind, &str)> {
    let keys = [
        (Kind::Failure, "exitcode.failuremsg"),
        (Kind::Success, "exitcode.successmsg"),
    ];
    keys.into_iter().flat_map(|(kind, key)| {
        let messages = profiles.pegasus(key).unwrap_or_default().split('@');
        messages
            .filter(|text| !text.is_empty())
            .map(move |text| (kind, text))
    })
}

impl Checks {
    /// Returns how the end of a job is judged. A run inside a cluster looks for the messages itself.
    ///
    /// # Errors
    /// An invalid profile; the message names the job.
    pub(super) fn of(job: PlannedJob<'_>, has_messages: bool) -> Result<Self, Diagnostic> {
        let text = dagman(job.profiles(), "abort-dag-on");
        let abort_on = text
            .map(|text| {
                abort_on(text).ok_or_else(|| {
                    Diagnostic::error(format!(
                        "Invalid Value specified for abort-dag-on {text} for job {}: it must be CODE or CODE RETURN CODE",
                        job.name
                    ))
                })
            })
            .transpose()?;
        let messages = messages(job.profiles()).map(|(kind, text)| (kind, text.to_owned()));
        Ok(Checks {
            // A run inside a cluster must fail with the code, so that the run around it sees it.
            abort_on: abort_on.map(|(code, exit)| (code, exit.filter(|_| !job.is_member()))),
            messages: messages.filter(|_| has_messages).collect(),
        })
    }
}

/// Returns a value of the namespace `dagman` that is not empty.
pub(crate) fn dagman<'p>(profiles: &'p Profiles, key: &str) -> Option<&'p str> {
    let value = profiles.get(Namespace::Dagman, key)?.trim();
    (!value.is_empty()).then_some(value)
}

/// Parses `CODE [RETURN CODE]`.
fn abort_on(text: &str) -> Option<(u8, Option<u8>)> {
    let mut words = text.split_whitespace();
    let code = words.next()?.parse().ok()?;
    let exit = match words.next() {
        None => None,
        Some(word) if word.eq_ignore_ascii_case("return") => Some(words.next()?.parse().ok()?),
        Some(_) => return None,
    };
    words.next().is_none().then_some((code, exit))
}

/// Returns the category of a job if it has a limit: that of its profile, else that of its kind. The executor
/// bounds nested sub-workflows itself.
pub(super) fn category(job: PlannedJob<'_>) -> Option<String> {
    if job.is_member() || job.is_nested() {
        return None;
    }
    let of_kind = match job.task {
        Task::StageIn(_) => "stagein",
        Task::StageOut(_) => "stageout",
        Task::InterSite(_) => "stageinter",
        Task::Register(_) => "registration",
        Task::CleanUp(_) | Task::RemoveDir => "cleanup",
        Task::Compute(_) | Task::Cluster(..) | Task::CreateDir | Task::Chmod(_) | Task::NoOp => "",
    };
    // Keys are stored in lower case.
    let category = dagman(job.profiles(), "category").unwrap_or(of_kind);
    let category = category.to_lowercase();
    if category.is_empty() {
        return None;
    }
    let limits: &BTreeMap<String, u32> = &job.plan.workflow.max_jobs;
    let is_limited = match dagman(&job.plan.settings.profiles, &format!("{category}{MAX_JOBS}")) {
        Some(limit) => limit != "0",
        None => limits.contains_key(&category),
    };
    is_limited.then_some(category)
}

/// Returns the seconds until TERM, and from TERM to KILL.
///
/// Only explicit limits count. The profile `runtime` is an estimate, so a longer job must not be killed. It
/// only limits the time after the checkpoint time.
pub(crate) fn timeouts(profiles: &Profiles) -> Result<Option<(i64, Option<i64>)>, String> {
    let number = |namespace: Namespace, key: &str| -> Result<Option<i64>, String> {
        match profiles.get(namespace, key).map(str::trim) {
            None | Some("") => Ok(None),
            Some(text) => text
                .parse::<i64>()
                .ok()
                .filter(|n| (0..=i64::MAX / 60).contains(n))
                .map(Some)
                .ok_or_else(|| {
                    format!(
                        "the profile {}::{key} must be a whole number, not {text}",
                        namespace.as_str()
                    )
                }),
        }
    };
    let wall = match number(Namespace::Pegasus, "maxwalltime")? {
        Some(minutes) => Some(minutes),
        None => number(Namespace::Globus, "maxwalltime")?,
    }
    .map(|minutes| minutes * 60);
    let checkpoint = number(Namespace::Pegasus, "checkpoint.time")?;
    let Some(checkpoint) = checkpoint.map(|minutes| minutes * 60) else {
        let Some(max) = wall else { return Ok(None) };
        let term = if max >= 300 { max - 300 } else { max - 10 };
        if term < 0 {
            return Ok(None);
        }
        return Ok(Some((term, Some((max - term) / 2))));
    };
    let max = match wall {
        Some(max) => Some(max),
        None => number(Namespace::Pegasus, "runtime")?,
    };
    match max {
        None => Ok(Some((checkpoint, None))),
        Some(max) if max - checkpoint < 10 => Err(format!(
            "there are less than 10 seconds between the checkpoint time ({checkpoint} s) and the largest run time \
             ({max} s)"
        )),
        Some(max) => Ok(Some((checkpoint, Some((max - checkpoint) / 2)))),
    }
}

/// Returns amounts, attempts and options that the profiles of a job request.
pub(super) fn amounts(job: PlannedJob<'_>, problems: &mut Vec<Diagnostic>) -> Requests {
    let mut requests = Requests::default();
    let profiles = job.profiles();
    let text = |key: &str| job.pegasus(key);
    for key in ["memory", "diskspace"] {
        if let Some(value) = text(key)
            && !value.bytes().all(|b| b.is_ascii_digit())
        {
            problems.push(Diagnostic::error(format!(
                "Invalid Value specified for {key} {value} for job {}: it must be a whole number of MiB",
                job.name
            )));
        }
    }
    if let Some(value) = task_request::find(profiles, MEMORY).map(|(_, value)| value.text()) {
        match value.parse::<f64>() {
            // 2^53 is the largest exact integer.
            Ok(mb) if (0.0..9e15).contains(&mb) => requests.memory_mb = (mb >= 1.0).then_some(mb as u64),
            _ => problems.push(Diagnostic::error(format!(
                "Invalid Value specified for memory {value} for job {}: it must be a number of MiB",
                job.name
            ))),
        }
    }
    let cpus: Option<u32> = parsed(job, CPUS, ("cpu count", ""), problems);
    requests.cpus = cpus.filter(|&cpus| cpus > 0);
    let whole = ": it must be a whole number";
    let gpus: Option<u32> = parsed(job, GPUS, ("gpu count", whole), problems);
    requests.gpus = gpus.filter(|&gpus| gpus > 0);
    requests.priority = parsed(job, PRIORITY, ("job priority", whole), problems);
    match task_request::tries(profiles) {
        Ok(tries) => requests.tries = tries,
        Err(value) => problems.push(Diagnostic::error(format!(
            "Invalid Value specified for retry {value} for job {}: it must be a whole number",
            job.name
        ))),
    }
    if let Some(options) = text("pmc_task_arguments").or_else(|| text("pmc_arguments")) {
        requests.options = options.to_owned();
    }
    requests
}

/// Returns a number that a profile requests. `what` it is called, and what it must be.
fn parsed<T: FromStr>(
    job: PlannedJob<'_>,
    keys: &[ProfileKey],
    what: (&str, &str),
    problems: &mut Vec<Diagnostic>,
) -> Option<T> {
    let value = task_request::find(job.profiles(), keys)?.1.text();
    let number = value.parse().ok();
    if number.is_none() {
        let (what, must) = what;
        problems.push(Diagnostic::error(format!(
            "Invalid Value specified for {what} {value} for job {}{must}",
            job.name
        )));
    }
    number
}

/// Sets how a compute job saves itself. Of the jobs in a cluster, nobody knows which one is to do so.
pub(super) fn checkpoints(job: PlannedJob<'_>, requests: &mut Requests, problems: &mut Vec<Diagnostic>) {
    if !matches!(job.task, Task::Compute(_)) || job.is_member() {
        return;
    }
    let profiles = job.profiles();
    let value = |namespace, key| {
        let value = profiles.get(namespace, key).map(str::trim);
        value.filter(|value| !value.is_empty())
    };
    let mut refuse = |key: &str, value: &str, must: &str| {
        problems.push(Diagnostic::error(format!(
            "Invalid Value specified for {key} {value} for job {}: it must be {must}",
            job.name
        )));
    };
    if let Some(text) = value(Namespace::Pegasus, "pmc_checkpoint_signal") {
        match CheckpointSignal::parse(text) {
            Some(signal) if job.is_lite() || job.is_wrapped() => {
                match KICKSTART_SIGNALS.contains(&signal.number) {
                    true => requests.checkpoint_signal = Some(text.to_owned()),
                    false => refuse(
                        "pmc_checkpoint_signal",
                        text,
                        "HUP, INT, QUIT, TERM, USR1 or USR2, which kickstart passes on",
                    ),
                }
            }
            Some(_) => requests.checkpoint_signal = Some(text.to_owned()),
            None => refuse(
                "pmc_checkpoint_signal",
                text,
                "SIG[@SECONDS], as USR1@60, with a signal that a program can handle and at most 86400 seconds",
            ),
        }
    }
    let keys = [
        (Namespace::Pegasus, "pmc_checkpoint_exit"),
        (Namespace::Condor, "checkpoint_exit_code"),
    ];
    let found = keys
        .into_iter()
        .find_map(|(namespace, key)| Some((key, value(namespace, key)?)));
    if let Some((key, text)) = found {
        match pmc_dag::checkpoint_exit(text) {
            Some(code) => requests.checkpoint_exit = Some(code),
            None => refuse(key, text, "a whole number from 1 to 255"),
        }
    }
}

/// Sets the hosts of a compute job that needs several.
///
/// # Errors
/// Why it cannot have them.
pub(super) fn nodes(job: PlannedJob<'_>, requests: &mut Requests) -> Result<(), String> {
    let is_compute = matches!(job.task, Task::Compute(_)) && !job.is_nested();
    let Some(nodes) = job.setup.nodes.filter(|_| is_compute) else {
        return Ok(());
    };
    if job.is_member() {
        // One of a single node runs where its cluster does.
        let refused = format!(
            "the job {} needs {} nodes, and its cluster runs on one: keep it out of clusters (no label, or the profile \
             pegasus::clusters.size = 1)",
            job.name, nodes.nodes
        );
        return if nodes.nodes > 1 { Err(refused) } else { Ok(()) };
    }
    if job.is_lite() {
        return Err(on_one_only(job, nodes));
    }
    set_gang(job, nodes, requests)
}

/// Sets the hosts of a cluster whose run has an agent on each of several.
///
/// # Errors
/// Why it cannot have them.
pub(super) fn cluster_nodes(job: PlannedJob<'_>, requests: &mut Requests) -> Result<bool, String> {
    let Some(nodes) = job.setup.nodes else {
        return Ok(false);
    };
    if job.is_lite() {
        return Err(on_one_only(job, nodes));
    }
    set_gang(job, nodes, requests)?;
    Ok(true)
}

fn set_gang(job: PlannedJob<'_>, nodes: JobNodes, requests: &mut Requests) -> Result<(), String> {
    requests.gang = nodes
        .options()
        .map_err(|why| format!("the job {}: {why}", job.name))?;
    // A CPU for each rank, unless it says otherwise. What other keys say is for all of them.
    let each = job.pegasus("pmc_request_cpus").and_then(|text| text.parse().ok());
    requests.cpus = each.filter(|&cpus| cpus > 0);
    Ok(())
}

fn on_one_only(job: PlannedJob<'_>, nodes: JobNodes) -> String {
    format!(
        "the job {} needs {} nodes, and its directory would be on one of them only: let it share the work directory \
         (pegasus.data.configuration = sharedfs), or request one node",
        job.name, nodes.nodes
    )
}

/// Sets how long a compute job is expected to run. Of a cluster, nobody knows how many of its jobs run at a
/// time; of a nested sub-workflow, the task only plans it.
pub(super) fn expected_time(job: PlannedJob<'_>, requests: &mut Requests) {
    let is_whole = matches!(job.task, Task::Compute(_)) && !job.is_member() && !job.is_nested();
    let seconds = task_request::run_time(job.profiles()).filter(|_| is_whole);
    // More than the task option takes is as good as nothing.
    if seconds.is_some_and(|seconds| seconds <= f64::from(u32::MAX)) {
        requests.expected_time = job.pegasus("runtime").map(|text| text.trim().to_owned());
    }
}

/// Signals that kickstart passes on to its program.
const KICKSTART_SIGNALS: [i32; 6] = [1, 2, 3, 10, 12, 15];

/// Reads what a job requests after an attempt that failed: the factor of its memory, expressions, the pause.
///
/// # Errors
/// An invalid profile; the message names the job.
pub(super) fn after_failures(job: PlannedJob<'_>, requests: &mut Requests) -> Result<(), Diagnostic> {
    let valid = |name: &str, text: Option<&str>, is_valid: fn(&[u8]) -> bool, must: &str| {
        let Some(text) = text.map(str::trim).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        if is_valid(text.as_bytes()) {
            return Ok(Some(text.to_owned()));
        }
        Err(Diagnostic::error(format!(
            "Invalid Value specified for {name} {text} for job {}: it must be {must}",
            job.name
        )))
    };
    requests.expressions = super::expressions::of(job.profiles());
    requests.more_memory = valid(
        "pmc_more_memory",
        job.profiles().pegasus("pmc_more_memory"),
        |text| pmc_dag::factor(text).is_some(),
        "a number from 1 to 1000",
    )?;
    requests.retry_delay = valid(
        "retry.delay",
        dagman(job.profiles(), "retry.delay"),
        |text| RetryDelay::parse(text).is_some(),
        "SECONDS[,FACTOR[,MAX]], with a FACTOR from 1 to 1000",
    )?;
    Ok(())
}

/// Returns the standard input of a compute job that is no file of the workflow.
///
/// # Errors
/// Why the job cannot have such an input.
pub(super) fn stdin(job: PlannedJob<'_>) -> Result<Option<String>, String> {
    let is_compute = matches!(job.task, Task::Compute(_));
    let Some(value) = job.pegasus("pmc_stdin").filter(|_| is_compute) else {
        return Ok(None);
    };
    let refuse = |why| {
        Err(format!(
            "the profile pegasus::pmc_stdin of the job {} cannot take effect: {why}",
            job.name
        ))
    };
    if job.has_stdin() {
        return refuse("the workflow names a file for its standard input");
    }
    if job.is_member() {
        return refuse("the job is a part of a clustered job");
    }
    if job.is_lite() {
        return refuse("the job has a directory of its own on its node");
    }
    Ok(Some(value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_end_the_run() {
        assert_eq!(abort_on("3"), Some((3, None)));
        assert_eq!(abort_on(" 3  return 0 "), Some((3, Some(0))));
        for wrong in ["", "x", "3 RETURN", "3 0", "3 RETURN 0 1", "256"] {
            assert_eq!(abort_on(wrong), None, "{wrong}");
        }
    }

    fn limits(entries: &[(Namespace, &str, &str)]) -> Result<Option<(i64, Option<i64>)>, String> {
        let mut profiles = Profiles::default();
        for (namespace, key, value) in entries {
            profiles.set(*namespace, key, value);
        }
        timeouts(&profiles)
    }

    #[test]
    fn kickstart_kills_only_at_explicit_limits() {
        use Namespace::{Globus, Pegasus};
        assert_eq!(limits(&[]), Ok(None));
        assert_eq!(limits(&[(Pegasus, "runtime", "333")]), Ok(None));
        assert_eq!(
            limits(&[(Pegasus, "maxwalltime", "10")]),
            Ok(Some((300, Some(150))))
        );
        assert_eq!(
            limits(&[(Globus, "maxwalltime", "30")]),
            Ok(Some((1500, Some(150))))
        );
        assert_eq!(
            limits(&[(Pegasus, "checkpoint.time", "2"), (Pegasus, "runtime", "600")]),
            Ok(Some((120, Some(240))))
        );
        assert_eq!(
            limits(&[(Pegasus, "checkpoint.time", "2")]),
            Ok(Some((120, None)))
        );
        assert!(limits(&[(Pegasus, "checkpoint.time", "10"), (Pegasus, "maxwalltime", "10")]).is_err());
        assert!(limits(&[(Pegasus, "maxwalltime", "soon")]).is_err());
    }
}
