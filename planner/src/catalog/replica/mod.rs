//! Replica catalogs: locations of logical files.

mod database;
mod metadata;
mod source;
mod text;
pub(crate) mod yaml;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

use regex::RegexSet;
use rustc_hash::FxHashMap;

use crate::catalog::{Syntax, detect_syntax, files_below, is_surely_text, read, read_yaml, unknown_kind};
use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::expand::ExpandEnv;
use crate::model::{Files, JobKind, Metadata, Workflow};
use crate::pattern::{Pattern, PatternError};

pub use source::{Source, from_run, load_from_properties, load_other, load_with_metadata};

/// Types of catalogs that are single files.
const FILE_KINDS: &[&str] = &["YAML", "File", "Regex", "SimpleFile", "Meta"];

/// Entries in document order, with an index by logical name.
#[derive(Clone, Debug, Default)]
pub struct ReplicaCatalog {
    entries: Vec<ReplicaEntry>,
    /// Index of entries that are not patterns.
    by_name: FxHashMap<String, u32>,
    patterns: Vec<(Pattern, u32)>,
    /// All patterns in one set, built on first use. `None` if the set is too large or a pattern needs
    /// lookaround.
    all_patterns: OnceLock<Option<RegexSet>>,
    /// Warnings about the file.
    pub warnings: Vec<Diagnostic>,
}

impl PartialEq for ReplicaCatalog {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

/// Locations of one logical file, or of all files that match a pattern.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaEntry {
    /// Logical file name, or a pattern that must match the whole name.
    pub lfn: String,
    /// `lfn` is a pattern. `[0]`, `[1]`, … in the locations refer to its groups.
    pub regex: bool,
    /// Locations in document order.
    pub replicas: Vec<Replica>,
    /// Metadata, including checksums (`checksum.type`, `checksum.value`).
    pub metadata: Metadata,
}

/// One location of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// URL or bare path, as written.
    pub pfn: String,
    /// Site of the location.
    pub site: Option<String>,
}

/// Options for a directory as replica catalog.
#[derive(Clone, Debug)]
pub struct DirectoryOptions {
    /// Site of the entries (`pegasus.catalog.replica.directory.site`).
    pub site: String,
    /// Prefix of the absolute path (`pegasus.catalog.replica.directory.url.prefix`).
    pub url_prefix: String,
    /// Use base names instead of relative paths as logical names (`….directory.flat.lfn`).
    pub flat_lfn: bool,
}

impl Default for DirectoryOptions {
    fn default() -> Self {
        DirectoryOptions {
            site: "local".into(),
            url_prefix: "file://".into(),
            flat_lfn: false,
        }
    }
}

/// Result of a lookup.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found<'a> {
    /// Locations in document order, with group references replaced.
    pub replicas: Vec<Replica>,
    /// Metadata.
    pub metadata: Option<&'a Metadata>,
}

/// Number of entries up to which a catalog keeps all, for advice on names that are nearly right.
pub(crate) const MAX_KEPT: usize = 100_000;

/// Which entries of a large catalog are kept.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    files: &'a Files,
    /// Only these files are asked for.
    only_these: bool,
}

impl<'a> Wanted<'a> {
    /// The files of a workflow, and all others if its sub-workflows may need them.
    pub fn by(workflow: &'a Workflow) -> Self {
        Wanted {
            files: &workflow.files,
            only_these: workflow.jobs.iter().all(|job| job.kind == JobKind::Compute),
        }
    }
    /// Everything in a file, but only these files in a database.
    pub fn any(files: &'a Files) -> Self {
        Wanted {
            files,
            only_these: false,
        }
    }
}

/// An invalid pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pattern `{pattern}` is invalid: {reason}")]
pub struct BadPattern {
    pattern: String,
    reason: PatternError,
}

