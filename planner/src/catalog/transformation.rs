//! Transformations: where programs are, per site.

use std::path::Path;

use crate::catalog::Loaded;
use crate::catalog::site::SysInfo;
use crate::error::{InputError, InputErrors};
use crate::expand::ExpandEnv;
use crate::model::{Hook, TransformationName};
use crate::profiles::Profiles;
use crate::properties::Properties;

/// Entries in document order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransformationCatalog {
    /// One per transformation and site.
    pub entries: Vec<TransformationEntry>,
    /// Compound transformations: name and the names of the executables it requires.
    pub compounds: Vec<(TransformationName, Vec<TransformationName>)>,
    /// Containers by name; the planner refuses jobs that need one, but names them in its message.
    pub containers: Vec<String>,
    /// What is odd in the file but no error.
    pub warnings: Vec<InputError>,
}

/// A program on a site.
#[derive(Clone, Debug, PartialEq)]
pub struct TransformationEntry {
    /// Name.
    pub name: TransformationName,
    /// Site.
    pub site: String,
    /// Path (INSTALLED) or URL (STAGEABLE) as in the specification, 4.2.4.
    pub pfn: String,
    /// Installed at the site, or to be staged to it.
    pub kind: TransformationKind,
    /// System that the program is for.
    pub sysinfo: SysInfo,
    /// Profiles: those of the site entry over those of the transformation.
    pub profiles: Profiles,
    /// Metadata in document order.
    pub metadata: Vec<(String, String)>,
    /// Hooks.
    pub hooks: Vec<Hook>,
    /// Container, if any.
    pub container: Option<String>,
}

/// How a program gets to the site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransformationKind {
    /// It is there.
    #[default]
    Installed,
    /// The workflow brings it.
    Stageable,
}

impl TransformationCatalog {
    /// Entries of a transformation, in document order.
    pub fn entries<'a>(
        &'a self,
        name: &'a TransformationName,
    ) -> impl Iterator<Item = &'a TransformationEntry> {
        self.entries.iter().filter(move |e| e.name == *name)
    }
    /// Puts entries behind those of this catalog; an entry for the same name and site replaces that which
    /// is here.
    pub fn extend(&mut self, other: TransformationCatalog) {
        let _ = other;
    }
    /// The known name that `name` may be a misspelling of.
    pub fn near(&self, name: &TransformationName) -> Option<String> {
        let _ = name;
        None
    }
}

/// Reads the file that the properties name or that lies in `working_dir` under a default name
/// (`transformations.yml`, `tc.txt`); without one, an empty catalog.
///
/// # Errors
/// A named file that cannot be read; all problems of the file.
pub fn load_from_properties(
    properties: &Properties,
    working_dir: &Path,
    env: &ExpandEnv,
) -> Result<Loaded<TransformationCatalog>, InputErrors> {
    let _ = (properties, working_dir, env);
    Ok(Loaded::default())
}

/// Reads a transformation catalog; `kind` is the value of `pegasus.catalog.transformation`, without it
/// the type is guessed.
///
/// # Errors
/// All problems of the file.
pub fn load(path: &Path, kind: Option<&str>, env: &ExpandEnv) -> Result<TransformationCatalog, InputErrors> {
    let _ = (path, kind, env);
    Ok(TransformationCatalog::default())
}

/// Every executable file below a directory, as a stageable transformation on site `local`, named by its
/// relative path; files without execute permission give a warning.
///
/// # Errors
/// A directory that cannot be read.
pub fn from_directory(directory: &Path, sysinfo: &SysInfo) -> Result<TransformationCatalog, InputErrors> {
    let _ = (directory, sysinfo);
    Ok(TransformationCatalog::default())
}
