//! Children of tasks.

use super::{Plan, TaskNumber};

/// Children of each task.
#[derive(Debug)]
pub struct Children {
    /// Start of each task's children in `children`.
    first: Vec<u32>,
    children: Vec<TaskNumber>,
}

impl Children {
    /// Sorts the edges by parent.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let mut first = vec![0_u32; plan.len() + 1];
        for (parent, _) in plan.edges() {
            first[*parent as usize + 1] += 1;
        }
        for at in 1..first.len() {
            first[at] += first[at - 1];
        }
        let mut next = first.clone();
        let mut children = vec![0; plan.edges().len()];
        for (parent, child) in plan.edges() {
            let at = &mut next[*parent as usize];
            children[*at as usize] = *child;
            *at += 1;
        }
        Self { first, children }
    }

    /// Children of a task.
    #[must_use]
    pub fn of(&self, task: TaskNumber) -> &[TaskNumber] {
        let task = task as usize;
        &self.children[self.first[task] as usize..self.first[task + 1] as usize]
    }

    /// Returns all tasks, parents before children. Leaves out tasks on or behind a cycle.
    #[must_use]
    pub fn topological_order(&self) -> Vec<TaskNumber> {
        let tasks = self.first.len() - 1;
        let mut open_parents = vec![0_u32; tasks];
        for child in &self.children {
            open_parents[*child as usize] += 1;
        }
        let mut order: Vec<TaskNumber> = (0..tasks as u32)
            .filter(|task| open_parents[*task as usize] == 0)
            .collect();
        let mut at = 0;
        while let Some(&task) = order.get(at) {
            for child in self.of(task) {
                let open = &mut open_parents[*child as usize];
                *open -= 1;
                if *open == 0 {
                    order.push(*child);
                }
            }
            at += 1;
        }
        order
    }
}
