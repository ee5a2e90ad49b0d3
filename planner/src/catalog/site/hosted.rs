//! Site catalogs that a repository hosts for all users of a cluster (`pegasus.catalog.site.repo.file`).
//! Pegasus downloads such a file into the working directory, again after a day. Here, a copy is read: the one
//! that is there, or that of a local copy of the repository.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::{SiteCatalog, load};
use crate::catalog::expansion;
use crate::diagnostic::Diagnostic;
use crate::error::InputErrors;
use crate::expand::ExpandEnv;
use crate::model::COMPATIBLE_VERSION;
use crate::properties::Properties;

/// Names the file.
pub(crate) const FILE: &str = "pegasus.catalog.site.repo.file";
/// Names the repository.
const REPOSITORY: &str = "pegasus.catalog.site.repo";
/// Seconds after which Pegasus downloads the file again.
const INTERVAL: &str = "pegasus.catalog.site.repo.interval";
const DEFAULT_INTERVAL: u64 = 24 * 60 * 60;
/// Where the files are in the repository.
const FOLDER: &str = "conf";

/// Returns the path of the copy, whether it exists or not. `None` if the properties name no hosted catalog.
pub(crate) fn copy(properties: &Properties, working: &Path) -> Option<PathBuf> {
    let name = properties
        .get(FILE)
        .map(str::trim)
        .filter(|name| !name.is_empty())?;
    let local = properties.get(REPOSITORY).map(str::trim).and_then(local_path);
    let folders = local.into_iter().flat_map(|root| {
        let root = working.join(root);
        [root.join(branch()).join(FOLDER), root.join(FOLDER)]
    });
    let in_repository = folders.map(|folder| folder.join(name)).find(|path| path.exists());
    Some(in_repository.unwrap_or_else(|| working.join(name)))
}

/// Reads the copy of the hosted catalog that the properties name, if they name one.
///
/// # Errors
/// There is no copy; all problems of the file.
pub(super) fn load_copy(
    properties: &Properties,
    working: &Path,
    env: &ExpandEnv,
) -> Result<Option<SiteCatalog>, InputErrors> {
    let Some(path) = copy(properties, working) else {
        return Ok(None);
    };
    if !path.exists() {
        let name = path.file_name().unwrap_or_default().display().to_string();
        let problem = properties.bad_key(
            FILE,
            "the hosted site catalog would have to be downloaded, but the planner loads nothing from the network",
        );
        let hint = format!(
            "save {FOLDER}/{name} from the branch {} of the repository pegasushub/pegasus-site-catalogs as {}",
            branch(),
            path.display()
        );
        InputErrors::check(vec![problem.with_hint(hint)])?;
    }
    let mut catalog = load(&path, None, &expansion(properties, "pegasus.catalog.site", env)?)?;
    let limit = properties.get(INTERVAL).and_then(|text| text.trim().parse().ok());
    let limit = Duration::from_secs(limit.unwrap_or(DEFAULT_INTERVAL));
    let changed = path.metadata().and_then(|data| data.modified()).ok();
    let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
    if let Some(age) = age.filter(|age| *age > limit) {
        let days = age.as_secs() / DEFAULT_INTERVAL;
        let message = format!(
            "this copy of a hosted site catalog is {days} days old; Pegasus would download it again after {} s",
            limit.as_secs()
        );
        let hint = format!("save the new one there, or set {INTERVAL} to the seconds that it may be old");
        let warning = Diagnostic::in_file(&path, message).with_hint(hint);
        catalog.warnings.push(warning.as_warning());
    }
    Ok(Some(catalog))
}

/// The branch of the repository for the version of Pegasus whose behaviour the planner has.
fn branch() -> &'static str {
    COMPATIBLE_VERSION
        .rsplit_once('.')
        .map_or(COMPATIBLE_VERSION, |(branch, _)| branch)
}

