//! Rows of the table in SECURITY.md that no other test shows: what another user has put in place of a file
//! holds up nobody, and leads to nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::support::command::CommandResult;
use crate::support::users::TwoUsers;
use crate::two_users::{LIMIT, all_files, hold, made_run, plant, run_theirs};

/// Seconds that a program of these tests may take. Waiting for a FIFO would take all of them.
const SHORT: u64 = 40;

/// A workflow of one job with all that it needs, and the files beside it that name others.
const WORKFLOW: &str = "pegasus: \"5.0.4\"\nname: w\njobs:\n- {type: job, id: A, name: t, uses: []}\n";
const TRANSFORMATIONS: &str = "pegasus: \"5.0\"\ntransformations:\n- {name: t, sites: [{name: local, type: installed, pfn: /bin/true}]}\n";

/// Asserts that a program has ended by itself, with an error.
#[track_caller]
fn assert_refused(result: &CommandResult) {
    let code = result.code();
    assert!((1..124).contains(&code), "{}", result.details());
    assert!(!result.stderr.contains("panicked"), "{}", result.details());
}

/// Puts a FIFO, or a link to an endless device, where the other user can.
fn put(users: &TwoUsers, path: &Path, kind: &str) {
    let _ = fs::remove_file(path);
    match kind {
        "fifo" => {
            users.other("mkfifo").arg(path).run().ok();
            fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("a mode");
        }
        _ => plant(users, Path::new("/dev/zero"), path),
    }
}

/// I name files of the other user: they are read as long as they may be.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn planners_are_not_held_up_by_files_of_another_user() {
    let Some(users) = TwoUsers::new("planners_are_not_held_up_by_files_of_another_user") else {
        return;
    };
    let theirs = users.theirs();
    let files = [
        "workflow.yml",
        "transformations.yml",
        "sites.yml",
        "replicas.yml",
        "pegasus.properties",
    ];
    for (kind, broken) in ["fifo", "zero"]
        .into_iter()
        .flat_map(|kind| files.map(|file| (kind, file)))
    {
        let name = format!("{kind}-{broken}");
        users.write_theirs(&format!("{name}/workflow.yml"), WORKFLOW, 0o644);
        users.write_theirs(&format!("{name}/transformations.yml"), TRANSFORMATIONS, 0o644);
        let dir = theirs.join(&name);
        put(&users, &dir.join(broken), kind);
        for words in [
            &["pmc", "run", "-q", "--dir", "RUNS"][..],
            &["pmc-plan", "--dir", "RUNS", "--dry-run"],
        ] {
            let place = |file: &str| dir.join(file).display().to_string();
            let mut named = vec![format!(
                "-Dpegasus.catalog.transformation.file={}",
                place("transformations.yml")
            )];
            match broken {
                "pegasus.properties" => named.extend(["--conf".to_owned(), place(broken)]),
                "sites.yml" => named.push(format!("-Dpegasus.catalog.site.file={}", place(broken))),
                "replicas.yml" => named.push(format!("-Dpegasus.catalog.replica.file={}", place(broken))),
                _ => {}
            }
            let runs = users.mine().join("runs").display().to_string();
            let result = users
                .me(words[0])
                .args(words[1..].iter().map(|word| word.replace("RUNS", &runs)))
                .args(named)
                .arg(dir.join("workflow.yml"))
                .limit(SHORT)
                .run();
            assert_refused(&result);
        }
    }
    // A list of arguments.
    for kind in ["fifo", "zero"] {
        let list = theirs.join(format!("list-{kind}"));
        put(&users, &list, kind);
        let result = users
            .me("pmc")
            .args(["run", "-q", "--", "echo", "{}", "::::"])
            .arg(&list)
            .limit(SHORT)
            .run();
        assert_refused(&result);
    }
}

