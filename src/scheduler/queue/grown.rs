//! Chains for tasks of DAGs that join the run.

use pmc_dag::{CategoryId, OptionSet};

use super::key::key;
use super::{AvoidId, Chain, Class, Queue, Shape, ShapeId};
use crate::scheduler::bits::BitSet;
use crate::scheduler::shares::ShareId;
use crate::scheduler::tasks::{NO_TASK, Node};

impl Queue {
    /// Adds a category with a limit, and returns nothing: its number is the next one.
    pub(crate) fn add_category(&mut self) {
        self.by_category.push(Vec::new());
    }

    /// Returns the chain for each of these sets of options of a share. Those that there is none for get a
    /// chain with a shape of its own. Linear in the shapes of a class that gets more, else in the sets.
    pub(crate) fn grow(
        &mut self,
        nodes: &[Node],
        sets: &[OptionSet],
        share: ShareId,
        is_open: impl Fn(CategoryId) -> bool,
    ) -> Vec<u32> {
        if self.known.is_empty() {
            for (number, chain) in (0..).zip(&self.chains) {
                let shape = &self.shapes[chain.shape.index()];
                let share = self.classes[shape.class as usize].share;
                let key = (share, shape.gang, shape.request, shape.category, chain.priority);
                self.known.entry(key).or_insert(number);
            }
        }
        let mut classes = Vec::new();
        let mut chain_of = Vec::with_capacity(sets.len());
        for set in sets {
            let new = self.chains.len() as u32;
            let number = *self.known.entry(key(share, set)).or_insert(new);
            chain_of.push(number);
            if number == new {
                let class = self.class(share, AvoidId::NONE, set);
                self.add_chain(*set, class, set.category.is_none_or(&is_open));
                self.highest = self.highest.max(set.priority);
                classes.push(class);
            }
        }
        classes.sort_unstable();
        classes.dedup();
        for class in classes {
            self.arrange(nodes, class);
        }
        chain_of
    }

    /// Returns the number of the class of a request of a share. A new one has no shapes.
    pub(super) fn class(&mut self, share: ShareId, avoids: AvoidId, set: &OptionSet) -> u32 {
        let &OptionSet { gang, request, .. } = set;
        let is_it =
            |class: &Class| (class.share, class.avoids) == (share, avoids) && class.holds(gang, request);
        let known = self.classes.iter().position(is_it);
        known.unwrap_or_else(|| {
            self.classes.push(Class::new(share, avoids, gang, request));
            self.classes.len() - 1
        }) as u32
    }

    /// Adds a chain with a shape of its own, which the class does not know yet: see [`Queue::arrange`].
    pub(super) fn add_chain(&mut self, set: OptionSet, class: u32, is_open: bool) {
        let id = ShapeId(self.shapes.len() as u32);
        self.shapes.push(Shape {
            request: set.request,
            category: set.category,
            is_open,
            gang: set.gang,
            kind: id,
            class,
            leaf: 0,
            first_chain: self.chains.len() as u32,
            filled: BitSet::new(1),
        });
        self.chains.push(Chain {
            priority: set.priority,
            shape: id,
            first: NO_TASK,
            last: NO_TASK,
            len: 0,
            base: self.chains.len() as u32,
        });
        if let Some(category) = set.category {
            self.by_category[category.index()].push(id);
        }
        self.classes[class as usize].shapes.push(id);
    }

    /// Arranges the shapes of a class by memory, and makes its tree.
    pub(super) fn arrange(&mut self, nodes: &[Node], class: u32) {
        let Self { classes, shapes, .. } = self;
        let members = &mut classes[class as usize];
        members
            .shapes
            .sort_by_key(|id| shapes[id.index()].request.memory_mb);
        let memory = |id: &ShapeId| shapes[id.index()].request.memory_mb;
        members.memories = members.shapes.iter().map(memory).collect();
        members.set_up();
        for leaf in 0..members.shapes.len() {
            let id = self.classes[class as usize].shapes[leaf];
            self.shapes[id.index()].leaf = leaf as u32;
            self.update(nodes, id);
        }
    }
}
