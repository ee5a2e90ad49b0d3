//! `pmc stack`: what the processes of a running task do, on all of its hosts.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pmc_control::{Answer, HostStacks, Request, StacksRequest, ask};
use pmc_stacks::{Frame, Group, Holder, described, merge};
use pmc_terminal::{escape, print};
use serde::Serialize;

use super::control::{json_text, task_and_run};
use crate::failure::{Failure, OrCode as _};
use crate::{cli, exit, layout, reach};

/// Most hosts that are asked at a time: each is a connection to the run.
const PARALLEL: usize = 16;

/// What became of a host: its stacks, or why there are none.
type Found = (String, Result<HostStacks, String>);

/// Shows the stacks of a task. Returns the exit code.
pub fn stack(arguments: &cli::Stack) -> Result<u8, Failure> {
    let (task, run) = task_and_run(&arguments.task, arguments.run.as_deref(), arguments.json);
    let run = layout::find_run(&run)?;
    if let Some(place) = reach::elsewhere(&run.dag) {
        return reach::run_there(&place, arguments.json);
    }
    let request = Request::Workers { task: task.clone() };
    let (attempt, workers) = match ask(&run.dag, &request).or_code(exit::NOT_RUN)? {
        Answer::Workers { attempt, workers } => (attempt, workers),
        other => return Err(reach::refused(other)),
    };
    let request = |worker| {
        Request::Stacks(StacksRequest {
            task: task.clone(),
            attempt: (worker, attempt),
            all_threads: arguments.threads,
        })
    };
    let found = ask_all(&run.dag, workers.into(), &request);
    let found = Stacks::of(found, arguments);
    match arguments.json {
        true => print(&found.json(&task)),
        false => print(&found.text()),
    }
    Ok(if found.notes.is_empty() {
        exit::SUCCESS
    } else {
        exit::NOT_RUN
    })
}

