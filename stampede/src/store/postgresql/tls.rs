//! Encrypted connections.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::ServerError;
use crate::server::Trust;

/// Returns a connector that accepts these certificates.
///
/// # Errors
/// There is no certificate of an authority.
pub(super) fn connector(trust: &Trust) -> Result<MakeRustlsConnect, ServerError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ServerError::Tls)?;
    let config = match trust {
        Trust::Any => config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(algorithms))),
        Trust::Machine => {
            let found = rustls_native_certs::load_native_certs().certs;
            config.with_root_certificates(authorities(found, Path::new("system"))?)
        }
        Trust::File(path) => {
            let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
            let found: Vec<_> = found.map_err(|problem| ServerError::Authorities {
                path: path.clone(),
                problem: problem.to_string(),
            })?;
            config.with_root_certificates(authorities(found, path)?)
        }
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

fn authorities(found: Vec<CertificateDer<'static>>, path: &Path) -> Result<RootCertStore, ServerError> {
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(found) {
        (0, _) => Err(ServerError::Authorities {
            path: path.to_owned(),
            problem: "no certificate of an authority in PEM".to_owned(),
        }),
        _ => Ok(roots),
    }
}

/// Accepts any certificate, as PostgreSQL's clients do unless a connection demands more.
#[derive(Debug)]
struct AnyCertificate(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
