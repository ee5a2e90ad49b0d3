//! Stacks of many hosts, each once.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use crate::{Frame, HostStacks};

/// Most hosts that are named.
const MAX_NAMED: usize = 8;

/// Who has a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// Rank in an MPI program.
    pub rank: Option<u32>,
    /// Host.
    pub host: String,
    /// Process.
    pub pid: i32,
    /// Thread, if it is not the first one.
    pub thread: Option<i32>,
    /// Name of the program.
    pub program: String,
}

/// A stack, and all who have it; or why these have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// In order of their ranks.
    pub holders: Vec<Holder>,
    /// Frames, the innermost first.
    ///
    /// # Errors
    /// Why there are none.
    pub frames: Result<Vec<Frame>, String>,
}

/// True for a function of the interface of MPI, in C or Fortran.
fn is_of_mpi(function: &str) -> bool {
    let name = function.strip_prefix(['P', 'p']).unwrap_or(function);
    name.starts_with("MPI_") || (name.starts_with("mpi_") && name.ends_with('_'))
}

/// Leaves out what has called `main`, and what a call of MPI does inside its library: it looks for messages
/// in a loop, so that each rank that waits is somewhere else in it.
fn without_inside_of_libraries(frames: &mut Vec<Frame>) {
    let is_main = |frame: &Frame| frame.function.as_deref() == Some("main");
    if let Some(main) = frames.iter().rposition(is_main) {
        frames.truncate(main + 1);
    }
    let is_call = |frame: &Frame| frame.function.as_deref().is_some_and(is_of_mpi);
    // The outermost one of those that the program has called.
    if let Some(call) = frames.iter().rposition(is_call) {
        frames.drain(..call);
        if let Some(call) = frames.first_mut() {
            (call.file, call.line) = (None, None);
        }
    }
}

/// Brings the stacks of hosts together: each is there once, those of most threads first. Without `is_full`,
/// what is inside of MPI is left out, and what calls `main`.
#[must_use]
pub fn merge(hosts: Vec<(String, HostStacks)>, is_full: bool) -> Vec<Group> {
    let mut groups: BTreeMap<Result<Vec<Frame>, String>, Vec<Holder>> = BTreeMap::new();
    for (host, found) in hosts {
        let holder = |process: usize, thread: Option<i32>| {
            let process = found.processes.get(process)?;
            Some(Holder {
                rank: process.rank,
                host: host.clone(),
                pid: process.pid,
                thread: thread.filter(|thread| *thread != process.pid),
                program: process.program.clone(),
            })
        };
        for stack in found.stacks {
            let holders = stack.threads.iter();
            let holders: Vec<Holder> = holders
                .filter_map(|(process, thread)| holder(*process, Some(*thread)))
                .collect();
            let mut frames = stack.frames;
            if !is_full {
                without_inside_of_libraries(&mut frames);
            }
            groups.entry(Ok(frames)).or_default().extend(holders);
        }
        for (process, why) in found.failures {
            groups.entry(Err(why)).or_default().extend(holder(process, None));
        }
    }
    let mut groups: Vec<Group> = groups
        .into_iter()
        .map(|(frames, mut holders)| {
            holders.sort();
            Group { holders, frames }
        })
        .collect();
    groups.sort_by_key(|group| (group.frames.is_err(), std::cmp::Reverse(group.holders.len())));
    groups
}

/// Returns numbers as ranges: `0-2,7`.
fn ranges(numbers: &[u32]) -> String {
    let mut text = String::new();
    let mut at = 0;
    while let Some(first) = numbers.get(at) {
        let mut last = *first;
        at += 1;
        while numbers
            .get(at)
            .is_some_and(|next| *next == last || *next == last + 1)
        {
            last = numbers[at];
            at += 1;
        }
        let separator = if text.is_empty() { "" } else { "," };
        let _ = match last == *first {
            true => write!(text, "{separator}{first}"),
            false => write!(text, "{separator}{first}-{last}"),
        };
    }
    text
}

fn counted(count: usize, one: &str) -> String {
    match count {
        1 => one.to_owned(),
        count if one.ends_with('s') => format!("{count} {one}es"),
        count => format!("{count} {one}s"),
    }
}

