//! Locations of outputs on the output sites: `pegasus.dir.storage.mapper`.

use rustc_hash::FxHashMap;

use crate::catalog::replica::ReplicaCatalog;
use crate::error::{Cause, Problem};
use crate::error::{InputError, near_spelling};
use crate::model::{FileId, TransferFlag, Workflow};
use crate::properties::Properties;
use crate::request::Request;

use super::sites::Sites;
use crate::exec::Place;

const KEY: &str = "pegasus.dir.storage.mapper";
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
    /// Locations of a replica catalog; with `lenient`, unknown outputs stay in the work directory.
    Replica {
        /// `pegasus.dir.storage.mapper.replica.disable.exceptions`.
        lenient: bool,
        /// The catalog is the map of the workflow around this one: it counts on every site, once, and what it
        /// does not name goes to the output sites.
        is_map: bool,
    },
}

/// Returns the mapper of the properties and of `--output-map`.
pub(crate) fn mapper(
    properties: &Properties,
    request: &Request,
    problems: &mut Vec<InputError>,
) -> StorageMapper {
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
            if properties
                .get("pegasus.dir.storage.mapper.replica.file")
                .is_none_or(|f| f.trim().is_empty())
            {
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
            StorageMapper::Replica {
                lenient,
                is_map: request.output_map.is_some(),
            }
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
    catalog: &'a ReplicaCatalog,
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
        catalog: &'a ReplicaCatalog,
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
            catalog,
            levels: levels(numbers.len() as u64),
            numbers,
            unknown: Vec::new(),
        }
    }

    /// Returns the location of a file on an output site. `None` stands for its name in the storage directory,
    /// the usual case.
    pub(crate) fn targets(&mut self, file: FileId, lfn: &str, output: u16) -> Option<Vec<Target>> {
        let storage = &self.sites.outputs[usize::from(output)];
        let place = |url: &str| Place::Url(url.into(), storage.name.as_str().into());
        match self.mapper {
            StorageMapper::Flat | StorageMapper::Fixed(_) => None,
            StorageMapper::Hashed => {
                let directory = directory(self.numbers.get(&file).copied().unwrap_or(0), self.levels);
                let url = |base: &str| format!("{base}/{directory}{lfn}");
                let put = url(&storage.put);
                Some(vec![Target {
                    put: place(&put),
                    get: place(&url(&storage.get)),
                    url: put,
                }])
            }
            StorageMapper::Replica { is_map, .. } => {
                let found = self
                    .catalog
                    .lookup(lfn)
                    .map(|found| found.replicas)
                    .unwrap_or_default();
                if *is_map && found.is_empty() && !storage.put.is_empty() {
                    return None;
                }
                let is_here = |site: Option<&String>| match is_map {
                    true => output == 0,
                    false => site.is_none_or(|site| *site == storage.name),
                };
                let is_known = !found.is_empty();
                let targets: Vec<Target> = found
                    .into_iter()
                    .filter(|replica| is_here(replica.site.as_ref()))
                    .map(|replica| Target {
                        put: place(&replica.pfn),
                        get: place(&replica.pfn),
                        url: replica.pfn,
                    })
                    .collect();
                if targets.is_empty() && !(*is_map && is_known) {
                    self.unknown.push((file, output));
                }
                Some(targets)
            }
        }
    }

    /// Reports outputs that the mapper Replica does not know: as problems, or as a warning if `lenient`.
    pub(crate) fn unknown(&self, workflow: &Workflow) -> (Vec<Problem>, Option<String>) {
        const KEY: &str = "pegasus.dir.storage.mapper.replica.file";
        let Some((first, _)) = self.unknown.first() else {
            return (Vec::new(), None);
        };
        if let StorageMapper::Replica { lenient: true, .. } = self.mapper {
            let warning = format!(
                "{} outputs stay in the work directory, since the catalog of {KEY} does not know them, for example {}",
                self.unknown.len(),
                workflow.files.name(*first)
            );
            return (Vec::new(), Some(warning));
        }
        let problem = |(file, output): &(FileId, u16)| {
            Cause::Replica.problem(format!(
                "the output {} has no location on the site {} in the catalog of {KEY}",
                workflow.files.name(*file),
                self.sites.outputs[usize::from(*output)].name
            ))
        };
        (self.unknown.iter().map(problem).collect(), None)
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
