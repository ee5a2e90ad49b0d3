//! Why a run failed: equal failures in groups, what they kept from running, and what may lie behind them.

use std::collections::BTreeMap;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::ending::Ending;
use crate::events::Micros;
use crate::failure::{FailedTask, LastTry, explain};
use crate::history::{History, Phase, State, Try};
use crate::kinds::Kind;
use crate::plan::{Children, TaskNumber};

/// The files of so many failed tasks are read. The others are counted with those that ended alike.
const READ: usize = 2000;
/// A group of so many on one host only may be the host's fault.
const SUSPICIOUS: usize = 3;

/// What is known of a run that is not done.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// How the latest run stands.
    pub phase: Phase,
    /// Groups of failures, the one that kept most from running first.
    pub causes: Vec<Cause>,
    /// Tasks that never ran because a task before them failed, by kind.
    pub never_ran: BTreeMap<Kind, usize>,
    /// Some of their names, in the order of the DAG.
    pub never_ran_names: Vec<String>,
    /// Tasks that were running when their run ended.
    pub lost: Vec<String>,
    /// Tasks that could run and have not.
    pub left: usize,
    /// Tries that failed of tasks that are done now.
    pub repaired: usize,
    /// What explains a run without failed tasks, and other things worth knowing.
    pub remarks: Vec<String>,
}

/// Failures that are alike.
#[derive(Clone, Debug)]
pub struct Cause {
    /// What the tasks run.
    pub transformation: String,
    /// What they are for.
    pub kind: Kind,
    /// How their programs ended.
    pub ending: Ending,
    /// The line of their output that tells most, figures replaced by `#`.
    pub signature: String,
    /// Tasks, in the order of failing.
    pub tasks: Vec<TaskNumber>,
    /// So many of them were not looked at, and only ended alike.
    pub assumed: usize,
    /// The first of them that was looked at.
    pub example: FailedTask,
    /// What it asked for in MB, 0 if it did not.
    pub request_mb: u64,
    /// Largest memory of any of them, KiB.
    pub peak_kib: Option<u64>,
    /// Hosts, and how many failed there.
    pub hosts: BTreeMap<String, usize>,
    /// When the first failed.
    pub first: Micros,
    /// When the last failed.
    pub last: Micros,
    /// Tasks that never ran because of them.
    pub blocked: usize,
    /// What may lie behind it, in plain words.
    pub guesses: Vec<String>,
}

