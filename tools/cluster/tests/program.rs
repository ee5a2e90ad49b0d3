//! Runs the program and checks its output and exit codes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that fails may panic")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn program(dir: &Path) -> Command {
    let mut command = Command::new(testutils::programs::path("pegasus-cluster"));
    command.current_dir(dir);
    for name in [
        "SEQEXEC_CPUS",
        "SEQEXEC_PROGRESS_REPORT",
        "SEQEXEC_SETUP",
        "SEQEXEC_CLEANUP",
    ] {
        command.env_remove(name);
    }
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs a list with options. Returns the output of the program, and its text.
fn run(list: &str, options: &[&str]) -> (Output, String) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("list"), list).unwrap();
    let output = program(dir.path()).args(options).arg("list").output().unwrap();
    let printed = text(&output.stdout);
    (output, printed)
}

/// Returns the value of a key in a record.
fn value<'r>(record: &'r str, key: &str) -> &'r str {
    let (_, rest) = record
        .split_once(&format!("{key}="))
        .unwrap_or_else(|| panic!("no {key} in {record}"));
    rest.trim_start_matches('"')
        .split(['"', ',', ']'])
        .next()
        .unwrap_or_default()
}

fn records<'t>(printed: &'t str, kind: &str) -> Vec<&'t str> {
    let head = format!("[cluster-{kind} ");
    printed.lines().filter(|line| line.starts_with(&head)).collect()
}

const MIXED: &str = "#@ 1 echo A \n/bin/echo 'a  b' it\\'s\n/bin/sh -c 'exit 3'\n\n/bin/echo end\n";

#[test]
fn all_commands_are_run_and_counted() {
    let (output, printed) = run(MIXED, &[]);
    assert_eq!(output.status.code(), Some(5));
    let lines: Vec<&str> = printed.lines().filter(|l| !l.starts_with('[')).collect();
    assert_eq!(lines, ["a  b it's", "end"]);
    let tasks = records(&printed, "task");
    let found: Vec<[&str; 4]> = tasks
        .iter()
        .map(|t| ["id", "status", "line", "app"].map(|key| value(t, key)))
        .collect();
    assert_eq!(
        found,
        [
            ["1", "0", "2", "/bin/echo"],
            ["2", "768", "3", "/bin/sh"],
            ["3", "0", "5", "/bin/echo"]
        ]
    );
    let summary = records(&printed, "summary");
    assert_eq!(summary.len(), 1);
    let found = ["stat", "lines", "tasks", "succeeded", "failed", "extra"].map(|k| value(summary[0], k));
    assert_eq!(found, ["fail", "5", "3", "2", "1", "0"]);
    assert!(printed.ends_with("]\n"));
}

#[test]
fn options_decide_what_a_failure_means() {
    for (options, code, tasks, stat) in [
        (&["-f"][..], 5, "2", "fail"),
        (&["-e"], 0, "3", "ok"),
        (&["-S", "3"], 0, "3", "ok"),
        (&["-fS3"], 0, "3", "ok"),
    ] {
        let (output, printed) = run(MIXED, options);
        assert_eq!(output.status.code(), Some(code), "{options:?}");
        let summary = records(&printed, "summary")[0].to_owned();
        assert_eq!(
            (value(&summary, "tasks"), value(&summary, "stat")),
            (tasks, stat),
            "{options:?}"
        );
    }
}

#[test]
fn output_of_parallel_commands_is_kept_apart() {
    let line = "/bin/sh -c 'for i in 1 2 3 4 5; do echo $0; sleep 0.02; done; printf $0' ";
    let list: String = (0..6).map(|n| format!("{line} job{n}\n")).collect();
    let (output, printed) = run(&list, &["-n", "6"]);
    assert_eq!(output.status.code(), Some(0));
    let mut found = Vec::new();
    for part in printed.split("[cluster-task ").collect::<Vec<_>>() {
        let printed_by_one: Vec<&str> = part.lines().filter(|l| l.starts_with("job")).collect();
        if let Some(first) = printed_by_one.first() {
            assert_eq!(printed_by_one.len(), 6, "{printed}");
            assert!(printed_by_one.iter().all(|l| l == first), "{printed}");
            found.push((*first).to_owned());
        }
    }
    found.sort();
    assert_eq!(found, ["job0", "job1", "job2", "job3", "job4", "job5"]);
    assert_eq!(records(&printed, "task").len(), 6, "each record begins a line");
}

