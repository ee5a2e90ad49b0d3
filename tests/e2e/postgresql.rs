//! A run whose database is on a PostgreSQL server: Pegasus' statistics reads it there.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use testutils::golden::Case;

use crate::support::command::Program;
use crate::support::pegasus::only_file;
use crate::support::programs::{Build, venv_bin};
use crate::support::server::{Server, free_port};

const PASSWORD: &str = "open-sesame";

/// Returns the path of a program of the server, which Debian does not put on `PATH`.
fn server_program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    versions
        .map(|version| version.path().join("bin").join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{name} is missing: `tests/run packages` installs it"))
}

/// Returns a program of the server that does not run as root, which the server refuses.
fn unprivileged(program: &str) -> Program {
    let program = server_program(program);
    let run = if nix::unistd::getuid().is_root() {
        Program::new("setpriv")
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"])
            .arg(program)
    } else {
        Program::new(program)
    };
    run.env("LC_ALL", "C").in_directory(Path::new("/"))
}

/// Starts a server with one account, `loader`. Returns it with its port.
fn start_server(top: &Path) -> (Server, u16) {
    let set_mode =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
    set_mode(top, 0o755);
    let home = top.join("server");
    fs::create_dir(&home).expect("a directory");
    let secret = home.join("secret");
    fs::write(&secret, PASSWORD).expect("written");
    if nix::unistd::getuid().is_root() {
        let account = nix::unistd::User::from_name("postgres").ok().flatten();
        let account = account.expect("the package makes this account");
        for path in [&home, &secret] {
            chown(path, Some(account.uid.as_raw()), Some(account.gid.as_raw())).expect("another owner");
        }
    }
    let data = home.join("data");
    unprivileged("initdb")
        .args([
            "--no-sync",
            "--locale=C",
            "--encoding=UTF8",
            "--auth=scram-sha-256",
            "--username=loader",
        ])
        .arg("--pwfile")
        .arg(&secret)
        .arg("-D")
        .arg(&data)
        .run()
        .ok();
    let port = free_port();
    let run = unprivileged("postgres")
        .arg("-D")
        .arg(&data)
        .args(["-h", "127.0.0.1", "-F", "-p", &port.to_string()])
        .arg("-k")
        .arg(&home);
    (Server::start(run, port), port)
}

/// Unpacks a golden case as if it had been executed here. Returns the submit directory and a home.
fn executed(case: &str, place: &Path) -> (PathBuf, PathBuf) {
    let (submit, home) = (place.join(case), place.join("home"));
    Case::read("stampede", case).unpack("executed", &submit);
    fs::create_dir_all(&home).expect("a directory");
    let braindump = submit.join("braindump.yml");
    let text = fs::read_to_string(&braindump).expect("a text");
    let here = submit.display().to_string();
    fs::write(&braindump, text.replace("/golden/submit", &here)).expect("written");
    (submit, home)
}

fn load(submit: &Path, home: &Path) {
    let result = Program::new(Build::Local.program("pmc-monitord"))
        .args(["-N", "-r"])
        .arg(format!("{}.dagman.out", only_file(submit, ".dag").display()))
        .env("HOME", home)
        .run()
        .ok();
    assert_eq!(result.stderr, "");
}

/// Returns the table of jobs of `pegasus-statistics`. PostgreSQL refuses the queries for its other tables and
/// those of
/// `pegasus-analyzer`.
fn jobs(submit: &Path, home: &Path) -> String {
    let bin = venv_bin();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    Program::new(bin.join("pegasus-statistics"))
        .args(["-s", "jb_stats"])
        .arg(submit)
        .env("PATH", path)
        .env("HOME", home)
        .env("LC_ALL", "C.UTF-8")
        .run()
        .ok();
    let directory = submit.join("statistics");
    let table = fs::read_to_string(directory.join("jobs.txt")).expect("a table");
    fs::remove_dir_all(directory).expect("removed");
    table
}

#[test]
#[ignore = "needs Pegasus' monitoring and PostgreSQL: tests/run e2e"]
fn pegasus_reads_the_database_on_a_server() {
    let place = tempfile::tempdir_in("/tmp").expect("a temporary directory");
    let (_server, port) = start_server(place.path());
    for case in ["retried", "failing", "clustered"] {
        let (submit, home) = executed(case, place.path());
        load(&submit, &home);
        let from_file = jobs(&submit, &home);
        assert!(from_file.lines().count() > 10, "{from_file}");
        fs::remove_file(only_file(&submit, ".stampede.db")).expect("removed");

        // All programs read the password from the user's file.
        let passwords = home.join(".pgpass");
        fs::write(&passwords, format!("127.0.0.1:*:*:loader:{PASSWORD}\n")).expect("written");
        fs::set_permissions(&passwords, fs::Permissions::from_mode(0o600)).expect("permissions");
        let url = format!("postgresql://loader@127.0.0.1:{port}/{case}");
        Program::new(server_program("createdb"))
            .args(["-h", "127.0.0.1", "-U", "loader", "-p", &port.to_string(), case])
            .env("HOME", &home)
            .env("PGPASSFILE", &passwords)
            .run()
            .ok();
        let settings = only_file(&submit, ".properties");
        let text = fs::read_to_string(&settings).expect("a text");
        let text = format!("{text}\npegasus.catalog.workflow.url = {url}\n");
        fs::write(&settings, text).expect("written");
        load(&submit, &home);
        assert!(!submit.join(format!("{case}-0.stampede.db")).exists());
        let from_server = jobs(&submit, &home);
        assert_eq!(from_file, from_server, "{case}");
    }
}
