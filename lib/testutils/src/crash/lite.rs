//! Rounds with a workflow without a shared file system: its processes are killed, then it continues. At the
//! end, neither directories of jobs nor halves of cached files are left on the node.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use super::Damage;
use super::check::{self, CHAINS};
use super::place::{Place, Victim};

/// About the time of an undisturbed run, in milliseconds.
const RUN_MS: u64 = 2000;

/// Maximum disturbances of a round.
const MAX_FAULTS: u64 = 6;

/// Name of the input that all jobs share.
const SHARED: &str = "shared";

/// Bytes of that input.
const SHARED_BYTES: usize = 200_000;

/// The directory of the node for directories of jobs.
const NODE: &str = "node";

/// The program of all jobs makes many files, so that some may be made while others are removed.
const STEP: &str = r#"#!/bin/sh
set -e
for n in 1 2 3 4 5; do
    mkdir -p "work/$n"
    echo "$n" >"work/$n/file"
    sleep 0.01
done
test "$(wc -c <shared)" -eq @BYTES@
{ cat "$2"; echo "$1"; } >"$3"
"#;

/// A directory for everything but the inputs.
const SITES: &str = r#"pegasus: "5.0.4"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: "@TOP@/scratch", fileServers: [{url: "file://@TOP@/scratch", operation: all}]}
  - {type: localStorage, path: "@TOP@/output", fileServers: [{url: "file://@TOP@/output", operation: all}]}
"#;

/// Plans the workflow. Returns false if that fails.
fn plan(place: &mut Place, port: u16) -> bool {
    let top = place.path("").display().to_string();
    let top = top.trim_end_matches('/');
    place.write("step", &STEP.replace("@BYTES@", &SHARED_BYTES.to_string()));
    place.write("sites.yml", &SITES.replace("@TOP@", top));
    place.write(
        "pegasus.properties",
        "pegasus.data.configuration = nonsharedfs\npegasus.transfer.bypass.input.staging = true\n",
    );
    fs::create_dir(place.path(NODE)).expect("a directory");
    let checksum = hex(&Sha256::digest(content()));
    let mut inputs = format!(
        "  - {{lfn: {SHARED}, pfns: [{{site: web, pfn: \"http://127.0.0.1:{port}/{SHARED}\"}}], \
         checksum: {{sha256: {checksum}}}}}\n"
    );
    let mut jobs = String::new();
    for n in 0..CHAINS {
        place.write(&format!("in{n}"), &format!("input {n}\n"));
        inputs += &format!("  - {{lfn: in{n}, pfns: [{{site: local, pfn: \"{top}/in{n}\"}}]}}\n");
        for (job, from, to, kept) in [("A", "in", "mid", "false"), ("B", "mid", "out", "true")] {
            jobs += &format!(
                "- {{type: job, id: {job}{n}, name: step, arguments: [{job}{n}, {from}{n}, {to}{n}], uses: \
                 [{{lfn: {SHARED}, type: input}}, {{lfn: {from}{n}, type: input}}, \
                 {{lfn: {to}{n}, type: output, stageOut: {kept}, registerReplica: false}}]}}\n"
            );
        }
    }
    place.write(
        "workflow.yml",
        &format!(
            "pegasus: \"5.0.4\"\nname: crash\ntransformationCatalog:\n  transformations:\n  \
             - {{name: step, sites: [{{name: local, type: stageable, pfn: \"{top}/step\"}}]}}\n\
             replicaCatalog:\n  replicas:\n{inputs}jobs:\n{jobs}"
        ),
    );
    let arguments = ["-q", "--sites", "local", "--output-sites", "local", "--dir", "."];
    let mut command = place.command("pmc-plan", arguments);
    command.args(["--relative-submit-dir", "submit", "workflow.yml"]);
    place.run(&mut command)
}

