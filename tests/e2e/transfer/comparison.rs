//! Compares files, exit codes and statistics with those of `pegasus-transfer` of Pegasus.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use serde_json::{Value, json};

use super::{mkdir, transfer, tree, with, write, write_secret};
use crate::support::command::{Program, Running};
use crate::support::programs::{Build, venv_bin};

/// Makes the path of a URL absolute. Pegasus cannot write to a plain name, and links to one would dangle.
fn absolute(url: &str) -> String {
    match url.split_once(':') {
        Some((scheme, path)) if ["symlink", "moveto"].contains(&scheme) => {
            format!("{scheme}://$PWD/{}", path.trim_start_matches('/'))
        }
        None if !url.starts_with('$') => format!("$PWD/{url}"),
        _ => url.to_owned(),
    }
}

/// Creates the files that every case starts with.
fn create_files(directory: &Path) {
    let path = |name: &str| directory.join(name);
    write(path("a"), "hello");
    write(path("b"), "b".repeat(300));
    write(path("empty"), "");
    for name in ["a b", "a%20b", "é", "a\"b", "#a"] {
        write(path(name), name);
    }
    write(path("run"), "#!/bin/sh\n");
    fs::set_permissions(path("run"), fs::Permissions::from_mode(0o755)).expect("chmod");
    fs::create_dir_all(path("dir/sub")).expect("mkdir");
    // Pegasus creates this directory even if no file is written to it.
    fs::create_dir(path("dst")).expect("mkdir");
    write(path("dir/sub/x"), "x");
    write(path("old"), "old");
    write_secret(&path("locked"), "locked");
    fs::create_dir(path("closed")).expect("mkdir");
    for name in ["locked", "closed"] {
        fs::set_permissions(path(name), fs::Permissions::from_mode(0o000)).expect("chmod");
    }
    symlink("a", path("link")).expect("link");
    symlink("nothing", path("dangling")).expect("link");
    symlink("dir", path("dirlink")).expect("link");
    let sum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let meta = json!([{"_id": "f.lfn", "_type": "file", "_attributes": {"checksum.value": sum, "checksum.type": "sha256"}}]);
    write(path("known.meta"), meta.to_string());
}

