//! The three catalogs: sites, transformations, replicas.

pub mod replica;
pub mod site;
pub mod transformation;

use std::io::Read as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::expand::{ExpandEnv, expand};
use crate::properties::Properties;
use crate::syntax::text;
use crate::syntax::yaml::{Node, Yaml};

/// A catalog with its file.
#[derive(Clone, Debug, Default)]
pub struct Loaded<T> {
    /// The catalog.
    pub catalog: T,
    /// Its file, which is copied into the submit directory.
    pub path: Option<PathBuf>,
    /// A file that a property names and that does not exist.
    pub missing: Option<PathBuf>,
}

/// Directories in which catalogs are found.
#[derive(Clone, Copy, Debug)]
pub struct SearchDirs<'a> {
    /// Working directory: relative names start here, and default names are searched here first.
    pub working: &'a Path,
    /// Directory of the workflow, where default names are searched next.
    pub workflow: Option<&'a Path>,
}

impl<'a> From<&'a Path> for SearchDirs<'a> {
    /// The working directory only.
    fn from(working: &'a Path) -> Self {
        SearchDirs {
            working,
            workflow: None,
        }
    }
}

/// Properties of a catalog that is a single file.
struct CatalogSource<'a> {
    properties: &'a Properties,
    /// Property with the type.
    key: &'a str,
    default_names: &'a [&'a str],
    dirs: SearchDirs<'a>,
    /// Returns whether a catalog of this type may be named and not exist.
    may_be_missing: fn(&str) -> bool,
}

impl CatalogSource<'_> {
    /// Reads the catalog. Without a file, it is empty.
    fn load<T: Default>(
        &self,
        env: &ExpandEnv,
        load: impl FnOnce(&Path, Option<&str>, &ExpandEnv) -> Result<T, InputErrors>,
    ) -> Result<Loaded<T>, InputErrors> {
        let Some(path) = locate(self.properties, self.key, self.dirs, self.default_names) else {
            return Ok(Loaded::default());
        };
        let kind = self.properties.get(self.key);
        if !path.exists() && (self.may_be_missing)(kind.unwrap_or_default()) {
            return Ok(Loaded {
                missing: Some(path),
                ..Loaded::default()
            });
        }
        let env = expansion(self.properties, self.key, env)?;
        Ok(Loaded {
            catalog: load(&path, kind, &env)?,
            path: Some(path),
            missing: None,
        })
    }
}

/// Returns the warning about a catalog that a property names and that does not exist.
fn missing_catalog(path: &Path) -> Diagnostic {
    Diagnostic::in_file(path, "no such catalog: the plan is made without it")
}

/// Returns the file of a catalog: that of the property `<key>.file`, else the first default name that exists
/// in the working directory, then beside the workflow.
fn locate(properties: &Properties, key: &str, dirs: SearchDirs<'_>, defaults: &[&str]) -> Option<PathBuf> {
    if let Some(named) = properties.get(&format!("{key}.file")).filter(|f| !f.is_empty()) {
        return Some(dirs.working.join(named.strip_prefix("file://").unwrap_or(named)));
    }
    let mut dirs = [Some(dirs.working), dirs.workflow].into_iter().flatten();
    dirs.find_map(|dir| {
        let mut paths = defaults.iter().map(|name| dir.join(name));
        paths.find(|path| path.exists())
    })
}

/// Reads the text of a catalog and expands its variables.
fn read(path: &Path, env: &ExpandEnv) -> Result<String, InputErrors> {
    let text = text::load(path)?;
    Ok(expand(path, &text, env)?.into_owned())
}

/// Returns the variables to expand: none if the property `<key>.expand` is false.
fn expansion(properties: &Properties, key: &str, env: &ExpandEnv) -> Result<ExpandEnv, InputErrors> {
    let expands = properties.get_bool(&format!("{key}.expand"), true)?;
    Ok(if expands { env.clone() } else { ExpandEnv::off() })
}

/// Syntax of a catalog file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    Yaml,
    Xml,
    Text,
}

