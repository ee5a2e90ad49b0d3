//! The script of the code generator Shell runs the workflow.

#[expect(dead_code, reason = "only a part of the helpers is needed here")]
mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use common::Case;

/// `first` copies `in` to `mid`, whatever its arguments; `second` prints its input and arguments.
const WORKFLOW: &str = r#"pegasus: "5.0"
name: small
jobs:
- type: job
  id: A
  name: first
  arguments: [in, mid]
  uses:
  - {lfn: in, type: input}
  - {lfn: mid, type: output, stageOut: false, registerReplica: false}
- type: job
  id: B
  name: second
  arguments: ["two words", "it's", "a\"b", "$HOME", "back\\slash"]
  stdin: mid
  stdout: end
  uses:
  - {lfn: mid, type: input}
  - {lfn: end, type: output, stageOut: true, registerReplica: false}
  profiles:
    env: {TEXT: "a b = c", OTHER: "$x"}
    pegasus: {gridstart: none}
- type: job
  id: C
  name: third
  uses: [{lfn: mid, type: input}]
  profiles:
    pegasus: {exitcode.failuremsg: "it's bad"}
"#;

const LINE: &str = "--sites local --output-sites local --dir submit -Dpegasus.code.generator=shell";

/// Writes an executable shell script.
fn program(case: &Case, name: &str, script: &str) {
    let path = case.path().join(name);
    fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    fs::write(&path, format!("#!/bin/bash\n{script}\n")).expect("a program");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// The workflow with working programs and stub tools: kickstart only changes the directory, transfers only
/// copy, make directories and remove files.
fn case() -> Case {
    let case = Case::new(WORKFLOW);
    let mut transformations = String::from("pegasus: \"5.0\"\ntransformations:\n");
    for name in ["first", "second", "third"] {
        transformations.push_str(&format!(
            "- name: {name}\n  sites: [{{name: local, type: installed, pfn: @DIR@/programs/{name}}}]\n"
        ));
    }
    case.put("transformations.yml", &transformations);
    case.put(
        "replicas.yml",
        "pegasus: \"5.0\"\nreplicas: [{lfn: in, pfns: [{site: local, pfn: @DIR@/in}]}]\n",
    );
    case.put("in", "content\n");
    case.put("pegasus.properties", "pegasus.parser.arguments.split = false\n");
    let sites = fs::read_to_string(case.path().join("sites.yml")).expect("a catalog");
    case.put(
        "sites.yml",
        &sites.replace("/opt/pegasus", &case.path().join("opt").display().to_string()),
    );
    program(&case, "programs/first", "cp \"$1\" \"$2\"");
    program(
        &case,
        "programs/second",
        "cat; printf '[%s]' \"$@\" \"$TEXT\" \"$OTHER\"",
    );
    program(&case, "programs/third", "echo fine");
    program(
        &case,
        "opt/bin/pegasus-kickstart",
        "while [ \"${1#-}\" != \"$1\" ]; do shift 2; done\nexec \"$@\"",
    );
    program(
        &case,
        "opt/bin/pegasus-transfer",
        "orders=$(cat)\nurls=$(grep -o '\"url\": \"[^\"]*' <<<\"$orders\" | sed 's/.*\"//; s,^file://,,')\n\
         set -- $urls\n\
         case $orders in\n\
         *mkdir*) mkdir -p \"$1\" ;;\n\
         *remove*) rm -rf \"$@\" ;;\n\
         *) mkdir -p \"$(dirname \"$2\")\"; cp \"$1\" \"$2\" ;;\n\
         esac",
    );
    case
}

fn run(script: &Path) -> Output {
    Command::new(script)
        .current_dir("/")
        .output()
        .expect("the script starts")
}

/// States of a job in the log, in order. Fails if a line has no time stamp.
fn states(log: &str, job: &str) -> Vec<String> {
    log.lines()
        .filter_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [time, name, state, "-", "local"] if name == job => {
                assert!(time.parse::<u64>().is_ok_and(|t| t > 1_600_000_000), "{line}");
                Some(state.to_owned())
            }
            _ => None,
        })
        .collect()
}

fn script_of(case: &Case) -> std::path::PathBuf {
    case.plan_only(LINE).expect("a plan").shell.expect("a script")
}

