//! Programs: the catalog entry that a job uses on a site, and the programs of auxiliary jobs.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::catalog::site::SysInfo;
use crate::catalog::transformation::{
    Container, TransformationCatalog, TransformationEntry, TransformationKind,
};
use crate::exec::EntryId;
use crate::model::TransformationName;

use super::settings::TransformationChoice;
use super::sites::WorkSite;

/// The transformation catalog, by name.
pub(crate) struct Programs<'c> {
    catalog: &'c TransformationCatalog,
    by_name: FxHashMap<&'c TransformationName, Vec<EntryId>>,
    compounds: FxHashMap<&'c TransformationName, &'c [TransformationName]>,
    containers: FxHashMap<&'c str, Arc<Container>>,
    choice: TransformationChoice,
}

impl<'c> Programs<'c> {
    /// Indexes the catalog by name.
    pub(crate) fn new(catalog: &'c TransformationCatalog, choice: TransformationChoice) -> Self {
        let mut by_name: FxHashMap<&TransformationName, Vec<EntryId>> = FxHashMap::default();
        for (n, entry) in catalog.entries.iter().enumerate() {
            by_name.entry(&entry.name).or_default().push(EntryId::new(n));
        }
        let compounds = catalog
            .compounds
            .iter()
            .map(|(name, requires)| (name, requires.as_slice()))
            .collect();
        let containers = catalog.containers.iter();
        let containers = containers.map(|container| (container.name.as_str(), Arc::new(container.clone())));
        Programs {
            catalog,
            by_name,
            compounds,
            containers: containers.collect(),
            choice,
        }
    }
    /// Returns an entry.
    pub(crate) fn entry(&self, number: EntryId) -> &'c TransformationEntry {
        &self.catalog.entries[number]
    }
    /// Returns a container.
    pub(crate) fn container(&self, name: &str) -> Option<&Arc<Container>> {
        self.containers.get(name)
    }
    /// Returns a container with a similar name.
    pub(crate) fn near_container(&self, name: &str) -> Option<&'c str> {
        let names = self.containers.keys().copied();
        crate::error::near_spelling(name, names)
    }
    /// Returns whether there is an entry for a name.
    pub(crate) fn knows(&self, name: &TransformationName) -> bool {
        self.by_name.contains_key(name)
    }
    /// Returns the entry to use on a site: one at the site itself, else the first that any site of its system
    /// can use: a stageable program, or one that is installed in a container.
    pub(crate) fn usable(&self, name: &TransformationName, site: &WorkSite) -> Option<EntryId> {
        let fits = |entry: &TransformationEntry| {
            runs_on(entry, &site.sysinfo)
                && match entry.kind {
                    TransformationKind::Installed => {
                        (entry.site == site.name || entry.container.is_some())
                            && matches!(
                                self.choice,
                                TransformationChoice::All | TransformationChoice::Installed
                            )
                    }
                    TransformationKind::Stageable => match self.choice {
                        TransformationChoice::All | TransformationChoice::Staged => true,
                        TransformationChoice::Installed => false,
                        TransformationChoice::Submit => entry.site == "local",
                    },
                }
        };
        let known = self.by_name.get(name)?;
        let mut usable = known.iter().copied().filter(|&n| fits(self.entry(n)));
        usable
            .clone()
            .find(|&n| self.entry(n).site == site.name)
            .or_else(|| usable.next())
    }
    /// Returns the entry of an auxiliary program, which runs outside of containers, to use on a site.
    pub(crate) fn auxiliary(&self, name: &TransformationName, site: &WorkSite) -> Option<EntryId> {
        let entry = self.usable(name, site)?;
        self.entry(entry).container.is_none().then_some(entry)
    }
    /// Returns the further programs that a compound transformation needs.
    pub(crate) fn requires(&self, name: &TransformationName) -> &'c [TransformationName] {
        self.compounds.get(name).copied().unwrap_or_default()
    }
    /// Explains why no site can run a transformation, and lists alternatives.
    pub(crate) fn missing(&self, name: &TransformationName, sites: &[&str]) -> String {
        let mut text = format!(
            "There are no entries for the transformation \"{name}\" in the TC for sites [{}]",
            sites.join(", ")
        );
        match self.by_name.get(name) {
            Some(entries) => {
                let known: Vec<String> = entries
                    .iter()
                    .map(|&n| {
                        let e = self.entry(n);
                        let kind = match e.kind {
                            TransformationKind::Installed => "installed",
                            TransformationKind::Stageable => "stageable",
                        };
                        let mut system = format!("{} {}", e.sysinfo.arch, e.sysinfo.os);
                        for part in [&e.sysinfo.os_release, &e.sysinfo.os_version]
                            .into_iter()
                            .flatten()
                        {
                            system.push(' ');
                            system.push_str(part);
                        }
                        format!("{} at {} for {system}", kind, e.site)
                    })
                    .collect();
                text.push_str(&format!(
                    "\n  hint: the catalog has it {}; site and system must fit",
                    known.join(", ")
                ));
            }
            None => {
                let mut names: Vec<String> = self.by_name.keys().map(ToString::to_string).collect();
                names.sort_unstable();
                if let Some(near) =
                    crate::error::near_spelling(&name.to_string(), names.iter().map(String::as_str))
                {
                    text.push_str(&format!("\n  hint: did you mean {near}?"));
                } else if names.is_empty() {
                    text.push_str("\n  hint: the transformation catalog is empty");
                } else {
                    const SHOWN: usize = 20;
                    let more = names.len().saturating_sub(SHOWN);
                    names.truncate(SHOWN);
                    text.push_str(&format!("\n  hint: the catalog has {}", names.join(", ")));
                    if more > 0 {
                        text.push_str(&format!(" and {more} more"));
                    }
                }
            }
        }
        text
    }
}