/// What holds the lock of a loader that was killed is a reader, who cannot keep the next one from loading.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn a_reader_of_the_lock_of_a_loader_stops_no_loader() {
    let Some(users) = TwoUsers::new("a_reader_of_the_lock_of_a_loader_stops_no_loader") else {
        return;
    };
    let made = run_theirs(&users, &[]);
    let dir = users.mine().join("run");
    users.me("/bin/cp").arg("-r").args([&made, &dir]).run().ok();
    for how in ["flock", "posix"] {
        let lock = users.write_mine("run/monitord.pid", "1\n", 0o644);
        let (_holder, held) = hold(&users, &lock, how);
        assert!(held, "a file that all may read can be locked for reading");
        users
            .me("pmc-monitord")
            .arg("-r")
            .arg(dir.join("diamond-0.dag.dagman.out"))
            .limit(LIMIT)
            .run()
            .ok();
        assert!(dir.join("diamond-0.stampede.db").exists());
        fs::remove_file(users.theirs().join(format!("tried-{how}"))).expect("a file of the other user");
    }
}

/// Credentials and keys in the directory of another user.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn transfers_are_not_held_up_by_credentials_of_another_user() {
    let Some(users) = TwoUsers::new("transfers_are_not_held_up_by_credentials_of_another_user") else {
        return;
    };
    let precious = users.write_mine("precious", "[host]\nusername = me\n", 0o644);
    let credentials = users.theirs().join("credentials");
    for kind in ["fifo", "zero", "link"] {
        match kind {
            "link" => plant(&users, &precious, &credentials),
            kind => put(&users, &credentials, kind),
        }
        for (url, variable) in [
            ("s3://me@host/bucket/key", "PEGASUS_CREDENTIALS"),
            ("gs://me@host/bucket/key", "PEGASUS_CREDENTIALS"),
            ("webdav://host.invalid/x", "PEGASUS_CREDENTIALS"),
            ("scp://me@host.invalid/x", "SSH_PRIVATE_KEY"),
        ] {
            let list = format!(
                "[{{\"type\": \"transfer\", \"id\": 1, \"src_urls\": [{{\"site_label\": \"a\", \"url\": \"{url}\"}}], \
                 \"dest_urls\": [{{\"site_label\": \"local\", \"url\": \"file://{}/out\"}}]}}]",
                users.mine().display()
            );
            let list = users.write_mine("list.json", &list, 0o644);
            let result = users
                .me("pegasus-transfer")
                .args(["--max-attempts", "1", "-f"])
                .arg(list)
                .env(variable, &credentials)
                .limit(SHORT)
                .run();
            assert_refused(&result);
            let mode = fs::metadata(&precious).expect("my file").permissions().mode();
            assert_eq!(mode & 0o777, 0o644, "{kind} {url}: {}", result.details());
        }
    }
}

/// In a directory such as `/tmp`, the other user has taken the names of the directories of a node.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn names_in_the_directory_of_a_node_may_be_taken() {
    let Some(users) = TwoUsers::new("names_in_the_directory_of_a_node_may_be_taken") else {
        return;
    };
    let tmp = users.mine().join("tmp");
    fs::create_dir(&tmp).expect("a directory");
    fs::set_permissions(&tmp, fs::Permissions::from_mode(0o1777)).expect("a mode");
    users.write_mine("in.txt", "something\n", 0o644);
    users.write_mine(
        "workflow.yml",
        &format!(
            "pegasus: \"5.0.4\"\nname: w\nreplicaCatalog:\n  replicas:\n  - {{lfn: in.txt, pfns: [{{site: local, pfn: \
             \"file://{}/in.txt\"}}]}}\ntransformationCatalog:\n  transformations:\n  - {{name: cat, sites: [{{name: \
             local, type: installed, pfn: /bin/cat}}]}}\njobs:\n{}",
            users.mine().display(),
            ["A", "B"]
                .map(|id| format!(
                    "- {{type: job, id: {id}, name: cat, arguments: [in.txt], stdout: {id}.txt, uses: [{{lfn: in.txt, type: \
                     input}}, {{lfn: {id}.txt, type: output}}]}}\n"
                ))
                .concat()
        ),
        0o644,
    );
    let elsewhere = users.theirs().join("elsewhere");
    for kind in ["link", "directory", "fifo"] {
        let _ = fs::remove_dir_all(&elsewhere);
        users.other("mkdir").arg(&elsewhere).run().ok();
        for name in [".pegasus-lite-0", ".pegasus-lite-0-cache"] {
            let path = tmp.join(name);
            let _ = fs::remove_file(&path);
            match kind {
                "link" => plant(&users, &elsewhere, &path),
                "directory" => {
                    users.other("mkdir").args(["-m", "777"]).arg(&path).run().ok();
                }
                _ => {
                    fs::remove_dir_all(&path).expect("a directory");
                    put(&users, &path, "fifo");
                }
            }
        }
        users
            .me("pmc")
            .args([
                "run",
                "-q",
                "-Dpegasus.data.configuration=nonsharedfs",
                "workflow.yml",
            ])
            .env("TMPDIR", &tmp)
            .limit(LIMIT)
            .run()
            .ok();
        assert_eq!(all_files(&elsewhere), Vec::<std::path::PathBuf>::new(), "{kind}");
        let taken = all_files(&tmp);
        let theirs = |path: &std::path::PathBuf| path.to_string_lossy().contains("/.pegasus-lite-0/");
        assert!(!taken.iter().any(theirs), "{kind}: {taken:?}");
    }
}

