//! What a batch system says of a job: its state, its end, its nodes, and the time that it has left.
//!
//! [`query`] returns the words of a command, [`parse`] reads what it prints. Formats are those of the manual
//! pages: `squeue`, `qstat -f` of PBS and Torque, `bjobs -o`, `flux jobs --format`, `qstat -fl` of Cobalt.

use std::time::Duration;

use crate::job::BatchJob;
use crate::nodes::{MAX_NODES, different};
use crate::scheduler::Scheduler;

/// What a batch system says of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// What it does.
    pub state: JobState,
    /// Why, in the words of the batch system; empty if it says nothing.
    pub reason: String,
    /// Its nodes, as far as they are named. The batch script runs on the first one.
    pub nodes: Vec<String>,
    /// The time until it reaches its limit, if it runs and has one.
    pub time_left: Option<Duration>,
}

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    /// It waits for nodes, for a time, for another job, or for its user.
    Waiting,
    /// It runs, begins or ends.
    Running,
    /// It has begun, and is stopped.
    Suspended,
    /// It has ended.
    Ended(JobEnd),
}

/// How a job has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// Its script ended with status 0.
    Success,
    /// Its script failed, used too much memory, or ended in a way that has no name here.
    Failure,
    /// Somebody has cancelled it.
    Cancelled,
    /// Its time was over.
    TimeLimit,
    /// A node was lost.
    NodeLost,
    /// Its nodes were given to another job.
    Preempted,
}

use JobState::{Ended, Running, Suspended, Waiting};

/// What each batch system calls a state. A job in a state that is not listed has failed.
const SLURM: [(&str, JobState); 20] = [
    ("PENDING", Waiting),
    ("CONFIGURING", Waiting),
    ("REQUEUED", Waiting),
    ("REQUEUE_HOLD", Waiting),
    ("REQUEUE_FED", Waiting),
    ("SPECIAL_EXIT", Waiting),
    ("RESV_DEL_HOLD", Waiting),
    ("RUNNING", Running),
    ("COMPLETING", Running),
    ("STAGE_OUT", Running),
    ("SIGNALING", Running),
    ("RESIZING", Running),
    ("SUSPENDED", Suspended),
    ("STOPPED", Suspended),
    ("COMPLETED", Ended(JobEnd::Success)),
    ("CANCELLED", Ended(JobEnd::Cancelled)),
    ("TIMEOUT", Ended(JobEnd::TimeLimit)),
    ("DEADLINE", Ended(JobEnd::TimeLimit)),
    ("NODE_FAIL", Ended(JobEnd::NodeLost)),
    ("PREEMPTED", Ended(JobEnd::Preempted)),
];
const LSF: [(&str, JobState); 9] = [
    ("PEND", Waiting),
    ("PSUSP", Waiting),
    ("WAIT", Waiting),
    ("RUN", Running),
    ("PROV", Running),
    ("UNKWN", Running),
    ("USUSP", Suspended),
    ("SSUSP", Suspended),
    ("DONE", Ended(JobEnd::Success)),
];
/// Reasons of LSF for the end of a job, up to the colon.
const LSF_ENDS: [(&str, JobEnd); 6] = [
    ("TERM_RUNLIMIT", JobEnd::TimeLimit),
    ("TERM_DEADLINE", JobEnd::TimeLimit),
    ("TERM_OWNER", JobEnd::Cancelled),
    ("TERM_ADMIN", JobEnd::Cancelled),
    ("TERM_FORCE_OWNER", JobEnd::Cancelled),
    ("TERM_PREEMPT", JobEnd::Preempted),
];
const FLUX: [(&str, JobState); 9] = [
    ("DEPEND", Waiting),
    ("PRIORITY", Waiting),
    ("SCHED", Waiting),
    ("NEW", Waiting),
    ("RUN", Running),
    ("CLEANUP", Running),
    ("COMPLETED", Ended(JobEnd::Success)),
    ("CANCELED", Ended(JobEnd::Cancelled)),
    ("TIMEOUT", Ended(JobEnd::TimeLimit)),
];
const COBALT: [(&str, JobState); 8] = [
    ("queued", Waiting),
    ("starting", Waiting),
    ("user_hold", Waiting),
    ("dep_hold", Waiting),
    ("admin_hold", Waiting),
    ("running", Running),
    ("exiting", Running),
    ("killing", Running),
];
/// Exit statuses of PBS Professional and Torque for the end of the wall time.
const PBS_TIME_LIMIT: [&str; 2] = ["-29", "-11"];

