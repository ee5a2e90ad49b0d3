//! Locations of outputs on the output sites: `pegasus.dir.storage.mapper`.

use rustc_hash::FxHashMap;

use crate::catalog::replica::ReplicaCatalog;
use crate::diagnostic::Diagnostic;
use crate::error::near_spelling;
use crate::model::{FileId, TransferFlag, Workflow};
use crate::properties::Properties;

use super::replicas::Replicas;
use super::sites::{OutputSite, Sites};
use crate::exec::Place;

const KEY: &str = "pegasus.dir.storage.mapper";
/// Property with the file of the mapper Replica.
pub(crate) const MAP_FILE: &str = "pegasus.dir.storage.mapper.replica.file";
const NAMES: &[&str] = &["Flat", "Fixed", "Hashed", "Replica"];

/// Entries of a directory of the mapper Hashed.
const PER_DIRECTORY: u64 = 254;
/// What its numbers begin with, and how many entries a file counts as when levels are counted.
const OFFSET: u64 = 30;
/// See [`OFFSET`].
const PER_FILE: u64 = 16;

/// Layout of outputs on the output site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StorageMapper {
    /// By name, in the storage directory.
    Flat,
    /// By name, all below one URL.
    Fixed(String),
    /// Spread over numbered directories.
    Hashed,
    /// Locations of a replica catalog.
    Replica {
        /// Unknown outputs stay in the work directory:
        /// `pegasus.dir.storage.mapper.replica.disable.exceptions`.
        lenient: bool,
    },
}

/// Returns the mapper of the properties.
pub(crate) fn mapper(properties: &Properties, problems: &mut Vec<Diagnostic>) -> StorageMapper {
    let name = properties.get(KEY).unwrap_or_default().trim();
    match name.to_ascii_lowercase().as_str() {
        "" | "flat" => StorageMapper::Flat,
        "hashed" => StorageMapper::Hashed,
        "fixed" => {
            let url = properties
                .get("pegasus.dir.storage.mapper.fixed.url")
                .unwrap_or_default()
                .trim();
            if url.is_empty() {
                problems.push(properties.bad_value(
                    KEY,
                    "needs the property pegasus.dir.storage.mapper.fixed.url to be set if it is Fixed",
                ));
            }
            StorageMapper::Fixed(url.trim_end_matches('/').to_owned())
        }
        "replica" => {
            if properties.get(MAP_FILE).is_none_or(|f| f.trim().is_empty()) {
                problems.push(properties.bad_value(
                    KEY,
                    "needs the property pegasus.dir.storage.mapper.replica.file to be set if it is Replica",
                ));
            }
            let key = "pegasus.dir.storage.mapper.replica.disable.exceptions";
            let lenient = properties.get_bool(key, false).unwrap_or_else(|errors| {
                problems.extend(errors.problems().iter().cloned());
                false
            });
            StorageMapper::Replica { lenient }
        }
        _ => {
            let known = format!("mappers are {}", NAMES.join(", "));
            let hint = match near_spelling(name, NAMES.iter().copied()) {
                Some(near) => format!("did you mean {near}? {known}"),
                None => known,
            };
            problems.push(properties.bad_value(KEY, "must name a mapper").with_hint(hint));
            StorageMapper::Flat
        }
    }
}

/// Location of one output on one output site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The URL to write to.
    pub(crate) url: String,
    /// The place to write to.
    pub(crate) put: Place,
    /// The URL to read from.
    pub(crate) get: Place,
}

/// Locations of all outputs.
pub(crate) struct Storage<'a> {
    sites: &'a Sites,
    mapper: &'a StorageMapper,
    /// Locations of the mapper Replica.
    catalog: &'a ReplicaCatalog,
    /// The map of the workflow around this one. It counts beside the mapper, and on every site, once.
    map: Option<&'a ReplicaCatalog>,
    /// Number of each output in the workflow, for Hashed.
    numbers: FxHashMap<FileId, u64>,
    levels: u32,
    /// Outputs without a location in the catalog of the mapper Replica.
    unknown: Vec<(FileId, u16)>,
}

impl<'a> Storage<'a> {
    /// Creates the locations for a workflow.
    pub(crate) fn new(
        workflow: &Workflow,
        sites: &'a Sites,
        mapper: &'a StorageMapper,
        replicas: &'a Replicas,
    ) -> Self {
        let mut numbers = FxHashMap::default();
        if *mapper == StorageMapper::Hashed {
            // Deleted jobs count as well, so that a file has the same directory in every plan.
            for file_use in workflow.jobs.iter().flat_map(|job| &job.uses) {
                if file_use.link.writes() && (file_use.transfer != TransferFlag::Not || file_use.register) {
                    let next = numbers.len() as u64;
                    numbers.entry(file_use.file).or_insert(next);
                }
            }
        }
        Storage {
            sites,
            mapper,
            catalog: &replicas.storage,
            map: replicas.output_map.as_ref(),
            levels: levels(numbers.len() as u64),
            numbers,
            unknown: Vec::new(),
        }
    }

