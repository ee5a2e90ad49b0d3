//! Replicas: where logical files are.

mod text;
pub(crate) mod yaml;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use regex::{Regex, RegexSet};
use rustc_hash::FxHashMap;

use crate::catalog::{Loaded, Syntax, expansion, files_below, guess, locate, read, read_yaml, unknown_kind};
use crate::error::{InputError, InputErrors};
use crate::expand::ExpandEnv;
use crate::model::Metadata;
use crate::properties::Properties;

/// Entries in document order, with an index by logical name.
#[derive(Clone, Debug, Default)]
pub struct ReplicaCatalog {
    entries: Vec<ReplicaEntry>,
    /// Entries that are no patterns.
    by_name: FxHashMap<String, u32>,
    patterns: Vec<(Regex, u32)>,
    /// All patterns at once, made when first asked; `None` if they are too large together.
    all_patterns: OnceLock<Option<RegexSet>>,
    /// What is odd in the file but no error.
    pub warnings: Vec<InputError>,
}

impl PartialEq for ReplicaCatalog {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

/// Locations of one logical file (or of all that match a pattern).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaEntry {
    /// Logical file name, or a pattern that must match the whole of it.
    pub lfn: String,
    /// `lfn` is a pattern; `[0]`, `[1]`, … in the locations stand for its groups.
    pub regex: bool,
    /// Locations in document order.
    pub replicas: Vec<Replica>,
    /// Metadata, checksums included (`checksum.type`, `checksum.value`).
    pub metadata: Metadata,
}

/// One location of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replica {
    /// URL or bare path, as written.
    pub pfn: String,
    /// Site that it is on.
    pub site: Option<String>,
}

/// How the files of a directory become replicas.
#[derive(Clone, Debug)]
pub struct DirectoryOptions {
    /// Site of the entries (`pegasus.catalog.replica.directory.site`).
    pub site: String,
    /// Put before the absolute path (`pegasus.catalog.replica.directory.url.prefix`).
    pub url_prefix: String,
    /// The logical name is the base name, not the relative path (`….directory.flat.lfn`).
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

/// What a catalog knows of one logical file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found<'a> {
    /// Locations in document order, group references filled in.
    pub replicas: Vec<Replica>,
    /// Metadata.
    pub metadata: Option<&'a Metadata>,
}

/// A pattern that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pattern `{pattern}` cannot be used: {reason}")]
pub struct BadPattern {
    pattern: String,
    reason: String,
}

