//! Invocations in a child process and in this process give the same files, log and exit code.
//!
//! This is one test, as it changes the working directory of this process.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pegasus_transfer::cancel::Cancel;
use pegasus_transfer::inproc::{Invocation, Outcome, Stdin, run};

/// Creates the files that each case starts with.
fn fixture(dir: &Path) {
    let write = |name: &str, content: &[u8]| fs::write(dir.join(name), content).expect(name);
    fs::create_dir_all(dir.join("dir/sub")).expect("mkdir");
    fs::create_dir(dir.join("multi")).expect("mkdir");
    write("a", b"hello");
    write("exe", b"#!/bin/sh\n");
    write("empty", b"");
    write("dir/x", b"x");
    write("dir/sub/y", b"yy");
    write("it's \"a\" $(name)\n", b"strange");
    write("integrity", b"    before:\n");
    write(
        "job.meta",
        br#"[{"_id":"good","_attributes":{"checksum.value":"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}},
            {"_id":"bad","_attributes":{"checksum.value":"00"}}]"#,
    );
    fs::set_permissions(dir.join("exe"), fs::Permissions::from_mode(0o750)).expect("chmod");
    let big = File::create(dir.join("big")).expect("create");
    big.set_len(3 << 20).expect("sparse");
    (&big).write_all(&[7; 100_000]).expect("write");
    fs::hard_link(dir.join("a"), dir.join("hard")).expect("link");
    symlink("a", dir.join("link")).expect("link");
    symlink("nothing", dir.join("dangling")).expect("link");
    nix::unistd::mkfifo(&dir.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("pipe");
}

struct Case {
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    specification: String,
    handled: bool,
}

fn case(specification: &str) -> Case {
    Case {
        arguments: &["-n", "1", "-m", "2", "--retry-wait", "0"],
        environment: &[],
        specification: specification.to_owned(),
        handled: true,
    }
}

fn case_with(arguments: &'static [&'static str], specification: &str) -> Case {
    Case {
        arguments,
        ..case(specification)
    }
}

fn unhandled(arguments: &'static [&'static str], specification: &str) -> Case {
    Case {
        handled: false,
        ..case_with(arguments, specification)
    }
}

fn transfer(source: &str, destination: &str, more: &str) -> String {
    let url = |url: &str| serde_json::Value::from(url).to_string();
    format!(
        r#"{{"type":"transfer","lfn":"x",{more}"src_urls":[{{"site_label":"s-1","url":{},"priority":1}}],
            "dest_urls":[{{"site_label":"d","url":{}}}]}}"#,
        url(source),
        url(destination)
    )
}

fn target(kind: &str, url: &str, recursive: &str) -> String {
    format!(r#"{{"type":"{kind}","target":{{"site_label":"l","url":"{url}","recursive":"{recursive}"}}}}"#)
}

fn list(entries: &[String]) -> String {
    format!("[{}]", entries.join(","))
}

fn copy(source: &str, destination: &str) -> Case {
    case(&list(&[transfer(source, destination, "")]))
}

fn copies() -> Vec<Case> {
    vec![
        copy("a", "b"),
        copy("@DIR@/a", "file://@DIR@/deep/er/b"),
        copy("exe", "hard"),
        copy("link", "dangling"),
        copy("a", "link"),
        copy("a", "hard"),
        copy("a", "dir"),
        copy("dir", "new"),
        copy("dir", "dir/sub"),
        copy("dir", "a"),
        copy("big", "out/big"),
        copy("empty", "out/empty"),
        copy("none", "b"),
        copy("pipe", "b"),
        copy("a", "a/b"),
        copy("a", "/dev/full"),
        copy("it's \"a\" $(name)\n", "out/-rf\n'"),
        copy("a", &"x".repeat(4096)),
        copy("a", "symlink://@DIR@/l"),
        copy("none", "symlink:l"),
        copy("exe", "moveto:moved"),
        copy("$DATA/x", "${DATA}/z"),
    ]
}

fn checksums() -> Vec<Case> {
    let generate = |source: &str, destination: &str| {
        case(&list(&[transfer(
            source,
            destination,
            r#""generate_checksum":true,"#,
        )]))
    };
    let verify = |lfn: &str| {
        let entry = transfer("a", "out/b", r#""verify_checksum_remote":true,"#);
        case(&list(&[entry]).replace("\"x\"", lfn))
    };
    let with_records = |case: Case| Case {
        environment: &[
            ("KICKSTART_INTEGRITY_DATA", "integrity"),
            ("PEGASUS_MULTIPART_DIR", "multi"),
            ("DATA", "dir"),
        ],
        ..case
    };
    vec![
        with_records(copy("$DATA/x", "${DATA}/z")),
        with_records(generate("a", "b")),
        with_records(generate("big", "symlink:b")),
        generate("a", "b"),
        verify("\"good\""),
        verify("\"bad\""),
        verify("\"unknown\""),
    ]
}

fn specifications() -> Vec<Case> {
    let alternatives = r#"[{"type":"transfer","src_urls":[{"site_label":"s","url":"none","priority":9},
        {"site_label":"t","url":"a","priority":1}],"dest_urls":[{"site_label":"d","url":"b"}]}]"#;
    vec![
        case("[]"),
        case(alternatives),
        case(&list(&[
            target("remove", "dir", "True"),
            target("remove", "none", "no"),
            target("mkdir", "multi/../made/it", "no"),
        ])),
        case(&list(&[target("remove", "dir", "False")])),
        case(&list(&[target("remove", "dir/..", "True")])),
        case(&list(&[target("mkdir", "a", "no")])),
        case(&list(&[transfer("none", "b", ""), target("remove", "a", "no")])),
        case("# src 1 x\nfile:///etc/hostname\n# dst 1 y\nout/h\n"),
    ]
}