/// Finds the causes.
#[must_use]
pub fn diagnose(history: &History) -> Diagnosis {
    let phase = history.phase();
    let mut failed: Vec<(TaskNumber, Try)> = history
        .in_state(State::Failed)
        .filter_map(|task| Some((task, *history.latest_try(task)?)))
        .collect();
    failed.sort_by_key(|(task, one)| (one.end, *task));
    let tries = tries(history, &failed);
    let mut groups = Groups::default();
    for at in 0..failed.len() {
        if to_read(at, failed.len()) {
            let (task, one) = failed[at];
            let found = look(history, task, &one, tries.get(&task).copied().unwrap_or(1));
            groups.add(history, task, &one, found);
        }
    }
    for (at, (task, one)) in failed.iter().enumerate() {
        if !to_read(at, failed.len()) {
            groups.assume(history, *task, one, tries.get(task).copied().unwrap_or(1));
        }
    }
    let mut causes = groups.causes;
    let mut never_ran = BTreeMap::new();
    let mut never_ran_names = Vec::new();
    if !causes.is_empty() {
        let children = Children::new(&history.plan);
        for cause in &mut causes {
            cause.blocked = behind(history, &children, &cause.tasks).len();
            cause.guesses = guesses(history, cause);
        }
        let all: Vec<TaskNumber> = failed.iter().map(|(task, _)| *task).collect();
        let mut blocked = behind(history, &children, &all);
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
    causes.sort_by_key(|cause| (std::cmp::Reverse(cause.tasks.len() + cause.blocked), cause.first));
    let lost: Vec<String> = history
        .in_state(State::Waiting)
        .filter(|task| history.latest_try(*task).is_some_and(|one| one.lost))
        .map(|task| history.plan.text_name(task))
        .collect();
    let blocked: usize = never_ran.values().sum();
    let all = history.all();
    let left = all.get(State::Waiting).saturating_sub(blocked) + all.get(State::Ready);
    let good =
        |one: &&Try| !one.succeeded() && one.duration().is_some() && history.state(one.task) == State::Done;
    let mut diagnosis = Diagnosis {
        phase,
        causes,
        never_ran,
        never_ran_names,
        lost,
        left,
        repaired: history.tries.iter().filter(good).count(),
        remarks: Vec::new(),
    };
    diagnosis.remarks = remarks(history, &diagnosis);
    diagnosis
}

/// The first half of those that are read are the first to fail, the others are spread over the rest.
fn to_read(at: usize, all: usize) -> bool {
    let first = READ / 2;
    at < first || all <= READ || (at - first).is_multiple_of(((all - first) / first).max(1))
}

fn tries(history: &History, failed: &[(TaskNumber, Try)]) -> FxHashMap<TaskNumber, u32> {
    let mut tries: FxHashMap<TaskNumber, u32> = failed.iter().map(|(task, _)| (*task, 0)).collect();
    if !failed.is_empty() {
        for one in &history.tries {
            if let Some(count) = tries.get_mut(&one.task) {
                *count += 1;
            }
        }
    }
    tries
}

fn look(history: &History, task: TaskNumber, one: &Try, tries: u32) -> FailedTask {
    let last = LastTry {
        task: history.plan.text_name(task),
        status: one.status,
        runtime: one
            .duration()
            .map(|micros| Duration::from_micros(u64::try_from(micros).unwrap_or(0))),
    };
    let mut failure = explain(&history.dir.dir, &last, tries);
    complete(history, task, one, &mut failure);
    failure
}

/// What the record does not tell.
fn complete(history: &History, task: TaskNumber, one: &Try, failure: &mut FailedTask) {
    if failure.host.is_none() {
        failure.host = history.hosts.name(one.host).map(str::to_owned);
    }
    if failure.command.is_empty()
        && let Some(command) = history.plan.command(task)
    {
        failure.command = command
            .iter()
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
    }
}

type Key = (usize, Ending, String);

#[derive(Default)]
struct Groups {
    causes: Vec<Cause>,
    known: FxHashMap<Key, usize>,
    /// The group that most tasks of a class with a status are in.
    largest: FxHashMap<(usize, i32), usize>,
}

impl Groups {
    fn add(&mut self, history: &History, task: TaskNumber, one: &Try, found: FailedTask) {
        let class = history.plan.class_index(task);
        let key = (class, found.ending, signature(&found));
        let at = match self.known.get(&key) {
            Some(at) => *at,
            None => {
                let of = history.plan.class(task);
                self.causes.push(Cause {
                    transformation: of.transformation.clone(),
                    kind: of.kind,
                    ending: found.ending,
                    signature: key.2.clone(),
                    tasks: Vec::new(),
                    assumed: 0,
                    request_mb: history.plan.request(task).memory_mb,
                    peak_kib: None,
                    hosts: BTreeMap::new(),
                    first: one.end,
                    last: one.end,
                    blocked: 0,
                    guesses: Vec::new(),
                    example: found.clone(),
                });
                self.known.insert(key, self.causes.len() - 1);
                self.causes.len() - 1
            }
        };
        let cause = &mut self.causes[at];
        cause.peak_kib = cause.peak_kib.max(found.peak_kib);
        cause.count(task, one, found.host);
        let count = cause.tasks.len();
        let largest = self.largest.entry((class, one.status)).or_insert(at);
        if self.causes[*largest].tasks.len() < count {
            *largest = at;
        }
    }

    /// A task whose files are not read.
    fn assume(&mut self, history: &History, task: TaskNumber, one: &Try, tries: u32) {
        let class = history.plan.class_index(task);
        match self.largest.get(&(class, one.status)) {
            Some(at) => {
                let cause = &mut self.causes[*at];
                cause.assumed += 1;
                cause.count(task, one, history.hosts.name(one.host).map(str::to_owned));
            }
            // The first of its sort is looked at after all.
            None => self.add(history, task, one, look(history, task, one, tries)),
        }
    }
}

impl Cause {
    fn count(&mut self, task: TaskNumber, one: &Try, host: Option<String>) {
        self.tasks.push(task);
        self.first = self.first.min(one.end);
        self.last = self.last.max(one.end);
        if let Some(host) = host {
            *self.hosts.entry(host).or_insert(0) += 1;
        }
    }
}

/// The line that tells most: the last that speaks of an error, else the last one.
fn signature(failure: &FailedTask) -> String {
    const TELLING: [&str; 10] = [
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
    let telling = lines.iter().rev().find(|line| {
        let lower = line.to_lowercase();
        TELLING.iter().any(|word| lower.contains(word))
    });
    let line = telling.or(lines.last()).map_or("", String::as_str);
    let named = without_word(line, &failure.task);
    let mut out = String::new();
    let mut figure = false;
    for c in named.trim().chars().take(200) {
        let is_figure = c.is_ascii_digit();
        if !is_figure {
            out.push(c);
        } else if !figure {
            out.push('#');
        }
        figure = is_figure;
    }
    out
}

/// A line in which each whole word `word` is replaced by `#`.
fn without_word(line: &str, word: &str) -> String {
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

/// Tasks behind these that are not done.
fn behind(history: &History, children: &Children, tasks: &[TaskNumber]) -> Vec<TaskNumber> {
    let mut seen = vec![false; history.plan.len()];
    let mut found = Vec::new();
    let mut open = tasks.to_vec();
    while let Some(task) = open.pop() {
        for child in children.of(task) {
            let its = &mut seen[*child as usize];
            if !*its && matches!(history.state(*child), State::Waiting | State::Ready) {
                *its = true;
                found.push(*child);
                open.push(*child);
            }
        }
    }
    found
}

fn guesses(history: &History, cause: &Cause) -> Vec<String> {
    let mut guesses = Vec::new();
    let example = &cause.example;
    let text = |part: &str| {
        let lines = example.stderr.lines.iter().chain(&example.stdout.lines);
        lines.chain(&example.note).any(|line| line.contains(part))
    };
    let peak_mb = cause.peak_kib.map(|kib| kib / 1024);
    let at_limit = cause.request_mb > 0 && peak_mb.is_some_and(|peak| peak * 10 >= cause.request_mb * 9);
    let killed = matches!(cause.ending, Ending::Signal(9) | Ending::Exit(137));
    let no_memory = [
        "MemoryError",
        "bad_alloc",
        "Cannot allocate memory",
        "ut of memory",
        "oom-kill",
    ];
    if (killed || matches!(cause.ending, Ending::Signal(_))) && at_limit {
        guesses.push(format!(
            "out of memory: it used {} MB and had asked for {} MB",
            peak_mb.unwrap_or(0),
            cause.request_mb
        ));
    } else if no_memory.iter().any(|part| text(part)) {
        guesses.push("out of memory: ask for more with the profile pmc_request_memory".to_owned());
    } else if killed {
        guesses.push(
            "killed from outside, as systems do when memory is short; the host's log may tell".to_owned(),
        );
    }
    if matches!(cause.ending, Ending::Signal(15) | Ending::Exit(143)) {
        guesses.push("asked to end: by a time limit, or because the run was stopped".to_owned());
    }
    if matches!(cause.ending, Ending::Signal(4)) {
        guesses.push(
            "an instruction that this CPU does not have: was the program built for another one?".to_owned(),
        );
    }
    match cause.ending {
        Ending::Exit(127) => guesses.push("a program was not found".to_owned()),
        Ending::Exit(126) => guesses.push("a program is not executable".to_owned()),
        _ => {}
    }
    for (part, meaning) in [
        ("No space left on device", "a file system is full"),
        ("Disk quota exceeded", "a disk quota is used up"),
        ("Permission denied", "access to a file is not allowed"),
        ("Read-only file system", "a file system cannot be written"),
        ("Stale file handle", "a network file system lost a file under way"),
        (
            "error while loading shared libraries",
            "a library is missing on the host: load its module in the job",
        ),
        ("ModuleNotFoundError", "a Python module is missing on the host"),
        (
            "Exec format error",
            "the program is for another kind of machine, or a script without its first line",
        ),
    ] {
        if text(part) {
            guesses.push(meaning.to_owned());
        }
    }
    if guesses.is_empty() && text("No such file or directory") {
        guesses.push("a file is missing".to_owned());
    }
    guesses.extend(host_to_blame(history, cause));
    guesses
}

/// All on one host, while the same succeeded on others.
fn host_to_blame(history: &History, cause: &Cause) -> Option<String> {
    let (host, count) = cause.hosts.first_key_value()?;
    if cause.hosts.len() != 1 || *count < SUSPICIOUS || history.hosts.all().len() < 2 {
        return None;
    }
    let class = history.plan.class_index(*cause.tasks.first()?);
    let elsewhere = history.tries.iter().any(|one| {
        one.succeeded()
            && history.plan.class_index(one.task) == class
            && history.hosts.name(one.host).is_some_and(|name| name != host)
    });
    elsewhere
        .then(|| format!("perhaps the host: all {count} failed on {host}, and others succeeded elsewhere"))
}

fn remarks(history: &History, diagnosis: &Diagnosis) -> Vec<String> {
    let mut remarks = Vec::new();
    let all = history.all();
    let unfinished = all.get(State::Done) < all.total();
    if diagnosis.phase == Phase::Cut {
        if let Some(dag) = history.missing_dag() {
            remarks.push(format!(
                "{} is missing: nobody can tell whether the run goes on. If it was not cut off, its log will tell its end.",
                dag.display()
            ));
        }
        remarks.push(
            "The log of the executor has no end: it was killed (by the batch system at the time limit, for \
             instance), or its host went down. The output of the batch job may tell more."
                .to_owned(),
        );
    }
    if let (Phase::Ended(status), true) = (diagnosis.phase, unfinished) {
        if diagnosis.causes.is_empty() && diagnosis.lost.is_empty() {
            remarks.push(format!(
                "The run ended with status {status} and no task failed: it was stopped or drained before the rest \
                 was started, or no host could hold the next task. The output of the executor says which."
            ));
        } else if diagnosis.left > diagnosis.lost.len() {
            remarks.push(format!(
                "{} that wait for no failed task were not run: the run was stopped, reached its time limit or its limit of \
                 failures.",
                count(diagnosis.left - diagnosis.lost.len())
            ));
        }
    }
    if diagnosis.repaired > 0 {
        remarks.push(format!(
            "{} failed and succeeded when tried again.",
            if diagnosis.repaired == 1 {
                "1 try".to_owned()
            } else {
                format!("{} tries", diagnosis.repaired)
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
mod tests {
    use super::*;
    use crate::history::tests::{DAG, Place};

    fn record(raw: i32, rss: u64, stderr: &str) -> String {
        format!(
            "- invocation: True\n  transformation: \"work\"\n  hostname: n1\n  cwd: /scratch\n  mainjob:\n    usage:\n      \
             maxrss: {rss}\n    status:\n      raw: {raw}\n    executable:\n      file_name: /opt/work\n  files:\n    \
             stderr:\n      data: |\n        {stderr}\n"
        )
    }

    fn place(ends: &str) -> Place {
        let place = Place::new(DAG);
        place.append(
            "jobstate.log",
            &format!(
                "100 INTERNAL *** PMC_STARTED ***\n100 stage_in_0 EXECUTE 1.0 - - 1\n101 stage_in_0 JOB_SUCCESS 0 - - 1\n\
                 101 a EXECUTE 2.0 - - 2\n101 b EXECUTE 3.0 - - 3\n{ends}"
            ),
        );
        place
    }

    #[test]
    fn equal_failures_are_one_cause() {
        let place = place(
            "103 a JOB_FAILURE 35072 - - 2\n104 b JOB_FAILURE 35072 - - 3\n105 INTERNAL *** PMC_FINISHED 1 ***\n",
        );
        place.append("a.out.000", &record(9, 95 * 1024, "row 12: cannot go on"));
        place.append("b.out.000", &record(9, 40 * 1024, "row 3456: cannot go on"));
        let found = diagnose(&place.open());
        assert_eq!(found.causes.len(), 1, "{:?}", found.causes);
        let cause = &found.causes[0];
        assert_eq!(
            (cause.tasks.len(), cause.blocked, cause.ending),
            (2, 1, Ending::Signal(9))
        );
        assert_eq!(cause.signature, "row #: cannot go on");
        assert_eq!(
            cause.guesses,
            ["out of memory: it used 95 MB and had asked for 100 MB"]
        );
        assert_eq!(cause.hosts["n1"], 2);
        assert_eq!(cause.example.directory.as_deref(), Some("/scratch"));
        assert_eq!(found.never_ran[&Kind::Compute], 1);
        assert_eq!((found.left, found.never_ran_names[0].as_str()), (0, "c"));
    }

    #[test]
    fn what_prevents_most_comes_first() {
        let place = Place::new("TASK small x\nTASK big x\nTASK c1 x\nTASK c2 x\nEDGE big c1\nEDGE c1 c2\n");
        place.append(
            "jobstate.log",
            "100 INTERNAL *** PMC_STARTED ***\n100 small EXECUTE 1.0 - - 1\n100 big EXECUTE 2.0 - - 2\n\
             101 small JOB_FAILURE 32512 - - 1\n102 big JOB_FAILURE 256 - - 2\n105 INTERNAL *** PMC_FINISHED 1 ***\n",
        );
        let found = diagnose(&place.open());
        assert_eq!(
            found.causes.iter().map(|cause| cause.blocked).collect::<Vec<_>>(),
            [2, 0]
        );
        assert_eq!(found.causes[1].guesses, ["a program was not found"]);
        assert_eq!(found.causes[0].example.command, ["x"]);
    }

    #[test]
    fn a_failed_run_without_failed_tasks() {
        let found = diagnose(&place("105 INTERNAL *** PMC_FINISHED 1 ***\n").open());
        assert_eq!((found.causes.len(), found.lost.len(), found.left), (0, 2, 3));
        let found = diagnose(&place("").open());
        assert_eq!(found.phase, Phase::Cut);
        assert!(found.remarks[0].contains("has no end"), "{:?}", found.remarks);
        let place = Place::new(DAG);
        place.append(
            "jobstate.log",
            "100 INTERNAL *** PMC_STARTED ***\n105 INTERNAL *** PMC_FINISHED 1 ***\n",
        );
        let found = diagnose(&place.open());
        assert!(found.remarks[0].contains("no task failed"), "{:?}", found.remarks);
    }

    #[test]
    fn not_all_files_are_read() {
        let read = |all: usize| (0..all).filter(|at| to_read(*at, all)).count();
        assert_eq!(read(2000), 2000);
        for all in [2001, 5000, 1_000_000] {
            assert!(
                (1000..=2001).contains(&read(all)) || all == 2001,
                "{all}: {}",
                read(all)
            );
        }
    }
}
