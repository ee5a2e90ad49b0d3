//! Which hosts have which files that tasks need.

use std::collections::{BTreeMap, BTreeSet};

/// The files of a round.
#[derive(Default)]
pub(crate) struct Files {
    /// Hosts and keys of what they have.
    pub(crate) has: BTreeSet<(usize, String)>,
    /// How often each was fetched from outside.
    pub(crate) fetched: BTreeMap<String, u32>,
    /// Hosts and keys of what tasks bring now.
    pub(crate) brought: BTreeSet<(usize, String)>,
    /// Copies that go on, by the host that gives and the key.
    pub(crate) given: BTreeMap<(usize, String), usize>,
}

impl Files {
    /// The jobs of a host are gone.
    pub(crate) fn release(&mut self, host: usize) {
        self.brought.retain(|(known, _)| *known != host);
    }

    /// A host has lost its files.
    pub(crate) fn forget(&mut self, host: usize) {
        self.has.retain(|(known, _)| *known != host);
    }
}
