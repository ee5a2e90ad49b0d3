//! Checks a run that is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{Damage, Outcome};

/// Checks the files of a run with these tasks. `once`: no task may have begun twice.
pub(super) fn run(directory: &Path, tasks: &BTreeSet<String>, once: bool, outcome: &mut Outcome) {
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
    let text = read("x.dag.rescue");
    let done = text.lines().filter_map(|line| line.strip_prefix("DONE "));
    expect_once(outcome, "rescue file", tasks, done);
    let text = read("jobstate.log");
    let ends = text.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let task = words.next()?;
        (words.next()? == "JOB_SUCCESS").then_some(task)
    });
    expect_once(outcome, "jobstate.log", tasks, ends);
    let text = read("x.dag.dagman.out");
    let ends = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(" Node ")?;
        let (task, rest) = rest.split_once(' ')?;
        rest.ends_with("completed successfully.").then_some(task)
    });
    expect_once(outcome, ".dagman.out", tasks, ends);
    let text = read("data");
    let data = text.lines().filter_map(|line| line.strip_suffix(" data"));
    expect_once(outcome, "forwarded data", tasks, data);
    let lines = text.lines().count();
    if lines != tasks.len() {
        outcome.find(Damage::Torn, format!("forwarded data: {lines} lines"));
    }
    attempts(&read("log"), tasks, once, outcome);
    for name in ["x.dag.endpoint", "x.dag.agents", "x.dag.rescue.journal"] {
        if directory.join(name).exists() {
            outcome.find(Damage::LeftOver, name);
        }
    }
    for name in ["master", "n1", "n2", "n3"] {
        let text = read(name);
        if let Some(line) = text.lines().find(|line| line.contains("panicked at")) {
            outcome.find(Damage::Wrong, format!("{name}: {line}"));
        }
    }
}

/// Checks what tasks have written.
fn attempts(log: &str, tasks: &BTreeSet<String>, once: bool, outcome: &mut Outcome) {
    let mut begun: BTreeMap<&str, u64> = BTreeMap::new();
    let mut ended = BTreeSet::new();
    for line in log.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["begin", task, ..] => *begun.entry(task).or_default() += 1,
            ["end", task, ..] => _ = ended.insert(task),
            _ => outcome.find(Damage::Doubled, line),
        }
    }
    for task in tasks {
        let times = begun.get(task.as_str()).copied().unwrap_or(0);
        outcome.again += times.saturating_sub(1);
        if !ended.contains(task.as_str()) {
            outcome.find(Damage::Lost, format!("{task} has not run"));
        }
        if once && times > 1 {
            outcome.find(Damage::Doubled, format!("{task} began {times} times"));
        }
    }
    outcome.tasks += tasks.len() as u64;
}

/// Each task has to be there once.
fn expect_once<'a>(
    outcome: &mut Outcome,
    what: &str,
    tasks: &BTreeSet<String>,
    found: impl Iterator<Item = &'a str>,
) {
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for name in found {
        *counts.entry(name).or_default() += 1;
    }
    for name in tasks {
        match counts.get(name.as_str()) {
            None => outcome.find(Damage::Lost, format!("{what}: {name}")),
            Some(1) => {}
            Some(count) => outcome.find(Damage::Doubled, format!("{what}: {name}: {count} times")),
        }
    }
}
