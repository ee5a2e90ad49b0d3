//! Runs with few open files: more tasks than these suffice for wait, and tasks have the limit of the user.

use std::process::{Command, Output};

use super::*;

/// Runs the DAG after `ulimit` with these options.
fn run_within(run: &Run, limits: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new("/bin/sh");
    let script = format!("ulimit {limits} && exec \"$@\"");
    command
        .args(["-c", &script, "sh", programs::path("pegasus-mpi-cluster")])
        .args(arguments)
        .arg("x.dag")
        .current_dir(run.directory.path());
    testutils::launcher::forget_launcher(&mut command);
    command.output().unwrap()
}

const LOCAL: [&str; 3] = ["--per-task-stdio", "--workers", "128"];
const AGENT: [&str; 7] = [
    "--per-task-stdio",
    "--agents",
    "1",
    "--launch",
    "local",
    "--slots",
    "128",
];

/// Checks that a run succeeds in which all tasks have one attempt. Returns what it printed.
fn succeeds(run: &Run, limits: &str, arguments: &[&str]) -> String {
    let output = run_within(run, limits, arguments);
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{limits} {arguments:?}: {text}");
    let second = fs::read_dir(run.directory.path()).unwrap();
    let second = second.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().ends_with("001")
    });
    assert_eq!(second.count(), 0, "{limits}: {text}");
    text
}

#[test]
fn a_usual_soft_limit_lets_128_tasks_of_kickstart_run_at_a_time() {
    for (limits, arguments) in [("-Sn 1024", &AGENT[..]), ("-Sn 256", &LOCAL[..])] {
        let run = Run::new(&["KS /bin/sleep 0.2"; 200]);
        let text = succeeds(&run, limits, arguments);
        assert!(!text.contains("ulimit"), "{text}");
    }
}

#[test]
fn tasks_wait_if_the_hard_limit_is_low() {
    for arguments in [&AGENT[..], &LOCAL[..]] {
        let run = Run::new(&["KS /bin/sleep 0.1"; 60]);
        let text = succeeds(&run, "-n 256", arguments);
        assert!(text.contains("runs 16 tasks at a time, not 128"), "{text}");
    }
}

#[test]
fn tasks_with_many_pipes_wait_for_each_other() {
    let forwards: String = (0..20).map(|n| format!("-f P{n}=shared{n} ")).collect();
    let task = format!("{forwards} /bin/sh -c \"sleep 0.1; echo x >&3\"");
    let run = Run::new(&[&task; 30]);
    let text = succeeds(&run, "-n 256", &LOCAL);
    assert!(text.contains("waits until files are closed"), "{text}");
    assert_eq!(run.text("shared0"), "x\n".repeat(30));
}

#[test]
fn programs_of_tasks_have_the_soft_limit_of_the_user() {
    let tasks = [
        "/bin/sh -c \"ulimit -Sn > plain\"".to_owned(),
        "KS /bin/sh -c \"ulimit -Sn > recorded\"".to_owned(),
    ];
    for arguments in [&AGENT[..], &LOCAL[..]] {
        let run = Run::new(&tasks);
        succeeds(&run, "-Sn 321", arguments);
        for name in ["plain", "recorded"] {
            assert_eq!(run.text(name), "321\n", "{name} {arguments:?}");
        }
    }
}
