//! One user looks at, loads and shares files of another one: neither harms the other.
//!
//! "I" am root, who runs the tests; the other user is an unprivileged one.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::support::command::{CommandResult, Running};
use crate::support::programs::project;
use crate::support::users::{OTHER, TwoUsers};

/// Seconds that a view of a small directory may take.
pub(crate) const LIMIT: u64 = 60;

/// Views of a run; DIR is its directory. The last one reads the inputs of the plan, too.
const VIEWS: [&[&str]; 10] = [
    &["pmc", "status", "DIR"],
    &["pmc", "status", "--json", "DIR"],
    &["pmc", "analyzer", "DIR"],
    &["pmc", "statistics", "-s", "all", "DIR"],
    &["pmc", "report", "-o", "report.html", "DIR"],
    &["pmc", "log", "a", "DIR"],
    &["pmc", "attach", "a", "DIR"],
    &["pmc", "nodes", "DIR"],
    &["pmc", "simulate", "DIR"],
    &["pmc-plan", "explain", "ID0000001", "DIR"],
];

pub(crate) fn look(users: &TwoUsers, view: &[&str], dir: &Path) -> CommandResult {
    let words = view[1..].iter().map(|word| match *word {
        "DIR" => dir.as_os_str().to_owned(),
        word => word.into(),
    });
    let result = users.me(view[0]).args(words).limit(LIMIT).run();
    assert!(result.code() < 126, "{}", result.details());
    result
}

/// Puts the example into a directory of the other user, and lets that user run it with these options.
/// Returns the submit directory.
pub(crate) fn run_theirs(users: &TwoUsers, options: &[&str]) -> PathBuf {
    let to = users.theirs().join("diamond");
    users
        .other("cp")
        .arg("-r")
        .arg(project().join("examples/diamond"))
        .arg(&to)
        .run();
    if !to.exists() {
        // The sources are where only I may read.
        let copy = users.mine().join("diamond");
        users
            .me("/bin/cp")
            .arg("-r")
            .arg(project().join("examples/diamond"))
            .arg(&copy)
            .run()
            .ok();
        users.other("cp").arg("-r").arg(&copy).arg(&to).run().ok();
    }
    users
        .other("pmc")
        .in_directory(&to)
        .args(["run", "-q"])
        .args(options)
        .arg("workflow.yml")
        .run()
        .ok();
    to.join("pmc-runs/diamond/run0001/submit")
}

/// Writes a small finished run of the other user. Returns its directory.
pub(crate) fn made_run(users: &TwoUsers, name: &str) -> PathBuf {
    users.write_theirs(
        &format!("{name}/w.dag"),
        "TASK a /bin/false\nTASK b /bin/true\nEDGE a b\n",
        0o644,
    );
    users.write_theirs(
        &format!("{name}/w.dag.dagman.out"),
        "11/21/26 12:00:00 Parsing w.dag ...\n\
         11/21/26 12:00:00 Event: ULOG_SUBMIT for Condor Node a (1.0)\n\
         11/21/26 12:00:00 Event: ULOG_EXECUTE for Condor Node a (1.0)\n\
         11/21/26 12:00:02 Event: ULOG_JOB_TERMINATED for Condor Node a (1.0)\n\
         11/21/26 12:00:02 Node a job proc (1.0) failed with status 256.\n\
         11/21/26 12:00:02 **** condor_scheduniv_exec.0.0 (condor_DAGMAN) pid 1 EXITING WITH STATUS 1\n",
        0o644,
    );
    users.write_theirs(
        &format!("{name}/braindump.yml"),
        "user: \"other\"\nwf_uuid: \"6b2a1f0e-0000-4000-8000-000000000001\"\nroot_wf_uuid: \
         \"6b2a1f0e-0000-4000-8000-000000000001\"\ndax_label: \"w\"\ndag: \"w.dag\"\n",
        0o644,
    );
    users.theirs().join(name)
}

/// Makes a link of the other user.
pub(crate) fn plant(users: &TwoUsers, target: &Path, link: &Path) {
    users.other("ln").args(["-sfn"]).args([target, link]).run().ok();
}

