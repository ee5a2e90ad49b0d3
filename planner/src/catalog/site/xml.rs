//! Site catalogs in XML, versions 3 and 4. They differ in the elements for directories: version 3 has
//! `head-fs` with `scratch` and `storage`, each `shared` or `local`.

use std::path::Path;

use super::{Directory, DirectoryKind, FileServer, Grid, Operation, Site, SiteCatalog};
use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::keys::Checker;
use crate::model::Position;
use crate::profiles::{Namespace, Profiles};
use crate::syntax::xml::{Element, Result, Xml};

/// Reads a whole file.
pub(super) fn read(path: &Path, text: &str) -> std::result::Result<SiteCatalog, InputErrors> {
    let mut reader = Reader {
        xml: Xml::new(path, text),
        checker: Checker::default(),
        catalog: SiteCatalog::default(),
    };
    let stop = reader.root().err();
    let mut problems = std::mem::take(&mut reader.xml.problems);
    problems.extend(stop.map(|stop| *stop));
    InputErrors::check(problems)?;
    reader.catalog.warnings = reader.checker.warnings;
    Ok(reader.catalog)
}

struct Reader<'a> {
    xml: Xml<'a>,
    checker: Checker,
    catalog: SiteCatalog,
}

impl<'a> Reader<'a> {
    fn root(&mut self) -> Result<()> {
        let root = self.xml.element()?;
        let Some(root) = root.filter(|root| root.name() == "sitecatalog") else {
            let position = Position { line: 1, column: 1 };
            self.xml
                .problem(position, "not a site catalog: expected the element sitecatalog");
            return Ok(());
        };
        let version = self.xml.attribute(&root, "version")?.unwrap_or_default();
        let major = version.split('.').next().unwrap_or_default().parse::<u32>();
        if major.is_ok_and(|major| major < 3) {
            let message =
                format!("site catalogs of version {version} are no longer supported, only 3.x and 4.x");
            self.xml.problem(root.position, message);
            return Ok(());
        }
        while let Some(element) = self.xml.element()? {
            if element.name() == "site" {
                self.site(&element)?;
            } else {
                // Metadata of the whole catalog.
                self.xml.skip()?;
            }
        }
        Ok(())
    }

    fn site(&mut self, element: &Element<'a>) -> Result<()> {
        let mut site = Site::default();
        self.xml.attributes(element, |_, key, value| {
            let value_if_set = || Some(value.to_owned()).filter(|v| !v.is_empty());
            match key {
                "handle" => value.clone_into(&mut site.name),
                "arch" if !value.is_empty() => site.sysinfo.arch = value.to_lowercase(),
                "os" if !value.is_empty() => site.sysinfo.os = value.to_lowercase(),
                "osrelease" => site.sysinfo.os_release = value_if_set(),
                "osversion" => site.sysinfo.os_version = value_if_set(),
                "glibc" => site.sysinfo.glibc = value_if_set(),
                _ => {}
            }
        })?;
        while let Some(inner) = self.xml.element()? {
            match inner.name() {
                "directory" => self.directory(&inner, &mut site)?,
                "grid" => self.grid(&inner, &mut site)?,
                "profile" => self.profile(&inner, &mut site.profiles)?,
                "head-fs" => self.head_fs(&mut site)?,
                // A run does not use file systems of single nodes.
                "worker-fs" | "metadata" | "replica-catalog" => self.xml.skip()?,
                _ => self.xml.illegal_element(
                    &inner,
                    "site",
                    "directory, grid, profile, metadata, replica-catalog, head-fs, worker-fs",
                )?,
            }
        }
        if site.name.is_empty() {
            self.xml
                .problem(element.position, "the element site needs the attribute handle");
        } else if self.catalog.sites.contains_key(&site.name) {
            let message = format!("the site {} is listed twice", site.name);
            self.xml.problem(element.position, message);
        } else {
            self.catalog.sites.insert(site.name.clone(), site);
        }
        Ok(())
    }

    fn directory(&mut self, element: &Element<'a>, site: &mut Site) -> Result<()> {
        let kind = self.xml.attribute(element, "type")?.unwrap_or_default();
        let mut directory = Directory {
            path: self.xml.attribute(element, "path")?.unwrap_or_default(),
            servers: Vec::new(),
        };
        while let Some(inner) = self.xml.element()? {
            match inner.name() {
                "file-server" => {
                    let server = self.file_server(&inner)?;
                    directory.servers.extend(server);
                }
                _ => self.xml.skip()?,
            }
        }
        match DirectoryKind::parse(&kind) {
            None => {
                let message = format!("`{kind}` is not a type of directory");
                self.xml.problems.push(
                    Diagnostic::at(self.xml.file(), element.position, message)
                        .with_hint("types are shared-scratch, shared-storage, local-scratch, local-storage"),
                );
            }
            Some(kind) => {
                if directory.path.is_empty() {
                    self.xml
                        .problem(element.position, "the element directory needs the attribute path");
                }
                if site.directories.insert(kind, directory).is_some() {
                    self.xml
                        .problem(element.position, "the site has two directories of this type");
                }
            }
        }
        Ok(())
    }

