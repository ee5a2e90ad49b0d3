//! What a URL of a PostgreSQL server leaves open, and where PostgreSQL's own programs look for it: variables of the
//! environment and files in the user's directory. Names and meaning are those of its client library, libpq.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::destination::{Server, seconds};
use crate::pgpass;

/// Variables of the environment that count.
pub const VARIABLES: [&str; 14] = [
    "PGPASSFILE",
    "PGCONNECT_TIMEOUT",
    "PGSSLMODE",
    "PGSSLROOTCERT",
    "PGSSLCERT",
    "PGSSLKEY",
    "PGSSLCRL",
    // Those of `DEMANDS`.
    "PGSSLCRLDIR",
    "PGCHANNELBINDING",
    "PGREQUIREAUTH",
    "PGREQUIREPEER",
    "PGSSLMINPROTOCOLVERSION",
    "PGGSSENCMODE",
    "PGSSLCERTMODE",
];

/// Variables that may demand more security than there is here, with the values that do not.
const DEMANDS: [(&str, &[&str]); 7] = [
    ("PGSSLCRLDIR", &[]),
    ("PGCHANNELBINDING", &["prefer", "disable"]),
    ("PGREQUIREAUTH", &[]),
    ("PGREQUIREPEER", &[]),
    ("PGSSLMINPROTOCOLVERSION", &["TLSv1", "TLSv1.1", "TLSv1.2"]),
    ("PGGSSENCMODE", &["prefer", "disable"]),
    ("PGSSLCERTMODE", &["allow"]),
];

/// The word instead of a file of certificates that means those of the machine.
pub const SYSTEM: &str = "system";

/// `sslmode`: whether a connection is encrypted, and what is checked of the server's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum SslMode {
    /// Never.
    Disable,
    /// If the server does not take the connection otherwise.
    Allow,
    /// If the server can.
    #[default]
    Prefer,
    /// Always.
    Require,
    /// Always, with a certificate from an authority that is trusted.
    VerifyCa,
    /// The same, and the certificate is for the host that the URL names.
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

impl FromStr for SslMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::NAMES.into_iter().find(|(_, name)| *name == text);
        known.map(|(mode, _)| mode).ok_or_else(|| {
            let names = Self::NAMES.map(|(_, name)| name).join(", ");
            format!("{text} is none of {names}")
        })
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Self::NAMES.into_iter().find(|(mode, _)| mode == self);
        out.write_str(known.map_or("", |(_, name)| name))
    }
}

/// What is known of encrypted connections to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// `sslmode`.
    pub mode: Option<SslMode>,
    /// `sslrootcert`: certificates of the authorities that are trusted, or [`SYSTEM`].
    pub roots: Option<PathBuf>,
    /// `sslcert`: certificate of this client.
    pub certificate: Option<PathBuf>,
    /// `sslkey`: its key.
    pub key: Option<PathBuf>,
    /// `sslcrl`: lists of certificates that were revoked.
    pub revoked: Option<PathBuf>,
    /// The user's directory for files that are used if they are there, `~/.postgresql`.
    pub usual: Option<PathBuf>,
}

impl Tls {
    /// Whether the certificates of the machine are meant.
    #[must_use]
    pub fn of_system(&self) -> bool {
        self.roots.as_deref() == Some(Path::new(SYSTEM))
    }

    /// The mode that counts.
    ///
    /// # Errors
    /// It is too weak for the certificates of the machine: anybody has one from those authorities.
    pub fn mode(&self) -> Result<SslMode, String> {
        match (self.mode, self.of_system()) {
            (None, true) => Ok(SslMode::VerifyFull),
            (Some(mode), true) if mode < SslMode::VerifyFull => Err(format!(
                "sslmode={mode} is too weak for sslrootcert={SYSTEM}; use verify-full"
            )),
            (mode, _) => Ok(mode.unwrap_or_default()),
        }
    }

    /// A file, or the usual one if none is named.
    #[must_use]
    pub fn file(&self, named: Option<&PathBuf>, usual: &str) -> Option<PathBuf> {
        named.cloned().or_else(|| Some(self.usual.as_ref()?.join(usual)))
    }
}

/// What the environment says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientSettings {
    /// File of passwords.
    pub passwords: Option<PathBuf>,
    /// `PGSSLMODE`; it is read when there is a server.
    pub mode: Option<OsString>,
    /// `PGCONNECT_TIMEOUT`; the same.
    pub connect_timeout: Option<OsString>,
    /// Variables, with their values, that demand what is not there.
    pub demands: Vec<(&'static str, OsString)>,
    /// The rest.
    pub tls: Tls,
}

