//! The processes of a task that do its work.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use nix::unistd::{Pid, getpgid};
use pmc_spawn::family::children;

use crate::{MAX_PROCESSES, Process};

/// Variables in which launchers tell ranks their numbers, the surest first.
const RANKS: [&str; 5] = [
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "PALS_RANKID",
    "MV2_COMM_WORLD_RANK",
    "PMIX_RANK",
];

/// What launchers call to start processes on other hosts: it does nothing else.
const REMOTE_SHELL: &str = "pmc-rsh";

/// Most processes that are looked at.
const MAX_LOOKS: usize = 100_000;

/// Returns all processes of these groups: the first one of a group may have ended before others.
fn members(groups: &[Pid]) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pids = pids.map(Pid::from_raw);
    pids.filter(|pid| getpgid(Some(*pid)).is_ok_and(|group| groups.contains(&group)))
        .collect()
}

/// Returns the processes of these groups, and below them, that have no children, and how many more there are.
/// If some have ranks, only those.
pub(crate) fn find(roots: &[Pid]) -> (Vec<Process>, usize) {
    let mut left: Vec<Pid> = roots.to_vec();
    left.extend(members(roots));
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    while let Some(pid) = left.pop() {
        if seen.len() >= MAX_LOOKS || !is_alive(pid) || !seen.insert(pid) {
            continue;
        }
        let below: Vec<Pid> = children(pid).into_iter().filter(|pid| is_alive(*pid)).collect();
        if below.is_empty() {
            found.extend(describe(pid));
        }
        left.extend(below);
    }
    if found.iter().any(|process| process.rank.is_some()) {
        found.retain(|process| process.rank.is_some());
    } else if found.iter().any(|process| process.program != REMOTE_SHELL) {
        found.retain(|process| process.program != REMOTE_SHELL);
    }
    found.sort_by_key(|process| (process.rank, process.pid));
    let left_out = found.len().saturating_sub(MAX_PROCESSES);
    found.truncate(MAX_PROCESSES);
    (found, left_out)
}

/// True if a process has neither ended nor is about to.
fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(folder(pid).join("stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

fn describe(pid: Pid) -> Option<Process> {
    let program = fs::read(folder(pid).join("comm")).ok()?;
    // That of another user cannot be read.
    let environment = fs::read(folder(pid).join("environ")).unwrap_or_default();
    Some(Process {
        pid: pid.as_raw(),
        program: String::from_utf8_lossy(program.trim_ascii_end()).into_owned(),
        rank: rank(&environment),
    })
}

fn folder(pid: Pid) -> std::path::PathBuf {
    Path::new("/proc").join(pid.to_string())
}

/// Returns the rank that an environment names.
fn rank(environment: &[u8]) -> Option<u32> {
    let value = |name: &str| {
        let mut variables = environment.split(|byte| *byte == 0);
        variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    let value = RANKS.iter().find_map(|name| value(name))?;
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_rank_is_in_the_environment() {
        assert_eq!(rank(b"A=1\0PMIX_RANK=0\0PMI_RANK=17\0"), Some(17));
        assert_eq!(rank(b"PMI_RANK=x\0"), None);
        assert_eq!(rank(b"APMI_RANK=3\0PMI_RANKS=3"), None);
    }

    #[test]
    fn the_last_ones_of_a_family_are_found() {
        // The shell waits for two others.
        let script = "PMI_RANK=1 sleep 100 & PMI_RANK=0 sleep 100 & echo; wait";
        let mut command = Command::new("sh");
        let mut shell = command
            .args(["-c", script])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let root = Pid::from_raw(i32::try_from(shell.id()).unwrap());
        let ranks = || {
            let (found, left_out) = find(&[root]);
            assert_eq!(left_out, 0);
            found.iter().map(|process| process.rank).collect::<Vec<_>>()
        };
        // A process has the environment of its parent until it calls `execve`.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while ranks() != [Some(0), Some(1)] && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(ranks(), [Some(0), Some(1)]);
        for process in find(&[root]).0 {
            assert_eq!(process.program, "sleep");
            nix::sys::signal::kill(Pid::from_raw(process.pid), nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        shell.wait().unwrap();
        assert_eq!(find(&[root]), (Vec::new(), 0));
    }
}
