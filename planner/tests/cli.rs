//! Output and exit codes of the program.

use std::process::{Command, Output};

/// Runs pmc-plan in a directory, isolated from the user's settings.
fn pmc_plan(dir: &std::path::Path, arguments: &[&str]) -> Output {
    Command::new(testutils::programs::path("pmc-plan"))
        .args(arguments)
        .current_dir(dir)
        .env("HOME", dir)
        .env_remove("PEGASUS_HOME")
        .output()
        .expect("the program starts")
}

const WORKFLOW: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<adag xmlns="http://pegasus.isi.edu/schema/DAX" version="3.6" name="one">
  <job id="A" name="echo"><argument>hello</argument>
    <uses name="out" link="output" transfer="true" register="false"/>
  </job>
</adag>
"#;

fn inputs() -> std::io::Result<tempfile::TempDir> {
    let dir = tempfile::tempdir()?;
    std::fs::write(dir.path().join("one.dax"), WORKFLOW)?;
    std::fs::write(
        dir.path().join("transformations.yml"),
        "pegasus: \"5.0\"\ntransformations:\n- name: echo\n  sites: [{name: local, type: installed, pfn: /bin/echo}]\n",
    )?;
    Ok(dir)
}

#[test]
fn planning_needs_no_settings() -> std::io::Result<()> {
    let dir = inputs()?;
    let output = pmc_plan(dir.path(), &["--output-dir", "out", "one.dax"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(text.starts_with("Planned one: "), "{text}");
    assert!(text.contains("pegasus/one/run0001/one-0.sbatch"), "{text}");
    let output = pmc_plan(
        dir.path(),
        &["--json", "-q", "--output-dir", "out", "--dax", "one.dax"],
    );
    let object: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(object["rundir"], "run0002");
    assert!(output.stderr.is_empty(), "{output:?}");
    let output = pmc_plan(dir.path(), &["-q", "--output-dir", "out", "one.dax"]);
    assert!(output.status.success() && output.stdout.is_empty());
    Ok(())
}

#[test]
fn diagnostics_are_one_json_object_a_line() -> std::io::Result<()> {
    let dir = inputs()?;
    let parse = |output: &Output| -> Vec<serde_json::Value> {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let parse = |line: &str| serde_json::from_str(line).expect("a line is JSON");
        text.lines().map(parse).collect()
    };
    std::fs::write(
        dir.path().join("two.yml"),
        "pegasus: \"5.0.4\"\nname: two\njobs:\n- {type: job, id: A, name: echo, argument: [x], uses: []}\n\
         - {type: job, id: B, uses: []}\n",
    )?;
    let output = pmc_plan(dir.path(), &["--diagnostics", "json", "two.yml"]);
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(1), 0),
        "{output:?}"
    );
    let problems = parse(&output);
    assert_eq!(problems.len(), 2, "{problems:?}");
    for (problem, line) in problems.iter().zip([4, 5]) {
        let keys: Vec<&String> = problem.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["column", "file", "hint", "line", "message", "severity"]);
        assert_eq!(
            (&problem["severity"], &problem["line"]),
            (&"error".into(), &line.into())
        );
        assert!(
            problem["file"]
                .as_str()
                .is_some_and(|file| file.ends_with("/two.yml"))
        );
    }
    assert!(
        problems[0]["hint"]
            .as_str()
            .is_some_and(|hint| hint.contains("`arguments`"))
    );
    assert!(problems[1]["hint"].is_null());
    Ok(())
}

/// Simulates a disk that accepts data and fails when the data is written back.
const FAIL_FSYNC_OF_DAG: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
int fsync(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    if (length > 4 && !memcmp(path + length - 4, ".dag", 4)) {
        errno = ENOSPC;
        return -1;
    }
    return 0;
}
"#;

#[test]
fn a_failing_fsync_fails_the_plan() -> std::io::Result<()> {
    let dir = inputs()?;
    let (source, library) = (dir.path().join("refuse.c"), dir.path().join("refuse.so"));
    std::fs::write(&source, FAIL_FSYNC_OF_DAG)?;
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(source);
    assert!(compiler.status()?.success());
    let before = std::fs::read_dir(dir.path())?.count();
    let output = Command::new(testutils::programs::path("pmc-plan"))
        .args(["--output-dir", "out", "one.dax"])
        .current_dir(dir.path())
        .env("HOME", dir.path())
        .env_remove("PEGASUS_HOME")
        .env("LD_PRELOAD", &library)
        .output()?;
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    assert!(
        printed.contains("one-0.dag: No space left on device") && printed.lines().count() == 1,
        "{printed}"
    );
    assert_eq!(std::fs::read_dir(dir.path())?.count(), before, "no files remain");
    Ok(())
}

