//! Finds tasks that can never run because they wait for themselves.
//!
//! Like the original, the executor does not check for cycles before a run: it runs the other tasks, and the
//! run fails. This module explains why.

use crate::{Dag, TaskId};

/// A cycle of a DAG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// The tasks of one cycle: each is a parent of the next, and the last is a parent of the first.
    pub tasks: Vec<TaskId>,
    /// All tasks that can never run, in the order of the file: those on a cycle and their descendants.
    pub blocked: Vec<TaskId>,
}

/// Finds a cycle. Returns `None` if every task can run. Linear in tasks and edges.
#[must_use]
pub fn find(dag: &Dag) -> Option<Cycle> {
    let mut parents: Vec<u32> = dag.ids().map(|task| dag.parent_count(task)).collect();
    let mut ready: Vec<TaskId> = dag.ids().filter(|task| parents[task.index()] == 0).collect();
    while let Some(task) = ready.pop() {
        for child in dag.children(task) {
            parents[child.index()] -= 1;
            if parents[child.index()] == 0 {
                ready.push(*child);
            }
        }
    }
    let blocked: Vec<TaskId> = dag.ids().filter(|task| parents[task.index()] > 0).collect();
    let first = *blocked.first()?;

    // Every blocked task has a blocked parent, so a walk from parent to parent returns to a task.
    let mut parent_of = vec![TaskId(u32::MAX); dag.len()];
    for parent in &blocked {
        for child in dag.children(*parent) {
            parent_of[child.index()] = *parent;
        }
    }
    let mut seen = vec![false; dag.len()];
    let mut start = first;
    while !seen[start.index()] {
        seen[start.index()] = true;
        start = parent_of[start.index()];
    }
    let mut tasks = vec![start];
    let mut at = parent_of[start.index()];
    while at != start {
        tasks.push(at);
        at = parent_of[at.index()];
    }
    tasks.reverse();
    Some(Cycle { tasks, blocked })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dag(text: &str) -> Dag {
        Dag::parse(text.as_bytes().to_vec()).unwrap()
    }

    #[test]
    fn a_diamond_has_no_cycle() {
        let dag = dag("TASK a x\nTASK b x\nTASK c x\nTASK d x\nEDGE a b\nEDGE a c\nEDGE b d\nEDGE c d\n");
        assert_eq!(find(&dag), None);
        assert_eq!(find(&Dag::parse(Vec::new()).unwrap()), None);
    }

    #[test]
    fn one_cycle_and_all_blocked_tasks_are_found() {
        let dag = dag("TASK free x\nTASK behind x\nTASK b x\nTASK c x\nTASK d x\n\
             EDGE free b\nEDGE b c\nEDGE c d\nEDGE d b\nEDGE d behind\n");
        let cycle = find(&dag).unwrap();
        assert_eq!(cycle.blocked, [1, 2, 3, 4].map(TaskId));
        assert_eq!(cycle.tasks.len(), 3);
        for (at, task) in cycle.tasks.iter().enumerate() {
            let next = cycle.tasks[(at + 1) % cycle.tasks.len()];
            assert!(dag.children(*task).contains(&next));
        }
    }

    #[test]
    fn a_task_that_waits_for_itself_is_a_cycle() {
        let cycle = find(&dag("TASK a x\nEDGE a a\n")).unwrap();
        assert_eq!(cycle.tasks, [TaskId(0)]);
    }
}
