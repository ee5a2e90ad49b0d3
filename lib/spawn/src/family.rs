//! Parents and children of processes, as the system says at this moment.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use nix::unistd::Pid;

/// Returns the children of a process, from all of its threads.
#[must_use]
pub fn children(parent: Pid) -> Vec<Pid> {
    if has_lists() {
        listed(parent)
    } else {
        with_parent(parent)
    }
}

/// Returns the parent of a process, unless that has gone.
#[must_use]
pub fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of its program, in parentheses, can have any characters.
    let parent = stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?;
    parent.parse().ok().map(Pid::from_raw)
}

/// Returns whether the kernel lists the children of each thread. Some are built without that.
fn has_lists() -> bool {
    static HAS_LISTS: OnceLock<bool> = OnceLock::new();
    *HAS_LISTS.get_or_init(|| Path::new("/proc/thread-self/children").exists())
}

fn listed(parent: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{parent}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers = lists.flat_map(|list| {
        let numbers = list
            .split_ascii_whitespace()
            .filter_map(|number| number.parse().ok());
        numbers.collect::<Vec<i32>>()
    });
    numbers.map(Pid::from_raw).collect()
}

/// Finds them among all processes.
fn with_parent(parent: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pids = pids.map(Pid::from_raw);
    pids.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_are_found_with_and_without_lists() {
        let mut command = Command::new("/bin/cat");
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        assert_eq!(parent_of(pid), Some(Pid::this()));
        assert!(with_parent(Pid::this()).contains(&pid));
        assert!(children(Pid::this()).contains(&pid));
        if has_lists() {
            assert!(listed(Pid::this()).contains(&pid));
        }
        assert!(with_parent(pid).is_empty() && children(pid).is_empty());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(parent_of(pid), None);
    }
}
