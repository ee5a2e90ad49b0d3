//! Connects by the rules of PostgreSQL's client library: addresses, time limits, encryption.

use std::error::Error as _;
use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::time::Duration;

use nix::unistd::{User, getuid};
use rustls::CertificateError;
use tokio_postgres::config::SslMode as Encryption;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Config, Error, NoTls};

use super::client::{Client, NoClient};
use super::error::{ServerError, message};
use super::tls::{self, HandshakeError};
use crate::destination::Server;
use crate::ssl::SslMode;

/// Default time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Default time after which a silent host is given up.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Default directories of sockets of this machine.
const SOCKETS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Connects to the server. `loader` is the name of this program for others.
pub(super) fn connect(server: &Server, loader: &str) -> Result<Client, ServerError> {
    let mut config = settings(server, loader);
    let mut client = match server.host.as_deref() {
        Some(host) if !host.starts_with('/') => {
            let mode = server.tls.mode()?;
            config.host(host);
            let unknown = |error| ServerError::Unreachable(format!("{host}: {error}"));
            let addresses = (host, server.port).to_socket_addrs().map_err(unknown)?;
            let mut failed = None;
            let connected = addresses.into_iter().find_map(|address| {
                let mut config = config.clone();
                match connect_with_mode(server, config.hostaddr(address.ip()), mode) {
                    Err(error) if error.is_of_network() => {
                        failed = Some(error);
                        None
                    }
                    result => Some(result),
                }
            });
            let failure =
                || Err(failed.unwrap_or_else(|| ServerError::Unreachable("it has no address".to_owned())));
            connected.unwrap_or_else(failure)?
        }
        // A socket of this machine needs no encryption. Its directory differs between distributions.
        socket => {
            let exists = |dir: &&str| Path::new(dir).join(format!(".s.PGSQL.{}", server.port)).exists();
            let default = || SOCKETS.into_iter().find(exists).unwrap_or(SOCKETS[0]);
            config.host(socket.unwrap_or_else(default));
            connect_with_mode(server, &config, SslMode::Disable)?
        }
    };
    // New tables lack the statistics by which the server would choose their indexes.
    client.batch_execute(
        "SET client_min_messages = warning; SET search_path = public, pg_catalog; SET jit = off;
         SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
    )?;
    Ok(client)
}

fn settings(server: &Server, loader: &str) -> Config {
    let mut config = Config::new();
    config.port(server.port).application_name(loader);
    let limits = &server.limits;
    // Zero selects the default of the system.
    let or = |seconds: Option<u64>, default| match seconds {
        None => default,
        Some(seconds) => Some(Duration::from_secs(seconds)).filter(|time| !time.is_zero()),
    };
    config.keepalives(limits.keepalives != Some(0));
    if let Some(idle) = or(limits.idle, Some(IDLE_TIMEOUT)) {
        config.keepalives_idle(idle);
    }
    if let Some(interval) = or(limits.interval, None) {
        config.keepalives_interval(interval);
    }
    if let Some(count) = limits.count.filter(|count| *count > 0) {
        config.keepalives_retries(count);
    }
    let acknowledged = limits.acknowledged_ms.map_or(IDLE_TIMEOUT, Duration::from_millis);
    if !acknowledged.is_zero() {
        config.tcp_user_timeout(acknowledged);
    }
    let account = || User::from_uid(getuid()).ok().flatten();
    if let Some(user) = server.user.clone().or_else(|| Some(account()?.name)) {
        config.user(&user);
        config.dbname(server.database.as_deref().unwrap_or(&user));
    }
    if let Some(password) = &server.password {
        config.password(password);
    }
    config
}

/// A way to connect.
#[derive(Clone, Copy)]
enum Way {
    Plain,
    /// Encrypted, if possible or always.
    Encrypted(Encryption),
}

