//! Tasks that save themselves.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Run, last_line, text};

/// Counts its steps in a file, and goes on where its last attempt has ended. At USR1 it ends with 85.
const STEPS: &str = "trap 'echo asked >> asked; sleep 0.3; exit 85' USR1
i=0; [ ! -f step ] || i=$(cat step)
touch begun
while [ $i -lt $1 ]; do sleep 0.05; i=$((i + 1)); echo $i > step; done";

#[test]
fn an_attempt_that_has_saved_itself_does_not_count() {
    let run = Run::new("TASK a -t 1 --checkpoint-exit 85 ./save.sh\nTASK b ./say.sh b\nEDGE a b\n");
    run.script("save.sh", "[ -e saved ] || { touch saved; exit 85; }");
    let output = run.run(&[
        "--jobstate-log",
        "--monitord-hack",
        "--max-failures",
        "1",
        "x.dag",
    ]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("[info] Task a has saved itself; it will run again\n"),
        "{stderr}"
    );
    let figures = "stat=\"ok\", tasks=2, submitted=3, succeeded=2, failed=0";
    assert!(text(&output.stdout).contains(figures), "{}", text(&output.stdout));
    let jobstate = run.read("jobstate.log");
    assert!(
        jobstate.contains(" a JOB_EVICTED ") && !jobstate.contains("FAILURE"),
        "{jobstate}"
    );
    assert_eq!(run.done(), ["a", "b"]);
}

/// Attempts that do not count are starts, too, and so are those of earlier runs.
#[test]
fn tasks_know_how_often_they_were_started() {
    let run = Run::new("TASK a -t 2 --checkpoint-exit 85 ./count.sh\n");
    run.script(
        "count.sh",
        "echo ${PMC_RESTART:-0} ${PMC_ATTEMPT:-1} >> starts; read code <codes; sed -i 1d codes; exit $code",
    );
    run.write("codes", "85\n1\n1\n1\n0\n");
    let run_once = || {
        run.run(&["--per-task-stdio", "--monitord-hack", "x.dag"])
            .status
            .code()
    };
    assert_eq!([run_once(), run_once()], [Some(1), Some(0)]);
    assert_eq!(run.read("starts"), "0 1\n1 1\n2 2\n3 1\n4 2\n");
}

#[test]
fn a_task_that_only_saves_itself_fails() {
    let run = Run::new("TASK a --checkpoint-exit 85 ./save.sh\n");
    run.script("save.sh", "echo x >> ran; exit 85");
    let output = run.run(&["x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    let said = "Task a has ended with its checkpoint exit code again within 10 s: it has failed";
    assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    assert_eq!(run.read("ran"), "x\nx\n");
}

#[test]
fn a_drain_asks_tasks_to_save_themselves() {
    let run = Run::new("TASK a --checkpoint-signal USR1 --checkpoint-exit 85 ./steps.sh 60\n");
    run.script("steps.sh", STEPS);
    let child = run.start(&["x.dag"]);
    run.wait_for("step");
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGUSR1).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", text(&output.stderr));
    assert_eq!(run.read("asked"), "asked\n");
    assert_ne!(run.read("step"), "60\n");
    let next = run.run(&["x.dag"]);
    assert_eq!(next.status.code(), Some(0), "{}", text(&next.stderr));
    assert_eq!(run.read("step"), "60\n");
}

/// The signal goes to all processes of a task, and kickstart passes it on: the program gets it once.
#[test]
fn under_kickstart_the_program_is_asked_once() {
    for how in ["serve", "exec"] {
        let kickstart = testutils::programs::path("pegasus-kickstart");
        let option = "--checkpoint-signal USR1 --checkpoint-exit 85";
        let run = Run::new(&format!(
            "TASK a {option} {kickstart} ./steps.sh 200\nTASK b {option} {kickstart} ./deep.sh\n"
        ));
        run.script("steps.sh", STEPS);
        // The program is behind a script that only waits.
        run.script("deep.sh", "trap : USR1; ./inner.sh; exit $?");
        run.script(
            "inner.sh",
            "trap 'echo inner >> asked; exit 85' USR1; touch deep; while :; do sleep 0.05; done",
        );
        let mut command = run.command(&["--per-task-stdio", "x.dag"]);
        let child = command
            .env("PMC_KICKSTART", how)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        run.wait_for("step");
        run.wait_for("deep");
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGUSR1).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(75), "{how}: {}", text(&output.stderr));
        let mut asked: Vec<_> = run.read("asked").lines().map(str::to_owned).collect();
        asked.sort();
        assert_eq!(asked, ["asked", "inner"], "{how}");
        assert!(run.read("a.out.000").contains("exitcode: 85"), "{how}");
    }
}

