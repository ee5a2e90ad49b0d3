//! Output in packs.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use pmc_packed::{Channel, TaskOutput};

use super::{Run, text};

/// Standard output and error of an attempt.
fn streams(run: &Run, task: &str, number: u32) -> Option<[String; 2]> {
    let mut output = TaskOutput::new(run.path());
    let mut read = |channel| {
        let mut text = String::new();
        let mut stream = output.open(task.as_bytes(), channel, number).ok()?;
        stream.read_to_string(&mut text).unwrap();
        Some(text)
    };
    Some([read(Channel::Out)?, read(Channel::Err)?])
}

fn has_task_files(run: &Run) -> bool {
    let names = fs::read_dir(run.path())
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name());
    names
        .into_iter()
        .any(|name| name.to_string_lossy().contains(".out.0"))
}

#[test]
fn attempts_go_into_packs_and_keep_their_numbers() {
    let run = Run::new("TASK good ./say.sh good\nTASK bad ./bad.sh\nTASK none ./no-such-program\n");
    run.script("bad.sh", "echo try; echo failed >&2; test -e ok");
    let output = run.run(&["--packed-output", "--monitord-hack", "-t", "2", "x.dag"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let [out, err] = streams(&run, "good", 0).unwrap();
    assert!(out.starts_with("good out\n[cluster-task name=good, "), "{out}");
    assert_eq!(err, "good err\n");
    // The run goes on in packs without an option, also without the log.
    run.write("ok", "");
    fs::remove_file(run.path().join("x.dag.dagman.out")).unwrap();
    let output = run.run(&["--per-task-stdio", "x.dag"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    for (number, status) in [(0, 256), (1, 256), (2, 0)] {
        let [out, err] = streams(&run, "bad", number).unwrap();
        assert!(out.starts_with("try\n[cluster-task name=bad, "), "{out}");
        assert!(out.contains(&format!("status={status}, ")), "{out}");
        assert_eq!(err, "failed\n");
    }
    // A program that is missing is not tried twice in a run.
    let [_, err] = streams(&run, "none", 1).unwrap();
    assert!(
        err.starts_with("Unable to exec command ./no-such-program for task none: "),
        "{err}"
    );
    assert!(streams(&run, "bad", 3).is_none() && !has_task_files(&run));
    let packs = fs::read_dir(run.path().join("packed-output")).unwrap().count();
    assert!(packs <= 4, "{packs} files for two workers");
}

#[test]
fn messages_in_packed_output_decide_about_success() {
    let dag = "TASK fails --failure-message Segfault ./say.sh Segfault\n\
               TASK lacks --success-message complete ./say.sh half\n\
               TASK has --success-message complete ./say.sh complete\n";
    let run = Run::new(dag);
    let output = run.run(&["--packed-output", "x.dag"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert_eq!(run.done(), ["has"]);
    let [_, err] = streams(&run, "lacks", 0).unwrap();
    assert!(
        err.ends_with("Task lacks failed: its output lacks the success message \"complete\"\n"),
        "{err}"
    );
}

#[test]
fn output_of_done_tasks_survives_kill_9() {
    const TASKS: usize = 400;
    let dag: String = (0..TASKS)
        .map(|task| format!("TASK t{task} ./say.sh t{task}\n"))
        .collect();
    let run = Run::new(&dag);
    // The run is killed when this many tasks are done.
    for least in [3, 40, 150] {
        let mut executor = run.start(&["--packed-output", "--monitord-hack", "x.dag"]);
        let started = Instant::now();
        while fs::read_to_string(run.path().join("x.dag.rescue")).map_or(0, |text| text.lines().count())
            < least
        {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{least} tasks are not done"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        executor.kill().unwrap();
        let status = executor.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(Signal::SIGKILL as i32),
            "{least}: it was killed"
        );
        check_done(&run);
    }
    let output = run.run(&["--packed-output", "--monitord-hack", "x.dag"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    check_done(&run);
    assert_eq!(run.done().into_iter().collect::<BTreeSet<_>>().len(), TASKS);
    assert!(!has_task_files(&run));
}

/// The latest attempt of each task that is done has all of its output.
fn check_done(run: &Run) {
    let mut output = TaskOutput::new(run.path());
    for task in run.done() {
        let last = output
            .last(task.as_bytes())
            .unwrap_or_else(|| panic!("{task} has no output"));
        let [out, err] = streams(run, &task, last).unwrap();
        assert!(
            out.starts_with(&format!("{task} out\n[cluster-task name={task}, ")),
            "{out}"
        );
        assert_eq!(err, format!("{task} err\n"));
    }
}
