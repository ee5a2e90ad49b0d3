//! Explains a failed run: groups of equal failures, their blocked dependents and likely reasons.

mod ended;
mod reasons;
mod retried;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use monitord_compat::reason::Reason;
use monitord_compat::run_end::RunEnd;
use pmc_packed::TaskOutput;
use rustc_hash::FxHashMap;

use crate::batch_output::{BatchOutput, unexplained};
use crate::ending::Ending;
use crate::events::{Micros, SECOND};
use crate::failure::{FailedTask, LastAttempt, SUCCEEDED, explain};
use crate::history::{Attempt, History, Phase, State};
use crate::kinds::Kind;
use crate::plan::{Children, TaskNumber};
use reasons::likely_reasons;

/// Program by which a plan sets the environment of a task.
const ENV: &[u8] = b"/usr/bin/env";
/// Shell and end of the name of the script by which a plan sets secrets in the environment of a task.
const SHELL: &str = "/bin/sh";
const SECRETS: &str = ".secrets";
/// Longest time between the end of a task that was terminated and the end of the run that terminated it.
const MAX_STOPPING: Micros = 15 * SECOND;
/// Maximum failed tasks whose files are read. The others join a group with the same ending.
const MAX_READ: usize = 2000;

/// Explanation of an incomplete run.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// Phase of the latest run.
    pub phase: Phase,
    /// Why the latest run ended before its work was done, if it says so.
    pub run_end: Option<RunEnd>,
    /// Causes, the one that blocked most tasks first; those that only follow from the end of a run come last.
    pub causes: Vec<Cause>,
    /// Causes of failed attempts whose tasks are tried again, the latest first.
    pub retried: Vec<Cause>,
    /// Dependents of failed tasks that did not run, by kind.
    pub never_ran: BTreeMap<Kind, usize>,
    /// The first of their names, in the order of the DAG.
    pub never_ran_names: Vec<String>,
    /// Tasks that were running when their run ended.
    pub lost: Vec<String>,
    /// Tasks that did not run although no failure blocked them.
    pub left: usize,
    /// Failed attempts of tasks that are done now.
    pub repaired: usize,
    /// Other facts, for instance on a run that stopped without failed tasks.
    pub remarks: Vec<String>,
    /// What the batch job wrote, if the log does not explain its end.
    pub batch_output: Vec<BatchOutput>,
}

/// Equal failures.
#[derive(Clone, Debug)]
pub struct Cause {
    /// Transformation of the tasks.
    pub transformation: String,
    /// Kind of the tasks.
    pub kind: Kind,
    /// Ending of their programs.
    pub ending: Ending,
    /// Why they failed, if more is known than the ending. Numbers are those of the first task.
    pub reason: Option<Reason>,
    /// Most informative line of their output, digits replaced by `#`.
    pub signature: String,
    /// Tasks, in the order of their failures.
    pub tasks: Vec<TaskNumber>,
    /// Number of tasks whose files were not read.
    pub assumed: usize,
    /// First task whose files were read.
    pub example: FailedTask,
    /// Requested memory in MB; 0 for no request.
    pub request_mb: u64,
    /// Peak memory of all tasks, KiB.
    pub peak_kib: Option<u64>,
    /// Number of failures by host.
    pub hosts: BTreeMap<String, usize>,
    /// Time of the first failure.
    pub first: Micros,
    /// Time of the last failure.
    pub last: Micros,
    /// Dependents that did not run.
    pub blocked: usize,
    /// Likely reasons.
    pub reasons: Vec<String>,
    /// The tasks were terminated when their run was stopped.
    pub cancelled: bool,
}