    /// Reads `head-fs` of version 3.
    fn head_fs(&mut self, site: &mut Site) -> Result<()> {
        while let Some(purpose) = self.xml.element()? {
            let purpose_name = purpose.name().to_owned();
            while let Some(sharing) = self.xml.element()? {
                let kind = match (purpose_name.as_str(), sharing.name()) {
                    ("scratch", "shared") => DirectoryKind::SharedScratch,
                    ("scratch", "local") => DirectoryKind::LocalScratch,
                    ("storage", "shared") => DirectoryKind::SharedStorage,
                    ("storage", "local") => DirectoryKind::LocalStorage,
                    _ => {
                        self.xml.illegal_element(
                            &sharing,
                            "head-fs",
                            "scratch and storage with shared and local",
                        )?;
                        continue;
                    }
                };
                let mut directory = Directory::default();
                let mut mount = None;
                while let Some(inner) = self.xml.element()? {
                    match inner.name() {
                        "file-server" => {
                            mount = mount.or(self.xml.attribute(&inner, "mount-point")?);
                            let server = self.file_server(&inner)?;
                            directory.servers.extend(server);
                        }
                        "internal-mount-point" => {
                            directory.path = self.xml.attribute(&inner, "mount-point")?.unwrap_or_default();
                            self.xml.skip()?;
                        }
                        _ => self.xml.skip()?,
                    }
                }
                if directory.path.is_empty() {
                    directory.path = mount.unwrap_or_default();
                }
                if directory.path.is_empty() {
                    self.xml.problem(
                        sharing.position,
                        "the directory needs an element internal-mount-point with the attribute mount-point",
                    );
                } else if site.directories.insert(kind, directory).is_some() {
                    self.xml
                        .problem(sharing.position, "the site has two directories of this type");
                }
            }
        }
        Ok(())
    }

    fn file_server(&mut self, element: &Element<'a>) -> Result<Option<FileServer>> {
        let (mut url, mut protocol, mut mount) = (String::new(), String::new(), String::new());
        let mut operation = Operation::default();
        self.xml.attributes(element, |xml, key, value| match key {
            "url" => value.clone_into(&mut url),
            "protocol" => value.clone_into(&mut protocol),
            "mount-point" => value.clone_into(&mut mount),
            "operation" => match Operation::parse(value) {
                Some(parsed) => operation = parsed,
                None => xml.problem(
                    element.position,
                    format!("`{value}` is not an operation of a file server, but all, get, put"),
                ),
            },
            _ => {}
        })?;
        while let Some(inner) = self.xml.element()? {
            if inner.name() == "profile" {
                self.profile(&inner, &mut Profiles::default())?;
            } else {
                self.xml.skip()?;
            }
        }
        if url.is_empty() {
            self.xml.problem(
                element.position,
                "the element file-server needs the attribute url",
            );
            return Ok(None);
        }
        // The older form has the path in a separate attribute.
        if !mount.is_empty() && !url.ends_with(&mount) {
            let prefix = if url.ends_with("://") {
                url.as_str()
            } else {
                url.strip_suffix('/').unwrap_or(&url)
            };
            url = format!("{prefix}{mount}");
        }
        if !protocol.is_empty() && !url.contains(':') {
            url = format!("{protocol}://{url}");
        }
        Ok(Some(FileServer { url, operation }))
    }

    fn grid(&mut self, element: &Element<'a>, site: &mut Site) -> Result<()> {
        let (mut grid, mut idle, mut total) = (Grid::default(), None, None);
        self.xml.attributes(element, |_, key, value| match key {
            "idle-nodes" => idle = value.parse().ok(),
            "total-nodes" => total = value.parse().ok(),
            _ => grid.set(key, value),
        })?;
        if !grid.is_auxiliary {
            site.idle_nodes = idle;
            site.total_nodes = total;
        }
        site.grids.push(grid);
        self.xml.skip()
    }

    fn profile(&mut self, element: &Element<'a>, profiles: &mut Profiles) -> Result<()> {
        let namespace = self.xml.attribute(element, "namespace")?.unwrap_or_default();
        let key = self.xml.attribute(element, "key")?.unwrap_or_default();
        let value = self.xml.text()?;
        match Namespace::parse(&namespace) {
            None => {
                let (message, hint) = Namespace::unknown(&namespace);
                self.xml
                    .problems
                    .push(Diagnostic::at(self.xml.file(), element.position, message).with_hint(hint));
            }
            Some(namespace) => {
                let checked = self
                    .checker
                    .check(self.xml.file(), namespace, &key, &value, element.position);
                self.xml.problems.extend(checked.err());
                profiles.set(namespace, &key, &value);
            }
        }
        Ok(())
    }
}
