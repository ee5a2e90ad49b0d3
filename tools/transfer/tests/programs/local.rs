//! Transfers of local files.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::common::{Case, list, mkdir, remove, transfer, with_option};

#[test]
fn the_jobs_of_a_small_workflow_succeed() {
    let case = Case::new();
    case.write("data/f.a", "input");
    case.run(&list(&[mkdir("file://@DIR@/scr/run0001")]), &[])
        .expect_ok();
    let run = case.run(
        &list(&[transfer("@DIR@/data/f.a", "file://@DIR@/scr/run0001/./f.a")]),
        &["--threads", "2"],
    );
    run.expect_ok();
    let lines = run.lines("   INFO");
    assert_eq!(lines[..2], ["Reading URL pairs from stdin", "1 transfers loaded"]);
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("Stats: Total 1 transfers, 5.0 B transferred in 0 seconds. Rate: "))
    );
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("       Between sites local->local : 1 transfers, 5.0 B "))
    );
    assert_eq!(case.read("scr/run0001/f.a"), "input");
    case.run(
        &list(&[transfer(
            "file://@DIR@/scr/run0001/./f.a",
            "file://@DIR@/out/deep/f.a",
        )]),
        &[],
    )
    .expect_ok();
    assert_eq!(case.read("out/deep/f.a"), "input");
    let removals = [
        remove("file://@DIR@/scr/run0001/./f.a", "False"),
        remove("file://@DIR@/scr/run0001/./none", "False"),
    ];
    case.run(&list(&removals), &[]).expect_ok();
    assert_eq!(case.names("scr/run0001"), [""; 0]);
    case.write("scr/run0001/sub/left", "x");
    case.run(&list(&[remove("file://@DIR@/scr/run0001", "True")]), &[])
        .expect_ok();
    assert_eq!(case.names("scr"), [""; 0]);
    case.run("[]", &[]).expect_ok();
}

#[test]
fn specifications_are_read_from_files_and_in_the_old_format() {
    let case = Case::new();
    case.write("a", "1").write("in.json", list(&[transfer("a", "b")]));
    case.run("", &["-f", "in.json"]).expect_ok();
    assert_eq!(case.read("b"), "1");
    case.run("# src 1 x\nfile://@DIR@/a\n# dst 1 y\nfile://@DIR@/c\n", &[])
        .expect_ok();
    assert_eq!(case.read("c"), "1");
    case.run("", &["-f", "none.json"])
        .expect_failed("none.json: No such file or directory");
    let huge = std::fs::File::create(case.path("huge.json")).expect("a file");
    huge.set_len((1 << 30) + 1).expect("a sparse file");
    case.run("", &["-f", "huge.json"])
        .expect_failed("huge.json: larger than 1024 MiB, the most that is read");
}

#[test]
fn a_part_of_a_file_is_read_as_specification() {
    let case = Case::new();
    let specs = [list(&[transfer("a", "b")]), list(&[transfer("a", "c")])];
    let part = format!("{}:{}", specs[0].len(), specs[1].len());
    case.write("a", "1").write("all", specs.concat());
    case.run("", &["-f", "all", "--part", &part]).expect_ok();
    assert_eq!(case.names("."), ["a", "all", "c"]);
    let part = format!("{}:{}", specs[0].len(), specs[1].len() + 1);
    case.run("", &["-f", "all", "--part", &part])
        .expect_failed("all: the file ends before byte");
    case.run("", &["-f", "all", "--part", "1"])
        .expect_failed("whole numbers");
}

#[test]
fn optional_files_may_be_missing() {
    let case = Case::new();
    case.write("a", "1");
    let optional = |source: &str| with_option(&transfer(source, "d/f"), "optional", true);
    case.run(&list(&[optional("none"), remove("a", "false")]), &[])
        .expect_ok();
    assert!(!case.path("d/f").exists() && !case.path("a").exists());
    case.write("b", "2");
    case.run(&list(&[optional("b")]), &[]).expect_ok();
    assert_eq!(case.read("d/f"), "2");
}

#[test]
fn entries_of_all_types_are_mixed() {
    let case = Case::new();
    case.write("a", "1").write("old", "x");
    let spec = [
        remove("old", "false"),
        transfer("a", "d/e/a"),
        mkdir("d/e"),
        mkdir("d/f"),
        remove("d/f", "t"),
    ];
    case.run(&list(&spec), &[]).expect_ok();
    assert_eq!(
        (case.read("d/e/a").as_str(), case.names("d")),
        ("1", vec!["e".to_owned()])
    );
    assert!(!case.path("old").exists());
}

