//! Transformations: where programs are, per site.

use crate::catalog::site::SysInfo;
use crate::model::{Hook, TransformationName};
use crate::profiles::Profiles;

/// Entries in document order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TransformationCatalog {
    /// One per transformation and site.
    pub entries: Vec<TransformationEntry>,
    /// Compound transformations: name and the names of the executables it requires.
    pub compounds: Vec<(TransformationName, Vec<TransformationName>)>,
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
