//! Transfers with real servers: SSH, nginx, S3 and GCS.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{mkdir, remove, transfer, tree, write, write_secret};
use crate::support::command::{CommandResult, Program};
use crate::support::nginx;
use crate::support::programs::{Build, server_bin};
use crate::support::server::{Server, free_port};
use crate::support::sshd::Sshd;

/// A directory in which the program runs.
struct TransferRun {
    directory: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl TransferRun {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().expect("directory"),
            environment: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn set(&mut self, name: &str, value: impl AsRef<Path>) {
        self.environment
            .push((name.to_owned(), value.as_ref().display().to_string()));
    }

    fn run(&self, entries: &[Value]) -> CommandResult {
        let list = self.path("list.in");
        write(&list, Value::from(entries.to_vec()).to_string());
        Program::new(Build::Local.program("pegasus-transfer"))
            .args(["--retry-wait", "0.01", "--file"])
            .arg(list)
            .in_directory(self.directory.path())
            .envs(&self.environment)
            .run()
    }
}

/// Returns pseudo-random bytes.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 7u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}

#[test]
#[ignore = "needs an SSH server: tests/run e2e"]
fn scp_with_a_real_server() {
    let mut run = TransferRun::new();
    let server = Sshd::start(run.directory.path());
    let port = server.port;
    run.set("SSH_PRIVATE_KEY_local", server.key.clone());
    let nasty = "it's; $(touch pwned) *[x]?\\ \"q\" é";
    write(run.path("a"), "hello");
    write(run.path(nasty), nasty);
    write(run.path("big"), noise(3_000_000));
    let there = run.path("there");
    let url = |name: &str| format!("scp://127.0.0.1:{port}{}/{name}", there.display());
    // Nobody knows the key of this server.
    let result = run.run(&[transfer("a", &url("d/a"))]);
    assert_eq!(result.code(), 1, "{}", result.details());
    assert!(
        result.stderr.contains("Failed after 1 attempt: ")
            && result.stderr.contains("PEGASUS_SSH_HOST_KEYS=new"),
        "{}",
        result.details()
    );
    run.set("PEGASUS_SSH_HOST_KEYS", "ignore");
    run.run(&[
        mkdir(&url("made/deep")),
        transfer("a", &url("d/a")),
        transfer("big", &url("d/big")),
        transfer(nasty, &url(&format!("d/{nasty}"))),
    ])
    .ok();
    assert_eq!(
        fs::read(there.join("d").join(nasty)).expect("sent"),
        nasty.as_bytes()
    );
    assert!(there.join("made/deep").is_dir());
    run.run(&[
        transfer(&url("d/a"), "back/1"),
        transfer(&url("d/big"), "back/2"),
        transfer(&url(&format!("d/{nasty}")), "back/3"),
    ])
    .ok();
    assert_eq!(fs::read(run.path("back/2")).expect("fetched"), noise(3_000_000));
    assert_eq!(fs::read(run.path("back/3")).expect("fetched"), nasty.as_bytes());
    let result = run.run(&[
        transfer(&url("d/a"), "back/4"),
        transfer(&url("d/none"), "back/5"),
    ]);
    assert_eq!(result.code(), 1, "{}", result.details());
    assert!(
        result.stderr.contains("Failed after 1 attempt: "),
        "{}",
        result.details()
    );
    assert_eq!(tree(&run.path("back")).len(), 4, "{:?}", tree(&run.path("back")));
    run.run(&[
        remove(&url("d/a"), false),
        remove(&url("d/none"), false),
        remove(&url(&format!("d/{nasty}")), false),
        remove(&url("made"), true),
    ])
    .ok();
    assert_eq!(fs::read_dir(there.join("d")).expect("left").count(), 1);
    assert!(!there.join("made").exists());
    assert!(!run.path("pwned").exists() && !Path::new("pwned").exists());
    // The server has stopped.
    drop(server);
    let result = run.run(&[transfer(&url("d/big"), "back/6")]);
    assert!(
        result.stderr.contains("Failed after 3 attempts: "),
        "{}",
        result.details()
    );
}

/// Creates an authority and a certificate that it signs.
fn create_certificates(run: &TransferRun) {
    write(run.path("names"), "subjectAltName=DNS:localhost\n");
    for line in [
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.crt",
        "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout tls.key -out tls.csr",
        "x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out tls.crt",
    ] {
        let words = line.split(' ');
        Program::new("openssl")
            .args(words)
            .in_directory(run.directory.path())
            .run()
            .ok();
    }
}

/// Starts nginx with a port for HTTP and one for HTTPS.
fn start_nginx(run: &TransferRun, plain: u16, secure: u16) -> Server {
    let top = run.directory.path();
    let directives = format!(
        "listen 127.0.0.1:{secure} ssl; ssl_certificate {top}/tls.crt; ssl_certificate_key {top}/tls.key;
         location /moved {{ return 302 /big; }}
         location /down {{ return 302 http://localhost:{plain}/big; }}
         location /dav/ {{
           auth_basic realm; auth_basic_user_file {top}/users;
           dav_methods PUT DELETE MKCOL; dav_access user:rw;
         }}",
        top = top.display()
    );
    nginx::start(top, plain, &directives)
}

#[test]
#[ignore = "needs nginx: tests/run e2e"]
#[expect(clippy::too_many_lines, reason = "one session with a server")]
fn http_and_webdav_with_a_real_server() {
    let mut run = TransferRun::new();
    let (plain, secure) = (free_port(), free_port());
    create_certificates(&run);
    fs::create_dir_all(run.path("root/dav")).expect("mkdir");
    write(run.path("users"), "me:{PLAIN}secret\n");
    write(run.path("root/a b"), "hello");
    write(run.path("root/big"), noise(2_000_000));
    let _server = start_nginx(&run, plain, secure);
    let host = format!("127.0.0.1:{plain}");
    run.run(&[
        transfer(&format!("http://{host}/a b"), "got/1"),
        transfer(&format!("http://{host}/moved"), "got/2"),
    ])
    .ok();
    assert_eq!(fs::read(run.path("got/2")).expect("fetched"), noise(2_000_000));
    // The authority of the certificate is not trusted.
    let https = |to: &str| transfer(&format!("https://localhost:{secure}/a b"), to);
    let result = run.run(&[https("got/3")]);
    assert_eq!(result.code(), 1);
    assert!(
        result.stderr.contains("Failed after 1 attempt") && result.stderr.contains("SSL_CERT_FILE"),
        "{}",
        result.details()
    );
    write_secret(
        &run.path("credentials"),
        &format!(
            "[{host}]\nusername = me\npassword = secret\n[https://localhost:{secure}]\ninsecure = yes\n"
        ),
    );
    run.set("PEGASUS_CREDENTIALS", run.path("credentials"));
    run.run(&[https("got/3")]).ok();
    write_secret(
        &run.path("credentials"),
        &format!("[{host}]\nusername = me\npassword = secret\n"),
    );
    run.set("SSL_CERT_FILE", run.path("ca.crt"));
    run.run(&[https("got/4")]).ok();
    assert_eq!(fs::read(run.path("got/4")).expect("fetched"), b"hello");
    // From https, no redirection leads to http.
    let result = run.run(&[transfer(&format!("https://localhost:{secure}/down"), "got/5")]);
    assert_eq!(result.code(), 1);
    assert!(
        result.stderr.contains("Failed after 1 attempt") && result.stderr.contains("which is not encrypted"),
        "{}",
        result.details()
    );
    assert!(!run.path("got/5").exists());
    let dav = |name: &str| format!("webdav://{host}/dav/{name}");
    run.run(&[
        mkdir(&dav("new/deep")),
        transfer("got/1", &dav("x/y/1")),
        transfer("got/2", &dav("x/y/2 é")),
    ])
    .ok();
    assert_eq!(
        fs::read(run.path("root/dav/x/y/2 é")).expect("sent"),
        noise(2_000_000)
    );
    assert!(run.path("root/dav/new/deep").is_dir());
    run.run(&[
        transfer(&dav("x/y/2 é"), "got/5"),
        remove(&dav("x/y/1"), false),
        remove(&dav("none"), false),
        remove(&dav("new"), true),
    ])
    .ok();
    assert_eq!(fs::read(run.path("got/5")).expect("fetched"), noise(2_000_000));
    assert_eq!(
        tree(&run.path("root/dav")).len(),
        3,
        "{:?}",
        tree(&run.path("root/dav"))
    );
    write_secret(
        &run.path("credentials"),
        &format!("[{host}]\nusername = me\npassword = wrong\n"),
    );
    let result = run.run(&[transfer("got/2", &dav("z"))]);
    assert!(
        result.stderr.contains("401") && result.stderr.contains("Failed after 1 attempt"),
        "{}",
        result.details()
    );
}

/// Creates a user with a key and prints the key. The server checks signatures after these requests.
const MAKE_USER: &str = r#"
import boto3, json, sys
iam = boto3.client("iam", endpoint_url=sys.argv[1], aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1")
iam.create_user(UserName="u")
key = iam.create_access_key(UserName="u")["AccessKey"]
policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="u", PolicyName="p", PolicyDocument=json.dumps(policy))
print(key["AccessKeyId"], key["SecretAccessKey"])
"#;

#[test]
#[ignore = "needs a server for S3: tests/run e2e"]
fn s3_with_a_server_that_checks_signatures() {
    let mut run = TransferRun::new();
    let port = free_port();
    let server = Program::new(server_bin().join("moto_server"))
        .args(["-H", "127.0.0.1", "-p", &port.to_string()])
        .env("INITIAL_NO_AUTH_ACTION_COUNT", "3");
    let _server = Server::start(server, port);
    let endpoint = format!("http://127.0.0.1:{port}");
    let result = Program::new(server_bin().join("python"))
        .args(["-c", MAKE_USER, &endpoint])
        .run()
        .ok();
    let mut words = result.stdout.split_whitespace();
    let (access, key) = (words.next().expect("a key"), words.next().expect("its secret"));
    let credentials = |key: &str| {
        format!("[store]\nendpoint = {endpoint}\n[me@store]\naccess_key = {access}\nsecret_key = {key}\n")
    };
    write_secret(&run.path("credentials"), &credentials(key));
    run.set("PEGASUS_CREDENTIALS_local", run.path("credentials"));
    // The smallest parts that the protocol allows.
    run.set("PEGASUS_TRANSFER_S3_PART_MB", "5");
    write(run.path("a"), "hello");
    write(run.path("empty"), "");
    write(run.path("big"), noise(11_000_000));
    let url = |name: &str| format!("s3://me@store/{name}");
    run.run(&[
        mkdir(&url("bucket")),
        transfer("a", &url("bucket/d/a b+c&é=%")),
        transfer("big", &url("bucket/d/big")),
        transfer("empty", &url("made-for-it/empty")),
        transfer("a", &url("bucket//x//y")),
        transfer("a", &url("bucket/e/")),
    ])
    .ok();
    run.run(&[
        mkdir(&url("bucket")),
        transfer(&url("bucket/d/a b+c&é=%"), "got/a"),
        transfer(&url("bucket/d/big"), "got/big"),
        transfer(&url("made-for-it/empty"), "got/empty"),
        transfer(&url("bucket//x//y"), "got/y"),
        transfer(&url("bucket/e/"), "got/e"),
        transfer(&url("bucket/d/big"), &url("third/copy")),
        remove(&url("bucket/d/none"), false),
    ])
    .ok();
    assert_eq!(fs::read(run.path("got/a")).expect("fetched"), b"hello");
    assert_eq!(fs::read(run.path("got/big")).expect("fetched"), noise(11_000_000));
    assert_eq!(fs::read(run.path("got/empty")).expect("fetched"), b"");
    for name in ["got/y", "got/e"] {
        assert_eq!(fs::read(run.path(name)).expect("fetched"), b"hello");
    }
    run.run(&[remove(&url("bucket/d/"), true)]).ok();
    let result = run.run(&[
        transfer(&url("bucket/d/big"), "got/x"),
        transfer(&url("third/copy"), "got/copy"),
    ]);
    assert!(
        result.stderr.contains("404 NoSuchKey") && result.stderr.contains("Failed after 1 attempt"),
        "{}",
        result.details()
    );
    assert_eq!(
        fs::read(run.path("got/copy")).expect("fetched"),
        noise(11_000_000)
    );
    write_secret(&run.path("credentials"), &credentials("wrong"));
    let result = run.run(&[transfer(&url("third/copy"), "got/y")]);
    assert!(
        result.stderr.contains("403 SignatureDoesNotMatch"),
        "{}",
        result.details()
    );
}

#[test]
#[ignore = "needs a server for GCS: tests/run e2e"]
fn gcs_with_an_emulator() {
    let mut run = TransferRun::new();
    let port = free_port();
    let server = Program::new(server_bin().join("gcp-storage-emulator"))
        .args(["start", "--host=127.0.0.1", "--in-memory"])
        .arg(format!("--port={port}"));
    let _server = Server::start(server, port);
    run.set("STORAGE_EMULATOR_HOST", format!("http://127.0.0.1:{port}"));
    write(run.path("a"), "hello");
    write(run.path("big"), noise(3_000_000));
    run.run(&[
        mkdir("gs://bucket/"),
        transfer("a", "gs://bucket/d/a b+c&é"),
        transfer("big", "gs://bucket/d/big"),
        transfer("a", "gs://made-for-it/a"),
    ])
    .ok();
    run.run(&[
        transfer("gs://bucket/d/a b+c&é", "got/a"),
        transfer("gs://bucket/d/big", "got/big"),
        transfer("gs://bucket/d/big", "gs://bucket/copy"),
        remove("gs://bucket/d/none", false),
    ])
    .ok();
    assert_eq!(fs::read(run.path("got/a")).expect("fetched"), b"hello");
    assert_eq!(fs::read(run.path("got/big")).expect("fetched"), noise(3_000_000));
    run.run(&[remove("gs://bucket/d", true)]).ok();
    let result = run.run(&[
        transfer("gs://bucket/d/big", "got/x"),
        transfer("gs://bucket/copy", "got/copy"),
    ]);
    assert!(
        result.stderr.contains("404") && result.stderr.contains("Failed after 1 attempt"),
        "{}",
        result.details()
    );
    assert_eq!(fs::read(run.path("got/copy")).expect("fetched"), noise(3_000_000));
}
