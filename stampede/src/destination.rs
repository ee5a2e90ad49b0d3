//! Where the rows go, and the URLs that name it: those of SQLAlchemy, as Pegasus' properties have them.

use std::fmt;
use std::path::{Path, PathBuf};

use monitord_compat::properties::Properties;

use crate::client::Tls;

/// Where the rows go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destination {
    /// To where the properties of the run say (`pegasus.catalog.workflow.url`), else into the database
    /// beside the log.
    #[default]
    AsPlanned,
    /// Into the database beside the log.
    BesideLog,
    /// Into this database.
    File(PathBuf),
    /// Into this database of a server.
    Server(Box<Server>),
    /// Nowhere; only the log of states is written.
    Nowhere,
}

/// A database of a PostgreSQL server.
#[derive(Clone, PartialEq, Eq)]
pub struct Server {
    /// Name or address, or the directory of its socket. None: the usual sockets of this machine.
    pub host: Option<String>,
    /// Port, 5432 if it is not named.
    pub port: u16,
    /// Account on the server; that of the process if it is not named.
    pub user: Option<String>,
    /// Password. It is never shown.
    pub password: Option<String>,
    /// Database; that of the account's name if it is not named.
    pub database: Option<String>,
    /// How long to wait.
    pub limits: Limits,
    /// Whether and how the connection is encrypted.
    pub tls: Tls,
    /// The URL as it was written.
    pub url: String,
}

/// How long to wait for a server, as far as the URL or the environment say so. Names in parentheses are those of
/// PostgreSQL's client library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Seconds to wait for a connection, 0 for ever (`connect_timeout`).
    pub connect: Option<u64>,
    /// 0: the system does not ask whether the other host is still there (`keepalives`).
    pub keepalives: Option<u32>,
    /// Seconds of silence before it asks, 0 as the system has it (`keepalives_idle`).
    pub idle: Option<u64>,
    /// Seconds between two questions, 0 as the system has it (`keepalives_interval`).
    pub interval: Option<u64>,
    /// Questions without an answer that end the connection, 0 as the system has it (`keepalives_count`).
    pub count: Option<u32>,
    /// Milliseconds for which what was sent may stay without acknowledgement, 0 as the system has it
    /// (`tcp_user_timeout`).
    pub acknowledged_ms: Option<u64>,
}

/// Port of a PostgreSQL server.
const PORT: u16 = 5432;

impl fmt::Display for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("postgresql://")?;
        if let Some(user) = &self.user {
            write!(out, "{user}@")?;
        }
        match self.host.as_deref() {
            Some(host) if host.starts_with('/') => write!(out, "{host}:{}", self.port)?,
            Some(host) if host.contains(':') => write!(out, "[{host}]:{}", self.port)?,
            Some(host) => write!(out, "{host}:{}", self.port)?,
            None if self.port == PORT => {}
            None => write!(out, ":{}", self.port)?,
        }
        write!(out, "/{}", self.database.as_deref().unwrap_or_default())
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// A URL that names no database to write to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another kind of database, or no database.
    #[error("{0}: only sqlite:///PATH and postgresql://USER@HOST/DATABASE are written here")]
    Kind(String),
    /// MySQL and MariaDB.
    #[error(
        "MySQL is not written here; use sqlite:///PATH, postgresql://USER@HOST/DATABASE, or pegasus-monitord"
    )]
    MySql,
    /// Something in a URL of PostgreSQL.
    #[error("postgresql://…: {0}")]
    Server(String),
    /// The program cannot do it.
    #[error("this program was built without the feature `postgresql`; use sqlite:///PATH")]
    Feature,
}