fn options() -> Vec<Case> {
    let one = list(&[transfer("a", "b", "")]);
    let many: Vec<_> = (0..40)
        .map(|number| transfer("a", &format!("out/{number}"), ""))
        .collect();
    vec![
        case_with(&["--symlink"], &list(&[transfer("a", "l", "")])),
        case_with(&["-d", "-n", "1", "stray"], &one),
        case_with(&["--threads", "4"], &list(&many)),
        case_with(&["-f", "specification"], &one),
        case_with(&["-f", "specification", "--part", "3:2"], "abc[]"),
    ]
}

fn unhandled_cases() -> Vec<Case> {
    vec![
        unhandled(&["-f", "none"], ""),
        unhandled(&["-f", "specification", "--part", "3:9"], "abc[]"),
        unhandled(&["--threads", "-1"], "[]"),
        unhandled(&["--help"], "[]"),
        unhandled(&["--timeout", "0"], "[]"),
        unhandled(&[], "[1"),
        unhandled(&[], &list(&[transfer("http://127.0.0.1:1/a", "b", "")])),
        unhandled(
            &[],
            &list(&[transfer("a", "b", ""), target("mkdir", "s3://h/b", "no")]),
        ),
        Case {
            environment: &[("PEGASUS_TRANSFER_THREADS", "many")],
            ..unhandled(&[], "[]")
        },
        Case {
            environment: &[("TZ", "Pacific/Chatham")],
            ..unhandled(&[], "[]")
        },
    ]
}

fn cases() -> Vec<Case> {
    [
        copies(),
        checksums(),
        specifications(),
        options(),
        unhandled_cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns names, types, permissions and contents of everything in a directory.
fn tree(dir: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(path) = open.pop() {
        let meta = fs::symlink_metadata(&path).expect("metadata");
        let content = if meta.is_dir() {
            let entries = fs::read_dir(&path).expect("directory");
            open.extend(entries.map(|entry| entry.expect("entry").path()));
            String::new()
        } else if meta.is_symlink() {
            format!("{:?}", fs::read_link(&path).expect("link"))
        } else if meta.is_file() {
            let bytes = fs::read(&path).expect("read");
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(5000)]).into_owned();
            format!("{} {:?}", bytes.len(), without_times(&text))
        } else {
            String::new()
        };
        let name = path.strip_prefix(dir).expect("inside").display().to_string();
        // The name of the record of attempts contains the time.
        let name = if name.ends_with("-transfer") {
            "multi/N-transfer".to_owned()
        } else {
            name
        };
        lines.push(format!("{name:?} {:o} {content}", meta.mode()));
    }
    lines.sort();
    lines
}

