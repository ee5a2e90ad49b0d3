//! Locations of files from all sources, strongest first (section 4.4 of the planner's specification).

use crate::catalog::replica::{Replica, ReplicaCatalog};
use crate::model::Metadata;

/// Where one file is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Locations {
    /// Locations in the order of their source.
    pub(crate) replicas: Vec<Replica>,
    /// Metadata of the catalog, checksums included.
    pub(crate) metadata: Metadata,
}

/// Sources in the order in which they are asked.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    /// Cache files, unless they only add.
    pub(crate) caches: Vec<ReplicaCatalog>,
    /// What the runs of `--reuse` have registered.
    pub(crate) runs: Vec<ReplicaCatalog>,
    /// `--input-dir`.
    pub(crate) directories: Vec<ReplicaCatalog>,
    /// The catalog in the workflow.
    pub(crate) embedded: Option<ReplicaCatalog>,
    /// `--inherited-rc-files`.
    pub(crate) inherited: Vec<ReplicaCatalog>,
    /// The replica catalog.
    pub(crate) catalog: ReplicaCatalog,
    /// Where outputs go, for the storage mapper Replica; not asked for inputs.
    pub(crate) storage: ReplicaCatalog,
    /// Caches add to the other sources instead of overriding them.
    pub(crate) cache_adds: bool,
    /// So does the catalog in the workflow.
    pub(crate) workflow_adds: bool,
}

impl Replicas {
    fn overriding(&self) -> impl Iterator<Item = &ReplicaCatalog> {
        let caches = self.caches.iter().filter(|_| !self.cache_adds);
        let embedded = self.embedded.iter().filter(|_| !self.workflow_adds);
        caches
            .chain(&self.runs)
            .chain(&self.directories)
            .chain(embedded)
            .chain(&self.inherited)
    }
    fn adding(&self) -> impl Iterator<Item = &ReplicaCatalog> {
        let caches = self.caches.iter().filter(|_| self.cache_adds);
        let embedded = self.embedded.iter().filter(|_| self.workflow_adds);
        caches.chain(embedded)
    }
    /// Whether any source knows the file.
    pub(crate) fn knows(&self, lfn: &str) -> bool {
        self.overriding()
            .chain(self.adding())
            .chain([&self.catalog])
            .any(|source| source.knows(lfn))
    }
    /// Locations of a file: of the first source that knows it; sources that add are merged with the
    /// replica catalog.
    pub(crate) fn lookup(&self, lfn: &str) -> Option<Locations> {
        let mut sources = self.overriding().filter_map(|source| source.lookup(lfn));
        if let Some(found) = sources.find(|found| !found.replicas.is_empty()) {
            return Some(Locations {
                replicas: found.replicas,
                metadata: found.metadata.cloned().unwrap_or_default(),
            });
        }
        let mut all = Locations::default();
        for found in self
            .adding()
            .chain([&self.catalog])
            .filter_map(|source| source.lookup(lfn))
        {
            for replica in found.replicas {
                if !all.replicas.contains(&replica) {
                    all.replicas.push(replica);
                }
            }
            for (key, value) in found.metadata.into_iter().flatten() {
                all.metadata.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        (!all.replicas.is_empty()).then_some(all)
    }
}