/// Reads a URL: `sqlite:///PATH` (a path from the root has four slashes),
/// `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE`, also with the name of a Python driver,
/// `postgresql+psycopg2://`. Where a socket is meant, its directory is the option `host`.
///
/// # Errors
/// It names no such database. The text never holds the password.
pub fn read_url(url: &str) -> Result<Destination, UrlError> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(UrlError::Kind(url.to_owned()));
    };
    match scheme.split('+').next().unwrap_or_default() {
        "sqlite" => match rest.strip_prefix("///").map(without_query) {
            Some(path) if !path.is_empty() => Ok(Destination::File(PathBuf::from(path))),
            _ => Err(UrlError::Kind(url.to_owned())),
        },
        "postgresql" | "postgres" if !cfg!(feature = "postgresql") => Err(UrlError::Feature),
        "postgresql" | "postgres" => {
            let server = read_server(rest, url).map_err(UrlError::Server)?;
            Ok(Destination::Server(Box::new(server)))
        }
        "mysql" | "mariadb" => Err(UrlError::MySql),
        // Whatever it is, what stands before an @ may be a password.
        _ => Err(UrlError::Kind(format!("{scheme}://…"))),
    }
}

fn without_query(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}

fn read_server(rest: &str, url: &str) -> Result<Server, String> {
    let rest = rest.strip_prefix("//").ok_or("two slashes follow the colon")?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let (account, address) = match authority.rsplit_once('@') {
        Some((account, address)) => (Some(account), address),
        None => (None, authority),
    };
    let (user, password) = match account.map(|account| account.split_once(':').unwrap_or((account, ""))) {
        Some((user, password)) => (decoded(user)?, decoded(password)?),
        None => (String::new(), String::new()),
    };
    let (host, port) = match address.strip_prefix('[') {
        Some(v6) => {
            let (host, port) = v6.split_once(']').ok_or("no ] after the address")?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => address.split_once(':').unwrap_or((address, "")),
    };
    let given = |text: String| Some(text).filter(|text| !text.is_empty());
    let mut server = Server {
        host: given(decoded(host)?),
        port: if port.is_empty() {
            PORT
        } else {
            number(port, "port")?
        },
        user: given(user),
        password: given(password),
        database: given(decoded(database)?),
        limits: Limits::default(),
        tls: Tls::default(),
        url: url.to_owned(),
    };
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let value = decoded(value)?;
        match key {
            "host" => server.host = given(value),
            "port" => server.port = number(&value, "port")?,
            "user" => server.user = given(value),
            "password" => server.password = given(value),
            "dbname" => server.database = given(value),
            "connect_timeout" => server.limits.connect = Some(seconds(&value, key)?),
            "keepalives" => server.limits.keepalives = Some(number(&value, key)?),
            "keepalives_idle" => server.limits.idle = Some(seconds(&value, key)?),
            "keepalives_interval" => server.limits.interval = Some(seconds(&value, key)?),
            "keepalives_count" => server.limits.count = Some(number(&value, key)?),
            "tcp_user_timeout" => server.limits.acknowledged_ms = Some(seconds(&value, key)?),
            "sslmode" => server.tls.mode = Some(value.parse().map_err(|error| format!("sslmode: {error}"))?),
            "sslrootcert" => server.tls.roots = given(value).map(PathBuf::from),
            "sslcert" => server.tls.certificate = given(value).map(PathBuf::from),
            "sslkey" => server.tls.key = given(value).map(PathBuf::from),
            "sslcrl" => server.tls.revoked = given(value).map(PathBuf::from),
            // It says who is connected, and does so here, too.
            "application_name" => {}
            _ => return Err(format!("unknown option {key}")),
        }
    }
    Ok(server)
}

fn number<N: std::str::FromStr>(text: &str, what: &str) -> Result<N, String> {
    text.parse()
        .map_err(|_| format!("{what} {text} is no number, or too large"))
}

/// A number of seconds or the like; those below zero are as good as zero.
pub(crate) fn seconds(text: &str, what: &str) -> Result<u64, String> {
    let count: i64 = number(text, what)?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Resolves `%XX`.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        // Not said which: it may be in the password.
        let wrong =
            || "a percent sign is not followed by two hexadecimal digits (itself it is %25)".to_owned();
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .ok_or_else(wrong)?;
        bytes.push(value);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())
}

/// What the settings of a run say about its databases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// The database of the workflow.
    pub workflow: Option<(&'static str, String)>,
    /// The list of all workflows.
    pub dashboard: Option<(&'static str, String)>,
}

impl Planned {
    /// Reads a file of properties.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let properties = Properties::parse(text);
        // The older name is still common.
        let first = |keys: [&'static str; 2]| {
            keys.into_iter()
                .find_map(|key| Some((key, properties.get(key)?.to_owned())))
        };
        Self {
            workflow: first(["pegasus.catalog.workflow.url", "pegasus.monitord.output"]),
            dashboard: first(["pegasus.catalog.master.url", "pegasus.dashboard.output"]),
        }
    }
}

