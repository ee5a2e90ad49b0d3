//! Brings texts into an order that does not depend on the order of tasks.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde::Deserialize;

use super::super::text::regex;
use super::Edges;

/// How a text is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Line by line.
    #[default]
    Exact,
    /// Lines in any order.
    Sorted,
    /// Lines in any order, repetitions do not count.
    Unique,
    /// The merged output of tasks: a block for each task, in any order, without slot numbers.
    Blocks,
    /// A log: the events of each task in order, with submit numbers renamed, and invariants.
    PerTask,
    /// The resource log: numbers of lines, and what is free at the end.
    Shape,
    /// The content does not count.
    Presence,
}

impl Mode {
    pub fn arrange(self, text: &str, edges: &Edges) -> String {
        match self {
            Self::Exact => text.to_owned(),
            Self::Sorted => {
                let mut lines: Vec<&str> = text.split('\n').collect();
                lines.sort_unstable();
                lines.join("\n")
            }
            Self::Unique => {
                let lines: BTreeSet<&str> = text.split('\n').collect();
                lines.into_iter().collect::<Vec<_>>().join("\n")
            }
            Self::Blocks => blocks(text),
            Self::PerTask => per_task(text, edges),
            Self::Shape => shape(text),
            Self::Presence => "(content not compared)".to_owned(),
        }
    }
}

/// Arranges each run in a `.dagman.out` or a `jobstate.log`.
fn per_task(text: &str, edges: &Edges) -> String {
    let mut runs: Vec<Vec<&str>> = vec![Vec::new()];
    for line in text.split('\n') {
        let run = runs.last_mut().expect("a first run");
        if !run.is_empty() && line.ends_with("*** PMC_STARTED ***") {
            runs.push(vec![line]);
        } else {
            run.push(line);
        }
    }
    let runs = runs.iter().map(|lines| Events::default().arrange(lines, edges));
    runs.collect::<Vec<_>>().join("\n")
}

/// Finds the task and the submit number of an event.
fn event(line: &str) -> Option<(String, Option<u64>)> {
    let number = |text: &str| text.parse().ok();
    if let Some(found) = regex!(r"^<TS> Submitting Condor Node (\S+) job").captures(line) {
        return Some((found[1].to_owned(), None));
    }
    let with_number: [&Regex; 3] = [
        regex!(r"^<TS> Event: ULOG_\S+ for Condor Node (\S+) \((\d+)\.0\)"),
        regex!(r"^<TS> Node (\S+) job proc \((\d+)\.0\)"),
        regex!(r"^<TS> (\S+) JOB_(?:SUCCESS|FAILURE) -?\d+ - - (\d+)$"),
    ];
    let found = with_number
        .iter()
        .find_map(|regex| regex.captures(line))
        .or_else(|| {
            regex!(r"^<TS> (\S+) (?:SUBMIT|EXECUTE|JOB_TERMINATED) (\d+)\.0 - - (\d+)$")
                .captures(line)
                .filter(|found| found[2] == found[3])
        })?;
    (&found[1] != "INTERNAL").then(|| (found[1].to_owned(), number(&found[2])))
}

/// The events of a run.
#[derive(Default)]
struct Events {
    tasks: BTreeMap<String, Vec<String>>,
    /// Submit numbers of each task, in the order of their first event.
    numbers: BTreeMap<String, Vec<u64>>,
    succeeded: BTreeSet<String>,
    latest: u64,
    problems: BTreeSet<String>,
}

impl Events {
    fn arrange(mut self, lines: &[&str], edges: &Edges) -> String {
        let mut result = vec!["== lines that belong to no task".to_owned()];
        for line in lines {
            let Some((task, number)) = event(line) else {
                result.push((*line).to_owned());
                continue;
            };
            let mut line = (*line).to_owned();
            if let Some(number) = number {
                let attempt = self.attempt(&task, number, edges);
                line = line.replace(&format!("({number}.0)"), &format!("(#{attempt}.0)"));
                if let Some(start) = line.strip_suffix(&format!(" {number}.0 - - {number}")) {
                    line = format!("{start} #{attempt}.0 - - #{attempt}");
                } else if let Some(start) = line.strip_suffix(&format!(" - - {number}")) {
                    line = format!("{start} - - #{attempt}");
                }
            }
            if line.contains("completed successfully.") || line.contains("JOB_SUCCESS") {
                self.succeeded.insert(task.clone());
            }
            self.tasks.entry(task).or_default().push(line);
        }
        for (task, lines) in self.tasks {
            result.push(format!("== {task}"));
            result.extend(lines);
        }
        result.push("== invariants".to_owned());
        if self.problems.is_empty() {
            result.push("all hold".to_owned());
        }
        result.extend(self.problems);
        result.join("\n")
    }