/// Returns whether a program is made for the system of a site. A container brings its own system, but for the
/// kernel.
fn runs_on(entry: &TransformationEntry, site: &SysInfo) -> bool {
    match entry.container {
        Some(_) => entry.sysinfo.arch == site.arch && entry.sysinfo.os == site.os,
        None => entry.sysinfo == *site,
    }
}

/// Returns the program of an auxiliary job without a catalog entry.
pub(crate) fn default_program(transformation: &str, site_tools: &str, own_tools: &str) -> String {
    match transformation {
        "pegasus::rc-client" => format!("{own_tools}/pegasus-rc-client"),
        "pegasus::kickstart" => format!("{site_tools}/pegasus-kickstart"),
        "pegasus::seqexec" => format!("{site_tools}/pegasus-cluster"),
        "pegasus::mpiexec" => format!("{site_tools}/pegasus-mpi-cluster"),
        "system::chmod" => "/bin/chmod".into(),
        "pegasus::noop" => "/bin/true".into(),
        _ => format!("{site_tools}/pegasus-transfer"),
    }
}

/// Returns namespace and name of an auxiliary transformation, as in the catalog.
pub(crate) fn auxiliary_name(transformation: &str) -> TransformationName {
    match transformation.split_once("::") {
        Some((namespace, name)) => TransformationName {
            namespace: Some(namespace.into()),
            name: name.into(),
            version: None,
        },
        None => TransformationName {
            name: transformation.into(),
            ..TransformationName::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::Profiles;

    fn entry(name: &str, site: &str, kind: TransformationKind) -> TransformationEntry {
        TransformationEntry {
            name: auxiliary_name(name),
            site: site.into(),
            pfn: format!("/opt/{name}"),
            kind,
            sysinfo: SysInfo::default(),
            profiles: Profiles::default(),
            metadata: Vec::new(),
            hooks: Vec::new(),
            container: None,
            bypass: false,
        }
    }

    fn site(name: &str, release: Option<&str>) -> WorkSite {
        WorkSite {
            tags: std::collections::BTreeMap::new(),
            name: name.into(),
            sysinfo: SysInfo {
                os_release: release.map(str::to_owned),
                ..SysInfo::default()
            },
            profiles: Profiles::default(),
            tools: "/opt/bin".into(),
            home: None,
            grids: Vec::new(),
            local_scratch: None,
            visible: false,
            scratch: None,
            workdir: None,
            processors: 1,
            servers: Vec::new(),
            is_for_jobs: true,
        }
    }

    #[test]
    fn an_entry_at_the_site_is_preferred() {
        let catalog = TransformationCatalog {
            entries: vec![
                entry("sort", "local", TransformationKind::Stageable),
                entry("sort", "hpc", TransformationKind::Installed),
            ],
            ..TransformationCatalog::default()
        };
        let name = auxiliary_name("sort");
        let programs = Programs::new(&catalog, TransformationChoice::All);
        assert_eq!(programs.usable(&name, &site("hpc", None)), Some(EntryId::new(1)));
        assert_eq!(
            programs.usable(&name, &site("other", None)),
            Some(EntryId::new(0))
        );
        assert_eq!(programs.usable(&name, &site("hpc", Some("8"))), None);
        let staged = Programs::new(&catalog, TransformationChoice::Staged);
        assert_eq!(staged.usable(&name, &site("hpc", None)), Some(EntryId::new(0)));
    }

    #[test]
    fn a_missing_transformation_lists_what_is_there() {
        let catalog = TransformationCatalog {
            entries: vec![entry("sort", "local", TransformationKind::Installed)],
            ..TransformationCatalog::default()
        };
        let programs = Programs::new(&catalog, TransformationChoice::All);
        let text = programs.missing(&auxiliary_name("sor"), &["local"]);
        assert!(text.contains("\"sor\" in the TC for sites [local]"), "{text}");
        assert!(text.contains("did you mean sort"), "{text}");
        let text = programs.missing(&auxiliary_name("unzip"), &["local"]);
        assert!(text.contains("the catalog has sort"), "{text}");
        let text = programs.missing(&auxiliary_name("sort"), &["hpc"]);
        assert!(text.contains("installed at local for x86_64 linux"), "{text}");
    }
}