impl ClientSettings {
    /// What the variables of the environment say; `home` is the user's directory.
    pub fn new(home: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        let path = |name| variable(name).map(PathBuf::from);
        Self {
            passwords: path("PGPASSFILE").or_else(|| Some(home?.join(".pgpass"))),
            mode: variable("PGSSLMODE"),
            connect_timeout: variable("PGCONNECT_TIMEOUT"),
            demands: DEMANDS
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
                usual: home.map(|home| home.join(".postgresql")),
            },
        }
    }

    /// Fills in what the URL of a server leaves open. `me` is the account of the process; `warn` is told why
    /// the file of passwords is not used.
    ///
    /// # Errors
    /// `PGSSLMODE` is no mode, `PGCONNECT_TIMEOUT` no number, or a variable demands what is not there.
    pub fn complete(&self, server: &mut Server, me: &str, warn: impl FnOnce(String)) -> Result<(), String> {
        if let Some((name, value)) = self.demands.first() {
            let value = value.display();
            return Err(format!(
                "{name}={value} cannot be complied with here; unset {name} if the connection needs it not"
            ));
        }
        if let (None, Some(time)) = (server.limits.connect, &self.connect_timeout) {
            let time = time.to_str().unwrap_or("that is not UTF-8");
            server.limits.connect = Some(seconds(time, "PGCONNECT_TIMEOUT")?);
        }
        if let (None, Some(path)) = (&server.password, &self.passwords) {
            match pgpass::password(path, server, me) {
                Ok(found) => server.password = found,
                Err(reason) => warn(reason),
            }
        }
        let tls = &mut server.tls;
        if let (None, Some(mode)) = (tls.mode, &self.mode) {
            let mode = mode.to_str().unwrap_or("a text that is not UTF-8");
            tls.mode = Some(mode.parse().map_err(|error| format!("PGSSLMODE: {error}"))?);
        }
        let own = |named: &mut Option<PathBuf>, known: &Option<PathBuf>| {
            if named.is_none() {
                named.clone_from(known);
            }
        };
        own(&mut tls.roots, &self.tls.roots);
        own(&mut tls.certificate, &self.tls.certificate);
        own(&mut tls.key, &self.tls.key);
        own(&mut tls.revoked, &self.tls.revoked);
        own(&mut tls.usual, &self.tls.usual);
        Ok(())
    }

    /// The same from names and values.
    #[must_use]
    pub fn of_pairs(home: Option<&Path>, pairs: &[(impl AsRef<OsStr>, OsString)]) -> Self {
        let value = |wanted: &str| {
            let found = pairs.iter().find(|(name, _)| name.as_ref() == wanted);
            found.map(|(_, value)| value.clone())
        };
        Self::new(home, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        for (mode, name) in SslMode::NAMES {
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(mode.to_string(), name);
        }
        assert_eq!(
            "on".parse::<SslMode>(),
            Err("on is none of disable, allow, prefer, require, verify-ca, verify-full".to_owned())
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
            tls(Some(SslMode::VerifyCa), Some("system")).unwrap_err(),
            "sslmode=verify-ca is too weak for sslrootcert=system; use verify-full"
        );
    }

    #[cfg(feature = "postgresql")]
    #[test]
    fn the_url_comes_first() {
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
                .complete(&mut server, "me", |reason| panic!("{reason}"))
                .map(|()| server.tls)
        };
        let tls = complete("postgresql://h/d", &settings).unwrap();
        assert_eq!((tls.mode, tls.key.as_ref()), (Some(SslMode::Require), None));
        assert_eq!(tls.roots, Some("/site/ca.pem".into()));
        let usual = |tls: &Tls| tls.file(tls.certificate.as_ref(), "postgresql.crt");
        assert_eq!(usual(&tls), Some("/home/u/.postgresql/postgresql.crt".into()));
        let tls = complete(
            "postgresql://h/d?sslmode=verify-full&sslrootcert=/my.pem&sslcert=c&sslkey=k",
            &settings,
        )
        .unwrap();
        assert_eq!(
            (tls.mode, usual(&tls)),
            (Some(SslMode::VerifyFull), Some("c".into()))
        );
        assert_eq!((tls.roots, tls.key), (Some("/my.pem".into()), Some("k".into())));
        let wrong = ClientSettings::of_pairs(None, &[("PGSSLMODE", "yes".into())]);
        assert!(
            complete("postgresql://h/d", &wrong)
                .unwrap_err()
                .starts_with("PGSSLMODE: yes is none of")
        );
        assert!(complete("postgresql://h/d?sslmode=disable", &wrong).is_ok());
    }

    #[cfg(feature = "postgresql")]
    #[test]
    fn what_the_environment_demands() {
        use crate::destination::{Destination, read_url};
        let complete = |variable: (&str, &str), url: &str| {
            assert!(VARIABLES.contains(&variable.0));
            let pairs = [(variable.0, variable.1.into())];
            let Ok(Destination::Server(mut server)) = read_url(url) else {
                panic!("{url}");
            };
            let settings = ClientSettings::of_pairs(None, &pairs);
            settings
                .complete(&mut server, "me", |reason| panic!("{reason}"))
                .map(|()| server)
        };
        let url = "postgresql://h/d";
        let time =
            |value, url| complete(("PGCONNECT_TIMEOUT", value), url).map(|server| server.limits.connect);
        assert_eq!(time("7", url), Ok(Some(7)));
        assert_eq!(time("-1", url), Ok(Some(0)));
        assert_eq!(time("7", "postgresql://h/d?connect_timeout=3"), Ok(Some(3)));
        assert_eq!(
            time("soon", url).unwrap_err(),
            "PGCONNECT_TIMEOUT soon is no number, or too large"
        );
        assert_eq!(
            complete(("PGSSLCRL", "/site/revoked.pem"), url)
                .unwrap()
                .tls
                .revoked,
            Some("/site/revoked.pem".into())
        );
        for (name, harmless) in DEMANDS {
            let said = complete((name, "require"), url).unwrap_err();
            assert!(said.starts_with(&format!("{name}=require cannot be")), "{said}");
            assert!(harmless.iter().all(|value| complete((name, value), url).is_ok()));
            assert!(complete((name, ""), url).is_ok());
        }
    }
}
