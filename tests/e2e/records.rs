//! Pegasus' parser reads kickstart's records whatever a task prints. Task servers beside the ranks of MPI
//! write the same records.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::command::{CommandResult, Program};
use crate::support::programs::{Build, python, venv_bin};
use nix::sys::signal::Signal;

/// Reads the records of `cat` for each file with Pegasus' parser and prints differences between record and
/// file. A byte that is not text becomes the replacement character.
const READ_RECORDS: &str = r#"
import json, sys, yaml
from Pegasus.tools.kickstart_parser import YAMLParser
for number in range(int(sys.argv[1])):
    content = open(f"{number}.in", "rb").read()
    text = content.decode("utf-8", "replace")
    argument = content[:1000].replace(b"\0", b"").decode("utf-8", "replace")
    try:
        records = YAMLParser(f"{number}.out").parse_stampede()
        assert len(records) == 1, "%d records" % len(records)
        assert (records[0].get("stdout") or "") == text, records[0].get("stdout")
        assert (records[0]["exitcode"], records[0]["transformation"]) == (0, "tr"), records[0]
        whole = yaml.safe_load(open(f"{number}.out"))[0]
        assert whole["mainjob"]["argument_vector"][-1] == argument, whole["mainjob"]["argument_vector"]
        assert whole["environment"]["HOSTILE"] == argument, whole["environment"]
    except Exception as error:
        print(number, content[:200], repr(error)[:400])
"#;

/// Returns outputs that could mislead a reader of records.
fn hostile_outputs() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = [
        &b""[..],
        b"\n",
        b"no line feed",
        b"  blanks first\n",
        b"\ttab first\n",
        b"\n\n  x\n",
        b"a: b\n- c\n# d\n",
        b"---\n...\n%YAML 1.2\n",
        b"raw: 5\nraw: 256\nintegrity_error: x\n",
        b"- invocation: True\n  version: 3.0\n",
        b"  mainjob:\n    status:\n      raw: 256\n",
        b"[cluster-task id=1, name=x, status=256]\n[cluster-summary stat=\"fail\"]\n[seqexec-summary stat=\"fail\"]\n",
        b"---------------pegasus-multipart\n- integrity_summary:\n",
        b"\0\x01\x1b[31mred\x1b[0m\x7f\n",
        b"\xff\xfe\xc3\x28\xed\xa0\x80 no text\n",
        "\u{e9} \u{6f22} \u{2028} \u{85} \u{feff} \u{1f600} \u{ffff}\n".as_bytes(),
        b"a\r\nb\rc\n",
        b"blanks behind   \n\n \n  \nend",
        b"'it''s' \"q\" \\ \\n %s `x` $(x)\n",
        b"@@@MONITORING_PAYLOAD - START@@@{@@@MONITORING_PAYLOAD - END@@@\n",
        b"<?xml version=\"1.0\"?><invocation></invocation>\n",
        b"&a *a !!python/object:os.system {[ | > ? :\n",
    ]
    .into_iter()
    .map(<[u8]>::to_vec)
    .collect();
    all.push(vec![b'x'; 300_000]);
    all.push(vec![b'\n'; 3000]);
    let mut state = 7_u64;
    let mut below = |limit: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    for number in 0..60 {
        const LETTERS: &[u8] = b" \n\t\r:-'\"|>#\\ab&*[]{}%@`,?!";
        let length = below(300);
        all.push(
            (0..length)
                .map(|_| match number % 2 {
                    0 => below(256) as u8,
                    _ => LETTERS[below(LETTERS.len())],
                })
                .collect(),
        );
    }
    all
}

