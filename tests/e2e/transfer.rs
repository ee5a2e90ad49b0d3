//! `pegasus-transfer` does the same with files as that of Pegasus, and works with real servers.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::command::{Run, Running};
use crate::support::programs::{Flavour, server_bin, venv_bin};
use crate::support::server::{Server, free_port, system_program};

fn place(url: &str) -> Value {
    json!({"site_label": "local", "url": url})
}

fn transfer(source: &str, destination: &str) -> Value {
    json!({"type": "transfer", "lfn": "f.lfn", "linkage": "output", "src_urls": [place(source)],
        "dest_urls": [place(destination)]})
}

/// A path in the directory of a case: Pegasus cannot write to a plain name, and links to it would lead nowhere.
fn absolute(url: &str) -> String {
    match url.split_once(':') {
        Some((scheme, path)) if ["symlink", "moveto"].contains(&scheme) => {
            format!("{scheme}://$PWD/{}", path.trim_start_matches('/'))
        }
        None if !url.starts_with('$') => format!("$PWD/{url}"),
        _ => url.to_owned(),
    }
}

/// The same with one more key.
fn with(mut entry: Value, key: &str, value: impl Into<Value>) -> Value {
    entry[key] = value.into();
    entry
}

fn mkdir(url: &str) -> Value {
    json!({"type": "mkdir", "target": place(url)})
}

fn remove(url: &str, recursive: impl Into<Value>) -> Value {
    json!({"type": "remove", "target": with(place(url), "recursive", recursive)})
}

fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
    fs::write(path, content).expect("write");
}

fn secret(path: &Path, content: &str) {
    write(path, content);
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("chmod");
}

/// What every case finds in its directory.
fn fill(folder: &Path) {
    let path = |name: &str| folder.join(name);
    write(path("a"), "hello");
    write(path("b"), "b".repeat(300));
    write(path("empty"), "");
    for name in ["a b", "a%20b", "é", "a\"b", "#a"] {
        write(path(name), name);
    }
    write(path("run"), "#!/bin/sh\n");
    fs::set_permissions(path("run"), fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::create_dir_all(path("dir/sub")).expect("mkdir");
    // Pegasus makes it also when nothing comes into it.
    fs::create_dir(path("dst")).expect("mkdir");
    write(path("dir/sub/x"), "x");
    write(path("old"), "old");
    secret(&path("locked"), "locked");
    fs::create_dir(path("closed")).expect("mkdir");
    for name in ["locked", "closed"] {
        fs::set_permissions(path(name), fs::Permissions::from_mode(0o000)).expect("chmod");
    }
    symlink("a", path("link")).expect("link");
    symlink("nothing", path("dangling")).expect("link");
    symlink("dir", path("dirlink")).expect("link");
    let sum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let meta = json!([{"_id": "f.lfn", "_type": "file", "_attributes": {"checksum.value": sum, "checksum.type": "sha256"}}]);
    write(path("known.meta"), meta.to_string());
}

/// All that is in a directory, with what matters of it.
fn tree(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).expect("directory") {
            let path = entry.expect("entry").path();
            let meta = fs::symlink_metadata(&path).expect("metadata");
            let name = path.strip_prefix(folder).expect("below").display();
            let mode = meta.permissions().mode() & 0o777;
            if mode == 0 {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("chmod");
            }
            all.push(if meta.is_symlink() {
                let target = fs::read_link(&path).expect("link").display().to_string();
                format!("{name} -> {}", target.replace(&folder.display().to_string(), "."))
            } else if meta.is_dir() {
                open.push(path.clone());
                format!("{name}/ {mode:o}")
            } else {
                format!(
                    "{name} {mode:o} {:?}",
                    String::from_utf8_lossy(&fs::read(&path).expect("read"))
                )
            });
        }
    }
    all.sort();
    all
}

