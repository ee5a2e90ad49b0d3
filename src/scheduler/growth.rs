//! A first DAG that gets more tasks while it runs.
//!
//! Other than a DAG that joins (`segments`), they are tasks like the others of the first DAG, and may depend
//! on these. They get the next numbers, so no DAG may have joined.

use std::sync::Arc;

use pmc_dag::{Dag, OptionSet, TaskId};
use thiserror::Error;

use crate::scheduler::run::Master;
use crate::scheduler::segments::new_node;
use crate::scheduler::shares::ShareId;
use crate::scheduler::tasks::{NO_TASK, State};

/// Why a DAG cannot get more tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GrowthError {
    /// There are no more numbers.
    #[error("the run has as many tasks as it can")]
    TooManyTasks,
    /// Tasks of other DAGs have the next numbers.
    #[error("other workflows have joined the run")]
    OthersHaveJoined,
}

impl Master {
    /// Returns whether the first DAG can get this number of tasks.
    ///
    /// # Errors
    /// It cannot.
    pub fn has_room_for(&self, tasks: usize) -> Result<(), GrowthError> {
        if !self.segments.is_empty() {
            return Err(GrowthError::OthersHaveJoined);
        }
        let end = self.nodes.len().checked_add(tasks);
        match end.is_none_or(|end| end >= NO_TASK as usize) {
            true => Err(GrowthError::TooManyTasks),
            false => Ok(()),
        }
    }

    /// Gives back the first DAG, so that it can get more tasks: [`Master::extend`] follows.
    #[must_use]
    pub fn take_dag(&mut self) -> Arc<Dag> {
        std::mem::take(&mut self.dag)
    }

    /// Takes the first DAG back with more tasks, for which [`Master::has_room_for`] has found room. `edges`
    /// are those to the new tasks. Linear in tasks and edges that are new; with new sets of options, also in
    /// the shapes of their classes.
    pub fn extend(&mut self, dag: Arc<Dag>, edges: &[(TaskId, TaskId)]) {
        let first = self.nodes.len();
        self.dag = dag;
        let dag = Arc::clone(&self.dag);
        let new_sets: Vec<OptionSet> = dag.option_sets().skip(self.chain_of_set.len()).collect();
        if !new_sets.is_empty() {
            self.take_option_sets(&dag, &new_sets);
        }
        self.name_transformations();
        for task in dag.ids().skip(first) {
            let chain = self.chain_of_set.get(dag.option_set(task)).copied();
            self.nodes
                .push(new_node(&dag, task, chain.unwrap_or_default(), 0));
        }
        for (parent, child) in edges {
            if self.nodes[parent.index()].state == State::Done {
                self.nodes[child.index()].parents_left -= 1;
            }
        }
        for task in dag.ids().skip(first) {
            let node = &mut self.nodes[task.index()];
            if node.parents_left == 0 {
                node.state = State::Ready;
                self.ready.push(task);
            }
        }
        self.summary.tasks = dag.len();
        self.summary.success = self.summary.done == self.summary.tasks;
    }

    /// Makes chains for sets of options that tasks of the first DAG have not had so far.
    fn take_option_sets(&mut self, dag: &Dag, sets: &[OptionSet]) {
        self.run_times.learn(dag);
        if self.gangs.learn(dag) {
            self.learn_run_times();
        }
        let cpus: Vec<u32> = sets.iter().map(|set| set.request.cpus).collect();
        self.hosts.grow(&cpus);
        if cpus.iter().any(|cpus| *cpus > 1) {
            self.hosts.pack();
        }
        let chains = self.chains(sets, ShareId::default());
        self.chain_of_set.extend(chains);
    }

    /// Returns the first of these tasks that requests more than any host that is there has. Linear in the
    /// hosts for each set of options that is new, and in the tasks.
    #[must_use]
    pub fn unfit_new_task(&self, added: &Dag) -> Option<TaskId> {
        self.unfit_task(added, &pmc_dag::rescue::DoneSet::new())
    }
}
