//! Limits of running tasks by category.

use std::ops::Range;

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
    /// The category around this one, whose limit counts, too.
    within: Option<CategoryId>,
    /// Numbers of the categories that this one is around.
    pub(super) parts: Range<u32>,
}

impl Category {
    pub(super) fn new(limit: u32, within: Option<CategoryId>) -> Self {
        Self {
            limit,
            running: 0,
            within,
            parts: 0..0,
        }
    }

    /// Returns the categories of a DAG, in the order of their numbers.
    pub(super) fn all(dag: &Dag) -> Vec<Self> {
        let limits = dag.category_limits().iter();
        limits.map(|&limit| Self::new(limit, None)).collect()
    }

    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    fn is_full(&self) -> bool {
        self.running >= self.limit
    }

    /// True if a category or the one around it is full.
    pub(super) fn is_blocked(all: &[Self], id: CategoryId) -> bool {
        let category = &all[id.index()];
        category.is_full() || category.within.is_some_and(|id| all[id.index()].is_full())
    }
}

impl Master {
    /// Counts a task that starts. Tasks of a full category wait.
    pub(super) fn enter_category(&mut self, id: CategoryId) {
        let category = &mut self.categories[id.index()];
        category.running += 1;
        let within = category.within;
        if category.is_full() {
            self.open_or_close(id);
        }
        if let Some(around) = within {
            self.enter_category(around);
        }
    }

    /// Counts a task that has ended.
    pub(super) fn leave_category(&mut self, id: CategoryId) {
        let category = &mut self.categories[id.index()];
        let was_full = category.is_full();
        category.running -= 1;
        let within = category.within;
        // More than the limit may run if an earlier master started some of them.
        if was_full && !category.is_full() {
            self.open_or_close(id);
        }
        if let Some(around) = within {
            self.leave_category(around);
        }
    }

    /// Lets the tasks of a category, and of those that it is around, start or wait.
    fn open_or_close(&mut self, id: CategoryId) {
        let parts = self.categories[id.index()].parts.clone();
        for id in parts.map(CategoryId).chain([id]) {
            let is_open = !Category::is_blocked(&self.categories, id);
            self.queue.set_open(&self.nodes, id, is_open);
        }
    }

    /// Checks the counts, and that exactly the full categories wait.
    #[cfg(test)]
    pub(super) fn check_categories(&self) -> Result<(), String> {
        let mut running = vec![0; self.categories.len()];
        let is_expected = |task: &TaskId| self.nodes[task.index()].state == State::Expected;
        let expected = (0..self.nodes.len() as u32).map(TaskId).filter(is_expected);
        let tasks = self.assignments().map(|(_, task, _)| task).chain(expected);
        let tasks = tasks.chain(self.gathering());
        for category in tasks.filter_map(|task| self.category_of(task)) {
            running[category.index()] += 1;
            if let Some(around) = self.categories[category.index()].within {
                running[around.index()] += 1;
            }
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
        let is_full = |id: CategoryId| Category::is_blocked(&self.categories, id);
        let mut shapes = self.queue.shapes().iter();
        match shapes.find(|shape| shape.is_open == shape.category.is_some_and(is_full)) {
            Some(shape) => Err(format!("{shape:?} is open or not, against its category")),
            None => Ok(()),
        }
    }
}
