//! Defaults for connections to PostgreSQL servers: variables of the environment and files in the home
//! directory.
//!
//! Names and meanings are those of PostgreSQL's client library, libpq.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::destination::{NumberError, Server, parse_seconds};
use crate::pgpass::{self, PasswordFileError};
use crate::ssl::{SslError, Tls};

/// Variables of the environment that are read.
pub const VARIABLES: [&str; 14] = [
    "PGPASSFILE",
    "PGCONNECT_TIMEOUT",
    "PGSSLMODE",
    "PGSSLROOTCERT",
    "PGSSLCERT",
    "PGSSLKEY",
    "PGSSLCRL",
    // Those of `UNSUPPORTED`.
    "PGSSLCRLDIR",
    "PGCHANNELBINDING",
    "PGREQUIREAUTH",
    "PGREQUIREPEER",
    "PGSSLMINPROTOCOLVERSION",
    "PGGSSENCMODE",
    "PGSSLCERTMODE",
];

/// Variables that may demand unsupported security, with the values that do not.
const UNSUPPORTED: [(&str, &[&str]); 7] = [
    ("PGSSLCRLDIR", &[]),
    ("PGCHANNELBINDING", &["prefer", "disable"]),
    ("PGREQUIREAUTH", &[]),
    ("PGREQUIREPEER", &[]),
    ("PGSSLMINPROTOCOLVERSION", &["TLSv1", "TLSv1.1", "TLSv1.2"]),
    ("PGGSSENCMODE", &["prefer", "disable"]),
    ("PGSSLCERTMODE", &["allow"]),
];

/// Settings in the environment for connections to PostgreSQL servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSettings {
    /// File of passwords.
    pub passwords: Option<PathBuf>,
    /// `PGSSLMODE`, which is parsed when there is a server.
    pub mode: Option<OsString>,
    /// `PGCONNECT_TIMEOUT`, which is parsed when there is a server.
    pub connect_timeout: Option<OsString>,
    /// Variables, with their values, that demand unsupported security.
    pub unsupported: Vec<(&'static str, OsString)>,
    /// Files for encrypted connections.
    pub tls: Tls,
}

