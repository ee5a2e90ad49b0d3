//! TLS settings: trusted certificates of the machine and of the grid.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

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
    builder
        .root_certs(RootCerts::Specific(roots(environment)))
        .build()
}

/// A file or directory with certificates: its path, and what changes with it.
type Source = (PathBuf, Option<(u64, u64, i64, i64)>);

type Roots = Arc<Vec<Certificate<'static>>>;

/// The trusted certificates of the last transfer with TLS. Reading those of a usual machine takes longer than
/// moving a small file, and a task server does so for each job.
static LAST: Mutex<Option<(Vec<Source>, Roots)>> = Mutex::new(None);

/// Returns the trusted certificates. Reads them if other ones are asked for than before, or if a file or
/// directory has changed.
fn roots(environment: &Environment) -> Roots {
    let path = |name| environment.variable(name).map(PathBuf::from);
    let bundle = || BUNDLES.iter().map(PathBuf::from).find(|path| path.is_file());
    let grid = path("X509_CERT_DIR").unwrap_or_else(|| PathBuf::from(GRID_DIRECTORY));
    let places = [
        path("SSL_CERT_FILE").or_else(bundle),
        path("SSL_CERT_DIR"),
        Some(grid),
    ];
    // The place in the list identifies the kind.
    let sources: Vec<Source> = places.map(|path| source(path.unwrap_or_default())).into();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((known, roots)) = last.as_ref()
        && *known == sources
    {
        return Arc::clone(roots);
    }
    let mut roots = Vec::new();
    for (number, (place, _)) in sources.iter().enumerate() {
        if number == 0 {
            add_certificates(&mut roots, place);
            continue;
        }
        let entries = fs::read_dir(place).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let extension = path.extension().and_then(|extension| extension.to_str());
            if extension.is_some_and(|extension| ["0", "pem", "crt"].contains(&extension)) {
                add_certificates(&mut roots, &path);
            }
        }
    }
    let roots = Arc::new(roots);
    *last = Some((sources, Arc::clone(&roots)));
    roots
}

fn source(path: PathBuf) -> Source {
    let status = fs::metadata(&path).ok();
    let facts = status.map(|status| (status.ino(), status.size(), status.mtime(), status.mtime_nsec()));
    (path, facts)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate is any bytes until a server shows one.
    const PEM: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

    #[test]
    fn certificates_are_read_once_until_they_change() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bundle.pem");
        let environment = |file: &Path, grid: &str| {
            let grid = directory.path().join(grid);
            let variables = [("SSL_CERT_FILE", file), ("X509_CERT_DIR", &grid)];
            let variables = variables.map(|(name, path)| (name.into(), path.into()));
            Environment::new(variables, None)
        };
        fs::write(&file, PEM).unwrap();
        let first = roots(&environment(&file, "none"));
        assert_eq!(first.len(), 1);
        assert!(Arc::ptr_eq(&first, &roots(&environment(&file, "none"))));
        fs::write(&file, PEM.repeat(2)).unwrap();
        assert_eq!(roots(&environment(&file, "none")).len(), 2);
        let grid = directory.path().join("grid");
        fs::create_dir(&grid).unwrap();
        assert_eq!(roots(&environment(&file, "grid")).len(), 2);
        fs::write(grid.join("a.0"), PEM).unwrap();
        fs::write(grid.join("a.r0"), PEM).unwrap();
        let changed = fs::File::open(&grid).unwrap();
        // The clock of the file system may be coarse.
        changed.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(roots(&environment(&file, "grid")).len(), 3);
        assert!(roots(&environment(&directory.path().join("none"), "none")).is_empty());
    }
}
