//! Encrypted connections to a PostgreSQL server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

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

impl Certificates {
    /// Makes a list of certificates that an authority revokes.
    fn revoke(&self, authority: &str, names: &[&str], list: &str) {
        let index = self.path(&format!("{list}.index"));
        fs::write(&index, "").unwrap();
        let number = self.path(&format!("{list}.number"));
        let settings = self.path(&format!("{list}.cnf"));
        let text = format!(
            "[ca]\ndefault_ca = it\n[it]\ndatabase = {}\ncertificate = {}\nprivate_key = {}\ndefault_md = sha256\n\
             default_crl_days = 2\ncrlnumber = {}\ncrl_extensions = ext\n[ext]\nauthorityKeyIdentifier = keyid\n",
            index.display(),
            self.path(&format!("{authority}.crt")).display(),
            self.path(&format!("{authority}.key")).display(),
            number.display()
        );
        fs::write(&number, "01\n").unwrap();
        fs::write(&settings, text).unwrap();
        let openssl = || {
            let mut command = Command::new("openssl");
            command.arg("ca").arg("-config").arg(&settings);
            command
        };
        for name in names {
            succeed(openssl().arg("-revoke").arg(self.path(name)));
        }
        succeed(openssl().arg("-gencrl").arg("-out").arg(self.path(list)));
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

/// Accounts that need encryption, no encryption, or a certificate.
const RULES: &str = "\
local     all all                    scram-sha-256
hostssl   all secret    127.0.0.1/32 scram-sha-256
hostnossl all open      127.0.0.1/32 scram-sha-256
hostssl   all certified 127.0.0.1/32 cert
";

struct Case {
    run: Fixture,
    home: PathBuf,
}

impl Case {
    /// Loads the run. Returns the message of the loader, empty on success.
    fn load(&self, url: &str, variables: &[(&str, &Path)]) -> String {
        let output = self
            .run
            .monitord(&["-r", "--no-dashboard", "-d", url])
            .env("HOME", &self.home)
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
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "all cases share one server, which starts slowly"
)]
fn each_mode_checks_what_it_promises() {
    let made = Certificates::new();
    made.make("ca", "/CN=Test authority", "", None);
    made.make("stranger", "/CN=Another authority", "", None);
    made.make("server", "/CN=x", "subjectAltName=DNS:localhost", Some("ca"));
    made.make(
        "certified",
        "/CN=certified",
        "basicConstraints=CA:FALSE",
        Some("ca"),
    );
    let (certificate, key) = (made.path("server.crt"), made.path("server.key"));
    let Some(server) = Server::encrypted(&certificate, &key, &made.path("ca.crt"), RULES) else {
        return;
    };
    let database = server.database();
    let mut client = server.client(&database);
    for account in ["secret", "open", "certified"] {
        let sql = format!("CREATE ROLE {account} LOGIN SUPERUSER PASSWORD '{PASSWORD}'");
        client.batch_execute(&sql).unwrap();
    }
    let run = Fixture::run(2);
    run.write_log();
    let home = made.path("home");
    fs::create_dir(&home).unwrap();
    let case = Case { run, home };
    let url = |host: &str, account: &str, options: &str| server.url_at(host, account, &database, options);
    let ca = |name: &str| format!("sslrootcert={}", made.path(name).display());
    let works = |host: &str, account: &str, options: &str| {
        assert_eq!(
            case.load(&url(host, account, options), &[]),
            "",
            "{account} {options}"
        );
    };
    let fails = |host: &str, account: &str, options: &str, what: &str| {
        let stderr = case.load(&url(host, account, options), &[]);
        assert!(stderr.contains(what), "{account} {options}: {stderr}");
    };

    // Modes without an authority.
    for options in ["", "sslmode=allow", "sslmode=prefer", "sslmode=require"] {
        works("127.0.0.1", "secret", options);
    }
    for options in ["", "sslmode=allow", "sslmode=prefer", "sslmode=disable"] {
        works("127.0.0.1", "open", options);
    }
    fails(
        "127.0.0.1",
        "secret",
        "sslmode=disable",
        "refuses the account: no pg_hba.conf entry",
    );
    fails(
        "127.0.0.1",
        "open",
        "sslmode=require",
        "refuses the account: no pg_hba.conf entry",
    );
    assert_eq!(
        case.load(
            &url("localhost", "open", ""),
            &[("PGSSLMODE", "disable".as_ref())]
        ),
        ""
    );
    let stderr = case.load(&url("localhost", "open", ""), &[("PGSSLMODE", "no".as_ref())]);
    assert!(
        stderr.contains("PGSSLMODE: no is none of disable, allow"),
        "{stderr}"
    );

    // The chain.
    works(
        "127.0.0.1",
        "secret",
        &format!("sslmode=verify-ca&{}", ca("ca.crt")),
    );
    fails(
        "127.0.0.1",
        "secret",
        "sslmode=verify-ca",
        ".postgresql/root.crt does not exist; name it with sslrootcert=FILE",
    );
    fails(
        "127.0.0.1",
        "secret",
        &format!("sslmode=require&{}", ca("stranger.crt")),
        "no trusted authority has signed it; check sslmode, sslrootcert",
    );
    fails(
        "127.0.0.1",
        "secret",
        &format!("sslmode=verify-ca&{}", ca("ca.key")),
        "ca.key: no certificate in PEM",
    );
    fails(
        "localhost",
        "secret",
        "sslrootcert=system",
        "no trusted authority",
    );
    fails(
        "localhost",
        "secret",
        "sslrootcert=system&sslmode=require",
        "is too weak for sslrootcert=system",
    );

    // The name of the host.
    let full = format!("sslmode=verify-full&{}", ca("ca.crt"));
    works("localhost", "secret", &full);
    fails(
        "127.0.0.1",
        "secret",
        &full,
        "not valid for name \"127.0.0.1\"; certificate is only valid for DnsName(\"localhost\")",
    );
    let root = made.path("ca.crt");
    let variables: [(&str, &Path); 2] = [("PGSSLMODE", "verify-full".as_ref()), ("PGSSLROOTCERT", &root)];
    assert_eq!(case.load(&url("localhost", "secret", ""), &variables), "");
    assert!(
        case.load(&url("127.0.0.1", "secret", ""), &variables)
            .contains("not valid for name")
    );

    // Revoked certificates.
    made.revoke("ca", &["certified.crt"], "ca.crl");
    made.revoke("ca", &["server.crt"], "revoked.crl");
    made.revoke("stranger", &[], "stranger.crl");
    let list = |name: &str| format!("{full}&sslcrl={}", made.path(name).display());
    works("localhost", "secret", &list("ca.crl"));
    fails("localhost", "secret", &list("revoked.crl"), "it was revoked");
    fails(
        "localhost",
        "secret",
        &list("stranger.crl"),
        "sslcrl has no list of its authority",
    );
    fails(
        "localhost",
        "secret",
        &list("ca.crt"),
        "no list of revoked certificates in PEM",
    );
    fails("localhost", "secret", &list("none"), "none: does not exist");
    let revoked = made.path("revoked.crl");
    let variables: [(&str, &Path); 1] = [("PGSSLCRL", &revoked)];
    let stderr = case.load(&url("localhost", "secret", &full), &variables);
    assert!(stderr.contains("it was revoked"), "{stderr}");
    let stderr = case.load(&url("localhost", "secret", ""), &variables);
    assert!(
        stderr.contains("sslcrl needs the certificate of an authority"),
        "{stderr}"
    );

    // Certificates of the client.
    let own = |key: &str| {
        let certificate = made.path("certified.crt");
        format!(
            "sslmode=require&sslcert={}&sslkey={}",
            certificate.display(),
            made.path(key).display()
        )
    };
    works("127.0.0.1", "certified", &own("certified.key"));
    fails(
        "127.0.0.1",
        "certified",
        "sslmode=require",
        "refuses the account: ",
    );
    fails(
        "127.0.0.1",
        "certified",
        &own("missing.key"),
        "missing.key: does not exist",
    );
    fails(
        "127.0.0.1",
        "certified",
        &own("certified.csr"),
        "certified.csr: others may read it",
    );
    // Default files of the user.
    let defaults = case.home.join(".postgresql");
    fs::create_dir(&defaults).unwrap();
    for (from, to) in [
        ("certified.crt", "postgresql.crt"),
        ("certified.key", "postgresql.key"),
        ("ca.crt", "root.crt"),
    ] {
        fs::copy(made.path(from), defaults.join(to)).unwrap();
    }
    works("localhost", "certified", "sslmode=verify-full");

    // A server that signs for itself, as the manual of PostgreSQL has it: no other name than the common one.
    made.make("own", "/CN=localhost", "", None);
    server.change_certificate(&made.path("own.crt"), &made.path("own.key"));
    let start = Instant::now();
    let own = format!("sslmode=verify-full&{}", ca("own.crt"));
    while !case.load(&url("localhost", "secret", &own), &[]).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(50));
    }
    works("127.0.0.1", "secret", &own.replace("full", "ca"));
    fails("127.0.0.1", "secret", &own, "not valid for name");
    fails("localhost", "secret", &full, "certificate is not accepted");
}

#[test]
fn a_server_without_it() {
    let Some(server) = Server::shared() else { return };
    let run = Fixture::run(2);
    run.write_log();
    let home = run.dir.clone();
    let case = Case { run, home };
    let database = server.database();
    let url = |options: &str| format!("{}?{options}", server.url(&database));
    for mode in ["disable", "allow", "prefer"] {
        assert_eq!(case.load(&url(&format!("sslmode={mode}")), &[]), "", "{mode}");
    }
    let stderr = case.load(&url("sslmode=require"), &[]);
    assert!(
        stderr.contains("does not support encryption, which sslmode=require demands"),
        "{stderr}"
    );
    // On a socket there is nothing to encrypt.
    let socket = format!("{}&sslmode=require", server.socket_url(&database));
    assert_eq!(case.load(&socket, &[]), "");
}
