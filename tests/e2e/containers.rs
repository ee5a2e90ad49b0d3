//! Workflows whose programs run in containers, with podman and an image that is made on the spot: it has a
//! static program and neither a C library nor a shell.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::support::command::{CommandResult, Program};
use crate::support::pegasus::{Monitored, only_file};
use crate::support::programs::Build;
use crate::support::server::system_program;

const WORKFLOW: &str = r#"pegasus: "5.0.4"
name: boxed
transformationCatalog:
  transformations:
  - {name: tr, sites: [{name: local, type: installed, pfn: /bin/tr, container: base}]}
  - {name: wc, sites: [{name: local, type: installed, pfn: /bin/wc, container: base}]}
  - {name: sleep, sites: [{name: local, type: installed, pfn: /bin/sleep, container: base}]}
  containers:
  - name: base
    type: podman
    image: @TOP@/base.tar
    profiles:
      env: {LEVEL: high}
      pegasus: {container.arguments: "@OPTIONS@"}
replicaCatalog:
  replicas:
  - {lfn: in.txt, pfns: [{site: local, pfn: @TOP@/in.txt}]}
"#;

const JOBS: &str = r#"jobs:
- {type: job, name: tr, id: s, arguments: [a-z, A-Z], stdin: in.txt, stdout: mid.txt, uses: [{lfn: in.txt, type: input}, {lfn: mid.txt, type: output, stageOut: true}]}
- {type: job, name: wc, id: a, arguments: [-c, mid.txt], stdout: a.txt, uses: [{lfn: mid.txt, type: input}, {lfn: a.txt, type: output, stageOut: true}]}
- {type: job, name: wc, id: b, arguments: [-l, mid.txt], stdout: b.txt, uses: [{lfn: mid.txt, type: input}, {lfn: b.txt, type: output, stageOut: true}]}
jobDependencies:
- {id: s, children: [a, b]}
"#;

const ENDLESS: &str = "jobs:\n- {type: job, name: sleep, id: e, arguments: ['1000'], uses: []}\n";

/// Options that let containers start where limits cannot be raised, as in a container.
const OPTIONS: &str = "--network=host --ulimit nofile=1000:1000 --ulimit nproc=1000:1000";

/// A directory with an image, and a storage of podman's own.
struct Boxes {
    directory: tempfile::TempDir,
}

impl Boxes {
    fn new() -> Self {
        let boxes = Self {
            directory: tempfile::tempdir().expect("a temporary directory"),
        };
        boxes.write(
            "storage.conf",
            "[storage]\ndriver = \"vfs\"\ngraphroot = \"@TOP@/graph\"\nrunroot = \"@TOP@/runroot\"\n",
        );
        boxes.write(
            "containers.conf",
            "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n",
        );
        boxes.write("in.txt", "a\nb\nc\n");
        fs::create_dir(boxes.path("node")).expect("a directory");
        let root = boxes.path("root/bin");
        fs::create_dir_all(&root).expect("a directory");
        fs::copy("/bin/busybox", root.join("busybox")).expect("the package busybox-static is installed");
        for name in ["tr", "wc", "sleep"] {
            std::os::unix::fs::symlink("busybox", root.join(name)).expect("a link");
        }
        let tar = Program::new(system_program("tar"));
        tar.args(["cf", "root.tar", "-C", "root", "."])
            .in_directory(boxes.directory.path())
            .run()
            .ok();
        boxes.podman(&["import", "root.tar", "pmc-test:1"]).ok();
        let mut words = vec!["run", "--rm"];
        words.extend(OPTIONS.split(' '));
        let probe = boxes.podman(&[&words[..], &["pmc-test:1", "/bin/wc", "-l", "/bin/busybox"]].concat());
        assert_eq!(
            probe.code(),
            0,
            "podman cannot run containers on this machine, so nothing is tested: {}",
            probe.details()
        );
        boxes.podman(&["save", "-o", "base.tar", "pmc-test:1"]).ok();
        boxes.podman(&["rmi", "--all", "--force"]).ok();
        boxes
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let text = text.replace("@TOP@", &self.directory.path().display().to_string());
        fs::write(self.path(name), text.replace("@OPTIONS@", OPTIONS)).expect("a file");
    }

