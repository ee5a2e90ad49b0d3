//! The program with real descriptions: what it leaves, what it says, how it ends.

#![expect(clippy::unwrap_used, reason = "a test stops at the first unexpected result")]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// A job with a staging directory and a directory for its own directory.
struct Job {
    top: tempfile::TempDir,
}

impl Job {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        for name in ["staging", "node", "submit"] {
            fs::create_dir(top.path().join(name)).unwrap();
        }
        fs::write(top.path().join("staging/in"), "hello\n").unwrap();
        Self { top }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.top.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn staged(&self, name: &str) -> String {
        format!("file://{}", self.path("staging").join(name).display())
    }

    fn fetched(&self, name: &str) -> Value {
        transfer(name, &self.staged(name), &format!("file://$PWD/{name}"))
    }

    fn delivered(&self, name: &str) -> Value {
        transfer(name, &format!("file://$PWD/{name}"), &self.staged(name))
    }

    /// Returns a description of a job that runs a shell command through kickstart.
    fn description(&self, command: &str) -> Value {
        json!({
            "format": 1,
            "job": "copy_j1",
            "scratch": self.path("node"),
            "stage_in": [self.fetched("in")],
            "run": {"kickstart": ["-n", "copy", "-N", "j1", "-R", "local", "-s", "out=out", "/bin/sh", "-c", command]},
            "stage_out": [self.delivered("out")],
            "checksum_file": self.path("submit/copy_j1.meta"),
        })
    }

    fn command(&self, description: &Value) -> Command {
        let file = self.path("submit/copy_j1.json");
        fs::write(&file, description.to_string()).unwrap();
        let mut command = Command::new(testutils::programs::path("pegasus-lite"));
        command
            .arg(file)
            .current_dir(self.path("submit"))
            .env("PEGASUS_WN_TMP_MIN_SPACE", "1")
            .env_remove("PEGASUS_WN_TMP")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, description: &Value) -> Output {
        self.command(description).output().unwrap()
    }

