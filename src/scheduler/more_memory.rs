//! More memory for tasks that ran out of it.
//!
//! The request is multiplied by a factor until it exceeds what the attempt used, and never exceeds what the
//! largest host has. So the requests are few, and each is a shape of the queue.

use pmc_dag::{Request, TaskId};

use crate::protocol::MemoryUse;
use crate::scheduler::hosts::Host;
use crate::scheduler::run::Master;
use crate::scheduler::{Outbox, Record};

impl Master {
    /// Sets the percentage of its memory that a task without one of its own requests after an attempt that
    /// ran out of memory. Up to 100, the request stays.
    #[must_use]
    pub fn with_more_memory(mut self, percent: u32) -> Self {
        self.more_memory = percent;
        self
    }

    /// What a task requests now.
    pub(super) fn request(&self, task: TaskId) -> Request {
        let chain = self.nodes[task.index()].chain;
        self.queue.shape(self.queue.shape_of(chain)).request
    }

    /// Raises the request of a task, which is not in the queue, after an attempt that ran out of memory.
    pub(super) fn raise_memory(&mut self, task: TaskId, used: MemoryUse, out: &mut impl Outbox) {
        let (dag, local) = self.locate(task);
        let percent = dag.more_memory(local).unwrap_or(self.more_memory);
        let request = self.request(task);
        let is_able =
            |host: &&Host| !host.ranks.is_empty() && host.cpus >= request.cpus && host.gpus >= request.gpus;
        let able = self.hosts.all().iter().filter(is_able);
        let most = able.map(|host| host.memory_mb).max().unwrap_or(0);
        let memory_mb = raised(request.memory_mb, used.peak_mib, percent).min(most);
        if memory_mb > request.memory_mb {
            let chain = self.nodes[task.index()].chain;
            self.nodes[task.index()].chain = self.queue.with_memory(&self.nodes, chain, memory_mb);
            out.record(Record::MoreMemory { task, memory_mb });
        }
    }
}

/// Returns the next request. Without a request and a peak, there is nothing to multiply.
fn raised(requested: u64, peak: u64, percent: u32) -> u64 {
    if percent <= 100 || requested.max(peak) == 0 {
        return requested;
    }
    let mut memory = requested.max(1);
    loop {
        let product = (u128::from(memory) * u128::from(percent)).div_ceil(100);
        memory = u64::try_from(product).unwrap_or(u64::MAX);
        if memory > peak || memory == u64::MAX {
            return memory;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_grow_in_few_steps() {
        assert_eq!(raised(100, 100, 200), 200);
        assert_eq!(raised(100, 0, 150), 150);
        assert_eq!(raised(100, 950, 200), 1600);
        assert_eq!(raised(100, 950, 100), 100);
        assert_eq!(raised(0, 0, 200), 0);
        assert_eq!(raised(0, 500, 200), 512);
        assert_eq!(raised(1, 3, 101), 4);
        assert_eq!(raised(u64::MAX - 1, 5, 200), u64::MAX);
    }
}
