//! Connecting: which addresses, how long, and encrypted or not, as PostgreSQL's client library does it.

use std::error::Error as _;
use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::time::Duration;

use nix::unistd::{User, getuid};
use rustls::CertificateError;
use tokio_postgres::config::SslMode as Wanted;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Config, Error, NoTls};

use super::client::{Client, NoClient};
use super::tls::{self, HandshakeError};
use super::{ServerError, said};
use crate::client::SslMode;
use crate::destination::Server;

/// How long to wait for a connection, if nobody says.
const CONNECT: Duration = Duration::from_secs(15);
/// A server whose host does not answer for this long is gone, unless the URL says otherwise.
const SILENCE: Duration = Duration::from_secs(60);
/// Directories where servers of this machine have their sockets.
const SOCKETS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Connects to the server. `me` is the name under which others see this program.
pub(super) fn connect(server: &Server, me: &str) -> Result<Client, ServerError> {
    let mut config = settings(server, me);
    let mut client = match server.host.as_deref() {
        Some(host) if !host.starts_with('/') => {
            let mode = server.tls.mode().map_err(ServerError::Tls)?;
            config.host(host);
            let unknown = |error| ServerError::Unreachable(format!("{host}: {error}"));
            let addresses = (host, server.port).to_socket_addrs().map_err(unknown)?;
            let mut failed = None;
            let connected = addresses.into_iter().find_map(|address| {
                let mut config = config.clone();
                match reach(server, config.hostaddr(address.ip()), mode) {
                    Err(error) if error.is_of_network() => {
                        failed = Some(error);
                        None
                    }
                    decided => Some(decided),
                }
            });
            let none =
                || Err(failed.unwrap_or_else(|| ServerError::Unreachable("it has no address".to_owned())));
            connected.unwrap_or_else(none)?
        }
        // Nothing is encrypted on a socket of this machine. Its place differs between distributions.
        socket => {
            let there = |dir: &&str| Path::new(dir).join(format!(".s.PGSQL.{}", server.port)).exists();
            let usual = || SOCKETS.into_iter().find(there).unwrap_or(SOCKETS[0]);
            config.host(socket.unwrap_or_else(usual));
            reach(server, &config, SslMode::Disable)?
        }
    };
    // Tables that were just filled have no statistics yet, by which the server would find that their
    // indexes are the way to go.
    client.batch_execute(
        "SET client_min_messages = warning; SET search_path = public, pg_catalog; SET jit = off;
         SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
    )?;
    Ok(client)
}

