//! Encrypted connections to a PostgreSQL server.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::server::{PASSWORD, Server};
use crate::support::Fixture;

/// Makes certificates with the program `openssl`.
struct Certificates {
    place: tempfile::TempDir,
}

impl Certificates {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        Self { place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Makes a key and a certificate, signed by `authority` or itself.
    fn make(&self, name: &str, subject: &str, extension: &str, authority: Option<&str>) {
        let (key, request) = (
            self.path(&format!("{name}.key")),
            self.path(&format!("{name}.csr")),
        );
        let mut command = Command::new("openssl");
        command.args([
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ]);
        command.arg("-keyout").arg(&key).args(["-subj", subject]);
        if !extension.is_empty() {
            command.args(["-addext", extension]);
        }
        let certificate = self.path(&format!("{name}.crt"));
        match authority {
            None => succeed(command.args(["-x509", "-days", "2"]).arg("-out").arg(certificate)),
            Some(authority) => {
                succeed(command.arg("-out").arg(&request));
                let mut command = Command::new("openssl");
                command.args([
                    "x509",
                    "-req",
                    "-days",
                    "2",
                    "-copy_extensions",
                    "copy",
                    "-CAcreateserial",
                ]);
                command.arg("-in").arg(request).arg("-out").arg(certificate);
                command.arg("-CA").arg(self.path(&format!("{authority}.crt")));
                command.arg("-CAkey").arg(self.path(&format!("{authority}.key")));
                succeed(&mut command);
            }
        }
    }
}

fn succeed(command: &mut Command) {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(
        status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&stderr)
    );
}

/// Accounts that need encryption, or no encryption.
const RULES: &str = "\
local     all all                 scram-sha-256
hostssl   all secret 127.0.0.1/32 scram-sha-256
hostnossl all open   127.0.0.1/32 scram-sha-256
";

/// Loads the run. Returns the message of the loader, empty on success.
fn load(run: &Fixture, url: &str, variables: &[(&str, &str)]) -> String {
    let output = run
        .monitord(&["-r", "--no-dashboard", "-d", url])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.success(), stderr.is_empty(), "{url}: {stderr}");
    assert!(
        !stderr.contains(PASSWORD) && stderr.lines().count() <= 1,
        "{stderr}"
    );
    stderr
}

/// Hosts, accounts, and options that work. `full FILE` are those of `verify-full` with the authorities in a
/// file.
const ACCEPTED: [(&str, &str, &str); 7] = [
    ("127.0.0.1", "secret", ""),
    ("127.0.0.1", "secret", "sslmode=prefer"),
    ("127.0.0.1", "secret", "sslmode=require"),
    ("127.0.0.1", "open", "sslmode=disable"),
    ("localhost", "secret", "full ca.crt"),
    ("db.invalid", "secret", "sslmode=require&hostaddr=127.0.0.1"),
    ("127.0.0.1:1,127.0.0.1", "secret", "sslmode=require"),
];

/// The same that are refused, and a part of the message.
const REFUSED: [(&str, &str, &str, &str); 10] = [
    (
        "127.0.0.1",
        "secret",
        "sslmode=disable",
        "refuses the account: no pg_hba.conf entry",
    ),
    (
        "127.0.0.1",
        "open",
        "sslmode=require",
        "refuses the account: no pg_hba.conf entry",
    ),
    (
        "127.0.0.1",
        "open",
        "",
        "check user, password and sslmode of the URL",
    ),
    (
        "localhost",
        "secret",
        "full stranger.crt",
        "no trusted authority has signed it; check sslrootcert",
    ),
    (
        "localhost",
        "secret",
        "sslmode=verify-full",
        "no trusted authority has signed it",
    ),
    (
        "localhost",
        "secret",
        "full ca.key",
        "ca.key: no certificate of an authority in PEM",
    ),
    ("localhost", "secret", "full none.crt", "none.crt: "),
    (
        "127.0.0.1",
        "secret",
        "full ca.crt",
        "not valid for name \"127.0.0.1\"; certificate is only valid for DnsName(\"localhost\")",
    ),
    (
        "localhost",
        "secret",
        "sslmode=verify-ca",
        "sslmode=verify-ca is not supported; use disable,",
    ),
    (
        "localhost",
        "secret",
        "sslmode=require&sslkey=k",
        "sslkey is not supported; remove it",
    ),
];

#[test]
fn each_mode_checks_what_it_promises() {
    let made = Certificates::new();
    made.make("ca", "/CN=Test authority", "", None);
    made.make("stranger", "/CN=Another authority", "", None);
    made.make("server", "/CN=x", "subjectAltName=DNS:localhost", Some("ca"));
    let (certificate, key) = (made.path("server.crt"), made.path("server.key"));
    let Some(server) = Server::encrypted(&certificate, &key, RULES) else {
        return;
    };
    let database = server.database();
    let mut client = server.client(&database);
    for account in ["secret", "open"] {
        let sql = format!("CREATE ROLE {account} LOGIN SUPERUSER PASSWORD '{PASSWORD}'");
        client.batch_execute(&sql).unwrap();
    }
    let run = Fixture::run(2);
    run.write_log();
    let url = |host: &str, account: &str, options: &str| server.url_at(host, account, &database, options);
    let options = |text: &str| match text.strip_prefix("full ") {
        Some(file) => format!("sslmode=verify-full&sslrootcert={}", made.path(file).display()),
        None => text.to_owned(),
    };
    for (host, account, text) in ACCEPTED {
        let stderr = load(&run, &url(host, account, &options(text)), &[]);
        assert_eq!(stderr, "", "{account} {text}");
    }
    for (host, account, text, what) in REFUSED {
        let stderr = load(&run, &url(host, account, &options(text)), &[]);
        assert!(stderr.contains(what), "{account} {text}: {stderr}");
    }
    let plain = url("localhost", "secret", "");
    let stderr = load(&run, &plain, &[("PGSSLMODE", "verify-full")]);
    assert!(
        stderr.contains("PGSSLMODE is not supported; unset it, and add to the URL"),
        "{stderr}"
    );
    let verified = url("localhost", "secret", &options("full ca.crt"));
    assert_eq!(load(&run, &verified, &[("PGSSLMODE", "require")]), "");
}

#[test]
fn a_server_without_it() {
    let Some(server) = Server::shared() else { return };
    let run = Fixture::run(2);
    run.write_log();
    let database = server.database();
    let url = |options: &str| format!("{}?{options}", server.url(&database));
    for mode in ["disable", "prefer"] {
        assert_eq!(load(&run, &url(&format!("sslmode={mode}")), &[]), "", "{mode}");
    }
    let stderr = load(&run, &url("sslmode=require"), &[]);
    assert!(
        stderr.contains("does not support encryption, which sslmode demands"),
        "{stderr}"
    );
    // On a socket there is nothing to encrypt.
    let socket = format!("{}&sslmode=require", server.socket_url(&database));
    assert_eq!(load(&run, &socket, &[]), "");
}