/// Says who has a stack: ranks, programs and hosts.
fn who(holders: &[Holder]) -> String {
    let ranks: Vec<u32> = holders.iter().filter_map(|holder| holder.rank).collect();
    let mut hosts: Vec<&str> = holders.iter().map(|holder| holder.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    let others = hosts.len().saturating_sub(MAX_NAMED);
    let mut on = hosts
        .iter()
        .take(MAX_NAMED)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if others > 0 {
        let _ = write!(on, " and {}", counted(others, "other host"));
    }
    let mut programs: Vec<&str> = holders.iter().map(|holder| holder.program.as_str()).collect();
    programs.sort_unstable();
    programs.dedup();
    let programs = programs.join(", ");
    let mut text = match holders {
        [one] if one.rank.is_none() => format!("process {} ({programs}) on {on}", one.pid),
        _ if ranks.len() == holders.len() => {
            let word = if ranks.first() == ranks.last() {
                "rank"
            } else {
                "ranks"
            };
            format!("{word} {} ({programs}) on {on}", ranges(&ranks))
        }
        _ => {
            let mut processes: Vec<(&str, i32)> =
                holders.iter().map(|holder| (&*holder.host, holder.pid)).collect();
            processes.sort_unstable();
            processes.dedup();
            format!("{} ({programs}) on {on}", counted(processes.len(), "process"))
        }
    };
    let threads = holders.iter().filter(|holder| holder.thread.is_some()).count();
    if threads > 0 {
        let _ = write!(text, ": {}", counted(threads, "thread"));
        if threads < holders.len() {
            text += " and the first one";
        }
    }
    text
}

/// Returns the text for a terminal: for each stack, who has it, and its frames. Names come from the programs:
/// control characters are still in them.
#[must_use]
pub fn described(groups: &[Group]) -> String {
    let mut text = String::new();
    for group in groups {
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}", who(&group.holders));
        match &group.frames {
            Err(why) => {
                let _ = writeln!(text, "  no stack: {why}");
            }
            Ok(frames) if frames.is_empty() => text += "  no frames\n",
            Ok(frames) => {
                for (number, frame) in frames.iter().enumerate() {
                    describe(&mut text, number, frame);
                }
            }
        }
    }
    text
}

fn describe(text: &mut String, number: usize, frame: &Frame) {
    let function = frame.function.as_deref().unwrap_or("??");
    let _ = write!(text, "  #{number} {function}");
    match (&frame.file, frame.line, &frame.module) {
        (Some(file), Some(line), _) => {
            let _ = write!(text, " at {file}:{line}");
        }
        (Some(file), None, _) => {
            let _ = write!(text, " at {file}");
        }
        (None, _, Some(module)) => {
            let _ = write!(text, " in {module}");
        }
        (None, _, None) => {}
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Process;

    fn frame(function: &str, line: Option<u32>) -> Frame {
        Frame {
            function: Some(function.to_owned()),
            file: line.map(|_| "a.c".to_owned()),
            line,
            module: Some("a.out".to_owned()),
        }
    }

    fn host(first: u32, stacks: &[(u32, Vec<Frame>)]) -> HostStacks {
        let mut found = HostStacks::default();
        for (rank, frames) in stacks {
            let pid = 100 + i32::try_from(*rank).unwrap();
            found.processes.push(Process {
                pid,
                program: "a.out".to_owned(),
                rank: Some(first + rank),
            });
            let at = found.processes.len() - 1;
            found.add(at, pid, frames.clone());
        }
        found
    }

    #[test]
    fn ranks_that_wait_in_mpi_are_one_group() {
        let main = frame("main", Some(12));
        let waits = |inside: &str| {
            vec![
                frame(inside, None),
                frame("PMPI_Recv", None),
                frame("MPI_Recv", Some(3)),
                main.clone(),
                frame("_start", None),
            ]
        };
        let sleeps = vec![frame("nanosleep", None), frame("main", Some(7))];
        let hosts = || {
            vec![
                (
                    "n1".to_owned(),
                    host(0, &[(0, waits("poll")), (1, sleeps.clone()), (2, waits("epoll"))]),
                ),
                (
                    "n2".to_owned(),
                    host(3, &[(0, waits("opal_progress")), (1, waits("poll"))]),
                ),
            ]
        };
        let groups = merge(hosts(), false);
        assert_eq!(groups.len(), 2);
        assert_eq!(
            described(&groups),
            "ranks 0,2-4 (a.out) on n1, n2\n  #0 MPI_Recv in a.out\n  #1 main at a.c:12\n\n\
             rank 1 (a.out) on n1\n  #0 nanosleep in a.out\n  #1 main at a.c:7\n"
        );
        assert_eq!(merge(hosts(), true).len(), 4, "inside, they differ");
    }

    #[test]
    fn threads_and_failures_are_told_apart() {
        let mut found = HostStacks::default();
        for pid in [7, 8] {
            found.processes.push(Process {
                pid,
                program: "solve".to_owned(),
                rank: None,
            });
        }
        found.add(0, 7, vec![frame("main", Some(1))]);
        found.add(0, 70, vec![frame("work", None)]);
        found.add(0, 71, vec![frame("work", None)]);
        found.failures.push((1, "it has ended".to_owned()));
        // What makes no sense is left out.
        found.failures.push((9, "it has ended".to_owned()));
        let groups = merge(vec![("n1".to_owned(), found)], false);
        assert_eq!(
            described(&groups),
            "process (solve) on n1: 2 threads\n  #0 work in a.out\n\n\
             process 7 (solve) on n1\n  #0 main at a.c:1\n\n\
             process 8 (solve) on n1\n  no stack: it has ended\n"
        );
    }

    #[test]
    fn functions_of_mpi_are_known() {
        for name in ["MPI_Recv", "PMPI_Waitall", "mpi_send_", "pmpi_send__"] {
            assert!(is_of_mpi(name), "{name}");
        }
        for name in ["mpi_helper", "PMIx_Init", "my_MPI_Recv", "main"] {
            assert!(!is_of_mpi(name), "{name}");
        }
    }

    #[test]
    fn numbers_are_ranges() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[3]), "3");
        assert_eq!(ranges(&[0, 1, 1, 2, 7, 9, 10]), "0-2,7,9-10");
    }
}
