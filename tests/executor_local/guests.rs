//! Workflows that are handed to a run.

use std::fs;
use std::process::{Child, Command};

use pmc_control::{Answer, Request, ask};

use super::{Run, text};

const LOGS: [&str; 5] = ["--per-task-stdio", "--host-cpus", "1", "--workers", "1"];

/// Starts a run of a task that runs until a file `go` exists, and another one after it.
fn start(options: &[&str]) -> (Run, Child) {
    let run = Run::new("TASK first ./first.sh\nTASK last ./say.sh last\nEDGE first last\n");
    run.script("first.sh", "touch begun; while [ ! -e go ]; do sleep 0.01; done");
    let child = run.start(&[options, &["x.dag"]].concat());
    run.wait_for("begun");
    (run, child)
}

/// Makes a workflow in a directory of its own.
fn other(run: &Run, dag: &str) {
    fs::create_dir_all(run.path().join("other")).unwrap();
    run.write("other/y.dag", dag);
    run.script("other/say.sh", "echo \"$1 out\"; echo \"$1\" >> ../ran");
    run.script(
        "other/wait.sh",
        "touch ../waits; while [ ! -e ../on ]; do sleep 0.01; done",
    );
}

fn submit(run: &Run, dag: &str) -> Answer {
    let dag = run.path().join(dag).display().to_string();
    ask(&run.path().join("x.dag"), &Request::Submit { dag, weight: 50 }).unwrap()
}

