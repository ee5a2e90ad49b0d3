//! Chains for tasks that request other than the DAG says, or that avoid hosts.

use std::time::Duration;

use pmc_dag::{OptionSet, Request};

use super::key::key;
use super::{Queue, Shape, ShapeId};
use crate::scheduler::tasks::Node;

/// Maximum sets of hosts that queued tasks avoid at a time. Each costs a look at each start.
pub(crate) const MAX_SETS: usize = 64;

/// Number of a set of hosts that tasks avoid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AvoidId(u32);

impl AvoidId {
    /// No host is avoided.
    pub(crate) const NONE: Self = Self(0);

    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Hosts that tasks avoid.
#[derive(Debug, Default)]
pub(super) struct AvoidedHosts {
    /// Ascending.
    hosts: Vec<u32>,
    /// Number of queued tasks that avoid them. Without any, the number of the set is given to another one.
    waiting: u32,
    /// When to look whether they still should.
    until: Duration,
}

impl AvoidedHosts {
    pub(super) fn count(&mut self, change: i32) {
        self.waiting = self.waiting.saturating_add_signed(change);
    }

    fn is_used(&self) -> bool {
        self.waiting > 0 && !self.hosts.is_empty()
    }
}

impl Queue {
    /// Returns the chain for tasks like those of a chain, but with this request, and without avoided hosts. A
    /// new chain has a shape of its own; making it is linear in the number of shapes of the class.
    pub(crate) fn with_request(&mut self, nodes: &[Node], chain: u32, request: Request) -> u32 {
        let base = self.chains[chain as usize].base;
        let (mut set, shape) = self.options_of(base);
        set.request = request;
        let share = self.classes[self.shape(shape).class as usize].share;
        let number = self.chains.len() as u32;
        let known = *self.raised.entry(key(share, &set)).or_insert(number);
        if known == number {
            let class = self.class(share, AvoidId::NONE, &set);
            self.add_variant(nodes, set, class, shape);
        }
        known
    }

    /// Returns the chain for tasks like those of a chain that avoid a set of hosts. The same holds for its
    /// cost.
    pub(crate) fn avoiding(&mut self, nodes: &[Node], chain: u32, avoids: AvoidId) -> u32 {
        let base = self.chains[chain as usize].base;
        if avoids == AvoidId::NONE {
            return base;
        }
        let number = self.chains.len() as u32;
        let known = *self.avoiding.entry((base, avoids)).or_insert(number);
        if known == number {
            let (set, shape) = self.options_of(base);
            let share = self.classes[self.shape(shape).class as usize].share;
            let class = self.class(share, avoids, &set);
            self.add_variant(nodes, set, class, shape);
            self.chains[number as usize].base = base;
        }
        known
    }

    fn options_of(&self, chain: u32) -> (OptionSet, ShapeId) {
        let chain = &self.chains[chain as usize];
        let shape = self.shape(chain.shape);
        let set = OptionSet {
            request: shape.request,
            category: shape.category,
            priority: chain.priority,
            gang: shape.gang,
        };
        (set, chain.shape)
    }

    fn add_variant(&mut self, nodes: &[Node], set: OptionSet, class: u32, of: ShapeId) {
        let (is_open, kind) = (self.shape(of).is_open, self.shape(of).kind);
        self.add_chain(set, class, is_open);
        if let Some(shape) = self.shapes.last_mut() {
            shape.kind = kind;
        }
        self.arrange(nodes, class);
    }

    /// Returns the number of a set of hosts, for a task that is queued next. A new set is avoided `until`
    /// then. It is [`AvoidId::NONE`] if too many sets are in use.
    pub(crate) fn avoid_set(&mut self, hosts: Vec<u32>, until: Duration) -> AvoidId {
        let mut used = self.avoided.iter();
        if let Some(known) = used.position(|set| set.is_used() && set.hosts == hosts) {
            return AvoidId(known as u32);
        }
        let free = self.avoided.iter().skip(1).position(|set| set.waiting == 0);
        let number = free.map_or(self.avoided.len(), |place| place + 1);
        if number > MAX_SETS {
            return AvoidId::NONE;
        }
        let set = AvoidedHosts {
            hosts,
            waiting: 0,
            until,
        };
        match self.avoided.get_mut(number) {
            Some(free) => *free = set,
            None => self.avoided.push(set),
        }
        AvoidId(number as u32)
    }

    /// The hosts of a set.
    pub(crate) fn avoided_hosts(&self, id: AvoidId) -> &[u32] {
        &self.avoided[id.index()].hosts
    }

    /// The hosts that the tasks of a shape avoid.
    pub(crate) fn avoided_by(&self, shape: ShapeId) -> &[u32] {
        self.avoided_hosts(self.classes[self.shape(shape).class as usize].avoids)
    }

    /// Returns the sets that queued tasks avoid, and when to look at each of them again.
    pub(crate) fn used_sets(&self) -> impl Iterator<Item = (AvoidId, &[u32], Duration)> {
        let sets = (0..).zip(&self.avoided).filter(|(_, set)| set.is_used());
        sets.map(|(number, set)| (AvoidId(number), set.hosts.as_slice(), set.until))
    }

    /// Returns the shapes of the queued tasks that avoid a set. Linear in classes and in the shapes of this
    /// set.
    pub(crate) fn shapes_avoiding(&self, id: AvoidId) -> impl Iterator<Item = &Shape> {
        let classes = self.classes.iter().filter(move |class| class.avoids == id);
        let shapes = classes.flat_map(|class| &class.shapes).map(|id| self.shape(*id));
        shapes.filter(|shape| shape.filled.first().is_some())
    }

    /// Lets the tasks that avoid a set do so until then, or no more.
    pub(crate) fn avoid_until(&mut self, id: AvoidId, until: Option<Duration>) {
        let set = &mut self.avoided[id.index()];
        match until {
            Some(until) => set.until = until,
            None => set.hosts.clear(),
        }
    }

    /// Checks that the tasks of each set are counted.
    #[cfg(test)]
    pub(super) fn check_avoided(&self) -> Result<(), String> {
        let mut waiting = vec![0; self.avoided.len()];
        for chain in &self.chains {
            let class = &self.classes[self.shape(chain.shape).class as usize];
            waiting[class.avoids.index()] += chain.len;
        }
        for (set, waiting) in self.avoided.iter().zip(waiting).skip(1) {
            if set.waiting != waiting {
                return Err(format!("{waiting} tasks avoid hosts, but the set is {set:?}"));
            }
        }
        Ok(())
    }
}
