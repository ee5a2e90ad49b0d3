//! Requests of other processes to a run.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Child;

use pmc_control::{Answer, ControlError, Request, TaskStatus, ask, socket};

use super::{Run, text};

/// Starts a run of a task that runs until a file `go` exists, one that waits for a slot, and one after both.
fn start() -> (Run, Child) {
    let run = Run::new(
        "TASK first ./first.sh\nTASK second -p -1 ./say.sh second\nTASK last ./say.sh last\n\
         EDGE first last\nEDGE second last\n",
    );
    run.script("first.sh", "touch begun; while [ ! -e go ]; do sleep 0.01; done");
    let child = run.start(&["--host-cpus", "1", "--workers", "1", "x.dag"]);
    run.wait_for("begun");
    (run, child)
}

fn dag(run: &Run) -> PathBuf {
    run.directory.path().join("x.dag")
}

fn done(run: &Run, request: &Request) -> String {
    match ask(&dag(run), request).unwrap() {
        Answer::Done(text) => text,
        other => panic!("{other:?}"),
    }
}

fn refused(run: &Run, request: &Request) -> String {
    match ask(&dag(run), request).unwrap() {
        Answer::Refused(text) => text,
        other => panic!("{other:?}"),
    }
}

fn why(run: &Run, task: &str) -> TaskStatus {
    let task = task.to_owned();
    match ask(&dag(run), &Request::Why { task }).unwrap() {
        Answer::Task(status) => status,
        other => panic!("{other:?}"),
    }
}

fn kill(task: &str, signal: i32) -> Request {
    let task = task.to_owned();
    Request::Kill { task, signal }
}

#[test]
fn a_run_says_what_its_tasks_wait_for() {
    let (run, child) = start();
    let mode = std::fs::metadata(socket(&dag(&run)))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let first = why(&run, "first");
    assert_eq!((first.state.as_str(), first.attempt), ("running", Some(1)));
    assert!(first.host.is_some());
    let second = why(&run, "second");
    assert_eq!(second.state, "queued");
    assert_eq!(second.reason.as_deref(), Some("all slots are busy"));
    let last = why(&run, "last");
    assert_eq!((last.state.as_str(), last.parents_left), ("waiting", 2));
    assert_eq!(last.parents, ["first", "second"]);
    let Answer::Nodes(nodes) = ask(&dag(&run), &Request::Nodes).unwrap() else {
        panic!("no nodes");
    };
    assert_eq!(nodes.len(), 1);
    assert_eq!(
        (nodes[0].state.as_str(), nodes[0].slots, nodes[0].busy),
        ("working", 1, 1)
    );
    let text = refused(&run, &kill("second", 15));
    assert_eq!(text, "the task second does not run: it is queued");
    assert_eq!(refused(&run, &kill("third", 15)), "the DAG has no task third");
    assert_eq!(refused(&run, &kill("first", 4000)), "there is no signal 4000");
    let host = nodes[0].host.clone();
    let text = refused(&run, &Request::DrainNode { host });
    assert!(text.contains("--agents"), "{text}");
    run.write("go", "");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let error = ask(&dag(&run), &Request::Nodes).unwrap_err();
    assert!(matches!(error, ControlError::NoRun { .. }), "{error}");
}

#[test]
fn a_killed_task_has_failed_and_the_others_go_on() {
    let (run, child) = start();
    let text_of = done(&run, &kill("first", 9));
    assert_eq!(text_of, "signal 9 is sent to the task first");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("Task first failed"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(run.done(), ["second"]);
}

#[test]
fn a_run_drains_when_it_is_asked_to() {
    for after_seconds in [None, Some(1)] {
        let (run, child) = start();
        done(&run, &Request::Drain { after_seconds });
        if after_seconds.is_some() {
            assert_eq!(why(&run, "second").reason.as_deref(), Some("all slots are busy"));
            std::thread::sleep(std::time::Duration::from_millis(1200));
        }
        let reason = why(&run, "second").reason;
        assert_eq!(reason.as_deref(), Some("the run drains: no more tasks start"));
        run.write("go", "");
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(75));
        assert_eq!(run.done(), ["first"]);
    }
}

#[test]
fn a_socket_of_a_killed_run_is_taken_over() {
    let (run, mut child) = start();
    child.kill().unwrap();
    child.wait().unwrap();
    let error = ask(&dag(&run), &Request::Nodes).unwrap_err();
    assert!(matches!(error, ControlError::NotListening { .. }), "{error}");
    run.write("go", "");
    let output = run.start(&["x.dag"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(!socket(&dag(&run)).exists());
}

#[test]
fn what_is_no_request_is_refused() {
    use std::io::{Read as _, Write as _};
    let (run, child) = start();
    for bytes in [&b"\n"[..], b"{\"kill\":{}}\n", b"\xff\xfe\n", b"[[[[[[[[\n"] {
        let mut stream = std::os::unix::net::UnixStream::connect(socket(&dag(&run))).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("is not understood"), "{answer}");
    }
    run.write("go", "");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
}
