//! Runs and tasks that are stopped: by signals, by draining, by time limits and at the wall time.

use std::process::Child;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Run, is_running, last_line, text};

#[test]
fn sigterm_ends_tasks_and_keeps_completed_ones() {
    let run = Run::new(
        "TASK quick ./say.sh quick\nTASK slow ./slow.sh\nTASK never ./say.sh never\nEDGE quick slow\nEDGE slow never\n",
    );
    // Both the script and its child ignore the signal, so they must be killed.
    run.script(
        "slow.sh",
        "trap '' TERM; echo begun; sleep 1000 & echo $! > child; mv child pid; wait",
    );
    let child = run.start(&[
        "--jobstate-log",
        "--monitord-hack",
        "--drain-grace",
        "0.2",
        "x.dag",
    ]);
    run.wait_for("pid");
    signal(&child, Signal::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output.stderr), "ABORT: Workflow aborted");
    assert!(text(&output.stderr).contains("[fatal] Caught signal 15\n[error] Aborting workflow\n"));
    assert!(text(&output.stdout).contains("stat=\"failed\", tasks=3, submitted=2, succeeded=1, failed=0"));
    assert_eq!(run.done(), ["quick"]);
    let jobstate = run.read("jobstate.log");
    assert!(jobstate.contains(" slow EXECUTE ") && !jobstate.contains(" slow JOB_TERMINATED "));
    // It was killed, which is no failure.
    let last: Vec<&str> = jobstate.lines().rev().take(2).collect();
    assert!(last[1].contains(" slow JOB_EVICTED "), "{jobstate}");
    assert!(jobstate.ends_with("INTERNAL *** PMC_FINISHED 1 ***\n"));
    assert!(run.read("x.dag.dagman.out").ends_with("EXITING WITH STATUS 1\n"));
    assert_eq!(run.read("slow.out.000"), "begun\n");
    let grandchild: i32 = run.read("pid").trim().parse().unwrap();
    let started = Instant::now();
    // Only init can reap it, so this may take a while.
    while is_running(grandchild) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "process {grandchild} is still there"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// Starts a run of two tasks: one runs until a file `go` exists, the other waits for a slot.
fn start_one_of_two_tasks() -> (Run, Child) {
    let run = Run::new("TASK first ./first.sh\nTASK second -p -1 ./say.sh second\n");
    run.script("first.sh", "touch begun; while [ ! -e go ]; do sleep 0.01; done");
    let child = run.start(&["--host-cpus", "1", "--monitord-hack", "x.dag"]);
    run.wait_for("begun");
    (run, child)
}

#[test]
fn drain_lets_running_tasks_end_and_starts_no_others() {
    for requested in [Signal::SIGUSR1, Signal::SIGTERM] {
        let (run, child) = start_one_of_two_tasks();
        signal(&child, requested);
        std::thread::sleep(Duration::from_millis(300));
        run.write("go", "");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(75));
        let stderr = text(&output.stderr);
        // What was asked for is not fatal.
        let level = if requested == Signal::SIGTERM {
            "fatal"
        } else {
            "info"
        };
        let said = format!("[{level}] Caught signal {}\n", requested as i32);
        assert!(stderr.contains(&said), "{stderr}");
        assert!(
            stderr.ends_with("[error] Workflow drained: the rest is for the next run\n"),
            "{stderr}"
        );
        assert!(
            text(&output.stdout).contains("stat=\"failed\", tasks=2, submitted=1, succeeded=1, failed=0")
        );
        assert_eq!(run.done(), ["first"]);
        assert!(run.read("x.dag.dagman.out").ends_with("EXITING WITH STATUS 1\n"));
        assert!(!run.exists("ran"));
        assert_eq!(run.run(&["x.dag"]).status.code(), Some(0));
        assert_eq!(run.read("ran"), "second\n");
    }
}