impl ReplicaCatalog {
    /// What is known of a logical file: the entry with its name, behind it what the first pattern gives that
    /// matches the whole name.
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
            if let Some(groups) = pattern.captures(lfn) {
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
    /// Whether [`ReplicaCatalog::lookup`] finds something.
    pub fn knows(&self, lfn: &str) -> bool {
        self.by_name.contains_key(lfn) || self.first_match(lfn).is_some()
    }
    /// Position in `patterns` of the first that matches.
    fn first_match(&self, lfn: &str) -> Option<usize> {
        if self.patterns.is_empty() {
            return None;
        }
        let all = self
            .all_patterns
            .get_or_init(|| RegexSet::new(self.patterns.iter().map(|(pattern, _)| pattern.as_str())).ok());
        match all {
            Some(all) => all.matches(lfn).iter().next(),
            None => self
                .patterns
                .iter()
                .position(|(pattern, _)| pattern.is_match(lfn)),
        }
    }
    /// Adds an entry behind the others; locations of a name that is there already are added to it.
    ///
    /// # Errors
    /// A pattern that is none, or that only engines with backtracking know (look-around, references back).
    pub fn push(&mut self, entry: ReplicaEntry) -> Result<(), BadPattern> {
        let number = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        if entry.regex {
            let pattern = Regex::new(&format!("^(?:{})$", entry.lfn)).map_err(|error| BadPattern {
                pattern: entry.lfn.clone(),
                // The last line of the engine's picture of the pattern says what is wrong.
                reason: error
                    .to_string()
                    .lines()
                    .last()
                    .unwrap_or_default()
                    .trim_start_matches("error: ")
                    .to_owned(),
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
    /// Entries in document order.
    pub fn entries(&self) -> &[ReplicaEntry] {
        &self.entries
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Replaces `[N]` by the group N; a number without a group stays as it is.
fn fill_groups(pfn: &str, groups: &regex::Captures<'_>) -> String {
    let mut out = String::with_capacity(pfn.len() + 32);
    let mut rest = pfn;
    while let Some(open) = rest.find('[') {
        let (before, from) = rest.split_at(open);
        out.push_str(before);
        let group = from[1..].split_once(']').and_then(|(number, after)| {
            let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            let number: usize = digits.then(|| number.parse().ok()).flatten()?;
            (number < groups.len()).then(|| (groups.get(number).map_or("", |m| m.as_str()), after))
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

/// Reads the file that the properties name or that lies in `working_dir` under a default name
/// (`replicas.yml`, `rc.txt`), or the directory they name; without one, an empty catalog.
///
/// # Errors
/// A named file that cannot be read; all problems of the file.
pub fn load_from_properties(
    properties: &Properties,
    working_dir: &Path,
    env: &ExpandEnv,
) -> Result<Loaded<ReplicaCatalog>, InputErrors> {
    const KEY: &str = "pegasus.catalog.replica";
    let kind = properties.get(KEY);
    if kind.is_some_and(|kind| kind.eq_ignore_ascii_case("directory")) {
        let default = DirectoryOptions::default();
        let text = |key: &str| properties.get(key).filter(|v| !v.is_empty()).map(str::to_owned);
        let options = DirectoryOptions {
            site: text("pegasus.catalog.replica.directory.site").unwrap_or(default.site),
            url_prefix: text("pegasus.catalog.replica.directory.url.prefix").unwrap_or(default.url_prefix),
            flat_lfn: properties.get_bool("pegasus.catalog.replica.directory.flat.lfn", false)?,
        };
        let directory = text("pegasus.catalog.replica.directory").ok_or_else(|| {
            properties.bad_key(
                KEY,
                "Directory needs the property pegasus.catalog.replica.directory",
            )
        })?;
        return Ok(Loaded {
            catalog: from_directory(&working_dir.join(directory), &options)?,
            path: None::<PathBuf>,
        });
    }
    let Some(path) = locate(properties, KEY, working_dir, &["replicas.yml", "rc.txt"]) else {
        return Ok(Loaded::default());
    };
    let env = expansion(properties, KEY, env)?;
    Ok(Loaded {
        catalog: load(&path, kind, &env)?,
        path: Some(path),
    })
}

/// Reads a replica catalog; `kind` is the value of `pegasus.catalog.replica`, without it the type is
/// guessed. Cache files are of kind `SimpleFile`.
///
/// # Errors
/// All problems of the file.
pub fn load(path: &Path, kind: Option<&str>, env: &ExpandEnv) -> Result<ReplicaCatalog, InputErrors> {
    let kind = kind.unwrap_or_default().to_ascii_lowercase();
    let text = read(path, env)?;
    let mut quotation = true;
    let syntax = match kind.as_str() {
        "" => guess(path, &text),
        "yaml" => Syntax::Yaml,
        "file" | "regex" => Syntax::Text,
        "simplefile" => {
            quotation = false;
            Syntax::Text
        }
        other => {
            let known = "YAML, File, Regex, SimpleFile, Directory";
            return Err(unknown_kind(path, other, "replica", known));
        }
    };
    match syntax {
        Syntax::Xml => Err(InputError::file(path, "a replica catalog cannot be XML")
            .with_hint("write it as YAML or as text")
            .into()),
        Syntax::Yaml => read_yaml(path, &text, yaml::read),
        Syntax::Text => text::read(path, &text, quotation),
    }
}

/// Every file below a directory, by its relative path.
///
/// # Errors
/// A directory that cannot be read.
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
            return Err(InputError::file(&file.path, error.to_string()).into());
        }
    }
    Ok(catalog)
}

#[cfg(test)]
mod tests;