/// Detects the syntax: XML by the first character, YAML by the file name or a mapping at the start, else
/// text.
fn detect_syntax(path: &Path, text: &str) -> Syntax {
    if text::is_xml(text) {
        return Syntax::Xml;
    }
    let extension = path.extension().and_then(|e| e.to_str());
    if matches!(extension, Some("yml" | "yaml")) || is_yaml_mapping(path, text) {
        Syntax::Yaml
    } else {
        Syntax::Text
    }
}

/// Returns whether the start of a file shows that it is text, neither XML nor YAML.
fn is_surely_text(path: &Path) -> bool {
    /// Bytes that are read. A cut in the middle of a character is part of what is unsure.
    const HEAD: u64 = 64 << 10;
    let mut head = Vec::new();
    let read = text::open(path).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    let head = String::from_utf8_lossy(&head);
    read.is_ok()
        && detect_syntax(path, &head) == Syntax::Text
        && matches!(Yaml::new(path, &head).node(), Ok(Node::Scalar(_)))
}

fn is_yaml_mapping(path: &Path, text: &str) -> bool {
    let mut yaml = Yaml::new(path, text);
    match yaml.node() {
        Ok(node @ Node::Mapping(_)) => yaml.skip(&node).is_ok() && yaml.end().is_ok(),
        _ => false,
    }
}

/// Returns an error about an unknown type of catalog.
fn unknown_kind(path: &Path, kind: &str, catalog: &str, known: &str) -> InputErrors {
    Diagnostic::in_file(path, format!("`{kind}` is not a type of {catalog} catalog"))
        .with_hint(format!("types are {known}"))
        .into()
}

/// Reads a YAML catalog and checks that nothing follows it.
fn read_yaml<T>(
    path: &Path,
    text: &str,
    read: impl FnOnce(&mut Yaml<'_>) -> crate::syntax::yaml::Result<T>,
) -> Result<T, InputErrors> {
    let mut yaml = Yaml::new(path, text);
    let found = read(&mut yaml).and_then(|catalog| yaml.end().map(|()| catalog));
    let mut problems = std::mem::take(&mut yaml.problems);
    match found {
        Ok(catalog) => {
            InputErrors::check(problems)?;
            Ok(catalog)
        }
        Err(stop) => {
            problems.push(stop.into_error());
            InputErrors::check(problems)?;
            Err(Diagnostic::in_file(path, "cannot be read").into())
        }
    }
}

/// A regular file below a directory.
struct FoundFile {
    /// Absolute path.
    path: PathBuf,
    /// Path relative to the directory.
    relative: String,
    /// Permission bits.
    mode: u32,
}

/// Returns regular files below a directory in name order. Follows links.
fn files_below(directory: &Path) -> Result<Vec<FoundFile>, InputErrors> {
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let mut files = Vec::new();
    let mut problems = Vec::new();
    let walk = walkdir::WalkDir::new(&directory)
        .follow_links(true)
        .sort_by_file_name();
    for entry in walk {
        let found = entry.and_then(|entry| entry.metadata().map(|metadata| (entry, metadata)));
        let (entry, metadata) = match found {
            Ok(found) => found,
            Err(error) => {
                let at = error.path().unwrap_or(&directory).to_owned();
                let what = match error.io_error() {
                    Some(error) => text::io_message(error),
                    None => error.to_string(),
                };
                problems.push(Diagnostic::in_file(&at, format!("cannot be read: {what}")));
                continue;
            }
        };
        if !metadata.is_file() {
            if entry.depth() == 0 && !metadata.is_dir() {
                problems.push(Diagnostic::in_file(&directory, "is no directory"));
            }
            continue;
        }
        let Some(relative) = entry.path().strip_prefix(&directory).ok().and_then(Path::to_str) else {
            problems.push(Diagnostic::in_file(entry.path(), "the file name is not UTF-8"));
            continue;
        };
        if relative.is_empty() {
            problems.push(Diagnostic::in_file(&directory, "is no directory"));
            continue;
        }
        files.push(FoundFile {
            relative: relative.to_owned(),
            path: entry.path().to_owned(),
            mode: metadata.permissions().mode(),
        });
    }
    InputErrors::check(problems)?;
    Ok(files)
}