fn refused(run: &Run, dag: &str) -> String {
    match submit(run, dag) {
        Answer::Refused(text) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_workflow_joins_a_run_and_has_its_own_files() {
    let (run, child) = start(&LOGS);
    other(&run, "TASK a ./say.sh a\nTASK b ./say.sh b\nEDGE a b\n");
    let answer = submit(&run, "other/y.dag");
    let Answer::Done(answer) = answer else {
        panic!("{answer:?}");
    };
    assert!(answer.contains("2 tasks, weight 0.5"), "{answer}");
    let message = refused(&run, "other/y.dag");
    assert!(message.contains("already runs as y.dag"), "{message}");
    let task = "b".to_owned();
    let Answer::Task(status) = ask(&run.path().join("other/y.dag"), &Request::Why { task }).unwrap() else {
        panic!("no status");
    };
    assert_eq!(
        (status.state.as_str(), &*status.parents),
        ("waiting", &["a".to_owned()][..])
    );
    run.write("go", "");
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("Workflow y.dag succeeded"), "{stderr}");
    let mut ran: Vec<_> = run.read("ran").lines().map(str::to_owned).collect();
    ran.sort();
    assert_eq!(ran, ["a", "b", "last"]);
    assert_eq!(run.done(), ["first", "last"]);
    assert_eq!(run.read("other/y.dag.rescue"), "\nDONE a\nDONE b");
    assert_eq!(run.read("other/b.out.000").lines().next(), Some("b out"));
    assert!(run.read("other/jobstate.log").contains("b JOB_SUCCESS"));
    assert!(
        run.read("other/y.dag.dagman.out")
            .contains("EXITING WITH STATUS 0")
    );
    // The lines of each say what the others leave.
    let slots = |name: &str| {
        let log = run.read(name);
        let slots: Vec<_> = log
            .lines()
            .map(|line| line.split(',').nth(1).unwrap().to_owned())
            .collect();
        slots.join(" ")
    };
    assert_eq!(slots("x.dag.resource"), "1 0 1 0 1");
    assert_eq!(slots("other/y.dag.resource"), "1 0 1 0 1");
    assert!(run.read("x.dag.guests").contains("\"weight\":0.5"));
    assert!(!run.exists("other/y.dag.control"));
}

#[test]
fn a_workflow_that_was_handed_over_is_drained_and_resumed_by_itself() {
    let (run, child) = start(&["--per-task-stdio"]);
    other(
        &run,
        "TASK a ./wait.sh\nTASK b ./say.sh b\nTASK c ./say.sh c\nEDGE a b\nEDGE b c\n",
    );
    assert!(matches!(submit(&run, "other/y.dag"), Answer::Done(_)));
    run.wait_for("waits");
    let dag = run.path().join("other/y.dag");
    let drain = |after_seconds| ask(&dag, &Request::Drain { after_seconds }).unwrap();
    assert!(matches!(drain(Some(5)), Answer::Refused(_)));
    let Answer::Done(answer) = drain(None) else {
        panic!("not drained");
    };
    assert!(answer.contains("when the 1 that run"), "{answer}");
    run.write("on", "");
    run.wait_for("other/y.dag.dagman.out");
    let started = std::time::Instant::now();
    while !run
        .read("other/y.dag.dagman.out")
        .contains("EXITING WITH STATUS 1")
    {
        assert!(started.elapsed().as_secs() < 30, "it does not end");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(run.read("other/y.dag.rescue"), "\nDONE a");
    // It goes on in the same run.
    assert!(matches!(submit(&run, "other/y.dag"), Answer::Done(_)));
    run.wait_for("ran");
    run.write("go", "");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(run.read("other/y.dag.rescue"), "\nDONE a\nDONE b\nDONE c");
    assert_eq!(run.done(), ["first", "last"]);
}

#[test]
fn a_workflow_that_fails_leaves_the_run_alone() {
    let (run, child) = start(&LOGS);
    other(&run, "TASK a ./none.sh\nTASK b ./say.sh b\nEDGE a b\n");
    assert!(matches!(submit(&run, "other/y.dag"), Answer::Done(_)));
    run.write("go", "");
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("Workflow y.dag failed: 1 of 2 tasks failed, 1 did not run"),
        "{stderr}"
    );
    assert_eq!(run.done(), ["first", "last"]);
}

#[test]
fn a_run_says_why_it_takes_no_workflow() {
    let (run, child) = start(&LOGS);
    for (dag, message) in [
        ("TASK a\n", "y.dag:1] TASK a"),
        (
            "TASK a -m 999999999 ./say.sh a\n",
            "no host has what task y.dag/a",
        ),
        ("TASK a --abort-on 3 ./say.sh a\n", "--abort-on"),
    ] {
        other(&run, dag);
        let text = refused(&run, "other/y.dag");
        assert!(text.contains(message), "{text}");
    }
    for (name, make) in [
        ("y.dag", "mkfifo y.dag"),
        ("y.dag", "ln -s /dev/zero y.dag"),
        ("y.dag", "truncate -s 64G y.dag"),
        (
            "y.dag.rescue",
            "echo 'TASK a /bin/true' >y.dag; mkfifo y.dag.rescue",
        ),
        (
            "rescue file",
            "echo 'TASK a /bin/true' >y.dag; truncate -s 64G y.dag.rescue",
        ),
        (
            "y.dag.rescue.journal",
            "echo 'TASK a /bin/true' >y.dag; mkfifo y.dag.rescue.journal",
        ),
        (
            "y.dag.dagman.out",
            "echo 'TASK a /bin/true' >y.dag; mkfifo y.dag.dagman.out",
        ),
    ] {
        let made = Command::new("/bin/sh")
            .args(["-c", &format!("rm -f y.dag* jobstate.log; {make}")])
            .current_dir(run.path().join("other"))
            .status();
        assert!(made.unwrap().success());
        let text = refused(&run, "other/y.dag");
        assert!(text.contains(name), "{make}: {text}");
    }
    let text_of = refused(&run, "other/none.dag");
    assert!(text_of.contains("none.dag"), "{text_of}");
    let text_of = refused(&run, "x.dag");
    assert!(text_of.contains("is that of the run itself"), "{text_of}");
    other(&run, "TASK a ./say.sh a\n");
    let drain = Request::Drain { after_seconds: None };
    ask(&run.path().join("x.dag"), &drain).unwrap();
    let text_of = refused(&run, "other/y.dag");
    assert_eq!(text_of, "the run ends: it starts no more tasks");
    run.write("go", "");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(75));

    let (run, child) = start(&[]);
    other(&run, "TASK a ./say.sh a\n");
    let text_of = refused(&run, "other/y.dag");
    assert!(text_of.contains("--per-task-stdio"), "{text_of}");
    run.write("go", "");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
}
