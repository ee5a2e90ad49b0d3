//! Whom to trust in TLS: the certificates of the machine and of the grid.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::remote::Environment;

/// Where distributions keep all trusted certificates in one file.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Where grid sites keep those of their authorities.
const GRID_DIRECTORY: &str = "/etc/grid-security/certificates";

/// Settings for connections that check certificates, or not.
///
/// Trusted are the certificates of `SSL_CERT_FILE`, else the machine's bundle, and those in the directories
/// `SSL_CERT_DIR` and `X509_CERT_DIR`, else `/etc/grid-security/certificates`.
pub(super) fn config(environment: &Environment, insecure: bool) -> TlsConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = TlsConfig::builder().unversioned_rustls_crypto_provider(provider);
    if insecure {
        return builder.disable_verification(true).build();
    }
    let mut roots = Vec::new();
    match environment.variable("SSL_CERT_FILE") {
        Some(file) => add(&mut roots, Path::new(file)),
        None => {
            if let Some(bundle) = BUNDLES.iter().map(Path::new).find(|path| path.is_file()) {
                add(&mut roots, bundle);
            }
        }
    }
    let grid = environment.variable("X509_CERT_DIR").map(PathBuf::from);
    let own = environment.variable("SSL_CERT_DIR").map(PathBuf::from);
    for directory in [own, Some(grid.unwrap_or_else(|| PathBuf::from(GRID_DIRECTORY)))]
        .into_iter()
        .flatten()
    {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let known = path.extension().and_then(|extension| extension.to_str());
            if known.is_some_and(|known| ["0", "pem", "crt"].contains(&known)) {
                add(&mut roots, &path);
            }
        }
    }
    builder.root_certs(RootCerts::Specific(Arc::new(roots))).build()
}

/// Adds the certificates of a file; what cannot be read is not trusted.
fn add(roots: &mut Vec<Certificate<'static>>, path: &Path) {
    let Ok(pem) = fs::read(path) else { return };
    for item in parse_pem(&pem).flatten() {
        if let PemItem::Certificate(certificate) = item {
            roots.push(certificate);
        }
    }
}
