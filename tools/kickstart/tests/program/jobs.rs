//! Side jobs, streams, time limits, signals, and the log.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::common::{Record, Run, Scene};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn with_jobs(scene: &Scene, jobs: &[(&str, &str)], arguments: &[&str]) -> Run {
    let mut command = scene.command(arguments);
    scene.finish(command.envs(jobs.iter().copied()).output().unwrap())
}

#[test]
fn side_jobs_run_in_order() {
    let scene = Scene::new();
    let jobs = [
        ("KICKSTART_SETUP", "/bin/echo setup"),
        ("GRIDSTART_PREJOB", "echo 'pre  job'"),
        ("KICKSTART_POSTJOB", "/bin/echo \"$PATH\""),
        ("KICKSTART_CLEANUP", "/bin/echo cleanup"),
    ];
    let run = with_jobs(&scene, &jobs, &["/bin/echo", "main"]);
    let record = run.record();
    assert_eq!((run.code, run.messages.as_str()), (0, ""));
    assert_eq!(
        record.get("files/stdout/data"),
        "setup\npre  job\nmain\n/usr/bin:/bin\ncleanup\n"
    );
    for job in ["setup", "prejob", "mainjob", "postjob", "cleanup"] {
        assert_eq!(record.get(&format!("{job}/status/raw")), "0");
    }
    assert!(!record.has("limits"));
}

#[test]
fn a_failing_prejob_stops_the_chain() {
    let scene = Scene::new();
    let jobs = [
        ("KICKSTART_PREJOB", "/bin/sh -c 'exit 5'"),
        ("KICKSTART_CLEANUP", "/bin/echo bye"),
    ];
    let run = with_jobs(&scene, &jobs, &["/bin/echo", "main"]);
    let record = run.record();
    assert_eq!(run.code, 5);
    assert!(!record.has("mainjob") && !record.has("postjob"));
    assert_eq!(record.get("files/stdout/data"), "bye\n");
}

#[test]
fn a_failing_postjob_gives_the_exit_code() {
    let scene = Scene::new();
    let post = [("KICKSTART_POSTJOB", "/bin/sh -c 'exit 6'")];
    assert_eq!(with_jobs(&scene, &post, &["/bin/true"]).code, 6);
    let run = with_jobs(&scene, &post, &["/bin/sh", "-c", "exit 2"]);
    assert!(run.code == 2 && !run.record().has("postjob"));
}

#[test]
fn failing_setup_and_cleanup_are_recorded_but_do_not_count() {
    let scene = Scene::new();
    let jobs = [
        ("KICKSTART_SETUP", "/bin/false"),
        ("KICKSTART_CLEANUP", "nosuchcmd"),
        ("KICKSTART_PREJOB", "  "),
    ];
    let run = with_jobs(&scene, &jobs, &["/bin/true"]);
    let record = run.record();
    assert_eq!(run.code, 0);
    assert_eq!(record.get("setup/status/raw"), "256");
    assert_eq!(record.get("cleanup/status/raw"), "-127");
    assert!(record.has("limits") && !record.has("prejob"));
    assert!(run.messages.contains("cleanup is skipped"), "{}", run.messages);
}

#[test]
fn the_wrapper_precedes_the_program() {
    let scene = Scene::new();
    let run = with_jobs(
        &scene,
        &[("KICKSTART_WRAPPER", "/usr/bin/env X=1")],
        &["/bin/sh", "-c", "echo \\$X"],
    );
    let record = run.record();
    assert_eq!(record.get("files/stdout/data"), "1\n");
    assert!(record.get("mainjob/executable/file_name").ends_with("/env"));
    assert_eq!(record.get("mainjob/argument_vector/1"), "/bin/sh");
}

#[test]
fn prepended_directories_are_searched_first() {
    let scene = Scene::new();
    fs::create_dir(scene.path("bin")).unwrap();
    scene.write("bin/mine", "#!/bin/sh\necho $PATH\n");
    fs::set_permissions(scene.path("bin/mine"), fs::Permissions::from_mode(0o644)).unwrap();
    let path = scene.path("bin");
    let jobs = [("KICKSTART_PREPEND_PATH", path.to_str().unwrap())];
    let run = with_jobs(&scene, &jobs, &["mine"]);
    assert_eq!(
        (run.code, run.record().get("mainjob/status/failure_error")),
        (127, "13   Permission denied")
    );
    fs::set_permissions(scene.path("bin/mine"), fs::Permissions::from_mode(0o755)).unwrap();
    let run = with_jobs(&scene, &jobs, &["mine"]);
    assert_eq!(
        run.record().get("files/stdout/data"),
        format!("{}:/usr/bin:/bin\n", path.display())
    );
}