    /// Returns which attempt of the task has the submit number, from 1. Submit numbers ascend by 1, and
    /// parents succeed before their children are submitted.
    fn attempt(&mut self, task: &str, number: u64, edges: &Edges) -> usize {
        let known = self.numbers.entry(task.to_owned()).or_default();
        if let Some(index) = known.iter().position(|known| *known == number) {
            return index + 1;
        }
        known.push(number);
        let attempt = known.len();
        if number != self.latest + 1 {
            let next = self.latest + 1;
            self.problems
                .insert(format!("submit number {number} of {task}, expected {next}"));
        }
        self.latest = self.latest.max(number);
        for parent in edges.get(task).into_iter().flatten() {
            if self.tasks.contains_key(parent) && !self.succeeded.contains(parent) {
                self.problems
                    .insert(format!("{task} submitted before {parent} succeeded"));
            }
        }
        attempt
    }
}

/// Sorts the blocks of merged standard output. Each ends with the record of a task.
fn blocks(text: &str) -> String {
    let (mut head, mut block, mut blocks, mut slots) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for line in text.split('\n') {
        if line.contains("[cluster-summary") && block.is_empty() {
            head.push(line.to_owned());
        } else if let Some(found) = regex!(r"\[cluster-task .* slot=(\d+),").captures(line) {
            slots.push(found[1].parse::<u64>().expect("a number"));
            block.push(regex!(r" slot=\d+,").replace_all(line, " slot=<S>,").into_owned());
            blocks.push(block.join("\n"));
            block.clear();
        } else {
            block.push(line.to_owned());
        }
    }
    blocks.sort_unstable();
    let rest = block.iter().filter(|line| !line.is_empty());
    let rest = rest.map(|line| format!("tail: {line}")).collect::<Vec<_>>();
    let order = if slots.is_sorted() {
        "(slots ascend)"
    } else {
        "(slots do NOT ascend)"
    };
    [head, blocks, rest, vec![order.to_owned()]].concat().join("\n")
}

/// Summarizes the resource log.
fn shape(text: &str) -> String {
    let lines: Vec<&str> = text.split('\n').filter(|line| !line.is_empty()).collect();
    let is_first = |line: &&str| line.starts_with("<TS>,slots=");
    let is_change = |line: &&str| regex!(r"^<TS>,[+-]\d+,[+-]\d+,[+-]\d+,").is_match(line);
    let changes: Vec<&str> = lines.iter().copied().filter(is_change).collect();
    let all_free_at_end = changes
        .last()
        .is_some_and(|line| line.starts_with("<TS>,+0,+0,+0,"));
    let too_much_free = changes
        .iter()
        .any(|line| regex!(r"^<TS>,(?:[+-]\d+,){0,2}\+[1-9]").is_match(line));
    let mut result = vec![format!("lines: {}", lines.len())];
    result.extend(lines.iter().copied().filter(is_first).map(str::to_owned));
    result.push(format!("changes: {}", changes.len()));
    result.push(format!("ends with everything free: {all_free_at_end}"));
    result.push(format!("ever more than everything free: {too_much_free}"));
    let others = lines
        .iter()
        .copied()
        .filter(|line| !is_first(line) && !is_change(line));
    result.extend(others.map(str::to_owned));
    result.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges() -> Edges {
        BTreeMap::from([("b".to_owned(), vec!["a".to_owned()])])
    }

    #[test]
    fn the_order_of_tasks_does_not_count() {
        let one = "<TS> x SUBMIT 1.0 - - 1\n<TS> y SUBMIT 2.0 - - 2\n<TS> x JOB_SUCCESS 0 - - 1\n";
        let other = "<TS> y SUBMIT 1.0 - - 1\n<TS> x SUBMIT 2.0 - - 2\n<TS> x JOB_SUCCESS 0 - - 2\n";
        let arranged = Mode::PerTask.arrange(one, &edges());
        assert_eq!(arranged, Mode::PerTask.arrange(other, &edges()));
        assert!(
            arranged.contains("== x\n<TS> x SUBMIT #1.0 - - #1\n<TS> x JOB_SUCCESS 0 - - #1\n"),
            "{arranged}"
        );
        assert!(arranged.ends_with("all hold"), "{arranged}");
    }

    #[test]
    fn invariants_are_checked() {
        let log = "<TS> a SUBMIT 1.0 - - 1\n<TS> b SUBMIT 3.0 - - 3\n";
        let arranged = Mode::PerTask.arrange(log, &edges());
        assert!(
            arranged
                .ends_with("== invariants\nb submitted before a succeeded\nsubmit number 3 of b, expected 2"),
            "{arranged}"
        );
    }

    #[test]
    fn blocks_are_sorted_and_slots_ascend() {
        let text =
            "b\n[cluster-task id=2, slot=1, x]\na\n[cluster-task id=1, slot=2, x]\n[cluster-summary x]\n";
        assert_eq!(
            blocks(text),
            "[cluster-summary x]\na\n[cluster-task id=1, slot=<S>, x]\nb\n[cluster-task id=2, slot=<S>, x]\n\
             (slots ascend)"
        );
    }

    #[test]
    fn resources_are_free_at_the_end() {
        let text = "<TS>,slots=2,cpus=ALL,mem=ALL,h\n<TS>,-1,-1,+0,h\n<TS>,+0,+0,+0,h\n";
        assert_eq!(
            shape(text),
            "lines: 3\n<TS>,slots=2,cpus=ALL,mem=ALL,h\nchanges: 2\nends with everything free: true\n\
             ever more than everything free: false"
        );
    }
}
