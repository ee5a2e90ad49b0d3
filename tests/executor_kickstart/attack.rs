//! Tasks that try to report results in place of their task server.

use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt as _;

use super::*;

/// A user without rights, if the test itself has those of root: nothing is closed to root.
const NOBODY: u32 = 65534;

/// Prints the parent's parent of the shell: the worker's process, if the shell is the job of a server.
const WORKER: &str = "cut -d' ' -f4 /proc/$PPID/stat";

#[test]
fn a_task_cannot_reach_its_server_and_its_worker() {
    let script = |processes: &str| {
        format!(
            "for process in {processes}; do \
             for file in fd/1 environ mem; do head -c 1 /proc/$process/$file && exit 9; done; \
             ls /proc/$process/fd && exit 8; done; head -c 1 /proc/$$/environ"
        )
    };
    let served = sh("KS", &script(&format!("$PPID $({WORKER})")));
    let own = pmc_dag::words::quote(script("$PPID").as_bytes()).into_owned();
    let run = Run::new(&[served, [b"/bin/sh -c ", own.as_slice()].concat()]);
    let mut command = run.command(1, &[]);
    if fs::metadata(run.path("x.dag")).unwrap().uid() == 0 {
        for name in ["", "x.dag"] {
            chown(run.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}\n{}", run.record(0));
    let errors = run.text("t0.err.000") + &run.record(0);
    assert!(errors.matches("Permission denied").count() >= 8, "{errors}");
}

/// As root, or if the system cannot protect processes, a task can write into the pipe for replies.
#[test]
fn a_forged_reply_does_not_count() {
    // A reply is 34 bytes long.
    let script = "for file in /proc/$PPID/fd/*; do case $(readlink $file) in pipe:*) \
         if grep -q '^flags:.*1$' /proc/$PPID/fdinfo/${file##*/}; then head -c 34 /dev/zero >$file; fi;; \
         esac; done; sleep 0.5; exit 7";
    let run = Run::new(&[sh("KS", script), sh("KS", "touch ran")]).in_order(2);
    let output = run.run(1, &["--runtime-limit", "30"]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(!run.text("x.dag.rescue").contains("DONE"), "{log}");
    assert!(!run.path("ran").exists(), "{log}");
}

/// A job whose output is captured leaves a process in a session of its own.
#[test]
fn a_limit_ends_what_a_job_has_left_behind() {
    let leave = "setsid sleep 1000 & echo $! >pid.$PMC_TASK;";
    let run = Run::new(&[
        sh("-T 0.2 -f OUT=all.txt KS", &format!("{leave} echo data")),
        sh("-T 0.2 KS", &format!("{leave} wait")),
    ]);
    let output = run.run(1, &[]);
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(!run.text("x.dag.rescue").contains("DONE"), "{log}");
    for name in ["pid.t0", "pid.t1"] {
        let stray = run.wait_for_pid(name);
        assert!(wait(|| !is_running(stray)), "{name}: {log}");
    }
}
