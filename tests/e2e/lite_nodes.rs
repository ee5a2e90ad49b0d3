//! Workflows on three nodes that have no directory in common with the master or each other: files pass
//! through a server, and the master does for them what happens in the submit directory. Jobs that need
//! this directory run on a fourth node, which sees it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testutils::node_faults::network::{Network, Node};

use crate::lite::monitored;
use crate::support::command::Program;
use crate::support::nginx;
use crate::support::pegasus::{Monitored, only_file};
use crate::support::programs::{Build, server_bin};

/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(240);

/// Jobs of the first level.
const PARTS: usize = 12;

/// The program of all jobs. It fails on a node that sees the files of the server.
const WORK: &str = r#"#!/bin/sh
set -e
[ ! -e @TOP@/server/root ] || exit 9
case $1 in
part) sleep "$3"; echo "part $2"; head -n 1 in.txt ;;
join) shift; cat "$@" ;;
head) sleep 0.2; head -n 1 "$2" ;;
esac
"#;

pub(crate) const WORKFLOW: &str = r#"pegasus: "5.0.4"
name: parts
transformationCatalog:
  transformations:
  - {name: work, sites: [{name: archive, type: stageable, pfn: "@ARCHIVE@/inputs/work"}]}
replicaCatalog:
  replicas:
  - {lfn: in.txt, pfns: [{site: archive, pfn: "@ARCHIVE@/inputs/in.txt"}]}
jobs:
"#;

/// Jobs run at the site `local`, whose shared directory only one mode uses.
const SITES: &str = r#"pegasus: "5.0.4"
sites:
- name: local
  directories:
  - {type: sharedScratch, path: "@TOP@/shared", fileServers: [{url: "file://@TOP@/shared", operation: all}]}
- name: hub
  directories:
  - {type: sharedScratch, path: /stage, fileServers: [{url: "@HUB@", operation: all}]}
- name: archive
  directories:
  - {type: localStorage, path: /outputs, fileServers: [{url: "@ARCHIVE@/outputs", operation: all}]}
"#;

/// Runs an agent on a node: hides the directory of the server, has a disk of its own for jobs, and lists what
/// is left on it.
const NODE: &str = r#"server=$1 scratch=$2 size=$3; shift 3
mount -t tmpfs none "$server" && mount -t tmpfs -o size="$size" none "$scratch" || exit 1
export PEGASUS_WN_TMP="$scratch" PEGASUS_WN_TMP_MIN_SPACE=1
"$@"; code=$?
ls -A "$scratch" >"left.$(hostname)"
exit $code"#;

/// The same on a node that has no directory in common with others but its programs: `/tmp` and the
/// directory of the test are its own.
const APART: &str = r#"top=$1 size=$2 credentials=$3 endpoint=$4; shift 4
until [ -s "$endpoint" ]; do sleep 0.05; done
export PMC_ENDPOINT="$(base64 -w0 "$endpoint")"
[ -z "$credentials" ] || secret=$(cat "$credentials")
mount -t tmpfs none /tmp && mkdir -p "$top" && mount -t tmpfs none "$top" && mkdir "$top/node" || exit 1
mount -t tmpfs -o size="$size" none "$top/node" || exit 1
[ -z "$credentials" ] || (umask 077; echo "$secret" >"$credentials")
export PEGASUS_WN_TMP="$top/node" PEGASUS_WN_TMP_MIN_SPACE=1
"$@"; code=$?
{ ls -A "$top/node"; find /tmp -name 'pmc-agent*' -o -path '*/pmc-checkpoints*'; } >"left.$(hostname)"
exit $code"#;

/// A program on the host of the master that ends with the test.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // It is not reaped yet.
        let _ = kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// The network, its servers and a workflow.
pub(crate) struct Grid {
    // Servers end before their network.
    servers: Vec<Served>,
    network: Network,
    directory: tempfile::TempDir,
    credentials: Option<PathBuf>,
    /// Jobs of the first level.
    parts: usize,
    /// A run that takes longer hangs.
    pub(crate) limit: Duration,
    /// Jobs of a node at a time.
    slots: &'static str,
    /// How the output of jobs is kept.
    stdio: &'static str,
}

/// Which nodes a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// Three that see the submit directory.
    Near,
    /// Three that do not.
    Apart,
    /// One that does, too.
    ApartAndNear,
}

/// A run that goes on.
pub(crate) struct Running<'a> {
    pub(crate) network: &'a Network,
    /// The nodes; the fourth one sees the submit directory. A node that is taken away is switched off.
    pub(crate) nodes: Vec<Option<Node>>,
    master: Served,
    restart: &'a dyn Fn() -> Served,
}

