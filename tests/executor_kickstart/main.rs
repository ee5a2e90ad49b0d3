//! Kickstart tasks leave the same records, run by a task server or by a kickstart process each.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

mod attack;
mod built_ins;
mod lite;
mod open_files;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use testutils::programs;

fn kickstart() -> &'static Path {
    Path::new(programs::path("pegasus-kickstart"))
}

/// Path of a program beside kickstart.
fn beside(name: &str) -> Vec<u8> {
    kickstart().with_file_name(name).into_os_string().into_vec()
}

/// Returns the words of a task that runs a script under kickstart; `before` precedes the shell.
fn sh(before: &str, script: &str) -> Vec<u8> {
    // Only the shell must expand variables, not kickstart.
    let script = script.replace('$', "\\$");
    let script = pmc_dag::words::quote(script.as_bytes()).into_owned();
    [before.as_bytes(), b" /bin/sh -c ", &script].concat()
}

struct Run {
    directory: TempDir,
}

impl Run {
    /// A DAG of tasks `t0`, `t1`, …; `KS` is kickstart, `TR` is `pegasus-transfer`, `RC` is
    /// `pegasus-rc-client`, `LITE` is `pegasus-lite`.
    fn new<T: AsRef<[u8]>>(tasks: &[T]) -> Self {
        let mut dag = Vec::new();
        for (number, task) in tasks.iter().enumerate() {
            dag.extend_from_slice(format!("TASK t{number} ").as_bytes());
            let words = task.as_ref().split(|byte| *byte == b' ');
            let words = words.map(|word| match word {
                b"KS" => kickstart().as_os_str().as_bytes().to_vec(),
                b"TR" => beside("pegasus-transfer"),
                b"RC" => beside("pegasus-rc-client"),
                b"LITE" => beside("pegasus-lite"),
                word => word.to_vec(),
            });
            dag.extend(words.collect::<Vec<_>>().join(&b' '));
            dag.push(b'\n');
        }
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("x.dag"), dag).unwrap();
        Self { directory }
    }

    fn in_order(self, tasks: usize) -> Self {
        use std::io::Write as _;
        let mut options = fs::OpenOptions::new();
        let mut dag = options.append(true).open(self.path("x.dag")).unwrap();
        for number in 1..tasks {
            writeln!(dag, "EDGE t{} t{number}", number - 1).unwrap();
        }
        self
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    /// The record of the first attempt of a task.
    fn record(&self, task: usize) -> String {
        self.text(&format!("t{task}.out.000"))
    }

    fn command(&self, workers: u32, arguments: &[&str]) -> Command {
        let workers = workers.to_string();
        self.executor(&[&["--workers", &workers], arguments].concat())
    }

    fn executor(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(testutils::programs::path("pegasus-mpi-cluster"));
        command
            .current_dir(self.directory.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .arg("--per-task-stdio")
            .args(arguments)
            .arg("x.dag")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, workers: u32, arguments: &[&str]) -> Output {
        self.command(workers, arguments).output().unwrap()
    }

    /// Waits for a file with a line and returns the line.
    fn wait_for(&self, name: &str) -> String {
        let text = || fs::read_to_string(self.path(name)).unwrap_or_default();
        assert!(wait(|| text().ends_with('\n')), "{name}");
        text().trim().to_owned()
    }

    fn wait_for_pid(&self, name: &str) -> Pid {
        Pid::from_raw(self.wait_for(name).parse().unwrap())
    }
}

fn wait(mut done: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !done() && started.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    done()
}

fn is_running(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    !status.is_empty() && !status.contains(") Z ")
}

fn assert_success(output: &Output) {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The value of the first line with this key, without blanks.
fn value<'a>(record: &'a str, key: &str) -> &'a str {
    let mut lines = record.lines().filter_map(|line| line.trim().split_once(':'));
    let found = lines.find(|(name, _)| *name == key);
    found.unwrap_or_else(|| panic!("no {key} in {record}")).1.trim()
}

