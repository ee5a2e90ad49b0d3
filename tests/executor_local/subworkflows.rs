//! Sub-workflows: DAGs that join the run.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use super::{Run, text};

/// A parent with a sub-workflow that a command makes; both write what has run to `ran`.
fn parent(run: &Run, child: &str, options: &str) {
    fs::create_dir_all(run.path().join("sub")).unwrap();
    run.write("sub/child.txt", child);
    run.script(
        "plan.sh",
        "cp sub/child.txt sub/s.dag; echo plan >> ran; echo planned",
    );
    run.script("sub/say.sh", "echo \"$1 out\"; echo \"$1\" >> ../ran");
    run.write(
        "x.dag",
        &format!(
            "TASK a ./say.sh a\n\
             SUBDAG EXTERNAL s sub/s.dag DIR sub\n\
             SCRIPT PRE s {options} ./plan.sh\n\
             TASK b ./say.sh b\n\
             EDGE a s\nEDGE s b\n"
        ),
    );
}

const CHAIN: &str = "TASK c ./say.sh c\nTASK d ./say.sh d\nEDGE c d\n";

const LOGS: [&str; 3] = ["--per-task-stdio", "--monitord-hack", "--jobstate-log"];

/// States in a log without times and numbers.
fn states(log: &str) -> Vec<String> {
    let words = |line: &str| line.split(' ').skip(1).take(2).collect::<Vec<_>>().join(" ");
    log.lines()
        .filter(|line| !line.contains("INTERNAL"))
        .map(words)
        .collect()
}

