//! Chains for tasks that request more memory than the DAG says.

use pmc_dag::Request;

use super::{Chain, Queue, Shape, ShapeId};
use crate::scheduler::bits::BitSet;
use crate::scheduler::tasks::{NO_TASK, Node};

impl Queue {
    /// Returns the chain for tasks like those of a chain, but with this request for memory. A new chain has a
    /// shape of its own; making it is linear in the number of shapes of the class.
    pub(crate) fn with_memory(&mut self, nodes: &[Node], chain: u32, memory_mb: u64) -> u32 {
        let Chain { priority, shape, .. } = self.chains[chain as usize];
        let &Shape {
            request,
            category,
            is_open,
            class,
            ..
        } = self.shape(shape);
        let request = Request { memory_mb, ..request };
        let number = self.chains.len() as u32;
        let share = self.classes[class as usize].share;
        let key = (share, request, category, priority);
        let known = *self.raised.entry(key).or_insert(number);
        if known != number {
            return known;
        }
        let id = ShapeId(self.shapes.len() as u32);
        self.shapes.push(Shape {
            request,
            category,
            is_open,
            class,
            leaf: 0,
            first_chain: number,
            filled: BitSet::new(1),
        });
        self.chains.push(Chain {
            priority,
            shape: id,
            first: NO_TASK,
            last: NO_TASK,
            len: 0,
        });
        if let Some(category) = category {
            self.by_category[category.index()].push(id);
        }
        let members = &mut self.classes[class as usize];
        let leaf = members.memories.partition_point(|memory| *memory <= memory_mb);
        members.memories.insert(leaf, memory_mb);
        members.shapes.insert(leaf, id);
        members.set_up();
        for leaf in 0..members.shapes.len() {
            let id = self.classes[class as usize].shapes[leaf];
            self.shapes[id.index()].leaf = leaf as u32;
            self.update(nodes, id);
        }
        number
    }
}
