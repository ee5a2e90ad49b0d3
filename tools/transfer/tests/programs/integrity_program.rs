//! The program `pegasus-integrity`.

use std::fs;
use std::process::{Command, Stdio};

use super::common::{Case, HELLO_SHA256};

/// Runs the program and returns its output and exit code.
fn run(case: &Case, args: &[&str], env: &[(&str, &str)], stdin: &str) -> (String, Option<i32>) {
    case.write("stdin", stdin);
    let output = Command::new(testutils::programs::path("pegasus-integrity"))
        .args(args)
        .current_dir(case.dir())
        .env_remove("KICKSTART_INTEGRITY_DATA")
        .env_remove("PEGASUS_MULTIPART_DIR")
        .envs(env.iter().copied())
        .stdin(fs::File::open(case.path("stdin")).expect("open"))
        .stderr(Stdio::null())
        .output()
        .expect("run");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        output.status.code(),
    )
}

#[test]
fn checksums_are_printed() {
    let case = Case::new();
    case.write("a b", "hello").write("c", "");
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(
        run(&case, &["--generate", "a b;;;x=c"], &[], ""),
        (format!("{HELLO_SHA256}  a b\n{empty}  c\n"), Some(0))
    );
    let (text, code) = run(&case, &["--generate-yaml=f=a b"], &[], "");
    assert!(
        text.starts_with(&format!("      sha256: {HELLO_SHA256}\n      checksum_timing: ")),
        "{text}"
    );
    assert!(text.ends_with("\n\n") && code == Some(0));
    for arguments in [
        &["--generate", "none"][..],
        &["--generate", "."],
        &[],
        &["--generate", "c", "--verify", "c"],
    ] {
        assert_eq!(
            run(&case, arguments, &[], ""),
            (String::new(), Some(1)),
            "{arguments:?}"
        );
    }
    assert_eq!(
        run(&case, &["--generate-xmls=c"], &[], ""),
        (String::new(), Some(0))
    );
}

#[test]
fn record_entries_are_appended_or_printed() {
    let case = Case::new();
    case.write("a", "hello").write("data", "    before:\n");
    let (text, _) = run(&case, &["--generate-fullstat-yaml=f.a=a"], &[], "");
    assert!(
        text.starts_with("    \"f.a\":\n      comment: ") && text.ends_with("\n\n"),
        "{text}"
    );
    let env = [("KICKSTART_INTEGRITY_DATA", "data")];
    let result = run(&case, &["--generate-fullstat-yaml=f.a=a;;;a"], &env, "");
    assert_eq!(result, (String::new(), Some(0)));
    let text = case.read("data");
    assert!(text.starts_with("    before:\n    \"f.a\":\n"), "{text}");
    assert!(text.contains("\n    \"a\":\n"), "{text}");
    assert_eq!(text.matches(HELLO_SHA256).count(), 2);
}

#[test]
fn files_are_compared_with_metadata() {
    let case = Case::new();
    case.write("a", "hello")
        .write("b", "hullo")
        .write("c", "")
        .write("multi/.keep", "");
    case.write(
        "job.meta",
        format!(
            r#"[{{"_id":"f.a","_attributes":{{"checksum.value":"{HELLO_SHA256}"}}}},
                {{"_id":"b","_attributes":{{"checksum.value":"00"}}}}]"#
        ),
    );
    assert_eq!(run(&case, &["--verify=f.a=a"], &[], ""), (String::new(), Some(0)));
    let env = [("PEGASUS_MULTIPART_DIR", "multi")];
    let (text, code) = run(
        &case,
        &["--print-timings", "--verify=stdin"],
        &env,
        "f.a=a;;;b;;;f.c=c\n",
    );
    assert_eq!(code, Some(1));
    let lines: Vec<_> = text.lines().collect();
    assert!(
        lines[0].starts_with("Integrity check: checksum of b is "),
        "{text}"
    );
    assert_eq!(
        lines[1..],
        ["Integrity check: no checksum in the metadata for f.c"]
    );
    let names = case.names("multi");
    assert!(names.len() == 2 && names[1].ends_with("-integrity"), "{names:?}");
    let text = case.read(&format!("multi/{}", names[1]));
    let (record, duration) = text.split_once("    duration: ").expect("at the end");
    assert!(duration.trim().parse::<f64>().is_ok());
    assert_eq!(
        record,
        format!(
            "- integrity_verification_attempts:\n  - lfn: \"f.a\"\n    pfn: \"a\"\n    sha256: {HELLO_SHA256}\n    success: True\n  \
             - lfn: \"b\"\n    pfn: \"b\"\n    sha256: {}\n    success: False\n    sha256_expected: \"00\"\n\
             - integrity_summary:\n    succeeded: 1\n    failed: 1\n",
            "7835066a1457504217688c8f5d06909c6591e0ca78c254ccf17450d0d999cab0"
        )
    );
}