impl ReplicaCatalog {
    /// Looks up a logical file: the entry with its name, then the first pattern that matches the whole name.
    pub fn lookup(&self, lfn: &str) -> Option<Found<'_>> {
        let mut found = self.by_name.get(lfn).map(|&number| {
            let entry = &self.entries[number as usize];
            Found {
                replicas: entry.replicas.clone(),
                metadata: Some(&entry.metadata),
            }
        });
        if let Some(first) = self.first_match(lfn) {
            let (pattern, number) = &self.patterns[first];
            let entry = &self.entries[*number as usize];
            if let Some(groups) = pattern.groups(lfn) {
                let found = found.get_or_insert_with(|| Found {
                    replicas: Vec::new(),
                    metadata: Some(&entry.metadata),
                });
                for replica in &entry.replicas {
                    let filled = Replica {
                        pfn: fill_groups(&replica.pfn, &groups),
                        site: replica.site.clone(),
                    };
                    if !found.replicas.contains(&filled) {
                        found.replicas.push(filled);
                    }
                }
            }
        }
        found
    }
    /// Returns whether [`ReplicaCatalog::lookup`] finds a location.
    pub fn knows(&self, lfn: &str) -> bool {
        let named = self.by_name.get(lfn).map(|&n| &self.entries[n as usize]);
        named.is_some_and(|entry| !entry.replicas.is_empty())
            || self
                .first_match(lfn)
                .is_some_and(|n| !self.entries[self.patterns[n].1 as usize].replicas.is_empty())
    }
    /// Adds metadata to the entry with a name, if there is one. Existing values win.
    fn add_metadata(&mut self, lfn: &str, metadata: Metadata) {
        if let Some(&number) = self.by_name.get(lfn) {
            let known = &mut self.entries[number as usize].metadata;
            for (key, value) in metadata {
                known.entry(key).or_insert(value);
            }
        }
    }
    /// Appends all entries of another catalog.
    ///
    /// # Errors
    /// None: patterns in a catalog are valid.
    fn append(&mut self, other: ReplicaCatalog) -> Result<(), BadPattern> {
        for entry in other.entries {
            self.push(entry)?;
        }
        self.warnings.extend(other.warnings);
        Ok(())
    }
    /// Returns the index in `patterns` of the first match.
    fn first_match(&self, lfn: &str) -> Option<usize> {
        if self.patterns.is_empty() {
            return None;
        }
        let all = self.all_patterns.get_or_init(|| {
            let all: Option<Vec<&str>> = self
                .patterns
                .iter()
                .map(|(pattern, _)| pattern.linear())
                .collect();
            RegexSet::new(all?).ok()
        });
        match all {
            Some(all) => all.matches(lfn).iter().next(),
            None => self
                .patterns
                .iter()
                .position(|(pattern, _)| pattern.is_match(lfn)),
        }
    }
    /// Appends an entry. Locations of an existing name are added to its entry.
    ///
    /// # Errors
    /// An invalid pattern.
    pub fn push(&mut self, entry: ReplicaEntry) -> Result<(), BadPattern> {
        let number = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        if entry.regex {
            let pattern = Pattern::whole(&entry.lfn).map_err(|reason| BadPattern {
                pattern: entry.lfn.clone(),
                reason,
            })?;
            self.patterns.push((pattern, number));
            self.all_patterns = OnceLock::new();
        } else if let Some(&known) = self.by_name.get(&entry.lfn) {
            let known = &mut self.entries[known as usize];
            for replica in entry.replicas {
                if !known.replicas.contains(&replica) {
                    known.replicas.push(replica);
                }
            }
            known.metadata.extend(entry.metadata);
            return Ok(());
        } else {
            self.by_name.insert(entry.lfn.clone(), number);
        }
        self.entries.push(entry);
        Ok(())
    }
    /// Appends an entry, unless the catalog is large and the file is not wanted.
    ///
    /// # Errors
    /// An invalid pattern.
    fn push_if(&mut self, wanted: Wanted<'_>, entry: ReplicaEntry) -> Result<(), BadPattern> {
        let is_unwanted = wanted.only_these && !entry.regex && wanted.files.find(&entry.lfn).is_none();
        if is_unwanted && self.entries.len() >= MAX_KEPT {
            return Ok(());
        }
        self.push(entry)
    }
    /// Moves the locations on some sites to another site.
    pub fn move_to_site(&mut self, from: &BTreeSet<String>, to: &str) {
        for replica in self.entries.iter_mut().flat_map(|entry| &mut entry.replicas) {
            if replica.site.as_ref().is_some_and(|site| from.contains(site)) {
                replica.site = Some(to.to_owned());
            }
        }
    }
    /// Makes the relative paths among the locations absolute: below the first of these directories that has
    /// the file, else below the first one. Returns what the first one was and is now, and how many there are.
    pub fn make_absolute(&mut self, directories: &[&Path]) -> Option<(String, String, usize)> {
        let mut found: Option<(String, String, usize)> = None;
        for replica in self.entries.iter_mut().flat_map(|entry| &mut entry.replicas) {
            let Some(path) = relative_path(&replica.pfn) else {
                continue;
            };
            let below = |directory: &&Path| directory.join(path);
            let there = directories.iter().map(below).find(|file| file.exists());
            let Some(absolute) = there.or_else(|| directories.first().map(below)) else {
                continue;
            };
            let absolute = absolute.to_string_lossy().into_owned();
            match &mut found {
                Some((.., count)) => *count += 1,
                None => found = Some((replica.pfn.clone(), absolute.clone(), 1)),
            }
            replica.pfn = absolute;
        }
        found
    }
    /// Returns the entries in document order.
    pub fn entries(&self) -> &[ReplicaEntry] {
        &self.entries
    }
    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Returns the path of a location that is one, and relative. What begins with a variable is none.
