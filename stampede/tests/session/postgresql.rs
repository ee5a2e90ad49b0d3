//! The database on a PostgreSQL server has the rows of one in a file.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::follow::{replayed, wait};
use crate::server::{PASSWORD, Server};
use crate::support::{Fixture, dump};
use testutils::Random;

/// What the loader says when it fails, and its exit code.
fn refused(run: &Fixture, url: &str) -> (String, Option<i32>) {
    let output = run
        .monitord(&["-r", "--no-dashboard", "-d", url])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains(PASSWORD), "{stderr}");
    (stderr, output.status.code())
}

#[test]
fn the_rows_of_a_file() {
    let Some(server) = Server::shared() else { return };
    let mut run = Fixture::run(40);
    run.begin();
    run.job(3, 9);
    run.end(false);
    run.write_log();
    let expected = replayed(&run);
    let database = server.database();
    let url = server.url(&database);
    // Loaded anew, it takes the place of what was there.
    for _ in 0..2 {
        assert_eq!(run.load(&["-r", "-d", &url]), "");
        assert_eq!(server.dump(&database), expected);
    }
    assert_eq!(dump(&run.database()), expected);
    let listed = rusqlite::Connection::open(run.dashboard()).unwrap();
    let listed: String = listed
        .query_row("SELECT db_url FROM master_workflow", (), |row| row.get(0))
        .unwrap();
    assert_eq!(listed, url);

    let followed = server.database();
    run.load(&["--no-dashboard", "-d", &server.socket_url(&followed)]);
    assert_eq!(server.dump(&followed), expected);
    // A second workflow goes beside the first.
    let other = Fixture::run(2);
    let text = fs::read_to_string(other.dir.join("braindump.yml")).unwrap();
    fs::write(other.dir.join("braindump.yml"), text.replace("aa\"", "bb\"")).unwrap();
    other.write_log();
    other.load(&["-r", "--no-dashboard", "-d", &server.url(&followed)]);
    let mut client = server.client(&followed);
    let count =
        |client: &mut postgres::Client, sql: &str| client.query_one(sql, &[]).unwrap().get::<_, i64>(0);
    assert_eq!(count(&mut client, "SELECT count(*) FROM workflow"), 2);
    assert_eq!(
        count(&mut client, "SELECT count(DISTINCT job_id) FROM job_instance"),
        42
    );
}

#[test]
fn the_settings_of_the_run_name_it() {
    let Some(server) = Server::shared() else { return };
    let run = Fixture::run(4);
    run.write_log();
    let expected = replayed(&run);
    fs::remove_file(run.database()).unwrap();
    let database = server.database();
    let mut text = fs::read_to_string(run.dir.join("braindump.yml")).unwrap();
    text.push_str("properties: \"pegasus.1.properties\"\n");
    fs::write(run.dir.join("braindump.yml"), text).unwrap();
    let settings = run.dir.join("pegasus.1.properties");
    fs::write(
        &settings,
        format!("pegasus.catalog.workflow.url = {}\n", server.url(&database)),
    )
    .unwrap();
    run.load(&["--no-dashboard"]);
    assert_eq!(server.dump(&database), expected);
    assert!(!run.database().exists());

    fs::write(&settings, "pegasus.monitord.output = mysql://u:open-sesame@h/d\n").unwrap();
    let output = run.monitord(&["-r"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("pegasus.1.properties: pegasus.monitord.output: MySQL is not supported"),
        "{stderr}"
    );
    assert!(!output.status.success() && !stderr.contains(PASSWORD));
}

#[test]
fn killed_at_any_moment() {
    let Some(server) = Server::shared() else { return };
    let run = Fixture::run(90);
    run.write_log();
    let expected = replayed(&run);
    let database = server.database();
    let url = server.url(&database);
    let mut random = Random(u64::from(std::process::id()));
    fs::remove_file(run.dir.join("jobstate.log")).unwrap();
    for _ in 0..6 {
        let mut loader = run
            .monitord(&["--no-dashboard", "-S", "1", "-d", &url])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(50 + random.below(200) as u64));
        loader.kill().unwrap();
        loader.wait().unwrap();
        // The server learns of the end of the connection when it looks, and then gives the lock free.
        let start = Instant::now();
        while is_held(&server, &database) && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    run.load(&["--no-dashboard", "-d", &url]);
    assert_eq!(server.dump(&database), expected);
}

fn is_held(server: &Server, database: &str) -> bool {
    let mut client = server.client(database);
    let held = "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
                WHERE locktype = 'advisory' AND datname = current_database()";
    client.query_one(held, &[]).unwrap().get::<_, i64>(0) > 0
}

#[test]
fn the_connection_is_lost() {
    let Some(server) = Server::shared() else { return };
    let run = Fixture::run(60);
    run.write_log();
    let expected = replayed(&run);
    fs::remove_file(run.dir.join("jobstate.log")).unwrap();
    let database = server.database();
    let url = server.url(&database);
    let loader = run
        .monitord(&["--no-dashboard", "-S", "6", "-d", &url])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut client = server.client(&database);
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE datname = $1 AND application_name LIKE 'pmc-monitord process %'";
    let mut ended = 0;
    let start = Instant::now();
    while ended < 2 && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(400));
        // What fails before the first rows are there ends the loader, with a message.
        if client
            .query_one("SELECT to_regclass('jobstate') IS NULL", &[])
            .unwrap()
            .get(0)
            || !client
                .query_one("SELECT EXISTS (SELECT FROM jobstate)", &[])
                .unwrap()
                .get::<_, bool>(0)
        {
            continue;
        }
        ended += client.query_one(end, &[&database]).unwrap().get::<_, i64>(0);
    }
    let output = loader.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && ended >= 2, "{ended}: {stderr}");
    assert!(stderr.contains("reconnecting; no data is lost"), "{stderr}");
    assert_eq!(server.dump(&database), expected);
    let states = fs::read_to_string(run.dir.join("jobstate.log")).unwrap();
    assert_eq!(states.matches(" JOB_SUCCESS ").count(), 60);
}