#[test]
fn removals_require_successful_transfers() {
    let case = Case::new();
    case.write("a", "1");
    let run = case.run(&list(&[transfer("none", "b"), remove("a", "false")]), &[]);
    run.expect_failed("Failed after 0 attempts: remove file://a: not attempted: entries before it failed");
    assert!(case.path("a").exists());
}

#[test]
fn copies_replace_files_and_keep_permissions() {
    let case = Case::new();
    case.write("exe", "new").write("dst/exe", "old and longer");
    case.set_mode("exe", 0o750);
    case.set_mode("dst/exe", 0o400);
    let open = fs::File::open(case.path("dst/exe")).expect("open");
    case.run(&list(&[transfer("exe", "dst/exe")]), &[]).expect_ok();
    assert_eq!(case.read("dst/exe"), "new");
    let umask = 0o777 & !case.mode("dst");
    assert_eq!(case.mode("dst/exe"), 0o750 & !umask);
    // Programs with the old file open still see all of it.
    assert_eq!(open.metadata().expect("metadata").len(), 14);
    assert_eq!(case.names("dst"), ["exe"]);
}

#[test]
fn links_on_both_sides_are_followed() {
    let case = Case::new();
    case.write("real", "content").write("dst/target", "old");
    symlink(case.path("real"), case.path("link")).expect("link");
    symlink("target", case.path("dst/name")).expect("link");
    case.run(&list(&[transfer("link", "dst/name")]), &[]).expect_ok();
    assert_eq!(case.read("dst/target"), "content");
    assert!(
        fs::symlink_metadata(case.path("dst/name"))
            .expect("metadata")
            .is_symlink()
    );
    symlink("nowhere", case.path("dst/dangling")).expect("link");
    let run = case.run(&list(&[transfer("real", "dst/dangling")]), &[]);
    run.expect_failed("is a symbolic link to a file that does not exist");
    assert_eq!(case.names("dst"), ["dangling", "name", "target"]);
}

#[test]
fn a_file_is_not_copied_onto_itself() {
    let case = Case::new();
    case.write("a", "content");
    fs::hard_link(case.path("a"), case.path("hard")).expect("link");
    symlink("a", case.path("soft")).expect("link");
    case.run(
        &list(&[
            transfer("a", "a"),
            transfer("a", "hard"),
            transfer("soft", "a"),
            transfer("a", "soft"),
        ]),
        &[],
    )
    .expect_ok();
    assert_eq!(case.read("a"), "content");
    assert_eq!(fs::metadata(case.path("a")).expect("metadata").nlink(), 2);
}

#[test]
fn files_are_copied_into_an_existing_directory() {
    let case = Case::new();
    case.write("a", "1").write("dir/x", "");
    case.run(
        &list(&[transfer("a", "dir"), transfer("a", "new/")]),
        &["-n", "1"],
    )
    .expect_ok();
    assert_eq!(
        (case.read("dir/a").as_str(), case.read("new/a").as_str()),
        ("1", "1")
    );
}

#[test]
fn directories_are_copied_recursively() {
    let case = Case::new();
    case.write("src/a", "1")
        .write("src/sub/b", "22")
        .write("outside", "333");
    symlink(case.path("outside"), case.path("src/sub/link")).expect("link");
    fs::create_dir(case.path("src/empty")).expect("mkdir");
    // Directories without write permission are copied with their contents.
    let set_mode = |mode: u32| {
        for name in ["src/sub", "dst/tree/sub"] {
            if case.path(name).exists() {
                case.set_mode(name, mode);
            }
        }
    };
    set_mode(0o500);
    let run = || {
        let run = case.run(&list(&[transfer("src", "dst/tree")]), &["-n", "1"]);
        run.expect_ok();
        assert!(run.stderr.contains("6.0 B transferred"), "{}", run.stderr);
    };
    run();
    assert_eq!(case.mode("dst/tree/sub"), 0o500);
    set_mode(0o700);
    // A second copy merges into the existing directory.
    case.write("dst/tree/other", "");
    run();
    assert_eq!(case.names("dst/tree"), ["a", "empty", "other", "sub"]);
    assert_eq!(case.names("dst"), ["tree"]);
    assert_eq!(case.read("dst/tree/sub/link"), "333");
    assert!(
        fs::symlink_metadata(case.path("dst/tree/sub/link"))
            .expect("metadata")
            .is_file()
    );
    case.run(&list(&[transfer("src", "src/inside")]), &[])
        .expect_failed("inside the directory to be copied");
    assert_eq!(case.names("src"), ["a", "empty", "sub"]);
}

