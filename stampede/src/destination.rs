//! Destinations of rows, and their URLs: those of SQLAlchemy, as in Pegasus' properties.

use std::path::{Path, PathBuf};

use monitord_compat::properties::Properties;

#[cfg(feature = "postgresql")]
use crate::server::{Server, ServerUrlError};

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
    #[cfg(feature = "postgresql")]
    Server(Box<Server>),
    /// No database: only the log of states is written.
    Nowhere,
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
    #[cfg(feature = "postgresql")]
    #[error("postgresql://…: {0}")]
    Server(#[from] ServerUrlError),
    /// PostgreSQL is not compiled in.
    #[error(
        "this program was built without the feature `postgresql`; build it with `--features full`, or use \
         sqlite:///PATH"
    )]
    Feature,
}

/// Reads a URL: `sqlite:///PATH` (four slashes for an absolute path) or
/// `postgresql://USER:PASSWORD@HOST:PORT/DATABASE?OPTION=VALUE`. The name of a Python driver is allowed, as
/// in `postgresql+psycopg2://`.
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
        #[cfg(not(feature = "postgresql"))]
        "postgresql" | "postgres" => Err(UrlError::Feature),
        #[cfg(feature = "postgresql")]
        "postgresql" | "postgres" => Ok(Destination::Server(Box::new(Server::read(rest, url)?))),
        "mysql" | "mariadb" => Err(UrlError::MySql),
        // Any URL may contain a password.
        _ => Err(UrlError::Kind(format!("{scheme}://…"))),
    }
}

fn without_query(path: &str) -> &str {
    path.split_once('?').map_or(path, |(path, _)| path)
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

    #[test]
    fn other_databases_are_refused() {
        for (url, what) in [
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
}
