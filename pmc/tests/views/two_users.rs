//! Links and files of another user, where this one writes or copies. They need root, who can make them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};
use std::path::{Path, PathBuf};

use crate::packed::run;
use crate::support::Place;

/// A user who is not root.
const OTHER: u32 = 65_534;

/// A place with a file of this user that nobody else may read. `None` without root.
fn place(test: &str) -> Option<(Place, PathBuf)> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: {test} needs root");
        return None;
    }
    let place = Place::new();
    place.write("private/precious", "precious\n");
    let path = place.path().join("private/precious");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
    Some((place, path))
}

/// Makes a link of the other user.
fn plant(target: &Path, link: &Path) {
    let _ = fs::remove_file(link);
    symlink(target, link).expect("a link");
    lchown(link, Some(OTHER), Some(OTHER)).expect("another owner");
}

fn fails(place: &Place, arguments: &[&str]) {
    let output = place.pmc(arguments).output().expect("pmc starts");
    assert!(!output.status.success(), "{arguments:?}");
}

fn give(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        give(&entry.path());
    }
    lchown(path, Some(OTHER), Some(OTHER)).expect("another owner");
}

#[test]
fn reports_do_not_follow_links_of_another_user() {
    let Some((place, precious)) = place("reports_do_not_follow_links_of_another_user") else {
        return;
    };
    run(&place, "run", &[]);
    place.write("open/readme", "");
    let open = place.path().join("open");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).expect("a mode");
    plant(&precious, &open.join("report.html"));
    plant(&place.path().join("private"), &open.join("folder"));
    for options in [
        ["-o", "open/report.html"],
        ["--trace", "open/report.html"],
        ["-o", "open/folder/new"],
        ["--trace", "open/folder/precious"],
        ["--ro-crate", "open/folder/crate"],
    ] {
        fails(&place, &["report", "-q", options[0], options[1], "run"]);
        assert_eq!(
            fs::read_to_string(&precious).expect("my file"),
            "precious\n",
            "{options:?}"
        );
        assert_eq!(
            fs::read_dir(place.path().join("private")).expect("mine").count(),
            1,
            "{options:?}"
        );
    }
    for folder in ["open/folder", "open/folder/new/er"] {
        fails(&place, &["statistics", "-s", "all", "-o", folder, "run"]);
        let private = fs::read_dir(place.path().join("private"));
        assert_eq!(private.expect("mine").count(), 1, "{folder}");
    }
    // A link of one's own stays one.
    symlink(&precious, open.join("own")).expect("a link");
    place.run(["report", "-q", "-o", "open/own", "run"]).code(0);
    assert!(open.join("own").is_symlink());
    assert_ne!(fs::read_to_string(&precious).expect("my file"), "precious\n");
}

/// Somebody asks me to look at a run or to drain it, and leads to the run of a third user.
#[test]
fn a_link_of_another_user_leads_to_no_run() {
    let Some((place, _)) = place("a_link_of_another_user_leads_to_no_run") else {
        return;
    };
    run(&place, "mine", &[]);
    place.write("theirs/runs/readme", "");
    let theirs = place.path().join("theirs");
    give(&theirs);
    let mine = place.path().join("mine");
    plant(&mine, &theirs.join("submit"));
    plant(&mine, &theirs.join("runs/latest"));
    plant(&mine.join("w.dag"), &theirs.join("w.dag"));
    for path in ["theirs", "theirs/submit", "theirs/runs/latest", "theirs/w.dag"] {
        for words in [
            &["status"][..],
            &["analyzer"],
            &["statistics", "-s", "all"],
            &["report", "-q"],
            &["unpack"],
            &["simulate"],
            &["nodes"],
            &["drain"],
            &["log", "a"],
            &["attach", "a"],
            &["why", "a"],
            &["kill", "a"],
            &["submit", "mine/w.dag"],
        ] {
            let failed = place.pmc(words).arg(path).output().expect("pmc starts");
            assert!(!failed.status.success(), "{words:?} {path}");
            let text = String::from_utf8_lossy(&failed.stderr);
            assert!(text.contains("link of another user"), "{words:?} {path}: {text}");
        }
    }
    place.run(["status", "mine"]).code(0);
}

