//! Inputs and outputs of all jobs in the order in which they are assigned to transfer jobs.

use crate::model::{FileId, FileUse, TransferFlag, Workflow};

use super::super::java_hash_order;
use crate::exec::Exec;

/// A file that a job uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderedUse {
    pub(super) file: FileId,
    /// Position among the uses of the job.
    pub(super) at: u32,
}

/// All uses in one array. Levels visit jobs in an order that would be slow with one list per job.
pub(super) struct OrderedUses {
    /// Of each job where its inputs begin, where its outputs do; where the inputs of the next one begin.
    start: Vec<u32>,
    all: Vec<OrderedUse>,
}

/// Outputs that are neither copied nor registered have this bit in [`OrderedUse::at`].
const QUIET: u32 = 1 << 31;

impl OrderedUses {
    /// Of the jobs of a graph; `numbers` has those that are kept as jobs of the plan. Gives the job that
    /// writes each file, too, or `u32::MAX`.
    pub(super) fn new(workflow: &Workflow, exec: &Exec, kept: &[bool], numbers: &[u32]) -> (Self, Vec<u32>) {
        let mut this = OrderedUses {
            start: Vec::with_capacity(2 * kept.len() + 1),
            all: Vec::with_capacity(workflow.files.len()),
        };
        let mut producers = vec![u32::MAX; workflow.files.len()];
        let names = (0..workflow.files.len() as u32).map(|n| workflow.files.name(FileId(n)));
        let hashes: Vec<u32> = names.map(java_hash_order::hash).collect();
        this.start.push(0);
        for (n, &kept) in kept.iter().enumerate() {
            let uses: &[FileUse] = match kept {
                true => exec.uses(workflow, exec.jobs[numbers[n] as usize].task),
                false => &[],
            };
            for (at, u) in (0u32..).zip(uses).filter(|(_, u)| u.link.reads()) {
                this.all.push(OrderedUse { file: u.file, at });
            }
            this.end(&hashes);
            for (at, u) in (0u32..).zip(uses).filter(|(_, u)| u.link.writes()) {
                producers[u.file.0 as usize] = n as u32;
                let is_quiet = u.transfer == TransferFlag::Not && !u.register;
                let at = if is_quiet { at | QUIET } else { at };
                this.all.push(OrderedUse { file: u.file, at });
            }
            this.end(&hashes);
        }
        (this, producers)
    }

    /// Ends the inputs, or outputs, of a job; the hashes are those of the files' names.
    fn end(&mut self, hashes: &[u32]) {
        let before = self.start.last().map_or(0, |&start| start as usize);
        let own = &mut self.all[before..];
        java_hash_order::sort_hashed(own, own.len(), |ordered| hashes[ordered.file.0 as usize]);
        self.start.push(self.all.len() as u32);
    }

    /// Inputs of a job.
    pub(super) fn inputs(&self, n: u32) -> &[OrderedUse] {
        let n = 2 * n as usize;
        &self.all[self.start[n] as usize..self.start[n + 1] as usize]
    }

    /// Outputs of a job, and whether each is to be copied or registered.
    pub(super) fn outputs(&self, n: u32) -> impl Iterator<Item = (OrderedUse, bool)> {
        let n = 2 * n as usize + 1;
        let outputs = &self.all[self.start[n] as usize..self.start[n + 1] as usize];
        outputs.iter().map(|ordered| {
            let at = ordered.at & !QUIET;
            (OrderedUse { at, ..*ordered }, at == ordered.at)
        })
    }
}