pub(crate) fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.is_symlink() {
            files.extend(all_files(&path));
        } else {
            files.push(path);
        }
    }
    files
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn looking_at_a_plan_of_another_user_starts_no_program() {
    let Some(users) = TwoUsers::new("looking_at_a_plan_of_another_user_starts_no_program") else {
        return;
    };
    let started = users.theirs().join("started");
    let script = format!("#!/bin/sh\nid -u >>{}\necho SOLUTION:local\n", started.display());
    let script = users.write_theirs("select", &script, 0o755);
    let submit = run_theirs(
        &users,
        &[
            "-Dpegasus.selector.site=NonJavaCallout",
            &format!("-Dpegasus.selector.site.path={}", script.display()),
        ],
    );
    let before = fs::read_to_string(&started).expect("the selector of the other user");
    assert!(before.lines().all(|user| user == OTHER.to_string()), "{before}");
    let files = all_files(&submit);
    for view in VIEWS {
        look(&users, view, &submit);
        let after = fs::read_to_string(&started).expect("a file");
        assert_eq!(after, before, "{view:?} started a program");
    }
    assert_eq!(all_files(&submit), files, "views write nothing");
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn a_plan_of_another_user_is_explained_with_a_note() {
    let Some(users) = TwoUsers::new("a_plan_of_another_user_is_explained_with_a_note") else {
        return;
    };
    let submit = run_theirs(&users, &[]);
    let theirs = look(&users, &["pmc-plan", "explain", "ID0000001", "DIR"], &submit).ok();
    assert!(
        theirs.stderr.contains("another user") && theirs.stdout.contains("preprocess"),
        "{}",
        theirs.details()
    );
    let own = users
        .other("pmc-plan")
        .args(["explain", "ID0000001"])
        .arg(&submit)
        .run()
        .ok();
    assert!(!own.stderr.contains("another user"), "{}", own.details());
    // Neither copies nor inputs are waited for.
    let inputs = submit.join("../../../..");
    for (file, explains) in [
        (submit.join("workflow.yml"), true),
        (submit.join("catalogs/replicas.yml"), true),
        (inputs.join("replicas.yml"), false),
        (inputs.join("workflow.yml"), false),
    ] {
        fs::remove_file(&file).expect("a file");
        users.other("mkfifo").arg(&file).run().ok();
        let result = look(&users, &["pmc-plan", "explain", "ID0000001", "DIR"], &submit);
        assert_eq!(
            result.code() == 0,
            explains,
            "{}: {}",
            file.display(),
            result.details()
        );
    }
}

/// Each file of a run is once a FIFO, once a link to a device, once a link to a file that only I may read.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn planted_files_of_another_user_are_not_read() {
    let Some(users) = TwoUsers::new("planted_files_of_another_user_are_not_read") else {
        return;
    };
    let secret = users.write_mine("secret", "TASK only-for-me /bin/true\nonly-for-me: x\n", 0o600);
    for file in [
        "w.dag",
        "w.dag.dagman.out",
        "w.dag.rescue",
        "w.dag.resource",
        "w.dag.end",
        "w.dag.guests",
        "w.dag.place",
        "w.dag.control",
        "w.dag.jobs",
        "w.stampede.db",
        "w.static.bp",
        "w.fingerprints",
        "jobstate.log",
        "braindump.yml",
        "a.out.000",
        "a.err.000",
    ] {
        for kind in ["fifo", "device", "secret"] {
            let dir = made_run(&users, &format!("{file}-{kind}"));
            let path = dir.join(file);
            let _ = fs::remove_file(&path);
            match kind {
                "fifo" => {
                    users.other("mkfifo").arg(&path).run().ok();
                }
                "device" => plant(&users, Path::new("/dev/zero"), &path),
                _ => plant(&users, &secret, &path),
            }
            for view in &VIEWS[..VIEWS.len() - 1] {
                let result = look(&users, view, &dir);
                assert!(
                    !format!("{}{}", result.stdout, result.stderr).contains("only-for-me"),
                    "{file} is a {kind}: {}",
                    result.details()
                );
            }
            let page = fs::read_to_string(users.mine().join("report.html")).unwrap_or_default();
            assert!(!page.contains("only-for-me"), "{file} is a {kind}");
        }
    }
}

