//! Site catalogs in YAML.

use super::{Directory, DirectoryKind, FileServer, Grid, Operation, Site, SiteCatalog, SysInfo};
use crate::keys::Checker;
use crate::model::Position;
use crate::profiles::Profiles;
use crate::syntax::yaml::{Fields, Node, Result, Scalar, Yaml};

/// Architectures of the published schema.
const ARCHITECTURES: &[&str] = &[
    "x86", "x86_64", "ppc", "ppc_64", "ppc64le", "ia64", "sparcv7", "sparcv9", "amd64", "aarch64",
];
/// Operating systems of the published schema.
const SYSTEMS: &[&str] = &["linux", "sunos", "macosx", "aix", "windows"];

/// Reads the next node: a mapping with the key `sites`.
pub(crate) fn read(yaml: &mut Yaml<'_>) -> Result<SiteCatalog> {
    let mut catalog = SiteCatalog::default();
    let mut checker = Checker::default();
    let root = yaml.node()?;
    let position = root.position();
    if !yaml.is_mapping(&root, "a site catalog")? {
        yaml.problem(position, "a site catalog needs the key sites");
        return Ok(catalog);
    }
    let mut fields = Fields::new("site catalog", &["pegasus", "sites"]);
    while let Some((key, _)) = yaml.field(&mut fields)? {
        if key == "sites" {
            sites(yaml, &mut catalog, &mut checker)?;
        } else {
            yaml.skip_value()?;
        }
    }
    if fields.lacks("sites") {
        yaml.problem(position, "a site catalog needs the key sites");
    }
    catalog.warnings = checker.warnings;
    Ok(catalog)
}

fn sites(yaml: &mut Yaml<'_>, catalog: &mut SiteCatalog, checker: &mut Checker) -> Result<()> {
    if !yaml.sequence("sites")? {
        return Ok(());
    }
    while let Some(item) = yaml.item()? {
        let position = item.position();
        if yaml.is_mapping(&item, "a site")? {
            let Some(site) = site(yaml, position, checker)? else {
                continue;
            };
            if catalog.sites.contains_key(&site.name) {
                yaml.problem(position, format!("the site {} is listed twice", site.name));
            } else {
                catalog.sites.insert(site.name.clone(), site);
            }
        }
    }
    Ok(())
}

fn site(yaml: &mut Yaml<'_>, position: Position, checker: &mut Checker) -> Result<Option<Site>> {
    let mut fields = Fields::new(
        "site",
        &[
            "name",
            "arch",
            "os.type",
            "os.release",
            "os.version",
            "directories",
            "grids",
            "profiles",
            "metadata",
            "x-tags",
        ],
    );
    let mut site = Site::default();
    while let Some((key, _)) = yaml.field(&mut fields)? {
        match key {
            "name" => site.name = owned(yaml.text("the name of a site")?).unwrap_or_default(),
            "arch" | "os.type" | "os.release" | "os.version" => system(yaml, key, &mut site.sysinfo)?,
            "directories" => directories(yaml, &mut site, checker)?,
            "grids" => grids(yaml, &mut site, checker)?,
            "profiles" => yaml.profiles(&mut site.profiles, checker)?,
            "x-tags" => tags(yaml, &mut site, checker)?,
            _ => yaml.skip_value()?,
        }
    }
    if site.name.is_empty() {
        if fields.lacks("name") {
            yaml.problem(position, "a site needs the key name");
        }
        return Ok(None);
    }
    Ok(Some(site))
}

fn owned(scalar: Option<Scalar<'_>>) -> Option<String> {
    scalar.map(|s| s.text.into_owned())
}

/// Reads one of the keys `arch`, `os.type`, `os.release`, `os.version`, also used by transformations.
pub(crate) fn system(yaml: &mut Yaml<'_>, key: &'static str, sysinfo: &mut SysInfo) -> Result<()> {
    let Some(scalar) = yaml.any_text(key)?.filter(|s| !s.is_null()) else {
        return Ok(());
    };
    let text = scalar.text.to_lowercase();
    let known = match key {
        "os.release" => {
            sysinfo.os_release = Some(scalar.text.into_owned());
            return Ok(());
        }
        "os.version" => {
            sysinfo.os_version = Some(scalar.text.into_owned());
            return Ok(());
        }
        "arch" => ARCHITECTURES,
        _ => SYSTEMS,
    };
    if !known.contains(&text.as_str()) {
        yaml.problem_with_hint(
            scalar.position,
            format!("`{}` is not known as {key}", scalar.text),
            format!("it may be {}", known.join(", ")),
        );
    } else if key == "arch" {
        sysinfo.arch = text;
    } else {
        sysinfo.os = text;
    }
    Ok(())
}

impl DirectoryKind {
    /// Parses the name in YAML (`sharedScratch`) or in XML (`shared-scratch`).
    pub(super) fn parse(name: &str) -> Option<DirectoryKind> {
        let plain: String = name.chars().filter(|c| *c != '-' && *c != '_').collect();
        Some(match plain.to_ascii_lowercase().as_str() {
            "sharedscratch" => DirectoryKind::SharedScratch,
            "sharedstorage" => DirectoryKind::SharedStorage,
            "localscratch" => DirectoryKind::LocalScratch,
            "localstorage" => DirectoryKind::LocalStorage,
            _ => return None,
        })
    }
}

impl Operation {
    /// Parses the name.
    pub(super) fn parse(name: &str) -> Option<Operation> {
        Some(match name.to_ascii_lowercase().as_str() {
            "all" => Operation::All,
            "get" => Operation::Get,
            "put" => Operation::Put,
            _ => return None,
        })
    }
}

