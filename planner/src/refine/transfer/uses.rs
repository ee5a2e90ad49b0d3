//! Inputs and outputs of all jobs in the order in which they are assigned to transfer jobs.

use crate::model::{FileId, JobIndex, TransferFlag, Workflow};

use super::super::java_hash_order;
use crate::exec::{Exec, JobId};
use crate::graph::Lists;
use crate::ids::Id as _;

/// A file that a job uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderedUse {
    pub(super) file: FileId,
    /// Position among the uses of the job.
    pub(super) at: u32,
}

/// All uses in one array. Levels visit jobs in an order that would be slow with one list per job.
pub(super) struct OrderedUses {
    inputs: Lists<JobIndex, OrderedUse>,
    outputs: Lists<JobIndex, OrderedUse>,
}

/// Outputs that are neither copied nor registered have this bit in [`OrderedUse::at`].
const QUIET: u32 = 1 << 31;

impl OrderedUses {
    /// Of the jobs of a graph; `numbers` has those that are kept as jobs of the plan. Gives the job that
    /// writes each file, too.
    pub(super) fn new(
        workflow: &Workflow,
        exec: &Exec,
        numbers: &[Option<JobId>],
    ) -> (Self, Vec<Option<JobIndex>>) {
        let mut this = OrderedUses {
            inputs: Lists::with_capacity(numbers.len(), workflow.files.len()),
            outputs: Lists::with_capacity(numbers.len(), workflow.files.len()),
        };
        let mut producers = vec![None; workflow.files.len()];
        let names = FileId::first(workflow.files.len()).map(|file| workflow.files.name(file));
        let hashes: Vec<u32> = names.map(java_hash_order::hash).collect();
        for (n, &number) in JobIndex::first(numbers.len()).zip(numbers) {
            let uses = number.map_or(&[][..], |job| exec.uses(workflow, exec.jobs[job].task));
            for (at, u) in (0u32..).zip(uses).filter(|(_, u)| u.link.reads()) {
                this.inputs.push(OrderedUse { file: u.file, at });
            }
            for (at, u) in (0u32..).zip(uses).filter(|(_, u)| u.link.writes()) {
                producers[u.file] = Some(n);
                let is_quiet = u.transfer == TransferFlag::Not && !u.register;
                let at = if is_quiet { at | QUIET } else { at };
                this.outputs.push(OrderedUse { file: u.file, at });
            }
            for lists in [&mut this.inputs, &mut this.outputs] {
                let own = lists.current();
                java_hash_order::sort_hashed(own, own.len(), |ordered| hashes[ordered.file]);
                lists.end();
            }
        }
        (this, producers)
    }

    /// Inputs of a job.
    pub(super) fn inputs(&self, n: JobIndex) -> &[OrderedUse] {
        self.inputs.of(n)
    }

    /// Outputs of a job, and whether each is to be copied or registered.
    pub(super) fn outputs(&self, n: JobIndex) -> impl Iterator<Item = (OrderedUse, bool)> {
        self.outputs.of(n).iter().map(|ordered| {
            let at = ordered.at & !QUIET;
            (OrderedUse { at, ..*ordered }, at == ordered.at)
        })
    }
}
