//! Jobs in containers. Stand-ins take the place of the programs that run containers: they record their
//! arguments, let the directory of the container lead to that of the job, and run the command.

#![expect(clippy::unwrap_used, reason = "a test stops at the first unexpected result")]

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pmc_wire::peers::{self, ToAgent, ToJob};
use serde_json::{Value, json};

/// A stand-in. All images have the same name; the identifier of one is the checksum of its file. No image
/// starts while there is a file `broken`, and a container that was started and not removed leaves a file
/// `running`.
const STAND_IN: &str = r#"#!/bin/sh
top=@TOP@
echo "$(basename "$0") $*" >>$top/calls
case "$1" in
image)
    id=$5
    test "$id" != localhost/box:1 || id=$(cat $top/name)
    test -e "$top/loaded/$id" && echo "$id"; exit ;;
load)
    sleep 0.2; mkdir -p $top/loaded
    id=id$(cksum <"$3" | cut -d' ' -f1)
    touch "$top/loaded/$id"; echo "$id" >$top/name; echo "Loaded image: localhost/box:1"; exit ;;
rm) rm -f $top/running; exit ;;
esac
while test $# -gt 0; do
    case "$1" in
    -v|--bind|--volume)
        for mount in $(echo "$2" | tr ';' ' '); do
            case "$mount" in *:$top/inside*) ln -sfn "${mount%:*}" "${mount##*:}" ;; esac
        done
        shift ;;
    --entrypoint) first=$2; shift ;;
    --name) shift 3; break ;;
    exec|--image) : ;;
    $top/inside*/.pegasus*) break ;;
    esac
    shift
done
test -e $top/broken && exit 125
touch $top/running
cd /
env -i PATH="$PATH" OF_IMAGE=yes $first "$@"
code=$?
rm -f $top/running
exit $code
"#;

struct Job {
    top: tempfile::TempDir,
}

