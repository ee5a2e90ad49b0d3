//! `pmc log`.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{Finished, Place};

/// A program that prints `begun`, waits for the file `go` and prints more, with an escape sequence and bytes
/// that are no text.
const WAITS: &str = r"printf 'begun\n'; n=0; while [ ! -e go ] && [ $((n += 1)) -lt 3000 ]; do sleep 0.02; done
printf 'on error\n' >&2; printf '\033[2J\377 end'";

/// What it prints to standard output.
const PRINTED: &[u8] = b"begun\n\x1b[2J\xff end";

/// Starts the executor in the directory `run`.
pub fn spawn_executor(place: &Place, dag: &str, options: &[&str]) -> Child {
    place.write("run/w.dag", dag);
    Command::new(crate::support::bin().join("pegasus-mpi-cluster"))
        .args(options)
        .arg("w.dag")
        .current_dir(place.path().join("run"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the executor starts")
}

/// Starts the executor in the directory `run`. Returns when the run has begun.
fn start(place: &Place, dag: &str, options: &[&str]) -> Child {
    let child = spawn_executor(place, dag, options);
    while !place.path().join("run/w.dag.rescue").exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

/// Starts `pmc log -f` of the task `t`. Returns when it has printed the first line.
fn follow(place: &Place) -> Child {
    let mut follower = place
        .pmc(["log", "-f", "t", "run"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("pmc starts");
    let mut begun = [0; 6];
    let stdout = follower.stdout.as_mut().expect("it is piped");
    stdout.read_exact(&mut begun).expect("the first line comes");
    assert_eq!(&begun, b"begun\n");
    follower
}

fn go(place: &Place) {
    place.write("run/go", "");
}

#[test]
fn the_output_of_a_running_task_is_followed_to_its_end() {
    let place = Place::new();
    place.script("run/waits", WAITS);
    let mut executor = start(
        &place,
        "TASK t ./waits\nTASK u /bin/true\nEDGE t u\n",
        &["--workers", "1", "--jobstate-log", "--per-task-stdio"],
    );
    let follower = follow(&place);
    let waits = place.run(["log", "u", "run"]);
    waits.code(4);
    assert!(
        waits
            .stderr()
            .contains("the task u has not started: it waits for other tasks"),
        "{}",
        waits.stderr()
    );
    assert_eq!(place.run(["log", "--stdout", "t", "run"]).stdout(), "begun\n");
    go(&place);
    let output = follower.wait_with_output().expect("pmc ends");
    assert_eq!(output.stdout, &PRINTED[6..]);
    let finished = Finished::from(output);
    finished.code(0);
    assert!(finished.stderr().ends_with("on error\n"), "{}", finished.stderr());
    executor.wait().expect("the executor ends");
    let again = place.pmc(["log", "t", "run"]).output().expect("pmc runs");
    assert_eq!(
        (again.stdout.as_slice(), again.stderr.as_slice()),
        (PRINTED, &b"on error\n"[..])
    );
    let errors = place.run(["log", "--stderr", "t", "run"]);
    assert_eq!(
        (errors.stdout().as_str(), errors.stderr().as_str()),
        ("on error\n", "")
    );
}

#[test]
fn a_task_is_followed_in_a_run_without_logs() {
    let place = Place::new();
    place.script("run/waits", WAITS);
    let mut executor = start(
        &place,
        "TASK t ./waits\nTASK u /bin/sleep 1\nEDGE t u\n",
        &["--workers", "1", "--per-task-stdio"],
    );
    let follower = place
        .pmc(["log", "-f", "--stdout", "t", "run"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("pmc starts");
    let unknown = place.run(["log", "u", "run"]);
    unknown.code(4);
    let expected = "u has no output of its own yet, and the run has no log that tells whether it has started";
    assert!(unknown.stderr().contains(expected), "{}", unknown.stderr());
    std::thread::sleep(Duration::from_millis(200));
    go(&place);
    let output = follower.wait_with_output().expect("pmc ends");
    assert_eq!(output.stdout, PRINTED);
    executor.wait().expect("the executor ends");
}

/// Follows a task under kickstart, whose streams are in files without names while it runs.
fn follow_captured(options: &[&str]) {
    let place = Place::new();
    place.script("run/waits", WAITS);
    let kickstart = crate::support::bin().join("pegasus-kickstart");
    let dag = format!("TASK t -m 500 {} ./waits\n", kickstart.display());
    let mut executor = start(&place, &dag, options);
    let follower = follow(&place);
    let once = place.run(["log", "t", "run"]);
    once.code(0);
    assert_eq!(once.stdout(), "begun\n");
    go(&place);
    let output = follower.wait_with_output().expect("pmc ends");
    // What was not copied before the end of the run comes from the record, which is text.
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&output.stdout), text(&PRINTED[6..]), "each byte comes once");
    let finished = Finished::from(output);
    finished.code(0);
    assert!(finished.stderr().ends_with("on error\n"), "{}", finished.stderr());
    assert_eq!(
        finished.stderr().matches("on error").count(),
        1,
        "{}",
        finished.stderr()
    );
    executor.wait().expect("the executor ends");
}

#[test]
fn captured_output_is_followed_in_a_local_run() {
    follow_captured(&["--workers", "1", "--jobstate-log", "--per-task-stdio"]);
}

#[test]
fn captured_output_is_followed_in_an_agent() {
    follow_captured(&[
        "--agents",
        "1",
        "--launch",
        "local",
        "--slots",
        "1",
        "--per-task-stdio",
    ]);
}

#[test]
fn captured_output_is_followed_if_each_task_has_its_own_kickstart() {
    // A memory limit must not count the memory of the task server.
    follow_captured(&[
        "--workers",
        "1",
        "--jobstate-log",
        "--per-task-stdio",
        "--strict-limits",
    ]);
}

#[test]
fn captured_streams_are_taken_from_the_record() {
    let place = Place::new();
    place.chain(
        "cat in.txt > mid.txt; echo 'out: - invocation:'; echo err >&2",
        "cp mid.txt out.txt",
    );
    place.run(["run", "-q", "workflow.yml"]).code(0);
    let log = place.run(["log", "first_A"]);
    log.code(0);
    assert_eq!(log.stdout(), "out: - invocation:\n");
    assert!(log.stderr().ends_with("\nerr\n"), "{}", log.stderr());
}

#[test]
fn attempts_have_their_own_output() {
    let place = Place::new();
    place.script("run/fails", "echo \"try $(ls | grep -c out)\"; exit 1");
    start(
        &place,
        "TASK t ./fails\nTASK u /bin/true\nEDGE t u\n",
        &["--workers", "1", "--jobstate-log", "--per-task-stdio", "-t", "2"],
    )
    .wait()
    .expect("the executor ends");
    assert_eq!(place.run(["log", "t", "run"]).stdout(), "try 2\n");
    assert_eq!(
        place.run(["log", "--attempt", "1", "t", "run"]).stdout(),
        "try 1\n"
    );
    let none = place.run(["log", "--attempt", "3", "t", "run"]);
    none.code(4);
    assert!(
        none.stderr()
            .contains("the task t has no attempt 3: it has 2 attempts"),
        "{}",
        none.stderr()
    );
    // The run is over: nothing comes.
    let never = place.run(["log", "-f", "u", "run"]);
    never.code(4);
    assert!(
        never.stderr().contains("the task u has not started"),
        "{}",
        never.stderr()
    );
}

#[test]
fn output_in_the_file_of_a_worker_is_found() {
    let place = Place::new();
    place.script("run/waits", WAITS);
    place.script("run/says", "echo said; echo more");
    let mut executor = start(
        &place,
        "TASK says ./says\nTASK t ./waits\nEDGE says t\n",
        &["--workers", "1", "--jobstate-log"],
    );
    let output = place.run(["log", "-f", "says", "run"]);
    output.code(0);
    assert_eq!(output.stdout(), "said\nmore\n");
    assert!(output.stderr().contains("w.dag.err.1"), "{}", output.stderr());
    go(&place);
    executor.wait().expect("the executor ends");
    let merged = place.run(["log", "says", "run"]);
    merged.code(4);
    assert!(
        merged.stderr().contains("merges the output"),
        "{}",
        merged.stderr()
    );
}

#[test]
fn an_unknown_task_is_answered_with_a_similar_name() {
    let place = Place::new();
    place.write("run/w.dag", "TASK analyze_ID0001 /bin/true\n");
    for (given, hint) in [("analyse_ID0001", true), ("nothing", false)] {
        let unknown = place.run(["log", given, "run"]);
        unknown.code(2);
        let text = unknown.stderr();
        assert!(text.contains(&format!("there is no task {given}")), "{text}");
        assert_eq!(text.contains("did you mean analyze_ID0001?"), hint, "{text}");
    }
    place.run(["log", "t", "nowhere"]).code(2);
}

#[test]
fn a_task_is_known_by_its_id_in_the_workflow() {
    let place = Place::new();
    place.write(
        "run/w.dag",
        "TASK analyze_ID1 /bin/true\nTASK sum_ID2 /bin/true\nTASK min_ID2 /bin/true\n",
    );
    let known = place.run(["log", "ID1", "run"]);
    known.code(4);
    assert!(
        known.stderr().contains("the task analyze_ID1 has not started"),
        "{}",
        known.stderr()
    );
    // Two tasks end with this id.
    let unclear = place.run(["log", "ID2", "run"]);
    unclear.code(2);
    assert!(
        unclear.stderr().contains("there is no task ID2"),
        "{}",
        unclear.stderr()
    );
}