/// A failed connection.
struct Failure {
    error: ServerError,
    kind: FailureKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FailureKind {
    /// The rules of the server for accounts and hosts demand or forbid encryption.
    Forbidden,
    /// The server does not support encryption.
    NotOffered,
    /// The handshake failed.
    Handshake,
    /// A failure that another way to connect would not avoid.
    Other,
}

/// Connects in the ways that the mode allows.
fn connect_with_mode(server: &Server, config: &Config, mode: SslMode) -> Result<Client, ServerError> {
    let (way, other) = match mode {
        SslMode::Disable => (Way::Plain, None),
        SslMode::Allow => (Way::Plain, Some(Way::Encrypted(Encryption::Require))),
        SslMode::Prefer => (Way::Encrypted(Encryption::Prefer), Some(Way::Plain)),
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
            (Way::Encrypted(Encryption::Require), None)
        }
    };
    let failure = match connect_one_way(server, config, mode, way) {
        Ok(client) => return Ok(client),
        Err(failure) => failure,
    };
    match other.filter(|_| failure.kind != FailureKind::Other) {
        None => Err(failure.error),
        Some(other) => connect_one_way(server, config, mode, other).map_err(|second| match second.kind {
            // The first error is more helpful.
            FailureKind::Forbidden | FailureKind::NotOffered => failure.error,
            FailureKind::Handshake | FailureKind::Other => second.error,
        }),
    }
}

fn connect_one_way(server: &Server, config: &Config, mode: SslMode, way: Way) -> Result<Client, Failure> {
    let other = |error| Failure {
        error,
        kind: FailureKind::Other,
    };
    let limit = server.limits.connect.map_or(CONNECT_TIMEOUT, Duration::from_secs);
    let limit = Some(limit).filter(|limit| !limit.is_zero());
    let mut config = config.clone();
    let connected = match way {
        Way::Plain => Client::connect(config.ssl_mode(Encryption::Disable), NoTls, limit),
        Way::Encrypted(encryption) => {
            let connector = tls::connector(&server.tls, mode).map_err(|error| other(error.into()))?;
            Client::connect(config.ssl_mode(encryption), connector, limit)
        }
    };
    connected.map_err(|error| match error {
        NoClient::Failed(error) => classify(error, mode),
        NoClient::Timeout => other(ServerError::Silent(limit.unwrap_or_default().as_secs())),
        NoClient::System(error) => other(ServerError::Unreachable(error.to_string())),
    })
}

fn classify(error: Error, mode: SslMode) -> Failure {
    let (kind, error) = match handshake_failure(&error) {
        Some(FailureKind::NotOffered) => (FailureKind::NotOffered, ServerError::NoTls(mode)),
        Some(kind) => (kind, handshake_error(&error)),
        None => match error.code() {
            Some(code) if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                (FailureKind::Forbidden, ServerError::Refused(message(&error)))
            }
            Some(code) if *code == SqlState::INVALID_CATALOG_NAME => {
                (FailureKind::Other, ServerError::NoDatabase(message(&error)))
            }
            Some(code) if code.code().starts_with("28") => {
                (FailureKind::Other, ServerError::Refused(message(&error)))
            }
            Some(_) => (FailureKind::Other, ServerError::Server(error)),
            // A missing password has no code.
            None if message(&error).contains("password") => {
                (FailureKind::Other, ServerError::Refused(message(&error)))
            }
            None => (FailureKind::Other, ServerError::Unreachable(message(&error))),
        },
    };
    Failure { error, kind }
}

/// Returns how encryption failed, if it did.
fn handshake_failure(error: &Error) -> Option<FailureKind> {
    let cause = error.source()?;
    if cause.is::<HandshakeError>() {
        return Some(FailureKind::Handshake);
    }
    // The library has no type for this error; a test checks the text.
    (cause.to_string() == "server does not support TLS").then_some(FailureKind::NotOffered)
}

fn handshake_error(error: &Error) -> ServerError {
    let cause = error
        .source()
        .and_then(|cause| cause.downcast_ref::<HandshakeError>());
    match cause.and_then(HandshakeError::certificate) {
        Some(problem) => ServerError::Certificate(match problem {
            CertificateError::UnknownIssuer => "no trusted authority has signed it".to_owned(),
            CertificateError::Expired => "it has expired".to_owned(),
            CertificateError::NotValidYet => "it is not valid yet".to_owned(),
            CertificateError::Revoked => "it was revoked".to_owned(),
            CertificateError::UnknownRevocationStatus => "sslcrl has no list of its authority".to_owned(),
            problem => problem.to_string(),
        }),
        None => ServerError::Unreachable(message(error)),
    }
}
