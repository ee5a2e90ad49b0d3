//! Site catalogs: places where jobs run and files are stored.

pub(crate) mod hosted;
mod xml;
pub(crate) mod yaml;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::catalog::{
    CatalogSource, Loaded, SearchDirs, Syntax, detect_syntax, missing_catalog, read, read_yaml, unknown_kind,
};
use crate::diagnostic::Diagnostic;
use crate::error::{InputErrors, near_spelling};
use crate::expand::ExpandEnv;
use crate::keys::Checker;
use crate::profiles::{Namespace, Profiles};
use crate::properties::Properties;

/// The site that Pegasus adds to each site catalog: the pool of HTCondor.
const CONDOR_POOL: &str = "condorpool";

/// Sites by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SiteCatalog {
    /// Sites in name order.
    pub sites: BTreeMap<String, Site>,
    /// There is no site catalog, neither a file nor one inside the workflow.
    pub is_absent: bool,
    /// A catalog is named, but its file does not exist.
    pub is_missing: bool,
    /// Names of undefined sites that are further names of the site `local`.
    pub names_of_local: BTreeSet<String>,
    /// Warnings about the file.
    pub warnings: Vec<Diagnostic>,
}

/// Architecture and operating system. Those of sites and transformations must be equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysInfo {
    /// Architecture, default `x86_64`.
    pub arch: String,
    /// Operating system in lower case, default `linux`.
    pub os: String,
    /// Release of the operating system.
    pub os_release: Option<String>,
    /// Version of the operating system.
    pub os_version: Option<String>,
    /// C library (XML catalogs).
    pub glibc: Option<String>,
}

impl Default for SysInfo {
    fn default() -> Self {
        SysInfo {
            arch: "x86_64".into(),
            os: "linux".into(),
            os_release: None,
            os_version: None,
            glibc: None,
        }
    }
}

/// One site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Site {
    /// Name (handle).
    pub name: String,
    /// Architecture and operating system.
    pub sysinfo: SysInfo,
    /// Directories, at most one of each kind.
    pub directories: BTreeMap<DirectoryKind, Directory>,
    /// Idle nodes of the compute gateway, if given (for HEFT).
    pub idle_nodes: Option<u32>,
    /// Total nodes of the compute gateway, if given (for HEFT).
    pub total_nodes: Option<u32>,
    /// Ways to batch systems and pools.
    pub grids: Vec<Grid>,
    /// Profiles of the site.
    pub profiles: Profiles,
    /// Profiles that are laid over them for jobs with this tag (profile `pegasus::tag`).
    pub tags: BTreeMap<String, Profiles>,
}

/// A way to a batch system or a pool: where HTCondor sends jobs of the site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grid {
    /// Type in lower case: `batch`, `condor`.
    pub kind: String,
    /// Host.
    pub contact: String,
    /// Batch system in lower case.
    pub scheduler: String,
    /// It is for auxiliary jobs only.
    pub is_auxiliary: bool,
}

/// Purpose of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DirectoryKind {
    /// Work directories, visible on all nodes.
    SharedScratch,
    /// Outputs, visible on all nodes.
    SharedStorage,
    /// Work directories on one node.
    LocalScratch,
    /// Outputs on the storage host.
    LocalStorage,
}

/// A directory of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// Path on the site.
    pub path: String,
    /// Servers for access from outside.
    pub servers: Vec<FileServer>,
}

/// A URL of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileServer {
    /// URL prefix and mount point, concatenated.
    pub url: String,
    /// Permitted operation.
    pub operation: Operation,
}

/// Operation that a file server permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// Reading and writing.
    #[default]
    All,
    /// Reading.
    Get,
    /// Writing.
    Put,
}

impl Grid {
    /// Sets a key of a catalog; others mean nothing here.
    fn set(&mut self, key: &str, value: &str) {
        let value = value.trim();
        match key {
            "type" => self.kind = value.to_ascii_lowercase(),
            "contact" => self.contact = value.to_owned(),
            "scheduler" => self.scheduler = value.to_ascii_lowercase(),
            "jobtype" => self.is_auxiliary = !value.eq_ignore_ascii_case("compute"),
            _ => {}
        }
    }
}