impl Running<'_> {
    /// Sends a signal to the master and to all agents, as a batch system does at the end of a job.
    pub(crate) fn signal_all(&self, signal: Signal) {
        for node in self.nodes.iter().flatten() {
            assert!(node.signal_agent(signal), "an agent is missing");
        }
        kill(Pid::from_raw(self.master.0.id().cast_signed()), signal).expect("the master");
    }
}

impl Grid {
    /// Starts a web server with the inputs of the workflow, whose first jobs take `seconds`.
    pub(crate) fn new(seconds: &str, input: &str) -> Self {
        Self::with_parts(PARTS, seconds, input)
    }

    /// The same with another number of first jobs.
    pub(crate) fn with_parts(parts: usize, seconds: &str, input: &str) -> Self {
        let mut grid = Self {
            servers: Vec::new(),
            network: Network::new().expect("network namespaces"),
            directory: tempfile::tempdir().expect("a temporary directory"),
            credentials: None,
            parts,
            limit: LIMIT,
            slots: "2",
            stdio: "--per-task-stdio",
        };
        for name in [
            "server/root/inputs",
            "server/root/outputs",
            "server/root/stage",
            "node",
            "shared",
        ] {
            fs::create_dir_all(grid.path(name)).expect("a directory");
        }
        grid.write("server/root/inputs/work", WORK);
        grid.write("server/root/inputs/in.txt", input);
        let jobs: String = (0..parts)
            .map(|n| {
                format!(
                    "- {{type: job, name: work, id: p{n}, arguments: [part, {n}, {seconds}], stdout: out{n}, uses: \
                     [{{lfn: in.txt, type: input}}, {{lfn: out{n}, type: output, stageOut: false}}]}}\n"
                )
            })
            .collect();
        let each = |text: fn(usize) -> String| (0..parts).map(text).collect::<Vec<_>>().join(", ");
        let join = format!(
            "- {{type: job, name: work, id: all, arguments: [join, {}], stdout: total, uses: [{}, {{lfn: total, type: \
             output, stageOut: true}}]}}\n",
            each(|n| format!("out{n}")),
            each(|n| format!("{{lfn: out{n}, type: input}}"))
        );
        let edges = each(|n| format!("{{id: p{n}, children: [all]}}"));
        grid.write(
            "workflow.yml",
            &format!("{WORKFLOW}{jobs}{join}jobDependencies: [{edges}]\n"),
        );
        let address = format!("{}:8080", grid.network.master_address());
        let dav = "location / { dav_methods PUT DELETE MKCOL; dav_access user:rw; }";
        let words = nginx::command(&grid.path("server"), &address, dav);
        grid.serve(&words);
        grid.wait_for("the web server", |grid| grid.path("server/pid").exists());
        grid
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn archive(&self) -> String {
        format!("webdav://{}:8080", self.network.master_address())
    }

    /// Writes a file of the test, with its own paths and addresses.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let text = text
            .replace("@TOP@", &self.directory.path().display().to_string())
            .replace("@ARCHIVE@", &self.archive());
        fs::write(self.path(name), text).expect("a file");
    }

    /// Starts a server on the host of the master.
    fn serve(&mut self, words: &[impl AsRef<OsStr>]) {
        let mut command = self.network.on_master();
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.servers.push(Served(command.spawn().expect("a server")));
    }