#[test]
fn a_sub_workflow_runs_between_its_neighbours() {
    let run = Run::new("");
    parent(&run, CHAIN, "");
    let output = run.run(&[&LOGS[..], &["x.dag"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(run.read("ran"), "a\nplan\nc\nd\nb\n");
    assert_eq!(run.done(), ["a", "s", "b"]);
    assert_eq!(run.read("sub/s.dag.rescue"), "\nDONE c\nDONE d");
    assert_eq!(run.read("s.out.000").lines().next(), Some("planned"));
    assert_eq!(run.read("sub/d.out.000").lines().next(), Some("d out"));
    let outer = states(&run.read("jobstate.log"));
    let sub = outer
        .iter()
        .filter(|state| state.starts_with("s "))
        .collect::<Vec<_>>();
    assert_eq!(
        sub,
        [
            "s PRE_SCRIPT_STARTED",
            "s PRE_SCRIPT_TERMINATED",
            "s PRE_SCRIPT_SUCCESS",
            "s SUBMIT",
            "s EXECUTE",
            "s JOB_TERMINATED",
            "s JOB_SUCCESS"
        ]
    );
    let inner = states(&run.read("sub/jobstate.log"));
    assert_eq!(inner.len(), 8, "{inner:?}");
    let log = run.read("sub/s.dag.dagman.out");
    assert!(log.contains("EXITING WITH STATUS 0"), "{log}");
    let log = run.read("x.dag.dagman.out");
    assert!(
        log.contains("Running PRE script of Node s...") && !log.contains("Node c "),
        "{log}"
    );
    // Each DAG has the lines of its own attempts only. Hosts begin with 2 slots.
    let slots = |log: &str| {
        let slots = log.lines().map(|line| line.split(',').nth(1).unwrap().to_owned());
        slots.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(slots(&run.read("x.dag.resource")), "2 1 2 -1 +1 +1 2 3 -1 1 2");
    assert_eq!(slots(&run.read("sub/s.dag.resource")), "2 1 2 1 2");
    // Nothing is left to do.
    assert_eq!(run.run(&["x.dag"]).status.code(), Some(0));
    assert_eq!(run.read("ran"), "a\nplan\nc\nd\nb\n");
}

#[test]
fn another_attempt_goes_on_where_the_first_has_ended() {
    let run = Run::new("");
    let child = "TASK c ./say.sh c\nTASK d ./fail-once.sh\nTASK e ./say.sh e\nEDGE c d\nEDGE d e\n";
    parent(&run, child, "-t 2");
    run.script(
        "sub/fail-once.sh",
        "echo d >> ../ran; [ -e once ] || { touch once; exit 3; }",
    );
    let output = run.run(&[&LOGS[..], &["x.dag"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(run.read("ran"), "a\nplan\nc\nd\nplan\nd\ne\nb\n");
    assert!(
        run.read("s.err.000")
            .contains("1 of 3 tasks failed, 1 did not run; see sub")
    );
    let log = run.read("sub/s.dag.dagman.out");
    let statuses: Vec<_> = log
        .lines()
        .filter_map(|line| line.split("EXITING WITH STATUS ").nth(1))
        .collect();
    assert_eq!(statuses, ["1", "0"]);
}

#[test]
fn what_is_wrong_with_a_sub_workflow_fails_its_task_only() {
    for (child, message) in [
        ("TASK c\n", "[sub/s.dag:1] TASK c"),
        (
            "TASK c ./say.sh c\nTASK d -m 999999999 ./say.sh d\n",
            "no host has what task s/d",
        ),
        ("TASK c --abort-on 3 ./say.sh c\n", "--abort-on"),
        (
            "SUBDAG EXTERNAL again s.dag\n",
            "its DAG file sub/s.dag is that of a workflow around it",
        ),
        ("SUBDAG EXTERNAL outer ../x.dag\n", "it would never end"),
        (
            "TASK c ./say.sh c\nTASK d ./say.sh d\nEDGE c d\nEDGE d c\n",
            "can never run because of a cycle",
        ),
        (
            "SUBDAG EXTERNAL none none.dag\n",
            "Sub-workflow s/none cannot run: Unable to open DAG file: sub/none.dag",
        ),
    ] {
        let run = Run::new("");
        parent(&run, child, "");
        run.write("x.dag", &(run.read("x.dag") + "TASK z ./say.sh z\nEDGE a z\n"));
        let output = run.run(&[&LOGS[..], &["x.dag"]].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(message), "{message}: {stderr}");
        let mut done = run.done();
        done.sort();
        assert_eq!(done, ["a", "z"], "{child}");
        assert!(run.read("x.dag.dagman.out").contains("EXITING WITH STATUS 1"));
        let log = run.read("jobstate.log");
        assert!(log.contains(" s JOB_FAILURE 256 "), "{log}");
    }
}

#[test]
fn monitoring_finds_the_output_of_a_sub_workflow_beside_its_description() {
    let run = Run::new("");
    parent(&run, "TASK c ./fail.sh\n", "-t 2");
    run.script("sub/fail.sh", "exit 3");
    fs::create_dir(run.path().join("00")).unwrap();
    let dag = run
        .read("x.dag")
        .replace("DIR sub\n", "DIR sub\nJOB s 00/s.sub\n");
    run.write("x.dag", &dag);
    let output = run.run(&[&LOGS[..], &["x.dag"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    for number in ["000", "001"] {
        assert_eq!(run.read(&format!("00/s.out.{number}")), "");
        let reason = run.read(&format!("00/s.err.{number}"));
        assert!(reason.contains("1 of 1 tasks failed"), "{reason}");
    }
}

#[test]
fn a_planner_that_fails_fails_its_task() {
    let run = Run::new("");
    parent(&run, CHAIN, "-t 2");
    run.script("plan.sh", "echo plan >> ran; echo no plan >&2; exit 2");
    let output = run.run(&[&LOGS[..], &["x.dag"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(run.read("ran"), "a\nplan\nplan\n");
    assert_eq!(run.read("s.err.001"), "no plan\n");
    let log = run.read("x.dag.dagman.out");
    assert!(
        log.contains("PRE Script of Node s failed with status 512."),
        "{log}"
    );
    assert!(!log.contains("ULOG_SUBMIT for Condor Node s"), "{log}");
}

#[test]
fn a_dag_of_another_run_fails_the_attempt() {
    let run = Run::new("");
    parent(&run, CHAIN, "");
    run.write("sub/s.dag", CHAIN);
    run.script("plan.sh", "true");
    let path = run.path().join("sub/s.dag");
    let held = monitord_compat::run_lock::lock_dag(&path).unwrap_or_else(|_| panic!("not locked"));
    let output = run.run(&["x.dag"]);
    drop(held);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("DAG file is already locked by another process: sub/s.dag"));
    assert_eq!(run.run(&["x.dag"]).status.code(), Some(0));
}

#[test]
fn sub_workflows_are_nested() {
    let run = Run::new("");
    parent(
        &run,
        "SUBDAG EXTERNAL deep deep/t.dag\nTASK c ./say.sh c\nEDGE deep c\n",
        "",
    );
    fs::create_dir_all(run.path().join("sub/deep")).unwrap();
    run.write(
        "sub/deep/t.dag",
        "TASK e sh -c 'echo $PWD >> ../../ran'\nMAXJOBS * 1\n",
    );
    let output = run.run(&["x.dag"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let ran = run.read("ran");
    let lines: Vec<_> = ran.lines().collect();
    assert_eq!(lines.len(), 5, "{ran}");
    assert!(lines[2].ends_with("/sub/deep") && lines[3] == "c", "{ran}");
}

#[test]
fn data_of_a_sub_workflow_is_forwarded_as_from_its_directory() {
    let run = Run::new("");
    parent(&run, "TASK c -f OUT=data -F file=other ./send.sh\n", "");
    run.script("sub/send.sh", "eval \"echo piped >&$OUT\"; echo filed > file");
    let output = run.run(&["x.dag"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(
        (run.read("sub/data"), run.read("sub/other")),
        ("piped\n".to_owned(), "filed\n".to_owned())
    );
    assert!(!run.exists("sub/s.dag.rescue.forward"));
}

#[test]
fn a_drained_run_ends_the_logs_of_sub_workflows() {
    let run = Run::new("");
    parent(&run, "TASK c ./slow.sh\nTASK d ./say.sh d\nEDGE c d\n", "");
    run.script("sub/slow.sh", "touch ../slow; sleep 0.5; echo c >> ../ran");
    let child = run.start(&[&LOGS[..], &["x.dag"]].concat());
    run.wait_for("slow");
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGUSR1).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", text(&output.stderr));
    assert_eq!(
        (run.done(), run.read("sub/s.dag.rescue")),
        (vec!["a".to_owned()], "\nDONE c".to_owned())
    );
    for log in ["x.dag.dagman.out", "sub/s.dag.dagman.out"] {
        assert!(run.read(log).contains("EXITING WITH STATUS 1"));
    }
    assert!(run.read("jobstate.log").contains(" s JOB_EVICTED "));
    let output = run.run(&[&LOGS[..], &["x.dag"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(run.read("ran"), "a\nplan\nc\nplan\nd\nb\n");
}

/// No task runs again after its success, and nothing is missing, whenever the executor is killed.
#[test]
fn killed_runs_go_on_at_every_level() {
    let tasks = ["a", "c", "d", "b"];
    let mut killed = 0;
    for round in 0..kills() {
        let run = Run::new("");
        parent(&run, CHAIN, "");
        // Each task marks its end last, so a kill between its work and its mark shows as a second start.
        let body = "sleep 0.02; echo \"$1\" >> \"$(dirname \"$0\")/$2ran\"";
        run.script("say.sh", body);
        run.script("sub/say.sh", &body.replace("$2ran", "../ran"));
        run.script(
            "plan.sh",
            "sleep 0.02; cp sub/child.txt sub/new; mv sub/new sub/s.dag",
        );
        let mut ends = 0;
        let mut delay = 5 + 220 * round / kills();
        for _ in 0..20 {
            let mut child = run.start(&[&LOGS[..], &["x.dag"]].concat());
            std::thread::sleep(Duration::from_millis(delay));
            let _ = child.kill();
            let status = child.wait_with_output().unwrap().status;
            ends += 1;
            if status.code() == Some(0) {
                break;
            }
            assert_eq!(status.signal(), Some(9), "round {round}");
            killed += 1;
            delay = 60_000.min(delay * 3);
        }
        let output = run.run(&[&LOGS[..], &["x.dag"]].concat());
        assert_eq!(
            output.status.code(),
            Some(0),
            "round {round}: {}",
            text(&output.stderr)
        );
        let mut done = run.done();
        done.sort();
        done.dedup();
        assert_eq!(done, ["a", "b", "s"], "round {round}");
        let ran = run.read("ran");
        for task in tasks {
            let times = ran.lines().filter(|line| *line == task).count();
            // The executor may be killed after the work of a task and before its record.
            assert!(
                (1..=ends).contains(&times),
                "round {round}: {task} ran {times} times"
            );
            assert!(times <= 2, "round {round}: {task} ran {times} times: {ran}");
        }
        let order: Vec<_> = tasks
            .iter()
            .map(|task| ran.lines().position(|line| line == *task))
            .collect();
        assert!(order.is_sorted(), "round {round}: {ran}");
        let log = run.read("sub/s.dag.dagman.out");
        assert!(
            log.trim_end().ends_with("EXITING WITH STATUS 0"),
            "round {round}: {log}"
        );
    }
    assert!(killed > 0, "no run was killed");
}

/// Number of runs that are killed: `PMC_TEST_KILLS`, or a few.
fn kills() -> u64 {
    let wanted = std::env::var("PMC_TEST_KILLS").ok();
    wanted.and_then(|number| number.parse().ok()).unwrap_or(10)
}