#[test]
fn commands_that_cannot_run_have_a_record() {
    let (output, printed) = run("/no/such/program x\n/bin/echo 'open\n/etc/hostname\n", &[]);
    assert_eq!(output.status.code(), Some(5));
    let states: Vec<&str> = records(&printed, "task")
        .iter()
        .map(|t| value(t, "status"))
        .collect();
    assert_eq!(states, ["32512", "32512", "32256"]);
    let errors = text(&output.stderr);
    assert!(errors.contains("cannot start /no/such/program"), "{errors}");
    assert!(errors.contains("line 2: the quote ' is never closed"), "{errors}");
}

#[test]
fn setup_and_cleanup_do_not_count() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("list"), "/bin/echo one\n").unwrap();
    let output = program(dir.path())
        .env("SEQEXEC_SETUP", "/bin/sh -c 'echo before; exit 9'")
        .env("SEQEXEC_CLEANUP", "/bin/echo after")
        .env("SEQEXEC_PROGRESS_REPORT", "progress")
        .args(["-s", "records", "list"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "before\none\nafter\n");
    let kept = fs::read_to_string(dir.path().join("records")).unwrap();
    let ids: Vec<&str> = records(&kept, "task").iter().map(|t| value(t, "id")).collect();
    assert_eq!(ids, ["setup", "1", "cleanup"]);
    let summary = records(&kept, "summary")[0];
    assert_eq!((value(summary, "extra"), value(summary, "failed")), ("2", "0"));
    let progress = fs::read_to_string(dir.path().join("progress")).unwrap();
    assert_eq!(
        progress.lines().filter(|l| l.contains(" event=start ")).count(),
        3
    );
    assert_eq!(progress.lines().filter(|l| l.contains(" event=end ")).count(), 3);
}

#[test]
fn the_list_may_be_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = program(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // The first command must not read the second one.
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"/bin/cat\n/bin/echo second\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("\nsecond\n"));
}

#[test]
fn each_kind_of_mistake_has_its_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("list"), "").unwrap();
    for (words, code) in [
        (&["-x"][..], 1),
        (&["-e", "-f", "list"], 1),
        (&["-s", "no/such/folder", "list"], 2),
        (&["missing"], 3),
        (&["."], 3),
        (&["list"], 0),
        (&["-h"], 0),
    ] {
        let output = program(dir.path()).args(words).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert_eq!(output.stderr.is_empty(), code == 0, "{words:?}");
    }
}

#[test]
fn after_a_signal_records_are_complete() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("list"),
        "/bin/sh -c 'echo up; exec sleep 60'\n/bin/echo never\n",
    )
    .unwrap();
    let out = fs::File::create(dir.path().join("out")).unwrap();
    let mut child = program(dir.path()).arg("list").stdout(out).spawn().unwrap();
    let start = Instant::now();
    while fs::read_to_string(dir.path().join("out")).unwrap() != "up\n" {
        assert!(start.elapsed() < Duration::from_secs(30), "nothing runs");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert!(
        start.elapsed() < Duration::from_secs(50),
        "it waited for the command"
    );
    let printed = fs::read_to_string(dir.path().join("out")).unwrap();
    assert_eq!(value(records(&printed, "task")[0], "status"), "15");
    assert_eq!(value(records(&printed, "summary")[0], "tasks"), "1");
    assert!(!printed.contains("never"));
}

#[test]
fn the_manual_shows_the_help() {
    let output = program(Path::new("/")).arg("--help").output().unwrap();
    let help = text(&output.stdout);
    let page = include_str!("../../../docs/manual/pegasus-cluster.md");
    assert!(
        page.contains(help.trim_end()),
        "docs/manual/pegasus-cluster.md is stale:\n{help}"
    );
}

/// The newest flag of kickstart was taken for the program, in plans with more than 1,000 tasks.
#[test]
fn a_flag_of_kickstart_is_not_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let kickstart = dir.path().join("pegasus-kickstart");
    std::os::unix::fs::symlink("/bin/true", &kickstart).unwrap();
    let kickstart = kickstart.display();
    let list = format!(
        "{kickstart} -n x -N 1 -M -s a=/etc/hosts /bin/true\n\
         env A=b {kickstart} -n x -N 2 -s@list -M -H /bin/ls -M\n"
    );
    let (output, printed) = run(&list, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let programs: Vec<&str> = records(&printed, "task")
        .iter()
        .map(|task| value(task, "app"))
        .collect();
    assert_eq!(programs, ["/bin/true", "/bin/ls"]);
}