    fn wait_for(&self, what: &str, is_there: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_there(self) {
            assert!(start.elapsed() < LIMIT, "{what} does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Plans the workflow. `hub` is the URL of the staging site; without one, the nodes share a directory.
    pub(crate) fn plan(&self, name: &str, hub: Option<&str>) -> PathBuf {
        let sites = SITES.replace("@HUB@", hub.unwrap_or("file:///none"));
        self.write("sites.yml", &sites);
        let mode = if hub.is_some() { "nonsharedfs" } else { "sharedfs" };
        let properties = format!("pegasus.data.configuration = {mode}\n");
        self.write("pegasus.properties", &properties);
        let mut plan = Program::new(Build::Local.program("pmc-plan"))
            .in_directory(self.directory.path())
            .args(["--sites", "local", "--output-sites", "archive", "--dir", "submit"])
            .args(["--relative-submit-dir", name]);
        if hub.is_some() {
            plan = plan.args(["--staging-site", "local=hub"]);
        }
        plan.arg("workflow.yml").run().ok();
        self.path("submit").join(name)
    }

    /// Starts the master of a plan.
    fn start_master(&self, submit: &Path, agents: usize) -> Served {
        let log = File::options()
            .append(true)
            .create(true)
            .open(submit.join("master.log"));
        let log = log.expect("a file");
        let mut master = self.network.on_master();
        master
            .arg(Build::Local.program("pegasus-mpi-cluster"))
            .args(["--agents", &agents.to_string()])
            .args(["--agent-timeout", "3", "--join-timeout", "30"])
            .args(["--monitord-hack", self.stdio])
            .arg(only_file(submit, ".dag"))
            .current_dir(submit)
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second descriptor"))
            .stderr(log);
        Served(master.spawn().expect("the master"))
    }

    /// Starts a node with an agent, which has a disk of this size for jobs.
    fn start_node(&mut self, submit: &Path, name: &str, size: &str, is_apart: bool) -> Node {
        let mut endpoint = only_file(submit, ".dag").into_os_string();
        endpoint.push(".endpoint");
        let executor = Build::Local.program("pegasus-mpi-cluster");
        let credentials = self.credentials.clone().unwrap_or_default();
        let mut variable = std::ffi::OsString::from("PEGASUS_CREDENTIALS=");
        variable.push(&credentials);
        let (top, server, scratch) = (self.directory.path(), self.path("server"), self.path("node"));
        let mut words: Vec<&OsStr> = ["sh", "-c"].map(OsStr::new).to_vec();
        if is_apart {
            words.extend([APART, "sh"].map(OsStr::new));
            words.extend([
                top.as_os_str(),
                OsStr::new(size),
                credentials.as_os_str(),
                &endpoint,
            ]);
        } else {
            words.extend([NODE, "sh"].map(OsStr::new));
            words.extend([server.as_os_str(), scratch.as_os_str(), OsStr::new(size)]);
        }
        if self.credentials.is_some() {
            words.extend([OsStr::new("env"), &variable]);
        }
        words.extend([executor.as_os_str(), OsStr::new("--agent")]);
        if !is_apart {
            words.push(&endpoint);
        }
        words.extend(["--slots", self.slots, "--join-timeout", "30"].map(OsStr::new));
        let node = self
            .network
            .start_node(name, submit, &format!("{name}.log"), &words);
        node.expect("a node")
    }

    /// Runs a plan with nodes that have disks of this size for jobs. Calls `meanwhile` until it ends. Returns
    /// the exit code.
    pub(crate) fn run(
        &mut self,
        submit: &Path,
        size: &str,
        which: Nodes,
        mut meanwhile: impl FnMut(&mut Running<'_>),
    ) -> i32 {
        let agents = if which == Nodes::ApartAndNear { 4 } else { 3 };
        let master = self.start_master(submit, agents);
        let mut nodes = Vec::new();
        for name in ["n1", "n2", "n3"] {
            nodes.push(Some(self.start_node(submit, name, size, which != Nodes::Near)));
        }
        if which == Nodes::ApartAndNear {
            nodes.push(Some(self.start_node(submit, "n4", size, false)));
        }
        let start = Instant::now();
        let mut running = Running {
            network: &self.network,
            nodes,
            master,
            restart: &|| self.start_master(submit, agents),
        };
        let code = loop {
            if let Some(status) = running.master.0.try_wait().expect("the master") {
                break status.code().unwrap_or(-1);
            }
            assert!(
                start.elapsed() < self.limit,
                "the run does not end: {}",
                said(submit)
            );
            meanwhile(&mut running);
            std::thread::sleep(Duration::from_millis(20));
        };
        while !running.nodes.iter_mut().flatten().all(Node::has_ended) {
            assert!(start.elapsed() < self.limit, "an agent does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        code
    }

    /// Checks the output and that no node has anything left but its cache.
    pub(crate) fn check(&self, submit: &Path, code: i32, nodes: usize) {
        assert_eq!(code, 0, "{}", said(submit));
        let total = fs::read_to_string(self.path("server/root/outputs/total")).expect("the output");
        let expected: String = (0..self.parts).map(|n| format!("part {n}\nhello\n")).collect();
        assert_eq!(total, expected);
        assert_eq!(left(submit), vec![Vec::<String>::new(); nodes]);
        fs::remove_file(self.path("server/root/outputs/total")).expect("the output");
    }

    pub(crate) fn monitored<'a>(&'a self, submit: &'a Path) -> Monitored<'a> {
        Monitored {
            submit,
            home: self.directory.path(),
        }
    }

    /// Returns a file of a job below the staging site, if it is there.
    fn staged(&self, name: &str) -> Option<PathBuf> {
        let found = Program::new("find")
            .arg(self.path("server/root/stage"))
            .args(["-name", name])
            .run();
        found.stdout.lines().next().map(PathBuf::from)
    }
}

/// What master and nodes have said.
pub(crate) fn said(submit: &Path) -> String {
    let read = |name: &str| fs::read_to_string(submit.join(name)).unwrap_or_default();
    ["master.log", "n1.log", "n2.log", "n3.log", "n4.log"]
        .map(read)
        .join("\n")
}

/// What is left on the nodes that have ended by themselves.
fn left(submit: &Path) -> Vec<Vec<String>> {
    let read = |name: &str| fs::read_to_string(submit.join(format!("left.{name}"))).ok();
    let lists = ["n1", "n2", "n3"].into_iter().filter_map(read);
    lists
        .map(|list| {
            let names = list.lines().filter(|name| !name.ends_with("-cache"));
            names.map(str::to_owned).collect()
        })
        .collect()
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn nodes_without_a_common_directory_do_the_same_as_with_one() {
    let mut grid = Grid::new("0.1", "hello\n");
    let shared = grid.plan("shared", None);
    let code = grid.run(&shared, "10m", Nodes::Near, |_| {});
    grid.check(&shared, code, 3);
    let lite = grid.plan("lite", Some(&format!("{}/stage", grid.archive())));
    let code = grid.run(&lite, "10m", Nodes::ApartAndNear, |_| {});
    grid.check(&lite, code, 3);
    let mut known = monitored(grid.directory.path(), &lite);
    // Names of auxiliary jobs have the staging site in them.
    for name in known[0].iter_mut().map(|row| &mut row[0]) {
        *name = name.replace("hub", "local");
    }
    assert_eq!(known, monitored(grid.directory.path(), &shared));
    let hosts = "select count(distinct h.hostname) from job_instance i join job j using (job_id) join host h using \
                 (host_id) where j.type_desc = 'compute' and h.hostname in ('n1', 'n2', 'n3')";
    assert_eq!(grid.monitored(&lite).query(hosts), [["3"]]);
    // Each part compares the input and its program, the last job twelve outputs and its program. The copy at
    // the output site makes it one more.
    let checks = grid
        .monitored(&lite)
        .query("select sum(count) from integrity where type = 'check'");
    assert_eq!(checks, [[(PARTS * 2 + PARTS + 1 + 1).to_string()]]);
    // A job that makes the program executable is in the plan with a shared directory only.
    let [lite, shared] = [&lite, &shared].map(|submit| grid.monitored(submit).statistics());
    assert_eq!((&lite.0, lite.0.succeeded), (&shared.0, 13));
    assert_eq!((lite.1.failed, lite.1.total + 1), (0, shared.1.total));
}

#[test]
#[ignore = "needs network namespaces and a server for S3: tests/run e2e"]
fn nodes_exchange_files_through_s3() {
    let mut grid = Grid::new("0.1", "hello\n");
    let address = grid.network.master_address();
    let moto = server_bin().join("moto_server");
    grid.serve(&[
        moto.as_os_str(),
        OsStr::new("-H"),
        OsStr::new(&address),
        OsStr::new("-p"),
        OsStr::new("5000"),
    ]);
    let credentials = grid.path("credentials");
    let endpoint = format!("http://{address}:5000");
    fs::write(
        &credentials,
        format!("[store]\nendpoint = {endpoint}\n[me@store]\naccess_key = a\nsecret_key = b\n"),
    )
    .expect("a file");
    fs::set_permissions(&credentials, fs::Permissions::from_mode(0o600)).expect("a mode");
    grid.credentials = Some(credentials);
    grid.wait_for("the server for S3", |grid| {
        let mut command = grid.network.on_master();
        let script = format!("exec 3<>/dev/tcp/{address}/5000");
        let command = command.args(["bash", "-c", &script]).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    });
    let submit = grid.plan("s3", Some("s3://me@store/stage"));
    grid.stdio = "--packed-output";
    let code = grid.run(&submit, "10m", Nodes::ApartAndNear, |_| {});
    grid.check(&submit, code, 3);
    let log = Program::new(Build::Local.program("pmc")).args(["log", "--stderr", "work_p0"]);
    let log = log.arg(&submit).run().ok();
    assert!(log.stdout.contains("PegasusLite: exitcode 0"), "{}", log.stdout);
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn a_node_that_is_lost_costs_only_its_jobs() {
    let mut grid = Grid::new("1", "hello\n");
    let submit = grid.plan("lost", Some(&format!("{}/stage", grid.archive())));
    let stage = grid.path("server/root/stage");
    let mut is_lost = false;
    let code = grid.run(&submit, "10m", Nodes::ApartAndNear, |running| {
        let find = Program::new("find").arg(&stage).args(["-name", "out*"]).run();
        if !is_lost && find.stdout.lines().count() >= 2 {
            is_lost = true;
            let node = running.nodes[1].take().expect("the second node");
            running.network.cut(&node, true).expect("its cable");
        }
    });
    assert!(is_lost, "{}", said(&submit));
    grid.check(&submit, code, 2);
    let monitored = grid.monitored(&submit);
    monitored.replay();
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.failed, jobs.failed), (13, 0, 0));
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn a_wrong_byte_on_the_server_fails_the_job() {
    let mut grid = Grid::new("2", "hello\n");
    let submit = grid.plan("spoilt", Some(&format!("{}/stage", grid.archive())));
    let stage = grid.path("server/root/stage");
    let mut is_spoilt = false;
    let code = grid.run(&submit, "10m", Nodes::ApartAndNear, |_| {
        let find = Program::new("find").arg(&stage).args(["-name", "out0"]).run();
        if let Some(file) = find.stdout.lines().next().filter(|_| !is_spoilt) {
            let size = fs::metadata(file).map_or(0, |status| status.len());
            // A server writes into another file, and renames that.
            if size == 13 {
                fs::write(file, "part 0\nhellO\n").expect("the staged file");
                is_spoilt = true;
            }
        }
    });
    assert_eq!(code, 1, "{}", said(&submit));
    assert!(grid.staged("out0").is_some());
    let monitored = grid.monitored(&submit);
    monitored.load();
    let codes = monitored.query(
        "select i.exitcode from job_instance i join job j using (job_id) where exec_job_id = 'work_all'",
    );
    assert_eq!(codes.first(), Some(&vec!["65".to_owned()]), "{codes:?}");
    assert_eq!(left(&submit), vec![Vec::<String>::new(); 3]);
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn a_full_disk_of_a_node_fails_its_jobs() {
    let mut grid = Grid::new("0", &"hello\n".repeat(500_000));
    // Where one job has left no room, the next one would look for another directory.
    grid.slots = "1";
    let submit = grid.plan("full", Some(&format!("{}/stage", grid.archive())));
    let code = grid.run(&submit, "1m", Nodes::ApartAndNear, |_| {});
    assert_eq!(code, 1, "{}", said(&submit));
    let monitored = grid.monitored(&submit);
    monitored.load();
    let codes = monitored.query(
        "select distinct i.exitcode from job_instance i join job j using (job_id) where type_desc = 'compute' and \
         exec_job_id != 'work_all'",
    );
    assert_eq!(codes, [["71"]]);
    let text = monitored.query("select stderr_text from job_instance where exitcode = 71 limit 1");
    assert!(text[0][0].contains("No space left on device"), "{text:?}");
    assert_eq!(left(&submit), vec![Vec::<String>::new(); 3]);
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn the_next_master_gets_what_jobs_on_other_nodes_have_written() {
    let mut grid = Grid::new("2", "hello\n");
    let submit = grid.plan("killed", Some(&format!("{}/stage", grid.archive())));
    let stage = grid.path("server/root/stage");
    let mut is_killed = false;
    let code = grid.run(&submit, "10m", Nodes::ApartAndNear, |running| {
        let find = Program::new("find").arg(&stage).args(["-name", "out*"]).run();
        if !is_killed && find.stdout.lines().count() >= 2 {
            is_killed = true;
            running.master.0.kill().expect("the master");
            // Jobs end meanwhile.
            std::thread::sleep(Duration::from_secs(2));
            running.master = (running.restart)();
        }
    });
    assert!(is_killed, "{}", said(&submit));
    grid.check(&submit, code, 3);
    let log = fs::read_to_string(submit.join("master.log")).expect("a log");
    assert!(log.contains("still runs"), "{log}");
    let monitored = grid.monitored(&submit);
    monitored.replay();
    let (tasks, jobs) = monitored.statistics();
    assert_eq!((tasks.succeeded, tasks.failed, jobs.failed), (13, 0, 0));
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn a_run_without_a_node_that_sees_the_submit_directory_ends() {
    let mut grid = Grid::new("0", "hello\n");
    let submit = grid.plan("blind", Some(&format!("{}/stage", grid.archive())));
    let code = grid.run(&submit, "10m", Nodes::Apart, |_| {});
    let said = said(&submit);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("it needs the directory of the DAG file"), "{said}");
    assert!(said.contains("Host n1 does not see"), "{said}");
}