/// Returns the command that asks for a job. Batch systems forget jobs some minutes after their end; some then
/// print nothing, others fail.
#[must_use]
pub fn query(job: &BatchJob) -> Vec<String> {
    let id = job.id.as_str();
    let jobs = format!("--jobs={id}");
    let words: &[&str] = match job.scheduler {
        Scheduler::Slurm => &[
            "squeue",
            "--noheader",
            "--states=all",
            &jobs,
            "--format=%T|%N|%B|%L|%r",
        ],
        // Torque knows another -x.
        Scheduler::Torque => &["qstat", "-f", id],
        Scheduler::PbsPro => &["qstat", "-x", "-f", id],
        Scheduler::Lsf => &[
            "bjobs",
            "-noheader",
            "-o",
            "stat exec_host time_left exit_reason pend_reason delimiter='|'",
            id,
        ],
        Scheduler::Flux => &[
            "flux",
            "jobs",
            "--no-header",
            "--format={state}|{result}|{nodelist}|{t_remaining}|{exception.type}|{exception.note}",
            id,
        ],
        Scheduler::Cobalt => &["qstat", "-fl", id],
    };
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The node of the batch script of a running job of Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchHost {
    /// Its name.
    pub name: String,
    /// The nodes that the job has.
    pub nodes: Vec<String>,
}

impl BatchHost {
    /// True if the job goes on without this node.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.nodes.is_empty() && !self.nodes.contains(&self.name)
    }
}

/// Returns the command that asks Slurm for the node of the batch script.
#[must_use]
pub fn batch_host_query(job: &BatchJob) -> Vec<String> {
    let jobs = format!("--jobs={}", job.id);
    [
        "squeue",
        "--noheader",
        "--states=RUNNING",
        &jobs,
        "--format=%B|%N",
    ]
    .map(str::to_owned)
    .into()
}

/// Reads what the command of [`batch_host_query`] has printed. `None` if the job does not run.
#[must_use]
pub fn batch_host(printed: &str) -> Option<BatchHost> {
    let (name, nodes) = printed.lines().find_map(|line| line.trim().split_once('|'))?;
    Some(BatchHost {
        name: name.to_owned(),
        nodes: pmc_hosts::expand(nodes, MAX_NODES).ok()?,
    })
}

/// Reads what the command of [`query`] has printed. `None` if the batch system does not know the job.
#[must_use]
pub fn parse(scheduler: Scheduler, printed: &str) -> Option<JobStatus> {
    let line = || printed.lines().map(str::trim).find(|line| line.contains('|'));
    match scheduler {
        Scheduler::Slurm => slurm(line()?),
        Scheduler::Torque | Scheduler::PbsPro => pbs(printed),
        Scheduler::Lsf => lsf(line()?),
        Scheduler::Flux => flux(line()?),
        Scheduler::Cobalt => cobalt(printed),
    }
}

fn state(table: &[(&str, JobState)], name: &str) -> JobState {
    let known = table.iter().find(|(known, _)| *known == name);
    known.map_or(Ended(JobEnd::Failure), |(_, state)| *state)
}

fn slurm(line: &str) -> Option<JobStatus> {
    let mut fields = line.splitn(5, '|');
    let (name, nodes, batch_host) = (fields.next()?, fields.next()?, fields.next()?);
    let (left, reason) = (fields.next()?, fields.next()?);
    let mut nodes = pmc_hosts::expand(nodes, MAX_NODES).unwrap_or_default();
    // It need not be the first one of the list.
    if let Some(at) = nodes.iter().position(|node| node == batch_host) {
        nodes[..=at].rotate_right(1);
    }
    let state = state(&SLURM, name);
    Some(JobStatus {
        state,
        reason: plain(reason),
        nodes,
        time_left: time_left(state, left),
    })
}

fn lsf(line: &str) -> Option<JobStatus> {
    let mut fields = line.splitn(5, '|');
    let (name, hosts, left) = (fields.next()?, fields.next()?, fields.next()?);
    let reasons = [fields.next()?, fields.next()?].map(plain);
    let reason = reasons
        .into_iter()
        .find(|reason| !reason.is_empty())
        .unwrap_or_default();
    let known = LSF_ENDS
        .iter()
        .find(|(known, _)| reason.split(':').next() == Some(known));
    let state = match (state(&LSF, name), known) {
        (Ended(_), Some((_, end))) => Ended(*end),
        (state, _) => state,
    };
    Some(JobStatus {
        state,
        reason,
        // `4*n1:4*n2`; and `-` without hosts.
        nodes: different(
            hosts
                .split(':')
                .filter_map(|host| host.rsplit('*').next())
                .filter(|host| *host != "-"),
        ),
        // `0:57 L`, in hours and minutes: L for a limit of the job, E for an estimate, X if it is over.
        time_left: left
            .split_whitespace()
            .next()
            .and_then(|left| time_left(state, &format!("{left}:00"))),
    })
}

