//! Locations of files from all sources, highest priority first (section 4.4 of the planner's specification).

use std::collections::BTreeSet;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::catalog::replica::{Replica, ReplicaCatalog};
use crate::error::near_spelling;
use crate::error::{Cause, Problem};
use crate::model::{FileId, FileKind, Job, Link, Metadata, Workflow};

use super::mapping::job_name;

/// Locations of one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Locations {
    /// Locations in the order of their source.
    pub(crate) replicas: Vec<Replica>,
    /// Metadata of the catalog, checksums included.
    pub(crate) metadata: Metadata,
}

/// Sources, highest priority first.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    /// Cache files, unless they only add.
    pub(crate) caches: Vec<ReplicaCatalog>,
    /// Files registered by the runs of `--reuse`.
    pub(crate) runs: Vec<ReplicaCatalog>,
    /// `--input-dir`.
    pub(crate) directories: Vec<ReplicaCatalog>,
    /// The catalog in the workflow.
    pub(crate) embedded: Option<ReplicaCatalog>,
    /// `--inherited-rc-files`.
    pub(crate) inherited: Vec<ReplicaCatalog>,
    /// The replica catalog.
    pub(crate) catalog: ReplicaCatalog,
    /// Output locations for the storage mapper Replica; not used for inputs.
    pub(crate) storage: ReplicaCatalog,
    /// Caches add to the other sources instead of overriding them.
    pub(crate) cache_adds: bool,
    /// The catalog in the workflow adds as well.
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
    /// Returns whether any source knows the file.
    pub(crate) fn knows(&self, lfn: &str) -> bool {
        self.all().any(|source| source.knows(lfn))
    }
    /// Returns the locations of a file from the first source that knows it. Sources that add are merged with
    /// the replica catalog.
    pub(crate) fn lookup(&self, lfn: &str) -> Option<Locations> {
        let mut sources = self.overriding().filter_map(|source| source.lookup(lfn));
        if let Some(found) = sources.find(|found| !found.replicas.is_empty()) {
            let mut replicas = found.replicas;
            drop_equal(&mut replicas);
            return Some(Locations {
                replicas,
                metadata: found.metadata.cloned().unwrap_or_default(),
            });
        }
        let mut all = Locations::default();
        for found in self
            .adding()
            .chain([&self.catalog])
            .filter_map(|source| source.lookup(lfn))
        {
            all.replicas.extend(found.replicas);
            for (key, value) in found.metadata.into_iter().flatten() {
                all.metadata.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        drop_equal(&mut all.replicas);
        (!all.replicas.is_empty()).then_some(all)
    }
    /// Moves the locations on some sites to another site.
    pub(crate) fn move_to_site(&mut self, from: &BTreeSet<String>, to: &str) {
        let lists = [
            &mut self.caches,
            &mut self.runs,
            &mut self.directories,
            &mut self.inherited,
        ];
        let lists = lists.into_iter().flatten();
        for catalog in lists
            .chain(&mut self.embedded)
            .chain([&mut self.catalog, &mut self.storage])
        {
            catalog.move_to_site(from, to);
        }
    }
    fn all(&self) -> impl Iterator<Item = &ReplicaCatalog> {
        self.overriding().chain(self.adding()).chain([&self.catalog])
    }
    /// Returns advice about a file that no source knows. `before` is the number of such files already
    /// reported.
    pub(crate) fn advice(&self, lfn: &str, before: usize) -> Option<String> {
        /// Searching larger catalogs for similar names takes too long.
        const SEARCHED: usize = 100_000;
        if self.all().all(ReplicaCatalog::is_empty) {
            return (before == 0).then_some(
                "no location of any file is given: name a replica catalog (replicas.yml or rc.txt in the working \
                 directory, or the property pegasus.catalog.replica.file) or a directory with --input-dir"
                    .into(),
            );
        }
        if self.all().map(|source| source.entries().len()).sum::<usize>() > SEARCHED {
            return None;
        }
        let names = self.all().flat_map(|source| source.entries());
        near_spelling(
            lfn,
            names.filter(|entry| !entry.regex).map(|entry| entry.lfn.as_str()),
        )
        .map(|near| format!("the replica catalogs have {near}"))
    }
}

/// Keeps the first of equal locations.
fn drop_equal(replicas: &mut Vec<Replica>) {
    let mut seen = FxHashSet::default();
    let keep: Vec<bool> = match replicas.len() {
        0 | 1 => return,
        _ => replicas
            .iter()
            .map(|r| seen.insert((r.pfn.as_str(), r.site.as_deref())))
            .collect(),
    };
    let mut keep = keep.into_iter();
    replicas.retain(|_| keep.next().unwrap_or(true));
}

/// Returns the message about a file without location.
pub(crate) fn missing_text(lfn: &str, job: &str, others: usize, hint: Option<&str>) -> Problem {
    let mut text = format!("Can't determine a location to transfer input file for lfn {lfn} for job {job}");
    if others > 0 {
        text.push_str(&format!(" and {others} more jobs"));
    }
    Problem {
        cause: Cause::Replica,
        message: text,
        hint: hint.map(str::to_owned),
    }
}

/// Maximum missing files for which similar names are searched.
pub(crate) const ADVISED: usize = 50;

/// Returns the inputs that no job writes and no source knows. Used when planning fails before the transfers
/// are added, so that one message lists all problems.
pub(crate) fn missing(workflow: &Workflow, kept: &[bool], replicas: &Replicas, prefix: &str) -> Vec<Problem> {
    let mut written = vec![false; workflow.files.len()];
    for file_use in workflow.jobs.iter().flat_map(|job| &job.uses) {
        written[file_use.file] |= file_use.link.writes();
    }
    let mut found: Vec<(FileId, &Job, usize)> = Vec::new();
    let mut known: FxHashMap<FileId, Option<usize>> = FxHashMap::default();
    for (job, _) in workflow.jobs.iter().zip(kept).filter(|(_, kept)| **kept) {
        for file_use in &job.uses {
            let is_needed = file_use.link.reads() && file_use.link != Link::Checkpoint && !file_use.optional;
            // The planner itself has added images.
            if !is_needed || written[file_use.file] || file_use.kind == FileKind::Image {
                continue;
            }
            let place = known.entry(file_use.file).or_insert_with(|| {
                let is_known = replicas.knows(workflow.files.name(file_use.file));
                (!is_known).then(|| {
                    found.push((file_use.file, job, 0));
                    found.len() - 1
                })
            });
            if let Some(place) = *place
                && !std::ptr::eq(found[place].1, job)
            {
                found[place].2 += 1;
            }
        }
    }
    let text = |(n, (file, job, others)): (usize, &(FileId, &Job, usize))| {
        let lfn = workflow.files.name(*file);
        let name = job_name(prefix, &job.transformation.name, &job.id);
        let advice = if n < ADVISED {
            replicas.advice(lfn, n)
        } else {
            None
        };
        missing_text(lfn, &name, *others, advice.as_deref())
    };
    found.iter().enumerate().map(text).collect()
}