#[test]
fn broken_links_in_directories_are_reported_once() {
    let case = Case::new();
    for (name, target, message) in [
        (
            "gone",
            "nowhere",
            "gone/l: No such file or directory (os error 2)",
        ),
        ("loop", ".", "loop/l: File system loop found: "),
    ] {
        fs::create_dir(case.path(name)).expect("mkdir");
        symlink(target, case.path(name).join("l")).expect("link");
        let run = case.run(&list(&[transfer(name, "copy")]), &["-m", "1"]);
        run.expect_failed(message);
        assert!(!run.stderr.contains("IO error for operation"), "{}", run.stderr);
        assert!(!case.path("copy").exists());
    }
}

#[test]
fn symbolic_links_are_made_and_removed() {
    let case = Case::new();
    case.write("a", "1").write("dst/old", "x");
    let spec = [
        transfer("file://@DIR@/a", "symlink://@DIR@/dst/l1"),
        transfer("symlink://@DIR@/a", "symlink://@DIR@/dst/old"),
        transfer("a", "symlink://dst/relative"),
    ];
    for _ in 0..2 {
        case.run(&list(&spec), &[]).expect_ok();
    }
    for name in ["l1", "old", "relative"] {
        assert_eq!(
            fs::read_link(case.path("dst").join(name)).expect(name),
            case.path("a")
        );
        assert_eq!(case.read(&format!("dst/{name}")), "1");
    }
    case.run(&list(&[transfer("a", "dst/option")]), &["--symlink"])
        .expect_ok();
    assert_eq!(
        fs::read_link(case.path("dst/option")).expect("link"),
        case.path("a")
    );
    case.run(&list(&[remove("symlink://@DIR@/dst/l1", "True")]), &[])
        .expect_ok();
    assert_eq!(case.names("dst"), ["old", "option", "relative"]);
    assert_eq!(case.read("a"), "1");
}

#[test]
fn dangling_links_need_an_option() {
    let case = Case::new();
    let spec = list(&[transfer("none", "symlink://@DIR@/l")]);
    case.run(&spec, &[])
        .expect_failed("Symlink source (none) does not exist");
    assert!(fs::symlink_metadata(case.path("l")).is_err());
    let unverified = with_option(&spec, "verify_symlink_source", false);
    case.run(&unverified, &[]).expect_ok();
    assert_eq!(fs::read_link(case.path("l")).expect("link"), case.path("none"));
}

/// Without `/proc`, an unnamed temporary file cannot be linked to its name, so a named one is used.
#[test]
fn files_are_copied_without_proc() {
    let case = Case::new();
    case.write("a", "new").write("tree/b", "2").write("old", "old");
    case.set_mode("a", 0o741);
    let in_namespace = |script: &str| {
        let mut command = std::process::Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--mount", "sh", "-c"])
            .arg(format!("mount -t tmpfs none /proc && {script}"))
            .current_dir(case.dir())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        command
    };
    if !in_namespace("true").status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no user namespaces");
        return;
    }
    let spec = [
        transfer("a", "made/new"),
        transfer("a", "old"),
        transfer("tree", "copied"),
        transfer("a", "symlink://@DIR@/link"),
    ];
    let spec = list(&spec).replace("\"linkage\"", "\"generate_checksum\": true, \"linkage\"");
    let program = testutils::programs::path("pegasus-transfer");
    case.start(in_namespace(program), &spec).expect_ok();
    assert_eq!(case.names(""), ["a", "copied", "link", "made", "old", "tree"]);
    assert_eq!(case.names("made"), ["new"]);
    for name in ["made/new", "old"] {
        assert_eq!(case.read(name), "new");
        assert_eq!(case.mode(name), 0o741, "{name}");
    }
    assert_eq!(case.read("copied/b"), "2");
    assert_eq!(fs::read_link(case.path("link")).expect("link"), case.path("a"));
}