    fn in_place(&self, program: Program) -> Program {
        program
            .in_directory(self.directory.path())
            .env("CONTAINERS_STORAGE_CONF", self.path("storage.conf"))
            .env("CONTAINERS_CONF", self.path("containers.conf"))
            .env("PEGASUS_WN_TMP", self.path("node"))
            .env("PEGASUS_WN_TMP_MIN_SPACE", "1")
    }

    fn podman(&self, words: &[&str]) -> CommandResult {
        let podman = Program::new(system_program("podman"));
        self.in_place(podman).args(words).run()
    }

    /// Names of containers, running or not.
    fn containers(&self) -> String {
        let listed = self.podman(&["ps", "--all", "--format", "{{.Names}}"]).ok();
        listed.stdout
    }

    /// Starts a run in one step.
    fn run(&self, mode: &str, jobs: &str) -> Program {
        self.write("workflow.yml", &[WORKFLOW, jobs].concat());
        let property = format!("-Dpegasus.data.configuration={mode}");
        let pmc = Program::new(Build::Local.program("pmc"));
        self.in_place(pmc)
            .args(["run", "--dir", mode, &property, "workflow.yml"])
    }

    /// Plans all jobs as one cluster, and runs that. Returns the result and the submit directory.
    fn run_cluster(&self, name: &str, mode: &str, jobs: &str) -> (CommandResult, PathBuf) {
        self.write("workflow.yml", &[WORKFLOW, jobs].concat());
        let property = format!("-Dpegasus.data.configuration={mode}");
        self.in_place(Program::new(Build::Local.program("pmc-plan")))
            .args([
                "--sites",
                "local",
                "--output-sites",
                "local",
                "--cluster",
                "whole",
            ])
            .args([
                "--dir",
                "clusters",
                "--relative-submit-dir",
                name,
                &property,
                "workflow.yml",
            ])
            .run()
            .ok();
        let submit = self.path("clusters").join(name);
        let result = self
            .in_place(Build::Local.executor_with(1))
            .args(["--monitord-hack", "--per-task-stdio"])
            .arg(only_file(&submit, ".dag"))
            .run();
        (result, submit)
    }

    /// Directories of jobs that are left.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("node")).expect("a directory").flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.ends_with("-cache"))
            .collect()
    }
}

/// Returns how often a text is in the outputs of a run.
fn count_in_outputs(submit: &Path, text: &str) -> usize {
    let files = fs::read_dir(submit).expect("a submit directory").flatten();
    files
        .filter_map(|file| fs::read(file.path()).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).matches(text).count())
        .sum()
}

#[test]
#[ignore = "needs podman, runc, busybox and Pegasus' monitoring: tests/run e2e"]
fn programs_run_in_containers_with_every_data_configuration() {
    let boxes = Boxes::new();
    for mode in ["nonsharedfs", "sharedfs", "condorio"] {
        let result = boxes.run(mode, JOBS).run();
        assert_eq!(result.code(), 0, "{}", result.details());
        let run = boxes.path(mode).join("boxed/latest");
        let read = |name: &str| fs::read_to_string(run.join("output").join(name)).expect("an output");
        assert_eq!(read("mid.txt"), "A\nB\nC\n");
        assert_eq!(
            (read("a.txt").trim(), read("b.txt").trim()),
            ("6 mid.txt", "3 mid.txt")
        );
        assert_eq!((boxes.left(), boxes.containers().as_str()), (vec![], ""));
        let submit = run.join("submit").canonicalize().expect("a submit directory");
        // Once on this node for three jobs; the last run fetches the image of the first one again only if
        // its checksum is another.
        let loads = count_in_outputs(&submit, "Loading the container image");
        assert_eq!(loads, usize::from(mode != "condorio"), "{mode}");
        let monitored = Monitored {
            submit: &submit,
            home: boxes.directory.path(),
        };
        monitored.replay();
        // The record is that of the program, not of podman: kickstart sees where the link leads in the image.
        let programs = monitored.query(
            "select abs_task_id, executable, exitcode from invocation where abs_task_id is not null order by 1",
        );
        let expected = ["a", "b", "s"].map(|task| [task, "/bin/busybox", "0"].map(str::to_owned).to_vec());
        assert_eq!(programs, expected);
    }
}