#[test]
fn exit_codes_distinguish_kinds_of_errors() -> std::io::Result<()> {
    let dir = inputs()?;
    std::fs::write(dir.path().join("broken.dax"), &WORKFLOW[..200])?;
    std::fs::write(dir.path().join("sites.yml"), "sites: []")?;
    for (arguments, code, word) in [
        (&["broken.dax"][..], 2, "broken.dax"),
        (&["missing.yml"], 1, "missing.yml"),
        (&["--output-sites", "moon", "one.dax"], 1, "moon"),
        (&["--frobnicate"], 1, "--frobnicate"),
        (&["-V"], 0, ""),
        (&["--help"], 0, ""),
    ] {
        let output = pmc_plan(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains(word), "{arguments:?}: {message}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path())?.collect::<Result<_, _>>()?;
    assert_eq!(left.len(), 4, "failed plans leave no files: {left:?}");
    Ok(())
}

/// Colleagues may read a submit directory, but no password in it.
#[test]
fn secrets_are_for_their_owner_only() -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let inputs = inputs()?;
    let secret = "-Dpegasus.catalog.replica.db.password=opensesame";
    for (define, mode) in [(secret, 0o600), ("-Dpegasus.catalog.replica.db.user=ali", 0o644)] {
        let output = pmc_plan(
            inputs.path(),
            &[
                define,
                "--sites",
                "local",
                "--dir",
                "runs",
                "--relative-dir",
                "r",
                "--force",
                "one.dax",
            ],
        );
        assert!(output.status.success(), "{output:?}");
        let dir = inputs.path().join("runs/r");
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            if !entry.file_type()?.is_file() {
                continue;
            }
            let is_properties = entry.file_name() == "pegasus.1.properties";
            let text = std::fs::read(entry.path())?;
            let has_secret = text.windows(10).any(|part| part == b"opensesame");
            assert_eq!(has_secret, is_properties && define == secret, "{entry:?}");
            if is_properties {
                assert_eq!(entry.metadata()?.permissions().mode() & 0o777, mode, "{define}");
            }
        }
        std::fs::remove_dir_all(inputs.path().join("runs"))?;
    }
    Ok(())
}

/// Secrets in the environment of jobs, in URLs and in catalogs are in no file that others can read.
#[test]
fn secrets_of_jobs_and_urls_are_for_their_owner_only() -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir()?;
    let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text);
    put(
        "one.yml",
        "pegasus: \"5.0\"\nname: one\njobs:\n- {type: job, id: A, name: first, arguments: [x], uses: [{lfn: in, \
         type: input}, {lfn: out, type: output}], profiles: {env: {DB_PASSWORD: open sesame, PLAIN: '1'}}}\n",
    )?;
    put(
        "transformations.yml",
        "pegasus: \"5.0\"\ntransformations:\n- name: first\n  profiles: {env: {API_KEY: sesame-two}}\n  sites: [{name: \
         local, type: installed, pfn: /bin/true}]\n",
    )?;
    put(
        "replicas.yml",
        "pegasus: \"5.0\"\nreplicas:\n- {lfn: in, pfns: [{pfn: \"https://me:sesame3@host/in\", site: web}]}\n",
    )?;
    for extra in [&[][..], &["-Dpegasus.code.generator=shell"]] {
        let line = [
            "--sites",
            "local",
            "--output-sites",
            "local",
            "--dir",
            "runs",
            "--relative-dir",
            "r",
        ];
        let output = pmc_plan(dir.path(), &[extra, &line, &["--force", "one.yml"]].concat());
        assert!(output.status.success(), "{output:?}");
        let mut private = Vec::new();
        for entry in walkdir::WalkDir::new(dir.path().join("runs/r")) {
            let entry = entry?;
            if !entry.file_type().is_file() {
                continue;
            }
            let text = std::fs::read(entry.path())?;
            if text.windows(6).any(|part| part == b"sesame") {
                let mode = entry.metadata()?.permissions().mode() & 0o777;
                assert_eq!(mode, 0o600, "{}", entry.path().display());
                private.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        private.sort();
        let list = "stage_in_local_local_0_0.in";
        assert_eq!(
            private,
            [
                "one-0-0.secrets",
                "one.yml",
                "replicas.yml",
                list,
                "transformations.yml"
            ]
        );
        if extra.is_empty() {
            let dag = std::fs::read_to_string(dir.path().join("runs/r/one-0.dag"))?;
            let words = format!(
                "/usr/bin/env PLAIN=1 /bin/sh {}",
                dir.path().join("runs/r/one-0-0.secrets").display()
            );
            assert!(dag.contains(&words), "{dag}");
        }
        std::fs::remove_dir_all(dir.path().join("runs"))?;
    }
    Ok(())
}
