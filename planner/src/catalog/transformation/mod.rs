//! Transformation catalogs: locations of programs on sites.

pub(crate) mod container;
mod text;
pub(crate) mod yaml;

pub use container::Container;

use std::path::Path;

use rustc_hash::FxHashSet;

use crate::catalog::site::SysInfo;
use crate::catalog::{
    CatalogSource, Loaded, SearchDirs, Syntax, detect_syntax, files_below, missing_catalog, read, read_yaml,
    unknown_kind,
};
use crate::diagnostic::Diagnostic;
use crate::error::{InputErrors, near_spelling};
use crate::expand::ExpandEnv;
use crate::model::{Hook, TransformationName};
use crate::profiles::Profiles;
use crate::properties::Properties;

/// Entries in document order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransformationCatalog {
    /// Entries, one per transformation and site.
    pub entries: Vec<TransformationEntry>,
    /// Compound transformations: name, and names of required executables.
    pub compounds: Vec<(TransformationName, Vec<TransformationName>)>,
    /// Containers; of two with the same name, the later one counts.
    pub containers: Vec<Container>,
    /// Warnings about the file.
    pub warnings: Vec<Diagnostic>,
}

/// A program on a site.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformationEntry {
    /// Name.
    pub name: TransformationName,
    /// Site.
    pub site: String,
    /// Path (installed) or URL (stageable).
    pub pfn: String,
    /// Installed or stageable.
    pub kind: TransformationKind,
    /// System of the program.
    pub sysinfo: SysInfo,
    /// Profiles of the transformation, overridden by those of the site entry.
    pub profiles: Profiles,
    /// Metadata in document order.
    pub metadata: Vec<(String, String)>,
    /// Hooks.
    pub hooks: Vec<Hook>,
    /// Container, if any.
    pub container: Option<String>,
    /// A staged program bypasses the staging site.
    pub bypass: bool,
}

/// How a program becomes available at a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransformationKind {
    /// It is installed.
    #[default]
    Installed,
    /// The workflow stages it.
    Stageable,
}

impl TransformationCatalog {
    /// Returns the entries of a transformation in document order.
    pub fn entries<'a>(
        &'a self,
        name: &'a TransformationName,
    ) -> impl Iterator<Item = &'a TransformationEntry> {
        self.entries.iter().filter(move |e| e.name == *name)
    }
    /// Appends entries of `other` and removes existing entries for the same name and site.
    pub fn extend(&mut self, other: TransformationCatalog) {
        let replaced: FxHashSet<(&TransformationName, &str)> =
            other.entries.iter().map(|e| (&e.name, e.site.as_str())).collect();
        self.entries
            .retain(|e| !replaced.contains(&(&e.name, e.site.as_str())));
        self.compounds
            .retain(|(name, _)| other.compounds.iter().all(|(n, _)| n != name));
        self.entries.extend(other.entries);
        self.compounds.extend(other.compounds);
        self.containers.extend(other.containers);
        self.warnings.extend(other.warnings);
    }
    /// Returns a container.
    pub fn container(&self, name: &str) -> Option<&Container> {
        self.containers.iter().rfind(|container| container.name == name)
    }
    /// Returns a known name similar to `name`.
    pub fn near(&self, name: &TransformationName) -> Option<String> {
        let known: Vec<String> = self.entries.iter().map(|e| e.name.to_string()).collect();
        near_spelling(&name.to_string(), known.iter().map(String::as_str)).map(str::to_owned)
    }
}

/// A stageable program whose location is neither a path nor a URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is stageable, so it must be an absolute path or a URL")]
pub(crate) struct BadLocation(String);

/// Normalizes the location of a program: a path if it is installed, a URL if it is stageable.
///
/// # Errors
/// A stageable program whose location is neither a path nor a URL.
pub(crate) fn normal_pfn(kind: TransformationKind, pfn: &str) -> Result<String, BadLocation> {
    match kind {
        TransformationKind::Installed => Ok(match pfn.strip_prefix("file://") {
            // The authority of `file://host/path` is dropped with the scheme.
            Some(rest) => rest.find('/').map_or(rest, |slash| &rest[slash..]).to_owned(),
            None => pfn.to_owned(),
        }),
        TransformationKind::Stageable if pfn.starts_with('/') => Ok(format!("file://{pfn}")),
        TransformationKind::Stageable if pfn.contains('/') => Ok(pfn.to_owned()),
        TransformationKind::Stageable => Err(BadLocation(pfn.to_owned())),
    }
}