#[test]
fn second_signal_ends_a_drain() {
    let (run, child) = start_one_of_two_tasks();
    signal(&child, Signal::SIGUSR1);
    std::thread::sleep(Duration::from_millis(100));
    signal(&child, Signal::SIGTERM);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output.stderr), "ABORT: Workflow aborted");
    assert!(text(&output.stderr).contains("[fatal] Caught signal 15\n[error] Aborting workflow\n"));
    assert_eq!(run.done(), [""; 0]);
}

#[test]
fn drain_ends_at_the_wall_time() {
    let run = Run::new("TASK slow ./slow.sh\n");
    run.script("slow.sh", "touch begun; exec sleep 1000");
    let child = run.start(&["--max-wall-time", "0.03", "x.dag"]);
    run.wait_for("begun");
    signal(&child, Signal::SIGUSR1);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("[fatal] Workflow wall time exceeded!\n"));
}

#[test]
fn drain_after_the_last_task_is_a_success() {
    let run = Run::new("TASK only ./first.sh\n");
    run.script("first.sh", "touch begun; sleep 0.3");
    let child = run.start(&["x.dag"]);
    run.wait_for("begun");
    signal(&child, Signal::SIGUSR1);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(last_line(&output.stderr), "[info] Workflow succeeded");
}

#[test]
fn task_ends_at_its_time_limit() {
    let run = Run::new(
        "TASK own -T 0.2 ./slow.sh own\nTASK default ./slow.sh default\n\
         TASK free -T 0 ./free.sh\nTASK polite ./polite.sh\nTASK quick ./say.sh quick\n",
    );
    // The child holds the output open, so it must end, too.
    run.script("slow.sh", "sleep 1000 & echo $! > $1.pid; wait");
    run.script("free.sh", "sleep 0.7");
    run.script("polite.sh", "trap 'exit 3' TERM; sleep 1000 & wait");
    let started = Instant::now();
    let output = run.run(&["--per-task-stdio", "--runtime-limit", "0.4", "-t", "1", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(started.elapsed() < Duration::from_secs(20));
    let stderr = text(&output.stderr);
    for line in [
        "[error] Task own is ended: its limit of 0.2 seconds is over\n",
        "[error] Task default is ended: its limit of 0.4 seconds is over\n",
        "[error] Task own failed with exitcode 15\n",
        "[error] Task default failed with exitcode 15\n",
        "[error] Task polite failed with exitcode 768\n",
    ] {
        assert!(stderr.contains(line), "{stderr}");
    }
    assert_eq!(stderr.matches("is ended").count(), 3);
    let mut done = run.done();
    done.sort();
    assert_eq!(done, ["free", "quick"]);
    assert!(run.read("own.out.000").contains("status=15, "));
    let started = Instant::now();
    for name in ["own.pid", "default.pid"] {
        while is_running(run.read(name).trim().parse().unwrap()) {
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "{name} is still there"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn suspended_time_does_not_count_for_a_limit() {
    let begin = |dag: &str| {
        let run = Run::new(dag);
        run.script(
            "t.sh",
            "echo $$ > pid.new; mv pid.new pid; while [ ! -f go ]; do sleep 0.01; done",
        );
        let child = run.start(&["x.dag"]);
        run.wait_for("pid");
        (run, child)
    };
    let limit = Duration::from_secs(2);
    let dag = "TASK t -T 2 ./t.sh\n";
    // The batch system suspends everything.
    let (all, all_child) = begin(dag);
    let group = -all.read("pid").trim().parse::<i32>().unwrap();
    // A user stops only the executor, and the task ends meanwhile.
    let (one, one_child) = begin(dag);
    let task: i32 = one.read("pid").trim().parse().unwrap();
    signal(&all_child, Signal::SIGSTOP);
    signal(&one_child, Signal::SIGSTOP);
    kill(Pid::from_raw(group), Signal::SIGSTOP).unwrap();
    one.write("go", "");
    let stopped = Instant::now();
    while stopped.elapsed() < limit || is_running(task) {
        std::thread::sleep(Duration::from_millis(5));
    }
    all.write("go", "");
    kill(Pid::from_raw(group), Signal::SIGCONT).unwrap();
    signal(&all_child, Signal::SIGCONT);
    signal(&one_child, Signal::SIGCONT);
    for child in [all_child, one_child] {
        let output = child.wait_with_output().unwrap();
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        assert!(!stderr.contains("limit"), "{stderr}");
    }
}

#[test]
fn success_after_the_limit_is_no_end() {
    let run = Run::new("TASK late -T 0.1 ./late.sh\n");
    run.script("late.sh", "trap 'exit 0' TERM; sleep 1000 & wait");
    let output = run.run(&["x.dag"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(
        stderr.contains("[warn] Task late has succeeded, but its limit of 0.1 seconds is over\n"),
        "{stderr}"
    );
    assert!(!stderr.contains("is ended"), "{stderr}");
}

#[test]
fn task_that_ignores_its_limit_is_killed() {
    let run = Run::new("TASK deaf -T 0.1 ./deaf.sh\n");
    run.script("deaf.sh", "trap '' TERM; sleep 1000");
    let output = run.run(&["x.dag"]);
    assert!(text(&output.stderr).contains("[error] Task deaf failed with exitcode 9\n"));
}

#[test]
fn task_ends_the_run_with_its_code() {
    let run = Run::new(
        "TASK bad --abort-on 3=42 -t 9 ./bad.sh\nTASK other ./other.sh\nTASK never -p -1 ./say.sh never\n",
    );
    run.script(
        "other.sh",
        "[ -f repaired ] && exit; echo $$ > pid.new; mv pid.new pid; exec sleep 1000",
    );
    run.script(
        "bad.sh",
        "[ -f repaired ] && exit; while [ ! -f pid ]; do sleep 0.01; done; exit 3",
    );
    let output = run.run(&["--monitord-hack", "x.dag"]);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(42), "{stderr}");
    let expected = "[error] Task bad failed with exitcode 768\n\
        [error] This ends the run with exit code 42, as the option --abort-on of the task says\n\
        [error] Aborting workflow\n";
    assert!(stderr.contains(expected), "{stderr}");
    assert_eq!(last_line(&output.stderr), "ABORT: Workflow aborted");
    assert!(!is_running(run.read("pid").trim().parse().unwrap()));
    assert!(!run.exists("ran") && run.done().is_empty());
    assert!(run.read("x.dag.dagman.out").ends_with("EXITING WITH STATUS 1\n"));
    assert!(!run.exists("bad.out.001"), "there is no retry");
    run.write("repaired", "");
    assert_eq!(run.run(&["--monitord-hack", "x.dag"]).status.code(), Some(0));
    assert_eq!(run.read("ran"), "never\n");
}

#[test]
fn task_can_end_the_run_as_a_success() {
    let run = Run::new(
        "TASK a --abort-on 0 ./say.sh a\nTASK b --abort-on 4 -t 2 ./b.sh\nTASK c ./say.sh c\nEDGE b a\nEDGE a c\n",
    );
    // Another code does not end the run.
    run.script("b.sh", "[ -f again ] || { touch again; exit 3; }");
    let output = run.run(&["--monitord-hack", "x.dag"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!((run.read("ran").as_str(), run.done().len()), ("a\n", 2));
    assert!(run.read("x.dag.dagman.out").ends_with("EXITING WITH STATUS 0\n"));
}

#[test]
fn wall_time_ends_a_run() {
    let run = Run::new("TASK slow /bin/sleep 1000\n");
    let output = run.run(&["--max-wall-time", "0.005", "x.dag"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(last_line(&output.stderr), "ABORT: Workflow aborted");
    assert!(text(&output.stderr).contains("[info] Setting max walltime to 0.005000 minutes\n"));
    assert_eq!(run.done(), [""; 0]);
}

#[test]
fn a_run_without_disk_space_starts_no_tasks() {
    let run = Run::new("TASK only ./say.sh only\n");
    // More than any disk has.
    let child = run.start(&["--disk-reserve", "4294967295", "--jobstate-log", "x.dag"]);
    run.wait_for("jobstate.log");
    signal(&child, Signal::SIGUSR1);
    let output = child.wait_with_output().unwrap();
    let stderr = text(&output.stderr);
    assert!(!run.exists("ran"), "{stderr}");
    assert!(
        output.status.code() == Some(75) || stderr.contains("Aborting workflow"),
        "{stderr}"
    );
    let output = run.run(&["--disk-reserve", "4294967295", "--max-wall-time", "0.01", "x.dag"]);
    let stderr = text(&output.stderr);
    assert!(stderr.contains("[warn] Starting no tasks: only "), "{stderr}");
    assert!(
        stderr.contains(", 4294967295.0 are needed (--disk-reserve)\n"),
        "{stderr}"
    );
    assert!(!run.exists("ran"));
    assert_eq!(run.run(&["--disk-reserve", "0", "x.dag"]).status.code(), Some(0));
    assert_eq!(run.read("ran"), "only\n");
}

/// Readers of the logs find the end of each run.
#[test]
fn logs_of_a_killed_run_are_ended_by_the_next_one() {
    let run = Run::new("TASK first ./first.sh\n");
    run.script("first.sh", "[ -e begun ] || { touch begun; exec sleep 1000; }");
    let mut child = run.start(&["--monitord-hack", "--jobstate-log", "x.dag"]);
    run.wait_for("begun");
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    let before = (run.read("jobstate.log"), run.read("x.dag.dagman.out"));
    assert!(!before.0.contains("PMC_FINISHED") && !before.1.contains("EXITING"));
    let output = run.run(&["--monitord-hack", "--jobstate-log", "x.dag"]);
    assert_eq!(output.status.code(), Some(0));
    let (jobstate, dagman) = (run.read("jobstate.log"), run.read("x.dag.dagman.out"));
    let added = jobstate.strip_prefix(&before.0).unwrap();
    let time = before.0.lines().last().unwrap().split(' ').next().unwrap();
    let ends = format!("{time} first JOB_EVICTED 1.0 - - 1\n{time} INTERNAL *** PMC_FINISHED 1 ***\n");
    assert!(added.starts_with(&ends), "{added}");
    assert!(
        added.lines().nth(2).unwrap().ends_with("PMC_STARTED ***"),
        "{added}"
    );
    let added = dagman.strip_prefix(&before.1).unwrap();
    let [evicted, finish, ..] = added.lines().collect::<Vec<_>>()[..] else {
        panic!("{added}")
    };
    assert!(
        evicted.ends_with("Event: ULOG_JOB_EVICTED for Condor Node first (1.0)"),
        "{added}"
    );
    assert!(
        finish.ends_with(&format!("pid {} EXITING WITH STATUS 1", child.id())),
        "{added}"
    );
    assert!(dagman.ends_with("EXITING WITH STATUS 0\n"));
}

/// A second copy of each would run beside the one of the next run.
#[test]
fn nothing_that_a_task_has_started_outlives_a_killed_executor() {
    let run = Run::new("TASK a ./job.sh\n");
    run.script("prog", "echo $$ > pid.$1.new; mv pid.$1.new pid.$1; sleep 1000");
    // The last one is in a group of its own, and `setsid` starts a session.
    run.script(
        "job.sh",
        "./prog plain & setsid ./prog session & timeout 1000 ./prog group & wait",
    );
    let mut child = run.start(&["x.dag"]);
    let names = ["pid.plain", "pid.session", "pid.group"];
    for name in names {
        run.wait_for(name);
    }
    // Those in other groups are looked for now and then.
    std::thread::sleep(Duration::from_secs(1));
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    for name in names {
        assert_gone(&run, name);
    }
}

#[test]
fn messages_in_the_output_decide_on_success() {
    let run = Run::new(
        "TASK early ./early.sh\n\
         TASK bad -t 3 -F data=all.txt --failure-message 'went wrong' --failure-message never ./bad.sh\n\
         TASK good --success-message 'All is well' --success-message done --failure-message 'went wrong' ./good.sh\n\
         TASK unsure -t 1 --success-message 'All is well' ./early.sh\n\
         EDGE early bad\nEDGE bad good\n",
    );
    // What another task prints into the same file does not count.
    run.script("early.sh", "echo All is not well; echo it went wrong >&2");
    run.script(
        "bad.sh",
        "echo $1 again >> tries; echo data > data; [ $(wc -l < tries) = 3 ] || echo it went wrong >&2",
    );
    run.script("good.sh", "echo All is well; echo done >&2");
    for options in [&[][..], &["--per-task-stdio"]] {
        let output = run.run(&[options, &["--workers", "1", "x.dag"]].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        let reason = "[error] Task bad: its output has the failure message \"went wrong\"\n";
        assert_eq!(stderr.matches(reason).count(), 2, "{stderr}");
        let reason = "[error] Task unsure: its output lacks the success message \"All is well\"\n";
        assert_eq!(stderr.matches(reason).count(), 1, "{stderr}");
        let done: Vec<_> = run.done().into_iter().collect();
        assert_eq!(done, ["early", "bad", "good"]);
        assert_eq!(run.read("all.txt"), "data\n", "only the last attempt forwards");
        let errors = if options.is_empty() {
            text(&output.stderr)
        } else {
            run.read("bad.err.000")
        };
        assert!(
            errors.contains("Task bad failed: its output has the failure message \"went wrong\""),
            "{errors}"
        );
        for file in ["tries", "all.txt", "x.dag.rescue"] {
            std::fs::remove_file(run.path().join(file)).unwrap();
        }
    }
}

/// Leaves a process in a session of its own, which holds the task's pipe and its output.
const LEAVE: &str = "setsid sleep 1000 & echo $! > sleep.$1; mv sleep.$1 pid.$1; echo data >&$OUT";

fn assert_gone(run: &Run, name: &str) {
    let stray: i32 = run.read(name).trim().parse().unwrap();
    let started = Instant::now();
    // Only init can reap it, so this may take a while.
    while is_running(stray) {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "{stray} is still there"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_limit_ends_what_holds_the_pipe_in_a_session_of_its_own() {
    let dag = "TASK leaves -T 0.2 -f OUT=all.txt ./leave.sh leaves\n\
         TASK stays -T 0.2 ./stay.sh\nTASK next -p -1 -f OUT=all.txt ./next.sh\n";
    let run = Run::new(dag);
    run.script("leave.sh", LEAVE);
    run.script("stay.sh", "setsid sleep 1000 & echo $! > pid.stays; wait");
    run.script("next.sh", "echo next >&$OUT");
    let output = run.run(&["--workers", "1", "x.dag"]);
    let log = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(
        log.contains("Task leaves: processes that it has left behind held its pipes"),
        "{log}"
    );
    assert_eq!(run.done(), ["next"], "{log}");
    // Killed processes may have written a part.
    assert_eq!(run.read("all.txt"), "next\n");
    assert_gone(&run, "pid.leaves");
    assert_gone(&run, "pid.stays");
}

#[test]
fn the_end_of_a_drain_ends_what_holds_the_pipe_in_a_session_of_its_own() {
    let run = Run::new("TASK leaves -f OUT=all.txt ./leave.sh leaves\n");
    run.script("leave.sh", LEAVE);
    let child = run.start(&["--workers", "1", "--drain-grace", "0.2", "x.dag"]);
    run.wait_for("pid.leaves");
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
    assert!(run.done().is_empty() && !run.path().join("all.txt").exists());
    assert_gone(&run, "pid.leaves");
}