/// The lines of the records of kickstart and executor, without values that vary between runs.
fn masked(text: &[u8]) -> Vec<String> {
    const VARYING: &str = "start duration pid nlink utime stime maxrss minflt majflt inblock outblock nvcsw nivcsw nsignals \
                           inode mtime atime ctime blocks descriptor temporary_name ram_free ram_shared ram_buffer \
                           swap_free load_min1 load_min5 load_min15 cpu_speed \"PMC_KICKSTART\" \"KICKSTART_METADATA\" \
                           \"KICKSTART_INTEGRITY_DATA\" \"PMC_NODE\" \"PMC_TOKENS\"";
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().filter(|line| {
        // The record counts only states with processes in them.
        !["procs_", "task_"].iter().any(|key| line.trim().starts_with(key))
    });
    let mask = |line: &str| match line.split_once(':') {
        Some((key, _)) if VARYING.split(' ').any(|varying| varying == key.trim()) => format!("{key}: *"),
        _ if line.starts_with("[cluster-task") => {
            let (head, rest) = line.split_once("start=").unwrap();
            format!("{head}{}", rest.split_once("status=").unwrap().1)
        }
        _ if line.starts_with("pegasus-kickstart[") => line.split_once(']').unwrap().1.to_owned(),
        _ => line.to_owned(),
    };
    lines.map(mask).collect()
}

/// Lines of the run `from`, with the directory replaced by that of `to`.
fn moved(lines: Vec<String>, from: &Run, to: &Run) -> Vec<String> {
    let [from, to] = [from, to].map(|run| run.directory.path().to_str().unwrap());
    lines.into_iter().map(|line| line.replace(from, to)).collect()
}

/// Panics with the first line that differs.
fn assert_same(here: &[String], there: &[String], what: &str) {
    let differs = here.iter().zip(there).find(|(here, there)| here != there);
    assert_eq!(differs, None, "{what}");
    assert_eq!(here.len(), there.len(), "{what}");
}

#[test]
fn served_records_equal_those_of_kickstart_processes() {
    let tasks: Vec<Vec<u8>> = vec![
        b"KS /bin/true".to_vec(),
        b"KS -n ns::tr:1 -N ID1 -R site -L wf -T 2026-11-21T06:10:05+00:00 -H /bin/echo a \"b  c\" 'd$e'"
            .to_vec(),
        sh("KS -f -q", "echo out; echo err >&2; exit 3"),
        b"KS -i input -o out -e !err /bin/cat".to_vec(),
        sh("KS -o - -e - -i -", "cat; echo plain; echo error >&2"),
        sh("KS -S a=input -s b=made -s none", "echo made > made"),
        b"KS -W work/dir -l ../log /bin/pwd".to_vec(),
        b"KS -w work -l log -F /bin/pwd".to_vec(),
        sh("KS", "kill -SEGV $$"),
        b"KS -k 1 -K 1 /bin/sleep 60".to_vec(),
        b"KS -B 10 /bin/echo a text of more than ten letters".to_vec(),
        b"KS /bin/echo \xff\xfe \xc3\xa9 \t".to_vec(),
        b"KS no-such-program".to_vec(),
        b"KS -I arguments".to_vec(),
        b"KS -t /bin/true".to_vec(),
        b"KS".to_vec(),
        b"KS -V".to_vec(),
        sh(
            "/usr/bin/env A=1 PMC_TASK=mine KICKSTART_SETUP=/bin/pwd KICKSTART_POSTJOB=/bin/false KS -f",
            "echo $A$PMC_TASK",
        ),
        sh(
            "KS",
            "i=0; while [ $i -lt 30000 ]; do echo a line of text $i; i=$((i+1)); done",
        ),
        sh(
            "KS",
            "echo \"    key:\" > $KICKSTART_INTEGRITY_DATA; echo \"      sha256: 0\" >> $KICKSTART_INTEGRITY_DATA; echo x > $KICKSTART_METADATA",
        ),
        // The job prints its environment.
        sh(
            "KS",
            "env | grep -v -e KICKSTART -e PMC_TOKENS -e PMC_NODE= | sort; umask; pwd; ulimit -a; ls /proc/self/fd; grep -e Sig[BIC] -e Cpus /proc/self/status",
        ),
        sh(
            "KS",
            "set -- $(cat /proc/$$/stat); [ $4 = $5 ] && echo its parent leads the group",
        ),
    ];
    let run = |how: &str| {
        let run = Run::new(&tasks).in_order(0);
        for (name, text) in [
            ("input", "some input\n"),
            ("err", "old\n"),
            ("arguments", "/bin/echo\nx\n"),
        ] {
            fs::write(run.path(name), text).unwrap();
        }
        fs::create_dir(run.path("work")).unwrap();
        let output = run.command(1, &[]).env("PMC_KICKSTART", how).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        run
    };
    let (served, executed) = (run("serve"), run("exec"));
    for (task, words) in tasks.iter().enumerate() {
        for kind in ["out", "err"] {
            let name = format!("t{task}.{kind}.000");
            let (here, there) = (masked(&served.read(&name)), masked(&executed.read(&name)));
            let here = moved(here, &served, &executed);
            assert_same(&here, &there, &format!("{name}: {:?}", OsStr::from_bytes(words)));
        }
    }
    for name in ["out", "err", "made", "work/log"] {
        let got = moved(masked(&served.read(name)), &served, &executed);
        assert_same(&got, &masked(&executed.read(name)), name);
    }
    assert!(served.record(21).contains("its parent leads the group"));
    // Served tasks share a process; the others have one process each.
    let servers = |run: &Run| -> BTreeSet<String> {
        let records = (0..12).map(|task| run.record(task));
        records
            .filter(|record| record.contains("\n  pid: "))
            .map(|record| value(&record, "pid").to_owned())
            .collect()
    };
    // A server ends after a large record.
    let shared = servers(&served);
    assert!(shared.len() <= 2, "{shared:?}");
    assert!(servers(&executed).len() > 8);
    // The peak memory is that of the job, not of its parent.
    let memory = |run: &Run| value(&run.record(0), "maxrss").parse::<u64>().unwrap();
    assert!(memory(&served) < memory(&executed) + 4096, "{}", memory(&served));
}

