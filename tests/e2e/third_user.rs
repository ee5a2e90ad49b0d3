//! A plain user looks at and loads runs of another plain user: none of that reaches what is only the first
//! one's.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::users::{OTHER, THIRD, TwoUsers};
use crate::two_users::{LIMIT, made_run, run_theirs};

/// The users who look at runs of the third one.
const VICTIMS: [u32; 2] = [0, OTHER];

/// Gives all files to the third user, who lets everybody write them.
fn give_to_third(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        give_to_third(&entry.path());
    }
    if !path.is_symlink() {
        let mode = if path.is_dir() { 0o777 } else { 0o666 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
    }
    lchown(path, Some(THIRD), Some(THIRD)).expect("another owner");
}

/// Makes a file that only the victim may read, in a directory that all may enter.
fn private(users: &TwoUsers, victim: u32) -> PathBuf {
    match victim {
        0 => users.write_mine("private", "only-for-me\n", 0o600),
        _ => users.write_theirs("private", "only-for-me\n", 0o600),
    }
}

/// Notifications of a run are commands, and its properties can name a database.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn loading_a_run_of_another_user_runs_none_of_its_commands() {
    let Some(users) = TwoUsers::new("loading_a_run_of_another_user_runs_none_of_its_commands") else {
        return;
    };
    let dir = run_theirs(&users, &[]);
    let braindump = fs::read_to_string(dir.join("braindump.yml")).expect("a braindump");
    let value = |key: &str| {
        let mut lines = braindump.lines().filter_map(|line| line.split_once(": "));
        let (_, value) = lines.find(|(name, _)| *name == key).expect("the key");
        value.trim_matches('"').to_owned()
    };
    let started = users.theirs().join("started");
    let command = format!("/usr/bin/touch {}", started.display());
    fs::write(
        dir.join(value("notify")),
        format!("workflow {} all {command}\n", value("wf_uuid")),
    )
    .expect("notifications");
    let load = |victim: u32| {
        let _ = fs::remove_file(dir.join("monitord.done"));
        let program = match victim {
            0 => users.me("pmc-monitord"),
            victim => users.as_user(victim, "pmc-monitord"),
        };
        program
            .arg(dir.join("diamond-0.dag.dagman.out"))
            .limit(LIMIT)
            .run()
    };
    // Its owner wants them.
    load(OTHER).ok();
    assert!(started.exists(), "the notification of one's own run");
    fs::remove_file(&started).expect("the file");
    for victim in VICTIMS {
        give_to_third(&dir);
        let result = load(victim);
        assert!(result.code() < 126, "{victim}: {}", result.details());
        assert!(!started.exists(), "{victim}: {}", result.details());
    }
    // Neither database nor properties of a third user are followed.
    for victim in VICTIMS {
        let chosen = private(&users, victim);
        let url = format!("pegasus.catalog.workflow.url=sqlite:///{}\n", chosen.display());
        fs::write(dir.join("pegasus.1.properties"), url).expect("properties");
        give_to_third(&dir);
        load(victim).refused();
        assert_eq!(
            fs::read_to_string(&chosen).expect("a private file"),
            "only-for-me\n"
        );
    }
}