/// A rename between file systems fails.
#[test]
fn files_are_moved_to_another_file_system() {
    let case = Case::new();
    let Ok(other) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("SKIPPED: no /dev/shm");
        return;
    };
    let device = |path: &std::path::Path| fs::metadata(path).expect("metadata").dev();
    if device(other.path()) == device(case.dir()) {
        eprintln!("SKIPPED: /dev/shm is the same file system");
        return;
    }
    case.write("a", "1").write("tree/b", "2");
    symlink("b", case.path("tree/l")).expect("link");
    case.set_mode("a", 0o750);
    let other_dir = other.path().display();
    case.run(
        &list(&[
            transfer("a", &format!("moveto://{other_dir}/new/a")),
            transfer("tree", &format!("moveto://{other_dir}/tree")),
        ]),
        &[],
    )
    .expect_ok();
    let path = other.path().join("new/a");
    assert_eq!(fs::read_to_string(&path).expect("read"), "1");
    assert_eq!(
        fs::metadata(&path).expect("metadata").permissions().mode() & 0o777,
        0o750
    );
    assert_eq!(
        fs::read_to_string(other.path().join("tree/b")).expect("read"),
        "2"
    );
    assert_eq!(case.names(""), Vec::<String>::new());
    assert_eq!(fs::read_dir(other.path()).expect("directory").count(), 2);
}

#[test]
fn files_and_directories_are_moved() {
    let case = Case::new();
    case.write("a", "1").write("tree/b", "2");
    case.run(
        &list(&[
            transfer("a", "moveto://@DIR@/new/a"),
            transfer("tree", "moveto:moved"),
        ]),
        &[],
    )
    .expect_ok();
    assert_eq!(
        (case.read("new/a").as_str(), case.read("moved/b").as_str()),
        ("1", "2")
    );
    assert_eq!(case.names(""), ["moved", "new"]);
    case.run(&list(&[transfer("a", "moveto:b")]), &[])
        .expect_failed("Expected local file does not exist: a");
}

#[test]
fn devices_are_not_replaced() {
    let case = Case::new();
    case.write("a", "1");
    case.run(&list(&[transfer("a", "/dev/null")]), &[]).expect_ok();
    assert!(!fs::metadata("/dev/null").expect("metadata").is_file());
    case.run(&list(&[transfer("/dev/null", "b")]), &[])
        .expect_failed("/dev/null is neither a file nor a directory");
    assert_eq!(case.names(""), ["a"]);
}

#[test]
fn environment_variables_in_urls_are_expanded() {
    let case = Case::new();
    case.write("data/a", "1");
    let mut command = case.command();
    command.env("MY_DATA", case.path("data"));
    case.start(command, &list(&[transfer("$MY_DATA/a", "file://${MY_DATA}/b$")]))
        .expect_ok();
    assert_eq!(case.read("data/b$"), "1");
}

/// Names with special meanings for shells, URLs or logs.
#[test]
fn special_characters_in_names_are_kept() {
    let case = Case::new();
    let long = "x".repeat(255);
    let names = [
        "it's",
        "a \"b\"",
        "-rf",
        "$(touch hacked)",
        "`touch hacked`",
        ";touch hacked;",
        "a\nb",
        "a\tb",
        "%41",
        "a#b?c",
        "*",
        "~",
        "\\",
        "é€",
        "..a",
        "a|b>c",
        long.as_str(),
    ];
    let mut spec = Vec::new();
    for name in names {
        case.write(&format!("src/{name}"), name);
        spec.push(transfer(
            &format!("file://@DIR@/src/{name}"),
            &format!("file://@DIR@/dst/{name}"),
        ));
    }
    case.run(&list(&spec), &[]).expect_ok();
    let mut expected: Vec<_> = names.iter().map(ToString::to_string).collect();
    expected.sort();
    assert_eq!(case.names("dst"), expected);
    for name in names {
        assert_eq!(case.read(&format!("dst/{name}")), name);
    }
    let removals: Vec<_> = names
        .iter()
        .map(|name| remove(&format!("file://@DIR@/dst/{name}"), "True"))
        .collect();
    case.run(&list(&removals), &[]).expect_ok();
    assert_eq!(case.names("dst"), [""; 0]);
    assert_eq!(case.names(""), ["dst", "src"]);
}

#[test]
fn names_need_not_be_utf8() {
    let case = Case::new();
    let name = std::ffi::OsStr::from_bytes(b"caf\xe9");
    fs::write(case.dir().join(name), "1").expect("write");
    let mut spec =
        b"[{\"type\":\"transfer\",\"src_urls\":[{\"site_label\":\"l\",\"url\":\"caf\xe9\"}],".to_vec();
    spec.extend(b"\"dest_urls\":[{\"site_label\":\"l\",\"url\":\"d/\xff\"}]}]");
    fs::write(case.path("in"), spec).expect("write");
    case.run("", &["-f", "in"]).expect_ok();
    assert!(case.path("d").join(std::ffi::OsStr::from_bytes(b"\xff")).exists());
}

