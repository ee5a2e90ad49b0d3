//! Locations of files from all sources, highest priority first.

use std::collections::BTreeSet;
use std::path::Path;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::catalog::replica::{MAX_KEPT, Replica, ReplicaCatalog};
use crate::diagnostic::Diagnostic;
use crate::error::near_spelling;
use crate::model::{FileId, FileKind, Job, Link, Metadata, Workflow};

use super::names::job_name;

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
    /// `--output-map`: where the workflow around this one wants its files.
    pub(crate) output_map: Option<ReplicaCatalog>,
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
    /// Returns whether a source other than the replica catalog knows the file.
    pub(crate) fn knows_without_catalog(&self, lfn: &str) -> bool {
        self.overriding()
            .chain(self.adding())
            .any(|source| source.knows(lfn))
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
        self.for_each(|catalog| catalog.move_to_site(from, to));
    }
    /// Makes the relative paths among all locations absolute: see [`ReplicaCatalog::make_absolute`]. Returns
    /// a warning if there are any.
    pub(crate) fn make_absolute(&mut self, directories: &[&Path]) -> Option<String> {
        let (mut first, mut all) = (None, 0);
        self.for_each(|catalog| {
            if let Some((was, is, count)) = catalog.make_absolute(directories) {
                all += count;
                first.get_or_insert((was, is));
            }
        });
        let (was, is) = first?;
        let more = match all {
            1 => String::new(),
            _ => format!(", and so are {} others", all - 1),
        };
        Some(format!(
            "the location {was} of a file is a relative path: it is taken as {is}{more}"
        ))
    }
    fn for_each(&mut self, mut each: impl FnMut(&mut ReplicaCatalog)) {
        let lists = [
            &mut self.caches,
            &mut self.runs,
            &mut self.directories,
            &mut self.inherited,
        ];
        let lists = lists.into_iter().flatten();
        for catalog in lists
            .chain(&mut self.embedded)
            .chain(&mut self.output_map)
            .chain([&mut self.catalog, &mut self.storage])
        {
            each(catalog);
        }
    }
    fn all(&self) -> impl Iterator<Item = &ReplicaCatalog> {
        self.overriding().chain(self.adding()).chain([&self.catalog])
    }
    /// Returns advice about a file that no source knows. `before` is the number of such files already
    /// reported.
    pub(crate) fn advice(&self, lfn: &str, before: usize) -> Option<String> {
        if self.all().all(ReplicaCatalog::is_empty) {
            return (before == 0).then_some(
                "no location of any file is given: name a replica catalog (replicas.yml or rc.txt in the working \
                 directory, or the property pegasus.catalog.replica.file) or a directory with --input-dir"
                    .into(),
            );
        }
        if self.all().map(|source| source.entries().len()).sum::<usize>() >= MAX_KEPT {
            // It takes too long, and larger catalogs do not have all names.
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
pub(crate) fn missing_text(lfn: &str, job: &str, others: usize, hint: Option<&str>) -> Diagnostic {
    let mut text = format!("Can't determine a location to transfer input file for lfn {lfn} for job {job}");
    if others > 0 {
        text.push_str(&format!(" and {others} more jobs"));
    }
    Diagnostic {
        hint: hint.map(str::to_owned),
        ..Diagnostic::error(text)
    }
}

/// Maximum missing files for which similar names are searched.
pub(crate) const ADVISED: usize = 50;

/// Returns the inputs that no job writes and no source knows. Used when planning fails before the transfers
/// are added, so that one message lists all problems.
pub(crate) fn missing(
    workflow: &Workflow,
    kept: &[bool],
    replicas: &Replicas,
    prefix: &str,
) -> Vec<Diagnostic> {
    let mut written = vec![false; workflow.files.len()];
    for file_use in workflow.jobs.iter().flat_map(|job| &job.uses) {
        written[file_use.file] |= file_use.link.writes();
    }
    let mut found: Vec<(FileId, &Job, usize)> = Vec::new();
    let mut known: FxHashMap<FileId, Option<usize>> = FxHashMap::default();
    for (job, _) in workflow.jobs.iter().zip(kept).filter(|(_, kept)| **kept) {
        for file_use in &job.uses {
            let is_needed = file_use.link.reads() && file_use.link != Link::Checkpoint && !file_use.optional;
            let is_workflow =
                job.file == Some(file_use.file) && job.nested.as_ref().is_some_and(|n| n.path.is_some());
            // The planner itself adds images and programs, whose locations are in the transformation catalog.
            let is_added = matches!(file_use.kind, FileKind::Image | FileKind::Executable);
            if !is_needed || is_workflow || is_added || written[file_use.file] {
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

#[cfg(test)]
mod tests {
    use super::super::small_workflow::{catalog, workflow};
    use super::*;
    use crate::catalog::replica::ReplicaEntry;

    fn places(replicas: &Replicas, lfn: &str) -> Vec<String> {
        let found = replicas.lookup(lfn).map(|found| found.replicas);
        found.into_iter().flatten().map(|replica| replica.pfn).collect()
    }

    /// A source of each kind, all of which know `f`, and one file of their own.
    fn all() -> Replicas {
        Replicas {
            caches: vec![catalog(&["f=cache", "c=c"])],
            runs: vec![catalog(&["f=run", "r=r"])],
            directories: vec![catalog(&["f=dir", "d=d"])],
            embedded: Some(catalog(&["f=workflow", "w=w"])),
            inherited: vec![catalog(&["f=inherited", "i=i"])],
            catalog: catalog(&["f=catalog", "k=k"]),
            storage: catalog(&["f=storage", "s=s"]),
            ..Replicas::default()
        }
    }

    #[test]
    fn the_first_source_that_knows_a_file_wins() {
        let mut replicas = all();
        for file in ["c", "r", "d", "w", "i", "k"] {
            assert!(replicas.knows(file));
            assert_eq!(places(&replicas, file), [file]);
        }
        for file in ["s", "x"] {
            assert!(!replicas.knows(file), "{file}");
            assert_eq!(replicas.lookup(file), None);
        }
        let mut order = Vec::new();
        for clear in [
            |all: &mut Replicas| all.caches.clear(),
            |all: &mut Replicas| all.runs.clear(),
            |all: &mut Replicas| all.directories.clear(),
            |all: &mut Replicas| all.embedded = None,
            |all: &mut Replicas| all.inherited.clear(),
            |all: &mut Replicas| all.catalog = ReplicaCatalog::default(),
        ] {
            order.extend(places(&replicas, "f"));
            clear(&mut replicas);
        }
        assert_eq!(order, ["cache", "run", "dir", "workflow", "inherited", "catalog"]);
        assert_eq!(replicas.lookup("f"), None);
    }

    #[test]
    fn sources_that_add_are_merged_with_the_catalog() {
        let entry = |pfn: &str, key: &str| ReplicaEntry {
            lfn: "g".to_owned(),
            replicas: vec![Replica {
                pfn: pfn.to_owned(),
                site: None,
            }],
            metadata: [(key, pfn), ("both", pfn)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..ReplicaEntry::default()
        };
        let mut replicas = Replicas {
            caches: vec![catalog(&["f=cache", "f=same"])],
            embedded: Some(catalog(&["f=workflow"])),
            catalog: catalog(&["f=same", "f=catalog"]),
            cache_adds: true,
            ..Replicas::default()
        };
        assert_eq!(places(&replicas, "f"), ["workflow"], "the workflow does not add");
        replicas.workflow_adds = true;
        assert_eq!(places(&replicas, "f"), ["cache", "same", "workflow", "catalog"]);
        replicas.caches[0].push(entry("cache", "of cache")).unwrap();
        replicas.catalog.push(entry("catalog", "of catalog")).unwrap();
        let found = replicas.lookup("g").unwrap();
        let metadata: Vec<_> = found
            .metadata
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        assert_eq!(metadata, ["both=cache", "of cache=cache", "of catalog=catalog"]);
        replicas.cache_adds = false;
        let found = replicas.lookup("g").unwrap();
        assert_eq!((found.replicas.len(), found.metadata.len()), (1, 2));
        assert!(replicas.knows("g"));
    }

    #[test]
    fn a_source_without_locations_of_a_file_does_not_know_it() {
        let mut replicas = all();
        let nowhere = ReplicaEntry {
            lfn: "k".to_owned(),
            ..ReplicaEntry::default()
        };
        replicas.caches[0].push(nowhere).unwrap();
        assert_eq!(places(&replicas, "k"), ["k"]);
    }

    #[test]
    fn equal_locations_are_one() {
        let replica = |pfn: &str, site: Option<&str>| Replica {
            pfn: pfn.to_owned(),
            site: site.map(str::to_owned),
        };
        let all = [
            replica("a", Some("x")),
            replica("a", None),
            replica("a", Some("x")),
            replica("b", Some("x")),
        ];
        for (count, left) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3)] {
            let mut some = all[..count].to_vec();
            drop_equal(&mut some);
            assert_eq!(some.len(), left);
        }
    }

    #[test]
    fn locations_are_moved_in_all_sources() {
        let mut replicas = all();
        replicas.move_to_site(&["local".to_owned()].into(), "there");
        for file in ["c", "r", "d", "w", "i", "k"] {
            let found = replicas.lookup(file).unwrap();
            assert_eq!(found.replicas[0].site.as_deref(), Some("there"), "{file}");
        }
        let stored = replicas.storage.lookup("s").unwrap();
        assert_eq!(stored.replicas[0].site.as_deref(), Some("there"));
    }

    #[test]
    fn advice_names_similar_files() {
        let empty = Replicas::default();
        assert!(empty.advice("f", 0).unwrap().contains("--input-dir"));
        assert_eq!(empty.advice("f", 1), None, "once is enough");
        let mut replicas = Replicas {
            catalog: catalog(&["results.txt", "other"]),
            ..Replicas::default()
        };
        let pattern = ReplicaEntry {
            lfn: "result.tx".to_owned(),
            regex: true,
            ..ReplicaEntry::default()
        };
        replicas.catalog.push(pattern).unwrap();
        let advice = Some("the replica catalogs have results.txt".to_owned());
        assert_eq!(replicas.advice("result.txt", 3), advice);
        assert_eq!(replicas.advice("something", 0), None);
        let many: Vec<String> = (0..100_001).map(|n| format!("unlike{n}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        replicas.directories.push(catalog(&many));
        assert_eq!(
            replicas.advice("result.txt", 3),
            None,
            "the search would take too long"
        );
    }

    #[test]
    fn inputs_without_a_location_are_listed_once() {
        let workflow = workflow("A: x known y > z\nB: x x z ?o *c >\nC: y\nD: x w\nE: x");
        let replicas = Replicas {
            catalog: catalog(&["known"]),
            ..Replicas::default()
        };
        let messages = |kept: &[bool]| -> Vec<String> {
            let found = missing(&workflow, kept, &replicas, "p_");
            found.into_iter().map(|problem| problem.message).collect()
        };
        let text = |lfn: &str, job: &str, more: &str| {
            format!(
                "Can't determine a location to transfer input file for lfn {lfn} for job p_work_{job}{more}"
            )
        };
        assert_eq!(
            messages(&[true; 5]),
            [
                text("x", "A", " and 4 more jobs"),
                text("y", "A", " and 1 more jobs"),
                text("w", "D", "")
            ]
        );
        assert_eq!(
            messages(&[false, true, true, false, false]),
            [text("x", "B", ""), text("y", "C", "")]
        );
    }

    #[test]
    fn the_first_missing_files_have_advice() {
        let names: Vec<String> = (0..=ADVISED).map(|n| format!("missing{n:03}")).collect();
        let workflow = workflow(&format!("A: {}", names.join(" ")));
        let near: Vec<String> = names.iter().map(|name| format!("{name}s")).collect();
        let near: Vec<&str> = near.iter().map(String::as_str).collect();
        let replicas = Replicas {
            catalog: catalog(&near),
            ..Replicas::default()
        };
        let found = missing(&workflow, &[true], &replicas, "");
        let advised = found.iter().filter(|problem| problem.hint.is_some()).count();
        assert_eq!((found.len(), advised), (ADVISED + 1, ADVISED));
        assert_eq!(found[ADVISED].hint, None);
    }
}
