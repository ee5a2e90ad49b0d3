//! What tools know of the run, and what they wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use pegasus_mpi_cluster::simulated::{Asked, Tools};
use pmc_control::Request;
use pmc_system::simulated::ProcessId;

use crate::kinds::PartKind;
use crate::plan::Plan;

/// What a tool has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum What {
    Submit(u32),
    Add(u32),
    Ends,
    Stop,
}

/// What tools know.
#[derive(Default)]
pub(crate) struct Users {
    /// How to ask the present master.
    pub(crate) tools: Rc<Tools>,
    /// The master of which the rest is known.
    pub(crate) master: Option<ProcessId>,
    pub(crate) asked: BTreeMap<What, Asked>,
    /// The master that has a guest, and when it was handed over last.
    pub(crate) joined: BTreeMap<u32, (Option<ProcessId>, u128)>,
    /// Additions that are in the DAG file.
    pub(crate) added: BTreeSet<u32>,
    pub(crate) was_stopped: bool,
    /// The number of the next end that the tool does not know.
    pub(crate) next_end: Option<u64>,
    /// Tasks whose ends this master has told.
    pub(crate) told: BTreeSet<String>,
    /// The master that has ended by itself, without tasks that it would have started later.
    pub(crate) ended: Option<ProcessId>,
}

impl Users {
    /// Returns whether all that tools add is in the DAG file.
    pub(crate) fn have_added_all(&self, plan: &Plan) -> bool {
        additions(plan).all(|(part, _)| self.added.contains(&part))
    }

    /// Returns whether the last master had a guest and has ended by itself: then the guest is done.
    pub(crate) fn has_ended_with(&self, guest: u32) -> bool {
        let joined = self.joined.get(&guest).and_then(|(master, _)| *master);
        joined.is_some() && joined == self.ended
    }
}

pub(crate) fn additions(plan: &Plan) -> impl Iterator<Item = (u32, u64)> {
    plan.parts.iter().filter_map(|part| match part.kind {
        PartKind::Addition { at } => Some((part.number, at)),
        _ => None,
    })
}

impl Users {
    /// There is another master.
    pub(crate) fn begin(&mut self) {
        self.asked.clear();
        self.told.clear();
        (self.was_stopped, self.next_end) = (false, None);
    }

    pub(crate) fn send(&mut self, what: What, request: impl FnOnce() -> Request) {
        if !self.asked.contains_key(&what)
            && let Some(asked) = self.tools.ask(request())
        {
            self.asked.insert(what, asked);
        }
    }
}