impl TransformationKind {
    fn parse(text: &str) -> Option<TransformationKind> {
        if text.eq_ignore_ascii_case("installed") {
            Some(TransformationKind::Installed)
        } else if text.eq_ignore_ascii_case("stageable") || text.eq_ignore_ascii_case("static_binary") {
            Some(TransformationKind::Stageable)
        } else {
            None
        }
    }
}

/// Reads the file that the properties name, else a file with a default name (`transformations.yml`, `tc.txt`)
/// in these directories. Without one, the catalog is empty.
///
/// # Errors
/// An unreadable file; all problems of the file. A named file in the text format that does not exist causes a
/// warning.
pub fn load_from_properties(
    properties: &Properties,
    dirs: SearchDirs<'_>,
    env: &ExpandEnv,
) -> Result<Loaded<TransformationCatalog>, InputErrors> {
    let source = CatalogSource {
        properties,
        key: "pegasus.catalog.transformation",
        default_names: &["transformations.yml", "tc.txt"],
        dirs,
        // As in Pegasus.
        may_be_missing: |kind| kind.eq_ignore_ascii_case("text"),
    };
    let mut loaded = source.load(env, load)?;
    let missing = loaded.missing.iter().map(|file| missing_catalog(file));
    loaded.catalog.warnings.extend(missing);
    Ok(loaded)
}

/// Reads a transformation catalog. `kind` is the value of `pegasus.catalog.transformation`; `None` detects
/// the type.
///
/// # Errors
/// All problems of the file.
pub fn load(path: &Path, kind: Option<&str>, env: &ExpandEnv) -> Result<TransformationCatalog, InputErrors> {
    let kind = kind.unwrap_or_default().to_ascii_lowercase();
    if kind == "directory" {
        return from_directory(path, &SysInfo::default());
    }
    parse(path, &read(path, env)?, Some(&kind))
}

/// Reads the text of a transformation catalog with variables already expanded. `path` is for messages and for
/// detection of the type.
///
/// # Errors
/// All problems of the text.
pub fn parse(path: &Path, text: &str, kind: Option<&str>) -> Result<TransformationCatalog, InputErrors> {
    let kind = kind.unwrap_or_default().to_ascii_lowercase();
    let syntax = match kind.as_str() {
        "" => detect_syntax(path, text),
        "yaml" => Syntax::Yaml,
        "text" => Syntax::Text,
        other => {
            return Err(unknown_kind(
                path,
                other,
                "transformation",
                "YAML, Text, Directory",
            ));
        }
    };
    match syntax {
        Syntax::Xml => Err(
            Diagnostic::in_file(path, "a transformation catalog cannot be XML")
                .with_hint("write it as YAML or as text")
                .into(),
        ),
        Syntax::Yaml => read_yaml(path, text, yaml::read),
        Syntax::Text => text::read(path, text),
    }
}

/// Makes a catalog of all executable files below a directory: stageable transformations on the site `local`,
/// named by relative path. Files without execute permission cause a warning.
///
/// # Errors
/// An unreadable directory.
pub fn from_directory(directory: &Path, sysinfo: &SysInfo) -> Result<TransformationCatalog, InputErrors> {
    let mut catalog = TransformationCatalog::default();
    for file in files_below(directory)? {
        if file.mode & 0o111 == 0 {
            catalog.warnings.push(Diagnostic::in_file(
                &file.path,
                "no execute permission, the file is ignored",
            ));
            continue;
        }
        catalog.entries.push(TransformationEntry {
            name: TransformationName {
                namespace: None,
                name: file.relative,
                version: None,
            },
            site: "local".into(),
            pfn: format!("file://{}", file.path.display()),
            kind: TransformationKind::Stageable,
            sysinfo: sysinfo.clone(),
            profiles: Profiles::default(),
            metadata: Vec::new(),
            hooks: Vec::new(),
            container: None,
            bypass: false,
        });
    }
    Ok(catalog)
}

#[cfg(test)]
mod tests;
