//! Promises of the manual page that the other tests of the executor do not check.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use testutils::launcher::forget_launcher;

/// A folder with a DAG, `x.dag`.
struct Scene(TempDir);

impl Scene {
    fn new(dag: &str) -> Self {
        let scene = Self(tempfile::tempdir().unwrap());
        scene.write("x.dag", dag);
        scene
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn mode(&self, name: &str) -> String {
        let mode = fs::metadata(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        format!("{:04o}", mode.permissions().mode() & 0o7777)
    }

    /// Relative paths of all files and folders.
    fn files(&self) -> Vec<String> {
        fn walk(root: &Path, folder: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                found.push(path.strip_prefix(root).unwrap().display().to_string());
                if path.is_dir() {
                    walk(root, &path, found);
                }
            }
        }
        let mut found = Vec::new();
        walk(self.0.path(), self.0.path(), &mut found);
        found.sort();
        found
    }

    /// The executor with two workers. `arguments` are words of a shell; `before` are commands that the shell
    /// runs first.
    fn command(&self, before: &str, arguments: &str) -> Command {
        let program = testutils::programs::path("pegasus-mpi-cluster");
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(format!("{before} exec '{program}' --workers 2 {arguments}"))
            .current_dir(self.0.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        forget_launcher(&mut command);
        command
    }

    fn run_from(&self, before: &str, arguments: &str) -> Ended {
        Ended::of(&self.command(before, arguments).output().unwrap())
    }

    fn run(&self, arguments: &str) -> Ended {
        self.run_from("", arguments)
    }

    fn wait_for(&self, name: &str) {
        let started = Instant::now();
        while !self.path(name).exists() {
            assert!(
                started.elapsed() < Duration::from_secs(30),
                "{name} does not appear"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Exit code and output of a run.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    fn succeeded(self) -> Self {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self
    }

    #[track_caller]
    fn failed(self) -> Self {
        assert_eq!(self.code, Some(1), "{}{}", self.out, self.err);
        self
    }

    #[track_caller]
    fn reports(&self, text: &str) {
        assert!(self.err.contains(text), "no {text:?} in {}", self.err);
    }

    /// The number that follows a text of the log.
    #[track_caller]
    fn figure(&self, text: &str) -> f64 {
        let line = self.err.lines().find_map(|line| line.split(text).nth(1));
        let line = line.unwrap_or_else(|| panic!("no {text:?} in {}", self.err));
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}

#[test]
fn files_have_modes_under_the_umask() {
    let dag = "TASK a -f OUT=deep/all.txt /bin/sh -c 'echo >/proc/self/fd/$OUT'\n\
               TASK b -f OUT=deep/all.txt /bin/sh -c 'ls -l x.dag.rescue.journal'\nEDGE a b\n";
    for (umask, folder, file) in [("022", "0755", "0644"), ("027", "0750", "0640")] {
        let scene = Scene::new(dag);
        let before = format!("umask {umask};");
        scene
            .run_from(&before, "--monitord-hack --jobstate-log x.dag")
            .succeeded();
        for name in [
            "x.dag.rescue",
            "x.dag.resource",
            "x.dag.dagman.out",
            "jobstate.log",
            "a.out.000",
            "a.err.000",
            "deep/all.txt",
        ] {
            assert_eq!(scene.mode(name), file, "{name}");
        }
        assert_eq!(scene.mode("deep"), folder);
        // The journal holds data whose targets may be private.
        assert!(scene.read("b.out.000").starts_with("-rw------- "));
        // Files of workers exist only during the run.
        let scene = Scene::new("TASK a /bin/sh -c 'ls -l x.dag.out.* x.dag.err.* >modes'\n");
        scene.run_from(&before, "-o all.out -e all.err x.dag").succeeded();
        let shown = if umask == "022" {
            "-rw-r--r-- "
        } else {
            "-rw-r----- "
        };
        let modes = scene.read("modes");
        assert_eq!(modes.lines().count(), 4, "{modes}");
        assert!(modes.lines().all(|line| line.starts_with(shown)), "{modes}");
        assert_eq!(
            (scene.mode("all.out"), scene.mode("all.err")),
            (file.into(), file.into())
        );
    }
}

#[test]
fn run_creates_only_named_files() {
    // Files of names with slashes are below the folder of the DAG, and their folders must exist.
    let scene = Scene::new("TASK /etc/a /bin/true\nTASK down/b /bin/true\nTASK none/c /bin/true\n");
    fs::create_dir_all(scene.path("etc")).unwrap();
    fs::create_dir_all(scene.path("down")).unwrap();
    let run = scene.run("--monitord-hack --jobstate-log x.dag").failed();
    run.reports(
        "[error] Task none/c: Unable to open task stdout file ./none/c.out.000: No such file or directory\n",
    );
    let expected = [
        "down",
        "down/b.err.000",
        "down/b.out.000",
        "etc",
        "etc/a.err.000",
        "etc/a.out.000",
        "jobstate.log",
        "x.dag",
        "x.dag.dagman.out",
        "x.dag.rescue",
        "x.dag.resource",
    ];
    assert_eq!(scene.files(), expected);
    assert!(!Path::new("/etc/a.out.000").exists());
    // A task that fails, or forwards nothing, creates no file and no folder.
    let scene = Scene::new(
        "TASK a -f OUT=one/a /bin/sh -c 'echo >/proc/self/fd/$OUT; exit 1'\n\
         TASK b -f OUT=two/b /bin/true\nTASK c -F c.txt=three/c /bin/sh -c ':>c.txt'\n",
    );
    scene.run("--no-resource-log x.dag").failed();
    assert_eq!(scene.files(), ["x.dag", "x.dag.rescue"]);
}

#[test]
fn utilization_and_throughput_are_logged_at_the_end() {
    let scene = Scene::new("TASK a /bin/sleep 0.2\nTASK b /bin/sleep 0.2\nTASK c /bin/false\n");
    let run = scene.run("--no-sleep-on-recv x.dag").failed();
    let (runtime, wall) = (
        run.figure("Total runtime of tasks: "),
        run.figure("] Wall time: "),
    );
    let makespan = run.figure("] Makespan: ");
    assert!(runtime >= 0.4 && wall >= makespan && makespan >= 0.2);
    let assert_near = |text: &str, expected: f64| {
        let figure = run.figure(text);
        assert!(
            (figure - expected).abs() < 1e-3 * expected,
            "{text}{figure}, not {expected}"
        );
    };
    assert_near("Resource utilization (with master): ", runtime / (wall * 3.0));
    assert_near("Resource utilization (without master): ", runtime / (wall * 2.0));
    assert_near("Throughput: ", 3.0 / makespan);
    assert_near("File descriptor cache hit rate: ", 1.0);
    assert!(run.figure("Bytes sent to workers: ") > 0.0 && run.figure("Bytes received from workers: ") > 0.0);
    let lines: Vec<&str> = run
        .err
        .lines()
        .skip_while(|line| !line.ends_with("Workflow finished"))
        .collect();
    let order = [
        "Workflow finished",
        "Resource utilization (with",
        "Resource utilization (without",
        "Total runtime of tasks",
        "Wall time",
        "Makespan",
        "Throughput",
        "Bytes sent",
        "Bytes received",
        "File descriptor cache",
        "Merging task stdio",
        "Sending workers shutdown",
    ];
    for (line, text) in lines.iter().zip(order) {
        assert!(line.starts_with(&format!("[info] {text}")), "{line}: not {text}");
    }
}

/// The usable CPUs of this process, in the format of `taskset`, and whether the first two are among them.
fn usable() -> (String, bool) {
    let all = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let both = all.is_set(0).unwrap() && all.is_set(1).unwrap();
    (list.unwrap().trim().to_owned(), both)
}

#[test]
fn cpu_blocks_are_exported_and_on_request_bound() {
    let dag = "TASK two -c 2 /bin/sh task.sh\nTASK one -c 1 /bin/sh task.sh\nTASK none -c 0 /bin/sh task.sh\n\
               EDGE two one\nEDGE one none\n";
    let script = "echo $PMC_TASK ${PMC_AFFINITY:-unset} $(sed -n 's/Cpus_allowed_list:.//p' /proc/self/status) >>seen\n";
    let go = |before: &str, arguments: &str| {
        let scene = Scene::new(dag);
        scene.write("task.sh", script);
        let run = scene.run_from(before, arguments).succeeded();
        (scene.read("seen"), run.err)
    };
    let (all, both) = usable();
    let (seen, _) = go("", "--host-cpus 4 --keep-affinity x.dag");
    assert_eq!(
        seen,
        format!("two 0,1 {all}\none unset {all}\nnone unset {all}\n")
    );
    // Tasks are not bound to CPUs that this process may not use.
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap();
    if !both || processors.matches("processor").count() < 2 {
        return;
    }
    let (seen, _) = go("", "--set-affinity x.dag");
    assert_eq!(seen, format!("two 0,1 0-1\none unset {all}\nnone unset {all}\n"));
    // The host has only the CPUs that this process may use.
    let scene = Scene::new(dag);
    scene.write("task.sh", script);
    let refused = scene.run_from("taskset -p -c 1 $$ >/dev/null;", "--set-affinity x.dag");
    let log = refused.failed().err;
    assert!(
        log.contains("task two: it requests 2 CPUs, and the host that comes closest"),
        "{log}"
    );
}

#[test]
fn conflicting_options_are_refused() {
    let scene = Scene::new("TASK a /bin/true\n");
    let run = scene.run("--set-affinity --host-cpus 2 x.dag").failed();
    assert_eq!(run.err, "--host-cpus is not compatible with --set-affinity\n");
    let run = scene.run_from("PMC_HOST_CPUS=2", "--set-affinity x.dag").failed();
    assert_eq!(run.err, "--host-cpus is not compatible with --set-affinity\n");
    let run = scene.run("--workers 0 x.dag").failed();
    assert_eq!(run.err, "At least one worker process is required\n");
    assert_eq!(scene.files(), ["x.dag"]);
}

#[test]
fn few_descriptors_are_enough_for_many_files() {
    let tasks = (0..12).map(|n| format!("TASK t{n:02} -f A=out.{n} -f B=all /bin/sh task.sh t{n:02}\n"));
    let scene = Scene::new(&tasks.collect::<String>());
    scene.write(
        "task.sh",
        "echo $1 >/proc/self/fd/$A; echo $1 >/proc/self/fd/$B\n",
    );
    let run = scene.run("--maxfds 1 x.dag").succeeded();
    run.reports("[info] Setting max cached files = 1\n");
    // The two files alternate, so the cache never has the one that is needed.
    assert!(run.figure("File descriptor cache hit rate: ") < 0.1);
    for n in 0..12 {
        assert_eq!(scene.read(&format!("out.{n}")), format!("t{n:02}\n"));
    }
    assert_eq!(scene.read("all").lines().count(), 12);
    let run = scene
        .run_from(
            "ulimit -n 100;",
            "--maxfds 101 --jobstate-log --monitord-hack x.dag",
        )
        .failed();
    assert!(
        run.err
            .ends_with("ABORT: Setting for max cached files is greater than system limit: 101 > 100\n")
    );
    // A run that does not start writes no logs.
    assert!(!scene.path("jobstate.log").exists() && !scene.path("x.dag.dagman.out").exists());
    let run = scene.run_from("ulimit -n 100;", "x.dag").succeeded();
    run.reports("[info] Setting max cached files = 12\n");
}

/// Pipes take any length, files 1 MB. A task that fails forwards nothing. Its files are removed in any case.
#[test]
fn pipes_take_any_length_and_files_a_megabyte() {
    let scene = Scene::new(
        "TASK pipe -f OUT=pipe.txt /bin/sh -c 'head -c 3000000 /dev/zero >/proc/self/fd/$OUT'\n\
         TASK most -F most.part=most.txt /bin/sh -c 'head -c 1048576 /dev/zero >most.part'\n\
         TASK more -F more.part=more.txt /bin/sh -c 'head -c 1048577 /dev/zero >more.part'\n\
         TASK fails -F fails.part=fails.txt /bin/sh -c 'echo x >fails.part; exit 3'\n\
         TASK folder -F folder.part=folder.txt /bin/mkdir folder.part\n\
         TASK absent -F absent.part=absent.txt /bin/true\n",
    );
    let run = scene.run("x.dag").failed();
    let length = |name: &str| fs::metadata(scene.path(name)).map(|data| data.len()).ok();
    assert_eq!(length("pipe.txt"), Some(3_000_000));
    assert_eq!(length("most.txt"), Some(1_048_576));
    for name in ["more", "fails", "folder", "absent"] {
        assert_eq!(length(&format!("{name}.txt")), None, "{name}");
    }
    for name in ["most", "more", "fails"] {
        assert_eq!(length(&format!("{name}.part")), None, "{name}");
    }
    run.reports("[error] Task more: File more.part is too large\n");
    run.reports("[error] Task folder: folder.part is not a file\n");
    run.reports("[error] Task more failed with exitcode 256\n");
    let mut done: Vec<String> = scene.read("x.dag.rescue").lines().map(str::to_owned).collect();
    done.sort();
    assert_eq!(done, ["", "DONE absent", "DONE most", "DONE pipe"]);
}

/// Data of a task stays together, without headers or trailers. Earlier content of the file stays.
#[test]
fn forwarded_data_is_appended_and_not_mixed() {
    let tasks = (0..8).map(|n| format!("TASK t{n} -f OUT=all /bin/sh task.sh {n}\n"));
    let scene = Scene::new(&tasks.collect::<String>());
    scene.write("all", "what was there");
    // Several writes, and more data than fits in a pipe.
    scene.write(
        "task.sh",
        "exec >/proc/self/fd/$OUT; for n in 1 2 3; do printf '%040000d' 0 | tr 0 $1; sleep 0.01; done\n",
    );
    scene.run("x.dag").succeeded();
    let all = scene.read("all");
    let data = all.strip_prefix("what was there").unwrap();
    let mut runs = BTreeMap::new();
    for piece in data.as_bytes().chunk_by(|a, b| a == b) {
        assert_eq!(runs.insert(piece[0], piece.len()), None, "data is mixed");
    }
    assert_eq!(runs, (b'0'..b'8').map(|digit| (digit, 120_000)).collect());
}

/// A task succeeds only if its data was written, whatever its own record says. Otherwise there is another
/// attempt.
#[test]
fn a_task_whose_data_cannot_be_written_fails() {
    let scene = Scene::new(
        "TASK a -t 2 -f OUT=x.dag/none /bin/sh -c 'echo >>attempts; echo >/proc/self/fd/$OUT'\n\
         TASK b /bin/true\nEDGE a b\n",
    );
    let run = scene.run("--jobstate-log x.dag").failed();
    assert_eq!(scene.read("attempts"), "\n\n");
    run.reports("Error writing 1 bytes to x.dag/none for task a\n");
    run.reports("[error] Task a failed due to collective I/O errors\n");
    assert!(
        run.out.contains("name=a, ") && run.out.contains(" status=0, "),
        "{}",
        run.out
    );
    assert!(run.out.contains("tasks=2, submitted=2, succeeded=0, failed=2"));
    assert!(
        scene
            .read("jobstate.log")
            .contains(" a JOB_FAILURE 256 2.0 - - 2\n")
            || scene.read("jobstate.log").contains(" a JOB_FAILURE 256 - - 2\n")
    );
    assert_eq!(scene.read("x.dag.rescue"), "");
}

#[test]
fn pipes_can_only_be_written() {
    let scene = Scene::new(
        "TASK a -f OUT=all /bin/sh -c 'sed -n s/flags:.0*//p /proc/self/fdinfo/$OUT; echo >/proc/self/fd/$OUT'\n",
    );
    let run = scene.run("x.dag").succeeded();
    assert!(run.out.contains("]\n1\n[cluster-task "), "{}", run.out);
}

/// The next run merges the output of a killed run with its own.
#[test]
fn output_of_a_killed_run_is_kept() {
    let scene = Scene::new("TASK a /bin/sh task.sh\n");
    scene.write(
        "task.sh",
        "echo output; echo problem >&2; [ -e second ] || { touch begun; exec sleep 100; }\n",
    );
    let mut child = scene.command("", "x.dag").spawn().unwrap();
    scene.wait_for("begun");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    let left = |kind: &str| -> String {
        (1..=2)
            .map(|worker| scene.read(&format!("x.dag.{kind}.{worker}")))
            .collect()
    };
    assert_eq!(
        (left("out"), left("err")),
        ("output\n".into(), "problem\n".into())
    );
    scene.write("second", "");
    let run = scene.run("x.dag").succeeded();
    assert_eq!(run.out.matches("output\n").count(), 2, "{}", run.out);
    assert_eq!(run.err.matches("problem\n").count(), 2, "{}", run.err);
    let files = scene.files();
    assert!(
        files
            .iter()
            .all(|name| !name.contains(".out.") && !name.contains(".err.")),
        "{files:?}"
    );
}

#[test]
fn memory_is_limited_only_on_request() {
    let scene = Scene::new(
        "TASK a -m 200 /bin/sh -c 'ulimit -v; ulimit -d; ulimit -s'\nTASK b /bin/sh -c 'ulimit -v'\n",
    );
    let kib = 200 * 1024;
    let run = scene.run("--strict-limits x.dag").succeeded();
    assert!(
        run.out
            .contains(&format!("{kib}\n{kib}\n{kib}\n[cluster-task name=a, ")),
        "{}",
        run.out
    );
    let run = scene.run_from("rm x.dag.rescue;", "x.dag").succeeded();
    assert!(!run.out.contains(&format!("{kib}\n")), "{}", run.out);
}

/// Texts that scripts may look for.
#[test]
fn files_that_cannot_be_opened_are_named() {
    let scene = Scene::new("TASK a -t 2 -F x.dag/part=all /bin/true\n");
    for folder in ["jobstate.log", "x.dag.dagman.out", "x.dag.out.1", "old.rescue"] {
        fs::create_dir(scene.path(folder)).unwrap();
    }
    let last_line = |arguments: &str| {
        let run = scene.run(&format!("--workers 1 {arguments} x.dag")).failed();
        let last = run.err.lines().last().unwrap_or_default();
        last.to_owned()
    };
    assert_eq!(
        last_line("--jobstate-log"),
        "ABORT: Unable to open ./jobstate.log: Is a directory"
    );
    assert_eq!(
        last_line("--monitord-hack"),
        "ABORT: Unable to open x.dag.dagman.out: Is a directory"
    );
    assert_eq!(
        last_line(""),
        "ABORT: Worker 1: unable to open task stdout: x.dag.out.1: Is a directory"
    );
    assert_eq!(
        last_line("-r old.rescue"),
        "ABORT: Error reading rescue file: Is a directory"
    );
    assert_eq!(
        last_line("-s -r old.rescue"),
        "ABORT: Unable to open rescue file: old.rescue: Is a directory"
    );
    assert_eq!(
        last_line("-r none/x"),
        "ABORT: Unable to open rescue file: none/x: No such file or directory"
    );
    let run = scene.run("--per-task-stdio x.dag").failed();
    run.reports("[error] Task a: stat failed on file x.dag/part: Not a directory\n");
    assert_eq!(
        run.err
            .matches("[error] Task a failed with exitcode 256\n")
            .count(),
        2
    );
}

/// Every exit code of the manual page but 75, which the tests of signals check.
#[test]
fn exit_codes_are_those_of_the_manual_page() {
    let scene = Scene::new("TASK a /bin/true\n");
    scene.write("bad.dag", "TASK\n");
    scene.write("fails.dag", "TASK a /bin/false\n");
    for (arguments, code) in [
        ("-h", 0),
        ("--help x.dag", 0),
        ("-V", 0),
        ("--version", 0),
        ("x.dag", 0),
        ("x.dag", 0),
        ("", 1),
        ("-s", 1),
        ("-x x.dag", 1),
        ("x.dag x.dag", 1),
        ("none.dag", 1),
        ("bad.dag", 1),
        ("fails.dag", 1),
        ("-r none/x.rescue x.dag", 1),
        ("-s -o none/x x.dag", 1),
        ("--host-memory 10 -s --max-wall-time 1 x.dag", 0),
        ("--host-script /bin/false -s x.dag", 1),
        ("--host-script ./none -s x.dag", 1),
        ("-r '' --host-script '' x.dag", 0),
    ] {
        let run = scene.run(arguments);
        assert_eq!(run.code, Some(code), "{arguments}: {}", run.err);
    }
}