#[test]
#[ignore = "needs podman, runc, busybox and Pegasus' monitoring: tests/run e2e"]
fn programs_of_one_cluster_run_in_containers() {
    let boxes = Boxes::new();
    // The second job fails, so that the first end of a job in the log is not that of the cluster.
    let fails = JOBS.replace("[-c, mid.txt]", "[-c, missing.txt]");
    for (name, mode, jobs, code) in [
        ("one", "nonsharedfs", fails.as_str(), 1),
        ("two", "nonsharedfs", JOBS, 0),
        ("three", "sharedfs", &fails, 1),
    ] {
        let (result, submit) = boxes.run_cluster(name, mode, jobs);
        assert_eq!(result.code(), code, "{}", result.details());
        assert_eq!((boxes.left(), boxes.containers().as_str()), (vec![], ""));
        let monitored = Monitored {
            submit: &submit,
            home: boxes.directory.path(),
        };
        monitored.load();
        let programs = monitored.query(
            "select abs_task_id, executable, exitcode from invocation where abs_task_id is not null order by 1",
        );
        let codes: Vec<(&str, &str)> = programs.iter().map(|row| (&*row[0], &*row[2])).collect();
        let expected = match code {
            0 => vec![("a", "0"), ("b", "0"), ("s", "0")],
            // The raw status of exit code 1.
            _ => vec![("a", "256"), ("s", "0")],
        };
        assert_eq!(codes, expected, "{mode}");
        assert!(
            programs.iter().all(|row| row[1] == "/bin/busybox"),
            "{programs:?}"
        );
        let ended = monitored.query("select exitcode from job_instance natural join job where clustered = 1");
        assert_eq!(ended[0][0] == "0", code == 0, "{mode}: {ended:?}");
    }
}

#[test]
#[ignore = "needs podman, runc and busybox: tests/run e2e"]
fn containers_of_killed_jobs_are_removed() {
    let boxes = Boxes::new();
    let started = |boxes: &Boxes| {
        let start = Instant::now();
        while boxes.podman(&["ps", "--quiet"]).ok().stdout.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "no container starts");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let run = boxes.run("nonsharedfs", ENDLESS).start();
    started(&boxes);
    run.signal(Signal::SIGINT);
    assert_ne!(run.wait().code(), 0);
    // What could not be removed in the time that the run leaves, the next job of the node removes.
    let result = boxes.run("nonsharedfs", JOBS).run();
    assert_eq!(result.code(), 0, "{}", result.details());
    assert_eq!((boxes.left(), boxes.containers().as_str()), (vec![], ""));
}

/// Neither lines of ours nor those of podman stand in front of what the program wrote.
#[test]
#[ignore = "needs podman, runc and busybox: tests/run e2e"]
fn a_failed_program_in_a_container_shows_what_it_wrote() {
    let boxes = Boxes::new();
    let fails = JOBS.replace("[-c, mid.txt]", "[-c, missing.txt]");
    for mode in ["nonsharedfs", "sharedfs"] {
        let result = boxes.run(mode, &fails).run();
        assert_eq!(result.code(), 1, "{}", result.details());
        let analyzer = boxes.in_place(Program::new(Build::Local.program("pmc")));
        let analyzer = analyzer.args(["analyzer", &format!("{mode}/boxed")]).run();
        for text in [&result.stdout, &analyzer.stdout] {
            let shown: Vec<&str> = text.lines().filter(|line| line.contains("| ")).collect();
            let [line] = shown[..] else {
                panic!("{mode}: {text}");
            };
            assert!(
                line.ends_with("| wc: missing.txt: No such file or directory"),
                "{mode}: {text}"
            );
        }
    }
}