#[test]
fn the_script_runs_the_workflow() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    let planned = case.plan_only(LINE)?;
    let script = planned.shell.clone().expect("a script");
    assert!(planned.scripts.is_empty() && !planned.dag.exists());
    let braindump = fs::read_to_string(planned.submit_dir.join("braindump.yml"))?;
    assert!(braindump.contains("type: \"shell\"\n"), "{braindump}");
    assert!(
        braindump.contains(&format!("script: \"{}\"", script.display())),
        "{braindump}"
    );
    assert!(braindump.contains("uses_pmc: \"false\"\n") && !braindump.contains("\ndag:"));
    let output = run(&script);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        fs::read_to_string(case.path().join("out/end"))?,
        "content\n[two words][it's][a\"b][$HOME][back\\slash][a b = c][$x]"
    );
    let log = fs::read_to_string(planned.submit_dir.join("jobstate.log"))?;
    assert!(
        log.starts_with("INTERNAL *** SHELL_SCRIPT_STARTED ***\n"),
        "{log}"
    );
    assert!(
        log.ends_with("INTERNAL *** SHELL_SCRIPT_FINISHED 0 ***\n"),
        "{log}"
    );
    assert_eq!(
        states(&log, "first_A"),
        [
            "SUBMIT",
            "EXECUTE",
            "POST_SCRIPT_STARTED",
            "POST_SCRIPT_TERMINATED",
            "POST_SCRIPT_SUCCESS"
        ]
    );
    // Without kickstart there is no record, so no post script.
    assert_eq!(
        states(&log, "second_B"),
        ["SUBMIT", "EXECUTE", "JOB_TERMINATED", "JOB_SUCCESS"]
    );
    for name in [
        "00/00/first_A.out.000",
        "00/00/first_A.err.000",
        "00/00/first_A.post.out",
    ] {
        assert!(planned.submit_dir.join(name).exists(), "{name}");
    }
    assert!(
        !case.path().join("scratch/tester/pegasus/small/run0001").exists(),
        "cleaned up"
    );
    Ok(())
}

#[test]
fn the_script_stops_at_a_job_that_fails() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    let script = script_of(&case);
    program(&case, "programs/first", "echo broken >&2; exit 7");
    let output = run(&script);
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("job first_A failed with status 7"));
    let log = fs::read_to_string(script.with_file_name("jobstate.log"))?;
    assert!(
        log.ends_with("INTERNAL *** SHELL_SCRIPT_FINISHED 7 ***\n"),
        "{log}"
    );
    assert_eq!(
        states(&log, "first_A").last().map(String::as_str),
        Some("POST_SCRIPT_FAILURE")
    );
    assert!(states(&log, "second_B").is_empty(), "{log}");
    // After a repair the script can run again and keeps the output of the first attempt.
    program(&case, "programs/first", "cp \"$1\" \"$2\"");
    assert!(run(&script).status.success());
    let printed = fs::read_to_string(script.with_file_name("00/00/first_A.err.000"))?;
    assert_eq!(printed, "broken\n");
    assert!(script.with_file_name("00/00/first_A.err.001").exists());
    // The log shows an end by a signal, too.
    program(&case, "programs/first", "kill -TERM $PPID; sleep 0.3");
    let output = run(&script);
    let log = fs::read_to_string(script.with_file_name("jobstate.log"))?;
    assert_eq!(output.status.code(), Some(143), "{log}");
    assert!(
        log.ends_with("INTERNAL *** SHELL_SCRIPT_FINISHED 143 ***\n"),
        "{log}"
    );
    Ok(())
}

#[test]
fn failure_messages_in_the_output_fail_the_job() -> Result<(), Box<dyn std::error::Error>> {
    let case = case();
    let script = script_of(&case);
    program(&case, "programs/third", "echo \"I fear it's bad\"");
    let output = run(&script);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let printed = fs::read_to_string(script.with_file_name("00/00/third_C.post.out"))?;
    assert_eq!(printed, "its output has: it's bad\n");
    Ok(())
}

#[test]
fn submitting_runs_the_script() {
    let case = case();
    let output = Command::new(testutils::programs::path("pmc-plan"))
        .args(LINE.split(' '))
        .arg("--submit")
        .current_dir(case.path())
        .env("HOME", case.path())
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("/small.sh\n"),
        "{output:?}"
    );
    assert!(case.path().join("out/end").exists());
}

#[test]
fn jobs_of_other_sites_are_refused() {
    let case = case();
    let sites = fs::read_to_string(case.path().join("sites.yml")).expect("a catalog");
    case.put("sites.yml", &sites.replace("- name: local", "- name: far"));
    let programs = fs::read_to_string(case.path().join("transformations.yml")).expect("a catalog");
    case.put(
        "transformations.yml",
        &programs.replace("name: local", "name: far"),
    );
    let message = case.fail("--sites far --dir submit -Dpegasus.code.generator=Shell");
    for word in [
        "first_A and",
        "more jobs would run on far",
        "--sites local",
        "PMC",
    ] {
        assert!(message.contains(word), "{word}: {message}");
    }
}

#[test]
fn dagman_scripts_cause_a_warning() {
    let case = case();
    let planned = case
        .plan_only(&format!(
            "{LINE} -Ddagman.post=/bin/check -Ddagman.post.arguments=-x"
        ))
        .expect("a plan");
    let warnings: Vec<String> = planned
        .warnings
        .iter()
        .map(ToString::to_string)
        .filter(|w| w.contains("the property dagman.post = /bin/check"))
        .collect();
    assert_eq!(warnings.len(), 1, "{:?}", planned.warnings);
    assert!(warnings[0].contains("there is no DAGMan"), "{warnings:?}");
}