/// Asks the workers of the attempt, several at a time.
fn ask_all(
    dag: &Path,
    workers: VecDeque<(u32, String)>,
    request: &(impl Fn(u32) -> Request + Sync),
) -> Vec<Found> {
    let threads = workers.len().min(PARALLEL);
    let (left, found) = (Mutex::new(workers), Mutex::new(Vec::new()));
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let ask_next = || {
        while let Some((worker, host)) = take() {
            let stacks = match ask(dag, &request(worker)) {
                Ok(Answer::Stacks(stacks)) => Ok(stacks),
                Ok(other) => Err(reach::refusal(other)),
                Err(error) => Err(error.to_string()),
            };
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.push((host, stacks));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(ask_next);
        }
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What was found.
struct Stacks {
    groups: Vec<Group>,
    /// What is missing; none if all hosts have answered with all of their processes.
    notes: Vec<String>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Printed<'a> {
    task: &'a str,
    stacks: Vec<PrintedGroup<'a>>,
    missing: &'a [String],
}

#[derive(Serialize)]
struct PrintedGroup<'a> {
    holders: &'a [Holder],
    frames: &'a [Frame],
    /// Why there are no frames.
    reason: Option<&'a str>,
}

impl<'a> PrintedGroup<'a> {
    fn of(group: &'a Group) -> Self {
        Self {
            holders: &group.holders,
            frames: group.frames.as_deref().unwrap_or_default(),
            reason: group.frames.as_ref().err().map(String::as_str),
        }
    }
}

impl Stacks {
    fn of(found: Vec<Found>, arguments: &cli::Stack) -> Self {
        let (mut hosts, mut notes) = (Vec::new(), Vec::new());
        for (host, stacks) in found {
            match stacks {
                Ok(stacks) => {
                    if stacks.left_out > 0 {
                        notes.push(format!("{host}: {} more processes are left out", stacks.left_out));
                    }
                    hosts.push((host, stacks));
                }
                Err(reason) => notes.push(format!("{host}: {reason}")),
            }
        }
        notes.sort_unstable();
        let mut groups = merge(hosts, arguments.full);
        if let Some(ranks) = &arguments.ranks {
            for group in &mut groups {
                group
                    .holders
                    .retain(|holder| holder.rank.is_some_and(|rank| ranks.has(rank)));
            }
            groups.retain(|group| !group.holders.is_empty());
        }
        if notes.is_empty() && groups.is_empty() {
            let what = match arguments.ranks {
                None => "the task has no process at the moment",
                Some(_) => "the task has no process with such a rank at the moment",
            };
            notes.push(what.to_owned());
        }
        Self { groups, notes }
    }

    fn text(&self) -> String {
        let text = described(&self.groups);
        let lines = text.lines().map(str::to_owned).chain(self.notes.iter().cloned());
        lines.fold(String::new(), |all, line| all + &escape(&line) + "\n")
    }

    fn json(&self, task: &str) -> String {
        let printed = Printed {
            task,
            stacks: self.groups.iter().map(PrintedGroup::of).collect(),
            missing: &self.notes,
        };
        json_text(&printed)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use pmc_stacks::{Frame, Process};

    use super::*;

    #[test]
    fn hosts_that_do_not_answer_are_named() {
        let mut stacks = HostStacks {
            processes: vec![Process {
                pid: 7,
                program: "a\u{1b}".to_owned(),
                rank: Some(3),
            }],
            ..HostStacks::default()
        };
        let main = Frame {
            function: Some("main".to_owned()),
            file: Some("a.c".to_owned()),
            line: Some(12),
            module: None,
        };
        stacks.add(0, 7, vec![main]);
        let one = || ("n1".to_owned(), Ok(stacks.clone()));
        let said = "rank 3 (a\\u001b) on n1\n  #0 main at a.c:12\n";
        let shown = |found: Vec<Found>, words: &[&str]| Stacks::of(found, &arguments(words));
        let all = shown(vec![one()], &[]);
        assert_eq!((all.text(), all.notes.len()), (said.to_owned(), 0));
        let silent = ("n2".to_owned(), Err("the run is busy".to_owned()));
        let with_silent = shown(vec![silent, one()], &[]);
        assert_eq!(with_silent.text(), format!("{said}n2: the run is busy\n"));
        let none = shown(vec![("n1".to_owned(), Ok(HostStacks::default()))], &[]);
        assert_eq!(none.text(), "the task has no process at the moment\n");
        assert_eq!(shown(vec![one()], &["--ranks", "1-3,9"]).text(), said);
        assert_eq!(
            shown(vec![one()], &["--ranks", "0-2"]).text(),
            "the task has no process with such a rank at the moment\n"
        );
    }

    /// The command line with these words.
    fn arguments(words: &[&str]) -> cli::Stack {
        let all = ["pmc", "stack", "task"].iter().chain(words);
        match cli::Cli::try_parse_from(all).unwrap().command {
            cli::Command::Stack(arguments) => arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn json_is_as_its_schema_says() {
        let mut stacks = HostStacks {
            processes: vec![Process {
                pid: 7,
                program: "a".to_owned(),
                rank: None,
            }],
            ..HostStacks::default()
        };
        stacks.add(0, 8, vec![Frame::default()]);
        stacks.failures.push((0, "it has ended".to_owned()));
        let found = vec![
            ("n1".to_owned(), Ok(stacks)),
            ("n2".to_owned(), Err("busy".to_owned())),
        ];
        let printed: serde_json::Value =
            serde_json::from_str(&Stacks::of(found, &arguments(&["--json"])).json("t")).unwrap();
        let schema = include_str!("../../../share/schemas/pmc-stack.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let wrong = jsonschema::validator_for(&schema).unwrap();
        let wrong: Vec<String> = wrong
            .iter_errors(&printed)
            .map(|error| error.to_string())
            .collect();
        assert!(wrong.is_empty(), "{wrong:?} in {printed}");
        assert_eq!(printed["stacks"][0]["holders"][0]["thread"], 8);
        assert_eq!(printed["stacks"][1]["reason"], "it has ended");
        assert_eq!(printed["missing"][0], "n2: busy");
    }

    #[test]
    fn ranks_are_numbers_and_ranges() {
        for words in [&["--ranks", "3-1"], &["--ranks", "a"], &["--ranks", "1,,2"]] {
            let all = ["pmc", "stack", "task"].iter().chain(words);
            assert!(cli::Cli::try_parse_from(all).is_err(), "{words:?}");
        }
    }
}