/// Lets the other user execute SQL in a database.
pub(crate) fn sql_of_other(users: &TwoUsers, database: &Path, sql: &str) {
    users
        .other("/usr/bin/python3")
        .arg("-c")
        .arg(
            "import sqlite3, sys\nd = sqlite3.connect(sys.argv[1])\nd.executescript(sys.argv[2])\nd.commit()",
        )
        .arg(database)
        .arg(sql)
        .run()
        .ok();
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn hostile_databases_of_another_user_do_no_harm() {
    let Some(users) = TwoUsers::new("hostile_databases_of_another_user_do_no_harm") else {
        return;
    };
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS wf_id, x AS wf_uuid, \
                   x AS root_wf_id, x AS dax_label, x AS job_id, x AS job_instance_id FROM n";
    let memory = "SELECT 1 AS wf_id, hex(zeroblob(400000000)) AS wf_uuid, 1 AS root_wf_id";
    for (name, select) in [("endless", endless), ("memory", memory)] {
        let dir = made_run(&users, name);
        let database = dir.join("w.stampede.db");
        for table in [
            "workflow",
            "job",
            "job_instance",
            "jobstate",
            "workflowstate",
            "invocation",
            "task",
        ] {
            sql_of_other(&users, &database, &format!("CREATE VIEW {table} AS {select}"));
        }
        let result = look(&users, &["pmc", "statistics", "-s", "all", "DIR"], &dir);
        assert_ne!(result.code(), 0, "{}", result.details());
    }
    // Garbage behind a right header.
    let dir = made_run(&users, "garbage");
    sql_of_other(
        &users,
        &dir.join("w.stampede.db"),
        "CREATE TABLE workflow (wf_id); CREATE TABLE job (x)",
    );
    let mut bytes = fs::read(dir.join("w.stampede.db")).expect("a database");
    bytes[100..].fill(0xa5);
    fs::write(dir.join("w.stampede.db"), bytes).expect("a database");
    look(&users, &["pmc", "statistics", "-s", "all", "DIR"], &dir).refused();
}

/// Loading a run writes files into its directory: never through a link.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn loading_a_run_of_another_user_follows_no_planted_link() {
    let Some(users) = TwoUsers::new("loading_a_run_of_another_user_follows_no_planted_link") else {
        return;
    };
    let precious = users.write_mine("precious", "precious\n", 0o644);
    let names = [
        "monitord.pid",
        "monitord.log",
        "monitord.started",
        "monitord.done",
        "jobstate.log",
        "jobstate.log.part",
        "diamond-0.stampede.db",
        "diamond-0.stampede.db.part",
        "diamond-0.stampede.db-wal",
        "diamond-0.stampede.db-journal",
        "diamond-0.dag.dagman.out.part",
    ];
    let made = run_theirs(&users, &[]);
    for options in [&["-r"][..], &[]] {
        let dir = users.theirs().join(format!("run{}", options.len()));
        users.other("cp").arg("-r").args([&made, &dir]).run().ok();
        for name in names {
            plant(&users, &precious, &dir.join(name));
        }
        // It may succeed or refuse, but not write through a link.
        let result = users
            .me("pmc-monitord")
            .args(options)
            .arg(dir.join("diamond-0.dag.dagman.out"))
            .limit(LIMIT)
            .run();
        assert!(result.code() < 126, "{}", result.details());
        assert_eq!(
            fs::read_to_string(&precious).expect("my file"),
            "precious\n",
            "{}",
            result.details()
        );
    }
}

/// The properties of a run can name a database. Those of another user must not choose which of my files to
/// write.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn loading_a_run_of_another_user_does_not_write_where_its_properties_say() {
    let Some(users) = TwoUsers::new("loading_a_run_of_another_user_does_not_write_where_its_properties_say")
    else {
        return;
    };
    let dir = run_theirs(&users, &[]);
    let chosen = users.mine().join("chosen.db");
    let url = format!("pegasus.catalog.workflow.url=sqlite:///{}\n", chosen.display());
    let properties = dir.join("pegasus.1.properties");
    fs::write(&properties, url).expect("the properties of the run");
    let load = |conf: &[&Path]| {
        users
            .me("pmc-monitord")
            .arg("-r")
            .args(conf)
            .arg(dir.join("diamond-0.dag.dagman.out"))
            .limit(LIMIT)
            .run()
    };
    let result = load(&[]).refused();
    assert!(result.stderr.contains("--dest"), "{}", result.details());
    assert!(!chosen.exists(), "{}", result.details());
    load(&[Path::new("--conf"), &properties]).ok();
    assert!(chosen.exists(), "I have named the properties");
}

