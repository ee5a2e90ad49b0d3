//! The program as register jobs and users call it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rusqlite::Connection;

struct Case {
    dir: tempfile::TempDir,
}

impl Case {
    /// A directory with the properties of a catalog; `@DIR@` stands for the directory.
    fn new(properties: &str) -> Self {
        let dir = tempfile::tempdir().expect("directory");
        let text = properties.replace("@DIR@", dir.path().to_str().expect("UTF-8"));
        fs::write(dir.path().join("run.properties"), text).expect("write");
        Self { dir }
    }

    fn sqlite() -> Self {
        Self::new(
            "# as a planner writes it\npegasus.catalog.replica.output=JDBCRC\n\
             pegasus.catalog.replica.output.db.driver=sqlite\n\
             pegasus.catalog.replica.output.db.url=jdbc\\:sqlite\\:@DIR@/diamond-0.replicas.db\n",
        )
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> &Self {
        fs::write(self.path(name), text).expect("write");
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(testutils::programs::path("pegasus-rc-client"));
        command.current_dir(self.dir.path());
        command.args([
            "--prefix",
            "pegasus.catalog.replica.output",
            "--conf",
            "run.properties",
            "-v",
        ]);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command().args(args).output().expect("start")
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn rows(&self, sql: &str) -> Vec<String> {
        let db = Connection::open(self.path("diamond-0.replicas.db")).expect("database");
        let mut statement = db.prepare(sql).expect("statement");
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| {
            let cells = (0..columns).map(|i| Ok(format!("{:?}", row.get::<_, rusqlite::types::Value>(i)?)));
            cells
                .collect::<rusqlite::Result<Vec<_>>>()
                .map(|cells| cells.join(" "))
        });
        rows.expect("query").collect::<Result<_, _>>().expect("rows")
    }
}

const LINES: &str = "f.c2 file:///keep/f.c2 site=\"local\"\n# nothing\nit's \"file:///keep/it's here\" size=\"3\" site=\"local\"\n";
const META: &str = r#"[{"_id":"f.c2","_type":"file","_attributes":{"size":"12","checksum.value":"ab"}}]"#;

#[test]
fn register_job_inserts_entries_and_metadata() {
    let case = Case::sqlite();
    case.write("register.in", LINES).write("a.meta", META);
    // A second registration, as in a repeated job, duplicates nothing.
    for _ in 0..2 {
        let output = case.run(&["--meta", "a.meta,missing.meta", "--insert", "register.in"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stderr}");
        assert!(
            stderr.contains("warning: registering without the metadata in missing.meta"),
            "{stderr}"
        );
        assert!(
            stderr.contains("#Successfully worked on    : 2 lines.\n#Worked on total number of : 3 lines.\n"),
            "{stderr}"
        );
    }
    assert_eq!(
        case.rows("SELECT l.lfn, p.pfn, p.site FROM rc_lfn l, rc_pfn p WHERE l.lfn_id = p.lfn_id"),
        [
            r#"Text("f.c2") Text("file:///keep/f.c2") Text("local")"#,
            r#"Text("it's") Text("file:///keep/it's here") Text("local")"#,
        ]
    );
    assert_eq!(
        case.rows("SELECT lfn_id, key, value FROM rc_meta ORDER BY lfn_id, key"),
        [
            r#"Integer(1) Text("checksum.value") Text("ab")"#,
            r#"Integer(1) Text("size") Text("12")"#,
            r#"Integer(2) Text("size") Text("3")"#,
        ]
    );
    assert_eq!(
        case.rows("SELECT version_number, version FROM dbversion"),
        [r#"Integer(14) Text("14")"#]
    );
    // Programs of Pegasus reject a database without its monitoring tables.
    for table in [
        "workflow",
        "workflow_files",
        "integrity",
        "master_workflowstate",
        "ensemble_workflow",
        "trigger",
    ] {
        assert_eq!(
            case.rows(&format!("SELECT count(*) FROM \"{table}\"")),
            ["Integer(0)"],
            "{table}"
        );
    }
    assert!(!case.path("diamond-0.replicas.db-wal").exists());
}

/// A registration killed at any moment leaves a complete new catalog or none, and no other file.
#[test]
fn killed_registration_leaves_a_complete_catalog_or_none() {
    use std::fmt::Write as _;
    let case = Case::sqlite();
    let mut entries = String::new();
    for n in 0..2_000 {
        let _ = writeln!(entries, "f{n} file:///data/f{n} site=\"local\"");
    }
    case.write("entries", &entries);
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::TMPFILE;
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    if rustix::fs::open(case.dir.path(), flags, mode).is_err() {
        eprintln!("SKIPPED: files have names in {}", case.dir.path().display());
        return;
    }
    // The first command of a test builds the program, which must not be measured.
    drop(case.command());
    let start = std::time::Instant::now();
    case.ok(&["--insert", "entries"]);
    let duration = start.elapsed();
    let database = case.path("diamond-0.replicas.db");
    let mut unfinished = 0;
    for round in 1..=20 {
        let _ = fs::remove_file(&database);
        let mut child = case
            .command()
            .args(["--insert", "entries"])
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("start");
        std::thread::sleep(duration * round / 20);
        let _ = child.kill();
        child.wait().expect("wait");
        let mut names: Vec<_> = fs::read_dir(case.dir.path())
            .expect("directory")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        names.sort();
        if database.exists() {
            assert_eq!(case.rows("SELECT count(*) FROM rc_pfn"), ["Integer(2000)"]);
            assert_eq!(names, ["diamond-0.replicas.db", "entries", "run.properties"]);
        } else {
            unfinished += 1;
            assert_eq!(names, ["entries", "run.properties"]);
        }
    }
    assert!(unfinished > 0);
}

#[test]
fn concurrent_register_jobs_lose_nothing() {
    let case = Case::sqlite();
    let jobs: Vec<_> = (0..12)
        .map(|job| {
            let lines: String = (0..50)
                .map(|i| {
                    format!("f{job}.{i} file:///o/f{job}.{i} site=\"s\"\nshared file:///o/{job} site=\"s\"\n")
                })
                .collect();
            case.write(&format!("{job}.in"), &lines);
            let mut command = case.command();
            command
                .args(["--insert", &format!("{job}.in")])
                .stderr(std::process::Stdio::piped());
            command.spawn().expect("start")
        })
        .collect();
    for job in jobs {
        let output = job.wait_with_output().expect("wait");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert_eq!(case.rows("SELECT count(*) FROM rc_lfn"), ["Integer(601)"]);
    assert_eq!(case.rows("SELECT count(*) FROM rc_pfn"), ["Integer(612)"]);
    assert_eq!(case.rows("SELECT count(*) FROM dbversion"), ["Integer(1)"]);
}

#[test]
fn every_catalog_looks_up_and_deletes() {
    let file = |kind: &str, name: &str| {
        Case::new(&format!(
            "pegasus.catalog.replica.output={kind}\npegasus.catalog.replica.output.file=@DIR@/{name}\n"
        ))
    };
    for case in [Case::sqlite(), file("File", "rc.txt"), file("YAML", "rc.yml")] {
        case.write("in", "a file:///1 site=\"x\" size=\"1\"\na file:///2 site=\"y\"\nb file:///3 site=\"x\"\nc http://h/4#z\n");
        case.ok(&["--insert", "in"]);
        case.ok(&["insert", "b", "file:///5", "site=x", "note=a \"b\""]);
        let found = case.ok(&["lookup", "a", "none", "c"]);
        let locations: Vec<_> = found
            .lines()
            .map(|line| line.split(' ').take(3).collect::<Vec<_>>().join(" "))
            .collect();
        assert_eq!(
            locations,
            [
                "a file:///1 site=\"x\"",
                "a file:///2 site=\"y\"",
                "c http://h/4#z"
            ],
            "{found}"
        );
        assert!(found.contains("size=\"1\""), "{found}");
        case.ok(&["delete", "a", "file:///1", "site=y"]);
        assert_eq!(
            case.ok(&["lookup", "a"]).lines().count(),
            2,
            "the site did not match"
        );
        case.ok(&["delete", "a", "file:///1"]);
        case.write("gone", "b\nc http://h/4#z\n");
        case.ok(&["--delete", "gone"]);
        let left = case.ok(&["list"]);
        assert!(
            left.starts_with("a file:///2 site=\"y\"") && left.lines().count() == 1,
            "{left}"
        );
    }
}

#[test]
fn text_catalogs_keep_comments_and_update_entries() {
    let case = Case::new("pegasus.catalog.replica.output.file=@DIR@/rc.txt\n");
    case.write("rc.txt", "# mine\n\na file:///1 site=\"x\" k=\"old\" z=\"1\"\n");
    case.write("in", "a file:///1 site=\"x\" k=\"new\"\na file:///1 site=\"y\"\n");
    case.ok(&["--insert", "in"]);
    let text = fs::read_to_string(case.path("rc.txt")).expect("read");
    assert_eq!(
        text,
        "# mine\n\na file:///1 site=\"x\" k=\"new\" z=\"1\"\na file:///1 site=\"y\"\n"
    );
}

#[test]
fn yaml_catalogs_keep_their_content() {
    let case =
        Case::new("pegasus.catalog.replica.output=YAML\npegasus.catalog.replica.output.file=@DIR@/rc.yml\n");
    let before = "x-pegasus: {apiLang: python, createdBy: me}\npegasus: 5.0.4\nreplicas:\n\
                  - lfn: f.a\n  pfns: [{site: local, pfn: /data/f.a}]\n  checksum: {sha256: abc}\n  metadata: {size: 1024}\n\
                  - lfn: \"f[0-9]+\"\n  regex: true\n  pfns: [{site: x, pfn: \"file:///x/[0]\"}]\n";
    case.write("rc.yml", before);
    case.write(
        "in",
        "new file:///n site=\"s\" checksum.type=\"sha256\" checksum.value=\"def\" size=\"2\"\n",
    );
    case.ok(&["--insert", "in"]);
    let text = fs::read_to_string(case.path("rc.yml")).expect("read");
    for line in [
        "apiLang",
        "sha256\": \"abc\"",
        "\"1024\"",
        "regex: true",
        "sha256\": \"def\"",
        "pegasus: \"5.0.4\"",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let found = case.ok(&["lookup", "new"]);
    assert_eq!(
        found,
        "new file:///n site=\"s\" checksum.type=\"sha256\" checksum.value=\"def\" size=\"2\"\n"
    );
    case.write("rc.yml", "replicas: []\nother: 1\n");
    let output = case.run(&["--insert", "in"]);
    assert!(!output.status.success());
    assert_eq!(
        fs::read_to_string(case.path("rc.yml")).expect("read"),
        "replicas: []\nother: 1\n"
    );
}

#[test]
fn concurrent_writers_of_a_text_catalog_lose_nothing() {
    let case = Case::new("pegasus.catalog.replica.output.file=@DIR@/rc.txt\n");
    let jobs: Vec<_> = (0..12)
        .map(|job| {
            case.command()
                .args(["insert", &format!("f{job}"), "file:///x", "site=s"])
                .spawn()
                .expect("start")
        })
        .collect();
    for mut job in jobs {
        assert!(job.wait().expect("wait").success());
    }
    assert_eq!(case.ok(&["list"]).lines().count(), 12);
}

#[test]
fn invalid_input_changes_nothing() {
    let case = Case::sqlite();
    case.write("bad.in", "a file:///1 site=\"x\"\nb\n")
        .write("open.in", "a \"file:///1\nb c\n");
    let huge = std::fs::File::create(case.path("huge.in")).expect("a file");
    huge.set_len((1 << 30) + 1).expect("a sparse file");
    let message = |args: &[&str]| {
        let output = case.run(args);
        (
            output.status.code(),
            String::from_utf8(output.stderr).expect("UTF-8"),
        )
    };
    let line = |text: &str| format!("pegasus-rc-client: {text}\n");
    for (args, expected) in [
        (
            &["--insert", "bad.in"][..],
            "bad.in:2: a logical name and a location are needed",
        ),
        (
            &["--insert", "open.in"],
            "open.in:1: a double quote is not closed",
        ),
        (
            &["--insert", "none.in"],
            "none.in: No such file or directory (os error 2)",
        ),
        (
            &["--insert", "huge.in"],
            "huge.in: larger than 1024 MiB, the most that is read",
        ),
        (
            &["--insert", "bad.in", "--delete", "bad.in"],
            "exactly one of --insert, --delete, --lookup or a command is needed; see --help",
        ),
        (&["--conf", "none", "list"], "the argument"),
    ] {
        let (code, text) = message(args);
        if expected.starts_with("the argument") {
            assert_eq!(code, Some(2), "{text}");
        } else {
            assert_eq!((code, text), (Some(1), line(expected)), "{args:?}");
        }
    }
    assert!(!case.path("diamond-0.replicas.db").exists());
    case.write("run.properties", "pegasus.catalog.replica.output=LRC\n");
    let (code, text) = message(&["list"]);
    assert_eq!(code, Some(1));
    assert!(
        text.contains("run.properties: pegasus.catalog.replica.output is 'lrc'"),
        "{text}"
    );
}

#[test]
fn file_that_is_not_a_database_is_kept() {
    let case = Case::sqlite();
    let text = "this is somebody's text, long enough to be a database header of one hundred bytes or so, and no database";
    case.write("diamond-0.replicas.db", text).write("in", "a b\n");
    let output = case.run(&["--insert", "in"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("diamond-0.replicas.db: file is not a database"),
        "{stderr}"
    );
    assert_eq!(
        fs::read_to_string(case.path("diamond-0.replicas.db")).expect("read"),
        text
    );
    assert!(Path::new(&case.path("in")).exists());
}

#[test]
fn manual_shows_the_help() {
    let output = Command::new(testutils::programs::path("pegasus-rc-client"))
        .arg("--help")
        .output()
        .expect("run");
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    let page = include_str!("../../../docs/manual/pegasus-rc-client.md");
    assert!(
        page.contains(help.trim_end()),
        "docs/manual/pegasus-rc-client.md is stale:\n{help}"
    );
}
