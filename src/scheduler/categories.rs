//! Limits of running tasks by category.

#[cfg(test)]
use pmc_dag::TaskId;
use pmc_dag::{CategoryId, Dag};

use crate::scheduler::run::Master;
#[cfg(test)]
use crate::scheduler::tasks::State;

/// A category with a limit.
#[derive(Debug)]
pub(super) struct Category {
    limit: u32,
    running: u32,
}

impl Category {
    /// Returns the categories of a DAG, in the order of their numbers.
    pub(super) fn all(dag: &Dag) -> Vec<Self> {
        let limits = dag.category_limits().iter();
        limits.map(|&limit| Self { limit, running: 0 }).collect()
    }

    fn is_full(&self) -> bool {
        self.running >= self.limit
    }
}

impl Master {
    /// Counts a task that starts. Tasks of a full category wait.
    pub(super) fn enter_category(&mut self, id: CategoryId) {
        let category = &mut self.categories[id.index()];
        category.running += 1;
        if category.is_full() {
            self.queue.set_open(&self.nodes, id, false);
        }
    }

    /// Counts a task that has ended.
    pub(super) fn leave_category(&mut self, id: CategoryId) {
        let category = &mut self.categories[id.index()];
        let was_full = category.is_full();
        category.running -= 1;
        // More than the limit may run if an earlier master started some of them.
        if was_full && !category.is_full() {
            self.queue.set_open(&self.nodes, id, true);
        }
    }

    /// Checks the counts, and that exactly the full categories wait.
    #[cfg(test)]
    pub(super) fn check_categories(&self) -> Result<(), String> {
        let mut running = vec![0; self.categories.len()];
        let is_expected = |task: &TaskId| self.nodes[task.index()].state == State::Expected;
        let expected = self.dag.ids().filter(is_expected);
        let tasks = self.assignments().map(|(_, task, _)| task).chain(expected);
        for category in tasks.filter_map(|task| self.dag.category(task)) {
            running[category.index()] += 1;
        }
        for (number, (category, running)) in self.categories.iter().zip(running).enumerate() {
            // An earlier master may have had a higher limit.
            let too_many = running > category.limit && !self.is_dynamic();
            if category.running != running || too_many {
                return Err(format!(
                    "category {number} is {category:?}, but {running} tasks run"
                ));
            }
        }
        let is_full = |id: CategoryId| self.categories[id.index()].is_full();
        let mut shapes = self.queue.shapes().iter();
        match shapes.find(|shape| shape.is_open == shape.category.is_some_and(is_full)) {
            Some(shape) => Err(format!("{shape:?} is open or not, against its category")),
            None => Ok(()),
        }
    }
}
