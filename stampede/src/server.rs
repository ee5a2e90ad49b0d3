//! Databases of PostgreSQL servers, and their URLs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::client::{ClientSettings, VariableError};
use crate::pgpass::{self, PasswordFileError};

/// Options that a URL may override, with the names of [`Config`].
const DEFAULTS: &str = "connect_timeout=15&keepalives_idle=60&tcp_user_timeout=60";

/// Default port.
const DEFAULT_PORT: u16 = 5432;

/// Default directories of sockets of this machine, which differ between distributions.
const SOCKETS: [&str; 3] = ["/var/run/postgresql", "/run/postgresql", "/tmp"];

/// A database of a PostgreSQL server.
#[derive(Clone, PartialEq, Eq)]
pub struct Server {
    /// Hosts, account, database, time limits.
    pub config: Config,
    /// The certificates that are accepted.
    pub trust: Trust,
    /// The original URL, with its password.
    pub url: String,
}

/// The certificates of servers that are accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// Any certificate.
    #[default]
    Any,
    /// Those for the host that the authorities of this machine have signed.
    Machine,
    /// Those for the host that the authorities in this file have signed.
    File(PathBuf),
}

/// An error in a URL of PostgreSQL. No message contains the password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message describes it")]
pub enum ServerUrlError {
    #[error("two slashes follow the colon")]
    Slashes,
    #[error("write the characters @ / ? of an account, a password or an option as %40 %2F %3F")]
    Account,
    #[error("no host; for a socket of this machine, use postgresql:///DATABASE?host=DIRECTORY&port=PORT")]
    NoHost,
    #[error("give one port for all hosts, or one for each: HOST:PORT,HOST:PORT")]
    Count,
    #[error("sslmode={0} is not supported; use disable, prefer, require, or verify-full")]
    Mode(String),
    #[error("sslrootcert needs sslmode=verify-full, which checks the certificate and its host")]
    Roots,
    #[error("{0} is not supported; remove it, or load the run with pegasus-monitord")]
    Unsupported(String),
    #[error("{0}")]
    Other(String),
}

/// The options of a URL: those of this program, and text for the library.
#[derive(Default)]
struct UrlOptions {
    text: String,
    is_verified: bool,
    roots: Option<PathBuf>,
    unacknowledged: Option<Duration>,
}

impl UrlOptions {
    fn read(query: &str) -> Result<Self, ServerUrlError> {
        let mut options = Self {
            text: DEFAULTS.to_owned(),
            ..Self::default()
        };
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            options.add(key, value)?;
        }
        Ok(options)
    }

    fn add(&mut self, key: &str, value: &str) -> Result<(), ServerUrlError> {
        let (key, value) = match (key, value) {
            ("sslmode", mode) => {
                self.is_verified = mode == "verify-full";
                match mode {
                    "disable" | "prefer" | "require" => (key, mode),
                    "verify-full" => (key, "require"),
                    _ => return Err(ServerUrlError::Mode(mode.to_owned())),
                }
            }
            ("sslrootcert", file) => {
                let file = percent_encoding::percent_decode_str(file).decode_utf8_lossy();
                self.roots = Some(PathBuf::from(file.into_owned()));
                return Ok(());
            }
            // The library counts seconds.
            ("tcp_user_timeout", milliseconds) => {
                let invalid = |_| ServerUrlError::Other(format!("invalid value for option `{key}`"));
                let time = milliseconds.parse().map_err(invalid)?;
                self.unacknowledged = Some(Duration::from_millis(time));
                return Ok(());
            }
            ("keepalives_count", count) => ("keepalives_retries", count),
            (key, _) if key.starts_with("ssl") => return Err(ServerUrlError::Unsupported(key.to_owned())),
            other => other,
        };
        self.text.extend(["&", key, "=", value]);
        Ok(())
    }

    fn trust(self) -> Result<Trust, ServerUrlError> {
        match self.roots {
            None if self.is_verified => Ok(Trust::Machine),
            None => Ok(Trust::Any),
            Some(_) if !self.is_verified => Err(ServerUrlError::Roots),
            Some(file) if file.as_os_str() == "system" => Ok(Trust::Machine),
            Some(file) => Ok(Trust::File(file)),
        }
    }
}

