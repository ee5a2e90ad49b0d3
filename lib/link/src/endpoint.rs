//! The endpoint of a master: where agents find it, and the key that lets them in.
//!
//! It is a file that only its owner may read, or a word in the variable `PMC_ENDPOINT` for hosts that do not
//! share a file system.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::fcntl::OFlag;
use pmc_dag::reason;
use serde::{Deserialize, Serialize};

use crate::key::{KeyError, RunKey};
use crate::listener::Listen;

/// Version of the endpoint and of the frames.
pub const VERSION: u32 = 3;

/// Maximum bytes of an endpoint.
const MAX_BYTES: u64 = 64 << 10;

/// Where a master listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `HOST:PORT`, in the order in which agents should try them.
    pub addresses: Vec<String>,
    /// Counts the masters of one DAG.
    pub epoch: u64,
    /// Time without an answer of the master after which agents end their tasks.
    pub lease: Duration,
    /// The key of the run.
    pub key: RunKey,
}

/// An endpoint cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The file cannot be read.
    #[error("Unable to read the endpoint file {}: {}", .path.display(), reason(.source))]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("Unable to write the endpoint file {}: {}", .path.display(), reason(.source))]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others know the key, too.
    #[error(
        "The endpoint file {} may be read or written by other users (mode {mode:03o}): \
         it must have mode 600", .path.display()
    )]
    Readable {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Somebody else made the file.
    #[error("The endpoint file {} belongs to another user (number {owner})", .path.display())]
    Owner {
        /// The file.
        path: PathBuf,
        /// Number of the user.
        owner: u32,
    },
    /// The content is no endpoint.
    #[error("{origin} is no endpoint of a run: {what}")]
    Invalid {
        /// File or variable.
        origin: String,
        /// What is wrong.
        what: String,
    },
    /// The master is another program.
    #[error("{origin} has version {version}, not {VERSION}: master and agent are different programs")]
    Version {
        /// File or variable.
        origin: String,
        /// The version.
        version: u32,
    },
}

/// The form in files.
#[derive(Serialize, Deserialize)]
struct Text {
    version: u32,
    addresses: Vec<String>,
    epoch: u64,
    lease_ms: u64,
    key: String,
}

/// Other versions may have other fields.
#[derive(Deserialize)]
struct OnlyVersion {
    version: u32,
}

impl Endpoint {
    /// Where agents of this master listen for each other: on loopback if the master does.
    #[must_use]
    pub fn listen_like_master(&self) -> Listen {
        let is_loopback = |address: &String| {
            let socket = address.parse::<SocketAddr>();
            socket.is_ok_and(|socket| socket.ip().is_loopback())
        };
        match self.addresses.iter().all(is_loopback) {
            true => Listen::loopback(),
            false => Listen::default(),
        }
    }

    /// Reads the file. It must belong to this user, and nobody else may read it.
    ///
    /// # Errors
    /// The file is missing, not private, or no endpoint.
    pub fn read(path: &Path) -> Result<Self, EndpointError> {
        let failed = |source| EndpointError::Read {
            path: path.to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        // Neither a FIFO nor a link of somebody else may hold up or mislead the program.
        options
            .read(true)
            .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
        let file = options.open(path).map_err(failed)?;
        check_privacy(&file, path)?;
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).map_err(failed)?;
        Self::parse(&text, &format!("The file {}", path.display()))
    }