#[test]
fn unpack_does_not_write_through_links_of_another_user() {
    let Some((place, precious)) = place("unpack_does_not_write_through_links_of_another_user") else {
        return;
    };
    place.write(
        "run/w.dag",
        "TASK deep/er/a /bin/echo text\nTASK b /bin/echo text\n",
    );
    let executor = crate::support::bin().join("pegasus-mpi-cluster");
    let ran = std::process::Command::new(executor)
        .args(["--workers", "1", "--packed-output", "w.dag"])
        .current_dir(place.path().join("run"))
        .status();
    assert!(ran.expect("the executor starts").success());
    let dir = place.path().join("run");
    give(&dir);
    for (link, target) in [
        ("deep", "private"),
        ("b.out.000", "private/new"),
        ("b.err.000", "private/precious"),
    ] {
        plant(&place.path().join(target), &dir.join(link));
    }
    fails(&place, &["unpack", "run"]);
    assert_eq!(
        fs::read_dir(place.path().join("private")).expect("mine").count(),
        1
    );
    assert_eq!(fs::read_to_string(&precious).expect("my file"), "precious\n");
}

/// A crate is made to be published: what the run of another user names must not be a file of mine.
#[test]
fn crates_have_no_files_that_the_user_of_the_run_may_not_read() {
    let Some((place, precious)) = place("crates_have_no_files_that_the_user_of_the_run_may_not_read") else {
        return;
    };
    let path = place.path();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
    place.write("run/public", "public\n");
    plant(&precious, &path.join("run/link"));
    fs::hard_link(&precious, path.join("run/hard")).expect("a link");
    let files = [
        ("public", path.join("run/public")),
        ("direct", precious.clone()),
        ("link", path.join("run/link")),
        ("hard", path.join("run/hard")),
    ];
    let uses: String = files
        .iter()
        .map(|(name, _)| format!("{{lfn: {name}, type: input}}, "))
        .collect();
    place.write(
        "run/workflow.yml",
        &format!(
            "pegasus: \"5.0.4\"\nname: w\njobs:\n- {{type: job, id: A, name: a, arguments: [\"${{MY_TOKEN}}\"], \
             uses: [{uses}{{lfn: \"${{MY_TOKEN}}\", type: output}}]}}\n"
        ),
    );
    place.write("run/w.dag", "TASK a /bin/true\n");
    place.write(
        "run/braindump.yml",
        "user: other\nwf_uuid: u\ndax: workflow.yml\ndax_label: w\ndag: w.dag\n",
    );
    place.write(
        "run/w.static.bp",
        "ts=1 event=job.info xwf.id=u job.id=\"in\" submit_file=\"in.sub\" type_desc=\"stage-in-tx\" \n",
    );
    let entries: Vec<String> = files
        .iter()
        .map(|(name, path)| {
            let url = format!("file://{}", path.display());
            format!(r#"{{"lfn":"{name}","src_urls":[{{"url":"{url}"}}],"dest_urls":[{{"url":"/x"}}]}}"#)
        })
        .collect();
    place.write("run/in.in", &format!("[{}]", entries.join(",")));
    let names = |name: &str| {
        let inputs = fs::read_dir(path.join(name).join("inputs"))
            .expect("inputs")
            .flatten();
        let mut names: Vec<_> = inputs
            .map(|entry| entry.file_name().into_string().unwrap_or_default())
            .collect();
        names.sort();
        names
    };
    let make = |name: &str| {
        let mut command = place.pmc(["report", "-q", "--ro-crate", name, "run"]);
        let made = command
            .env("MY_TOKEN", "xyzzy-4711")
            .status()
            .expect("pmc starts");
        assert!(made.success(), "{name}");
        let metadata = place.read(&format!("{name}/ro-crate-metadata.json"));
        assert!(!metadata.contains("xyzzy"), "no variable is expanded: {metadata}");
    };
    give(&path.join("run"));
    // The hard link is one file with mine.
    chown(&precious, Some(0), Some(0)).expect("an owner");
    make("theirs");
    assert_eq!(names("theirs"), ["public"]);
    // What is a run of my own may name my files.
    for entry in fs::read_dir(path.join("run")).expect("the run").flatten() {
        lchown(entry.path(), Some(0), Some(0)).expect("an owner");
    }
    lchown(path.join("run"), Some(0), Some(0)).expect("an owner");
    make("own");
    assert_eq!(names("own"), ["direct", "hard", "link", "public"]);
}
