//! TLS settings: trusted certificates of the machine and of the grid.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::remote::Environment;

/// Certificate bundles of Linux distributions.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Certificates of grid authorities.
const GRID_DIRECTORY: &str = "/etc/grid-security/certificates";

/// Returns the TLS settings; `insecure` disables verification of certificates.
///
/// Trusted are the certificates of `SSL_CERT_FILE` (default: the machine's bundle), of the directory
/// `SSL_CERT_DIR`, and of the directory `X509_CERT_DIR` (default: `/etc/grid-security/certificates`).
pub(super) fn config(environment: &Environment, insecure: bool) -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    if insecure {
        return builder.disable_verification(true).build();
    }
    let mut roots = Vec::new();
    match environment.variable("SSL_CERT_FILE") {
        Some(file) => add_certificates(&mut roots, Path::new(file)),
        None => {
            if let Some(bundle) = BUNDLES.iter().map(Path::new).find(|path| path.is_file()) {
                add_certificates(&mut roots, bundle);
            }
        }
    }
    let grid = environment.variable("X509_CERT_DIR").map(PathBuf::from);
    let local = environment.variable("SSL_CERT_DIR").map(PathBuf::from);
    for directory in [local, Some(grid.unwrap_or_else(|| PathBuf::from(GRID_DIRECTORY)))]
        .into_iter()
        .flatten()
    {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if extension.is_some_and(|extension| ["0", "pem", "crt"].contains(&extension)) {
                add_certificates(&mut roots, &path);
            }
        }
    }
    builder.root_certs(RootCerts::Specific(Arc::new(roots))).build()
}

/// Adds the certificates of a file. Unreadable ones are skipped, so they are not trusted.
fn add_certificates(roots: &mut Vec<Certificate<'static>>, path: &Path) {
    let Ok(pem) = fs::read(path) else { return };
    for item in parse_pem(&pem).flatten() {
        if let PemItem::Certificate(certificate) = item {
            roots.push(certificate);
        }
    }
}