    /// Writes the file, readable for this user only. A reader sees the old file or the new one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), EndpointError> {
        let failed = |source| EndpointError::Write {
            path: path.to_owned(),
            source,
        };
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        // Such files have mode 600.
        let mut file = tempfile::Builder::new()
            .prefix(".endpoint-")
            .tempfile_in(folder)
            .map_err(failed)?;
        file.write_all(self.text().as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Returns whether both are of masters of one run, which share its key.
    #[must_use]
    pub fn is_of_run(&self, other: &Self) -> bool {
        self.key == other.key
    }

    /// Reads the value of `PMC_ENDPOINT`.
    ///
    /// # Errors
    /// The value is no endpoint.
    pub fn from_value(value: &str) -> Result<Self, EndpointError> {
        let origin = "The value of PMC_ENDPOINT";
        let bytes = STANDARD
            .decode(value.trim())
            .map_err(|error| invalid(origin, error))?;
        let text = String::from_utf8(bytes).map_err(|error| invalid(origin, error))?;
        Self::parse(&text, origin)
    }

    /// Returns a value for `PMC_ENDPOINT`.
    #[must_use]
    pub fn to_value(&self) -> String {
        STANDARD.encode(self.text())
    }

    fn text(&self) -> String {
        let text = Text {
            version: VERSION,
            addresses: self.addresses.clone(),
            epoch: self.epoch,
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            key: STANDARD.encode(self.key.as_bytes()),
        };
        // Numbers and strings always encode.
        serde_json::to_string_pretty(&text).unwrap_or_default() + "\n"
    }

    /// Reads the text of an endpoint. `origin` is the first words of messages.
    ///
    /// # Errors
    /// The text is no endpoint.
    pub fn parse(text: &str, origin: &str) -> Result<Self, EndpointError> {
        let OnlyVersion { version } = serde_json::from_str(text).map_err(|error| invalid(origin, error))?;
        if version != VERSION {
            return Err(EndpointError::Version {
                origin: origin.to_owned(),
                version,
            });
        }
        let text: Text = serde_json::from_str(text).map_err(|error| invalid(origin, error))?;
        if text.addresses.is_empty() {
            return Err(invalid(origin, "it has no address"));
        }
        let key = STANDARD
            .decode(&text.key)
            .map_err(|error| invalid(origin, error))?;
        let key = RunKey::from_bytes(key).map_err(|error: KeyError| invalid(origin, error))?;
        Ok(Self {
            addresses: text.addresses,
            epoch: text.epoch,
            lease: Duration::from_millis(text.lease_ms),
            key,
        })
    }
}

fn invalid(origin: &str, what: impl ToString) -> EndpointError {
    EndpointError::Invalid {
        origin: origin.to_owned(),
        what: what.to_string(),
    }
}

fn check_privacy(file: &File, path: &Path) -> Result<(), EndpointError> {
    let data = file.metadata().map_err(|source| EndpointError::Read {
        path: path.to_owned(),
        source,
    })?;
    let path = || path.to_owned();
    if !data.is_file() {
        return Err(invalid(
            &format!("The file {}", path().display()),
            "it is no regular file",
        ));
    }
    let owner = data.uid();
    if owner != nix::unistd::geteuid().as_raw() {
        return Err(EndpointError::Owner { path: path(), owner });
    }
    let mode = data.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(EndpointError::Readable { path: path(), mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    fn endpoint() -> Endpoint {
        Endpoint {
            addresses: vec!["n1:4711".to_owned(), "10.0.0.1:4711".to_owned()],
            epoch: 3,
            lease: Duration::from_secs(30),
            key: RunKey::generate().unwrap(),
        }
    }

    #[test]
    fn file_and_value_keep_everything() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.dag.endpoint");
        let endpoint = endpoint();
        endpoint.write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(Endpoint::read(&path).unwrap(), endpoint);
        assert_eq!(Endpoint::from_value(&endpoint.to_value()).unwrap(), endpoint);
        assert!(!format!("{endpoint:?}").contains(&STANDARD.encode(endpoint.key.as_bytes())));
    }

    #[test]
    fn agents_of_a_master_on_loopback_listen_there() {
        let at = |addresses: &[&str]| Endpoint {
            addresses: addresses.iter().map(|&address| address.to_owned()).collect(),
            ..endpoint()
        };
        let listen = |addresses: &[&str]| at(addresses).listen_like_master();
        assert_eq!(listen(&["127.0.0.1:4711"]), Listen::loopback());
        assert_eq!(listen(&["[::1]:4711"]), Listen::loopback());
        assert_eq!(listen(&["n1:4711", "127.0.0.1:4711"]), Listen::default());
        assert_eq!(listen(&["10.0.0.1:4711"]), Listen::default());
    }

    #[test]
    fn a_file_for_others_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.dag.endpoint");
        endpoint().write(&path).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = Endpoint::read(&path).unwrap_err();
            assert!(matches!(error, EndpointError::Readable { .. }), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(matches!(Endpoint::read(&link), Err(EndpointError::Read { .. })));
        assert!(matches!(
            Endpoint::read(folder.path()),
            Err(EndpointError::Invalid { .. })
        ));
    }

    #[test]
    fn another_version_is_named() {
        let text = "{\"version\": 9, \"something\": \"else\"}";
        let error = Endpoint::parse(text, "The file x").unwrap_err();
        assert_eq!(
            error.to_string(),
            "The file x has version 9, not 3: master and agent are different programs"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,200}", cut in 0usize..300) {
            let _ = Endpoint::parse(&text, "x");
            let _ = Endpoint::from_value(&text);
            let good = endpoint().text();
            let end = good.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(good.len());
            prop_assert_eq!(Endpoint::parse(&good[..end], "x").is_ok(), end >= good.trim_end().len());
        }
    }
}