/// The URL of a database in a file, as the dashboard's list has it.
#[must_use]
pub fn url_of(path: &Path) -> String {
    format!("sqlite:///{}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "postgresql")]
    use crate::client::SslMode;

    #[cfg(feature = "postgresql")]
    fn server(url: &str) -> Server {
        match read_url(url) {
            Ok(Destination::Server(server)) => *server,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn files() {
        let file = |path: &str| Ok(Destination::File(PathBuf::from(path)));
        assert_eq!(read_url("sqlite:////a/b.db"), file("/a/b.db"));
        assert_eq!(read_url("sqlite:///b.db?timeout=5"), file("b.db"));
        assert!(matches!(read_url("sqlite://"), Err(UrlError::Kind(_))));
    }

    #[cfg(feature = "postgresql")]
    #[test]
    fn servers() {
        let all = server(
            "postgresql+psycopg2://me:p%40ss:w@db.example.org:5433/runs?connect_timeout=7&sslmode=prefer",
        );
        assert_eq!(all.host.as_deref(), Some("db.example.org"));
        assert_eq!((all.port, all.limits.connect), (5433, Some(7)));
        assert_eq!(all.tls.mode, Some(SslMode::Prefer));
        assert_eq!(
            (all.user.as_deref(), all.password.as_deref()),
            (Some("me"), Some("p@ss:w"))
        );
        assert_eq!(all.database.as_deref(), Some("runs"));
        assert_eq!(all.to_string(), "postgresql://me@db.example.org:5433/runs");
        assert!(!format!("{all:?}").contains("p@ss"));

        let socket = server("postgres:///runs?host=/var/run/postgresql");
        assert_eq!(
            (socket.host.as_deref(), socket.user),
            (Some("/var/run/postgresql"), None)
        );
        let v6 = server("postgresql://u@[::1]:99/d");
        assert_eq!((v6.host.as_deref(), v6.port), (Some("::1"), 99));
        assert_eq!(v6.to_string(), "postgresql://u@[::1]:99/d");
        let least = server("postgresql://");
        assert_eq!((least.host, least.port, least.database), (None, 5432, None));
    }

    #[cfg(feature = "postgresql")]
    #[test]
    fn what_is_refused_keeps_the_password() {
        for (url, what) in [
            ("postgresql:db", "two slashes"),
            ("postgresql://u:secret@h:x/d", "port x is no number"),
            ("postgresql://u:secret%zz@h/d", "percent sign"),
            (
                "postgresql://u:secret@h/d?sslmode=on",
                "sslmode: on is none of disable, allow",
            ),
            ("postgresql://u:secret@h/d?speed=high", "unknown option speed"),
            ("mysql+pymysql://u:secret@h/d", "MySQL is not written"),
            ("amqp://u:secret@h/x", "amqp://…: only sqlite"),
            ("file", "file: only sqlite"),
        ] {
            let said = read_url(url).unwrap_err().to_string();
            assert!(said.contains(what) && !said.contains("secret"), "{url}: {said}");
        }
    }

    #[test]
    fn settings_of_a_run() {
        let planned = Planned::read("pegasus.monitord.output = a\npegasus.catalog.workflow.url=b\n");
        assert_eq!(
            planned.workflow,
            Some(("pegasus.catalog.workflow.url", "b".to_owned()))
        );
        assert_eq!(Planned::read("x=y").workflow, None);
        let planned = Planned::read("pegasus.monitord.output = a\npegasus.catalog.master.url: m");
        assert_eq!(
            planned.workflow,
            Some(("pegasus.monitord.output", "a".to_owned()))
        );
        assert_eq!(
            planned.dashboard,
            Some(("pegasus.catalog.master.url", "m".to_owned()))
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(postgresql|sqlite)?:?/{0,4}[a-z@:%\\[\\]/?=&0-9]{0,20}") {
            let _ = read_url(&text);
        }
    }
}
