//! Encrypted connections: whom to trust, as the modes of PostgreSQL's client library say.
//!
//! With a file of authorities (`sslrootcert`, else `~/.postgresql/root.crt` if it is there) certificates are checked in
//! every mode; without one, those modes that demand it fail, and the others take any certificate.

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

use crate::client::{SYSTEM, SslMode, Tls};

/// Other names of whom a certificate is for.
const SUBJECT_ALT_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");
/// The name of whom it is for.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// Makes encrypted connections.
///
/// # Errors
/// What is wrong with the files that are named.
pub(super) fn connector(tls: &Tls, mode: SslMode) -> Result<Connector, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let trust = trust(tls, mode, &provider)?;
    let verifier = Verifier {
        algorithms: provider.signature_verification_algorithms,
        trust,
        name: mode == SslMode::VerifyFull,
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let config = match own_certificate(tls)? {
        None => config.with_no_client_auth(),
        Some((certificates, key)) => config
            .with_client_auth_cert(certificates, key)
            .map_err(|error| format!("sslcert and sslkey: {error}"))?,
    };
    Ok(Connector(MakeRustlsConnect::new(config)))
}

/// Makes encrypted connections, with errors that can be told from others.
pub(super) struct Connector(MakeRustlsConnect);

/// One encrypted connection to be made.
pub(super) struct Connecting(<MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect);

/// There is no encrypted connection. The library does not tell where its errors come from.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct HandshakeError(io::Error);

impl HandshakeError {
    /// What is wrong with the server's certificate, if that is the reason.
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

/// Whom to trust; none: everybody.
fn trust(tls: &Tls, mode: SslMode, provider: &Arc<CryptoProvider>) -> Result<Option<Trust>, String> {
    let known = if tls.of_system() {
        rustls_native_certs::load_native_certs().certs
    } else {
        let path = tls.file(tls.roots.as_ref(), "root.crt");
        match path.as_deref().map(|path| (path, read_certificates(path))) {
            Some((_, Ok(Some(certificates)))) => certificates,
            Some((path, Err(error))) => return Err(format!("sslrootcert {}: {error}", path.display())),
            found if mode >= SslMode::VerifyCa => {
                let missing = match found {
                    Some((path, _)) => format!("{} does not exist", path.display()),
                    None => "no file is named".to_owned(),
                };
                return Err(format!(
                    "sslmode={mode} needs the certificate of an authority, and {missing}; name it with sslrootcert=FILE, \
                     or use sslrootcert={SYSTEM} for those of this machine"
                ));
            }
            // A list is of an authority, and nobody is asked for one.
            _ if tls.revoked.is_some() => {
                return Err(
                    "sslcrl needs the certificate of an authority; name it with sslrootcert=FILE".to_owned(),
                );
            }
            _ => return Ok(None),
        }
    };
    let mut roots = RootCertStore::empty();
    let (used, _) = roots.add_parsable_certificates(known.iter().cloned());
    if used == 0 {
        let path = tls.roots.as_deref().unwrap_or(Path::new("root.crt"));
        return Err(format!(
            "sslrootcert {}: no certificate of an authority",
            path.display()
        ));
    }
    let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let Some((path, revoked)) = revoked(tls)? else {
        let chain = builder.build().map_err(|error| error.to_string())?;
        return Ok(Some(Trust { chain, known }));
    };
    let chain = builder
        .with_crls(revoked)
        .enforce_revocation_expiration()
        .build()
        .map_err(|error| format!("sslcrl {}: {error} (lists of version 2 are read)", path.display()))?;
    // All certificates are looked up in the lists.
    let known = Vec::new();
    Ok(Some(Trust { chain, known }))
}

type Revoked = (PathBuf, Vec<CertificateRevocationListDer<'static>>);

/// Lists of certificates that were revoked, and their file.
fn revoked(tls: &Tls) -> Result<Option<Revoked>, String> {
    let Some(path) = tls.file(tls.revoked.as_ref(), "root.crl") else {
        return Ok(None);
    };
    let named = |error: String| format!("sslcrl {}: {error}", path.display());
    let lists: Vec<_> = match read(&path).map_err(named)? {
        None if tls.revoked.is_none() => return Ok(None),
        None => return Err(named("does not exist".to_owned())),
        Some(text) => CertificateRevocationListDer::pem_slice_iter(&text)
            .collect::<Result<_, _>>()
            .map_err(|error| named(error.to_string()))?,
    };
    if lists.is_empty() {
        return Err(named("no list of revoked certificates in PEM".to_owned()));
    }
    Ok(Some((path, lists)))
}

/// Certificates of a file; none if it is not there.
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

/// The certificate of this client and its key. Who has none may be let in nevertheless.
fn own_certificate(tls: &Tls) -> Result<Option<OwnCertificate>, String> {
    let Some(path) = tls.file(tls.certificate.as_ref(), "postgresql.crt") else {
        return Ok(None);
    };
    let named = |path: &Path, error: String| format!("sslcert {}: {error}", path.display());
    let Some(certificates) = read_certificates(&path).map_err(|error| named(&path, error))? else {
        return Ok(None);
    };
    let Some(path) = tls.file(tls.key.as_ref(), "postgresql.key") else {
        return Err(named(&path, "its key is not named; use sslkey=FILE".to_owned()));
    };
    let named = |error: String| format!("sslkey {}: {error}", path.display());
    let Some(text) = read(&path).map_err(named)? else {
        return Err(named("does not exist".to_owned()));
    };
    let data = fs::metadata(&path).map_err(|error| named(error.to_string()))?;
    // That of the administrator may be readable by a group.
    let others = if data.uid() == 0 && !nix::unistd::getuid().is_root() {
        0o027
    } else {
        0o077
    };
    if data.permissions().mode() & others != 0 {
        return Err(named(
            "others may read it, so it is not used; chmod 0600 it".to_owned(),
        ));
    }
    let key = PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
        pem::Error::NoItemsFound => named("no key in PEM without a password".to_owned()),
        error => named(error.to_string()),
    })?;
    Ok(Some((certificates, key)))
}