#[test]
fn many_tasks_share_a_few_servers() {
    let run = Run::new(&["KS /bin/echo hello"; 100]);
    assert_success(&run.run(4, &[]));
    let records: Vec<String> = (0..100).map(|task| run.record(task)).collect();
    assert!(records.iter().all(|record| record.contains("hello")));
    let servers: BTreeSet<&str> = records.iter().map(|record| value(record, "pid")).collect();
    assert!((1..=4).contains(&servers.len()), "{servers:?}");
    for server in servers {
        assert!(!is_running(Pid::from_raw(server.parse().unwrap())));
    }
}

#[test]
fn without_a_server_each_task_starts_kickstart() {
    let executor = Path::new(programs::path("pegasus-mpi-cluster"));
    // A server that fails, one that is not a program, and one without execute permission.
    for (server, mode) in [
        ("#!/bin/sh\nexit 3\n", 0o755),
        ("no program\n", 0o755),
        ("", 0o644),
    ] {
        let bin = tempfile::tempdir_in(executor.parent().unwrap()).unwrap();
        let here = |name: &str| bin.path().join(name);
        fs::hard_link(executor, here("executor")).unwrap();
        fs::hard_link(kickstart(), here("pegasus-kickstart")).unwrap();
        fs::write(here("pegasus-kickstart-server"), server).unwrap();
        fs::set_permissions(here("pegasus-kickstart-server"), fs::Permissions::from_mode(mode)).unwrap();
        let task = format!("{} /bin/echo hello", here("pegasus-kickstart").display());
        let run = Run::new(&vec![task; 6]);
        let output = Command::new(here("executor"))
            .current_dir(run.directory.path())
            .args(["--per-task-stdio", "--workers", "2", "x.dag"])
            .output()
            .unwrap();
        assert_success(&output);
        let records: Vec<String> = (0..6).map(|task| run.record(task)).collect();
        assert!(records.iter().all(|record| record.contains("hello")));
        let processes: BTreeSet<&str> = records.iter().map(|record| value(record, "pid")).collect();
        assert_eq!(processes.len(), 6, "{server}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        let warnings = stderr.matches("pegasus-kickstart-server running: ").count();
        assert_eq!(warnings, 1, "{stderr}");
    }
}

#[test]
fn run_without_tasks_starts_no_server() {
    let run = Run::new(&["KS /bin/true"]);
    assert_success(&run.run(2, &[]));
    for _ in 0..5 {
        // All tasks are done.
        let output = run.run(2, &["--rescue", "x.dag.rescue"]);
        assert_success(&output);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("kickstart"), "{stderr}");
    }
    assert!(!run.path("t0.out.001").exists());
}