fn relative_path(pfn: &str) -> Option<&str> {
    let path = pfn.strip_prefix("file:").unwrap_or(pfn);
    let path = path.strip_prefix("./").unwrap_or(path);
    let is_relative = !path.is_empty() && !path.starts_with(['/', '$']);
    let has_scheme = path
        .split_once(':')
        .is_some_and(|(scheme, _)| !scheme.contains('/'));
    (is_relative && !has_scheme).then_some(path)
}

/// Replaces `[N]` by group N. Numbers without a group are kept.
fn fill_groups(pfn: &str, groups: &[&str]) -> String {
    let mut out = String::with_capacity(pfn.len() + 32);
    let mut rest = pfn;
    while let Some(open) = rest.find('[') {
        let (before, from) = rest.split_at(open);
        out.push_str(before);
        let group = from[1..].split_once(']').and_then(|(number, after)| {
            let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            let number: usize = digits.then(|| number.parse().ok()).flatten()?;
            Some((*groups.get(number)?, after))
        });
        match group {
            Some((text, after)) => {
                out.push_str(text);
                rest = after;
            }
            None => {
                out.push('[');
                rest = &from[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Reads a replica catalog. `kind` is the value of `pegasus.catalog.replica`; `None` detects the type. Cache
/// files have the type `SimpleFile`.
///
/// # Errors
/// All problems of the file.
pub fn load(
    path: &Path,
    kind: Option<&str>,
    env: &ExpandEnv,
    wanted: Wanted<'_>,
) -> Result<ReplicaCatalog, InputErrors> {
    let is_large = path
        .metadata()
        .is_ok_and(|data| data.is_file() && data.len() > text::PIECE);
    if is_large && has_lines(path, kind) {
        return text::load(path, env, wanted);
    }
    parse(path, &read(path, env)?, kind, wanted)
}

/// Returns whether a file is read line by line.
fn has_lines(path: &Path, kind: Option<&str>) -> bool {
    match kind.unwrap_or_default().to_ascii_lowercase().as_str() {
        "file" | "regex" | "simplefile" => true,
        "" => is_surely_text(path),
        _ => false,
    }
}

/// Reads the text of a replica catalog with variables already expanded. `path` is for messages and for
/// detection of the type.
///
/// # Errors
/// All problems of the text.
pub fn parse(
    path: &Path,
    text: &str,
    kind: Option<&str>,
    wanted: Wanted<'_>,
) -> Result<ReplicaCatalog, InputErrors> {
    let kind = kind.unwrap_or_default().to_ascii_lowercase();
    let syntax = match kind.as_str() {
        "" => detect_syntax(path, text),
        "yaml" => Syntax::Yaml,
        "file" | "regex" | "simplefile" => Syntax::Text,
        "meta" => return metadata::read(path, text, wanted),
        other => return Err(unknown_kind(path, other, "replica", &FILE_KINDS.join(", "))),
    };
    match syntax {
        Syntax::Xml => Err(Diagnostic::in_file(path, "a replica catalog cannot be XML")
            .with_hint("write it as YAML or as text")
            .into()),
        Syntax::Yaml => read_yaml(path, text, |yaml| yaml::read(yaml, wanted)),
        Syntax::Text => text::read(path, text, wanted),
    }
}

/// Makes a catalog of all files below a directory, named by relative path.
///
/// # Errors
/// An unreadable directory.
pub fn from_directory(directory: &Path, options: &DirectoryOptions) -> Result<ReplicaCatalog, InputErrors> {
    let mut catalog = ReplicaCatalog::default();
    for file in files_below(directory)? {
        let lfn = match file.relative.rsplit_once('/') {
            Some((_, base)) if options.flat_lfn => base.to_owned(),
            _ => file.relative,
        };
        let entry = ReplicaEntry {
            lfn,
            replicas: vec![Replica {
                pfn: format!("{}{}", options.url_prefix, file.path.display()),
                site: Some(options.site.clone()),
            }],
            ..ReplicaEntry::default()
        };
        if let Err(error) = catalog.push(entry) {
            return Err(Diagnostic::in_file(&file.path, error.to_string()).into());
        }
    }
    Ok(catalog)
}

#[cfg(test)]
mod tests;