#[test]
fn a_workflow_has_one_loader() {
    let Some(server) = Server::shared() else { return };
    let run = Fixture::run(30);
    run.write_log();
    let database = server.database();
    let url = server.url(&database);
    let mut first = run
        .monitord(&["--no-dashboard", "-S", "200", "-d", &url])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The same workflow in another directory, which has its own lock.
    let second = Fixture::run(30);
    second.write_log();
    let start = Instant::now();
    let mut client = server.client(&database);
    let mut begun = || {
        let tables = client
            .query_one("SELECT to_regclass('pmc_loader') IS NOT NULL", &[])
            .unwrap();
        tables.get(0)
            && client
                .query_one("SELECT EXISTS (SELECT FROM pmc_loader)", &[])
                .unwrap()
                .get(0)
    };
    while !begun() && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (stderr, code) = refused(&second, &url);
    assert_eq!(code, Some(43), "{stderr}");
    assert!(
        stderr.contains(&format!(
            "is being loaded by pmc-monitord process {} on ",
            first.id()
        )),
        "{stderr}"
    );
    first.kill().unwrap();
    wait(&mut first);
}

#[test]
fn a_silent_server_times_out() {
    // The system accepts connections, but no process answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let run = Fixture::run(2);
    run.write_log();
    let url = format!("postgresql://u:{PASSWORD}@127.0.0.1:{port}/d");
    for options in [
        "?sslmode=disable&connect_timeout=1",
        "?sslmode=require&connect_timeout=1",
    ] {
        let start = Instant::now();
        let output = run
            .monitord(&["--no-dashboard", "-d", &format!("{url}{options}")])
            .output()
            .unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains("has not answered within 1 s; ") && stderr.lines().count() == 1,
            "{stderr}"
        );
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    assert!(!run.dir.join("monitord.done").exists());
}

#[test]
fn errors_have_one_clear_message() {
    let Some(server) = Server::shared() else { return };
    let run = Fixture::run(2);
    run.write_log();
    let says = |url: &str, what: &str| {
        let (stderr, code) = refused(&run, url);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(
            stderr.contains(what) && stderr.lines().count() == 1,
            "{url}: {stderr}"
        );
    };
    let database = server.database();
    let url = server.url(&database);
    says(
        &server.url("nowhere"),
        "database \"nowhere\" does not exist; create it first: createdb",
    );
    says(
        &url.replace("loader:", "nobody:"),
        "refuses the account: password authentication failed for user \"nobody\"",
    );
    says(&url.replace(&format!(":{PASSWORD}"), ""), "refuses the account: ");
    let closed = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    says(
        &format!("postgresql://u:{PASSWORD}@127.0.0.1:{closed}/d"),
        "cannot be reached: ",
    );
    says("postgresql://u:p@/d?host=/nowhere/at/all", "cannot be reached: ");

    run.load(&["-r", "--no-dashboard", "-d", &url]);
    let mut client = server.client(&database);
    client
        .batch_execute(
            "INSERT INTO dbversion (version_number, version, version_timestamp) VALUES (15, '15', 0)",
        )
        .unwrap();
    says(
        &url,
        "its tables have version 15, and this program needs 14; use a newer version of this program",
    );
    client
        .batch_execute("UPDATE dbversion SET version = '13'")
        .unwrap();
    says(&url, "update it with pegasus-db-admin");
}
