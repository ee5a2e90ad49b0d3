//! The cache of a node: a web server counts what jobs fetch.

#![expect(clippy::unwrap_used, reason = "a test stops at the first unexpected result")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use monitord_compat::lite_data::{self, LiteData};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::{Value, json};
use testutils::Random;

const HELLO: &str = "hello\n";
const CHECKSUM: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";

/// A web server that has one file.
struct Server {
    port: u16,
    requests: Arc<AtomicUsize>,
    content: Arc<Mutex<String>>,
}

impl Server {
    fn start(pause: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = Self {
            port: listener.local_addr().unwrap().port(),
            requests: Arc::default(),
            content: Arc::new(Mutex::new(HELLO.to_owned())),
        };
        let (requests, content) = (Arc::clone(&server.requests), Arc::clone(&server.content));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (requests, content) = (Arc::clone(&requests), Arc::clone(&content));
                std::thread::spawn(move || {
                    // A job that is killed closes its connection.
                    let _ = answer(&stream, &requests, &content, pause);
                });
            }
        });
        server
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn answer(
    mut stream: &TcpStream,
    requests: &AtomicUsize,
    content: &Mutex<String>,
    pause: Duration,
) -> std::io::Result<()> {
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line.starts_with("GET ") {
            requests.fetch_add(1, Ordering::SeqCst);
        }
        if line.is_empty() {
            break;
        }
    }
    std::thread::sleep(pause);
    let text = content.lock().unwrap().clone();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    )
}

/// A directory with nodes and a submit directory.
struct Site {
    top: tempfile::TempDir,
    server: Server,
}