/// Returns the path that a repository is, unless it is elsewhere.
fn local_path(repository: &str) -> Option<&str> {
    match repository.split_once("://") {
        None => Some(repository).filter(|path| !path.is_empty()),
        Some(("file", path)) => Some(path),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DirectoryKind, load_from_properties};
    use super::*;
    use crate::profiles::Namespace;

    const HOSTED: &str = "pegasus: 5.0.4
sites:
- name: compute
  arch: aarch64
  directories:
  - {type: sharedScratch, path: '${HOME}/work', fileServers: [{url: 'file://${HOME}/work', operation: all}]}
  - {type: localStorage, path: /keep, fileServers: [{url: 'file:///keep', operation: all}]}
  profiles:
    pegasus: {queue: main, project: other, runtime: 1800}
- {name: staging}
";
    const LOCAL: &str = "pegasus: 5.0.4
sites:
- name: compute
  directories:
  - {type: localStorage, path: /mine, fileServers: [{url: 'file:///mine', operation: all}]}
  profiles:
    pegasus: {queue: test}
- {name: mine}
";

    fn load_in(dir: &Path, properties: &Properties) -> Result<SiteCatalog, String> {
        let env = ExpandEnv::new([("HOME", "/home/me")]);
        let loaded = load_from_properties(properties, dir.into(), &env);
        loaded
            .map(|loaded| loaded.catalog)
            .map_err(|problems| problems.to_string())
    }

    #[test]
    fn the_local_catalog_is_laid_over_the_hosted_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut properties = Properties::default();
        properties.set(FILE, "some-cluster.yml");
        let refused = load_in(dir.path(), &properties).expect_err("there is no copy");
        for part in [
            "loads nothing from the network",
            "save conf/some-cluster.yml from the branch 5.1",
        ] {
            assert!(refused.contains(part), "{refused}");
        }

        std::fs::write(dir.path().join("some-cluster.yml"), HOSTED).expect("a file");
        std::fs::write(dir.path().join("sites.yml"), LOCAL).expect("a file");
        let catalog = load_in(dir.path(), &properties).expect("both");
        let names: Vec<&String> = catalog.sites.keys().collect();
        assert_eq!(names, ["compute", "mine", "staging"]);
        let site = catalog.get("compute").expect("the site");
        assert_eq!(site.sysinfo.arch, "aarch64");
        let path = |kind| {
            site.directories
                .get(&kind)
                .map(|directory| directory.path.as_str())
        };
        assert_eq!(path(DirectoryKind::SharedScratch), Some("/home/me/work"));
        assert_eq!(path(DirectoryKind::LocalStorage), Some("/mine"));
        let profile = |key| site.profiles.get(Namespace::Pegasus, key);
        assert_eq!(
            ["queue", "project", "runtime"].map(profile),
            [Some("test"), Some("other"), Some("1800")]
        );
        assert_eq!(catalog.warnings, []);
    }

    #[test]
    fn a_copy_of_the_repository_comes_first_and_an_old_one_is_told_of() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut properties = Properties::default();
        properties.set(FILE, "c.yml");
        std::fs::write(dir.path().join("c.yml"), "sites: [{name: own}]").expect("a file");
        for (repository, folder, name) in [
            ("https://other.invalid/catalogs", "elsewhere", "own"),
            ("copy", "copy/conf", "cloned"),
            (
                &format!("file://{}/copy", dir.path().display()),
                "copy/5.1/conf",
                "branch",
            ),
        ] {
            std::fs::create_dir_all(dir.path().join(folder)).expect("a folder");
            std::fs::write(
                dir.path().join(folder).join("c.yml"),
                format!("sites: [{{name: {name}}}]"),
            )
            .expect("a file");
            properties.set(REPOSITORY, repository);
            let catalog = load_in(dir.path(), &properties).expect("a copy");
            assert!(catalog.get(name).is_some(), "{repository}: {:?}", catalog.sites);
        }
        let file = std::fs::File::options()
            .write(true)
            .open(dir.path().join("copy/5.1/conf/c.yml"));
        let before = SystemTime::now() - Duration::from_secs(3 * DEFAULT_INTERVAL + 60);
        file.expect("a file").set_modified(before).expect("a time");
        let said = |properties: &Properties| {
            let catalog = load_in(dir.path(), properties).expect("a copy");
            catalog
                .warnings
                .iter()
                .map(ToString::to_string)
                .collect::<String>()
        };
        assert!(
            said(&properties).contains("is 3 days old"),
            "{}",
            said(&properties)
        );
        properties.set(INTERVAL, "31536000");
        assert_eq!(said(&properties), "");
    }
}