#[test]
fn killed_server_fails_only_its_task() {
    let tasks = [
        "KS /bin/true".into(),
        sh("KS", "echo $PPID > server; echo $$ > job; exec sleep 60"),
        "KS /bin/true".into(),
    ];
    let run = Run::new(&tasks);
    let executor = run.command(1, &[]).spawn().unwrap();
    let (server, job) = (run.wait_for_pid("server"), run.wait_for_pid("job"));
    kill(server, Signal::SIGKILL).unwrap();
    let output = executor.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("Task t1: its kickstart exited on signal 9 and left no record"),
        "{errors}"
    );
    assert!(run.record(1).contains("status=9"));
    assert_eq!(value(&run.record(0), "pid"), server.to_string());
    assert_ne!(value(&run.record(2), "pid"), server.to_string());
    // The job survives, as it does without a server.
    let _ = kill(job, Signal::SIGKILL);
}

#[test]
fn jobs_end_when_the_executor_is_killed() {
    let run = Run::new(&[sh(
        "KS",
        "echo $PPID > server; sleep 1000 & echo $! > child; setsid sleep 1000 & echo $! > stray; echo $$ > job; wait",
    )]);
    let mut executor = run.command(1, &[]).spawn().unwrap();
    let processes = ["server", "child", "stray", "job"].map(|name| run.wait_for_pid(name));
    executor.kill().unwrap();
    executor.wait().unwrap();
    for process in processes {
        assert!(wait(|| !is_running(process)), "{process}");
    }
}

#[test]
fn time_limits_and_aborts_end_the_job() {
    let tasks = ["KS /bin/sleep 60", "KS /bin/true"];
    let run = Run::new(&tasks);
    let started = Instant::now();
    let output = run.run(1, &["--runtime-limit", "0.3"]);
    assert!(started.elapsed() < Duration::from_secs(30));
    assert_eq!(output.status.code(), Some(1));
    let (ended, next) = (run.record(0), run.record(1));
    assert!(
        ended.contains("signal_number: 15") || ended.contains("Terminated"),
        "{ended}"
    );
    assert!(ended.contains("status=36608"), "{ended}");
    assert!(next.contains("regular_exitcode: 0"), "{next}");

    let run = Run::new(&[sh("KS", "echo $$ > job; exec sleep 60"), "KS /bin/true".into()]);
    let executor = run.command(1, &[]).spawn().unwrap();
    let job = run.wait_for_pid("job");
    stop(&executor);
    assert_eq!(executor.wait_with_output().unwrap().status.code(), Some(1));
    assert!(!is_running(job));
    assert!(!run.path("t1.out.000").exists());
}

fn stop(executor: &Child) {
    kill(Pid::from_raw(executor.id().cast_signed()), Signal::SIGINT).unwrap();
}

#[test]
fn processes_of_an_earlier_task_outlive_a_time_limit() {
    let tasks = [
        sh(
            "KS",
            "env -u PMC_TOKENS sleep 60 > /dev/null 2>&1 & echo $! > left",
        ),
        "KS /bin/sleep 60".into(),
    ];
    let run = Run::new(&tasks).in_order(2);
    run.run(1, &["--runtime-limit", "0.3"]);
    let left = run.wait_for_pid("left");
    assert!(is_running(left));
    assert_ne!(value(&run.record(0), "pid"), value(&run.record(1), "pid"));
    kill(left, Signal::SIGKILL).unwrap();
}

#[test]
fn pipes_and_files_are_forwarded() {
    let tasks = [
        sh("-f FD=all KS", "echo a piped line >&$FD"),
        sh("-f ONE=all -f TWO=two KS", "echo $ONE $TWO >&3; echo second >&4"),
        sh("-F file=all KS", "echo a line in a file > file"),
        sh(
            "-f FD=all KS -e -",
            "kill -9 $PPID; sleep 0.2; echo lost > /proc/self/fd/$FD",
        ),
    ];
    let run = Run::new(&tasks);
    let output = run.run(1, &[]);
    assert_eq!(output.status.code(), Some(1));
    let mut lines: Vec<String> = run.text("all").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["3 4", "a line in a file", "a piped line"]);
    assert_eq!(run.text("two"), "second\n");
}
