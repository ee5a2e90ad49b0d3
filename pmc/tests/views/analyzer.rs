//! `pmc analyzer` after real runs.

use crate::support::{Place, bin};

#[test]
fn a_failure_is_explained() {
    let place = Place::new();
    place.chain(
        "cp in.txt mid.txt",
        "echo reading 17; echo 'row 17: cannot parse it' >&2; echo 'bye' >&2; exit 3",
    );
    place.run(["run", "-q", "workflow.yml"]).code(1);
    let output = place.run(["analyzer", "pmc-runs/chain/latest"]);
    output.code(1);
    let text = output.stdout();
    assert!(
        text.starts_with(
            "chain failed: 5 of 8 tasks done, 1 failed from 1 cause\n\n\
             1  second: exit status 3, 1 task; 2 dependents not run\n   task      second_B, on "
        ),
        "{text}"
    );
    for part in [
        "\n   stderr    | row 17: cannot parse it\n             | bye\n",
        "\n   stdout    | reading 17\n",
        "/scratch && ",
        "\n   not run   1 stage out, 1 clean up\n",
        "\n   record    pmc-runs/chain/run0001/submit/second_B.out.000\n",
        "\n   resume    pmc resume pmc-runs/chain/latest\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    let json = place.run(["analyzer", "--json", "pmc-runs/chain"]);
    json.code(1);
    let json = json.json();
    let cause = &json["causes"][0];
    assert_eq!((&cause["exit_status"], &cause["blocked"]), (&3.into(), &2.into()));
    assert_eq!(cause["message"], "row #: cannot parse it");
    assert!(cause["peak_memory_kib"].as_u64() > Some(0), "{json}");
    // The command reproduces the failure.
    let by_hand = cause["example"]["by_hand"].as_str().unwrap_or_default();
    let again = std::process::Command::new("sh").arg("-c").arg(by_hand).status();
    assert_eq!(again.expect("a shell").code(), Some(3), "{by_hand}");

    place.script("bin/second", "cp mid.txt out.txt");
    place.run(["resume", "-q", "pmc-runs/chain"]).code(0);
    let output = place.run(["analyzer", "pmc-runs/chain"]);
    output.code(0);
    assert!(
        output
            .stdout()
            .starts_with("chain succeeded: 8 of 8 tasks done\n")
            && output.stdout().contains("1 attempt failed"),
        "{}",
        output.stdout()
    );
    place.run(["analyzer", "-q", "pmc-runs/chain"]).code(0);
}

#[test]
fn killed_programs_and_runs() {
    let place = Place::new();
    place.chain("kill -9 $$", "true");
    place.run(["run", "-q", "workflow.yml"]).code(1);
    let text = place.run(["analyzer", "pmc-runs/chain"]).stdout();
    assert!(text.contains("1  first: signal 9, SIGKILL, 1 task"), "{text}");
    assert!(
        text.contains("\n   likely    killed by another process"),
        "{text}"
    );
    // A log without an end.
    let log = "pmc-runs/chain/run0001/submit/chain-0.dag.dagman.out";
    let all = place.read(log);
    let kept: Vec<&str> = all
        .lines()
        .filter(|line| !line.contains("EXITING") && !line.contains("first_A job proc"))
        .collect();
    place.write(log, &format!("{}\n", kept.join("\n")));
    let output = place.run(["analyzer", "pmc-runs/chain"]);
    output.code(1);
    assert!(
        output.stdout().starts_with("chain was cut off: ") && output.stdout().contains("has no end"),
        "{}",
        output.stdout()
    );
}

#[test]
fn the_command_by_hand_is_complete() {
    let place = Place::new();
    place.chain(
        "cp in.txt mid.txt",
        "cat > seen.txt; echo \"$WORD\" >> seen.txt; exit 3",
    );
    let text = place.read("workflow.yml");
    let text = text
        .replace(
            "{name: second, ",
            "{name: second, profiles: {env: {WORD: \"two words\"}}, ",
        )
        .replace("id: B, name: second, ", "id: B, name: second, stdin: mid.txt, ");
    place.write("workflow.yml", &text);
    place.run(["run", "-q", "workflow.yml"]).code(1);
    let json = place.run(["analyzer", "--json", "pmc-runs/chain"]).json();
    let command = json["causes"][0]["example"]["by_hand"]
        .as_str()
        .expect("a command");
    let scratch = "pmc-runs/chain/run0001/scratch/seen.txt";
    assert_eq!(place.read(scratch), "something\ntwo words\n");
    std::fs::remove_file(place.path().join(scratch)).expect("it is there");
    let status = std::process::Command::new("sh").args(["-c", command]).status();
    assert_eq!(status.expect("a shell").code(), Some(3), "{command}");
    assert_eq!(place.read(scratch), "something\ntwo words\n", "{command}");
}

#[test]
fn a_batch_job_that_ended_before_its_first_task() {
    let place = Place::new();
    place.chain("true", "true");
    let plan = std::process::Command::new(bin().join("pmc-plan"))
        .args(["--sites", "local", "--output-sites", "local"])
        .args([
            "--dir",
            ".",
            "--relative-submit-dir",
            "plan",
            "-q",
            "workflow.yml",
        ])
        .current_dir(place.path())
        .status();
    assert!(plan.expect("pmc-plan runs").success());
    place.write(
        "plan/chain-0.err",
        "mpiexec: error while loading shared libraries\n",
    );
    let analyzer = place.run(["analyzer", "plan"]).stdout();
    assert!(
        analyzer.contains("batch job plan/chain-0.err")
            && analyzer.contains("| mpiexec: error while loading"),
        "{analyzer}"
    );
    let status = place.run(["status", "plan"]).stdout();
    assert!(status.contains("chain-0.err\n    | mpiexec: error"), "{status}");
}
