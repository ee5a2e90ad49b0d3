//! The YAML catalog: `replicas:` with `lfn`, `pfns`, `checksum`, `metadata` and `regex`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Deserialize;

use super::lock::{self, Locked};
use super::{Catalog, CatalogError, Pattern};
use crate::entry::Entry;

/// A catalog in a YAML file. Changes drop comments, but no data: a file with unknown keys is rejected.
#[derive(Debug)]
pub struct YamlCatalog {
    path: PathBuf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    pegasus: Option<Scalar>,
    #[serde(default, rename = "x-pegasus")]
    origin: BTreeMap<String, Scalar>,
    #[serde(default)]
    replicas: Option<Vec<Replica>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Replica {
    lfn: String,
    #[serde(default)]
    pfns: Vec<Location>,
    #[serde(default)]
    checksum: BTreeMap<String, Scalar>,
    #[serde(default)]
    metadata: BTreeMap<String, Scalar>,
    #[serde(default)]
    regex: bool,
}

#[derive(Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Location {
    site: Option<String>,
    pfn: String,
}

/// The text of a string, number or truth value.
#[derive(Debug, Clone, PartialEq)]
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Any scalar is a string here, quoted or not.
        String::deserialize(deserializer).map(Self)
    }
}

impl YamlCatalog {
    /// Creates a catalog for `path`, which need not exist.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    fn read(&self) -> Result<Document, CatalogError> {
        let text = lock::read(&self.path)?;
        if text.trim().is_empty() {
            return Ok(Document::default());
        }
        // Catalogs may be large. The limits of the parser are for untrusted input.
        let options = serde_saphyr::options! { budget: None };
        serde_saphyr::from_str_with_options(&text, options).map_err(|error| CatalogError::Content {
            path: self.path.clone(),
            message: error.to_string(),
        })
    }
}

impl Replica {
    fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let pairs = |prefix: &str, map: &BTreeMap<String, Scalar>| {
            map.iter()
                .map(|(key, value)| (format!("{prefix}{key}"), value.0.clone()))
                .collect::<Vec<_>>()
        };
        let mut attributes: BTreeMap<_, _> = pairs("", &self.metadata).into_iter().collect();
        attributes.extend(
            pairs("checksum.", &self.checksum)
                .into_iter()
                .map(|(key, value)| {
                    // The line format has the algorithm in an attribute of its own.
                    if key == "checksum.sha256" {
                        ("checksum.value".to_owned(), value)
                    } else {
                        (key, value)
                    }
                }),
        );
        if self.checksum.contains_key("sha256") {
            attributes.insert("checksum.type".to_owned(), "sha256".to_owned());
        }
        if self.regex {
            attributes.insert("regex".to_owned(), "true".to_owned());
        }
        self.pfns.iter().map(move |location| Entry {
            lfn: self.lfn.clone(),
            pfn: location.pfn.clone(),
            site: location.site.clone(),
            attributes: attributes.clone(),
        })
    }

    fn add(&mut self, entry: &Entry) {
        let location = Location {
            site: entry.site.clone(),
            pfn: entry.pfn.clone(),
        };
        if !self.pfns.contains(&location) {
            self.pfns.push(location);
        }
        for (key, value) in &entry.attributes {
            match key.as_str() {
                "checksum.value" => drop(self.checksum.insert("sha256".to_owned(), Scalar(value.clone()))),
                "checksum.type" => {}
                "regex" => self.regex = value == "true",
                _ => drop(self.metadata.insert(key.clone(), Scalar(value.clone()))),
            }
        }
    }
}

impl Document {
    fn to_yaml(&self) -> String {
        let version = self
            .pegasus
            .as_ref()
            .map_or("5.0.4", |version| version.0.as_str());
        let mut out = format!("pegasus: {}\n", quoted(version));
        write_mapping(&mut out, "", "x-pegasus", &self.origin);
        let replicas = self.replicas.as_deref().unwrap_or_default();
        if replicas.is_empty() {
            out.push_str("replicas: []\n");
            return out;
        }
        out.push_str("replicas:\n");
        for replica in replicas {
            let _ = writeln!(out, "  - lfn: {}", quoted(&replica.lfn));
            out.push_str(if replica.pfns.is_empty() {
                "    pfns: []\n"
            } else {
                "    pfns:\n"
            });
            for location in &replica.pfns {
                let _ = match &location.site {
                    Some(site) => writeln!(
                        out,
                        "      - site: {}\n        pfn: {}",
                        quoted(site),
                        quoted(&location.pfn)
                    ),
                    None => writeln!(out, "      - pfn: {}", quoted(&location.pfn)),
                };
            }
            write_mapping(&mut out, "    ", "checksum", &replica.checksum);
            write_mapping(&mut out, "    ", "metadata", &replica.metadata);
            if replica.regex {
                out.push_str("    regex: true\n");
            }
        }
        out
    }
}

fn write_mapping(out: &mut String, indent: &str, key: &str, map: &BTreeMap<String, Scalar>) {
    if map.is_empty() {
        return;
    }
    let _ = writeln!(out, "{indent}{key}:");
    for (key, value) in map {
        let _ = writeln!(out, "{indent}  {}: {}", quoted(key), quoted(&value.0));
    }
}

/// Formats a double-quoted scalar.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control()
                || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}') =>
            {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

impl Catalog for YamlCatalog {
    fn insert(&mut self, entries: &[Entry]) -> Result<(), CatalogError> {
        let locked = Locked::wait(&self.path)?;
        let mut document = self.read()?;
        let replicas = document.replicas.get_or_insert_default();
        let mut positions: std::collections::HashMap<String, usize> = replicas
            .iter()
            .enumerate()
            .map(|(index, replica)| (replica.lfn.clone(), index))
            .collect();
        for entry in entries {
            let index = *positions.entry(entry.lfn.clone()).or_insert_with(|| {
                replicas.push(Replica {
                    lfn: entry.lfn.clone(),
                    ..Replica::default()
                });
                replicas.len() - 1
            });
            replicas[index].add(entry);
        }
        locked.replace(&document.to_yaml())
    }

    fn list(&mut self) -> Result<Vec<Entry>, CatalogError> {
        let document = self.read()?;
        Ok(document
            .replicas
            .unwrap_or_default()
            .iter()
            .flat_map(Replica::entries)
            .collect())
    }

    fn delete(&mut self, patterns: &[Pattern]) -> Result<usize, CatalogError> {
        let locked = Locked::wait(&self.path)?;
        let mut document = self.read()?;
        let replicas = document.replicas.get_or_insert_default();
        let mut removed = 0;
        replicas.retain_mut(|replica| {
            let before = replica.pfns.len();
            let lfn = replica.lfn.clone();
            replica.pfns.retain(|location| {
                let entry = Entry {
                    lfn: lfn.clone(),
                    pfn: location.pfn.clone(),
                    site: location.site.clone(),
                    ..Entry::default()
                };
                !patterns.iter().any(|pattern| pattern.matches(&entry))
            });
            removed += before - replica.pfns.len();
            before == replica.pfns.len() || !replica.pfns.is_empty()
        });
        if removed > 0 {
            locked.replace(&document.to_yaml())?;
        }
        Ok(removed)
    }
}