fn settings(server: &Server, me: &str) -> Config {
    let mut config = Config::new();
    config.port(server.port).application_name(me);
    let limits = &server.limits;
    // Zero leaves it to the system.
    let or = |seconds: Option<u64>, usual| match seconds {
        None => usual,
        Some(seconds) => Some(Duration::from_secs(seconds)).filter(|time| !time.is_zero()),
    };
    config.keepalives(limits.keepalives != Some(0));
    if let Some(idle) = or(limits.idle, Some(SILENCE)) {
        config.keepalives_idle(idle);
    }
    if let Some(interval) = or(limits.interval, None) {
        config.keepalives_interval(interval);
    }
    if let Some(count) = limits.count.filter(|count| *count > 0) {
        config.keepalives_retries(count);
    }
    let acknowledged = limits.acknowledged_ms.map_or(SILENCE, Duration::from_millis);
    if !acknowledged.is_zero() {
        config.tcp_user_timeout(acknowledged);
    }
    let me = || User::from_uid(getuid()).ok().flatten();
    if let Some(user) = server.user.clone().or_else(|| Some(me()?.name)) {
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
    /// Whether it has to be.
    Encrypted(Wanted),
}

/// Why there is no connection this way.
struct Failure {
    error: ServerError,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// The rules of the server for accounts and hosts demand encryption, or forbid it.
    Forbidden,
    /// The server has no encryption.
    NotOffered,
    /// Encryption has failed.
    Handshake,
    /// Nothing that another way would change.
    Other,
}

/// Connects, encrypted or not, as the mode says.
fn reach(server: &Server, config: &Config, mode: SslMode) -> Result<Client, ServerError> {
    let (way, other) = match mode {
        SslMode::Disable => (Way::Plain, None),
        SslMode::Allow => (Way::Plain, Some(Way::Encrypted(Wanted::Require))),
        SslMode::Prefer => (Way::Encrypted(Wanted::Prefer), Some(Way::Plain)),
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => (Way::Encrypted(Wanted::Require), None),
    };
    let failure = match go(server, config, mode, way) {
        Ok(client) => return Ok(client),
        Err(failure) => failure,
    };
    match other.filter(|_| failure.what != What::Other) {
        None => Err(failure.error),
        Some(other) => go(server, config, mode, other).map_err(|again| match again.what {
            // The first reason is the better one.
            What::Forbidden | What::NotOffered => failure.error,
            What::Handshake | What::Other => again.error,
        }),
    }
}

fn go(server: &Server, config: &Config, mode: SslMode, way: Way) -> Result<Client, Failure> {
    let other = |error| Failure {
        error,
        what: What::Other,
    };
    let limit = server.limits.connect.map_or(CONNECT, Duration::from_secs);
    let limit = Some(limit).filter(|limit| !limit.is_zero());
    let mut config = config.clone();
    let connected = match way {
        Way::Plain => Client::connect(config.ssl_mode(Wanted::Disable), NoTls, limit),
        Way::Encrypted(wanted) => {
            let connector =
                tls::connector(&server.tls, mode).map_err(|error| other(ServerError::Tls(error)))?;
            Client::connect(config.ssl_mode(wanted), connector, limit)
        }
    };
    connected.map_err(|none| match none {
        NoClient::Failed(error) => of_connecting(error, mode),
        NoClient::Silent => other(ServerError::Silent(limit.unwrap_or_default().as_secs())),
        NoClient::System(error) => other(ServerError::Unreachable(error.to_string())),
    })
}

fn of_connecting(error: Error, mode: SslMode) -> Failure {
    let (what, error) = match of_handshake(&error) {
        Some(What::NotOffered) => (What::NotOffered, ServerError::NoTls(mode)),
        Some(what) => (what, of_failed_handshake(&error)),
        None => match error.code() {
            Some(code) if *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                (What::Forbidden, ServerError::Refused(said(&error)))
            }
            Some(code) if *code == SqlState::INVALID_CATALOG_NAME => {
                (What::Other, ServerError::NoDatabase(said(&error)))
            }
            Some(code) if code.code().starts_with("28") => (What::Other, ServerError::Refused(said(&error))),
            Some(_) => (What::Other, ServerError::Server(error)),
            // A password that is wanted and not given has no code.
            None if said(&error).contains("password") => (What::Other, ServerError::Refused(said(&error))),
            None => (What::Other, ServerError::Unreachable(said(&error))),
        },
    };
    Failure { error, what }
}

/// Whether encryption is what failed.
fn of_handshake(error: &Error) -> Option<What> {
    let cause = error.source()?;
    if cause.is::<HandshakeError>() {
        return Some(What::Handshake);
    }
    // The library has no type for it; a test talks to such a server.
    (cause.to_string() == "server does not support TLS").then_some(What::NotOffered)
}

fn of_failed_handshake(error: &Error) -> ServerError {
    let cause = error
        .source()
        .and_then(|cause| cause.downcast_ref::<HandshakeError>());
    match cause.and_then(HandshakeError::certificate) {
        Some(problem) => ServerError::Certificate(match problem {
            CertificateError::UnknownIssuer => "no authority that is trusted has signed it".to_owned(),
            CertificateError::Expired => "it has expired".to_owned(),
            CertificateError::NotValidYet => "its time has not begun".to_owned(),
            CertificateError::Revoked => "it was revoked".to_owned(),
            CertificateError::UnknownRevocationStatus => {
                "no list of revoked certificates (sslcrl) is of its authority".to_owned()
            }
            problem => problem.to_string(),
        }),
        None => ServerError::Unreachable(said(error)),
    }
}
