//! Encrypted connections, with the modes of PostgreSQL's client library.
//!
//! With a file of authorities (`sslrootcert`, else `~/.postgresql/root.crt` if it exists), every mode checks
//! certificates. Without one, the modes that need it fail, and the others accept any certificate.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::Socket;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;
use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode as _, Tag, Tagged as _};

use super::error::TlsError;
use crate::ssl::{SslMode, Tls};

/// Object id of the alternative names in a certificate.
const SUBJECT_ALT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");
/// Object id of the common name.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Returns a connector for these settings.
///
/// # Errors
/// A file cannot be used.
pub(super) fn connector(tls: &Tls, mode: SslMode) -> Result<Connector, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trust = trust(tls, mode, &provider)?;
    let verifier = Verifier {
        algorithms: provider.signature_verification_algorithms,
        trust,
        check_name: mode == SslMode::VerifyFull,
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(library_error)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let config = match own_certificate(tls)? {
        None => config.with_no_client_auth(),
        Some((certificates, key)) => config
            .with_client_auth_cert(certificates, key)
            .map_err(|error| TlsError::Library(format!("sslcert and sslkey: {error}")))?,
    };
    Ok(Connector(MakeRustlsConnect::new(config)))
}

/// Makes encrypted connections, with an own type for errors.
pub(super) struct Connector(MakeRustlsConnect);

/// An encrypted connection in the making.
pub(super) struct Connecting(<MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect);

/// The handshake failed. The errors of the library do not show it.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct HandshakeError(io::Error);

impl HandshakeError {
    /// Returns the problem with the certificate of the server, if that is the cause.
    pub fn certificate(&self) -> Option<&CertificateError> {
        match self.0.get_ref()?.downcast_ref::<rustls::Error>()? {
            rustls::Error::InvalidCertificate(problem) => Some(problem),
            _ => None,
        }
    }
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type TlsConnect = Connecting;
    type Error = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Error;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Connecting, Self::Error> {
        MakeTlsConnect::<Socket>::make_tls_connect(&mut self.0, domain).map(Connecting)
    }
}

impl TlsConnect<Socket> for Connecting {
    type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;
    type Error = HandshakeError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Stream, HandshakeError>>>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async { self.0.connect(stream).await.map_err(HandshakeError) })
    }
}

fn library_error(error: impl std::fmt::Display) -> TlsError {
    TlsError::Library(error.to_string())
}

/// Returns the trusted authorities; `None` accepts any certificate.
fn trust(tls: &Tls, mode: SslMode, provider: &Arc<CryptoProvider>) -> Result<Option<Trust>, TlsError> {
    let known = if tls.uses_system() {
        rustls_native_certs::load_native_certs().certs
    } else {
        let path = tls.file(tls.roots.as_ref(), "root.crt");
        match path.as_deref().map(|path| (path, read_certificates(path))) {
            Some((_, Ok(Some(certificates)))) => certificates,
            Some((path, Err(problem))) => return Err(file_error("sslrootcert", path, problem)),
            found if mode >= SslMode::VerifyCa => {
                let missing = match found {
                    Some((path, _)) => format!("{} does not exist", path.display()),
                    None => "no file is named".to_owned(),
                };
                return Err(TlsError::NoAuthority { mode, missing });
            }
            _ if tls.revoked.is_some() => return Err(TlsError::RevokedWithoutAuthority),
            _ => return Ok(None),
        }
    };
    let mut roots = RootCertStore::empty();
    let (used, _) = roots.add_parsable_certificates(known.iter().cloned());
    if used == 0 {
        let path = tls.roots.as_deref().unwrap_or(Path::new("root.crt"));
        let problem = "no certificate of an authority".to_owned();
        return Err(file_error("sslrootcert", path, problem));
    }
    let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let Some((path, revoked)) = revoked(tls)? else {
        let chain = builder.build().map_err(library_error)?;
        return Ok(Some(Trust { chain, known }));
    };
    let chain = builder
        .with_crls(revoked)
        .enforce_revocation_expiration()
        .build()
        .map_err(|error| {
            file_error(
                "sslcrl",
                &path,
                format!("{error} (lists of version 2 are supported)"),
            )
        })?;
    // Every certificate must be checked against the lists.
    let known = Vec::new();
    Ok(Some(Trust { chain, known }))
}

