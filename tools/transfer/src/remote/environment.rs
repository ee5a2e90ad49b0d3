//! Environment of remote transfers: variables, programs, key files.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::credentials::{Credentials, CredentialsError};
use crate::error::TransferError;
use crate::observer::{Event, Observer};
use crate::shown;

/// The user's credentials file, in the home directory.
const USUAL_CREDENTIALS: &str = ".pegasus/credentials.conf";

/// Snapshot of the environment. The library never reads the environment of the process itself.
#[derive(Debug, Default)]
pub struct Environment {
    variables: HashMap<OsString, OsString>,
    /// Directory of the running program, searched for the programs of Pegasus.
    program_directory: Option<PathBuf>,
    /// External programs run with verbose output.
    pub debug: bool,
    credentials: OnceLock<Result<Credentials, CredentialsError>>,
}

impl Environment {
    /// Creates an environment from variables and the directory of the running program.
    pub fn new(
        variables: impl IntoIterator<Item = (OsString, OsString)>,
        program_directory: Option<PathBuf>,
    ) -> Self {
        Self {
            variables: variables.into_iter().collect(),
            program_directory,
            debug: false,
            credentials: OnceLock::new(),
        }
    }

    /// Returns a variable that is set and not empty.
    #[must_use]
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .get(OsStr::new(name))
            .map(OsString::as_os_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns a variable that is not empty and valid UTF-8.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.variable(name)?.to_str()
    }

    /// Returns the variable `NAME_SITE`, else `NAME`.
    #[must_use]
    pub fn for_site(&self, name: &str, site: &str) -> Option<&OsStr> {
        self.only_for_site(name, site).or_else(|| self.variable(name))
    }

    /// Returns the variable `NAME_SITE`.
    #[must_use]
    pub fn only_for_site(&self, name: &str, site: &str) -> Option<&OsStr> {
        self.variable(&format!("{name}_{site}"))
    }

    /// Returns the directories searched for programs.
    fn search_path(&self) -> Vec<PathBuf> {
        let path = self.variable("PATH").unwrap_or_default();
        let mut directories: Vec<PathBuf> = path
            .as_bytes()
            .split(|byte| *byte == b':')
            .filter(|directory| !directory.is_empty())
            .map(|directory| PathBuf::from(OsStr::from_bytes(directory)))
            .collect();
        let globus = self
            .variable("GLOBUS_LOCATION")
            .map(|root| Path::new(root).join("bin"));
        for directory in ["/usr/bin", "/bin", "/usr/sbin"]
            .map(PathBuf::from)
            .into_iter()
            .chain(globus)
        {
            if !directories.contains(&directory) {
                directories.push(directory);
            }
        }
        directories
    }

    /// Returns `PATH` for child processes.
    fn path_for_programs(&self) -> OsString {
        let mut path = OsString::new();
        for directory in self.search_path() {
            if !path.is_empty() {
                path.push(":");
            }
            path.push(directory);
        }
        path
    }

    /// Returns the environment of child processes.
    pub(super) fn program_variables(&self) -> HashMap<OsString, OsString> {
        let mut variables = self.variables.clone();
        // The tools ship with their own Python.
        variables.remove(OsStr::new("PYTHONHOME"));
        variables.insert("PATH".into(), self.path_for_programs());
        if let Some(root) = self.variable("GLOBUS_LOCATION") {
            let libraries = variables.entry("LD_LIBRARY_PATH".into()).or_default();
            if !libraries.is_empty() {
                libraries.push(":");
            }
            libraries.push(Path::new(root).join("lib"));
        }
        variables
    }

