//! The scripts of `share/pegasus-shims`, which answer as programs of Pegasus do.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Finished, Place, bin};

/// A program of Pegasus in this directory, with `path` before the system's programs.
fn program(place: &Place, name: &str) -> Command {
    let shims = concat!(env!("CARGO_MANIFEST_DIR"), "/../share/pegasus-shims/bin");
    let mut command = Command::new(format!("{shims}/{name}"));
    let fakes = place.path().join("fakes");
    command.current_dir(place.path()).env_clear();
    command
        .env(
            "PATH",
            format!("{}:{shims}:{}:/usr/bin:/bin", fakes.display(), bin().display()),
        )
        .env("PMC_WORKFLOW_DIR", place.path())
        .env("HOME", place.path());
    command
}

fn run(place: &Place, name: &str, words: &[&str]) -> Finished {
    program(place, name)
        .args(words)
        .output()
        .expect("the script runs")
        .into()
}

/// Plans the workflow of the place. Returns the submit directory.
fn plan(place: &Place, words: &[&str]) -> String {
    let mut all = vec!["--json", "--output-dir", "out", "--dir", "work"];
    all.extend(words);
    all.push("workflow.yml");
    let plan = run(place, "pegasus-plan", &all).code(0).json();
    plan["submit_dir"].as_str().expect("a directory").to_owned()
}

/// Waits until `pegasus-status` reports a state. Returns its JSON.
fn wait_for(place: &Place, dir: &str, state: &str) -> serde_json::Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let status = run(place, "pegasus-status", &["-j", dir]).code(0).json();
        if status["dags"]["root"]["state"] == state {
            return status;
        }
        assert!(Instant::now() < deadline, "{status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn limits_of_this_machine_come_from_variables_and_pmc_resume_works_as_printed() {
    let place = Place::new();
    place.chain("exit 1", "true");
    let text = place.read("workflow.yml");
    let large = "{name: first, profiles: {pegasus: {pmc_request_memory: 200000000}}, ";
    place.write("workflow.yml", &text.replace("{name: first, ", large));
    let dir = plan(&place, &["--sites", "local"]);
    let refused = run(&place, "pegasus-run", &[&dir]).stderr();
    assert!(
        refused.contains("PMC_HOST_MEMORY, PMC_HOST_CPUS and PMC_HOST_GPUS set larger limits")
            && !refused.contains("--host-memory"),
        "{refused}"
    );
    let mut started = program(&place, "pegasus-run");
    started.arg(&dir).env("PMC_HOST_MEMORY", "200000000");
    Finished::from(started.output().expect("the script runs")).code(0);
    wait_for(&place, &dir, "Failure");
    let output = Path::new(&dir).join("pmc-run.out");
    // The summary comes after the end in the log.
    let deadline = Instant::now() + Duration::from_secs(60);
    let resume = loop {
        let text = std::fs::read_to_string(&output).expect("the output of the run");
        let lines = &mut text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("resume "));
        if let Some(command) = lines.next().filter(|_| text.ends_with('\n')) {
            break command.trim().to_owned();
        }
        assert!(Instant::now() < deadline, "no command to resume in {text}");
        std::thread::sleep(Duration::from_millis(20));
    };
    // The task fails again, but it is tried.
    let again = Command::new("sh")
        .args(["-c", &resume])
        .env("HOME", place.path())
        .output();
    let again = Finished::from(again.expect("a shell"));
    assert!(
        again.code(1).stdout().contains("first_A failed: exit status 1"),
        "{resume}"
    );

    let mut wrong = program(&place, "pegasus-run");
    wrong.arg(&dir).env("PMC_HOST_CPUS", "many");
    let wrong = Finished::from(wrong.output().expect("the script runs")).stderr();
    assert!(
        wrong.contains("many") && wrong.contains("PMC_HOST_CPUS"),
        "{wrong}"
    );
}