/// Explains a run.
#[must_use]
pub fn diagnose(history: &History) -> Diagnosis {
    let phase = history.phase();
    let mut failed: Vec<(TaskNumber, Attempt)> = history
        .in_state(State::Failed)
        .filter_map(|task| Some((task, *history.latest_attempt(task)?)))
        .collect();
    failed.sort_by_key(|(task, attempt)| (attempt.end, *task));
    let mut output = TaskOutput::new(&history.dir.dir);
    let mut causes = group(history, &mut output, &failed);
    let mut never_ran = BTreeMap::new();
    let mut never_ran_names = Vec::new();
    if !causes.is_empty() {
        let children = Children::new(&history.plan);
        for cause in &mut causes {
            cause.blocked = blocked_dependents(history, &children, &cause.tasks).len();
            cause.reasons = likely_reasons(history, cause);
        }
        let all: Vec<TaskNumber> = failed.iter().map(|(task, _)| *task).collect();
        let mut blocked = blocked_dependents(history, &children, &all);
        blocked.sort_unstable();
        for task in &blocked {
            *never_ran.entry(history.plan.class(*task).kind).or_insert(0) += 1;
        }
        never_ran_names = blocked
            .iter()
            .take(20)
            .map(|task| history.plan.text_name(*task))
            .collect();
    }
    let lost: Vec<String> = history
        .in_state(State::Waiting)
        .filter(|task| history.latest_attempt(*task).is_some_and(|attempt| attempt.lost))
        .map(|task| history.plan.text_name(task))
        .collect();
    let blocked: usize = never_ran.values().sum();
    let all = history.all();
    let left = all.get(State::Waiting).saturating_sub(blocked) + all.get(State::Ready);
    if left > 0 {
        // The run stopped before all was tried.
        for cause in &mut causes {
            cause.cancelled = was_cancelled(history, cause);
        }
    }
    causes.sort_by_key(|cause| {
        let affected = cause.tasks.len() + cause.blocked;
        (cause.cancelled, std::cmp::Reverse(affected), cause.first)
    });
    let good = |attempt: &&Attempt| attempt.failed() && history.state(attempt.task) == State::Done;
    let mut diagnosis = Diagnosis {
        phase,
        run_end: history.run_end(),
        causes,
        retried: retried::causes(history, &mut output),
        never_ran,
        never_ran_names,
        lost,
        left,
        repaired: history.attempts.iter().filter(good).count(),
        remarks: Vec::new(),
        batch_output: unexplained(history),
    };
    diagnosis.remarks = remarks(history, &diagnosis);
    diagnosis
}

/// Groups failures. Reads the files of a sample of the tasks.
fn group(history: &History, output: &mut TaskOutput, failed: &[(TaskNumber, Attempt)]) -> Vec<Cause> {
    let attempts = attempts(history, failed);
    let mut groups = Groups::default();
    for at in 0..failed.len() {
        if is_sampled(at, failed.len()) {
            let (task, attempt) = failed[at];
            let count = attempts.get(&task).copied().unwrap_or(1);
            let found = examine(history, output, history.latest(task).unwrap_or_default(), count);
            groups.add(history, task, &attempt, found);
        }
    }
    for (at, (task, attempt)) in failed.iter().enumerate() {
        if !is_sampled(at, failed.len()) {
            let count = attempts.get(task).copied().unwrap_or(1);
            groups.add_unread(history, output, attempt, count);
        }
    }
    groups.causes
}

/// Returns whether the tasks ended because their run was stopped: by SIGTERM, just before the end of the run.
fn was_cancelled(history: &History, cause: &Cause) -> bool {
    if cause.reason.is_some() || !matches!(cause.ending, Ending::Signal(15) | Ending::Exit(143)) {
        return false;
    }
    let stopped = |time: Micros| {
        history.runs.iter().any(|run| {
            let end = match run.end {
                Some((_, 0)) => return false,
                Some((end, _)) => end,
                None => run.last,
            };
            (run.start..=end).contains(&time) && end - time <= MAX_STOPPING
        })
    };
    stopped(cause.first) && stopped(cause.last)
}

/// Returns whether to read the files of a failure: the first ones, and a sample of the rest.
fn is_sampled(at: usize, all: usize) -> bool {
    let first = MAX_READ / 2;
    at < first || all <= MAX_READ || (at - first).is_multiple_of(((all - first) / first).max(1))
}

fn attempts(history: &History, failed: &[(TaskNumber, Attempt)]) -> FxHashMap<TaskNumber, u32> {
    let mut attempts: FxHashMap<TaskNumber, u32> = failed.iter().map(|(task, _)| (*task, 0)).collect();
    if !failed.is_empty() {
        for attempt in &history.attempts {
            if let Some(count) = attempts.get_mut(&attempt.task) {
                *count += 1;
            }
        }
    }
    attempts
}

/// Explains the attempt with this index, the last of its task that has ended.
fn examine(history: &History, output: &mut TaskOutput, index: usize, attempts: u32) -> FailedTask {
    let attempt = &history.attempts[index];
    let task = attempt.task;
    let last = LastAttempt {
        task: history.plan.text_name(task),
        status: attempt.status,
        runtime: attempt
            .duration()
            .map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))),
        is_running: history.state(task) == State::Running,
    };
    let mut failure = explain(output, &last, attempts);
    failure.reason = history.reason(index);
    complete(history, task, attempt, &mut failure);
    failure
}