fn flux(line: &str) -> Option<JobStatus> {
    let mut fields = line.splitn(6, '|');
    let (name, result, nodes) = (fields.next()?, fields.next()?, fields.next()?);
    let (left, kind, note) = (fields.next()?, fields.next()?, fields.next()?);
    let name = if name == "INACTIVE" { result } else { name };
    let state = match (state(&FLUX, name), kind) {
        (Ended(_), "preempt") => Ended(JobEnd::Preempted),
        (Ended(JobEnd::Failure), "node-failure" | "node_failure") => Ended(JobEnd::NodeLost),
        (state, _) => state,
    };
    Some(JobStatus {
        state,
        reason: plain(if note.is_empty() { kind } else { note }),
        nodes: pmc_hosts::expand(nodes, MAX_NODES).unwrap_or_default(),
        // 0 for no limit.
        time_left: time_left(state, left.split('.').next()?).filter(|left| !left.is_zero()),
    })
}

/// Lines `NAME = VALUE`. Long values go on in lines that begin with a tabulator.
fn pbs(printed: &str) -> Option<JobStatus> {
    let text = printed.replace("\n\t", "");
    let value = |name: &str| {
        let mut pairs = text.lines().filter_map(|line| line.split_once(" = "));
        pairs
            .find(|(other, _)| other.trim() == name)
            .map(|(_, value)| value.trim())
    };
    let status = value("Exit_status").or_else(|| value("exit_status"));
    let state = match value("job_state")? {
        "Q" | "H" | "W" | "T" => Waiting,
        "R" | "E" | "B" => Running,
        "S" | "U" => Suspended,
        _ => Ended(match status {
            Some("0") => JobEnd::Success,
            Some(status) if PBS_TIME_LIMIT.contains(&status) => JobEnd::TimeLimit,
            // It was deleted before it began.
            None => JobEnd::Cancelled,
            Some(_) => JobEnd::Failure,
        }),
    };
    let reason = match (value("comment"), status) {
        (Some(comment), _) => plain(comment),
        (None, Some(status)) => format!("exit status {status}"),
        (None, None) => String::new(),
    };
    let hosts = value("exec_host").unwrap_or_default().split('+');
    let left = || {
        // Torque counts for itself.
        if let Some(left) = value("Walltime.Remaining") {
            return duration(left);
        }
        let used = value("resources_used.walltime").and_then(duration);
        duration(value("Resource_List.walltime")?)?.checked_sub(used.unwrap_or_default())
    };
    Some(JobStatus {
        state,
        reason,
        // `n1/0*16+n2/0*16`, or one with each CPU.
        nodes: different(hosts.filter_map(|host| host.split('/').next())),
        time_left: left().filter(|_| state == Running),
    })
}

/// Lines `NAME : VALUE`.
fn cobalt(printed: &str) -> Option<JobStatus> {
    let value = |name: &str| {
        let mut pairs = printed.lines().filter_map(|line| line.split_once(": "));
        pairs
            .find(|(other, _)| other.trim() == name)
            .map(|(_, value)| value.trim())
    };
    let state = state(&COBALT, value("State")?);
    Some(JobStatus {
        state,
        reason: String::new(),
        // These are numbers or names of partitions, and no names of hosts.
        nodes: Vec::new(),
        time_left: value("TimeRemaining").and_then(|left| time_left(state, left)),
    })
}

/// A reason as it stands in a message: without control characters; empty for `None` and `-`.
pub(crate) fn plain(text: &str) -> String {
    match text.trim() {
        "None" | "-" => String::new(),
        text => text.chars().filter(|c| !c.is_control()).collect(),
    }
}

fn time_left(state: JobState, text: &str) -> Option<Duration> {
    duration(text).filter(|_| state == Running)
}

/// Reads `DAYS-HOURS:MINUTES:SECONDS`, where what is left of the seconds may lack. `None` for words such as
/// `UNLIMITED`.
fn duration(text: &str) -> Option<Duration> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let parts: Vec<u64> = clock
        .split(':')
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    if parts.len() > 3 {
        return None;
    }
    let add = |sum: u64, part: &u64| sum.checked_mul(60)?.checked_add(*part);
    let seconds = parts.iter().try_fold(0, add)?;
    let days: u64 = days.parse().ok()?;
    Some(Duration::from_secs(
        days.checked_mul(86_400)?.checked_add(seconds)?,
    ))
}

#[cfg(test)]
mod tests;