impl Site {
    fn new(nodes: &[&str], pause: Duration) -> Self {
        let top = tempfile::tempdir().unwrap();
        for name in nodes.iter().chain(&["submit"]) {
            fs::create_dir(top.path().join(name)).unwrap();
        }
        Self {
            top,
            server: Server::start(pause),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.top.path().join(name)
    }

    /// Returns the description of a job with one input that other jobs share.
    fn description(&self, node: &str, command: &str) -> Value {
        let url = format!("http://127.0.0.1:{}/in", self.server.port);
        json!({
            "format": 1,
            "job": "j",
            "scratch": self.path(node),
            "transfer_arguments": ["--max-attempts", "1"],
            "stage_in": [{
                "type": "transfer", "linkage": "input", "lfn": "deep/in", "id": 1,
                "src_urls": [{"site_label": "hub", "url": url}],
                "dest_urls": [{"site_label": "local", "url": "file://$PWD/deep/in"}],
            }],
            "shared": ["deep/in"],
            "verify": [{"lfn": "deep/in", "sha256": CHECKSUM}],
            "run": {"program": ["/bin/sh", "-c", command]},
        })
    }

    fn start(&self, number: usize, description: &Value) -> Child {
        let file = self.path(&format!("submit/{number}.json"));
        fs::write(&file, description.to_string()).unwrap();
        let mut command = Command::new(testutils::programs::path("pegasus-lite"));
        command
            .arg(file)
            .env("PEGASUS_WN_TMP_MIN_SPACE", "1")
            .env_remove("PEGASUS_WN_TMP")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn run(&self, description: &Value) -> Output {
        self.start(0, description).wait_with_output().unwrap()
    }

    /// The files of a node: directories of jobs, and what is in the cache.
    fn left(&self, node: &str) -> Vec<String> {
        let mut left = Vec::new();
        for entry in fs::read_dir(self.path(node)).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if name.ends_with("-cache") {
                assert_eq!(entry.metadata().unwrap().mode() & 0o777, 0o700);
                left.extend(names(&entry.path()).into_iter().filter(|name| name != "swept"));
            } else {
                left.push(name);
            }
        }
        left.sort();
        left
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().flatten();
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

fn succeeded(output: &Output) -> String {
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{log}");
    log
}

#[test]
fn jobs_of_a_node_fetch_an_input_once_and_cannot_spoil_it() {
    let nodes = ["n1", "n2", "n3"];
    let site = Site::new(&nodes, Duration::from_millis(200));
    let spoil = "test \"$(cat deep/in)\" = hello && echo spoilt >>deep/in";
    let mut jobs = Vec::new();
    for number in 0..24 {
        let mut description = site.description(nodes[number % 3], spoil);
        if number % 2 == 0 {
            description["verify"][0]["sha256"] = CHECKSUM.to_uppercase().into();
        }
        jobs.push(site.start(number, &description));
    }
    let outputs: Vec<_> = jobs
        .into_iter()
        .map(|job| job.wait_with_output().unwrap())
        .collect();
    let (mut copies, mut checks) = (0, 0);
    let mut sum = LiteData::default();
    for output in &outputs {
        let log = succeeded(output);
        copies += log.matches("is from the cache of the node").count();
        sum += lite_data::find(&log).expect("a line about the data");
        checks += String::from_utf8_lossy(&output.stdout)
            .matches("succeeded: 1")
            .count();
    }
    assert_eq!((site.server.requests(), copies), (3, 21));
    assert_eq!((sum.fetched, sum.cached), (3 * 6, 21 * 6));
    assert!(sum.waited > 0.0 && sum.waited <= sum.stage_in, "{sum}");
    assert_eq!(checks, 24, "one comparison a job for monitoring");
    for node in nodes {
        assert_eq!(site.left(node), [CHECKSUM, &format!("{CHECKSUM}.lock")]);
        let cache = names(&site.path(node)).remove(0);
        assert_eq!(names(&site.path(node).join(cache).join(CHECKSUM)), ["data"]);
    }
}

/// In a directory that all may write, another user can take the name of the cache.
#[test]
fn without_a_cache_each_job_fetches_its_inputs() {
    let site = Site::new(&["n1"], Duration::ZERO);
    let cache = format!("n1/.pegasus-lite-{}-cache", nix::unistd::getuid());
    fs::write(site.path(&cache), "planted").unwrap();
    for _ in 0..2 {
        let output = site.run(&site.description("n1", "grep -q hello deep/in"));
        let log = succeeded(&output);
        assert!(log.contains("The cache of the node cannot be used: "), "{log}");
    }
    assert_eq!(site.server.requests(), 2);
    assert_eq!(fs::read_to_string(site.path(&cache)).unwrap(), "planted");
}

#[test]
fn a_wrong_file_is_never_kept() {
    let site = Site::new(&["n"], Duration::ZERO);
    let description = site.description("n", "cat deep/in");
    *site.server.content.lock().unwrap() = "hellO\n".to_owned();
    let output = site.run(&description);
    assert_eq!(output.status.code(), Some(65));
    assert_eq!(site.left("n"), [format!("{CHECKSUM}.lock")]);
    *site.server.content.lock().unwrap() = HELLO.to_owned();
    succeeded(&site.run(&description));
    assert_eq!(site.server.requests(), 2);
}

/// Any program of the user can write into the cache.
#[test]
fn a_file_that_was_changed_in_the_cache_is_fetched_again() {
    let site = Site::new(&["n"], Duration::ZERO);
    let description = site.description("n", "cat deep/in");
    succeeded(&site.run(&description));
    let cache = site.path("n").join(names(&site.path("n")).remove(0));
    let (data, lock) = (
        cache.join(CHECKSUM).join("data"),
        cache.join(format!("{CHECKSUM}.lock")),
    );
    // Other bytes, as many as before, and the time of before.
    let time = fs::metadata(&data).unwrap().modified().unwrap();
    fs::write(&data, "hellO\n").unwrap();
    fs::File::options()
        .write(true)
        .open(&data)
        .unwrap()
        .set_modified(time)
        .unwrap();
    succeeded(&site.run(&description));
    assert_eq!(site.server.requests(), 2);
    assert_eq!(fs::read_to_string(&data).unwrap(), HELLO);
    // Another file takes its place.
    fs::write(cache.join("other"), HELLO).unwrap();
    fs::rename(cache.join("other"), &data).unwrap();
    succeeded(&site.run(&description));
    assert_eq!(site.server.requests(), 3);
    // While others use it, each job fetches its own.
    let held = fs::File::open(&lock).unwrap();
    held.lock_shared().unwrap();
    fs::write(&data, "spoilt").unwrap();
    for requests in 4..6 {
        let log = succeeded(&site.run(&description));
        assert!(log.contains("was changed in the cache"), "{log}");
        assert_eq!(site.server.requests(), requests);
    }
    drop(held);
    succeeded(&site.run(&description));
    assert_eq!(fs::read_to_string(&data).unwrap(), HELLO);
    // Even the note beside it is changed: one attempt fails, the next one fetches the file.
    fs::write(&data, "spoilt").unwrap();
    fs::write(&lock, pmc_node_files::identity(&fs::metadata(&data).unwrap())).unwrap();
    assert_eq!(site.run(&description).status.code(), Some(65));
    succeeded(&site.run(&description));
    assert_eq!(site.server.requests(), 7);
}

#[test]
fn a_file_that_is_too_large_for_the_cache_is_fetched_by_each_job() {
    let site = Site::new(&["n"], Duration::ZERO);
    let mut description = site.description("n", "cat deep/in");
    description["cache_limit"] = 5.into();
    for _ in 0..3 {
        assert!(!succeeded(&site.run(&description)).contains("from the cache"));
    }
    assert_eq!(site.server.requests(), 3);
    // Its lock says so to other jobs.
    assert_eq!(site.left("n"), [CHECKSUM, &format!("{CHECKSUM}.lock")]);
    let cache = names(&site.path("n")).remove(0);
    assert!(
        names(&site.path("n").join(cache).join(CHECKSUM))
            .iter()
            .all(|name| name != "data")
    );
}

#[test]
fn a_job_that_is_killed_while_it_fetches_holds_up_nobody() {
    let site = Site::new(&["n"], Duration::from_millis(300));
    let description = site.description("n", "cat deep/in");
    let mut killed = site.start(1, &description);
    let start = Instant::now();
    while site.server.requests() == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is fetched");
        std::thread::sleep(Duration::from_millis(5));
    }
    let next = site.start(2, &description);
    killed.kill().unwrap();
    killed.wait().unwrap();
    succeeded(&next.wait_with_output().unwrap());
    assert_eq!(site.server.requests(), 2);
    // The next one removes the directory of the killed one.
    succeeded(&site.run(&description));
    assert_eq!(site.left("n"), [CHECKSUM, &format!("{CHECKSUM}.lock")]);
}

/// Kills of [`jobs_that_are_killed_at_any_moment_leave_nothing`], unless the variable says otherwise.
const KILLS: u64 = 20;

/// Variable with the number of kills.
const KILLS_VARIABLE: &str = "PMC_TEST_KILLS";

#[test]
fn jobs_that_are_killed_at_any_moment_leave_nothing() {
    let kills = std::env::var(KILLS_VARIABLE).map_or(KILLS, |text| text.parse().expect("a number"));
    let site = Site::new(&["n"], Duration::from_millis(10));
    let mut description = site.description("n", "mkdir -p a/b; sleep 0.02; cp deep/in out");
    let staged = format!("file://{}", site.path("submit/out").display());
    description["stage_out"] = json!([{
        "type": "transfer", "linkage": "output", "lfn": "out", "id": 1,
        "src_urls": [{"site_label": "local", "url": "file://$PWD/out"}],
        "dest_urls": [{"site_label": "hub", "url": staged}],
    }]);
    let clock = Instant::now();
    succeeded(&site.run(&description));
    let length = clock.elapsed().as_micros() as u64;
    let mut random = Random(kills);
    for kill in 0..kills {
        // Every other job finds no input in the cache, or one that somebody fetches.
        let two = [0, 1].map(|number| site.start(number, &description));
        std::thread::sleep(Duration::from_micros(random.below(length)));
        for mut job in two {
            let group = Pid::from_raw(-i32::try_from(job.id()).unwrap());
            // With its program, as an executor does, or alone, as a system without memory does.
            if random.one_in(2) {
                let _ = nix::sys::signal::kill(group, Signal::SIGKILL);
            }
            job.kill().unwrap();
            job.wait().unwrap();
        }
        if kill % 2 == 0 {
            let cache = site
                .path("n")
                .join(format!(".pegasus-lite-{}-cache", nix::unistd::getuid()));
            let _ = fs::remove_dir_all(cache.join(CHECKSUM));
        }
    }
    succeeded(&site.run(&description));
    assert_eq!(fs::read_to_string(site.path("submit/out")).unwrap(), HELLO);
    let lock = format!("{CHECKSUM}.lock");
    assert_eq!(site.left("n"), [CHECKSUM, lock.as_str()]);
}