impl SiteCatalog {
    /// Returns the site with a name.
    pub fn get(&self, name: &str) -> Option<&Site> {
        self.sites.get(name)
    }
    /// Returns whether a name means this machine although no catalog has it: `condorpool`, which every
    /// Pegasus knows without a catalog, and without a site catalog any name.
    pub fn is_undefined_local(&self, name: &str) -> bool {
        self.get(name).is_none() && (name == CONDOR_POOL || self.is_absent) && name != "*"
    }
    /// Returns whether a name is neither that of a site nor similar to one, and so no slip of the pen. A file
    /// that is missing could have such a site.
    pub fn is_new_name(&self, name: &str) -> bool {
        if self.is_missing {
            return false;
        }
        let known = self.sites.keys().map(String::as_str);
        let near = near_spelling(name, known.clone().chain([CONDOR_POOL]));
        near.is_none() && name != "*" && !known.into_iter().any(|site| site == name)
    }
    /// Adds sites. A site replaces an existing one of the same name.
    pub fn replace_with(&mut self, other: SiteCatalog) {
        self.sites.extend(other.sites);
        self.warnings.extend(other.warnings);
    }
    /// Lays sites over those that are there: what they say wins, the rest stays.
    fn lay_over(&mut self, other: SiteCatalog) {
        for (name, site) in other.sites {
            match self.sites.get_mut(&name) {
                Some(known) => known.lay_over(site),
                None => {
                    self.sites.insert(name, site);
                }
            }
        }
        self.warnings.extend(other.warnings);
    }
    /// Adds profiles from the properties `pegasus.catalog.site.sites.<site>.profiles.<namespace>.<key>`. They
    /// win over those of the file.
    ///
    /// # Errors
    /// An invalid namespace or value. An unknown site causes a warning.
    pub fn apply_properties(&mut self, properties: &Properties) -> Result<(), InputErrors> {
        const PREFIX: &str = "pegasus.catalog.site.sites.";
        let mut checker = Checker::default();
        let mut problems = Vec::new();
        for (key, value) in properties.with_prefix(PREFIX) {
            let full = format!("{PREFIX}{key}");
            // Site names may contain dots, but not ".profiles.".
            let parts = key
                .split_once(".profiles.")
                .and_then(|(site, rest)| Some((site, rest.split_once('.')?)));
            let Some((site, (namespace, key))) = parts else {
                problems.push(properties.bad_key(&full, "must be SITE.profiles.NAMESPACE.KEY"));
                continue;
            };
            let Some(namespace) = Namespace::parse(namespace) else {
                let (message, hint) = Namespace::unknown(namespace);
                problems.push(properties.bad_key(&full, &message).with_hint(hint));
                continue;
            };
            let (file, position) = properties.origin(&full);
            if let Err(error) = checker.check(file, namespace, key, value, position.unwrap_or_default()) {
                problems.push(Diagnostic { position, ..error });
                continue;
            }
            match self.sites.get_mut(site) {
                Some(site) => site.profiles.set(namespace, key, value),
                None => self.warnings.push(properties.bad_key(
                    &full,
                    &format!("names the site {site}, which is not in the site catalog"),
                )),
            }
        }
        self.warnings.append(&mut checker.warnings);
        InputErrors::check(problems)
    }
}

impl Site {
    fn lay_over(&mut self, other: Site) {
        if other.sysinfo != SysInfo::default() {
            self.sysinfo = other.sysinfo;
        }
        self.directories.extend(other.directories);
        self.idle_nodes = other.idle_nodes.or(self.idle_nodes);
        self.total_nodes = other.total_nodes.or(self.total_nodes);
        if !other.grids.is_empty() {
            self.grids = other.grids;
        }
        self.profiles.overlay(&other.profiles);
        for (tag, profiles) in other.tags {
            self.tags.entry(tag).or_default().overlay(&profiles);
        }
    }
}

impl Directory {
    /// Returns the URL of the first server for the operation, else of the first server for all operations.
    pub fn url(&self, operation: Operation) -> Option<&str> {
        let of = |wanted| self.servers.iter().find(|s| s.operation == wanted);
        of(operation)
            .or_else(|| of(Operation::All))
            .map(|server| server.url.as_str())
    }
}

/// Reads the file that the properties name, else a file with a default name (`sites.yml`, `sites.xml`) in
/// these directories, and lays it over the hosted catalog that the properties name, if any. Without both, the
/// catalog is empty.
///
/// # Errors
/// An unreadable file; all problems of a file; there is no copy of the hosted catalog. A named file that does
/// not exist causes a warning.
pub fn load_from_properties(
    properties: &Properties,
    dirs: SearchDirs<'_>,
    env: &ExpandEnv,
) -> Result<Loaded<SiteCatalog>, InputErrors> {
    let source = CatalogSource {
        properties,
        key: "pegasus.catalog.site",
        default_names: &["sites.yml", "sites.xml"],
        dirs,
        may_be_missing: |_| true,
    };
    let mut loaded = source.load(env, load)?;
    let missing = loaded.missing.iter().map(|file| missing_catalog(file));
    loaded.catalog.warnings.extend(missing);
    if let Some(mut hosted) = hosted::load_copy(properties, dirs.working, env)? {
        hosted.lay_over(std::mem::take(&mut loaded.catalog));
        loaded.catalog = hosted;
    }
    Ok(loaded)
}

/// Reads a site catalog. `kind` is the value of `pegasus.catalog.site`; `None` detects the type.
///
/// # Errors
/// All problems of the file.
pub fn load(path: &Path, kind: Option<&str>, env: &ExpandEnv) -> Result<SiteCatalog, InputErrors> {
    parse(path, &read(path, env)?, kind)
}

/// Reads the text of a site catalog with variables already expanded. `path` is for messages and for detection
/// of the type.
///
/// # Errors
/// All problems of the text.
pub fn parse(path: &Path, text: &str, kind: Option<&str>) -> Result<SiteCatalog, InputErrors> {
    let syntax = match kind.unwrap_or_default().to_ascii_lowercase().as_str() {
        "" => detect_syntax(path, text),
        "yaml" => Syntax::Yaml,
        "xml" | "xml3" | "xml4" => Syntax::Xml,
        other => return Err(unknown_kind(path, other, "site", "YAML, XML")),
    };
    match syntax {
        Syntax::Xml => xml::read(path, text),
        Syntax::Yaml | Syntax::Text => read_yaml(path, text, yaml::read),
    }
}

#[cfg(test)]
mod tests;
