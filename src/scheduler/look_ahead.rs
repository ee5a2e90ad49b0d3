//! What the next results will need is asked for before they are handled.
//!
//! In a large DAG, all that is known of a task has left the cache when it ends, and one look leads to the next:
//! worker, children, the child that becomes ready, its options and its line. Whoever has several
//! results at hand says whose they are, and while one is handled the memory for the others is on its way.

use pmc_dag::{TaskId, prefetch};

use crate::protocol::Rank;
use crate::scheduler::run::{Master, Running};
use crate::scheduler::tasks::NO_TASK;

/// So many results before one is handled, its worker is asked for.
const FAR: usize = 12;
/// The same for its task and the children of that.
const MIDDLE: usize = 8;
/// The same for what starting a child will need.
const NEAR: usize = 4;

/// So many children of a task are looked at, the first one included.
const CHILDREN: usize = 8;

impl Master {
    /// Asks for the memory that coming results will need. Changes nothing, and it does not matter whether they
    /// come. `coming(n)` is the worker whose result is to be handled n results after the next one.
    pub fn look_ahead(&self, coming: impl Fn(usize) -> Option<Rank>) {
        if let Some(slot) = coming(FAR).and_then(|rank| self.slots.get(slot_index(rank)?)) {
            prefetch(slot);
        }
        if let Some(running) = coming(MIDDLE).and_then(|rank| self.runs(rank)) {
            prefetch(&self.nodes[running.task.index()]);
            if running.first_child != NO_TASK {
                let child = TaskId(running.first_child);
                prefetch(&self.nodes[child.index()]);
                self.dag.prefetch_entry(child);
                self.dag.prefetch_children(running.children.start);
            }
        }
        if let Some(running) = coming(NEAR).and_then(|rank| self.runs(rank)) {
            let children = self.dag.children_at(running.children.clone());
            if let Some(child) = children.first() {
                let node = &self.nodes[child.index()];
                if node.parents_left == 1 {
                    self.queue.prefetch_chain(node.chain);
                    self.dag.prefetch_task(*child);
                }
            }
            for child in children.iter().take(CHILDREN).skip(1) {
                prefetch(&self.nodes[child.index()]);
            }
        }
    }

    fn runs(&self, rank: Rank) -> Option<&Running> {
        self.slots.get(slot_index(rank)?)?.running.as_ref()
    }
}

fn slot_index(rank: Rank) -> Option<usize> {
    (rank.0 as usize).checked_sub(1)
}
