//! `pmc stack`: what the processes of a running task do, on all of its hosts.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pmc_control::{Answer, HostStacks, Request, StacksRequest, ask};
use pmc_stacks::{described, merge};
use pmc_terminal::{escape, print};

use super::control::task_and_run;
use crate::failure::{Failure, OrCode as _};
use crate::{cli, exit, layout, reach};

/// Most hosts that are asked at a time: each is a connection to the run.
const PARALLEL: usize = 16;

/// What became of a host: its stacks, or why there are none.
type Found = (String, Result<HostStacks, String>);

/// Shows the stacks of a task. Returns the exit code.
pub fn stack(arguments: &cli::Stack) -> Result<u8, Failure> {
    let (task, run) = task_and_run(&arguments.task, arguments.run.as_deref(), false);
    let run = layout::find_run(&run)?;
    if let Some(place) = reach::elsewhere(&run.dag) {
        return reach::run_there(&place, false);
    }
    let request = Request::Workers { task: task.clone() };
    let (attempt, workers) = match ask(&run.dag, &request).or_code(exit::NOT_RUN)? {
        Answer::Workers { attempt, workers } => (attempt, workers),
        other => return Err(Failure::of_answer(&other)),
    };
    let request = |worker| {
        Request::Stacks(StacksRequest {
            task: task.clone(),
            attempt: (worker, attempt),
            all_threads: arguments.threads,
        })
    };
    let found = ask_all(&run.dag, workers.into(), &request);
    let (text, is_whole) = shown(found, arguments.full);
    print(&text);
    Ok(if is_whole { exit::SUCCESS } else { exit::NOT_RUN })
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
                Ok(Answer::Refused(reason)) => Err(reason),
                Ok(_) => Err("the run is of another version".to_owned()),
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

/// Returns the text, and whether all hosts have answered with all of their processes.
fn shown(found: Vec<Found>, is_full: bool) -> (String, bool) {
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
    let is_empty = |(_, stacks): &(String, HostStacks)| stacks.processes.is_empty();
    if notes.is_empty() && hosts.iter().all(is_empty) {
        notes.push("the task has no process at the moment".to_owned());
    }
    let text = described(&merge(hosts, is_full));
    let lines = text.lines().map(str::to_owned).chain(notes.iter().cloned());
    let text = lines.fold(String::new(), |all, line| all + &escape(&line) + "\n");
    (text, notes.is_empty())
}

#[cfg(test)]
mod tests {
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
        assert_eq!(shown(vec![one()], false), (said.to_owned(), true));
        let silent = ("n2".to_owned(), Err("the run is busy".to_owned()));
        let with_silent = format!("{said}n2: the run is busy\n");
        assert_eq!(shown(vec![silent, one()], false), (with_silent, false));
        let none = shown(vec![("n1".to_owned(), Ok(HostStacks::default()))], false);
        assert_eq!(
            none,
            ("the task has no process at the moment\n".to_owned(), false)
        );
    }
}