    /// Finds a program. Programs of Pegasus are searched in its own directories first.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let mut directories = Vec::new();
        if name.starts_with("pegasus-") {
            let home = self.variable("PEGASUS_HOME");
            directories.extend(home.map(|home| Path::new(home).join("bin")));
            directories.extend(self.program_directory.clone());
        }
        directories.extend(self.search_path());
        directories
            .into_iter()
            .map(|directory| directory.join(name))
            .find(|path| {
                fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
            })
    }

    /// Returns the first of `names` that is installed.
    pub(super) fn require_program(&self, names: &[&str], protocol: &str) -> Result<PathBuf, TransferError> {
        names
            .iter()
            .find_map(|name| self.program(name))
            .ok_or_else(|| TransferError::ProgramMissing {
                program: names.join(" or "),
                protocol: protocol.to_owned(),
            })
    }

    /// Returns the user's own credentials file, which counts where no variable names one, if it is there.
    pub(super) fn usual_credentials(&self) -> Option<PathBuf> {
        let path = Path::new(self.variable("HOME")?).join(USUAL_CREDENTIALS);
        path.is_file().then_some(path)
    }

    /// Returns the credentials in the file `PEGASUS_CREDENTIALS`, else those in the user's own, else none.
    pub(super) fn credentials(&self) -> Result<&Credentials, TransferError> {
        let read = self.credentials.get_or_init(|| {
            if let Some(path) = self.variable("PEGASUS_CREDENTIALS") {
                return Credentials::read(Path::new(path));
            }
            match self.usual_credentials().map(|path| Credentials::read(&path)) {
                // Most transfers need none, so they do not fail for a file that they do not ask for.
                None | Some(Err(CredentialsError::OpenPermissions(_))) => Ok(Credentials::default()),
                Some(read) => read,
            }
        });
        read.as_ref()
            .map_err(|error| TransferError::Credentials(error.to_string()))
    }

    /// Returns the key file that the variable `name` gives for a site, after [`check_key_file`].
    pub(super) fn key_file(
        &self,
        name: &str,
        site: &str,
        observer: &dyn Observer,
    ) -> Result<Option<PathBuf>, TransferError> {
        let Some(path) = self.for_site(name, site).map(PathBuf::from) else {
            return Ok(None);
        };
        check_key_file(&path, observer)?;
        Ok(Some(path))
    }
}

/// Opens a key file, and restricts permissions that are too open: `ssh` and other programs
/// refuse such a file.
pub(super) fn check_key_file(path: &Path, observer: &dyn Observer) -> Result<File, TransferError> {
    let name = shown::path(path);
    let failed = |error: io::Error| TransferError::Credentials(format!("credentials file {name}: {error}"));
    let file = pmc_files::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        observer.event(&Event::Warning(format!(
            "permissions of {name} are {mode:04o}; changing them to 0600"
        )));
        if let Err(error) = file.set_permissions(Permissions::from_mode(0o600)) {
            observer.event(&Event::Warning(format!(
                "cannot change the permissions of {name}: {error}"
            )));
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::Silent;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment::new(
            pairs
                .iter()
                .map(|(name, value)| (OsString::from(name), OsString::from(value))),
            None,
        )
    }

    #[test]
    fn site_variables_take_precedence() {
        let environment = environment(&[("KEY", "plain"), ("KEY_a_b", "special"), ("EMPTY", "")]);
        assert_eq!(environment.for_site("KEY", "a_b"), Some(OsStr::new("special")));
        assert_eq!(environment.for_site("KEY", "c"), Some(OsStr::new("plain")));
        assert_eq!(environment.only_for_site("KEY", "c"), None);
        assert_eq!(environment.variable("EMPTY"), None);
    }

    #[test]
    fn programs_are_found_in_pegasus_home_and_path() {
        let dir = tempfile::tempdir().expect("directory");
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).expect("mkdir");
        for (name, mode) in [("pegasus-x", 0o755), ("tool", 0o755), ("data", 0o644)] {
            fs::write(bin.join(name), "").expect("write");
            fs::set_permissions(bin.join(name), Permissions::from_mode(mode)).expect("chmod");
        }
        let home = environment(&[("PEGASUS_HOME", dir.path().to_str().expect("UTF-8"))]);
        assert_eq!(home.program("pegasus-x"), Some(bin.join("pegasus-x")));
        assert_eq!(home.program("tool"), None);
        let path = environment(&[("PATH", bin.to_str().expect("UTF-8"))]);
        assert_eq!(path.program("tool"), Some(bin.join("tool")));
        assert_eq!(path.program("data"), None);
        assert_eq!(path.program("sh"), Some(PathBuf::from("/usr/bin/sh")));
    }

    #[test]
    fn open_permissions_of_key_files_are_restricted() {
        let dir = tempfile::tempdir().expect("directory");
        let key = dir.path().join("key");
        assert!(check_key_file(&key, &Silent).is_err());
        fs::write(&key, "").expect("write");
        fs::set_permissions(&key, Permissions::from_mode(0o644)).expect("chmod");
        check_key_file(&key, &Silent).expect("there");
        let mode = fs::metadata(&key).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