fn directories(yaml: &mut Yaml<'_>, site: &mut Site, checker: &mut Checker) -> Result<()> {
    if !yaml.sequence("directories")? {
        return Ok(());
    }
    while let Some(item) = yaml.item()? {
        let position = item.position();
        if !yaml.is_mapping(&item, "a directory")? {
            continue;
        }
        let mut fields = Fields::new(
            "directory",
            &[
                "type",
                "path",
                "sharedFileSystem",
                "freeSize",
                "totalSize",
                "fileServers",
            ],
        );
        let mut directory = Directory::default();
        let mut kind = None;
        while let Some((key, _)) = yaml.field(&mut fields)? {
            match key {
                "type" => {
                    if let Some(name) = yaml.text("the type of a directory")? {
                        kind = DirectoryKind::parse(&name.text);
                        if kind.is_none() {
                            yaml.problem_with_hint(
                                name.position,
                                format!("`{}` is not a type of directory", name.text),
                                "types are sharedScratch, sharedStorage, localScratch, localStorage",
                            );
                        }
                    }
                }
                "path" => directory.path = owned(yaml.text("the path of a directory")?).unwrap_or_default(),
                "fileServers" => file_servers(yaml, &mut directory, checker)?,
                _ => yaml.skip_value()?,
            }
        }
        for key in ["type", "path"] {
            if fields.lacks(key) {
                yaml.problem(position, format!("a directory needs the key {key}"));
            }
        }
        if let Some(kind) = kind
            && site.directories.insert(kind, directory).is_some()
        {
            yaml.problem(position, "the site has two directories of this type");
        }
    }
    Ok(())
}

/// Reads `x-tags: [{name: NAME, profiles: {NAMESPACE: {KEY: VALUE}}}]`.
fn tags(yaml: &mut Yaml<'_>, site: &mut Site, checker: &mut Checker) -> Result<()> {
    if !yaml.sequence("x-tags")? {
        return Ok(());
    }
    while let Some(item) = yaml.item()? {
        let position = item.position();
        if !yaml.is_mapping(&item, "a tag")? {
            continue;
        }
        let mut fields = Fields::new("tag", &["name", "profiles"]);
        let (mut name, mut profiles) = (String::new(), Profiles::default());
        while let Some((key, _)) = yaml.field(&mut fields)? {
            match key {
                "name" => name = owned(yaml.text("the name of a tag")?).unwrap_or_default(),
                _ => yaml.profiles(&mut profiles, checker)?,
            }
        }
        if name.is_empty() {
            yaml.problem(position, "a tag needs the key name");
        } else if site.tags.insert(name.clone(), profiles).is_some() {
            yaml.problem(position, format!("the tag {name} is listed twice"));
        }
    }
    Ok(())
}

fn file_servers(yaml: &mut Yaml<'_>, directory: &mut Directory, checker: &mut Checker) -> Result<()> {
    if !yaml.sequence("fileServers")? {
        return Ok(());
    }
    while let Some(item) = yaml.item()? {
        let position = item.position();
        if !yaml.is_mapping(&item, "a file server")? {
            continue;
        }
        let mut fields = Fields::new("file server", &["url", "operation", "profiles"]);
        let (mut url, mut operation) = (None, Operation::default());
        while let Some((key, _)) = yaml.field(&mut fields)? {
            match key {
                "url" => url = owned(yaml.text("the url of a file server")?),
                "operation" => {
                    if let Some(name) = yaml.text("the operation of a file server")? {
                        match Operation::parse(&name.text) {
                            Some(parsed) => operation = parsed,
                            None => yaml.problem_with_hint(
                                name.position,
                                format!("`{}` is not an operation of a file server", name.text),
                                "operations are all, get, put",
                            ),
                        }
                    }
                }
                // Profiles of file servers are not used.
                _ => yaml.profiles(&mut Profiles::default(), checker)?,
            }
        }
        match url {
            Some(url) => directory.servers.push(FileServer { url, operation }),
            None if fields.lacks("url") => yaml.problem(position, "a file server needs the key url"),
            None => {}
        }
    }
    Ok(())
}

fn grids(yaml: &mut Yaml<'_>, site: &mut Site, checker: &mut Checker) -> Result<()> {
    if !yaml.sequence("grids")? {
        return Ok(());
    }
    while let Some(item) = yaml.item()? {
        if !yaml.is_mapping(&item, "a grid")? {
            continue;
        }
        let mut fields = Fields::new(
            "grid",
            &[
                "type",
                "contact",
                "scheduler",
                "jobtype",
                "arch",
                "os.type",
                "os.release",
                "os.version",
                "freeMem",
                "totalMem",
                "maxCount",
                "maxCPUTime",
                "maxWallTime",
                "runningJobs",
                "jobsInQueue",
                "idleNodes",
                "totalNodes",
                "profiles",
            ],
        );
        let (mut grid, mut idle, mut total) = (Grid::default(), None, None);
        while let Some((key, _)) = yaml.field(&mut fields)? {
            match key {
                "jobtype" | "type" | "contact" | "scheduler" => {
                    if let Node::Scalar(value) = yaml.node()? {
                        grid.set(key, &value.text);
                    }
                }
                "idleNodes" => idle = yaml.number(key)?,
                "totalNodes" => total = yaml.number(key)?,
                "profiles" => yaml.profiles(&mut Profiles::default(), checker)?,
                _ => yaml.skip_value()?,
            }
        }
        if !grid.is_auxiliary {
            site.idle_nodes = idle.and_then(|n| u32::try_from(n).ok());
            site.total_nodes = total.and_then(|n| u32::try_from(n).ok());
        }
        site.grids.push(grid);
    }
    Ok(())
}
