//! Settings for encrypted connections to PostgreSQL servers, with the names of its client library, libpq.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Value of `sslrootcert` for the certificates of the machine.
pub const SYSTEM: &str = "system";

/// `sslmode`: whether a connection is encrypted, and how the certificate of the server is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// Not encrypted.
    Disable,
    /// Encrypted if the server refuses the connection otherwise.
    Allow,
    /// Encrypted if the server supports it.
    #[default]
    Prefer,
    /// Encrypted.
    Require,
    /// Encrypted, with a certificate of a trusted authority.
    VerifyCa,
    /// Encrypted, with a certificate of a trusted authority for the host in the URL.
    VerifyFull,
}

impl SslMode {
    const NAMES: [(Self, &'static str); 6] = [
        (Self::Disable, "disable"),
        (Self::Allow, "allow"),
        (Self::Prefer, "prefer"),
        (Self::Require, "require"),
        (Self::VerifyCa, "verify-ca"),
        (Self::VerifyFull, "verify-full"),
    ];
}

/// Errors of settings for encrypted connections.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SslError {
    /// Unknown mode.
    #[error("{text} is none of {}", SslMode::NAMES.map(|(_, name)| name).join(", "))]
    UnknownMode {
        /// The text.
        text: String,
    },
    /// The mode is too weak for the certificates of the machine: anybody can get one from those authorities.
    #[error("sslmode={0} is too weak for sslrootcert={SYSTEM}; use verify-full")]
    WeakMode(SslMode),
}

impl FromStr for SslMode {
    type Err = SslError;

    fn from_str(text: &str) -> Result<Self, SslError> {
        let known = Self::NAMES.into_iter().find(|(_, name)| *name == text);
        known.map(|(mode, _)| mode).ok_or_else(|| SslError::UnknownMode {
            text: text.to_owned(),
        })
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Self::NAMES.into_iter().find(|(mode, _)| mode == self);
        out.write_str(known.map_or("", |(_, name)| name))
    }
}

/// Settings for encrypted connections to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// `sslmode`.
    pub mode: Option<SslMode>,
    /// `sslrootcert`: certificates of the trusted authorities, or [`SYSTEM`].
    pub roots: Option<PathBuf>,
    /// `sslcert`: certificate of this client.
    pub certificate: Option<PathBuf>,
    /// `sslkey`: its key.
    pub key: Option<PathBuf>,
    /// `sslcrl`: lists of revoked certificates.
    pub revoked: Option<PathBuf>,
    /// Directory of default files, `~/.postgresql`.
    pub default_dir: Option<PathBuf>,
}

impl Tls {
    /// Returns whether the certificates of the machine are trusted.
    #[must_use]
    pub fn uses_system(&self) -> bool {
        self.roots.as_deref() == Some(Path::new(SYSTEM))
    }

    /// Returns the mode, or its default.
    ///
    /// # Errors
    /// [`SslError::WeakMode`].
    pub fn mode(&self) -> Result<SslMode, SslError> {
        match (self.mode, self.uses_system()) {
            (None, true) => Ok(SslMode::VerifyFull),
            (Some(mode), true) if mode < SslMode::VerifyFull => Err(SslError::WeakMode(mode)),
            (mode, _) => Ok(mode.unwrap_or_default()),
        }
    }

    /// Returns an explicit file, else the default file with this name.
    #[must_use]
    pub fn file(&self, explicit: Option<&PathBuf>, default: &str) -> Option<PathBuf> {
        explicit
            .cloned()
            .or_else(|| Some(self.default_dir.as_ref()?.join(default)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names_and_a_default() {
        for (mode, name) in SslMode::NAMES {
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(mode.to_string(), name);
        }
        assert_eq!(
            "on".parse::<SslMode>(),
            Err(SslError::UnknownMode {
                text: "on".to_owned()
            })
        );
        let tls = |mode, roots: Option<&str>| {
            let roots = roots.map(PathBuf::from);
            Tls {
                mode,
                roots,
                ..Tls::default()
            }
            .mode()
        };
        assert_eq!(tls(None, None), Ok(SslMode::Prefer));
        assert_eq!(tls(None, Some("system")), Ok(SslMode::VerifyFull));
        assert_eq!(tls(Some(SslMode::Require), Some("/ca.pem")), Ok(SslMode::Require));
        assert_eq!(
            tls(Some(SslMode::VerifyCa), Some("system"))
                .unwrap_err()
                .to_string(),
            "sslmode=verify-ca is too weak for sslrootcert=system; use verify-full"
        );
    }
}
