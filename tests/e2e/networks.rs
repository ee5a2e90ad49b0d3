//! Agents and their master in networks that are not as expected: only IPv6, or a firewall that drops what it
//! does not let through. The nodes are network namespaces.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use testutils::node_faults::network::{Network, Node};

use crate::support::programs::Build;

/// Longest time of a run. Each attempt to reach an address that does not answer takes five seconds.
const LIMIT: Duration = Duration::from_secs(60);

/// Lets nothing of the master come to a node by IPv4, and says nothing about it.
const DROP_IPV4: &str = "nft add table inet drops \
    && nft 'add chain inet drops in { type filter hook input priority 0; }' \
    && nft add rule inet drops in iifname eth0 meta nfproto ipv4 drop";

struct Scene {
    folder: tempfile::TempDir,
    network: Network,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        fs::write(
            folder.path().join("x.dag"),
            "TASK a /bin/true\nTASK b /bin/true\n",
        )
        .expect("a DAG");
        let network = Network::new().expect("network namespaces");
        Self { folder, network }
    }

    fn start_master(&self, listen: Option<&str>) -> Child {
        let mut master = self.network.on_master();
        master.arg(Build::Local.program("pegasus-mpi-cluster"));
        master.args(["--agents", "1", "--slots", "1"]);
        if let Some(listen) = listen {
            master.args(["--listen", listen]);
        }
        master.arg("x.dag").current_dir(self.folder.path());
        let log = fs::File::create(self.folder.path().join("master.log")).expect("a log");
        master
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("a master")
    }

    /// Starts an agent after a command on its node.
    fn start_agent(&mut self, before: &str) -> Node {
        let program = Build::Local.program("pegasus-mpi-cluster");
        let line = format!("{before} && exec {} --agent x.dag.endpoint", program.display());
        let words = ["/bin/sh", "-c", &line].map(OsStr::new);
        let started = self
            .network
            .start_node("n1", self.folder.path(), "agent.log", &words);
        started.expect("a node")
    }

    /// Waits for the end of the run. Returns the time that it took.
    fn wait(&self, mut master: Child, begun: Instant) -> Duration {
        let status = loop {
            match master.try_wait().expect("a status") {
                Some(status) => break status,
                None if begun.elapsed() > LIMIT => {
                    let _ = master.kill();
                    break master.wait().expect("a status");
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let text = |name: &str| fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        assert!(
            status.success(),
            "{status}: {}{}",
            text("master.log"),
            text("agent.log")
        );
        begun.elapsed()
    }
}

fn wait_for(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < LIMIT, "{} is missing", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn agents_join_by_ipv6() {
    let mut scene = Scene::new();
    let address = scene.network.master_address_v6();
    let begun = Instant::now();
    let master = scene.start_master(Some(&format!("[{address}]:7007")));
    let endpoint = scene.folder.path().join("x.dag.endpoint");
    wait_for(&endpoint);
    let text = fs::read_to_string(&endpoint).expect("an endpoint");
    assert!(text.contains(&format!("[{address}]:7007")), "{text}");
    assert!(!text.contains("10.77."), "{text}");
    let _agent = scene.start_agent("true");
    scene.wait(master, begun);
}

/// The first addresses of the master do not answer, and nothing says why. The last one does.
#[test]
#[ignore = "needs network namespaces: tests/run e2e"]
fn an_agent_behind_a_firewall_that_drops_finds_another_way() {
    let mut scene = Scene::new();
    let begun = Instant::now();
    let master = scene.start_master(None);
    wait_for(&scene.folder.path().join("x.dag.endpoint"));
    let _agent = scene.start_agent(DROP_IPV4);
    let took = scene.wait(master, begun);
    println!("the run took {took:.1?}");
}