#[test]
fn a_workflow_runs_in_the_background() {
    let place = Place::new();
    let wait = format!(
        "cat in.txt > mid.txt; while [ ! -e {}/go ]; do sleep 0.05; done",
        place.path().display()
    );
    place.chain(&wait, "cp mid.txt out.txt");
    let dir = plan(&place, &["--sites", "local"]);
    let started = run(&place, "pegasus-run", &["-v", "--json", &dir]).code(0).json();
    assert_eq!(started["submit_dir"], dir);
    assert!(started["pid"].is_u64(), "{started}");
    // The workflow waits for the file, and this command has returned.
    run(&place, "pegasus-run", &[&dir]).code(1);
    let running = wait_for(&place, &dir, "Running");
    assert_ne!(running["totals"]["unready"], 0, "{running}");
    place.write("go", "");
    let status = wait_for(&place, &dir, "Success");
    assert_eq!(status["totals"]["percent_done"], 100.0);
    let long = run(&place, "pegasus-status", &["--long", &dir]).code(0).stdout();
    assert!(long.contains("Success chain-0.dag"), "{long}");
    run(&place, "pegasus-analyzer", &["-r", &dir]).code(0);
    let statistics = run(&place, "pegasus-statistics", &["-s", "all", "-f", "csv", &dir]);
    assert!(statistics.code(0).stdout().contains("retries"));
    assert!(place.path().join(&dir).join("statistics/jobs.csv").is_file());
    assert!(
        run(&place, "pegasus-remove", &[&dir])
            .code(1)
            .stderr()
            .contains("is not running")
    );
}

#[test]
fn a_running_workflow_is_removed() {
    let place = Place::new();
    place.chain("sleep 600", "true");
    let dir = plan(&place, &["--submit"]);
    wait_for(&place, &dir, "Running");
    run(&place, "pegasus-remove", &[&dir]).code(0);
    wait_for(&place, &dir, "Failure");
    run(&place, "pegasus-analyzer", &[&dir]).code(2);
}

#[test]
fn a_plan_for_a_cluster_is_submitted() {
    let place = Place::new();
    place.chain("true", "true");
    let workflow = place.read("workflow.yml").replace("{name: local,", "{name: hpc,");
    place.write("workflow.yml", &workflow);
    let site = |name: &str| {
        let dir = place.path().display();
        format!(
            "- name: {name}\n  directories:\n  - type: sharedScratch\n    path: {dir}/{name}\n    \
             fileServers: [{{operation: all, url: \"file://{dir}/{name}\"}}]\n"
        )
    };
    place.write(
        "sites.yml",
        &format!("pegasus: \"5.0.4\"\nsites:\n{}{}", site("local"), site("hpc")),
    );
    place.script(
        "fakes/sbatch",
        "echo \"$PWD $1\" > $HOME/submitted; echo Submitted batch job 42",
    );
    place.script("fakes/scancel", "echo \"$1\" > $HOME/cancelled");
    let dir = plan(&place, &["--sites", "hpc"]);
    let started = run(&place, "pegasus-run", &["--json", &dir]).code(0).json();
    assert_eq!(
        (&started["scheduler"], &started["job_id"]),
        (&"slurm".into(), &"42".into())
    );
    let submitted = place.read("submitted");
    assert_eq!(submitted.trim(), format!("{dir} chain-0.sbatch"));
    run(&place, "pegasus-remove", &[&dir]).code(0);
    assert_eq!(place.read("cancelled").trim(), "42");
}

#[test]
fn versions_places_and_wrong_options() {
    let place = Place::new();
    assert_eq!(run(&place, "pegasus-version", &[]).code(0).stdout(), "5.1.3\n");
    let bin = run(&place, "pegasus-config", &["--bin"]).code(0).stdout();
    assert!(bin.ends_with("share/pegasus-shims/bin\n"), "{bin}");
    run(&place, "pegasus-config", &[]).code(1);
    let wrong = run(&place, "pegasus-run", &["--nothing"]).code(2).stderr();
    assert!(
        wrong.contains("--nothing") && wrong.contains("Usage: pegasus-run"),
        "{wrong}"
    );
    assert_eq!(run(&place, "condor_q", &["-json"]).code(0).stdout(), "");
    // HTCondor's own program is used where there is one.
    place.script("fakes/condor_q", "echo real $*");
    assert_eq!(
        run(&place, "condor_q", &["-json"]).code(0).stdout(),
        "real -json\n"
    );
}