/// Adds facts that the record does not have.
fn complete(history: &History, task: TaskNumber, attempt: &Attempt, failure: &mut FailedTask) {
    if failure.host.is_none() {
        failure.host = history.hosts.name(attempt.host).map(str::to_owned);
    }
    if history.plan.subdag(task).is_some() && failure.note.as_deref() == Some(SUCCEEDED) {
        failure.note = Some("its plan was made, and tasks of it failed".to_owned());
    }
    let Some(command) = history.plan.command(task) else {
        return;
    };
    let words = || {
        command
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
    };
    if failure.is_lite {
        failure.whole_command = words().collect();
    }
    if failure.command.is_empty() {
        failure.command = words().collect();
        return;
    }
    let mut rest = words().peekable();
    if rest.next_if(|word| word.as_bytes() == ENV).is_some() {
        while let Some(variable) = rest.next_if(|word| word.contains('=')) {
            failure.environment.push(variable);
        }
    }
    if rest.next_if(|word| word == SHELL).is_some() {
        failure.secrets = rest.next().filter(|script| script.ends_with(SECRETS));
    }
}

/// Class, ending, name of the reason, and signature.
type Key = (usize, Ending, Option<&'static str>, String);

#[derive(Default)]
struct Groups {
    causes: Vec<Cause>,
    known: FxHashMap<Key, usize>,
    /// Largest group by class and wait status.
    largest: FxHashMap<(usize, i32), usize>,
}

impl Groups {
    fn add(&mut self, history: &History, task: TaskNumber, attempt: &Attempt, found: FailedTask) {
        let class = history.plan.class_index(task);
        let reason = found.reason.map(Reason::name);
        let key = (class, found.ending, reason, signature(&found));
        let at = match self.known.get(&key) {
            Some(at) => *at,
            None => {
                let of = history.plan.class(task);
                self.causes.push(Cause {
                    transformation: of.transformation.clone(),
                    kind: of.kind,
                    ending: found.ending,
                    reason: found.reason,
                    signature: key.3.clone(),
                    tasks: Vec::new(),
                    assumed: 0,
                    request_mb: history.plan.request(task).memory_mb,
                    peak_kib: None,
                    hosts: BTreeMap::new(),
                    first: attempt.end,
                    last: attempt.end,
                    blocked: 0,
                    reasons: Vec::new(),
                    cancelled: false,
                    example: found.clone(),
                });
                self.known.insert(key, self.causes.len() - 1);
                self.causes.len() - 1
            }
        };
        let cause = &mut self.causes[at];
        cause.peak_kib = cause.peak_kib.max(found.peak_kib);
        cause.count(task, attempt, found.host);
        let count = cause.tasks.len();
        let largest = self.largest.entry((class, attempt.status)).or_insert(at);
        if self.causes[*largest].tasks.len() < count {
            *largest = at;
        }
    }

    /// Adds a task without reading its files.
    fn add_unread(&mut self, history: &History, output: &mut TaskOutput, attempt: &Attempt, attempts: u32) {
        let task = attempt.task;
        let class = history.plan.class_index(task);
        match self.largest.get(&(class, attempt.status)) {
            Some(at) => {
                let cause = &mut self.causes[*at];
                cause.assumed += 1;
                cause.count(task, attempt, history.hosts.name(attempt.host).map(str::to_owned));
            }
            // There is no such group yet.
            None => self.add(
                history,
                task,
                attempt,
                examine(
                    history,
                    output,
                    history.latest(task).unwrap_or_default(),
                    attempts,
                ),
            ),
        }
    }
}

impl Cause {
    /// Returns the names of the first tasks.
    #[must_use]
    pub fn task_names(&self, history: &History, most: usize) -> Vec<String> {
        let tasks = self.tasks.iter().take(most);
        tasks.map(|task| history.plan.text_name(*task)).collect()
    }

    fn count(&mut self, task: TaskNumber, attempt: &Attempt, host: Option<String>) {
        self.tasks.push(task);
        self.first = self.first.min(attempt.end);
        self.last = self.last.max(attempt.end);
        if let Some(host) = host {
            *self.hosts.entry(host).or_insert(0) += 1;
        }
    }
}

/// Returns the most informative line of output: the last one that mentions an error, else the last one.
fn signature(failure: &FailedTask) -> String {
    const ERROR_WORDS: [&str; 10] = [
        "error",
        "fatal",
        "cannot",
        "can't",
        "no such",
        "not found",
        "killed",
        "exception",
        "denied",
        "fail",
    ];
    let lines = if failure.stderr.is_empty() {
        &failure.stdout.lines
    } else {
        &failure.stderr.lines
    };
    let error_line = lines.iter().rev().find(|line| {
        let lower = line.to_lowercase();
        ERROR_WORDS.iter().any(|word| lower.contains(word))
    });
    let line = error_line.or(lines.last()).map_or("", String::as_str);
    // Each attempt has its own directory.
    let line = match failure.directory.as_deref().filter(|_| failure.is_lite) {
        Some(directory) => Cow::Owned(line.replace(directory, "#")),
        None => Cow::Borrowed(line),
    };
    let named = mask_word(&line, &failure.task);
    let mut out = String::new();
    let mut in_number = false;
    for c in named.trim().chars().take(200) {
        let is_digit = c.is_ascii_digit();
        if !is_digit {
            out.push(c);
        } else if !in_number {
            out.push('#');
        }
        in_number = is_digit;
    }
    out
}

/// Replaces each whole word `word` in a line by `#`.
fn mask_word(line: &str, word: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(word).filter(|_| !word.is_empty()) {
        let (before, behind) = (&rest[..at], &rest[at + word.len()..]);
        let within = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        let whole = !within(before.chars().next_back()) && !within(behind.chars().next());
        out.push_str(before);
        out.push_str(if whole { "#" } else { word });
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// Returns the dependents of these tasks that did not run.
fn blocked_dependents(history: &History, children: &Children, tasks: &[TaskNumber]) -> Vec<TaskNumber> {
    let mut seen = vec![false; history.plan.len()];
    let mut found = Vec::new();
    let mut open = tasks.to_vec();
    while let Some(task) = open.pop() {
        for child in children.of(task) {
            let is_seen = &mut seen[*child as usize];
            if !*is_seen && matches!(history.state(*child), State::Waiting | State::Ready) {
                *is_seen = true;
                found.push(*child);
                open.push(*child);
            }
        }
    }
    found
}

fn remarks(history: &History, diagnosis: &Diagnosis) -> Vec<String> {
    let mut remarks = Vec::new();
    let all = history.all();
    let unfinished = all.get(State::Done) < all.total();
    if let Some(end) = &diagnosis.run_end {
        remarks.push(ended::remark(end, diagnosis));
    }
    if history.has_no_log() {
        remarks.push(
            "There is no log of the run: pegasus-mpi-cluster was started without --jobstate-log, or the log was \
             removed. Only the rescue file says which tasks are done. See the output of the executor."
                .to_owned(),
        );
    }
    if diagnosis.phase == Phase::CutOff {
        if let Some(dag) = history.missing_dag() {
            remarks.push(format!(
                "{} is missing, so the run may still be active. If it is, its log will show the end.",
                dag.display()
            ));
        }
        remarks.push(
            "The log of the executor has no end: it was killed, for instance by the batch system at the time \
             limit, or its host went down. See the output of the batch job."
                .to_owned(),
        );
    }
    if let (Phase::Ended(status), true, None) = (diagnosis.phase, unfinished, &diagnosis.run_end) {
        if diagnosis.causes.is_empty() && diagnosis.lost.is_empty() {
            remarks.push(format!(
                "The run ended with status {status} and no task failed: it was stopped or drained, or no host \
                 had room for the next task. See the output of the executor."
            ));
        } else if diagnosis.left > diagnosis.lost.len() {
            remarks.push(format!(
                "{} did not run although no failure blocked them: the run was stopped, or reached its time \
                 limit or failure limit.",
                count(diagnosis.left - diagnosis.lost.len())
            ));
        }
    }
    let evicted = history
        .attempts
        .iter()
        .filter(|attempt| attempt.was_evicted())
        .count();
    if evicted > 0 {
        let (were, tasks) = match evicted {
            1 => ("1 attempt was".to_owned(), "its task runs"),
            more => (format!("{more} attempts were"), "their tasks run"),
        };
        remarks.push(format!(
            "{were} lost with workers or the batch job, which is no failure: {tasks} again."
        ));
    }
    if diagnosis.repaired > 0 {
        remarks.push(format!(
            "{} failed, but later ones succeeded.",
            if diagnosis.repaired == 1 {
                "1 attempt".to_owned()
            } else {
                format!("{} attempts", diagnosis.repaired)
            }
        ));
    }
    remarks
}

fn count(tasks: usize) -> String {
    if tasks == 1 {
        "1 task".to_owned()
    } else {
        format!("{tasks} tasks")
    }
}

#[cfg(test)]
mod tests;