type Revoked = (PathBuf, Vec<CertificateRevocationListDer<'static>>);

/// Reads the lists of revoked certificates. Returns their file, too.
fn revoked(tls: &Tls) -> Result<Option<Revoked>, TlsError> {
    let Some(path) = tls.file(tls.revoked.as_ref(), "root.crl") else {
        return Ok(None);
    };
    let error = |problem: String| file_error("sslcrl", &path, problem);
    let lists: Vec<_> = match read(&path).map_err(error)? {
        None if tls.revoked.is_none() => return Ok(None),
        None => return Err(error("does not exist".to_owned())),
        Some(text) => CertificateRevocationListDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .map_err(|problem| error(problem.to_string()))?,
    };
    if lists.is_empty() {
        return Err(error("no list of revoked certificates in PEM".to_owned()));
    }
    Ok(Some((path, lists)))
}

/// Reads the certificates of a file. `None` if it does not exist.
fn read_certificates(path: &Path) -> Result<Option<Vec<CertificateDer<'static>>>, String> {
    let Some(text) = read(path)? else { return Ok(None) };
    let certificates: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(&text).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err("no certificate in PEM".to_owned()),
        Ok(certificates) => Ok(Some(certificates)),
        Err(error) => Err(error.to_string()),
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

type OwnCertificate = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Reads certificate and key of this client, which are optional.
fn own_certificate(tls: &Tls) -> Result<Option<OwnCertificate>, TlsError> {
    let Some(path) = tls.file(tls.certificate.as_ref(), "postgresql.crt") else {
        return Ok(None);
    };
    let error = |problem: String| file_error("sslcert", &path, problem);
    let Some(certificates) = read_certificates(&path).map_err(error)? else {
        return Ok(None);
    };
    let Some(path) = tls.file(tls.key.as_ref(), "postgresql.key") else {
        return Err(error("the key is missing; use sslkey=FILE".to_owned()));
    };
    let error = |problem: String| file_error("sslkey", &path, problem);
    let Some(text) = read(&path).map_err(error)? else {
        return Err(error("does not exist".to_owned()));
    };
    let data = fs::metadata(&path).map_err(|problem| error(problem.to_string()))?;
    // A key of root may be readable by a group.
    let others = if data.uid() == 0 && !nix::unistd::getuid().is_root() {
        0o027
    } else {
        0o077
    };
    if data.permissions().mode() & others != 0 {
        return Err(error(
            "others may read it, so it is not used; chmod 0600 it".to_owned(),
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|problem| match problem {
        pem::Error::NoItemsFound => error("no key in PEM without a password".to_owned()),
        problem => error(problem.to_string()),
    })?;
    Ok(Some((certificates, key)))
}

fn file_error(setting: &'static str, path: &Path, problem: String) -> TlsError {
    let path = path.to_owned();
    TlsError::File {
        setting,
        path,
        problem,
    }
}

/// Trusted authorities.
#[derive(Debug)]
struct Trust {
    chain: Arc<WebPkiServerVerifier>,
    /// All certificates of the file, which may be that of the server itself.
    known: Vec<CertificateDer<'static>>,
}

#[derive(Debug)]
struct Verifier {
    algorithms: WebPkiSupportedAlgorithms,
    trust: Option<Trust>,
    /// True if the certificate must be for the host.
    check_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(trust) = &self.trust else {
            return Ok(ServerCertVerified::assertion());
        };
        let checked = if trust.known.iter().any(|known| known == certificate) {
            let parsed = parse(certificate)?;
            check_validity(&parsed, now)?;
            check_alternative_names(certificate, host)
        } else {
            let checked = trust
                .chain
                .verify_server_cert(certificate, intermediates, host, ocsp, now);
            checked.map(drop)
        };
        match checked {
            // The name is checked last.
            Err(error)
                if is_about_name(&error) && (!self.check_name || has_common_name(certificate, host)) => {}
            checked => checked?,
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn is_about_name(error: &rustls::Error) -> bool {
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
        )
    )
}

fn parse(certificate: &CertificateDer<'_>) -> Result<Certificate, rustls::Error> {
    Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding.into())
}

fn check_validity(certificate: &Certificate, now: UnixTime) -> Result<(), rustls::Error> {
    let validity = &certificate.tbs_certificate.validity;
    if now.as_secs() < validity.not_before.to_unix_duration().as_secs() {
        Err(CertificateError::NotValidYet.into())
    } else if now.as_secs() > validity.not_after.to_unix_duration().as_secs() {
        Err(CertificateError::Expired.into())
    } else {
        Ok(())
    }
}

/// Checks that a certificate is for a host, by its `subjectAltName`.
fn check_alternative_names(
    certificate: &CertificateDer<'_>,
    host: &ServerName<'_>,
) -> Result<(), rustls::Error> {
    let parsed = rustls::server::ParsedCertificate::try_from(certificate)?;
    rustls::client::verify_server_name(&parsed, host)
}

/// Returns whether a certificate is for a host by its common name, which counts without alternative names.
fn has_common_name(certificate: &CertificateDer<'_>, host: &ServerName<'_>) -> bool {
    let Ok(parsed) = parse(certificate) else {
        return false;
    };
    let tbs = &parsed.tbs_certificate;
    let extensions = tbs.extensions.iter().flatten();
    if extensions
        .into_iter()
        .any(|extension| extension.extn_id == SUBJECT_ALT_NAME)
    {
        return false;
    }
    let host = host.to_str();
    let attributes = tbs.subject.0.iter().flat_map(|names| names.0.iter());
    attributes
        .filter(|attribute| attribute.oid == COMMON_NAME)
        .filter(|attribute| {
            matches!(
                attribute.value.tag(),
                Tag::Utf8String | Tag::PrintableString | Tag::Ia5String
            )
        })
        .filter_map(|attribute| std::str::from_utf8(attribute.value.value()).ok())
        .any(|name| name_matches(name, &host))
}

/// Returns whether a name, whose first part may be `*`, matches a host.
fn name_matches(name: &str, host: &str) -> bool {
    match name.strip_prefix("*.") {
        Some(domain) => {
            host.split_once('.')
                .is_some_and(|(first, rest)| !first.is_empty() && rest.eq_ignore_ascii_case(domain))
                && host.parse::<std::net::IpAddr>().is_err()
        }
        None => name.eq_ignore_ascii_case(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_one_part() {
        assert!(name_matches("DB.example.org", "db.Example.org"));
        assert!(name_matches("*.example.org", "db.example.org"));
        assert!(name_matches("127.0.0.1", "127.0.0.1"));
        for (name, host) in [
            ("*.example.org", "example.org"),
            ("*.example.org", "a.b.example.org"),
            ("*.0.0.1", "127.0.0.1"),
            ("*", "localhost"),
            ("db.example.org", "db.example.org.evil.net"),
        ] {
            assert!(!name_matches(name, host), "{name} {host}");
        }
    }
}