#[test]
#[ignore = "needs Pegasus: tests/run e2e"]
fn pegasus_reads_what_hostile_tasks_print() {
    use std::os::unix::ffi::OsStrExt as _;
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: String| directory.path().join(name);
    let kickstart = Build::Local.program("pegasus-kickstart");
    let texts = hostile_outputs();
    for (number, text) in texts.iter().enumerate() {
        fs::write(path(format!("{number}.in")), text).expect("a file");
        let argument: Vec<u8> = text
            .iter()
            .take(1000)
            .copied()
            .filter(|byte| *byte != 0)
            .collect();
        let escaped: Vec<u8> = argument.iter().flat_map(|byte| [b'\\', *byte]).collect();
        let result = Program::new(&kickstart)
            .args(["-f", "-n", "tr", "-N", "ID1", "-B", "all", "-l"])
            .arg(path(format!("{number}.out")))
            .args([
                "-i",
                &format!("{number}.in"),
                "/bin/sh",
                "-c",
                "cat; echo err >&2",
                "sh",
            ])
            .arg(std::ffi::OsStr::from_bytes(&escaped))
            .env("HOSTILE", std::ffi::OsStr::from_bytes(&argument))
            .in_directory(directory.path())
            .run()
            .ok();
        assert_eq!(result.stdout, "", "{}", result.details());
    }
    let result = python()
        .args(["-I", "-c", READ_RECORDS, &texts.len().to_string()])
        .in_directory(directory.path())
        .run()
        .ok();
    assert_eq!(result.stdout, "", "{}", result.details());
    // `pegasus-exitcode` searches the text, so test the outputs that could mislead it.
    for number in 8..11 {
        Program::new(venv_bin().join("pegasus-exitcode"))
            .args(["-n", "-N"])
            .arg(path(format!("{number}.out")))
            .run()
            .ok();
    }
}

fn value<'a>(record: &'a str, key: &str) -> &'a str {
    let mut lines = record.lines().filter_map(|line| line.trim().split_once(':'));
    let found = lines.find(|(name, _)| *name == key);
    found.unwrap_or_else(|| panic!("no {key} in {record}")).1.trim()
}

const WORKERS: u32 = 3;