#[test]
fn programs_are_made_executable_on_request() {
    let scene = Scene::new();
    scene.write("staged", "#!/bin/sh\necho ran\n");
    assert_eq!(scene.run(&["./staged"]).code, 127);
    assert_eq!(
        scene.run(&["-X", "./staged"]).record().get("files/stdout/data"),
        "ran\n"
    );
}

#[test]
fn argument_files_give_program_and_arguments() {
    let scene = Scene::new();
    scene.write("args", "/bin/echo\na b\n\n$PATH\nlast");
    let run = scene.run(&["-H", "-I", "args"]);
    assert_eq!(run.record().get("files/stdout/data"), "a b /usr/bin:/bin last\n");
}

#[test]
fn streams_can_be_files_or_inherited() {
    let scene = Scene::new();
    scene.write("in", "input\n");
    let script = "cat; echo err >&2";
    let run = scene.run(&["-i", "in", "-o", "out", "-e", "!err", "/bin/sh", "-c", script]);
    let record = run.record();
    assert_eq!(
        (scene.read("out").as_str(), scene.read("err").as_str()),
        ("input\n", "err\n")
    );
    assert_eq!(
        (record.get("files/stdout/size"), record.find("files/stdout/data")),
        ("6", None)
    );
    assert!(record.get("files/stdin/file_name").ends_with("/run/in"));
    scene.run(&["-i", "in", "-o", "^out", "-e", "!err", "/bin/sh", "-c", script]);
    assert_eq!(
        (scene.read("out.000").as_str(), scene.read("err").as_str()),
        ("input\n", "err\nerr\n")
    );
    let run = scene.run(&["-o", "-", "-e", "-", "/bin/sh", "-c", "echo shared; echo err >&2"]);
    assert!(run.text.starts_with("shared\n- invocation: True\n") && run.messages == "err\n");
    let record = Record::parse(run.text.strip_prefix("shared\n").unwrap());
    assert_eq!(record.get("files/stdout/descriptor_number"), "1");
}

#[test]
fn streams_that_cannot_be_opened_end_the_job() {
    let scene = Scene::new();
    for arguments in [["-i", "nofile", "/bin/true"], ["-o", "no/dir", "/bin/true"]] {
        let run = scene.run(&arguments);
        assert_eq!((run.code, run.record().get("mainjob/status/raw")), (126, "32256"));
        assert!(run.messages.contains(arguments[1]), "{}", run.messages);
    }
}

#[test]
fn the_working_directory_is_made_and_entered() {
    let scene = Scene::new();
    let run = scene.run(&["-W", "new", "-o", "out", "-l", "log", "-s", "lfn=out", "/bin/pwd"]);
    assert_eq!((run.code, run.text.as_str()), (0, ""));
    let here = fs::canonicalize(scene.path("new")).unwrap();
    assert_eq!(scene.read("new/out"), format!("{}\n", here.display()));
    let record = Record::parse(&scene.read("new/log"));
    assert_eq!(record.get("cwd"), here.to_str().unwrap());
    assert!(record.get("files/lfn/file_name").ends_with("/new/out"));
    assert_eq!(scene.run(&["-W", "new", "/bin/true"]).code, 0);
    assert_eq!(scene.run(&["-W", "a/b", "/bin/true"]).code, 127);
}

#[test]
fn without_a_log_the_record_goes_to_standard_output() {
    let scene = Scene::new();
    for _ in 0..2 {
        assert_eq!(scene.run(&["-F", "-l", "log", "/bin/true"]).text, "");
    }
    assert_eq!(scene.read("log").matches("- invocation: True\n").count(), 2);
    let run = scene.run(&["-l", "no/log", "/bin/true"]);
    assert_eq!((run.code, run.record().get("mainjob/status/raw")), (0, "0"));
    assert!(run.messages.contains("no/log"), "{}", run.messages);
}

#[test]
fn a_record_that_cannot_be_written_is_an_error() {
    let scene = Scene::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = scene.finish(scene.command(&["/bin/true"]).stdout(full).output().unwrap());
    assert_eq!(run.code, 1);
    assert!(
        run.messages.contains("No space left on device"),
        "{}",
        run.messages
    );
}

#[test]
fn unreadable_outputs_fail_the_invocation() {
    if nix::unistd::geteuid().is_root() {
        // Root can read every file.
        return;
    }
    let scene = Scene::new();
    let run = scene.run(&["-s", "l=out", "/bin/sh", "-c", "echo x > out; chmod 0 out"]);
    assert_eq!(
        (run.code, run.record().get("files/l/integrity_error")),
        (1, "failed creating a checksum")
    );
}