#[test]
fn too_long_names_are_reported() {
    let case = Case::new();
    case.write("a", "1");
    let deep = format!("{}/{}", case.dir().display(), "d/".repeat(3000));
    for name in ["x".repeat(256), "x".repeat(4096), deep] {
        case.run(&list(&[transfer("a", &name)]), &[])
            .expect_failed("File name too long");
        case.run(&list(&[transfer(&name, "b")]), &[])
            .expect_failed("File name too long");
    }
    assert_eq!(case.names(""), ["a"]);
    // The longest possible path.
    let mut path = case.dir().to_str().expect("UTF-8").to_owned();
    while path.len() < 4095 - 200 {
        path.push_str("/directory");
    }
    path.push('/');
    path.push_str(&"f".repeat(4095 - path.len()));
    case.run(&list(&[transfer("a", &path)]), &[]).expect_ok();
    assert_eq!(fs::read_to_string(&path).expect("read"), "1");
}

#[test]
fn dots_in_paths_are_resolved_but_not_removed() {
    let case = Case::new();
    case.write("a/b/f", "1");
    case.run(&list(&[transfer("a/b/../b/f", "a/./b/../g")]), &[])
        .expect_ok();
    assert_eq!(case.read("a/g"), "1");
    for path in ["a/..", "..", "/", "a/b/."] {
        case.run(&list(&[remove(path, "True")]), &[])
            .expect_failed("refusing to remove");
    }
    assert_eq!(case.names("a"), ["b", "g"]);
}

#[test]
fn many_files_are_copied_in_parallel() {
    let case = Case::new();
    let spec: Vec<_> = (0..500)
        .map(|i| {
            case.write(&format!("src/{i}"), format!("content {i}"));
            transfer(&format!("src/{i}"), &format!("dst/{}/{i}", i % 7))
        })
        .collect();
    let run = case.run(&list(&spec), &["-n", "16"]);
    run.expect_ok();
    assert!(
        run.stderr.contains("Stats: Total 500 transfers"),
        "{}",
        run.stderr
    );
    for i in 0..500 {
        assert_eq!(case.read(&format!("dst/{}/{i}", i % 7)), format!("content {i}"));
    }
}

#[test]
fn concurrent_copies_to_one_file_do_not_mix() {
    let case = Case::new();
    let contents = ["a", "b"].map(|c| c.repeat(3_000_000));
    case.write("a", &contents[0]).write("b", &contents[1]);
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let case = &case;
            scope.spawn(move || {
                for _ in 0..10 {
                    case.run(&list(&[transfer(name, "dst/f")]), &[]).expect_ok();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..200 {
                if let Ok(text) = fs::read_to_string(case.path("dst/f")) {
                    assert!(contents.contains(&text), "a mixture of {} bytes", text.len());
                }
            }
        });
    });
    assert_eq!(case.names("dst"), ["f"]);
}

#[test]
fn a_fifo_is_no_destination() {
    let case = Case::new();
    case.write("a", "text");
    nix::unistd::mkfifo(&case.path("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let start = std::time::Instant::now();
    case.run(&list(&[transfer("a", "fifo")]), &["-m", "1"])
        .expect_failed("is neither a file nor a directory");
    assert!(start.elapsed() < std::time::Duration::from_secs(20));
}

/// What is written must not go where another user leads.
#[test]
fn links_of_another_user_are_no_destinations() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: links_of_another_user_are_no_destinations needs root");
        return;
    }
    let case = Case::new();
    case.write("a", "text");
    case.write("mine/precious", "precious");
    for (link, target) in [("link", "mine/precious"), ("folder", "mine")] {
        let link = case.path(link);
        std::os::unix::fs::symlink(case.path(target), &link).expect("a link");
        std::os::unix::fs::lchown(&link, Some(65_534), None).expect("another owner");
    }
    for destination in [
        "link",
        "folder/precious",
        "folder/new",
        "folder/deep/new",
        "moveto:folder/new",
    ] {
        case.run(&list(&[transfer("a", destination)]), &["-m", "1"])
            .expect_failed("a link of another user");
        assert_eq!(case.names("mine"), ["precious"], "{destination}");
        assert_eq!(case.read("mine/precious"), "precious", "{destination}");
    }
}