/// A case: its name, whether both statistics count the same transfers, arguments, and the specification.
struct Case(&'static str, bool, &'static [&'static str], String);

#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn cases() -> Vec<Case> {
    let transfer = |source: &str, destination: &str| transfer(&absolute(source), &absolute(destination));
    let mkdir = |url: &str| mkdir(&absolute(url));
    fn remove(url: &str, recursive: impl Into<Value>) -> Value {
        super::remove(&absolute(url), recursive)
    }
    let text = |entries: &[Value]| Value::from(entries.to_vec()).to_string();
    let one = |name, entry: Value| Case(name, true, &[], text(&[entry]));
    let two_sources = |first: &str, second: &str| {
        let mut entry = transfer(first, "dst/x");
        entry["src_urls"][0]["priority"] = 9.into();
        entry["src_urls"]
            .as_array_mut()
            .expect("a list")
            .push(json!({"site_label": "other-1", "url": absolute(second), "priority": 1}));
        entry
    };
    let many = [
        transfer("a", "dst/1"),
        transfer("file://b", "dst/deep/er/2"),
        transfer("link", "dst/3"),
        transfer("a b", "dst/a b"),
        transfer("a%20b", "dst/a%20b"),
        transfer("é", "dst/é"),
        transfer("run", "dst/run"),
        transfer("empty", "old"),
    ];
    let some_fail = [
        transfer("a", "dst/1"),
        transfer("missing", "dst/2"),
        transfer("b", "dst/3"),
        with(transfer("b", "dst/4"), "verify_checksum_remote", true),
        with(transfer("a", "dst/5"), "verify_checksum_remote", true),
    ];
    vec![
        Case("many good ones", true, &[], text(&many)),
        Case("some fail", true, &[], text(&some_fail)),
        Case("bad JSON", true, &[], "[{\"type\": ".to_owned()),
        Case("nothing to do", true, &[], "[]".to_owned()),
        one("one", transfer("a", "b2")),
        one("localhost", transfer("file://localhost$PWD/a", "file:$PWD/x")),
        one("a variable", transfer("$NOT_SET_ANYWHERE/a", "x")),
        one("overwrite", transfer("a", "old")),
        one("onto itself", transfer("a", "./a")),
        one("onto itself by a link", transfer("link", "a")),
        one("mode", transfer("run", "dst/run")),
        one("empty", transfer("empty", "dst/empty")),
        one("quotation mark", transfer("a\"b", "dst/a\"b")),
        one("number sign", transfer("#a", "dst/#a")),
        one("through a link", transfer("b", "link")),
        one("into a directory", transfer("b", "dir")),
        one("into a directory by a link", transfer("b", "dirlink/y")),
        one("missing", transfer("missing", "dst/x")),
        one("dangling source", transfer("dangling", "dst/x")),
        one("second source", two_sources("missing", "b")),
        one("first source", two_sources("a", "b")),
        one("no source", two_sources("missing", "missing2")),
        one("link", transfer("a", "symlink://dst/l")),
        // Pegasus does not count links, or transfers for which it has no handler.
        Case(
            "link to link",
            false,
            &[],
            text(&[transfer("symlink://a", "symlink://dst/l")]),
        ),
        one("link to nothing", transfer("missing", "symlink://dst/l")),
        one(
            "link to nothing, unchecked",
            with(
                transfer("missing", "symlink://dst/l"),
                "verify_symlink_source",
                false,
            ),
        ),
        Case(
            "links instead of copies",
            true,
            &["--symlink"],
            text(&[transfer("a", "dst/l")]),
        ),
        Case("link over a file", true, &["-s"], text(&[transfer("a", "old")])),
        Case(
            "duplicates",
            true,
            &[],
            text(&[transfer("a", "dst/x"), transfer("a", "dst/x")]),
        ),
        one("make a directory", mkdir("new/er")),
        one("make one that exists", mkdir("dir")),
        one("make one where a file is", mkdir("a")),
        one("remove", remove("a", false)),
        one("remove what is missing", remove("missing", false)),
        one("remove a directory", remove("dir", false)),
        one("remove a directory with all in it", remove("dir", "True")),
        one("remove a link", remove("dirlink", true)),
        one("remove a dangling link", remove("symlink://dangling", false)),
        Case(
            "several removals",
            true,
            &[],
            text(&[remove("a", false), remove("b", "no"), remove("é", "f")]),
        ),
        Case(
            "unknown protocol",
            false,
            &[],
            text(&[transfer("foo://h/x", "x")]),
        ),
        one("unreadable source", transfer("locked", "dst/x")),
        one("unreadable destination", transfer("a", "closed/x")),
        Case(
            "one of three cannot be read",
            true,
            &[],
            text(&[
                transfer("a", "dst/1"),
                transfer("locked", "dst/2"),
                transfer("b", "dst/3"),
            ]),
        ),
        one("no such type", json!({"type": "link"})),
        one("no label", json!({"type": "mkdir", "target": {"url": "x"}})),
        one(
            "checksum",
            with(transfer("a", "dst/x"), "generate_checksum", true),
        ),
        Case("not an option", true, &["--no-such-option"], "[]".to_owned()),
        Case(
            "older form",
            true,
            &[],
            "# src 1 site-a\nfile://a\n# dst 1 b\nfile://dst/x\n# src 2 a\nfile://b\n# dst 2 b\ndst/y\n"
                .to_owned(),
        ),
    ]
}

struct Outcome {
    code: i32,
    tree: Vec<String>,
    /// Number of transfers in the statistics.
    counted: Option<String>,
    details: String,
}

fn start(program: &Path, case: &Case, directory: &Path) -> Running {
    fs::create_dir(directory).expect("mkdir");
    create_files(directory);
    let list = directory.with_extension("in");
    write(&list, case.3.replace("$PWD", &directory.display().to_string()));
    // Root ignores permissions unless it drops these capabilities.
    let run = match nix::unistd::geteuid().is_root() {
        true => Program::from_line("setpriv --bounding-set -dac_override,-dac_read_search").arg(program),
        false => Program::new(program),
    };
    run.args(["--max-attempts", "1", "--file"])
        .arg(list)
        .args(case.2)
        .in_directory(directory)
        .start()
}

fn end(running: Running, directory: &Path) -> Outcome {
    let result = running.wait();
    let text = format!("{}{}", result.stdout, result.stderr);
    let counted = text.lines().find_map(|line| {
        Some(
            line.split_once("Stats: Total ")?
                .1
                .split_once(" transfers,")?
                .0
                .to_owned(),
        )
    });
    Outcome {
        code: result.code(),
        tree: tree(directory),
        counted,
        details: result.details(),
    }
}

#[test]
#[ignore = "needs Pegasus: tests/run e2e"]
fn files_and_exit_codes_equal_those_of_pegasus() {
    let ours = Build::Local.program("pegasus-transfer");
    let theirs = venv_bin().join("pegasus-transfer");
    let top = tempfile::tempdir().expect("directory");
    let cases = cases();
    assert!(cases.len() > 40, "{} cases", cases.len());
    let mut wrong = Vec::new();
    // The transfer program of Pegasus mostly sleeps, so several run at once.
    for (number, chunk) in cases.chunks(12).enumerate() {
        let running: Vec<_> = chunk
            .iter()
            .enumerate()
            .map(|(index, case)| {
                let directory = top.path().join(format!("theirs{number}-{index}"));
                (start(&theirs, case, &directory), directory)
            })
            .collect();
        for (index, (case, (their_run, their_directory))) in chunk.iter().zip(running).enumerate() {
            let directory = top.path().join(format!("ours{number}-{index}"));
            let mine = end(start(&ours, case, &directory), &directory);
            let their = end(their_run, &their_directory);
            // Exit codes above 1 report wrong options.
            let same = mine.tree == their.tree
                && mine.code == their.code.min(1)
                && (mine.counted == their.counted) == case.1;
            if !same {
                let missing: Vec<_> = their
                    .tree
                    .iter()
                    .filter(|line| !mine.tree.contains(line))
                    .collect();
                let extra: Vec<_> = mine
                    .tree
                    .iter()
                    .filter(|line| !their.tree.contains(line))
                    .collect();
                wrong.push(format!(
                    "{}: ours {} {:?}, theirs {} {:?}\n  only theirs {missing:?}\n  only ours {extra:?}\n{}\n{}",
                    case.0, mine.code, mine.counted, their.code, their.counted, mine.details, their.details
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n\n")
    );
}