    /// Returns the locations of a file on an output site. `None` stands for its name in the storage
    /// directory, the usual case.
    pub(crate) fn targets(&mut self, file: FileId, lfn: &str, output: u16) -> Option<Vec<Target>> {
        let storage = &self.sites.outputs[usize::from(output)];
        let mut targets = Vec::new();
        let mapped = self.map.and_then(|map| map.lookup(lfn));
        let mapped = mapped.map(|found| found.replicas).unwrap_or_default();
        let is_mapped = !mapped.is_empty();
        if output == 0 {
            targets.extend(
                mapped
                    .into_iter()
                    .map(|replica| target(storage, replica.pfn.clone(), replica.pfn)),
            );
        }
        match self.mapper {
            StorageMapper::Replica { .. } => {
                let found = self.catalog.lookup(lfn);
                let here = found.into_iter().flat_map(|found| found.replicas);
                for replica in here.filter(|r| r.site.as_ref().is_none_or(|site| *site == storage.name)) {
                    if targets.iter().all(|other: &Target| other.url != replica.pfn) {
                        targets.push(target(storage, replica.pfn.clone(), replica.pfn));
                    }
                }
                if targets.is_empty() && !is_mapped && self.map.is_some() && !storage.put.is_empty() {
                    return None;
                }
            }
            _ if is_mapped => {}
            // The directories are for the workflow around this one alone.
            _ if storage.put.is_empty() => {}
            StorageMapper::Flat | StorageMapper::Fixed(_) => return None,
            StorageMapper::Hashed => {
                let directory = directory(self.numbers.get(&file).copied().unwrap_or(0), self.levels);
                let url = |base: &str| format!("{base}/{directory}{lfn}");
                targets.push(target(storage, url(&storage.put), url(&storage.get)));
            }
        }
        if targets.is_empty() && !is_mapped {
            self.unknown.push((file, output));
        }
        Some(targets)
    }

    /// Reports outputs that the mapper Replica does not know: as problems, or as a warning if `lenient`.
    pub(crate) fn unknown(&self, workflow: &Workflow) -> (Vec<Diagnostic>, Option<String>) {
        let Some((first, _)) = self.unknown.first() else {
            return (Vec::new(), None);
        };
        if self.map.is_some() || matches!(self.mapper, StorageMapper::Replica { lenient: true }) {
            let warning = format!(
                "{} outputs stay in the work directory, since the catalog of {MAP_FILE} does not know them, for example {}",
                self.unknown.len(),
                workflow.files.name(*first)
            );
            return (Vec::new(), Some(warning));
        }
        let problem = |(file, output): &(FileId, u16)| {
            Diagnostic::error(format!(
                "the output {} has no location on the site {} in the catalog of {MAP_FILE}",
                workflow.files.name(*file),
                self.sites.outputs[usize::from(*output)].name
            ))
        };
        (self.unknown.iter().map(problem).collect(), None)
    }
}

/// The location of an output on a site, by its URLs to write to and to read from.
fn target(storage: &OutputSite, put: String, get: String) -> Target {
    let place = |url: &str| Place::Url(url.into(), storage.name.as_str().into());
    Target {
        put: place(&put),
        get: place(&get),
        url: put,
    }
}

/// Returns the levels of directories for a number of files.
fn levels(files: u64) -> u32 {
    let mut total = files.saturating_mul(PER_FILE).saturating_add(OFFSET);
    let mut levels = 0;
    while total > PER_DIRECTORY {
        total /= PER_DIRECTORY;
        levels += 1;
    }
    levels
}

/// Returns the directory of a file with a trailing slash; empty without levels.
fn directory(number: u64, levels: u32) -> String {
    let mut rest = number + OFFSET;
    let mut parts = Vec::new();
    for _ in 0..levels {
        rest /= PER_DIRECTORY;
        parts.push(format!("{:03}/", rest % PER_DIRECTORY));
    }
    parts.reverse();
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_need_no_directories() {
        assert_eq!([0, 5, 14, 15, 4030, 4031].map(levels), [0, 0, 0, 1, 1, 1]);
        assert_eq!(levels(5_000), 2);
        assert_eq!(directory(7, 0), "");
        assert_eq!(
            [0, 223, 224, 478].map(|n| directory(n, 1)),
            ["000/", "000/", "001/", "002/"]
        );
        assert_eq!(directory(254 * 254, 2), "001/000/");
    }
}
