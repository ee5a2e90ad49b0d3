//! One user looks at plans and catalogs of another one that were made to hurt.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::support::users::TwoUsers;
use crate::two_users::{LIMIT, all_files, made_run, run_theirs, sql_of_other};

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
    ] {
        fs::write(submit.join("pegasus.1.properties"), &properties).expect("the properties");
        add_options(&submit, &options);
        let result = users
            .me("pmc-plan")
            .args(["explain", "ID0000001"])
            .arg(&submit)
            .limit(2 * LIMIT)
            .run();
        assert_ne!(result.code(), 0, "{options:?}: {}", result.details());
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
    fs::write(&workflow, text.replace("f.b1", "\"f.${MY_VALUE}\"")).expect("the workflow");
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

/// A workflow whose job S is planned when its turn comes; the inner workflow has this name.
fn nested_run(users: &TwoUsers, dir: &Path, other: bool, name: &str) -> PathBuf {
    let make = dir.join("make");
    let inner = format!(
        "pegasus: \"5.0\"\nname: {name}\ntransformationCatalog:\n  transformations:\n  - {{name: t, sites: [{{name: \
         local, type: installed, pfn: /bin/true}}]}}\njobs:\n- {{type: job, id: C, name: t, uses: []}}\n"
    );
    let outer = format!(
        "pegasus: \"5.0\"\nname: outer\ntransformationCatalog:\n  transformations:\n  - {{name: make, sites: [{{name: \
         local, type: installed, pfn: \"{}\"}}]}}\njobs:\n- {{type: job, id: A, name: make, uses: [{{lfn: made.yml, \
         type: output, stageOut: false, registerReplica: false}}]}}\n- {{type: pegasusWorkflow, id: S, file: made.yml, \
         arguments: [--basename, made], uses: [{{lfn: made.yml, type: input, forPlanning: true}}]}}\n",
        make.display()
    );
    fs::create_dir(dir).expect("a directory");
    for (path, text, mode) in [
        (
            &make,
            format!("#!/bin/sh\ncat >made.yml <<'END'\n{inner}END\n"),
            0o755,
        ),
        (&dir.join("workflow.yml"), outer, 0o644),
    ] {
        fs::write(path, text).expect("a file");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        if other {
            users.give(path);
        }
    }
    if other {
        users.give(dir);
    }
    let pmc = if other {
        users.other("pmc")
    } else {
        users.me("pmc")
    };
    pmc.in_directory(dir)
        .args(["run", "-q", "workflow.yml"])
        .run()
        .ok();
    dir.join("pmc-runs/outer/run0001/submit")
}

/// The files of a run say where its sub-workflows are.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn loading_a_run_of_another_user_loads_no_run_of_mine() {
    let Some(users) = TwoUsers::new("loading_a_run_of_another_user_loads_no_run_of_mine") else {
        return;
    };
    let mine = nested_run(&users, &users.mine().join("private"), false, "only-for-me");
    let theirs = nested_run(&users, &users.theirs().join("run"), true, "for-all");
    let log = |submit: &Path| {
        let mut files = all_files(submit).into_iter();
        let log = files.find(|path| path.ends_with("made.dag.dagman.out"));
        log.expect("the log of the sub-workflow")
    };
    // As a description names it: the number of the directory is added.
    let named = |submit: &Path| {
        log(submit)
            .display()
            .to_string()
            .replace(".000/made.dag", "/made.dag")
    };
    let description = all_files(&theirs)
        .into_iter()
        .find(|path| {
            path.extension().is_some_and(|extension| extension == "sub")
                && fs::read_to_string(path).is_ok_and(|text| text.contains("_CONDOR_DAGMAN_LOG"))
        })
        .expect("the description of the sub-workflow");
    let load = || {
        users
            .me("pmc-monitord")
            .arg("-r")
            .arg(theirs.join("outer-0.dag.dagman.out"))
            .limit(LIMIT)
            .run()
            .ok();
        fs::read(theirs.join("outer-0.stampede.db")).expect("a database")
    };
    let has = |database: &[u8], name: &str| database.windows(name.len()).any(|part| part == name.as_bytes());
    assert!(has(&load(), "for-all"), "their own sub-workflow is loaded");
    let text = fs::read_to_string(&description).expect("the description");
    let changed = text.replace(&named(&theirs), &named(&mine));
    assert_ne!(changed, text);
    fs::write(&description, changed).expect("the description");
    let database = load();
    assert!(!has(&database, "only-for-me") && !has(&database, "for-all"));
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn removing_a_run_of_another_user_ends_no_process_of_mine() {
    let Some(users) = TwoUsers::new("removing_a_run_of_another_user_ends_no_process_of_mine") else {
        return;
    };
    users.write_mine("w.dag", "TASK a /bin/sleep 60\n", 0o644);
    let mut run = users
        .me("pegasus-mpi-cluster")
        .args(["--jobstate-log", "w.dag"])
        .start();
    let theirs = made_run(&users, "run");
    let log = theirs.join("w.dag.dagman.out");
    let text = fs::read_to_string(&log).expect("the log");
    let changed = text.replace(
        "Parsing w.dag",
        &format!("** PID = {}\n11/21/26 12:00:00 Parsing w.dag", run.id()),
    );
    fs::write(&log, changed).expect("the log");
    users.write_theirs("run/pmc-job.txt", "slurm 17\n", 0o644);
    let removed = users
        .me("pmc")
        .args(["pegasus", "remove"])
        .arg(&theirs)
        .limit(LIMIT)
        .run()
        .refused();
    assert!(removed.stderr.contains("another user"), "{}", removed.details());
    assert!(run.is_running());
    run.signal(Signal::SIGINT);
    run.wait();
}
