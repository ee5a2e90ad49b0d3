//! Failures: bad input, missing files, retries and their messages.

use std::time::{Duration, Instant};

use super::common::{Case, HELLO_SHA256, list, mkdir, remove, transfer, with_option};

#[test]
fn invalid_specifications_are_reported_before_any_transfer() {
    let case = Case::new();
    case.write("a", "1");
    let valid = transfer("a", "b");
    for (spec, message) in [
        (
            format!("[{valid},"),
            "CRITICAL:  stdin: line 3, column 60: EOF while parsing a value",
        ),
        (
            String::new(),
            "CRITICAL:  stdin: line 1, column 0: EOF while parsing a value",
        ),
        ("{}".to_owned(), "expected a sequence"),
        (
            format!("[{valid}, {{\"type\":\"link\"}}]"),
            "CRITICAL:  stdin: entry 2: Unknown JSON entry: type 'link'",
        ),
        (format!("[{valid}] x"), "trailing characters"),
        (
            format!("[{valid}, {}]", mkdir("a:b")),
            "CRITICAL:  stdin: entry 2: 'a:b' is not a URL",
        ),
        (
            format!("[{valid}, {}]", remove("x", "maybe")),
            "is not true or false",
        ),
        (
            "# src 1 a\nfile:///x\n".to_owned(),
            "CRITICAL:  stdin: line 3: the last source has no destination",
        ),
        (
            format!("[{{\"k\":{}", "[".repeat(100_000)),
            "EOF while parsing a list",
        ),
    ] {
        let run = case.run(&spec, &[]);
        run.expect_failed(message);
        assert_eq!(run.lines("CRITICAL").len(), 1, "{}", run.stderr);
    }
    assert_eq!(case.names(""), ["a"]);
}

#[test]
fn invalid_options_are_refused() {
    let case = Case::new();
    for args in [
        &["--threads", "-1"][..],
        &["-m", "0"],
        &["--no-such"],
        &["--retry-wait", "nan"],
    ] {
        assert_eq!(case.run("[]", args).code, Some(1), "{args:?}");
    }
    let mut command = case.command();
    command.env("PEGASUS_TRANSFER_THREADS", "many");
    case.start(command, "[]")
        .expect_failed("PEGASUS_TRANSFER_THREADS is 'many'");
    assert_eq!(case.run("", &["--help"]).code, Some(0));
}

#[test]
fn missing_files_fail_at_once_and_others_are_copied() {
    let case = Case::new();
    case.write("a", "1");
    let start = Instant::now();
    let run = case.run(
        &list(&[
            transfer("none", "x"),
            transfer("a", "b"),
            transfer("also none", "y"),
        ]),
        &[],
    );
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "permanent failures are not retried"
    );
    run.expect_failed("Some transfers failed! See above, and possibly stderr.");
    assert_eq!(case.read("b"), "1");
    let failed: Vec<_> = run
        .lines("ERROR")
        .into_iter()
        .filter(|line| line.starts_with("Failed"))
        .collect();
    assert_eq!(
        failed,
        [
            "Failed after 1 attempt: file://none -> file://x: Expected local file does not exist: none",
            "Failed after 1 attempt: file://also none -> file://y: Expected local file does not exist: also none",
        ]
    );
    assert_eq!(case.names(""), ["a", "b"]);
    assert_eq!(run.stdout, "");
}

#[test]
fn sources_are_used_by_priority() {
    let case = Case::new();
    case.write("good", "1").write("worse", "2");
    let spec = r#"[{"type":"transfer","lfn":"f","src_urls":[
        {"site_label":"c","url":"worse","priority":5},
        {"site_label":"web","url":"http://127.0.0.1:1/f","priority":100},
        {"site_label":"a","url":"none","priority":90},
        {"site_label":"b","url":"good","priority":10}],
        "dest_urls":[{"site_label":"z","url":"f"}]}]"#;
    let run = case.run(spec, &["-m", "1"]);
    run.expect_ok();
    assert_eq!(case.read("f"), "1");
    assert!(
        run.stderr
            .contains("none -> file://f: Expected local file does not exist"),
        "{}",
        run.stderr
    );
    case.write("f", "");
    let run = case.run(
        &spec
            .replace("\"good\"", "\"no\"")
            .replace("\"worse\"", "\"neither\""),
        &["-m", "1"],
    );
    run.expect_failed("Failed after 4 attempts: ");
}

#[test]
fn unsupported_protocols_are_reported() {
    let case = Case::new();
    case.write("a", "1");
    let run = case.run(
        &list(&[
            transfer("foo://host/x", "b"),
            transfer("a", "foo://host/y"),
            transfer("a", "c"),
        ]),
        &[],
    );
    run.expect_failed("Unable to find handlers for 'foo' to 'file' transfers: foo://host/x");
    run.expect_failed("Unable to find handlers for 'file' to 'foo' transfers: foo://host/y");
    assert_eq!(case.read("c"), "1");
    case.run(&list(&[transfer("hpss:///home/x.tar/f", "f")]), &[])
        .expect_failed("(run htar or hsi in a job of the workflow, and transfer what it wrote)");
    case.run(&list(&[mkdir("foo://host/x")]), &[])
        .expect_failed("Unable to find handlers for 'foo': foo://host/x");
    case.run(&list(&[remove("foo://host/x", "no")]), &[])
        .expect_failed("foo://host/x");
}