impl Server {
    /// Reads `url`; `rest` is what follows its scheme.
    pub(crate) fn read(rest: &str, url: &str) -> Result<Self, ServerUrlError> {
        let rest = rest.strip_prefix("//").ok_or(ServerUrlError::Slashes)?;
        // The library ends the account at the first @, so nothing behind it is part of the password.
        let (account, place) = rest.split_at(rest.find('@').map_or(0, |at| at + 1));
        let (place, query) = place.split_once('?').unwrap_or((place, ""));
        let user = account.split(':').next().unwrap_or_default();
        if user.contains(['/', '?']) || place.split('/').next().is_some_and(|hosts| hosts.contains('@')) {
            return Err(ServerUrlError::Account);
        }
        let options = UrlOptions::read(query)?;
        let text = format!("postgresql://{account}{place}?{}", options.text);
        let mut config: Config = text.parse().map_err(invalid)?;
        if let Some(time) = options.unacknowledged {
            config.tcp_user_timeout(time);
        }
        complete_hosts(&mut config)?;
        Ok(Self {
            config,
            trust: options.trust()?,
            url: url.to_owned(),
        })
    }

    /// Fills in account and password, if the URL lacks them. `account` is that of the process. Calls `warn`
    /// if the file of passwords is not used.
    ///
    /// # Errors
    /// A variable of the environment demands security, and the URL has no such option.
    pub fn complete(
        &mut self,
        settings: &ClientSettings,
        account: &str,
        warn: impl FnOnce(PasswordFileError),
    ) -> Result<(), VariableError> {
        let (_, query) = self.url.split_once('?').unwrap_or_default();
        let has_option = |variable: &str| {
            let option = variable.trim_start_matches("PG").to_lowercase();
            let mut keys = query.split('&').filter_map(|option| option.split('=').next());
            keys.any(|key| key.replace('_', "") == option)
        };
        if let Some(name) = settings.demands.iter().find(|name| !has_option(name)) {
            return Err(VariableError(name));
        }
        let config = &mut self.config;
        if config.get_user().is_none_or(str::is_empty) {
            config.user(account);
        }
        if config.get_password().is_none_or(<[u8]>::is_empty)
            && let Some(path) = &settings.passwords
        {
            match pgpass::password(path, &password_key(config)) {
                Ok(Some(password)) => _ = config.password(password),
                Ok(None) => {}
                Err(reason) => warn(reason),
            }
        }
        Ok(())
    }
}

/// Host, port, database and account, as the file of passwords has them.
fn password_key(config: &Config) -> [String; 4] {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(directory)) if !SOCKETS.iter().any(|socket| directory == Path::new(socket)) => {
            directory.display().to_string()
        }
        _ => "localhost".to_owned(),
    };
    let port = config.get_ports().first().copied().unwrap_or(DEFAULT_PORT);
    let user = config.get_user().unwrap_or_default();
    let database = config.get_dbname().unwrap_or(user);
    [host, port.to_string(), database.to_owned(), user.to_owned()]
}

/// The message of the library, which does not contain values.
fn invalid(error: tokio_postgres::Error) -> ServerUrlError {
    let source = std::error::Error::source(&error);
    ServerUrlError::Other(source.map_or_else(|| error.to_string(), ToString::to_string))
}

fn complete_hosts(config: &mut Config) -> Result<(), ServerUrlError> {
    if config.get_hosts().contains(&Host::Tcp(String::new())) {
        return Err(ServerUrlError::NoHost);
    }
    // An encrypted connection needs a host to ask for.
    if config.get_hosts().is_empty() {
        for address in config.get_hostaddrs().to_vec() {
            config.host(address.to_string());
        }
    }
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let differs = |count: usize, least: usize| count > least && count != hosts.len();
    if differs(ports.len(), 1) || differs(addresses.len(), 0) {
        return Err(ServerUrlError::Count);
    }
    if hosts.is_empty() {
        let socket = format!(".s.PGSQL.{}", ports.first().unwrap_or(&DEFAULT_PORT));
        let exists = |directory: &&str| Path::new(directory).join(&socket).exists();
        config.host_path(SOCKETS.into_iter().find(exists).unwrap_or(SOCKETS[0]));
    }
    // A socket of this machine needs no encryption.
    let hosts = config.get_hosts();
    if hosts.iter().all(|host| matches!(host, Host::Unix(_))) {
        config.ssl_mode(SslMode::Disable);
    }
    Ok(())
}

impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        out.write_str("postgresql://")?;
        if let Some(user) = config.get_user() {
            write!(out, "{user}@")?;
        }
        for (number, host) in config.get_hosts().iter().enumerate() {
            let before = if number == 0 { "" } else { "," };
            match host {
                Host::Tcp(name) if name.contains(':') => write!(out, "{before}[{name}]")?,
                Host::Tcp(name) => write!(out, "{before}{name}")?,
                Host::Unix(directory) => write!(out, "{before}{}", directory.display())?,
            }
            let ports = config.get_ports();
            if let Some(port) = ports.get(number).or(ports.first()) {
                write!(out, ":{port}")?;
            }
        }
        write!(out, "/{}", config.get_dbname().unwrap_or_default())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::{Destination, read_url};

    fn server(url: &str) -> Server {
        match read_url(url) {
            Ok(Destination::Server(server)) => *server,
            other => panic!("{url}: {other:?}"),
        }
    }

    /// Completes the URL without a file of passwords.
    fn completed(url: &str, variables: &[(&str, &str)]) -> Result<Server, VariableError> {
        let pairs: Vec<_> = variables
            .iter()
            .map(|(name, value)| (name, value.into()))
            .collect();
        let mut server = server(url);
        server.complete(&ClientSettings::of_pairs(None, &pairs), "me", |error| {
            panic!("{error}")
        })?;
        Ok(server)
    }

    #[test]
    fn urls_of_servers() {
        let all = server(
            "postgresql+psycopg2://me:p%40ss:w@db.example.org:5433/runs?connect_timeout=7&keepalives_count=3\
             &tcp_user_timeout=500&sslmode=prefer",
        );
        let config = &all.config;
        assert_eq!(
            (config.get_user(), config.get_dbname()),
            (Some("me"), Some("runs"))
        );
        assert_eq!(config.get_password(), Some(&b"p@ss:w"[..]));
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(7)));
        assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_millis(500)));
        assert_eq!(config.get_keepalives_retries(), Some(3));
        assert_eq!(config.get_ssl_mode(), SslMode::Prefer);
        assert_eq!(all.to_string(), "postgresql://me@db.example.org:5433/runs");
        assert!(!format!("{all:?}").contains("p@ss"));

        let config = server("postgresql://h/d").config;
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(15)));
        assert_eq!(config.get_keepalives_idle(), Duration::from_secs(60));
        let socket = server("postgres:///runs?host=/srv/pg&sslmode=require");
        assert_eq!(socket.config.get_ssl_mode(), SslMode::Disable);
        assert_eq!(socket.to_string(), "postgresql:///srv/pg/runs");
        let text = server("postgresql://").to_string();
        assert!(
            SOCKETS
                .iter()
                .any(|socket| text == format!("postgresql://{socket}/")),
            "{text}"
        );
        assert_eq!(
            server("postgresql://u@[::1]:99/d").to_string(),
            "postgresql://u@[::1]:99/d"
        );
        let two = server("postgresql://u:a/b@h1:1,h2:2/d");
        assert_eq!(two.to_string(), "postgresql://u@h1:1,h2:2/d");
        let address = server("postgresql://u@/d?hostaddr=192.0.2.1&port=7");
        assert_eq!(address.to_string(), "postgresql://u@192.0.2.1:7/d");
    }

    #[test]
    fn errors_do_not_contain_the_password() {
        for (url, what) in [
            ("postgresql:db", "two slashes"),
            ("postgresql://u:secret@h:x/d", "invalid value for option `port`"),
            ("postgresql://u:secret@h/d?port=1", "one port for all hosts"),
            (
                "postgresql://u:secret@h1:1,h2/d?hostaddr=192.0.2.1",
                "one port for all hosts",
            ),
            ("postgresql://u:secret@:5433/d", "?host=DIRECTORY&port=PORT"),
            ("postgresql://u:x@secret@h/d", "as %40 %2F %3F"),
            ("postgresql:///d?password=secret@h", "as %40 %2F %3F"),
            (
                "postgresql://u:secret@h/d?sslmode=allow",
                "sslmode=allow is not supported; use disable,",
            ),
            (
                "postgresql://u:secret@h/d?sslmode=verify-ca",
                "prefer, require, or verify-full",
            ),
            (
                "postgresql://u:secret@h/d?sslrootcert=/ca.pem",
                "sslrootcert needs sslmode=verify-full",
            ),
            (
                "postgresql://u:secret@h/d?sslcert=/c.pem",
                "sslcert is not supported; remove it",
            ),
            (
                "postgresql://u:secret@h/d?sslcrl=/c.pem",
                "sslcrl is not supported; remove it",
            ),
            ("postgresql://u:secret@h/d?speed=high", "unknown option `speed`"),
            ("postgresql://u:secret@h/d?speed", "unknown option `speed`"),
            (
                "postgresql://u:secret@h/d?connect_timeout=soon",
                "option `connect_timeout`",
            ),
            (
                "postgresql://u:secret@h/d?tcp_user_timeout=-1",
                "option `tcp_user_timeout`",
            ),
        ] {
            let error = read_url(url).unwrap_err().to_string();
            assert!(
                error.contains(what) && !error.contains("secret"),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn certificates_are_checked_with_verify_full() {
        let trust = |options: &str| server(&format!("postgresql://h/d?{options}")).trust;
        assert_eq!(trust("sslmode=require"), Trust::Any);
        assert_eq!(trust("sslmode=verify-full"), Trust::Machine);
        assert_eq!(trust("sslmode=verify-full&sslrootcert=system"), Trust::Machine);
        let file = Trust::File("/my ca.pem".into());
        assert_eq!(trust("sslrootcert=%2Fmy%20ca.pem&sslmode=verify-full"), file);
    }

    #[test]
    fn variables_that_demand_security_are_refused() {
        let url = "postgresql://h/d?sslmode=verify-full&sslrootcert=/ca.pem";
        for name in crate::client::VARIABLES.into_iter().skip(1) {
            let error = completed("postgresql://h/d", &[(name, "require")]).unwrap_err();
            assert!(
                error
                    .to_string()
                    .contains(&format!("{name} is not supported; unset it"))
            );
            assert!(completed("postgresql://h/d", &[(name, "prefer")]).is_ok());
            let is_option = matches!(name, "PGSSLMODE" | "PGSSLROOTCERT");
            assert_eq!(completed(url, &[(name, "require")]).is_ok(), is_option, "{name}");
        }
        let url = "postgresql://h/d?channel_binding=require";
        assert!(completed(url, &[("PGCHANNELBINDING", "require")]).is_ok());
    }

    #[test]
    fn keys_of_the_file_of_passwords() {
        for (url, key) in [
            (
                "postgresql://u@db.example.org/runs",
                ["db.example.org", "5432", "runs", "u"],
            ),
            (
                "postgresql://db.example.org:99",
                ["db.example.org", "99", "me", "me"],
            ),
            (
                "postgresql:///here?host=/tmp",
                ["localhost", "5432", "here", "me"],
            ),
            ("postgresql:///here", ["localhost", "5432", "here", "me"]),
            (
                "postgresql:///here?host=/srv/pg",
                ["/srv/pg", "5432", "here", "me"],
            ),
        ] {
            let server = completed(url, &[]).unwrap();
            assert_eq!(password_key(&server.config), key, "{url}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(postgresql|sqlite)?:?/{0,4}[a-z@:%\\[\\]/?=&0-9]{0,20}") {
            let _ = read_url(&text);
        }
    }
}