#[test]
fn missing_required_outputs_fail_the_invocation() {
    const MESSAGE: &str = "the program ended with success, but did not write its declared output: b";
    let scene = Scene::new();
    std::fs::write(scene.path("out.lof"), "c=c\n# required\na=a\nb=b\n").expect("a list");
    for check in [&["-M", "-s", "a", "-s", "b"][..], &["-s", "@out.lof"]] {
        let run = scene.run(&[check, &["/bin/touch", "a"]].concat());
        assert_eq!(
            (run.code, run.messages.contains(MESSAGE)),
            (1, true),
            "{}",
            run.messages
        );
        assert_eq!(run.record().get("mainjob/status/regular_exitcode"), "1");
        let run = scene.run(&[check, &["/bin/sh", "-c", "exit 3"]].concat());
        assert_eq!((run.code, run.messages.contains(MESSAGE)), (3, false));
    }
    let unchecked = scene.run(&["-s", "b", "/bin/true"]);
    assert_eq!(unchecked.code, 0);
}

#[test]
fn time_limits_end_the_job() {
    let scene = Scene::new();
    let start = Instant::now();
    let jobs = [
        ("KICKSTART_POSTJOB", "/bin/echo post"),
        ("KICKSTART_CLEANUP", "/bin/echo cleanup"),
    ];
    let run = with_jobs(
        &scene,
        &jobs,
        &[
            "-k",
            "1",
            "-K",
            "1",
            "/bin/sh",
            "-c",
            "trap '' TERM; sleep 9; sleep 9",
        ],
    );
    let record = run.record();
    assert!(start.elapsed() < Duration::from_secs(8));
    assert_eq!((run.code, record.get("mainjob/status/raw")), (14, "9"));
    assert_eq!(record.get("files/stdout/data"), "cleanup\n");
    assert!(run.messages.contains("sending SIGTERM") && run.messages.contains("sending SIGKILL"));
}

#[test]
fn a_job_may_save_its_state_before_sigkill() {
    let scene = Scene::new();
    let script = "trap 'echo saved > state; exit 0' TERM; sleep 9 & wait";
    let run = scene.run(&["-k", "1", "-K", "5", "-s", "state", "/bin/sh", "-c", script]);
    assert_eq!((run.code, run.record().get("mainjob/status/raw")), (14, "0"));
    assert_eq!(
        (scene.read("state").as_str(), run.record().get("files/state/size")),
        ("saved\n", "6")
    );
}

/// Waits for the file `ready`, which the job makes.
fn await_ready(scene: &Scene) {
    let start = Instant::now();
    while !scene.path("ready").exists() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "the job does not start"
        );
        sleep(Duration::from_millis(5));
    }
}

fn start(scene: &Scene, script: &str) -> Child {
    let mut command = scene.command(&["-n", "tr", "/bin/sh", "-c", script]);
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    await_ready(scene);
    child
}

#[test]
fn signals_are_forwarded_and_the_record_is_written() {
    for (signal, code) in [
        (Signal::SIGTERM, 143),
        (Signal::SIGINT, 130),
        (Signal::SIGHUP, 129),
        (Signal::SIGUSR1, 138),
    ] {
        let scene = Scene::new();
        let child = start(&scene, ": > ready; exec sleep 20");
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
        let run = scene.finish(child.wait_with_output().unwrap());
        assert_eq!(run.code, code);
        assert_eq!(
            run.record().get("mainjob/status/raw"),
            (signal as i32).to_string()
        );
    }
}

#[test]
fn jobs_start_with_default_signals() {
    let scene = Scene::new();
    let run = scene.run(&["/bin/cat", "/proc/self/status"]);
    let status = run.record().get("files/stdout/data").to_owned();
    // Ignored signals stay ignored: `nohup` relies on it.
    for set in ["SigBlk", "SigCgt"] {
        assert!(
            status.contains(&format!("{set}:\t0000000000000000\n")),
            "{status}"
        );
    }
}

#[test]
fn an_ignored_sigchld_changes_nothing() {
    let scene = Scene::new();
    let script = format!(
        "trap '' CHLD; exec {} /bin/sh -c 'exit 4'",
        testutils::programs::path("pegasus-kickstart")
    );
    let output = std::process::Command::new("/bin/sh")
        .args(["-c", &script])
        .output()
        .unwrap();
    assert_eq!(scene.finish(output).code, 4);
}

#[test]
fn jobs_inherit_no_descriptors() {
    let scene = Scene::new();
    let arguments = ["/bin/ls", "/proc/self/fd"];
    let bare = std::process::Command::new(arguments[0])
        .arg(arguments[1])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let bare = String::from_utf8(bare.stdout).unwrap();
    assert_eq!(scene.run(&arguments).record().get("files/stdout/data"), bare);
}

#[test]
fn output_after_the_job_does_not_delay_the_record() {
    let scene = Scene::new();
    let start = Instant::now();
    let run = scene.run(&["/bin/sh", "-c", "sleep 5 & echo done"]);
    assert!(run.code == 0 && start.elapsed() < Duration::from_secs(4));
}