#[test]
fn conflicts_of_files_and_directories_are_reported() {
    let case = Case::new();
    case.write("a", "1").write("dir/f", "2").write("file", "3");
    case.run(&list(&[remove("dir", "False")]), &[])
        .expect_failed("the removal is not recursive");
    // A clean-up job of a plan does not know what it removes.
    let mut command = case.command();
    command.env("PMC_CLEANUP", "1");
    let kept = case.start(command, &list(&[remove("dir", "False")]));
    assert!(kept.stderr.contains("dir stays"), "{}", kept.stderr);
    assert_eq!(kept.code, Some(0));
    case.run(&list(&[mkdir("file")]), &[])
        .expect_failed("file exists and is not a directory");
    case.run(&list(&[mkdir("file/sub")]), &[])
        .expect_failed("file/sub");
    case.run(&list(&[transfer("a", "file/sub")]), &[])
        .expect_failed("file");
    case.run(&list(&[transfer("dir", "file")]), &[])
        .expect_failed("file exists and is not a directory");
    assert_eq!(
        (case.read("dir/f").as_str(), case.read("file").as_str()),
        ("2", "3")
    );
    assert_eq!(case.names(""), ["a", "dir", "file"]);
}

/// A wrong checksum may come from a damaged copy, so it is retried.
#[test]
fn checksum_mismatches_are_retried_after_a_wait() {
    let case = Case::new();
    case.write("a", "hullo");
    case.write(
        "job.meta",
        format!(r#"[{{"_id":"x","_type":"file","_attributes":{{"checksum.value":"{HELLO_SHA256}"}}}}]"#),
    );
    let spec = with_option(&list(&[transfer("a", "out/b")]), "verify_checksum_remote", true);
    let run = case.run(&spec, &["--retry-wait", "0.1"]);
    run.expect_failed("Failed after 3 attempts: file://a -> file://out/b: checksum of out/b is ");
    assert_eq!(run.stderr.matches("Starting transfers - attempt").count(), 3);
    assert_eq!(run.stderr.matches("Sleeping for").count(), 2);
    assert!(
        run.stderr.contains(r#""failed":3"#) && run.stderr.contains(r#""succeeded":0"#),
        "{}",
        run.stderr
    );
    case.write("a", "hello");
    let run = case.run(&spec, &[]);
    run.expect_ok();
    assert!(
        run.stderr
            .contains(r#""event":"check","failed":0,"file_type":"input","succeeded":1"#),
        "{}",
        run.stderr
    );
    let run = case.run(&spec.replace("\"lfn\": \"x\"", "\"lfn\": \"y\""), &[]);
    run.expect_failed("no checksum in the metadata for y");
}

#[test]
fn corrupted_copies_are_detected() {
    let case = Case::new();
    case.write("a", "hello");
    case.write(
        "job.meta",
        format!(r#"[{{"_id":"x","_type":"file","_attributes":{{"checksum.value":"{HELLO_SHA256}"}}}}]"#),
    );
    let spec = with_option(&list(&[transfer("a", "b")]), "verify_checksum_remote", true);
    let mut command = case.command();
    command
        .env("PEGASUS_TRANSFER_ERROR_RATE", "100")
        .args(["-m", "1"]);
    case.start(command, &spec).expect_failed("checksum of b is ");
}

#[test]
fn credentials_readable_by_others_are_refused() {
    let case = Case::new();
    case.write("credentials", "[h]\npassword = x\n").write("a", "1");
    let run = |mode: u32| {
        case.set_mode("credentials", mode);
        let mut command = case.command();
        command.env("PEGASUS_CREDENTIALS", case.path("credentials"));
        case.start(command, &list(&[transfer("a", "b")]))
    };
    run(0o644).expect_failed("too liberal");
    assert!(!case.path("b").exists());
    run(0o600).expect_ok();
}

#[test]
fn a_full_disk_is_reported() {
    let case = Case::new();
    case.write("a", "1");
    let run = case.run(
        &list(&[transfer("a", "/dev/full")]),
        &["-m", "2", "--retry-wait", "0.01"],
    );
    run.expect_failed("Failed after 2 attempts: file://a -> file:///dev/full: cannot write /dev/full: No space left on device");
}

#[cfg(feature = "remote")]
#[test]
fn the_manual_page_contains_the_help() {
    let help = Case::new().run("", &["--help"]).stdout;
    let page = include_str!("../../../../docs/manual/pegasus-transfer.md");
    assert!(
        page.contains(help.trim_end()),
        "docs/manual/pegasus-transfer.md is stale:\n{help}"
    );
}