/// Removes times, rates and inode numbers from a log or record.
fn without_times(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut line = line;
        let stamp = line.len() > 24 && line.as_bytes()[4] == b'-' && line.as_bytes()[19] == b',';
        if stamp {
            line = &line[23..];
        }
        if let (Some(start), Some(end)) = (line.find("\"event\":\"check\""), line.find("\"ts\":")) {
            line = &line[start..end];
        }
        let cut = [
            "time: ",
            "inode: ",
            "checksum_timing: ",
            "start: ",
            "duration: ",
            "transferred in ",
        ]
        .iter()
        .find_map(|word| Some(line.find(word)? + word.len()));
        lines.push(line[..cut.unwrap_or(line.len())].to_owned());
    }
    // With several threads, the order varies.
    lines.sort();
    lines.join("\n")
}

struct RunResult {
    code: i32,
    log: String,
    tree: Vec<String>,
}

fn run_program(dir: &Path, case: &Case) -> RunResult {
    let mut command = Command::new(testutils::programs::path("pegasus-transfer"));
    command
        .env_clear()
        .envs(case.environment.iter().copied())
        .args(case.arguments)
        .current_dir(dir)
        .stdin(File::open(dir.join("specification")).expect("open"))
        .stdout(Stdio::null());
    if let Some(zone) = std::env::var_os("TZ") {
        command.env("TZ", zone);
    }
    let output = command.output().expect("run");
    RunResult {
        code: output.status.code().expect("not killed"),
        log: without_times(&String::from_utf8_lossy(&output.stderr)),
        tree: tree(dir),
    }
}

fn run_in_process(dir: &Path, case: &Case, from_file: bool) -> (Option<u8>, RunResult) {
    std::env::set_current_dir(dir).expect("chdir");
    let arguments: Vec<OsString> = case.arguments.iter().map(OsString::from).collect();
    let mut environment: Vec<(OsString, OsString)> = case
        .environment
        .iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
    if let Some(zone) = std::env::var_os("TZ") {
        environment.push(("TZ".into(), zone));
    }
    let bytes = fs::read("specification").expect("read");
    let mut file = File::open("specification").expect("open");
    let mut log = Vec::new();
    let outcome = run(Invocation {
        arguments: &arguments,
        environment: &environment,
        stdin: if from_file {
            Stdin::File(&file)
        } else {
            Stdin::Bytes(&bytes)
        },
        stderr: &mut log,
        cancel: Cancel::new(),
    });
    let code = match outcome {
        Outcome::Ended(code) => Some(code),
        Outcome::NotHandled => {
            assert_eq!(file.stream_position().expect("position"), 0);
            None
        }
    };
    let result = RunResult {
        code: code.map_or(-1, i32::from),
        log: without_times(&String::from_utf8_lossy(&log)),
        tree: tree(dir),
    };
    (code, result)
}

#[test]
fn in_process_runs_match_the_program() {
    let root = tempfile::tempdir().expect("directory");
    let cases = cases();
    assert!(cases.len() >= 40);
    for (number, case) in cases.iter().enumerate() {
        // Both runs use the same directory name, so that their messages are the same.
        let dir: PathBuf = root.path().join("case");
        let prepare = || {
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir(&dir).expect("mkdir");
            fixture(&dir);
            let text = case.specification.replace("@DIR@", dir.to_str().expect("UTF-8"));
            fs::write(dir.join("specification"), text).expect("write");
            tree(&dir)
        };
        // Invocations that are not handled may wait for remote hosts, so the program is not run.
        let expected = case.handled.then(|| {
            prepare();
            run_program(&dir, case)
        });
        let before = prepare();
        let (code, found) = run_in_process(&dir, case, number % 2 == 0);
        std::env::set_current_dir("/").expect("chdir");
        let what = format!(
            "{number}: {:?} {}\n{}",
            case.arguments, case.specification, found.log
        );
        assert_eq!(code.is_some(), case.handled, "{what}");
        if let Some(expected) = expected {
            assert_eq!(found.code, expected.code, "{what}");
            assert_eq!(found.log, expected.log, "{what}");
            assert_eq!(found.tree, expected.tree, "{what}");
        } else {
            assert_eq!((found.log.as_str(), found.tree), ("", before), "{what}");
        }
    }
}
