//! Tasks of one of the workflows that share a run.

use super::{Key, Queue};
use crate::scheduler::shares::ShareId;
use crate::scheduler::tasks::{NO_TASK, Node};

impl Queue {
    /// True if tasks of a share wait that may start as far as categories go.
    pub(crate) fn has_open(&self, share: ShareId) -> bool {
        let mut own = self.classes.iter().filter(|class| class.share == share);
        own.any(|class| class.keys[class.winners[1] as usize] > Key::NONE)
    }

    /// Forgets all tasks of a share. Linear in the number of chains.
    pub(crate) fn withdraw(&mut self, nodes: &[Node], share: ShareId) {
        for number in 0..self.chains.len() {
            let chain = &mut self.chains[number];
            let class = self.shapes[chain.shape.index()].class;
            if self.classes[class as usize].share != share || chain.first == NO_TASK {
                continue;
            }
            let len = chain.len.cast_signed();
            (chain.first, chain.last) = (NO_TASK, NO_TASK);
            self.change_len(number as u32, -len);
            let chain = &self.chains[number];
            let shape = &mut self.shapes[chain.shape.index()];
            shape.filled.remove(number - shape.first_chain as usize);
            let id = chain.shape;
            self.update(nodes, id);
        }
    }
}
