//! Connects to a server.

use std::error::Error as _;
use std::io;

use rustls::CertificateError;
use tokio_postgres::Error;
use tokio_postgres::error::SqlState;

use super::client::{Client, NoClient};
use super::error::{ServerError, message};
use super::tls;
use crate::server::Server;

/// Connects to the server. `loader` is the name of this program for others.
pub(super) fn connect(server: &Server, loader: &str) -> Result<Client, ServerError> {
    let mut config = server.config.clone();
    let host = config.get_connect_timeout().copied().unwrap_or_default();
    let limit = host * u32::try_from(config.get_hosts().len()).unwrap_or(u32::MAX);
    // An address that does not answer leaves time for the next one of the host.
    config.connect_timeout(host / 2).application_name(loader);
    let connected = Client::connect(&config, tls::connector(&server.trust)?, limit);
    let mut client = connected.map_err(|error| match error {
        NoClient::Failed(error) => classify(error),
        NoClient::Timeout => ServerError::Silent(limit.as_secs()),
        NoClient::System(error) => ServerError::Unreachable(error.to_string()),
    })?;
    // New tables lack the statistics by which the server would choose their indexes.
    client.batch_execute(
        "SET client_min_messages = warning; SET search_path = public, pg_catalog; SET jit = off;
         SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off",
    )?;
    Ok(client)
}

fn classify(error: Error) -> ServerError {
    if let Some(problem) = handshake_error(&error) {
        return match problem {
            rustls::Error::InvalidCertificate(problem) => ServerError::Certificate(match problem {
                CertificateError::UnknownIssuer => "no trusted authority has signed it".to_owned(),
                CertificateError::Expired => "it has expired".to_owned(),
                CertificateError::NotValidYet => "it is not valid yet".to_owned(),
                problem => problem.to_string(),
            }),
            problem => ServerError::Tls(problem.clone()),
        };
    }
    let text = message(&error);
    match error.code() {
        Some(code) if *code == SqlState::INVALID_CATALOG_NAME => ServerError::NoDatabase(text),
        Some(code) if code.code().starts_with("28") => ServerError::Refused(text),
        Some(_) => ServerError::Server(error),
        // The library has no types for these errors; tests check the texts.
        None if text.contains("server does not support TLS") => ServerError::NoTls,
        None if text.contains("password") => ServerError::Refused(text),
        None => ServerError::Unreachable(text),
    }
}

fn handshake_error(error: &Error) -> Option<&rustls::Error> {
    let source = error.source()?.downcast_ref::<io::Error>()?;
    source.get_ref()?.downcast_ref()
}
