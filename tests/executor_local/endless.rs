//! Files that never end, which a task or another program puts in the place of files of the run.

use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::Run;

/// Longest time that a run with such a file may take, in seconds.
const LIMIT: u64 = 60;

/// Runs a DAG. Returns exit code and messages, and fails if it does not end, or needs much memory.
fn run(run: &Run, arguments: &[&str], case: &str) -> (Option<i32>, String) {
    let command = run.command(arguments);
    let mut limited = std::process::Command::new("prlimit");
    limited
        .arg(format!("--as={}", 4_u64 << 30))
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(run.path())
        .stdout(std::process::Stdio::null())
        .stderr(std::fs::File::create(run.path().join("messages")).unwrap());
    let mut child = limited.spawn().unwrap();
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if start.elapsed().as_secs() > LIMIT => {
                let _ = child.kill();
                panic!("{case}: the run does not end");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    (status.code(), run.read("messages"))
}

#[test]
fn files_of_sub_workflows_that_never_end_fail_the_sub_workflow() {
    let dag = "printf 'TASK t /bin/true\\n' > s.dag;";
    for (make, is_refused) in [
        ("mkfifo s.dag".to_owned(), true),
        ("ln -s /dev/zero s.dag".to_owned(), true),
        ("truncate -s 64G s.dag".to_owned(), true),
        (format!("{dag} mkfifo s.dag.rescue"), true),
        // A device stands for no rescue file.
        (format!("{dag} ln -s /dev/zero s.dag.rescue"), false),
        (format!("{dag} truncate -s 64G s.dag.rescue"), true),
        (format!("{dag} mkfifo s.dag.rescue.journal"), true),
        (format!("{dag} mkfifo s.dag.dagman.out jobstate.log"), true),
        (format!("{dag} mkfifo s.dag.lock s.dag.guests"), false),
    ] {
        let place = Run::new("TASK a ./make.sh\nSUBDAG EXTERNAL S sub/s.dag\nEDGE a S\nTASK b ./say.sh b\n");
        place.script("make.sh", &format!("mkdir sub; cd sub; {make}"));
        let options = ["--monitord-hack", "--jobstate-log", "x.dag"];
        let (code, messages) = run(&place, &options, &make);
        assert_eq!(code, Some(i32::from(is_refused)), "{make}: {messages}");
        assert_eq!(place.read("ran"), "b\n", "the other task runs");
        if is_refused {
            assert!(messages.contains("S"), "{make}: {messages}");
        }
    }
}

/// A file that tasks forward data to, or a pack of the run, is a FIFO.
#[test]
fn files_of_the_run_that_never_end_hold_up_no_end() {
    for (dag, options, code) in [
        (
            "TASK a -f OUT=all /bin/sh -c 'echo x >&$OUT'\nTASK b ./fifo.sh all\nEDGE a b\n",
            &["--sync-interval", "10"][..],
            0,
        ),
        (
            "TASK a -f OUT=all /bin/sh -c 'echo x >&$OUT'\nTASK b ./fifo.sh all\nEDGE a b\n",
            &["--no-forward-journal"],
            0,
        ),
        ("TASK a /bin/true\n", &["--packed-output"], 1),
        ("TASK a /bin/true\n", &[], 1),
    ] {
        let place = Run::new(dag);
        place.script("fifo.sh", "rm $1; mkfifo $1; sleep 0.3");
        if options.contains(&"--packed-output") {
            let packs = place.path().join("packed-output");
            std::fs::create_dir(&packs).unwrap();
            mkfifo(&packs.join("x.dag.1"), Mode::S_IRWXU).unwrap();
        }
        if options.is_empty() {
            mkfifo(&place.path().join("x.dag.out.1"), Mode::S_IRWXU).unwrap();
        }
        let (ended, messages) = run(&place, &[options, &["x.dag"]].concat(), dag);
        assert_eq!(ended, Some(code), "{options:?}: {messages}");
        assert!(code == 0 || messages.contains("is a FIFO"), "{messages}");
    }
}

#[test]
fn inputs_and_outputs_of_tasks_that_never_end_fail_the_attempt() {
    let place = Run::new(
        "TASK a --stdin fifo /bin/cat\nTASK b --failure-message Boom ./evil.sh b\nTASK c --stdin /dev/null /bin/cat\n\
         TASK d -F data=all ./fifo.sh\nTASK e --success-message end ./evil.sh e\n",
    );
    mkfifo(&place.path().join("fifo"), Mode::S_IRWXU).unwrap();
    place.script("evil.sh", "rm $1.out.000; mkfifo $1.out.000");
    place.script("fifo.sh", "mkfifo data");
    let (code, messages) = run(&place, &["--per-task-stdio", "x.dag"], "tasks");
    assert_eq!(code, Some(1), "{messages}");
    let done = place.read("x.dag.rescue");
    let names: Vec<&str> = done.split_whitespace().filter(|word| *word != "DONE").collect();
    assert_eq!(names, ["c"], "{messages}");
}