/// A crate is made to be published.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn crates_of_a_run_of_another_user_have_no_private_files() {
    let Some(users) = TwoUsers::new("crates_of_a_run_of_another_user_have_no_private_files") else {
        return;
    };
    for victim in VICTIMS {
        let private = private(&users, victim);
        let dir = made_run(&users, &format!("run{victim}"));
        users.write_theirs(
            &format!("run{victim}/workflow.yml"),
            "pegasus: \"5.0.4\"\nname: w\njobs:\n- {type: job, id: A, name: a, arguments: [\"${MY_TOKEN}\"], uses: [{lfn: \
             direct, type: input}, {lfn: link, type: input}, {lfn: public, type: input}]}\n",
            0o644,
        );
        let braindump = fs::read_to_string(dir.join("braindump.yml")).expect("a braindump");
        fs::write(dir.join("braindump.yml"), braindump + "dax: workflow.yml\n").expect("a braindump");
        fs::write(dir.join("public"), "public\n").expect("a file");
        symlink(&private, dir.join("link")).expect("a link");
        fs::write(
            dir.join("w.static.bp"),
            "ts=1 event=job.info xwf.id=6b2a1f0e-0000-4000-8000-000000000001 job.id=\"in\" submit_file=\"in.sub\" \
             type_desc=\"stage-in-tx\" \n",
        )
        .expect("events");
        let entry = |name: &str, path: &Path| {
            let url = format!("file://{}", path.display());
            format!(r#"{{"lfn":"{name}","src_urls":[{{"url":"{url}"}}],"dest_urls":[{{"url":"/x"}}]}}"#)
        };
        let entries = [
            entry("direct", &private),
            entry("link", &dir.join("link")),
            entry("public", &dir.join("public")),
        ];
        fs::write(dir.join("in.in"), format!("[{}]", entries.join(","))).expect("a list");
        give_to_third(&dir);
        let (program, own) = match victim {
            0 => (users.me("pmc"), users.mine()),
            victim => (users.as_user(victim, "pmc"), users.theirs()),
        };
        let made = own.join("crate");
        program
            .args(["report", "-q", "--ro-crate"])
            .args([&made, &dir])
            .env("MY_TOKEN", "only-for-me")
            .limit(LIMIT)
            .run()
            .ok();
        let inputs = fs::read_dir(made.join("inputs")).expect("inputs").flatten();
        let names: Vec<_> = inputs.map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["public"], "{victim}");
        let metadata = fs::read_to_string(made.join("ro-crate-metadata.json")).expect("metadata");
        assert!(!metadata.contains("only-for-me"), "{metadata}");
    }
}

/// The run of oneself writes redirected output into the file of the tool. That of another user sends text.
#[test]
#[ignore = "needs all programs built, and root: tests/run e2e"]
fn the_run_of_another_user_gets_no_descriptor() {
    let Some(users) = TwoUsers::new("the_run_of_another_user_gets_no_descriptor") else {
        return;
    };
    for (owner, gets_descriptor) in [(0, true), (OTHER, false)] {
        let dir = match owner {
            0 => users.mine().join("run"),
            _ => users.theirs().join("run"),
        };
        let script = "while [ ! -e end ]; do echo line; sleep 0.05; done";
        let dag = dir.join("w.dag");
        fs::create_dir(&dir).expect("a directory");
        fs::write(&dag, format!("TASK a --io relay /bin/sh -c '{script}'\n")).expect("a DAG");
        if owner == OTHER {
            users.give(&dir);
            users.give(&dag);
        }
        let executor = match owner {
            0 => users.me("pegasus-mpi-cluster"),
            owner => users.as_user(owner, "pegasus-mpi-cluster"),
        };
        let executor = executor
            .args(["--workers", "1", "--per-task-stdio", "--jobstate-log"])
            .arg(&dag)
            .in_directory(&dir)
            .limit(LIMIT)
            .start();
        let out = users.mine().join(format!("out{owner}"));
        let redirect = format!(
            "until grep -qs EXECUTE {0}/jobstate.log; do sleep 0.02; done; exec {1} attach --redirect a {0} >{2}",
            dir.display(),
            users.program("pmc").display(),
            out.display()
        );
        let tool = users.me("/bin/sh").args(["-c", &redirect]).limit(LIMIT).start();
        let begun = Instant::now();
        while fs::read(&out).map_or(0, |text| text.len()) < 20 {
            assert!(begun.elapsed().as_secs() < LIMIT, "no output comes");
            std::thread::sleep(Duration::from_millis(20));
        }
        let descriptors = fs::read_dir(format!("/proc/{}/fd", executor.id())).expect("the executor");
        let has_it = descriptors
            .flatten()
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == out));
        assert_eq!(has_it, gets_descriptor, "{owner}");
        fs::write(dir.join("end"), "").expect("a file");
        executor.wait().ok();
        tool.wait().ok();
    }
}
