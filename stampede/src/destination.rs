//! Destinations of rows, and their URLs: those of SQLAlchemy, as in Pegasus' properties.

use std::fmt;
use std::path::{Path, PathBuf};

use monitord_compat::properties::Properties;

use crate::ssl::{SslError, Tls};

/// Destination of the rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Destination {
    /// The database in the properties of the run (`pegasus.catalog.workflow.url`), else the one beside the
    /// log.
    #[default]
    AsPlanned,
    /// The database beside the log.
    BesideLog,
    /// A database in a file.
    File(PathBuf),
    /// A database on a server.
    Server(Box<Server>),
    /// No database: only the log of states is written.
    Nowhere,
}

/// A database of a PostgreSQL server.
#[derive(Clone, PartialEq, Eq)]
pub struct Server {
    /// Name or address, or the directory of its socket. `None`: the default sockets of this machine.
    pub host: Option<String>,
    /// Port, by default 5432.
    pub port: u16,
    /// Account on the server, by default that of the process.
    pub user: Option<String>,
    /// Password, which no message contains.
    pub password: Option<String>,
    /// Database, by default with the name of the account.
    pub database: Option<String>,
    /// Time limits.
    pub limits: Limits,
    /// Settings for encryption.
    pub tls: Tls,
    /// The original URL.
    pub url: String,
}

/// Time limits in the URL or the environment. Names in parentheses are those of PostgreSQL's client library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Seconds to wait for a connection; 0: no limit (`connect_timeout`).
    pub connect: Option<u64>,
    /// 0: no keepalive probes (`keepalives`).
    pub keepalives: Option<u32>,
    /// Idle seconds before the first probe; 0: default of the system (`keepalives_idle`).
    pub idle: Option<u64>,
    /// Seconds between two probes; 0: default of the system (`keepalives_interval`).
    pub interval: Option<u64>,
    /// Unanswered probes that end the connection; 0: default of the system (`keepalives_count`).
    pub count: Option<u32>,
    /// Milliseconds that sent data may stay unacknowledged; 0: default of the system (`tcp_user_timeout`).
    pub acknowledged_ms: Option<u64>,
}

/// Default port of PostgreSQL.
const DEFAULT_PORT: u16 = 5432;

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
            None if self.port == DEFAULT_PORT => {}
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

/// A URL of no supported database.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another kind of database, or no database.
    #[error("{0}: only sqlite:///PATH and postgresql://USER@HOST/DATABASE are supported")]
    Kind(String),
    /// MySQL and MariaDB.
    #[error(
        "MySQL is not supported; use sqlite:///PATH, postgresql://USER@HOST/DATABASE, or pegasus-monitord"
    )]
    MySql,
    /// An invalid URL of PostgreSQL.
    #[error("postgresql://…: {0}")]
    Server(#[from] ServerUrlError),
    /// PostgreSQL is not compiled in.
    #[error(
        "this program was built without the feature `postgresql`; build it with `--features full`, or use \
         sqlite:///PATH"
    )]
    Feature,
}

/// An error in a URL of PostgreSQL. No message contains the password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message describes it")]
pub enum ServerUrlError {
    #[error("two slashes follow the colon")]
    Slashes,
    #[error("no ] after the address")]
    Bracket,
    #[error(transparent)]
    Number(#[from] NumberError),
    #[error("sslmode: {0}")]
    SslMode(SslError),
    #[error("unknown option {0}")]
    Option(String),
    #[error("a percent sign is not followed by two hexadecimal digits (write the sign itself as %25)")]
    Percent,
    #[error("not UTF-8")]
    NotUtf8,
}

/// A text that is no number.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} {text} is not a number, or too large")]
pub struct NumberError {
    /// Setting.
    pub name: String,
    /// Its value.
    pub text: String,
}

/// Reads a URL: `sqlite:///PATH` (four slashes for an absolute path) or
/// `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE`. The name of a Python driver is allowed, as
/// in `postgresql+psycopg2://`. The option `host` may be the directory of a socket.
///
/// # Errors
/// The URL is invalid, or its database is not supported. No message contains the password.
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
        "postgresql" | "postgres" => Ok(Destination::Server(Box::new(read_server(rest, url)?))),
        "mysql" | "mariadb" => Err(UrlError::MySql),
        // Any URL may contain a password.
        _ => Err(UrlError::Kind(format!("{scheme}://…"))),
    }
}

fn without_query(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
}