/// A task below kickstart: its name, its options, options of kickstart, and a script.
type Task = (String, &'static str, &'static str, &'static str);

/// Writes a DAG of tasks below kickstart.
fn write_dag(build: Build, directory: &Path, tasks: &[Task]) {
    let kickstart = build.program("pegasus-kickstart");
    let lines = tasks.iter().map(|(name, options, before, script)| {
        fs::write(directory.join(format!("{name}.sh")), script).expect("a script");
        format!(
            "TASK {name} {options} {} {before} /bin/sh {name}.sh\n",
            kickstart.display()
        )
    });
    fs::write(directory.join("x.dag"), lines.collect::<String>()).expect("a DAG");
}

fn execute(build: Build, directory: &Path, served: bool) -> CommandResult {
    build
        .executor_with(WORKERS)
        .args(["--per-task-stdio", "x.dag"])
        .env("PMC_KICKSTART", if served { "serve" } else { "exec" })
        .in_directory(directory)
        .limit(120)
        .run()
}

fn check_task_servers(build: Build) {
    let directory = tempfile::tempdir().expect("a directory");
    let top = directory.path();
    let read = |name: &str| fs::read_to_string(top.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut tasks: Vec<Task> = (0..60)
        .map(|n| (format!("many{n}"), "", "-n many", "echo from $PMC_TASK"))
        .collect();
    for (name, options, before, script) in [
        ("code", "", "", "exit 7"),
        ("signal", "", "", "kill -SEGV $$"),
        ("limited", "", "-k 1 -K 1", "exec sleep 60"),
        ("out-of-time", "-T 1", "", "exec sleep 60"),
        ("server", "", "", "kill -KILL $PPID; sleep 60"),
        (
            "again",
            "-t 2",
            "",
            "test -e tried && exit 0; touch tried; exit 9",
        ),
        ("memory", "", "", "head -c 30000000 /dev/zero | tail -n 1 | wc -c"),
    ] {
        tasks.push((name.to_owned(), options, before, script));
    }
    write_dag(build, top, &tasks);
    let result = execute(build, top, true);
    assert_eq!(result.code(), 1, "{}", result.details());
    let mut servers = BTreeSet::new();
    for number in 0..60 {
        let record = read(&format!("many{number}.out.000"));
        assert!(record.contains(&format!("from many{number}\n")), "{record}");
        servers.insert(value(&record, "pid").to_owned());
    }
    // One server per worker, and a new one after each server that ended with a task.
    assert!(servers.len() <= WORKERS as usize + 7, "{servers:?}");
    for (name, key, expected) in [
        ("code", "raw", "1792"),
        ("signal", "signalled_signal", "11"),
        ("limited", "signalled_signal", "15"),
        ("out-of-time", "signalled_signal", "15"),
    ] {
        let record = read(&format!("{name}.out.000"));
        assert_eq!(value(&record, key), expected, "{name}: {record}");
    }
    // The executor records the exit status of wait(2).
    for (file, status) in [
        ("code.out.000", 7 << 8),
        ("signal.out.000", 139 << 8),
        ("limited.out.000", 14 << 8),
        ("server.out.000", 9),
        ("again.out.000", 9 << 8),
        ("again.out.001", 0),
    ] {
        let text = read(file);
        assert!(text.contains(&format!(" status={status},")), "{file}: {text}");
    }
    assert!(
        result
            .stderr
            .contains("Task server: its kickstart exited on signal 9 and left no record")
            || result
                .stdout
                .contains("Task server: its kickstart exited on signal 9 and left no record"),
        "{}",
        result.details()
    );
    assert!(
        value(&read("memory.out.000"), "maxrss")
            .parse::<u64>()
            .expect("KiB")
            > 25_000
    );
    let rescue = read("x.dag.rescue");
    assert_eq!(rescue.matches("DONE ").count(), 62, "{rescue}");
    compare_with_kickstart_processes(build, tasks, read);
}

/// Asserts that tasks have the same codes without task servers, and a process each.
fn compare_with_kickstart_processes(build: Build, mut tasks: Vec<Task>, read: impl Fn(&str) -> String) {
    let other = tempfile::tempdir().expect("a directory");
    tasks.retain(|task| {
        ["many0", "many1", "many2", "many3", "many4", "code", "signal"].contains(&task.0.as_str())
    });
    write_dag(build, other.path(), &tasks);
    execute(build, other.path(), false);
    let own: BTreeSet<String> = tasks
        .iter()
        .map(|task| {
            let name = format!("{}.out.000", task.0);
            let theirs = fs::read_to_string(other.path().join(&name)).expect("a record");
            assert_eq!(value(&theirs, "raw"), value(&read(&name), "raw"), "{name}");
            value(&theirs, "pid").to_owned()
        })
        .collect();
    assert_eq!(own.len(), tasks.len());
}

/// Asserts that a signal to the launcher ends the jobs of task servers and leaves no process.
fn assert_stopped_run_ends_jobs(build: Build) {
    let directory = tempfile::tempdir().expect("a directory");
    let top = directory.path();
    let script = "trap 'echo signalled > signalled-$PMC_TASK; exit 5' TERM; echo $$ > pid-$PMC_TASK; while :; do sleep 0.05; done";
    let tasks: Vec<Task> = (0..6).map(|n| (format!("t{n}"), "", "", script)).collect();
    write_dag(build, top, &tasks);
    let running = build
        .executor_with(WORKERS)
        .args(["--per-task-stdio", "--host-cpus", "3", "x.dag"])
        .in_directory(top)
        .limit(120)
        .start();
    let started = std::time::Instant::now();
    let pids = || -> Vec<String> {
        let names = fs::read_dir(top).expect("a directory").flatten();
        let pids = names.filter(|name| name.file_name().to_string_lossy().starts_with("pid-"));
        pids.filter_map(|name| {
            fs::read_to_string(name.path())
                .ok()
                .filter(|text| text.ends_with('\n'))
        })
        .collect()
    };
    while pids().len() < WORKERS as usize {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "the tasks do not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let jobs = pids();
    running.signal(Signal::SIGTERM);
    let result = running.wait();
    // MPICH's launcher may exit with 0 after a signal, so check the rescue file.
    let rescue = fs::read_to_string(top.join("x.dag.rescue")).unwrap_or_default();
    assert!(!rescue.contains("DONE"), "{rescue}{}", result.details());
    for job in jobs {
        let path = format!("/proc/{}", job.trim());
        let started = std::time::Instant::now();
        while Path::new(&path).exists() {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "a job still runs: {}",
                result.details()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let signalled = (0..6)
        .filter(|n| top.join(format!("signalled-t{n}")).exists())
        .count();
    assert!(signalled <= WORKERS as usize, "no more tasks are started");
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn task_servers_run_beside_ranks_of_open_mpi() {
    check_task_servers(Build::OpenMpi);
    assert_stopped_run_ends_jobs(Build::OpenMpi);
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn task_servers_run_beside_ranks_of_mpich() {
    check_task_servers(Build::Mpich);
    assert_stopped_run_ends_jobs(Build::Mpich);
}
