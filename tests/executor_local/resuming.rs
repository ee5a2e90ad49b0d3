//! What a run does at its start with files of earlier runs, and what it refuses.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::{DIAMOND, Run, last_line, text};

#[test]
fn a_task_that_was_renamed_after_it_was_done_runs_again() {
    let run = Run::new("TASK new ./say.sh new\nTASK b ./say.sh b\n");
    run.write("x.dag.rescue", "\nDONE old\nDONE b");
    let output = run.run(&["x.dag"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stderr)
            .contains("[warn] The rescue file names 1 task that is not in the DAG: old (from line 2)"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(run.read("ran"), "new\n");
    assert_eq!(run.done(), ["old", "b", "new"]);
}

#[test]
fn the_rescue_file_does_not_grow_with_each_run() {
    let run = Run::new(DIAMOND);
    // As the original leaves it after two runs, and a power failure.
    run.write("x.dag.rescue", "\nDONE A\nDONE A\nDONE B\0\0\0");
    for _ in 0..3 {
        assert_eq!(run.run(&["x.dag"]).status.code(), Some(0));
        let mut done = run.done();
        done.sort();
        assert_eq!(done, ["A", "B", "C", "D"]);
    }
    // Without the lock, another run may have the file open.
    run.write("x.dag.rescue", "\nDONE A\nDONE A\nDONE B\nDONE C\nDONE D");
    assert_eq!(run.run(&["-n", "x.dag"]).status.code(), Some(0));
    assert_eq!(run.done(), ["A", "A", "B", "C", "D"]);
}

#[test]
fn output_that_cannot_be_written_is_refused_before_the_first_task() {
    let run = Run::new("TASK a ./say.sh a\n");
    for option in ["-o", "-e"] {
        let output = run.run(&[option, "nowhere/x", "x.dag"]);
        assert_eq!(output.status.code(), Some(1));
        let stderr = text(&output.stderr);
        assert!(
            stderr.ends_with("file: nowhere/x\n: No such file or directory\n"),
            "{stderr}"
        );
    }
    assert!(!run.exists("ran") && !run.exists("x.dag.rescue"));
}

#[test]
fn a_dag_whose_end_is_missing_runs_only_on_request() {
    let torn = "TASK a ./say.sh a\nTASK b ./say.sh b\nTASK c ./say.sh some";
    let run = Run::new(&format!("{}{torn}", pmc_dag::trailer::FIRST_LINE));
    let refused = run.run(&["x.dag"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("with --accept-incomplete"));
    assert!(!run.exists("ran") && !run.exists("x.dag.rescue"));
    let accepted = run.run(&["--accept-incomplete", "x.dag"]);
    assert_eq!(accepted.status.code(), Some(0));
    let stderr = text(&accepted.stderr);
    assert!(
        stderr.contains("x.dag: the end is missing") && stderr.contains("2 tasks only"),
        "{stderr}"
    );
    let mut done = run.done();
    done.sort();
    assert_eq!(done, ["a", "b"], "the command of c is torn");
}

#[test]
fn a_host_script_is_not_searched_in_the_working_directory() {
    let run = Run::new("TASK a ./say.sh a\n");
    run.script("hs.sh", "touch script-ran");
    let output = run.run(&["--host-script", "hs.sh", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        last_line(&output.stderr),
        "ABORT: Worker 1: Host script hs.sh is not on PATH: for a file in the working directory, give ./hs.sh"
    );
    assert!(!run.exists("script-ran") && !run.exists("ran"));
}

#[test]
fn the_message_about_a_dag_without_write_permission_names_the_option() {
    let run = Run::new("TASK a ./say.sh a\n");
    let dag = run.path().join("x.dag");
    fs::set_permissions(&dag, fs::Permissions::from_mode(0o444)).unwrap();
    if fs::OpenOptions::new().write(true).open(&dag).is_ok() {
        // Root may write everything.
        return;
    }
    let output = run.run(&["x.dag"]);
    assert_eq!(
        last_line(&output.stderr),
        "ABORT: Unable to lock DAG file: x.dag: Permission denied. The lock needs write permission; -n (--nolock) \
         runs the DAG without a lock"
    );
    assert_eq!(run.run(&["-n", "x.dag"]).status.code(), Some(0));
}

#[test]
fn workers_have_the_name_that_was_given_to_the_host() {
    let run = Run::new("TASK a ./say.sh a\n");
    let output = run.run(&["--host-name", "node7", "x.dag"]);
    assert!(
        text(&output.stdout).contains("hostname=\"node7\""),
        "{}",
        text(&output.stdout)
    );
    assert!(
        run.read("x.dag.resource")
            .lines()
            .all(|line| line.contains("node7"))
    );
}

#[test]
fn trace_messages_name_host_slot_and_reason() {
    let run = Run::new("TASK a -p 1 -m 70 ./say.sh a\nTASK b -m 60 ./say.sh b\n");
    let arguments = [
        "-v",
        "-v",
        "--host-name",
        "node7",
        "--host-memory",
        "100",
        "x.dag",
    ];
    let stderr = text(&run.run(&arguments).stderr);
    for line in [
        "[trace] Scheduling task a on host node7, slot 1 (CPUs: 1, memory: 70 MiB)\n",
        "[trace] Task b waits: it requests 60 MiB, and at most 30 MiB are free on a host\n",
    ] {
        assert!(stderr.contains(line), "{stderr}");
    }
}

#[test]
fn a_service_that_is_away_for_a_while_is_tried_again_after_a_pause() {
    let run = Run::new("TASK a ./client.sh\nTASK b /bin/true\n");
    run.script("client.sh", "echo x >> tries; test -e up");
    let begun = std::time::Instant::now();
    let child = run.start(&["-t", "5", "--retry-delay", "0.5,2", "x.dag"]);
    run.wait_for("tries");
    std::thread::sleep(std::time::Duration::from_secs(1));
    run.write("up", "");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    // After 0, 0.5 and 1.5 seconds, and perhaps once more if the machine is busy.
    assert!((3..=4).contains(&run.read("tries").lines().count()));
    assert!(begun.elapsed() >= std::time::Duration::from_millis(1500));
}

/// Tasks may have a pause of their own, and transfers have one without being asked.
#[test]
fn tasks_have_pauses_of_their_own() {
    let run = Run::new(
        "TASK own -t 3 --retry-delay 0.3,2 ./client.sh own 3\n\
         TASK none -t 3 --retry-delay 0 ./client.sh none 3\n\
         TASK transfer -t 2 ./pegasus-transfer transfer 2\n",
    );
    // Succeeds in the attempt with this number, and notes when each began, in ms.
    let script = "date +%s%3N >> $1; [ $(wc -l < $1) = $2 ]";
    run.script("client.sh", script);
    run.script("pegasus-transfer", script);
    let output = run.run(&["--retry-delay", "0", "x.dag"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let pauses = |name: &str| -> Vec<u64> {
        let begins: Vec<u64> = run.read(name).lines().map(|line| line.parse().unwrap()).collect();
        std::fs::remove_file(run.path().join(name)).unwrap();
        begins.windows(2).map(|pair| pair[1] - pair[0]).collect()
    };
    let own = pauses("own");
    assert!(own[0] >= 300 && own[1] >= 600, "{own:?}");
    assert!(pauses("transfer")[0] < 1900, "the option of the run counts");
    pauses("none");
    std::fs::remove_file(run.path().join("x.dag.rescue")).unwrap();
    let output = run.run(&["x.dag"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(pauses("transfer")[0] >= 2000);
}

#[test]
fn a_program_that_cannot_run_is_not_tried_again() {
    let run = Run::new("TASK a ./missing\nTASK b ./plain\nTASK c /bin/false\n");
    run.write("plain", "no program");
    let output = run.run(&["-t", "3", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    let text = text(&output.stdout);
    assert!(text.contains("submitted=5, succeeded=0, failed=5"), "{text}");
}

/// Kickstart says with exit code 127 that it could not run a program. A program that ends so is tried again.
#[test]
fn a_program_that_kickstart_cannot_run_is_not_tried_again() {
    let kickstart = testutils::programs::path("pegasus-kickstart");
    let run = Run::new("");
    let plain = run.path().join("plain");
    run.write("plain", "no program");
    run.write(
        "x.dag",
        &format!(
            "TASK a {kickstart} -n a /no/such/program\nTASK b {kickstart} {}\nTASK c {kickstart} /bin/sh -c missing\n",
            plain.display()
        ),
    );
    let output = run.run(&["-t", "3", "--per-task-stdio", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    let text = text(&output.stdout);
    assert!(text.contains("submitted=5, succeeded=0, failed=5"), "{text}");
}
