//! Processes that a test has started.

use std::fs;

/// Returns a process and its descendants.
#[must_use]
pub fn family(root: u32) -> Vec<u32> {
    let mut family = vec![root];
    let mut at = 0;
    while at < family.len() {
        let path = format!("/proc/{0}/task/{0}/children", family[at]);
        let children = fs::read_to_string(path).unwrap_or_default();
        let children = children.split_whitespace();
        family.extend(children.filter_map(|pid| pid.parse::<u32>().ok()));
        at += 1;
    }
    family
}

/// Returns the processes of the executor among a process and its descendants.
#[must_use]
pub fn executors(root: u32) -> Vec<u32> {
    let mut family = family(root);
    family.retain(|pid| {
        let program = fs::read_link(format!("/proc/{pid}/exe"));
        program.is_ok_and(|path| path.ends_with("pegasus-mpi-cluster"))
    });
    family
}