/// Those who are trusted.
#[derive(Debug)]
struct Trust {
    chain: Arc<WebPkiServerVerifier>,
    /// All that is in the file: a server's own certificate may be there instead of its authority's.
    known: Vec<CertificateDer<'static>>,
}

#[derive(Debug)]
struct Verifier {
    algorithms: WebPkiSupportedAlgorithms,
    trust: Option<Trust>,
    /// Whether the certificate must be for the host.
    name: bool,
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
            in_time(&parsed, now)?;
            named_for(certificate, host)
        } else {
            let checked = trust
                .chain
                .verify_server_cert(certificate, intermediates, host, ocsp, now);
            checked.map(drop)
        };
        match checked {
            // The name is looked at last.
            Err(error) if is_about_name(&error) && (!self.name || common_name(certificate, host)) => {}
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

fn in_time(certificate: &Certificate, now: UnixTime) -> Result<(), rustls::Error> {
    let validity = &certificate.tbs_certificate.validity;
    if now.as_secs() < validity.not_before.to_unix_duration().as_secs() {
        Err(CertificateError::NotValidYet.into())
    } else if now.as_secs() > validity.not_after.to_unix_duration().as_secs() {
        Err(CertificateError::Expired.into())
    } else {
        Ok(())
    }
}

/// Whether a certificate is for a host, by its `subjectAltName`.
fn named_for(certificate: &CertificateDer<'_>, host: &ServerName<'_>) -> Result<(), rustls::Error> {
    let parsed = rustls::server::ParsedCertificate::try_from(certificate)?;
    rustls::client::verify_server_name(&parsed, host)
}

/// The same by the common name, which is what certificates without other names have.
fn common_name(certificate: &CertificateDer<'_>, host: &ServerName<'_>) -> bool {
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
        .any(|name| name_fits(name, &host))
}

/// Whether a name, whose first part may be `*`, is that of a host.
fn name_fits(name: &str, host: &str) -> bool {
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
    fn names() {
        assert!(name_fits("DB.example.org", "db.Example.org"));
        assert!(name_fits("*.example.org", "db.example.org"));
        assert!(name_fits("127.0.0.1", "127.0.0.1"));
        for (name, host) in [
            ("*.example.org", "example.org"),
            ("*.example.org", "a.b.example.org"),
            ("*.0.0.1", "127.0.0.1"),
            ("*", "localhost"),
            ("db.example.org", "db.example.org.evil.net"),
        ] {
            assert!(!name_fits(name, host), "{name} {host}");
        }
    }
}