#[test]
fn tasks_are_asked_before_the_time_is_over() {
    let run = Run::new(
        "TASK a --checkpoint-signal USR1@2 --checkpoint-exit 85 ./steps.sh 1000\nTASK b ./polite.sh\n\
         TASK c ./stubborn.sh\nTASK d -p -1 ./say.sh d\n",
    );
    run.script("steps.sh", STEPS);
    run.script(
        "polite.sh",
        "trap 'sleep 0.7; echo saved > polite; exit 3' TERM; while :; do sleep 0.05; done",
    );
    run.script("stubborn.sh", "trap '' TERM; while :; do sleep 0.05; done");
    let arguments = ["--workers", "3", "--max-wall-time", "0.12", "--stop-grace", "1.5"];
    let logs = ["--jobstate-log", "--monitord-hack", "--host-cpus", "3", "x.dag"];
    let output = run.run(&[&arguments[..], &logs[..]].concat());
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("[fatal] Workflow wall time exceeded!\n"),
        "{stderr}"
    );
    assert_eq!(last_line(&output.stderr), "ABORT: Workflow aborted");
    assert_eq!(
        (run.read("asked").as_str(), run.read("polite").as_str()),
        ("asked\n", "saved\n")
    );
    assert!(stderr.contains("Task a has saved itself"), "{stderr}");
    let jobstate = run.read("jobstate.log");
    assert!(
        jobstate.contains(" b JOB_EVICTED ") && !jobstate.contains("FAILURE"),
        "{jobstate}"
    );
}

/// What would not end does not start, and nothing waits for the end of the time.
#[test]
fn tasks_that_would_not_end_in_time_are_for_the_next_run() {
    let run = Run::new("TASK a -e 600 ./say.sh a\nTASK b -e 1 ./say.sh b\nTASK c ./say.sh c\n");
    let begun = std::time::Instant::now();
    let logs = ["--jobstate-log", "--monitord-hack", "x.dag"];
    let output = run.run(&[&["--max-wall-time", "1"], &logs[..]].concat());
    let stderr = text(&output.stderr);
    assert!(begun.elapsed().as_secs() < 30, "{stderr}");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let said = "[info] What is left would not end before the time is over: it is for the next run\n";
    assert!(stderr.contains(said), "{stderr}");
    let mut done = run.done();
    done.sort();
    assert_eq!(done, ["b", "c"]);
    let jobstate = run.read("jobstate.log");
    assert!(
        jobstate.contains(" a SUBMIT ") && !jobstate.contains(" a EXECUTE ") && !jobstate.contains("FAILURE"),
        "{jobstate}"
    );
    let next = run.run(&["x.dag"]);
    assert_eq!(next.status.code(), Some(0), "{}", text(&next.stderr));
    assert!(run.done().contains(&"a".to_owned()), "{:?}", run.done());
}

/// The run does not wait for the end of its time if what is left is in a sub-workflow.
#[test]
fn tasks_of_sub_workflows_that_would_not_end_in_time_are_for_the_next_run() {
    let run = Run::new("SUBDAG EXTERNAL s s.dag\nTASK b ./say.sh b\nEDGE s b\n");
    run.write("s.dag", "TASK c ./say.sh c\nTASK a -e 600 ./say.sh a\n");
    let begun = std::time::Instant::now();
    let output = run.run(&[
        "--max-wall-time",
        "1",
        "--jobstate-log",
        "--monitord-hack",
        "x.dag",
    ]);
    let stderr = text(&output.stderr);
    assert!(begun.elapsed().as_secs() < 30, "{stderr}");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    let said = "[info] What is left would not end before the time is over: it is for the next run\n";
    assert!(stderr.contains(said), "{stderr}");
    assert_eq!(run.read("s.dag.rescue"), "\nDONE c");
    assert!(
        !run.read("jobstate.log").contains("FAILURE"),
        "{}",
        run.read("jobstate.log")
    );
    let next = run.run(&["x.dag"]);
    assert_eq!(next.status.code(), Some(0), "{}", text(&next.stderr));
    assert_eq!(run.done(), ["s", "b"]);
}

#[test]
fn the_site_drains_runs_by_a_file() {
    let run = Run::new("TASK a --checkpoint-signal USR1 --checkpoint-exit 85 ./steps.sh 2000\n");
    run.script("steps.sh", STEPS);
    run.write("drain", "cooling at noon\n");
    let mut command = run.command(&["x.dag"]);
    let output = command
        .env("PMC_DRAIN_FILE", run.path().join("drain"))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(75), "{stderr}");
    assert!(
        stderr.contains("The site clears its nodes: cooling at noon\n"),
        "{stderr}"
    );
}