fn read_server(rest: &str, url: &str) -> Result<Server, ServerUrlError> {
    let rest = rest.strip_prefix("//").ok_or(ServerUrlError::Slashes)?;
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let (account, address) = match authority.rsplit_once('@') {
        Some((account, address)) => (Some(account), address),
        None => (None, authority),
    };
    let (user, password) = match account.map(|account| account.split_once(':').unwrap_or((account, ""))) {
        Some((user, password)) => (percent_decode(user)?, percent_decode(password)?),
        None => (String::new(), String::new()),
    };
    let (host, port) = match address.strip_prefix('[') {
        Some(v6) => {
            let (host, port) = v6.split_once(']').ok_or(ServerUrlError::Bracket)?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => address.split_once(':').unwrap_or((address, "")),
    };
    let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
    let mut server = Server {
        host: non_empty(percent_decode(host)?),
        port: if port.is_empty() {
            DEFAULT_PORT
        } else {
            parse_number(port, "port")?
        },
        user: non_empty(user),
        password: non_empty(password),
        database: non_empty(percent_decode(database)?),
        limits: Limits::default(),
        tls: Tls::default(),
        url: url.to_owned(),
    };
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let value = percent_decode(value)?;
        match key {
            "host" => server.host = non_empty(value),
            "port" => server.port = parse_number(&value, "port")?,
            "user" => server.user = non_empty(value),
            "password" => server.password = non_empty(value),
            "dbname" => server.database = non_empty(value),
            "connect_timeout" => server.limits.connect = Some(parse_seconds(&value, key)?),
            "keepalives" => server.limits.keepalives = Some(parse_number(&value, key)?),
            "keepalives_idle" => server.limits.idle = Some(parse_seconds(&value, key)?),
            "keepalives_interval" => server.limits.interval = Some(parse_seconds(&value, key)?),
            "keepalives_count" => server.limits.count = Some(parse_number(&value, key)?),
            "tcp_user_timeout" => server.limits.acknowledged_ms = Some(parse_seconds(&value, key)?),
            "sslmode" => server.tls.mode = Some(value.parse().map_err(ServerUrlError::SslMode)?),
            "sslrootcert" => server.tls.roots = non_empty(value).map(PathBuf::from),
            "sslcert" => server.tls.certificate = non_empty(value).map(PathBuf::from),
            "sslkey" => server.tls.key = non_empty(value).map(PathBuf::from),
            "sslcrl" => server.tls.revoked = non_empty(value).map(PathBuf::from),
            // This program sets it itself.
            "application_name" => {}
            _ => return Err(ServerUrlError::Option(key.to_owned())),
        }
    }
    Ok(server)
}

fn parse_number<N: std::str::FromStr>(text: &str, name: &str) -> Result<N, NumberError> {
    text.parse().map_err(|_| NumberError {
        name: name.to_owned(),
        text: text.to_owned(),
    })
}

/// Parses a time; a negative one is zero.
pub(crate) fn parse_seconds(text: &str, name: &str) -> Result<u64, NumberError> {
    let count: i64 = parse_number(text, name)?;
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Decodes `%XX`.
fn percent_decode(text: &str) -> Result<String, ServerUrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let value = digits
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .ok_or(ServerUrlError::Percent)?;
        bytes.push(value);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| ServerUrlError::NotUtf8)
}

/// URLs of databases in the properties of a run, each with its property.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatabaseUrls {
    /// The database of the workflow.
    pub workflow: Option<(&'static str, String)>,
    /// The list of all workflows.
    pub dashboard: Option<(&'static str, String)>,
}

impl DatabaseUrls {
    /// Reads the text of a file of properties.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let properties = Properties::parse(text);
        // The second, older name is still common.
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

/// Returns the URL of a database in a file.
#[must_use]
pub fn url_of(path: &Path) -> String {
    format!("sqlite:///{}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "postgresql")]
    use crate::ssl::SslMode;

    #[cfg(feature = "postgresql")]
    fn server(url: &str) -> Server {
        match read_url(url) {
            Ok(Destination::Server(server)) => *server,
            other => panic!("{url}: {other:?}"),
        }
    }

    #[test]
    fn urls_of_files() {
        let file = |path: &str| Ok(Destination::File(PathBuf::from(path)));
        assert_eq!(read_url("sqlite:////a/b.db"), file("/a/b.db"));
        assert_eq!(read_url("sqlite:///b.db?timeout=5"), file("b.db"));
        assert!(matches!(read_url("sqlite://"), Err(UrlError::Kind(_))));
    }

    #[cfg(not(feature = "postgresql"))]
    #[test]
    fn a_missing_feature_is_named() {
        let error = read_url("postgresql://h/d").unwrap_err().to_string();
        assert!(
            error.contains("`postgresql`") && error.contains("--features full"),
            "{error}"
        );
    }

    #[cfg(feature = "postgresql")]
    #[test]
    fn urls_of_servers() {
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
    fn errors_do_not_contain_the_password() {
        for (url, what) in [
            ("postgresql:db", "two slashes"),
            ("postgresql://u:secret@h:x/d", "port x is not a number"),
            ("postgresql://u:secret%zz@h/d", "percent sign"),
            (
                "postgresql://u:secret@h/d?sslmode=on",
                "sslmode: on is none of disable, allow",
            ),
            ("postgresql://u:secret@h/d?speed=high", "unknown option speed"),
            ("mysql+pymysql://u:secret@h/d", "MySQL is not supported"),
            ("amqp://u:secret@h/x", "amqp://…: only sqlite"),
            ("file", "file: only sqlite"),
        ] {
            let error = read_url(url).unwrap_err().to_string();
            assert!(
                error.contains(what) && !error.contains("secret"),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn properties_name_databases() {
        let urls = DatabaseUrls::read("pegasus.monitord.output = a\npegasus.catalog.workflow.url=b\n");
        assert_eq!(
            urls.workflow,
            Some(("pegasus.catalog.workflow.url", "b".to_owned()))
        );
        assert_eq!(DatabaseUrls::read("x=y").workflow, None);
        let urls = DatabaseUrls::read("pegasus.monitord.output = a\npegasus.catalog.master.url: m");
        assert_eq!(urls.workflow, Some(("pegasus.monitord.output", "a".to_owned())));
        assert_eq!(
            urls.dashboard,
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