/// The Python client takes the parent of the directory of `pegasus-version` for an installation.
#[test]
fn the_directory_of_the_scripts_looks_like_an_installation() {
    let place = Place::new();
    let kickstart = run(&place, "pegasus-kickstart", &["-n", "hello", "/bin/echo", "hi"]);
    kickstart.code(0);
    assert!(
        kickstart.stdout().contains("transformation: \"hello\""),
        "{}",
        kickstart.stdout()
    );
    for name in [
        "pegasus-transfer",
        "pegasus-cluster",
        "pegasus-integrity",
        "pegasus-mpi-cluster",
    ] {
        run(&place, name, &["--help"]).code(0);
    }
}

/// `Workflow.graph()` calls it so.
#[test]
fn pegasus_graphviz_draws_a_workflow_without_catalogs() {
    let place = Place::new();
    place.chain("true", "true");
    let words = [
        "workflow.yml",
        "--files",
        "--label=label",
        "--output=w.svg",
        "--remove=x",
        "--width=3",
    ];
    run(&place, "pegasus-graphviz", &words).code(0);
    assert!(place.read("w.svg").contains("<svg"));
    run(&place, "pegasus-graphviz", &["workflow.yml", "--output=w.dot"]).code(0);
    assert!(
        place.read("w.dot").starts_with("digraph"),
        "{}",
        place.read("w.dot")
    );
    for name in ["fifo.svg", "fifo.dot", "fifo.png"] {
        nix::unistd::mkfifo(&place.path().join(name), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
        let output = format!("--output={name}");
        let refused = run(&place, "pegasus-graphviz", &["workflow.yml", &output]);
        assert!(refused.code(4).stderr().contains("is a FIFO"));
    }
    let printed = run(&place, "pegasus-graphviz", &["workflow.yml"]);
    assert_eq!(printed.code(0).stdout(), place.read("w.dot"));
    run(&place, "pegasus-graphviz", &["none.yml"]).code(4);
}

#[test]
fn pegasus_keg_stands_in_for_a_program() {
    let place = Place::new();
    place.write("a", "one\ntwo\n");
    let words = [
        "-a", "work", "-T", "0.1", "-i", "a", "-o", "b", "c=2K", "-p", "x", "y", "-l", "log", "-m", "1",
    ];
    run(&place, "pegasus-keg", &words).code(0);
    let text = place.read("b");
    assert!(
        text.starts_with("--- start a ----\n  one\n  two\n--- final a ----\nTimestamp Today: "),
        "{text}"
    );
    assert!(
        text.contains("\nApplicationname: work [") && text.ends_with("Other Arguments: x y\n"),
        "{text}"
    );
    assert_eq!(place.read("c").len(), 2048);
    assert!(place.read("log").contains("Input Filenames: a\n"));
    run(&place, "pegasus-keg", &["-o", "d", "-G", "100"]).code(0);
    assert_eq!(place.read("d").find("Timestamp"), Some(100));
    run(&place, "pegasus-keg", &["-i", "none", "-o", "e"]).code(1);
    run(&place, "pegasus-keg", &["-o", "none/e"]).code(2);
    run(&place, "pegasus-keg", &[]).code(0);
}

/// Hooks of workflows name it below the directory in which `pegasus-plan` is.
#[test]
fn a_notification_is_sent_by_the_script_of_an_installation() {
    let place = Place::new();
    place.script("fakes/sendmail", "echo \"$*\"; cat");
    let send = |words: &[&str]| -> Finished {
        let mut command = program(&place, "../share/pegasus/notification/email");
        command
            .args(words)
            .env("PEGASUS_EVENT", "end")
            .env("PEGASUS_EVENT_TIMESTAMP_ISO", "2026-11-27T20:00:00+00:00")
            .env("PEGASUS_SUBMIT_DIR", "/runs/run0001")
            .env("PEGASUS_JOBID", "w")
            .env("PEGASUS_STATUS", "3");
        command.output().expect("the script runs").into()
    };
    let sent = send(&["--to=a@b", "-tc@d", "-r", "none"]);
    let text = sent.code(0).stdout();
    for line in [
        "-f a@b -t -i\n",
        "To: a@b, c@d\n",
        "Subject: ** run0001 - w - end **\n",
        "\nStatus:   3\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(send(&["-t", "a\nBcc: x@y"]).code(1).stderr().contains("line end"));
    assert!(send(&["-r", "everything"]).code(1).stderr().contains("no report"));
}
