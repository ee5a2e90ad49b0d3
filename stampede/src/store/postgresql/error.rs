//! Errors of servers.

use std::path::PathBuf;

use monitord_compat::database::VERSION;
use tokio_postgres::error::SqlState;

/// An error of a server or the database on it.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No connection.
    #[error("cannot be reached: {0}; is the server running, and does it take connections from this host?")]
    Unreachable(String),
    /// The server accepts the connection but does not answer.
    #[error(
        "has not answered within {0} s; is it a working PostgreSQL server? connect_timeout=SECONDS waits longer"
    )]
    Silent(u64),
    /// Unknown account, or wrong password.
    #[error("the server refuses the account: {0}; check user, password and sslmode of the URL")]
    Refused(String),
    /// The file with certificates of authorities cannot be used.
    #[error("sslrootcert {}: {problem}", path.display())]
    Authorities {
        /// File.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// The server does not support the encryption that the URL demands.
    #[error(
        "the server does not support encryption, which sslmode demands; turn on ssl there, or use sslmode=prefer"
    )]
    NoTls,
    /// The encrypted connection fails.
    #[error("the encrypted connection fails: {0}; sslmode=disable connects without encryption")]
    Tls(rustls::Error),
    /// The certificate of the server is not accepted.
    #[error("the server's certificate is not accepted: {0}; check sslrootcert and the host of the URL")]
    Certificate(String),
    /// The database does not exist.
    #[error("{0}; create it first: createdb")]
    NoDatabase(String),
    /// The tables are of another version of Pegasus.
    #[error(
        "its tables have version {found}, and this program needs {VERSION}; {}",
        advice(found)
    )]
    Version {
        /// Version of the tables.
        found: String,
    },
    /// Another loader is at work.
    #[error("the workflow is being loaded by {holder} already")]
    Held {
        /// Program, process and host.
        holder: String,
    },
    /// Another error of the server.
    #[error("{}", message(.0))]
    Server(#[from] tokio_postgres::Error),
}

fn advice(found: &str) -> &'static str {
    if found.parse::<f64>().is_ok_and(|found| found < f64::from(VERSION)) {
        "update it with pegasus-db-admin"
    } else {
        "use a newer version of this program, or another database"
    }
}

/// Returns the message of the server with its details, which `Display` lacks.
pub(super) fn message(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(error) => match error.detail() {
            Some(detail) => format!("{} ({detail})", error.message()),
            None => error.message().to_owned(),
        },
        None => match std::error::Error::source(error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

impl ServerError {
    /// Returns whether a later attempt may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Silent(_) => true,
            Self::Refused(_)
            | Self::Authorities { .. }
            | Self::NoTls
            | Self::Tls(_)
            | Self::Certificate(_)
            | Self::NoDatabase(_)
            | Self::Version { .. }
            | Self::Held { .. } => false,
            Self::Server(error) => match error.code() {
                // The connection failed; the server stops, starts, has too many connections, or ended this
                // transaction because of a deadlock.
                Some(code) => {
                    code.code().starts_with("08")
                        || code.code().starts_with("57P")
                        || code.code().starts_with("40")
                        || *code == SqlState::TOO_MANY_CONNECTIONS
                }
                None => true,
            },
        }
    }
}