/// A case: its name, whether both count the same transfers in their statistics, arguments, and the specification.
struct Case(&'static str, bool, &'static [&'static str], String);

fn cases() -> Vec<Case> {
    let transfer = |source: &str, destination: &str| transfer(&absolute(source), &absolute(destination));
    let mkdir = |url: &str| mkdir(&absolute(url));
    fn remove(url: &str, recursive: impl Into<Value>) -> Value {
        super::transfer::remove(&absolute(url), recursive)
    }
    let text = |entries: &[Value]| Value::from(entries.to_vec()).to_string();
    let one = |name, entry: Value| Case(name, true, &[], text(&[entry]));
    let two_sources = |first: &str, second: &str| {
        let mut entry = transfer(first, "dst/x");
        entry["src_urls"][0]["priority"] = 9.into();
        entry["src_urls"]
            .as_array_mut()
            .expect("a list")
            .push(json!({"site_label": "other-1", "url": absolute(second), "priority": 1}));
        entry
    };
    let many = [
        transfer("a", "dst/1"),
        transfer("file://b", "dst/deep/er/2"),
        transfer("link", "dst/3"),
        transfer("a b", "dst/a b"),
        transfer("a%20b", "dst/a%20b"),
        transfer("é", "dst/é"),
        transfer("run", "dst/run"),
        transfer("empty", "old"),
    ];
    let some_fail = [
        transfer("a", "dst/1"),
        transfer("missing", "dst/2"),
        transfer("b", "dst/3"),
        with(transfer("b", "dst/4"), "verify_checksum_remote", true),
        with(transfer("a", "dst/5"), "verify_checksum_remote", true),
    ];
    vec![
        Case("many good ones", true, &[], text(&many)),
        Case("some fail", true, &[], text(&some_fail)),
        Case("bad JSON", true, &[], "[{\"type\": ".to_owned()),
        Case("nothing to do", true, &[], "[]".to_owned()),
        one("one", transfer("a", "b2")),
        one("localhost", transfer("file://localhost$PWD/a", "file:$PWD/x")),
        one("a variable", transfer("$NOT_SET_ANYWHERE/a", "x")),
        one("overwrite", transfer("a", "old")),
        one("onto itself", transfer("a", "./a")),
        one("onto itself by a link", transfer("link", "a")),
        one("mode", transfer("run", "dst/run")),
        one("empty", transfer("empty", "dst/empty")),
        one("quotation mark", transfer("a\"b", "dst/a\"b")),
        one("number sign", transfer("#a", "dst/#a")),
        one("through a link", transfer("b", "link")),
        one("into a directory", transfer("b", "dir")),
        one("into a directory by a link", transfer("b", "dirlink/y")),
        one("missing", transfer("missing", "dst/x")),
        one("dangling source", transfer("dangling", "dst/x")),
        one("second source", two_sources("missing", "b")),
        one("first source", two_sources("a", "b")),
        one("no source", two_sources("missing", "missing2")),
        one("link", transfer("a", "symlink://dst/l")),
        // Theirs does not count what it leaves to a handler that it does not have, or calls a link.
        Case(
            "link to link",
            false,
            &[],
            text(&[transfer("symlink://a", "symlink://dst/l")]),
        ),
        one("link to nothing", transfer("missing", "symlink://dst/l")),
        one(
            "link to nothing, unchecked",
            with(
                transfer("missing", "symlink://dst/l"),
                "verify_symlink_source",
                false,
            ),
        ),
        Case(
            "links instead of copies",
            true,
            &["--symlink"],
            text(&[transfer("a", "dst/l")]),
        ),
        Case("link over a file", true, &["-s"], text(&[transfer("a", "old")])),
        Case(
            "duplicates",
            true,
            &[],
            text(&[transfer("a", "dst/x"), transfer("a", "dst/x")]),
        ),
        one("make a directory", mkdir("new/er")),
        one("make one that exists", mkdir("dir")),
        one("make one where a file is", mkdir("a")),
        one("remove", remove("a", false)),
        one("remove what is missing", remove("missing", false)),
        one("remove a directory", remove("dir", false)),
        one("remove a directory with all in it", remove("dir", "True")),
        one("remove a link", remove("dirlink", true)),
        one("remove a dangling link", remove("symlink://dangling", false)),
        Case(
            "several removals",
            true,
            &[],
            text(&[remove("a", false), remove("b", "no"), remove("é", "f")]),
        ),
        Case(
            "unknown protocol",
            false,
            &[],
            text(&[transfer("foo://h/x", "x")]),
        ),
        one("unreadable source", transfer("locked", "dst/x")),
        one("unreadable destination", transfer("a", "closed/x")),
        Case(
            "one of three cannot be read",
            true,
            &[],
            text(&[
                transfer("a", "dst/1"),
                transfer("locked", "dst/2"),
                transfer("b", "dst/3"),
            ]),
        ),
        one("no such type", json!({"type": "link"})),
        one("no label", json!({"type": "mkdir", "target": {"url": "x"}})),
        one(
            "checksum",
            with(transfer("a", "dst/x"), "generate_checksum", true),
        ),
        Case("not an option", true, &["--no-such-option"], "[]".to_owned()),
        Case(
            "older form",
            true,
            &[],
            "# src 1 site-a\nfile://a\n# dst 1 b\nfile://dst/x\n# src 2 a\nfile://b\n# dst 2 b\ndst/y\n"
                .to_owned(),
        ),
    ]
}

struct Result {
    code: i32,
    tree: Vec<String>,
    /// How many transfers the statistics count.
    counted: Option<String>,
    account: String,
}

fn start(program: &Path, case: &Case, folder: &Path) -> Running {
    fs::create_dir(folder).expect("mkdir");
    fill(folder);
    let list = folder.with_extension("in");
    write(&list, case.3.replace("$PWD", &folder.display().to_string()));
    // Root may do all that permissions forbid, unless it gives that up.
    let run = match nix::unistd::geteuid().is_root() {
        true => Run::line("setpriv --bounding-set -dac_override,-dac_read_search").arg(program),
        false => Run::new(program),
    };
    run.args(["--max-attempts", "1", "--file"])
        .arg(list)
        .args(case.2)
        .within(folder)
        .start()
}

fn end(running: Running, folder: &Path) -> Result {
    let said = running.wait();
    let text = format!("{}{}", said.stdout, said.stderr);
    let counted = text.lines().find_map(|line| {
        Some(
            line.split_once("Stats: Total ")?
                .1
                .split_once(" transfers,")?
                .0
                .to_owned(),
        )
    });
    Result {
        code: said.code(),
        tree: tree(folder),
        counted,
        account: said.account(),
    }
}

#[test]
#[ignore = "needs Pegasus: tests/run e2e"]
fn files_and_exit_codes_are_those_of_pegasus() {
    let ours = Flavour::Local.program("pegasus-transfer");
    let theirs = venv_bin().join("pegasus-transfer");
    let top = tempfile::tempdir().expect("directory");
    let cases = cases();
    assert!(cases.len() > 40, "{} cases", cases.len());
    let mut wrong = Vec::new();
    // Theirs sleeps most of its time: several at once.
    for (number, some) in cases.chunks(12).enumerate() {
        let running: Vec<_> = some
            .iter()
            .enumerate()
            .map(|(index, case)| {
                let folder = top.path().join(format!("theirs{number}-{index}"));
                (start(&theirs, case, &folder), folder)
            })
            .collect();
        for (index, (case, (their_run, their_folder))) in some.iter().zip(running).enumerate() {
            let folder = top.path().join(format!("ours{number}-{index}"));
            let mine = end(start(&ours, case, &folder), &folder);
            let their = end(their_run, &their_folder);
            // Links name the directory of the run; exit codes above 1 are those of wrong options.
            let same = mine.tree == their.tree
                && mine.code == their.code.min(1)
                && (mine.counted == their.counted) == case.1;
            if !same {
                let lost: Vec<_> = their
                    .tree
                    .iter()
                    .filter(|line| !mine.tree.contains(line))
                    .collect();
                let new: Vec<_> = mine
                    .tree
                    .iter()
                    .filter(|line| !their.tree.contains(line))
                    .collect();
                wrong.push(format!(
                    "{}: ours {} {:?}, theirs {} {:?}\n  only theirs {lost:?}\n  only ours {new:?}\n{}\n{}",
                    case.0, mine.code, mine.counted, their.code, their.counted, mine.account, their.account
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n\n")
    );
}

/// A directory and the program.
struct Job {
    folder: tempfile::TempDir,
    environment: Vec<(String, String)>,
}

impl Job {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().expect("directory"),
            environment: Vec::new(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn set(&mut self, name: &str, value: impl AsRef<Path>) {
        self.environment
            .push((name.to_owned(), value.as_ref().display().to_string()));
    }

    fn run(&self, entries: &[Value]) -> crate::support::command::Said {
        let list = self.path("list.in");
        write(&list, Value::from(entries.to_vec()).to_string());
        Run::new(Flavour::Local.program("pegasus-transfer"))
            .args(["--retry-wait", "0.01", "--file"])
            .arg(list)
            .within(self.folder.path())
            .envs(&self.environment)
            .go()
    }
}

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
    let mut job = Job::new();
    for name in ["host", "key"] {
        Run::line("ssh-keygen -q -t ed25519 -N")
            .arg("")
            .arg("-f")
            .arg(job.path(name))
            .go()
            .ok();
    }
    let port = free_port();
    let configuration = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
         UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n",
        job.path("host").display(),
        job.path("key.pub").display()
    );
    write(job.path("sshd_config"), configuration);
    if nix::unistd::geteuid().is_root() {
        fs::create_dir_all("/run/sshd").expect("the directory that sshd wants");
    }
    let server = Run::new(system_program("sshd"))
        .args(["-D", "-e", "-f"])
        .arg(job.path("sshd_config"));
    let _server = Server::start(server, port);
    job.set("SSH_PRIVATE_KEY_local", job.path("key"));
    let nasty = "it's; $(touch pwned) *[x]?\\ \"q\" é";
    write(job.path("a"), "hello");
    write(job.path(nasty), nasty);
    write(job.path("big"), noise(3_000_000));
    let there = job.path("there");
    let url = |name: &str| format!("scp://127.0.0.1:{port}{}/{name}", there.display());
    job.run(&[
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
    job.run(&[
        transfer(&url("d/a"), "back/1"),
        transfer(&url("d/big"), "back/2"),
        transfer(&url(&format!("d/{nasty}")), "back/3"),
    ])
    .ok();
    assert_eq!(fs::read(job.path("back/2")).expect("fetched"), noise(3_000_000));
    assert_eq!(fs::read(job.path("back/3")).expect("fetched"), nasty.as_bytes());
    let said = job.run(&[
        transfer(&url("d/a"), "back/4"),
        transfer(&url("d/none"), "back/5"),
    ]);
    assert_eq!(said.code(), 1, "{}", said.account());
    assert!(
        said.stderr.contains("Failed after 1 attempt: "),
        "{}",
        said.account()
    );
    assert_eq!(tree(&job.path("back")).len(), 4, "{:?}", tree(&job.path("back")));
    job.run(&[
        remove(&url("d/a"), false),
        remove(&url("d/none"), false),
        remove(&url(&format!("d/{nasty}")), false),
        remove(&url("made"), true),
    ])
    .ok();
    assert_eq!(fs::read_dir(there.join("d")).expect("left").count(), 1);
    assert!(!there.join("made").exists());
    assert!(!job.path("pwned").exists() && !Path::new("pwned").exists());
    // Nobody there any more.
    drop(_server);
    let said = job.run(&[transfer(&url("d/big"), "back/6")]);
    assert!(
        said.stderr.contains("Failed after 3 attempts: "),
        "{}",
        said.account()
    );
}

#[test]
#[ignore = "needs nginx: tests/run e2e"]
fn http_and_webdav_with_a_real_server() {
    let mut job = Job::new();
    let (plain, secure) = (free_port(), free_port());
    // An authority, and a certificate that it signs.
    write(job.path("names"), "subjectAltName=DNS:localhost\n");
    for line in [
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.crt",
        "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout tls.key -out tls.csr",
        "x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out tls.crt",
    ] {
        let words = line.split(' ');
        Run::new("openssl")
            .args(words)
            .within(job.folder.path())
            .go()
            .ok();
    }
    for folder in ["root/dav", "body", "logs"] {
        fs::create_dir_all(job.path(folder)).expect("mkdir");
    }
    write(job.path("users"), "me:{PLAIN}secret\n");
    write(job.path("root/a b"), "hello");
    write(job.path("root/big"), noise(2_000_000));
    let user = if nix::unistd::geteuid().is_root() {
        "user root;"
    } else {
        ""
    };
    let configuration = format!(
        "{user} daemon off; pid {top}/pid; error_log {top}/logs/error; worker_processes 1;
         events {{ worker_connections 64; }}
         http {{
           access_log {top}/logs/access; client_body_temp_path {top}/body; client_max_body_size 0;
           proxy_temp_path {top}/body; fastcgi_temp_path {top}/body; uwsgi_temp_path {top}/body; scgi_temp_path {top}/body;
           server {{
             listen 127.0.0.1:{plain}; listen 127.0.0.1:{secure} ssl;
             ssl_certificate {top}/tls.crt; ssl_certificate_key {top}/tls.key;
             root {top}/root;
             location /moved {{ return 302 /big; }}
             location /dav/ {{
               auth_basic realm; auth_basic_user_file {top}/users;
               dav_methods PUT DELETE MKCOL; dav_access user:rw;
             }}
           }}
         }}",
        top = job.folder.path().display()
    );
    write(job.path("nginx.conf"), configuration);
    let server = Run::new(system_program("nginx"))
        .args(["-e", "stderr", "-p"])
        .arg(job.folder.path())
        .arg("-c")
        .arg(job.path("nginx.conf"));
    let _server = Server::start(server, plain);
    let host = format!("127.0.0.1:{plain}");
    job.run(&[
        transfer(&format!("http://{host}/a b"), "got/1"),
        transfer(&format!("http://{host}/moved"), "got/2"),
    ])
    .ok();
    assert_eq!(fs::read(job.path("got/2")).expect("fetched"), noise(2_000_000));
    // A certificate of an authority that nobody knows.
    let https = |to: &str| transfer(&format!("https://localhost:{secure}/a b"), to);
    let said = job.run(&[https("got/3")]);
    assert_eq!(said.code(), 1);
    assert!(
        said.stderr.contains("Failed after 1 attempt") && said.stderr.contains("SSL_CERT_FILE"),
        "{}",
        said.account()
    );
    secret(
        &job.path("credentials"),
        &format!(
            "[{host}]\nusername = me\npassword = secret\n[https://localhost:{secure}]\ninsecure = yes\n"
        ),
    );
    job.set("PEGASUS_CREDENTIALS", job.path("credentials"));
    job.run(&[https("got/3")]).ok();
    secret(
        &job.path("credentials"),
        &format!("[{host}]\nusername = me\npassword = secret\n"),
    );
    job.set("SSL_CERT_FILE", job.path("ca.crt"));
    job.run(&[https("got/4")]).ok();
    assert_eq!(fs::read(job.path("got/4")).expect("fetched"), b"hello");
    let dav = |name: &str| format!("webdav://{host}/dav/{name}");
    job.run(&[
        mkdir(&dav("new/deep")),
        transfer("got/1", &dav("x/y/1")),
        transfer("got/2", &dav("x/y/2 é")),
    ])
    .ok();
    assert_eq!(
        fs::read(job.path("root/dav/x/y/2 é")).expect("sent"),
        noise(2_000_000)
    );
    assert!(job.path("root/dav/new/deep").is_dir());
    job.run(&[
        transfer(&dav("x/y/2 é"), "got/5"),
        remove(&dav("x/y/1"), false),
        remove(&dav("none"), false),
        remove(&dav("new"), true),
    ])
    .ok();
    assert_eq!(fs::read(job.path("got/5")).expect("fetched"), noise(2_000_000));
    assert_eq!(
        tree(&job.path("root/dav")).len(),
        3,
        "{:?}",
        tree(&job.path("root/dav"))
    );
    secret(
        &job.path("credentials"),
        &format!("[{host}]\nusername = me\npassword = wrong\n"),
    );
    let said = job.run(&[transfer("got/2", &dav("z"))]);
    assert!(
        said.stderr.contains("401") && said.stderr.contains("Failed after 1 attempt"),
        "{}",
        said.account()
    );
}

/// Makes a user with a key, and prints both. After that, the server checks signatures.
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
    let mut job = Job::new();
    let port = free_port();
    let server = Run::new(server_bin().join("moto_server"))
        .args(["-H", "127.0.0.1", "-p", &port.to_string()])
        .env("INITIAL_NO_AUTH_ACTION_COUNT", "3");
    let _server = Server::start(server, port);
    let endpoint = format!("http://127.0.0.1:{port}");
    let said = Run::new(server_bin().join("python"))
        .args(["-c", MAKE_USER, &endpoint])
        .go()
        .ok();
    let mut words = said.stdout.split_whitespace();
    let (access, key) = (words.next().expect("a key"), words.next().expect("its secret"));
    let credentials = |key: &str| {
        format!("[store]\nendpoint = {endpoint}\n[me@store]\naccess_key = {access}\nsecret_key = {key}\n")
    };
    secret(&job.path("credentials"), &credentials(key));
    job.set("PEGASUS_CREDENTIALS_local", job.path("credentials"));
    // Parts as small as the protocol allows.
    job.set("PEGASUS_TRANSFER_S3_PART_MB", "5");
    write(job.path("a"), "hello");
    write(job.path("empty"), "");
    write(job.path("big"), noise(11_000_000));
    let url = |name: &str| format!("s3://me@store/{name}");
    job.run(&[
        mkdir(&url("bucket")),
        transfer("a", &url("bucket/d/a b+c&é=%")),
        transfer("big", &url("bucket/d/big")),
        transfer("empty", &url("made-for-it/empty")),
        transfer("a", &url("bucket//x//y")),
        transfer("a", &url("bucket/e/")),
    ])
    .ok();
    job.run(&[
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
    assert_eq!(fs::read(job.path("got/a")).expect("fetched"), b"hello");
    assert_eq!(fs::read(job.path("got/big")).expect("fetched"), noise(11_000_000));
    assert_eq!(fs::read(job.path("got/empty")).expect("fetched"), b"");
    for name in ["got/y", "got/e"] {
        assert_eq!(fs::read(job.path(name)).expect("fetched"), b"hello");
    }
    job.run(&[remove(&url("bucket/d/"), true)]).ok();
    let said = job.run(&[
        transfer(&url("bucket/d/big"), "got/x"),
        transfer(&url("third/copy"), "got/copy"),
    ]);
    assert!(
        said.stderr.contains("404 NoSuchKey") && said.stderr.contains("Failed after 1 attempt"),
        "{}",
        said.account()
    );
    assert_eq!(
        fs::read(job.path("got/copy")).expect("fetched"),
        noise(11_000_000)
    );
    secret(&job.path("credentials"), &credentials("wrong"));
    let said = job.run(&[transfer(&url("third/copy"), "got/y")]);
    assert!(
        said.stderr.contains("403 SignatureDoesNotMatch"),
        "{}",
        said.account()
    );
}

#[test]
#[ignore = "needs a server for GCS: tests/run e2e"]
fn gcs_with_an_emulator() {
    let mut job = Job::new();
    let port = free_port();
    let server = Run::new(server_bin().join("gcp-storage-emulator"))
        .args(["start", "--host=127.0.0.1", "--in-memory"])
        .arg(format!("--port={port}"));
    let _server = Server::start(server, port);
    job.set("STORAGE_EMULATOR_HOST", format!("http://127.0.0.1:{port}"));
    write(job.path("a"), "hello");
    write(job.path("big"), noise(3_000_000));
    job.run(&[
        mkdir("gs://bucket/"),
        transfer("a", "gs://bucket/d/a b+c&é"),
        transfer("big", "gs://bucket/d/big"),
        transfer("a", "gs://made-for-it/a"),
    ])
    .ok();
    job.run(&[
        transfer("gs://bucket/d/a b+c&é", "got/a"),
        transfer("gs://bucket/d/big", "got/big"),
        transfer("gs://bucket/d/big", "gs://bucket/copy"),
        remove("gs://bucket/d/none", false),
    ])
    .ok();
    assert_eq!(fs::read(job.path("got/a")).expect("fetched"), b"hello");
    assert_eq!(fs::read(job.path("got/big")).expect("fetched"), noise(3_000_000));
    job.run(&[remove("gs://bucket/d", true)]).ok();
    let said = job.run(&[
        transfer("gs://bucket/d/big", "got/x"),
        transfer("gs://bucket/copy", "got/copy"),
    ]);
    assert!(
        said.stderr.contains("404") && said.stderr.contains("Failed after 1 attempt"),
        "{}",
        said.account()
    );
    assert_eq!(fs::read(job.path("got/copy")).expect("fetched"), noise(3_000_000));
}
