//! Replicas and executables embedded in a DAX.

use super::{Dax, put};
use crate::catalog::replica::{Replica, ReplicaEntry};
use crate::catalog::site::SysInfo;
use crate::catalog::transformation::{TransformationEntry, TransformationKind, normal_pfn};
use crate::model::TransformationName;
use crate::profiles::{Profiles, parse_bool};
use crate::syntax::xml::{Element, Result};

/// A physical location of a file or an executable.
struct Pfn {
    url: String,
    site: Option<String>,
    profiles: Profiles,
}

impl<'a> Dax<'_, 'a> {
    /// Reads `<pfn url= site=>` with profiles.
    fn pfn(&mut self, element: &Element<'a>) -> Result<Pfn> {
        let mut pfn = Pfn {
            url: String::new(),
            site: None,
            profiles: Profiles::default(),
        };
        self.xml.attributes(element, |_, key, value| match key {
            "url" => value.clone_into(&mut pfn.url),
            "site" => {
                pfn.site = Some(value.to_owned()).filter(|site| !site.is_empty() && site != "undefined")
            }
            _ => {}
        })?;
        if pfn.url.is_empty() {
            self.xml
                .problem(element.position, "the element pfn needs the attribute url");
        }
        while let Some(inner) = self.xml.element()? {
            if inner.name() == "profile" {
                self.profile(&inner, &mut pfn.profiles)?;
            } else {
                self.xml.illegal_element(&inner, "pfn", "profile")?;
            }
        }
        Ok(pfn)
    }

    pub(super) fn replica(&mut self, element: &Element<'a>) -> Result<()> {
        let lfn = self.xml.attribute(element, "name")?.unwrap_or_default();
        if lfn.is_empty() {
            self.xml
                .problem(element.position, "the element file needs the attribute name");
        }
        let mut entry = ReplicaEntry {
            lfn,
            ..ReplicaEntry::default()
        };
        while let Some(inner) = self.xml.element()? {
            match inner.name() {
                "pfn" => {
                    let pfn = self.pfn(&inner)?;
                    entry.replicas.push(Replica {
                        pfn: pfn.url,
                        site: pfn.site,
                    });
                }
                "metadata" => {
                    let (key, value) = self.keyed(&inner)?;
                    entry.metadata.insert(key, value);
                }
                _ => self.xml.illegal_element(&inner, "file", "pfn, metadata")?,
            }
        }
        let embedded = &mut self.builder.embedded;
        // Only patterns can fail, and a DAX has none.
        if let Err(error) = embedded.replicas.get_or_insert_default().push(entry) {
            self.xml.problem(element.position, error.to_string());
        }
        Ok(())
    }

    pub(super) fn executable(&mut self, element: &Element<'a>) -> Result<()> {
        let mut name = TransformationName::default();
        let mut sysinfo = SysInfo::default();
        let mut kind = TransformationKind::Installed;
        self.xml.attributes(element, |xml, key, value| {
            let value_if_set = || Some(value.to_owned()).filter(|v| !v.is_empty());
            match key {
                "namespace" => name.namespace = value_if_set(),
                "name" => value.clone_into(&mut name.name),
                "version" => name.version = value_if_set(),
                "arch" => sysinfo.arch = value_if_set().unwrap_or(SysInfo::default().arch),
                "os" => sysinfo.os = value_if_set().map_or(SysInfo::default().os, |os| os.to_lowercase()),
                "osrelease" => sysinfo.os_release = value_if_set(),
                "osversion" => sysinfo.os_version = value_if_set(),
                "glibc" => sysinfo.glibc = value_if_set(),
                "installed" if xml.boolean(element.position, key, value) == Some(false) => {
                    kind = TransformationKind::Stageable;
                }
                _ => {}
            }
        })?;
        if name.name.is_empty() {
            self.xml.problem(
                element.position,
                "the element executable needs the attribute name",
            );
        }
        let mut profiles = Profiles::default();
        let (mut metadata, mut hooks, mut pfns) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(inner) = self.xml.element()? {
            match inner.name() {
                "pfn" => pfns.push((self.pfn(&inner)?, inner.position)),
                "profile" => self.profile(&inner, &mut profiles)?,
                "metadata" => {
                    let (key, value) = self.keyed(&inner)?;
                    put(&mut metadata, key, value);
                }
                "invoke" => hooks.extend(self.invoke(&inner)?),
                _ => {
                    self.xml
                        .illegal_element(&inner, "executable", "pfn, profile, metadata, invoke")?;
                }
            }
        }
        for (pfn, position) in pfns {
            let mut merged = profiles.clone();
            merged.overlay(&pfn.profiles);
            let url = match normal_pfn(kind, &pfn.url) {
                Ok(url) => url,
                Err(message) => {
                    self.xml
                        .problem(position, format!("transformation {name}: {message}"));
                    continue;
                }
            };
            let entry = TransformationEntry {
                name: name.clone(),
                site: pfn.site.unwrap_or_else(|| "undefined".into()),
                pfn: url,
                kind,
                sysinfo: sysinfo.clone(),
                profiles: merged,
                metadata: metadata.clone(),
                hooks: hooks.clone(),
                container: None,
                bypass: false,
            };
            let embedded = &mut self.builder.embedded;
            embedded
                .transformations
                .get_or_insert_default()
                .entries
                .push(entry);
        }
        Ok(())
    }

    /// Reads `<transformation>` with the executables that it requires.
    pub(super) fn compound(&mut self, element: &Element<'a>) -> Result<()> {
        let name = self.transformation_name(element)?;
        let mut requires = Vec::new();
        while let Some(inner) = self.xml.element()? {
            match inner.name() {
                "uses" => {
                    let executable = self.xml.attribute(&inner, "executable")?;
                    let is_data = match executable.as_deref().and_then(parse_bool) {
                        Some(executable) => !executable,
                        None => self.xml.attribute(&inner, "link")?.is_some(),
                    };
                    if is_data {
                        let file_use = self.file_use(&inner)?;
                        let shared = &mut self.builder.uses_of_transformations;
                        shared.extend(file_use.map(|file_use| (name.clone(), file_use)));
                    } else {
                        requires.push(self.transformation_name(&inner)?);
                        self.xml.skip()?;
                    }
                }
                "invoke" => {
                    self.invoke(&inner)?;
                }
                "metadata" => self.xml.skip()?,
                _ => {
                    self.xml
                        .illegal_element(&inner, "transformation", "uses, invoke, metadata")?;
                }
            }
        }
        let embedded = &mut self.builder.embedded;
        let catalog = embedded.transformations.get_or_insert_default();
        catalog.compounds.push((name, requires));
        Ok(())
    }

    fn transformation_name(&mut self, element: &Element<'a>) -> Result<TransformationName> {
        let mut name = TransformationName::default();
        self.xml.attributes(element, |_, key, value| match key {
            "namespace" => name.namespace = Some(value.to_owned()).filter(|v| !v.is_empty()),
            "name" => value.clone_into(&mut name.name),
            "version" => name.version = Some(value.to_owned()).filter(|v| !v.is_empty()),
            _ => {}
        })?;
        if name.name.is_empty() {
            self.xml.problem(
                element.position,
                format!("the element {} needs the attribute name", element.name()),
            );
        }
        Ok(name)
    }
}