    /// Starts a job in a process group of its own, and waits until its program runs.
    fn start(&self, description: &Value) -> Child {
        let mut command = self.command(description);
        command
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let start = Instant::now();
        while !self.path("started").exists() {
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "the program does not start"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    /// What is left on the node.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("node")).unwrap().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }
}

fn transfer(lfn: &str, source: &str, destination: &str) -> Value {
    json!({
        "type": "transfer", "linkage": "input", "lfn": lfn, "id": 1,
        "src_urls": [{"site_label": "local", "url": source}],
        "dest_urls": [{"site_label": "local", "url": destination}],
    })
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const COPY: &str = "tr a-z A-Z <in >out";

#[test]
fn inputs_come_and_outputs_go_and_nothing_stays() {
    let job = Job::new();
    let output = job.run(&job.description(&format!("{COPY}; pwd; mkdir shut; chmod 0 shut")));
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert_eq!(job.read("staging/out"), "HELLO\n");
    assert_eq!(job.left(), [""; 0]);
    for line in [
        "PegasusLite: version ",
        "PegasusLite: runtime 0",
        "PegasusLite: exitcode 0",
    ] {
        assert!(log.lines().any(|l| l.starts_with(line)), "{line}: {log}");
    }
    assert!(log.contains("PegasusLite: Executing on host "), "{log}");
    let record = String::from_utf8_lossy(&output.stdout);
    assert!(record.starts_with("- invocation: True\n"), "{record}");
    let (_, parts) = record.split_once("---------------pegasus-multipart\n").unwrap();
    assert!(parts.starts_with("- transfer_attempts:\n"), "{parts}");
    // As pegasus-exitcode writes it.
    let meta: Value = serde_json::from_str(&job.read("submit/copy_j1.meta")).unwrap();
    assert_eq!(meta[0]["_id"], "out");
    assert_eq!(
        meta[0]["_attributes"]["checksum.value"],
        "3b09aeb6f5f5336beb205d7f720371bc927cd46c21922e334d47ba264acb5ba4"
    );
}

#[test]
fn known_checksums_are_verified() {
    const HELLO: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
    let job = Job::new();
    let mut description = job.description(COPY);
    description["verify"] = json!([{"lfn": "in", "sha256": HELLO}]);
    assert_eq!(job.run(&description).status.code(), Some(0));
    let meta = json!([{"_id": "in", "_attributes": {"checksum.type": "sha256", "checksum.value": "00"}}]);
    fs::write(job.path("submit/parent.meta"), meta.to_string()).unwrap();
    description["verify"] = json!([{"lfn": "in", "checksum_file": job.path("submit/parent.meta")}]);
    fs::remove_file(job.path("staging/out")).unwrap();
    let output = job.run(&description);
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(65), "{log}");
    assert!(log.contains("in: SHA-256 is 5891b5b5"), "{log}");
    assert!(log.contains("\nPegasusLite: exitcode 65\n"), "{log}");
    let records = String::from_utf8_lossy(&output.stdout);
    assert!(records.contains("    failed: 1\n"), "{records}");
    assert!(!job.path("staging/out").exists(), "the program did not run");
    // A parent without a metadata file is reported.
    description["verify"] = json!([{"lfn": "in", "checksum_file": job.path("submit/no.meta")}]);
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(71));
    assert!(stderr(&output).contains("the submit directory must be visible on the node"));
    assert_eq!(job.left(), [""; 0]);
}

#[test]
fn failures_have_their_codes_and_messages() {
    let job = Job::new();
    let output = job.run(&job.description("echo x >out; exit 3"));
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("exit code 3; its outputs are not delivered"));
    assert!(!job.path("staging/out").exists());
    let mut description = job.description(COPY);
    description["stage_in"] = json!([job.fetched("missing")]);
    let output = job.run(&description);
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(71), "{log}");
    assert!(
        log.contains("ERROR: copy_j1: 1 of 1 files could not be fetched"),
        "{log}"
    );
    let mut description = job.description(COPY);
    description["stage_out"] = json!([job.delivered("nothing")]);
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(71));
    assert!(stderr(&output).contains("could not be delivered"));
    assert_eq!(job.left(), [""; 0]);
    for text in [
        "",
        "{",
        "{\"format\": 2, \"job\": \"j\", \"run\": {\"program\": [\"x\"]}}",
    ] {
        fs::write(job.path("submit/bad.json"), text).unwrap();
        let output = Command::new(testutils::programs::path("pegasus-lite"))
            .arg(job.path("submit/bad.json"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(71));
        assert!(stderr(&output).contains("bad.json: "), "{}", stderr(&output));
    }
    nix::unistd::mkfifo(&job.path("submit/fifo.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut command = Command::new(testutils::programs::path("pegasus-lite"));
    let output = command.arg(job.path("submit/fifo.json")).output().unwrap();
    assert!(stderr(&output).contains("is a FIFO"), "{}", stderr(&output));
    let mut command = Command::new(testutils::programs::path("pegasus-lite"));
    let output = command.arg(job.path("submit/none.json")).output().unwrap();
    assert_eq!(output.status.code(), Some(71));
    let log = stderr(&output);
    assert!(
        log.contains("none.json: No such file")
            && log.contains("the submit directory must be visible on the node"),
        "{log}"
    );
}

#[test]
fn a_program_without_kickstart_and_checkpoint_files() {
    let job = Job::new();
    let mut description = job.description("");
    let script = "cat state 2>/dev/null; echo step >>state; tr a-z A-Z <in >out; test $(wc -l <state) = 2";
    description["run"] = json!({"program": ["/bin/sh", "-c", script]});
    description["checkpoint_in"] = json!([job.fetched("state")]);
    description["checkpoint_out"] = json!([job.delivered("state")]);
    description["hashed"] = json!(["out"]);
    // The first attempt fails and leaves its checkpoint file, with which the second one continues.
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(job.read("staging/state"), "step\n");
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(job.read("staging/out"), "HELLO\n");
    assert!(job.read("submit/copy_j1.meta").contains("\"out\""));
}

#[test]
fn a_script_sets_the_environment() {
    let job = Job::new();
    fs::write(job.path("submit/env.sh"), "export GREETING='good day'\n").unwrap();
    let mut description = job.description("echo \"$GREETING\" >out");
    description["env_source"] = json!(job.path("submit/env.sh"));
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(job.read("staging/out"), "good day\n");
    description["env_source"] = json!(job.path("submit/missing.sh"));
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(71));
    assert!(
        stderr(&output).contains("cannot read the script for the environment"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn arguments_may_name_the_directory_where_the_job_was_started() {
    let job = Job::new();
    let description = job.description("mkdir -p $_PEGASUS_INITIAL_DIR/png/x; cp in out");
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(job.path("submit/png/x").is_dir());
}

/// A program that runs until it gets a signal.
fn endless(job: &Job) -> Value {
    let started = job.path("started").display().to_string();
    job.description(&format!("touch '{started}'; sleep 1000"))
}

#[test]
fn a_signal_ends_the_program_and_removes_the_directory() {
    let job = Job::new();
    let mut child = job.start(&endless(&job));
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(128 + 15));
    assert_eq!(job.left(), [""; 0]);
}

#[test]
fn the_next_job_removes_the_directory_of_a_killed_one() {
    let job = Job::new();
    let mut child = job.start(&endless(&job));
    killpg(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    let is_left = |name: &String| name.starts_with("pegasus.");
    assert!(job.left().iter().any(is_left));
    assert_eq!(job.run(&job.description(COPY)).status.code(), Some(0));
    assert_eq!(job.left(), [""; 0]);
}

#[test]
fn a_full_disk_is_told() {
    let job = Job::new();
    let mut command = job.command(&job.description(COPY));
    let output = command
        .env("PEGASUS_WN_TMP_MIN_SPACE", u64::MAX.to_string())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(71));
    assert!(
        stderr(&output).contains("not enough disk space"),
        "{}",
        stderr(&output)
    );
    assert!(Path::new(&job.path("node")).exists());
}