/// Starts a process of the other user that holds a lock on a file, if it can open it. Returns when it has
/// tried.
pub(crate) fn hold(users: &TwoUsers, path: &Path, how: &str) -> (Running, bool) {
    let tried = users.theirs().join(format!("tried-{how}"));
    let script = "import fcntl, os, sqlite3, sys, time\n\
                  path, how, tried = sys.argv[1:]\n\
                  try:\n\
                  \x20   if how == 'sqlite':\n\
                  \x20       d = sqlite3.connect(f'file:{path}?mode=ro', uri=True, isolation_level=None)\n\
                  \x20       d.execute('BEGIN')\n\
                  \x20       d.execute('SELECT count(*) FROM sqlite_master').fetchall()\n\
                  \x20   else:\n\
                  \x20       f = os.open(path, os.O_RDONLY)\n\
                  \x20       {'flock': fcntl.flock, 'posix': fcntl.lockf}[how](f, fcntl.LOCK_SH)\n\
                  \x20   result = 'held'\n\
                  except OSError as e:\n\
                  \x20   result = str(e)\n\
                  with open(tried + '.new', 'w') as f: f.write(result)\n\
                  os.rename(tried + '.new', tried)\n\
                  time.sleep(600)\n";
    let process = users
        .other("/usr/bin/python3")
        .arg("-c")
        .arg(script)
        .args([path, Path::new(how), &tried])
        .start();
    let start = std::time::Instant::now();
    while !tried.exists() {
        assert!(
            start.elapsed().as_secs() < LIMIT,
            "the other user's process does not start"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let result = fs::read_to_string(&tried).expect("a result");
    (process, result == "held")
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn another_user_cannot_stop_a_run_by_a_lock() {
    let Some(users) = TwoUsers::new("another_user_cannot_stop_a_run_by_a_lock") else {
        return;
    };
    for how in ["flock", "posix"] {
        let dag = users.write_mine(&format!("{how}.dag"), "TASK a /bin/true\n", 0o644);
        let (_holder, held) = hold(&users, &dag, how);
        assert!(held, "a file that all may read can be locked for reading");
        let run = || {
            users
                .me("pegasus-mpi-cluster")
                .args(["--workers", "1"])
                .arg(&dag)
                .limit(LIMIT)
                .run()
        };
        run().ok();
        let second = run().ok();
        assert!(!second.stderr.contains("panicked"), "{}", second.details());
    }
}

/// Runs `pegasus-rc-client` with a catalog of this kind.
fn register(users: &TwoUsers, kind: &str, catalog: &Path, limit: u64) -> CommandResult {
    let conf = users.write_mine(
        "run.properties",
        &match kind {
            "JDBCRC" => format!(
                "pegasus.catalog.replica=JDBCRC\npegasus.catalog.replica.db.driver=sqlite\n\
                 pegasus.catalog.replica.db.url=jdbc:sqlite:{}\n",
                catalog.display()
            ),
            _ => format!(
                "pegasus.catalog.replica={kind}\npegasus.catalog.replica.file={}\n",
                catalog.display()
            ),
        },
        0o600,
    );
    users
        .me("pegasus-rc-client")
        .args(["--prefix", "pegasus.catalog.replica", "--conf"])
        .arg(conf)
        .args(["insert", "f", "file:///f", "site=local"])
        .limit(limit)
        .run()
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn another_user_cannot_stop_a_registration_by_a_lock() {
    let Some(users) = TwoUsers::new("another_user_cannot_stop_a_registration_by_a_lock") else {
        return;
    };
    let catalog = users.write_mine("rc.txt", "", 0o644);
    register(&users, "File", &catalog, LIMIT).ok();
    let lock = users.mine().join("rc.txt.lock");
    assert_eq!(fs::metadata(&lock).expect("the lock").mode() & 0o777, 0o600);
    let (_lock_holder, held) = hold(&users, &lock, "flock");
    assert!(!held, "the other user cannot open the lock");
    let (_holder, held) = hold(&users, &catalog, "posix");
    assert!(held);
    register(&users, "File", &catalog, LIMIT).ok();
}

/// SQLite cannot keep readers from delaying writers. It must end, and say who it is.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn a_reader_of_a_database_is_named_when_a_registration_gives_up() {
    let Some(users) = TwoUsers::new("a_reader_of_a_database_is_named_when_a_registration_gives_up") else {
        return;
    };
    let catalog = users.mine().join("rc.db");
    register(&users, "JDBCRC", &catalog, LIMIT).ok();
    let (holder, held) = hold(&users, &catalog, "sqlite");
    assert!(held);
    let result = register(&users, "JDBCRC", &catalog, 170).refused();
    assert!(
        result.stderr.contains("locked by process"),
        "{}",
        result.details()
    );
    drop(holder);
    register(&users, "JDBCRC", &catalog, LIMIT).ok();
}

/// A lock that is held for a moment only delays.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn a_registration_waits_for_the_lock_of_a_catalog() {
    let Some(users) = TwoUsers::new("a_registration_waits_for_the_lock_of_a_catalog") else {
        return;
    };
    let catalog = users.write_mine("rc.txt", "", 0o644);
    let lock = users.write_mine("rc.txt.lock", "", 0o600);
    let mut holder = users.me("/usr/bin/flock").arg(&lock).args(["sleep", "2"]).start();
    let is_held = || {
        let probe = users.me("/usr/bin/flock").arg("-n").arg(&lock).arg("true").run();
        probe.code() != 0
    };
    while !is_held() && holder.is_running() {}
    register(&users, "File", &catalog, LIMIT).ok();
    assert!(!holder.is_running(), "the lock was free before");
    assert!(
        fs::read_to_string(&catalog)
            .expect("the catalog")
            .contains("file:///f")
    );
}

/// A catalog in the directory of another user, with a link in place of the lock.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn the_lock_of_a_catalog_is_no_planted_link() {
    let Some(users) = TwoUsers::new("the_lock_of_a_catalog_is_no_planted_link") else {
        return;
    };
    let precious = users.write_mine("precious", "precious\n", 0o644);
    let catalog = users.write_theirs("rc.txt", "", 0o644);
    plant(&users, &precious, &users.theirs().join("rc.txt.lock"));
    register(&users, "File", &catalog, LIMIT).refused();
    assert_eq!(fs::metadata(&precious).expect("my file").mode() & 0o777, 0o644);
    assert_eq!(fs::read_to_string(&precious).expect("my file"), "precious\n");
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn devices_are_not_replaced() {
    let Some(users) = TwoUsers::new("devices_are_not_replaced") else {
        return;
    };
    let run = made_run(&users, "run");
    let device = users.mine().join("null");
    mknod(
        &device,
        SFlag::S_IFCHR,
        Mode::from_bits_truncate(0o666),
        makedev(1, 3),
    )
    .expect("root makes devices");
    let link = users.mine().join("link");
    symlink(&device, &link).expect("a link");
    for path in [&device, &link] {
        let report = users
            .me("pmc")
            .args(["report", "-o"])
            .args([path, &run])
            .limit(LIMIT)
            .run();
        report.refused();
        register(&users, "File", path, LIMIT).refused();
        let kind = fs::metadata(&device).expect("the device").file_type();
        assert!(kind.is_char_device(), "{}", path.display());
    }
    assert!(link.is_symlink());
    // An own link to a file stays one.
    let page = users.write_mine("page.html", "", 0o644);
    fs::remove_file(&link).expect("a link");
    symlink(&page, &link).expect("a link");
    users
        .me("pmc")
        .args(["report", "-o"])
        .args([&link, &run])
        .limit(LIMIT)
        .run()
        .ok();
    assert!(link.is_symlink() && fs::metadata(&page).expect("the page").len() > 0);
}

#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn another_user_reads_no_secret_of_a_run() {
    const SECRET: &str = "xyzzy-4711";
    let Some(users) = TwoUsers::new("another_user_reads_no_secret_of_a_run") else {
        return;
    };
    let script = users.write_mine("fails", "#!/bin/sh\nexit 3\n", 0o755);
    users.write_mine(
        "workflow.yml",
        &format!(
            "pegasus: \"5.0.4\"\nname: w\ntransformationCatalog:\n  transformations:\n  - {{name: fails, sites: \
             [{{name: local, type: installed, pfn: \"{}\"}}]}}\njobs:\n- {{type: job, id: A, name: fails, uses: []}}\n",
            script.display()
        ),
        0o644,
    );
    let run = users
        .me("pmc")
        .args(["run", "-q", "--tries", "1"])
        .arg(format!("-Dpegasus.catalog.workflow.db.password={SECRET}"))
        .arg("workflow.yml")
        .env("MY_API_TOKEN", SECRET)
        .run();
    assert_eq!(run.code(), 1, "{}", run.details());
    let runs = users.mine().join("pmc-runs");
    assert!(!all_files(&runs).is_empty());
    let found = users.other("grep").args(["-rls", SECRET]).arg(&runs).run();
    assert_eq!(found.stdout, "", "{}", found.details());
    // Colleagues may look at the run nevertheless.
    let status = users
        .other("pmc")
        .arg("status")
        .arg(runs.join("w/run0001/submit"))
        .run();
    assert!(
        status.stdout.contains('A') && status.code() < 3,
        "{}",
        status.details()
    );
}