impl Job {
    fn new(engines: &[&str]) -> Self {
        let top = tempfile::tempdir().unwrap();
        let job = Self { top };
        for name in ["staging", "node", "submit", "bin"] {
            fs::create_dir(job.path(name)).unwrap();
        }
        fs::write(job.path("staging/in"), "hello\n").unwrap();
        fs::write(job.path("staging/box"), "image\n").unwrap();
        let stand_in = STAND_IN.replace("@TOP@", &job.top.path().display().to_string());
        for name in engines {
            let file = job.path("bin").join(name);
            fs::write(&file, &stand_in).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        job
    }

    fn path(&self, name: &str) -> PathBuf {
        self.top.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Calls of stand-ins, without directories that differ from run to run.
    fn calls(&self) -> Vec<String> {
        let top = self.top.path().display().to_string();
        let calls = self.read("calls").replace(&top, "@");
        let mut lines = Vec::new();
        for line in calls.lines() {
            let words = line.split(' ').map(|word| match word.find("pegasus.") {
                Some(at) => {
                    let rest = &word[at + "pegasus.".len()..];
                    let end = rest
                        .find(|c: char| !c.is_ascii_alphanumeric())
                        .unwrap_or(rest.len());
                    format!("{}pegasus.X{}", &word[..at], &rest[end..])
                }
                None => word.to_owned(),
            });
            lines.push(words.collect::<Vec<_>>().join(" "));
        }
        lines
    }

    fn transfer(&self, lfn: &str, source: &str, destination: &str) -> Value {
        let url = |place: &str| match place {
            "" => format!("file://$PWD/{lfn}"),
            place => format!("file://{}/{lfn}", self.path(place).display()),
        };
        json!({
            "type": "transfer", "linkage": "input", "lfn": lfn, "id": 1,
            "src_urls": [{"site_label": "local", "url": url(source)}],
            "dest_urls": [{"site_label": "local", "url": url(destination)}],
        })
    }

    /// Returns a description of a job that runs a shell command through kickstart.
    fn description(&self, kind: &str, command: &str) -> Value {
        json!({
            "format": 1,
            "job": "copy_j1",
            "scratch": self.path("node"),
            "run_key": self.path("submit"),
            "container": {
                "kind": kind,
                "image": "box",
                "directory": self.path("inside"),
                "mounts": ["/data:/data:ro"],
                "arguments": ["--option", "$FLAVOUR"],
                "environment": {"WHO": "container"},
                "secrets": ["TOKEN"],
                "fetch": [self.transfer("box", "staging", "")],
            },
            "stage_in": [self.transfer("in", "staging", "")],
            "run": {"kickstart": ["-n", "copy", "-N", "j1", "-R", "local", "-s", "out=out", "/bin/sh", "-c", command.replace("@TOP@", &self.top.path().display().to_string())]},
            "stage_out": [self.transfer("out", "", "staging")],
            "checksum_file": self.path("submit/copy_j1.meta"),
        })
    }

    fn command(&self, name: &str, description: &Value) -> Command {
        let file = self.path("submit").join(name);
        fs::write(&file, description.to_string()).unwrap();
        let mut command = Command::new(testutils::programs::path("pegasus-lite"));
        // The tools of the tests' system come behind the stand-ins.
        let path = format!("{}:/usr/bin:/bin", self.path("bin").display());
        command
            .arg(file)
            .current_dir(self.path("submit"))
            .env("PATH", path)
            .env("PEGASUS_WN_TMP_MIN_SPACE", "1")
            .env("FLAVOUR", "strong")
            .env("TOKEN", "secret")
            .env("OF_NODE", "yes")
            .env("TMPDIR", "/nowhere")
            // The stand-in has no daemon that could be found.
            .env("DOCKER_HOST", "tcp://nowhere:1")
            .env_remove("PEGASUS_WN_TMP")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, description: &Value) -> Output {
        self.command("copy_j1.json", description).output().unwrap()
    }

    /// Directories of jobs that are left on the node.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("node")).unwrap().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.ends_with("-cache"))
            .collect()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Copies the input, and says in what environment: no container keeps it from writing into the directory of
/// the test.
const COPY: &str =
    "tr a-z A-Z <in >out; { printenv WHO TOKEN OF_IMAGE OF_NODE TMPDIR HOME; pwd; } >@TOP@/said";

#[test]
fn docker_loads_an_image_once_and_runs_the_program() {
    let job = Job::new(&["docker", "podman"]);
    let description = job.description("docker", COPY);
    let (first, second) = thread::scope(|scope| {
        let runs = ["", "-2"].map(|name| {
            let mut description = description.clone();
            description["container"]["directory"] = json!(job.path(&format!("inside{name}")));
            let mut command = job.command(&format!("copy{name}.json"), &description);
            scope.spawn(move || command.output().unwrap())
        });
        // The second one starts while the first one loads the image.
        let [first, second] = runs.map(|run| run.join().unwrap());
        (first, second)
    });
    for output in [&first, &second] {
        let log = stderr(output);
        assert_eq!(output.status.code(), Some(0), "{log}");
        let said = job.read("said");
        assert!(
            said.starts_with(&format!(
                "container\nsecret\nyes\n{}",
                job.path("inside").display()
            )),
            "{said}"
        );
        assert!(String::from_utf8_lossy(&output.stdout).starts_with("- invocation: True\n"));
        assert_eq!(log.matches("PegasusLite: exitcode 0\n").count(), 1, "{log}");
    }
    assert_eq!(job.read("staging/out"), "HELLO\n");
    let meta: Value = serde_json::from_str(&job.read("submit/copy_j1.meta")).unwrap();
    assert_eq!(meta[0]["_id"], "out");
    let calls = job.calls();
    let loads = calls
        .iter()
        .filter(|call| call.starts_with("docker load "))
        .count();
    assert_eq!(loads, 1, "{calls:?}");
    let fetched = format!("{}{}", stderr(&first), stderr(&second));
    assert_eq!(fetched.matches("Staging in container").count(), 1, "{fetched}");
    let user = format!("{}:{}", nix::unistd::geteuid(), nix::unistd::getegid());
    let is_first = |call: &&String| call.starts_with("docker run ") && call.contains("@/inside ");
    let run = calls.iter().find(is_first).unwrap();
    let expected = format!(
        "docker run --rm --user {user} -v @/node/pegasus.X:@/inside -v /data:/data:ro -w @/inside --entrypoint \
         @/inside/.pegasus-lite/"
    );
    assert!(run.starts_with(&expected), "{run}");
    assert!(
        run.contains(" --option strong --name pegasus.X-copy_j1 id"),
        "{run}"
    );
    assert!(run.ends_with("--inside @/inside/.pegasus-lite/job.json"), "{run}");
    assert_eq!(job.left(), [""; 0]);
}

#[test]
fn apptainer_comes_before_singularity_and_gets_the_file() {
    for (engines, expected) in [
        (&["singularity", "apptainer"][..], "apptainer exec"),
        (&["singularity"], "singularity exec"),
    ] {
        let job = Job::new(engines);
        let mut description = job.description("singularity", COPY);
        description["container"]["launcher"] = json!(["env", "LAUNCHED=yes"]);
        let output = job.run(&description);
        let log = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{log}");
        let inside = job.path("inside").display().to_string();
        assert_eq!(
            job.read("said"),
            format!("container\nsecret\nyes\n{inside}\n{inside}\n")
        );
        let calls = job.calls();
        let expected = format!(
            "{expected} --no-home --bind @/node/pegasus.X:@/inside --bind /data:/data:ro --option strong \
             @/node/pegasus.X/box @/inside/.pegasus-lite/"
        );
        assert!(calls[0].starts_with(&expected), "{calls:?}");
        assert_eq!(calls.len(), 1);
    }
}

#[test]
fn shifter_gets_the_name_of_the_image() {
    let job = Job::new(&["shifter"]);
    let mut description = job.description("shifter", COPY);
    description["container"]["image"] = json!("docker/centos:7");
    description["container"]["fetch"] = json!([]);
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let calls = job.calls();
    let expected = "shifter --image docker/centos:7 --volume /data:/data:ro;@/node/pegasus.X:@/inside --workdir=@/inside \
                    --option strong @/inside/.pegasus-lite/";
    assert!(calls[0].starts_with(expected), "{calls:?}");
}

#[test]
fn docker_without_a_daemon_falls_to_podman() {
    if std::os::unix::net::UnixStream::connect("/var/run/docker.sock").is_ok() {
        return;
    }
    let job = Job::new(&["docker", "podman"]);
    let mut command = job.command("copy_j1.json", &job.description("docker", COPY));
    for name in ["DOCKER_HOST", "DOCKER_CONTEXT", "XDG_RUNTIME_DIR"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let calls = job.calls();
    assert!(
        !calls.is_empty() && calls.iter().all(|call| call.starts_with("podman ")),
        "{calls:?}"
    );
}

#[test]
fn files_can_be_moved_inside() {
    let job = Job::new(&["podman"]);
    let mut description = job.description("podman", COPY);
    description["container"]["transfers_inside"] = json!(true);
    let meta = json!([{"_id": "in", "_attributes": {"checksum.type": "sha256", "checksum.value": "00"}}]);
    fs::write(job.path("submit/parent.meta"), meta.to_string()).unwrap();
    let output = job.run(&description);
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert_eq!(job.read("staging/out"), "HELLO\n");
    let records = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(records.matches("- transfer_attempts:\n").count(), 3, "{records}");
    assert!(
        job.calls()[2].starts_with("podman run --rm --user 0:0 "),
        "{:?}",
        job.calls()
    );
    // Checksums of parents are in a directory that the container does not see.
    description["verify"] = json!([{"lfn": "in", "checksum_file": job.path("submit/parent.meta")}]);
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(65), "{}", stderr(&output));
}

#[test]
fn a_shared_work_directory_is_mounted_where_it_is() {
    let job = Job::new(&["docker"]);
    let shared = job.path("staging");
    let mut description = job.description("docker", COPY);
    for key in ["stage_in", "stage_out", "checksum_file"] {
        description[key].take();
    }
    description
        .as_object_mut()
        .unwrap()
        .retain(|_, value| !value.is_null());
    description["work_directory"] = json!(shared);
    description["container"]["image"] = json!(shared.join("box"));
    description["container"]["fetch"] = json!([]);
    fs::write(job.path("submit/copy.out.lof"), "out\n").unwrap();
    description["run"]["kickstart"][7] = json!(format!("@{}", job.path("submit/copy.out.lof").display()));
    let output = job.run(&description);
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert_eq!(job.read("staging/out"), "HELLO\n");
    assert!(
        job.read("said").ends_with(&format!("\n{}\n", shared.display())),
        "{log}"
    );
    let calls = job.calls();
    assert!(calls[2].contains(" -v @/staging:@/staging "), "{calls:?}");
    assert!(calls[2].contains(" -w @/staging "), "{calls:?}");
}

#[test]
fn jobs_of_a_cluster_share_its_directory_and_do_not_end_it() {
    let job = Job::new(&["docker"]);
    let cluster = job.path("staging");
    let mut description = job.description("docker", COPY);
    for key in ["stage_in", "stage_out", "checksum_file"] {
        description.as_object_mut().unwrap().remove(key);
    }
    description["work_directory"] = json!(".");
    description["in_cluster"] = json!(true);
    description["container"]["fetch"] = json!([]);
    let sha256 = "ab".repeat(32);
    description["container"]["verify"] = json!([{"lfn": "box", "sha256": sha256}]);
    let mut command = job.command("a.json", &description);
    let output = command.current_dir(&cluster).output().unwrap();
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{log}");
    assert_eq!(job.read("staging/out"), "HELLO\n");
    assert!(
        log.contains("PegasusLite: copy_j1 ended with exit code 0, one job of a cluster"),
        "{log}"
    );
    assert!(!log.contains("PegasusLite: exitcode"), "{log}");
    // Another copy of the image is not loaded.
    fs::write(job.path("staging/box"), "image\n").unwrap();
    let mut command = job.command("b.json", &description);
    assert!(command.current_dir(&cluster).status().unwrap().success());
    let calls = job.calls();
    let loads = calls
        .iter()
        .filter(|call| call.starts_with("docker load"))
        .count();
    assert_eq!(loads, 1, "{calls:?}");
    assert!(calls[2].contains(" -v @/staging:@/staging "), "{calls:?}");
}

#[test]
fn failures_are_told_and_have_their_codes() {
    let job = Job::new(&[]);
    let output = job.run(&job.description("singularity", COPY));
    assert_eq!(output.status.code(), Some(71));
    assert!(
        stderr(&output).contains("ERROR: copy_j1: the node has no apptainer or singularity in its PATH"),
        "{}",
        stderr(&output)
    );
    let job = Job::new(&["docker"]);
    // The code of the program.
    let output = job.run(&job.description("docker", "exit 125"));
    assert_eq!(output.status.code(), Some(125), "{}", stderr(&output));
    // A program without kickstart that does not write its output.
    let mut description = job.description("docker", "");
    description["run"] = json!({"program": ["/bin/true"]});
    description["required"] = json!(["out"]);
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("did not write its declared output: out"));
    // An image that does not start.
    fs::write(job.path("broken"), "").unwrap();
    let output = job.run(&job.description("docker", COPY));
    let log = stderr(&output);
    assert_eq!(output.status.code(), Some(71), "{log}");
    assert!(
        log.contains("ERROR: copy_j1: the container did not start: docker ended with exit code 125"),
        "{log}"
    );
    // An image that cannot be loaded, and one that cannot be fetched.
    fs::remove_dir_all(job.path("loaded")).unwrap();
    let stand_in = job.read("bin/docker").replace("    sleep 0.2;", "    exit 3;");
    fs::write(job.path("bin/docker"), stand_in).unwrap();
    let output = job.run(&job.description("docker", COPY));
    assert!(
        stderr(&output).contains("docker cannot load the image box (exit code 3)"),
        "{}",
        stderr(&output)
    );
    let mut description = job.description("docker", COPY);
    description["container"]["fetch"] = json!([job.transfer("box", "nowhere", "")]);
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(71));
    assert!(stderr(&output).contains("1 of 1 files could not be fetched"));
    // One that is not what it should be.
    let mut description = job.description("docker", COPY);
    description["container"]["verify"] = json!([{"lfn": "box", "sha256": "00"}]);
    let output = job.run(&description);
    assert_eq!(output.status.code(), Some(65), "{}", stderr(&output));
    assert_eq!(job.left(), [""; 0]);
}

/// An engine gives the name of an image to the next one that has the same name in its file.
#[test]
fn an_image_runs_whatever_else_was_loaded_under_its_name() {
    let job = Job::new(&["docker"]);
    let run = |of_run: &str, image: &str| {
        fs::write(job.path("staging/box"), image).unwrap();
        let mut description = job.description("docker", COPY);
        description["run_key"] = json!(job.path(of_run));
        let output = job.run(&description);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let calls = job.calls();
        let last = calls
            .iter()
            .rfind(|call| call.starts_with("docker run "))
            .unwrap();
        let mut words = last.split(' ').skip_while(|word| *word != "--name");
        words.nth(2).unwrap().to_owned()
    };
    // The second run has a newer version of the image.
    let (first, second) = (run("first", "old\n"), run("second", "new\n"));
    assert_ne!(first, second);
    assert_eq!(run("first", "new\n"), first);
    let loads = job
        .calls()
        .iter()
        .filter(|call| call.starts_with("docker load "))
        .count();
    assert_eq!(loads, 2, "{:?}", job.calls());
}

/// The program finds a link to the file in the cache, but not the file itself.
#[test]
fn an_image_that_a_job_has_changed_runs_no_other_job() {
    let job = Job::new(&["apptainer"]);
    let run = |command: &str| {
        let output = job.run(&job.description("singularity", command));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        job.read("seen")
    };
    let look = "cat box >@TOP@/seen; cp in out";
    assert_eq!(run(look), "image\n");
    let cache = job.path(&format!("node/.pegasus-lite-{}-cache", nix::unistd::getuid()));
    let entries = fs::read_dir(&cache).unwrap().flatten();
    let images = entries.filter_map(|entry| fs::metadata(entry.path().join("data")).ok());
    let facts: Vec<_> = images
        .map(|image| (image.permissions().mode() & 0o222, image.nlink()))
        .collect();
    assert_eq!(facts, [(0, 1)], "nobody changes it by mistake");
    let spoil = "touch -r box time; chmod u+w box; echo imagE >box; touch -r time box; cat box >@TOP@/seen; cp in out";
    assert_eq!(run(spoil), "imagE\n");
    assert_eq!(run(look), "image\n");
    // Its link is its own.
    assert_eq!(
        run("rm box; echo own >box; cat box >@TOP@/seen; cp in out"),
        "own\n"
    );
    assert_eq!(run(look), "image\n");
}

/// Nothing says whether what another node has is right.
#[test]
fn an_image_without_a_checksum_never_comes_from_another_node() {
    let job = Job::new(&["apptainer"]);
    let name = format!("pmc-lite-test-{}", std::process::id());
    let agent = peers::listen(&name).unwrap();
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&said);
    thread::spawn(move || {
        for connection in agent.incoming().flatten() {
            while let Ok(message) = peers::receive::<ToAgent>(&connection) {
                let word = match &message {
                    ToAgent::Want { .. } => "want",
                    ToAgent::Have(_) => "have",
                    _ => "other",
                };
                heard.lock().unwrap().push(word.to_owned());
                if let ToAgent::Want { .. } = message {
                    peers::send(&connection, &ToJob::Fetch).unwrap();
                }
            }
        }
    });
    let run = |checksum: Option<&str>, expected: &[&str]| {
        said.lock().unwrap().clear();
        let mut description = job.description("singularity", COPY);
        if let Some(sha256) = checksum {
            description["container"]["verify"] = json!([{"lfn": "box", "sha256": sha256}]);
        }
        let mut command = job.command("copy_j1.json", &description);
        let output = command.env(peers::VARIABLE, &name).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let start = std::time::Instant::now();
        while said.lock().unwrap().len() < expected.len() && start.elapsed().as_secs() < 60 {
            thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(*said.lock().unwrap(), expected);
    };
    run(None, &["have"]);
    run(
        Some("254eddf15d9534e3b20c55469077aa2f24f167aa4b897a36381d3e251e4829c2"),
        &["want", "have"],
    );
}

/// In a directory that all may write, another user can take the name of the cache.
#[test]
fn without_a_cache_each_job_has_its_own_image() {
    let job = Job::new(&["docker", "apptainer"]);
    let cache = format!("node/.pegasus-lite-{}-cache", nix::unistd::getuid());
    fs::write(job.path(&cache), "planted").unwrap();
    for (kind, loads) in [("docker", 2), ("singularity", 2)] {
        for _ in 0..2 {
            let output = job.run(&job.description(kind, COPY));
            let log = stderr(&output);
            assert_eq!(output.status.code(), Some(0), "{log}");
            assert!(log.contains("The cache of the node cannot be used: "), "{log}");
        }
        let calls = job.calls();
        let loaded = calls.iter().filter(|call| call.starts_with("docker load "));
        assert_eq!(loaded.count(), loads, "{calls:?}");
    }
    assert_eq!(job.left(), [""; 0]);
}

fn wait_for(file: &Path) {
    let start = std::time::Instant::now();
    while !file.exists() {
        assert!(start.elapsed().as_secs() < 60, "{} is not there", file.display());
        thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn the_container_of_a_killed_job_is_removed() {
    let job = Job::new(&["docker"]);
    // Tells the process that it becomes.
    let endless = "cut -d ' ' -f 4 /proc/self/stat >@TOP@/pid; mv @TOP@/pid @TOP@/started; exec sleep 1000";
    let endless = job.description("docker", endless);
    let start = || {
        let _ = fs::remove_file(job.path("started"));
        let mut command = job.command("copy_j1.json", &endless);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for(&job.path("started"));
        child
    };
    let removed = || {
        job.calls()
            .iter()
            .filter(|call| call.starts_with("docker rm --force "))
            .count()
    };
    let signal = |child: &std::process::Child, signal| {
        kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
    };
    // The stand-in does not pass on the signal, docker does.
    let end_inside = || {
        let pid = job.read("started").trim().parse().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    };
    let mut child = start();
    signal(&child, Signal::SIGTERM);
    end_inside();
    assert_ne!(child.wait().unwrap().code(), Some(0));
    assert_eq!(removed(), 1);
    assert_eq!(job.left(), [""; 0]);
    let mut child = start();
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    end_inside();
    assert_eq!(job.run(&job.description("docker", COPY)).status.code(), Some(0));
    assert_eq!(removed(), 2);
    assert_eq!(job.left(), [""; 0]);
}