/// Invalid settings in the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// A variable demands unsupported security.
    #[error("{name}={value} is not supported; unset {name} unless the connection needs it")]
    Unsupported {
        /// Variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// `PGCONNECT_TIMEOUT` is no number.
    #[error(transparent)]
    Number(#[from] NumberError),
    /// `PGSSLMODE` is no mode.
    #[error("PGSSLMODE: {0}")]
    SslMode(SslError),
}

impl ClientSettings {
    /// Reads the variables of the environment. `home` is the home directory.
    pub fn new(home: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let path = |name| variable(name).map(PathBuf::from);
        Self {
            passwords: path("PGPASSFILE").or_else(|| Some(home?.join(".pgpass"))),
            mode: variable("PGSSLMODE"),
            connect_timeout: variable("PGCONNECT_TIMEOUT"),
            unsupported: UNSUPPORTED
                .into_iter()
                .filter_map(|(name, harmless)| Some((name, harmless, variable(name)?)))
                .filter(|(_, harmless, value)| !harmless.iter().any(|harmless| value == harmless))
                .map(|(name, _, value)| (name, value))
                .collect(),
            tls: Tls {
                mode: None,
                roots: path("PGSSLROOTCERT"),
                certificate: path("PGSSLCERT"),
                key: path("PGSSLKEY"),
                revoked: path("PGSSLCRL"),
                default_dir: home.map(|home| home.join(".postgresql")),
            },
        }
    }

    /// Fills in the settings that the URL of a server lacks. `account` is that of the process. Calls `warn`
    /// if the file of passwords is not used.
    ///
    /// # Errors
    /// A variable has an invalid value, or demands unsupported security.
    pub fn complete(
        &self,
        server: &mut Server,
        account: &str,
        warn: impl FnOnce(PasswordFileError),
    ) -> Result<(), ClientError> {
        if let Some((name, value)) = self.unsupported.first() {
            let value = value.display().to_string();
            return Err(ClientError::Unsupported { name, value });
        }
        if let (None, Some(time)) = (server.limits.connect, &self.connect_timeout) {
            let time = time.to_str().unwrap_or("that is not UTF-8");
            server.limits.connect = Some(parse_seconds(time, "PGCONNECT_TIMEOUT")?);
        }
        if let (None, Some(path)) = (&server.password, &self.passwords) {
            match pgpass::password(path, server, account) {
                Ok(password) => server.password = password,
                Err(reason) => warn(reason),
            }
        }
        let tls = &mut server.tls;
        if let (None, Some(mode)) = (tls.mode, &self.mode) {
            let mode = mode.to_str().unwrap_or("a text that is not UTF-8");
            tls.mode = Some(mode.parse().map_err(ClientError::SslMode)?);
        }
        let fill = |path: &mut Option<PathBuf>, default: &Option<PathBuf>| {
            if path.is_none() {
                path.clone_from(default);
            }
        };
        fill(&mut tls.roots, &self.tls.roots);
        fill(&mut tls.certificate, &self.tls.certificate);
        fill(&mut tls.key, &self.tls.key);
        fill(&mut tls.revoked, &self.tls.revoked);
        fill(&mut tls.default_dir, &self.tls.default_dir);
        Ok(())
    }

    /// Reads the variables from names and values.
    #[must_use]
    pub fn of_pairs(home: Option<&Path>, pairs: &[(impl AsRef<OsStr>, OsString)]) -> Self {
        let value = |variable: &str| {
            let found = pairs.iter().find(|(name, _)| name.as_ref() == variable);
            found.map(|(_, value)| value.clone())
        };
        Self::new(home, value)
    }
}

#[cfg(test)]
#[cfg(feature = "postgresql")]
mod tests {
    use super::*;
    use crate::ssl::SslMode;

    #[test]
    fn the_url_overrides_the_environment() {
        use crate::destination::{Destination, read_url};
        let settings = ClientSettings::of_pairs(
            Some(Path::new("/home/u")),
            &[
                ("PGSSLMODE", "require".into()),
                ("PGSSLROOTCERT", "/site/ca.pem".into()),
                ("PGSSLKEY", "".into()),
            ],
        );
        assert_eq!(settings.passwords, Some("/home/u/.pgpass".into()));
        let complete = |url: &str, settings: &ClientSettings| {
            let Ok(Destination::Server(mut server)) = read_url(url) else {
                panic!("{url}");
            };
            settings
                .complete(&mut server, "me", |error| panic!("{error}"))
                .map(|()| server.tls)
        };
        let tls = complete("postgresql://h/d", &settings).unwrap();
        assert_eq!((tls.mode, tls.key.as_ref()), (Some(SslMode::Require), None));
        assert_eq!(tls.roots, Some("/site/ca.pem".into()));
        let default = |tls: &Tls| tls.file(tls.certificate.as_ref(), "postgresql.crt");
        assert_eq!(default(&tls), Some("/home/u/.postgresql/postgresql.crt".into()));
        let tls = complete(
            "postgresql://h/d?sslmode=verify-full&sslrootcert=/my.pem&sslcert=c&sslkey=k",
            &settings,
        )
        .unwrap();
        assert_eq!(
            (tls.mode, default(&tls)),
            (Some(SslMode::VerifyFull), Some("c".into()))
        );
        assert_eq!((tls.roots, tls.key), (Some("/my.pem".into()), Some("k".into())));
        let wrong = ClientSettings::of_pairs(None, &[("PGSSLMODE", "yes".into())]);
        assert!(
            complete("postgresql://h/d", &wrong)
                .unwrap_err()
                .to_string()
                .starts_with("PGSSLMODE: yes is none of")
        );
        assert!(complete("postgresql://h/d?sslmode=disable", &wrong).is_ok());
    }

    #[test]
    fn unsupported_demands_are_refused() {
        use crate::destination::{Destination, read_url};
        let complete = |variable: (&str, &str), url: &str| {
            assert!(VARIABLES.contains(&variable.0));
            let pairs = [(variable.0, variable.1.into())];
            let Ok(Destination::Server(mut server)) = read_url(url) else {
                panic!("{url}");
            };
            let settings = ClientSettings::of_pairs(None, &pairs);
            settings
                .complete(&mut server, "me", |error| panic!("{error}"))
                .map(|()| server)
        };
        let url = "postgresql://h/d";
        let time =
            |value, url| complete(("PGCONNECT_TIMEOUT", value), url).map(|server| server.limits.connect);
        assert_eq!(time("7", url), Ok(Some(7)));
        assert_eq!(time("-1", url), Ok(Some(0)));
        assert_eq!(time("7", "postgresql://h/d?connect_timeout=3"), Ok(Some(3)));
        assert_eq!(
            time("soon", url).unwrap_err().to_string(),
            "PGCONNECT_TIMEOUT soon is not a number, or too large"
        );
        assert_eq!(
            complete(("PGSSLCRL", "/site/revoked.pem"), url)
                .unwrap()
                .tls
                .revoked,
            Some("/site/revoked.pem".into())
        );
        for (name, harmless) in UNSUPPORTED {
            let error = complete((name, "require"), url).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("{name}=require is not supported")),
                "{error}"
            );
            assert!(harmless.iter().all(|value| complete((name, value), url).is_ok()));
            assert!(complete((name, ""), url).is_ok());
        }
    }
}
