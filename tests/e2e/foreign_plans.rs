//! One user looks at plans and catalogs of another one that were made to hurt.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::support::users::TwoUsers;
use crate::two_users::{LIMIT, look, run_theirs, sql_of_other};

/// Rows without end under the names of the tables of a replica catalog.
fn hostile_catalog(users: &TwoUsers, database: &Path) {
    let mut sql = String::new();
    for table in ["rc_lfn", "rc_pfn", "rc_meta"] {
        let _ = write!(
            sql,
            "CREATE VIEW {table} AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS \
             lfn_id, 'f.a' AS lfn, x AS pfn_id, '/f.a' AS pfn, 'local' AS site, x AS \"key\", x AS value FROM n;"
        );
    }
    sql_of_other(users, database, &sql);
}

/// Changes the command line from which a plan is made again.
fn add_options(submit: &Path, options: &[String]) {
    let path = submit.join("pegasus.1.properties");
    let text = fs::read_to_string(&path).expect("the properties");
    let words: String = options.iter().map(|option| format!("{option:?},")).collect();
    let changed = text.replace("\"arguments\":[", &format!("\"arguments\":[{words}"));
    assert_ne!(changed, text);
    fs::write(&path, changed).expect("the properties");
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn explaining_a_hostile_plan_of_another_user_ends() {
    let Some(users) = TwoUsers::new("explaining_a_hostile_plan_of_another_user_ends") else {
        return;
    };
    let submit = run_theirs(&users, &[]);
    let properties = fs::read_to_string(submit.join("pegasus.1.properties")).expect("the properties");
    let database = users.theirs().join("rc.db");
    hostile_catalog(&users, &database);
    // A file that takes no room on its disk.
    let sparse = users.write_theirs("rc.txt", "f.a /f.a site=local\n", 0o644);
    users.other("truncate").args(["-s", "1T"]).arg(&sparse).run().ok();
    let catalog = |kind: &str, key: &str, value: &str| {
        let key = format!("-Dpegasus.catalog.replica.{key}={value}");
        vec![format!("-Dpegasus.catalog.replica={kind}"), key]
    };
    for options in [
        catalog("JDBCRC", "db.url", &format!("jdbc:sqlite:{}", database.display())),
        catalog("Directory", "directory", "/"),
        catalog("File", "file", &sparse.display().to_string()),
        catalog("YAML", "file", &sparse.display().to_string()),
        catalog("YAML", "file", "/dev/zero"),
        catalog("File", "file", "/dev/zero"),
        catalog("File", "file", "/proc/kmsg"),
        vec!["--input-dir".to_owned(), "/proc".to_owned()],
    ] {
        fs::write(submit.join("pegasus.1.properties"), &properties).expect("the properties");
        add_options(&submit, &options);
        let result = look(&users, &["pmc-plan", "explain", "ID0000001", "DIR"], &submit);
        assert!(
            result.code() != 0 || options[0] == "--input-dir",
            "{options:?}: {}",
            result.details()
        );
    }
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn explaining_a_plan_of_another_user_shows_no_variable() {
    let Some(users) = TwoUsers::new("explaining_a_plan_of_another_user_shows_no_variable") else {
        return;
    };
    let submit = run_theirs(&users, &[]);
    let workflow = users.theirs().join("diamond/workflow.yml");
    let text = fs::read_to_string(&workflow).expect("the workflow");
    fs::write(&workflow, text.replace("f.b1", "f.${MY_VALUE}")).expect("the workflow");
    add_options(
        &submit,
        &["-Dpegasus.catalog.site.file=${MY_VALUE}/${env.MY_VALUE}".to_owned()],
    );
    let explain = |submit: &Path| {
        users
            .me("pmc-plan")
            .args(["explain", "ID0000001"])
            .arg(submit)
            .env("MY_VALUE", "xyzzy")
            .limit(LIMIT)
            .run()
    };
    let result = explain(&submit);
    let said = format!("{}{}", result.stdout, result.stderr);
    assert!(!said.contains("xyzzy"), "{}", result.details());
    // The variable stays in the name of the file.
    let properties = submit.join("pegasus.1.properties");
    let text = fs::read_to_string(&properties).expect("the properties");
    let without = text.replace("\"-Dpegasus.catalog.site.file=${MY_VALUE}/${env.MY_VALUE}\",", "");
    fs::write(&properties, without).expect("the properties");
    let result = explain(&submit).ok();
    let said = format!("{}{}", result.stdout, result.stderr);
    assert!(
        said.contains("f.${MY_VALUE}") && !said.contains("xyzzy"),
        "{}",
        result.details()
    );
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn a_hostile_catalog_of_another_user_does_no_harm() {
    let Some(users) = TwoUsers::new("a_hostile_catalog_of_another_user_does_no_harm") else {
        return;
    };
    let endless = users.theirs().join("endless.db");
    hostile_catalog(&users, &endless);
    let fifo = users.theirs().join("fifo.db");
    users.other("mkfifo").arg(&fifo).run().ok();
    let client = |database: &Path, words: &[&str]| {
        let conf = format!(
            "pegasus.catalog.replica=JDBCRC\npegasus.catalog.replica.db.url=jdbc:sqlite:{}\n",
            database.display()
        );
        let conf = users.write_mine("run.properties", &conf, 0o600);
        users
            .me("pegasus-rc-client")
            .args(["--prefix", "pegasus.catalog.replica", "--conf"])
            .arg(conf)
            .args(words)
            .limit(LIMIT)
            .run()
    };
    for database in [&endless, &fifo] {
        for words in [
            &["list"][..],
            &["lookup", "f.a"],
            &["delete", "f.a"],
            &["insert", "f.a", "file:///f.a", "site=local"],
        ] {
            client(database, words).refused();
        }
    }
    // A catalog that both use, with a trigger of the other user.
    let shared = users.theirs().join("shared.db");
    let insert = ["insert", "f.a", "file:///f.a", "site=local"];
    users
        .other("pegasus-rc-client")
        .arg(format!(
            "-Dpegasus.catalog.replica.db.url=jdbc:sqlite:{}",
            shared.display()
        ))
        .args([
            "-Dpegasus.catalog.replica=JDBCRC",
            "--prefix",
            "pegasus.catalog.replica",
        ])
        .args(insert)
        .run()
        .ok();
    sql_of_other(
        &users,
        &shared,
        "CREATE TRIGGER t AFTER INSERT ON rc_pfn BEGIN INSERT INTO rc_lfn (lfn) WITH RECURSIVE n(x) AS \
         (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT 'f' || x FROM n; END",
    );
    client(&shared, &["insert", "f.b", "file:///f.b", "site=local"]).ok();
    let listed = client(&shared, &["list"]).ok();
    assert_eq!(listed.stdout.lines().count(), 2, "{}", listed.details());
}