/// Processes of a run without a shared file system are killed.
pub(super) fn killed(place: &mut Place) {
    let server = Server::start();
    if !plan(place, server.address.port()) {
        place.find(Damage::Wrong, "the workflow cannot be planned");
        return;
    }
    place.has_agents = place.random.one_in(2);
    let is_separate = place.random.one_in(3);
    let command = |place: &Place| {
        let arguments = [
            "--host-memory",
            "100000",
            "--host-cpus",
            "8",
            "--per-task-stdio",
            "--tries",
            "3",
        ];
        let mut command = place.command("pegasus-mpi-cluster", arguments);
        if place.has_agents {
            command.args(["--agents", "2", "--launch", "local", "--slots", "2"]);
            command.args(["--agent-timeout", "2", "--join-timeout", "60"]);
        } else {
            command.args(["--workers", "3"]);
        }
        if is_separate {
            command.env("PMC_KICKSTART", "exec");
        }
        on_node(place, &mut command);
        command.arg("submit/crash-0.dag");
        command
    };
    for _ in 0..=place.random.below(MAX_FAULTS) {
        let victim = place
            .random
            .pick(&[Victim::First, Victim::Below, Victim::Below, Victim::All]);
        let mut command = command(place);
        if place.run_and_kill(&mut command, RUN_MS, victim) {
            break;
        }
    }
    let mut command = command(place);
    if place.run(&mut command) {
        check_node(place);
    } else {
        place.find(Damage::Lost, "the workflow cannot be completed");
    }
    place.end_agents();
    let top = place.path("");
    check::outputs(place, &top);
    sweep(place);
}

/// Runs another task, as a user would do later: its task server sweeps what was left before.
fn sweep(place: &mut Place) {
    let kickstart = place.program("pegasus-kickstart").display().to_string();
    place.write("next.dag", &format!("TASK next {kickstart} /bin/true\n"));
    let mut command = place.command("pegasus-mpi-cluster", ["--workers", "1", "next.dag"]);
    if !place.run(&mut command) {
        place.find(Damage::Wrong, "the next run fails");
    }
}

fn on_node(place: &Place, command: &mut Command) {
    command
        .env("PEGASUS_WN_TMP", place.path(NODE))
        .env("PEGASUS_WN_TMP_MIN_SPACE", "1");
}

/// Only the shared input is left, in the cache.
fn check_node(place: &mut Place) {
    let key = hex(&Sha256::digest(content()));
    for entry in place.path(NODE).read_dir().into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with("-cache") {
            place.find(Damage::LeftOver, format!("on the node: {name}"));
            continue;
        }
        for file in check::entries_below(&entry.path()) {
            if ![
                key.clone(),
                format!("{key}/data"),
                format!("{key}.lock"),
                "swept".to_owned(),
            ]
            .contains(&file)
            {
                place.find(Damage::LeftOver, format!("in the cache: {file}"));
            }
        }
        match fs::read(entry.path().join(&key).join("data")) {
            Ok(data) if data == content() => {}
            Ok(_) => place.find(Damage::Torn, "the cached input"),
            // The last job of the run may have been killed before.
            Err(error) => place.find(Damage::Lost, format!("the cached input: {error}")),
        }
    }
}

fn content() -> Vec<u8> {
    (0..SHARED_BYTES).map(|n| (n % 251) as u8).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A web server that has the shared input, and sends it slowly.
struct Server {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let server = Self {
            address: listener.local_addr().expect("an address"),
            ends: Arc::default(),
        };
        let ends = Arc::clone(&server.ends);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ends.load(Ordering::SeqCst) {
                    return;
                }
                // A job that is killed closes its connection.
                std::thread::spawn(move || drop(answer(&stream)));
            }
        });
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

fn answer(mut stream: &TcpStream) -> io::Result<()> {
    let mut request = BufReader::new(Read::take(stream, 1 << 16)).lines();
    while request.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {SHARED_BYTES}\r\nConnection: close\r\n\r\n"
    )?;
    for part in content().chunks(SHARED_BYTES / 10) {
        stream.write_all(part)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