/// A file that another user has written beside my DAG says where to run commands of me.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn a_planted_place_is_not_followed() {
    let Some(users) = TwoUsers::new("a_planted_place_is_not_followed") else {
        return;
    };
    let open = users.mine().join("open");
    fs::create_dir(&open).expect("a directory");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).expect("a mode");
    users.write_mine("open/w.dag", "TASK a /bin/true\n", 0o644);
    let place = users.write_theirs("place", "elsewhere.invalid\nslurm 17\n", 0o644);
    users
        .other("cp")
        .args([&place, &open.join("w.dag.place")])
        .run()
        .ok();
    // What would be started.
    let bin = users.mine().join("own-bin");
    fs::create_dir(&bin).expect("a directory");
    for name in ["ssh", "srun", "squeue", "scontrol"] {
        let path = users.write_mine(
            &format!("own-bin/{name}"),
            "#!/bin/sh\ntouch \"${0%/*}/../started\"\n",
            0o755,
        );
        assert!(path.exists());
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    for words in [
        &["nodes", "open"][..],
        &["why", "a", "open"],
        &["kill", "a", "open"],
        &["drain", "open"],
        &["attach", "a", "open"],
        &["log", "-f", "a", "open"],
        &["submit", "open", "open/w.dag"],
        &["status", "open"],
    ] {
        let result = users.me("pmc").args(words).env("PATH", &path).limit(SHORT).run();
        assert!(result.code() < 124, "{}", result.details());
        assert!(
            !users.mine().join("started").exists(),
            "{words:?}: {}",
            result.details()
        );
    }
}

/// The end of a run, as its file says it, in the directory of another user.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn the_end_of_a_run_is_shown_without_control_characters() {
    let Some(users) = TwoUsers::new("the_end_of_a_run_is_shown_without_control_characters") else {
        return;
    };
    let dir = made_run(&users, "run");
    let end = |message: &str| {
        format!(
            "{{\"end\":\"error\",\"message\":\"{message}\",\"done\":0,\"left\":2,\"lost_nodes\":[\"{message}\"],\"seconds\":1}}\n"
        )
    };
    for text in [
        end("\\u001b[2Jcleared\\u0007"),
        end(&"x".repeat(10 << 20)),
        end(&"y".repeat(60 << 10)),
        "\0\u{ff}".to_owned(),
    ] {
        users.write_theirs("run/w.dag.end", &text, 0o644);
        for view in ["status", "analyzer"] {
            let result = users.me("pmc").arg(view).arg(&dir).limit(SHORT).run();
            assert!(result.code() < 124, "{}", result.details());
            let shown = format!("{}{}", result.stdout, result.stderr);
            assert!(!shown.contains(['\u{1b}', '\u{7}']), "{shown:?}");
            assert!(shown.len() < 1 << 18, "{view}: {} bytes", shown.len());
        }
    }
}
