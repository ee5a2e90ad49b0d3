//! Tasks over several nodes, on nodes in network namespaces with names of their own: MPI programs by plain
//! launchers, what is killed, and what is left.

mod cpus;
mod inside;
mod kills;
mod nested;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testutils::node_faults::network::{Network, Node};

use crate::support::programs::{Build, mpi_environment};

/// Longest time of a run, on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(300);

/// Time until nothing is left of what was killed.
const GONE: Duration = Duration::from_secs(5);

/// Names of the nodes.
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// Sets up a node for the words that follow.
const SETTING: &str = "mount --bind hosts /etc/hosts && mount -t tmpfs -o size=512m tmpfs /dev/shm && \
                       exec \"$0\" \"$@\"";

/// Passes a number around, sums up 64 MB, and says where its ranks are. With an argument, it then runs on
/// until a file of that name is there.
const RING: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define COUNT (8 << 20)

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks, token;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (rank == 0) {
        token = 1;
        MPI_Send(&token, 1, MPI_INT, 1 % ranks, 0, MPI_COMM_WORLD);
        MPI_Recv(&token, 1, MPI_INT, ranks - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(&token, 1, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        token++;
        MPI_Send(&token, 1, MPI_INT, (rank + 1) % ranks, 0, MPI_COMM_WORLD);
    }
    double *data = malloc(COUNT * sizeof *data);
    for (int i = 0; i < COUNT; i++) data[i] = rank + 1;
    MPI_Allreduce(MPI_IN_PLACE, data, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    char name[256];
    gethostname(name, sizeof name);
    printf("rank on %s\n", name);
    fflush(stdout);
    // One rank looks: all leave the loop in the same round.
    for (int go_on = argc > 1; go_on; usleep(10000)) {
        go_on = access(argv[1], F_OK) != 0;
        MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (rank == 0)
        printf("%d ranks, token %d, sum %.0f %.0f\n", ranks, token, data[0], data[COUNT - 1]);
    MPI_Finalize();
    return 0;
}
"#;

/// What gangs run: programs of one of the kinds of MPI.
pub(crate) struct Mpi {
    /// Compiles a program, the options follow.
    compiler: Vec<OsString>,
    /// Where its programs are, before others.
    bin: Option<PathBuf>,
    /// What it needs on nodes of one machine, and as root.
    variables: Vec<(&'static str, OsString)>,
}

impl Mpi {
    /// Debian's.
    pub(crate) fn debian(compiler: &str) -> Self {
        Self {
            compiler: vec![compiler.into()],
            bin: None,
            variables: variables(),
        }
    }

    /// An environment of Python packages.
    fn packaged(name: &str) -> Self {
        let bin = mpi_environment(name);
        Self {
            compiler: vec![bin.join("mpicc").into()],
            bin: Some(bin),
            variables: variables(),
        }
    }

    /// That of Intel has no compiler: its programs are those of MPICH with its library.
    fn intel() -> Self {
        let [mpich, intel] = ["mpich", "impi-rt"].map(mpi_environment);
        let library = intel.with_file_name("lib");
        let include = mpich.with_file_name("include");
        Self {
            compiler: vec![
                "cc".into(),
                "-I".into(),
                include.into(),
                "-L".into(),
                library.clone().into(),
                "-Wl,--no-as-needed".into(),
                "-l:libmpi.so.12".into(),
            ],
            bin: Some(intel),
            variables: vec![("LD_LIBRARY_PATH", library.into()), ("FI_PROVIDER", "tcp".into())],
        }
    }
}

impl Mpi {
    /// Compiles a program in a directory.
    fn compile(&self, directory: &Path, name: &str, source: &str) {
        let file = format!("{name}.c");
        fs::write(directory.join(&file), source).expect("a source");
        let compiled = Command::new("env")
            .args(&self.compiler)
            .args(["-O2", "-g", "-o", name, &file])
            .current_dir(directory)
            .status();
        assert!(compiled.expect("a compiler").success());
    }
}

/// What Open MPI and MPICH need.
fn variables() -> Vec<(&'static str, OsString)> {
    let variables = [
        ("HOME", "/root"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        // UCX would find the memory that all nodes share.
        ("OMPI_MCA_pml", "ob1"),
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ("UCX_TLS", "tcp,self"),
    ];
    variables.map(|(name, value)| (name, value.into())).into()
}

/// Three nodes with agents, and a master.
pub(crate) struct Scene {
    mpi: Mpi,
    pub(crate) folder: tempfile::TempDir,
    // Nodes before their network.
    nodes: Vec<Node>,
    /// Options about CPUs.
    cpus: &'static [&'static str],
    /// Last numbers of the addresses of the nodes.
    addresses: [u32; 3],
    last_address: u32,
    master: Option<Child>,
    network: Network,
    /// How long a run may take.
    pub(crate) limit: Duration,
}

impl Scene {
    /// Compiles the program, and writes a DAG.
    pub(crate) fn new(mpi: Mpi, dag: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| folder.path().join(name);
        mpi.compile(folder.path(), "ring", RING);
        fs::write(path("x.dag"), dag).expect("a DAG");
        fs::create_dir(path("tmp")).expect("a directory");
        let network = Network::new().expect("network namespaces");
        Self {
            mpi,
            folder,
            nodes: Vec::new(),
            cpus: &["--host-cpus", "2"],
            // The namespace of the master has the first one.
            addresses: [2, 3, 4],
            last_address: 4,
            master: None,
            network,
            limit: LIMIT,
        }
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn start_master(&mut self) {
        let mut master = self.network.on_master();
        master.arg(Build::Local.program("pegasus-mpi-cluster"));
        master.args(["--agents", "3", "--slots", "2", "--host-memory", "1000"]);
        master.args(self.cpus);
        master.args(["--per-task-stdio", "--agent-timeout", "5", "x.dag"]);
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("master.log"));
        let log = log.expect("a log");
        master
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .stderr(log);
        self.master = Some(master.spawn().expect("a master"));
    }

    pub(crate) fn start(&mut self) {
        self.write_names();
        self.start_master();
        for name in NODES {
            let node = self.start_node(name);
            self.nodes.push(node);
        }
    }

    /// Writes the file of names that all nodes have.
    fn write_names(&self) {
        let names = NODES.iter().zip(self.addresses);
        let names = names.map(|(name, number)| format!("10.77.0.{number} {name}\n"));
        let names: String = names.collect();
        let first = "127.0.0.1 localhost\n10.77.0.1 master\n";
        fs::write(self.path("hosts"), first.to_owned() + &names).expect("names");
    }

    /// Starts a node with an agent.
    fn start_node(&mut self, name: &str) -> Node {
        let program = Build::Local.program("pegasus-mpi-cluster");
        let program = program.to_str().expect("a path");
        let mut words: Vec<OsString> = ["/bin/sh", "-c", SETTING, "env"].map(OsString::from).into();
        // Open MPI names its files there by host, user and process: those of other tests have the same.
        let mut variables = vec![("TMPDIR", self.path("tmp").into())];
        variables.extend(self.mpi.variables.iter().cloned());
        if let Some(bin) = &self.mpi.bin {
            let others = [bin.as_os_str(), OsStr::new("/usr/bin:/bin")];
            variables.push(("PATH", others.join(OsStr::new(":"))));
        }
        for (name, value) in variables {
            words.push([OsStr::new(name), &value].join(OsStr::new("=")));
        }
        words.extend([program, "--agent", "x.dag.endpoint"].map(OsString::from));
        let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        let started = self
            .network
            .start_node(name, self.folder.path(), "agent.log", &words);
        started.expect("a node")
    }

    /// Switches a node off, and on again after a while. It has another address then.
    fn restart_node(&mut self, number: usize, pause: Duration) {
        drop(self.nodes.remove(number));
        std::thread::sleep(pause);
        self.last_address += 1;
        self.addresses[number] = self.last_address;
        self.write_names();
        let node = self.start_node(NODES[number]);
        self.nodes.insert(number, node);
    }

    /// Waits for the end of the run. True if it has succeeded.
    fn wait(&mut self) -> bool {
        let begun = Instant::now();
        let master = self.master.as_mut().expect("a master");
        let status = loop {
            match master.try_wait().expect("a status") {
                Some(status) => break status,
                None if begun.elapsed() > self.limit => {
                    let _ = master.kill();
                    break master.wait().expect("a status");
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        self.master = None;
        status.success()
    }

    pub(crate) fn succeed(&mut self) {
        let succeeded = self.wait();
        assert!(succeeded, "{}", self.said());
    }

    /// What master, agents and tasks have said.
    pub(crate) fn said(&self) -> String {
        let files = fs::read_dir(self.folder.path()).expect("the folder").flatten();
        let files = files.filter(|file| file.file_name().to_string_lossy().contains(".err."));
        let tasks: String = files
            .map(|file| fs::read_to_string(file.path()).unwrap_or_default())
            .collect();
        self.text("master.log") + &self.text("agent.log") + &tasks
    }

    /// Processes that run this program of the scene.
    pub(crate) fn processes(&self, name: &str) -> Vec<Pid> {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_it = |pid: &i32| {
            let base = format!("/proc/{pid}");
            let directory = fs::read_link(format!("{base}/cwd"));
            let comm = fs::read_to_string(format!("{base}/comm")).unwrap_or_default();
            comm.trim_end() == name && directory.is_ok_and(|directory| directory == self.folder.path())
        };
        pids.filter(is_it).map(Pid::from_raw).collect()
    }

    pub(crate) fn wait_for(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < LIMIT, "{what}\n{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the four ranks of the latest attempt of the task `ring` pass messages. One that is killed
    /// before may leave a launcher of Open MPI that never ends.
    fn wait_for_ranks(&self) {
        self.wait_for("four ranks run", |scene| {
            let ranks = ranks(&output(scene.folder.path(), "ring"));
            ranks.values().sum::<usize>() == 4 && scene.processes("ring").len() == 4
        });
    }

    /// The four ranks are somewhere in `main`: `pmc` shows it, for both hosts.
    fn shows_the_stacks(&self) {
        self.wait_for("the stacks of four ranks", |scene| {
            let mut pmc = scene.network.on_master();
            pmc.arg(Build::Local.program("pmc")).args(["stack", "ring", "."]);
            let output = pmc.current_dir(scene.folder.path()).output().expect("pmc");
            let text = String::from_utf8_lossy(&output.stdout);
            let heads = text.lines().filter(|line| line.starts_with("rank"));
            let heads: Vec<&str> = heads.collect();
            let mains = text
                .lines()
                .filter(|line| line.contains(" main at ") && line.contains("ring.c:"));
            // `ranks 0,2-3 (ring) on n1, n2`.
            let numbers = heads.iter().filter_map(|head| head.split(' ').nth(1));
            let ranks: usize = numbers
                .flat_map(|numbers| numbers.split(','))
                .map(|range| match range.split_once('-') {
                    Some((first, last)) => {
                        let number = |text: &str| text.parse::<usize>().unwrap_or(0);
                        number(last) + 1 - number(first)
                    }
                    None => 1,
                })
                .sum();
            let hosts = ["n1", "n2"]
                .iter()
                .all(|host| heads.iter().any(|head| head.contains(host)));
            output.status.success() && ranks == 4 && hosts && mains.count() == heads.len()
        });
    }

    /// Waits until ranks and launchers of the gang are gone.
    pub(crate) fn nothing_is_left(&self, names: &[&str]) {
        let begun = Instant::now();
        loop {
            let left: Vec<&&str> = names
                .iter()
                .filter(|name| !self.processes(name).is_empty())
                .collect();
            if left.is_empty() {
                return;
            }
            assert!(begun.elapsed() < GONE, "{left:?} are left");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if let Some(master) = &mut self.master {
            let _ = master.kill();
            let _ = master.wait();
        }
    }
}

/// Ranks on each host, as the program says it.
fn ranks(output: &str) -> BTreeMap<String, usize> {
    let mut ranks = BTreeMap::new();
    for host in output.lines().filter_map(|line| line.strip_prefix("rank on ")) {
        *ranks.entry(host.to_owned()).or_insert(0) += 1;
    }
    ranks
}

/// Ranks of each host, most first.
fn each_host(output: &str) -> Vec<usize> {
    let mut found: Vec<usize> = ranks(output).into_values().collect();
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}

/// Output of the latest attempt of a task.
pub(crate) fn output(folder: &Path, task: &str) -> String {
    let files = (0..10)
        .rev()
        .map(|number| folder.join(format!("{task}.out.{number:03}")));
    let latest = files.into_iter().find(|file| file.exists());
    latest
        .map(|file| fs::read_to_string(file).expect("output"))
        .unwrap_or_default()
}

/// Our own launcher.
pub(crate) fn pmc_launch() -> String {
    Build::Local.program("pmc-launch").display().to_string()
}

/// Runs gangs of three shapes with each launcher, as many times as `PMC_TEST_RINGS` says.
fn rings_run(mpi: Mpi, launchers: &[&str]) {
    let rounds = std::env::var("PMC_TEST_RINGS").ok();
    let rounds: usize = rounds.and_then(|text| text.parse().ok()).unwrap_or(1);
    let rounds = rounds * launchers.len();
    let mut dag = String::new();
    for (number, launcher) in (0..rounds).zip(launchers.iter().cycle()) {
        dag += &format!("TASK even{number} -N 2 --ranks-per-node 2 -m 100 {launcher} ./ring\n");
        dag += &format!("TASK odd{number} -N 2 --ranks 3 -m 100 {launcher} ./ring\n");
        dag += &format!("TASK all{number} -N 3 -m 100 {launcher} ./ring\n");
        dag += &format!("TASK single{number} -c 1 /bin/true\n");
    }
    let mut scene = Scene::new(mpi, &dag);
    scene.limit += LIMIT / 10 * rounds as u32;
    scene.start();
    scene.succeed();
    for number in 0..rounds {
        for (task, each, sum) in [
            ("even", vec![2, 2], 10),
            ("odd", vec![2, 1], 6),
            ("all", vec![1, 1, 1], 6),
        ] {
            let output = output(scene.folder.path(), &format!("{task}{number}"));
            let count: usize = each.iter().sum();
            assert_eq!(each_host(&output), each, "{task}{number}: {output}");
            let said = format!("{count} ranks, token {count}, sum {sum} {sum}");
            assert!(output.contains(&said), "{task}{number}: {output}");
        }
    }
    // Names end after 15 letters.
    scene.nothing_is_left(&[
        "ring",
        "orted",
        "prted",
        "hydra_pmi_proxy",
        "hydra_bstrap_pr",
        "pmc-rsh",
        "pmc-launch",
        "pmc",
    ]);
}

#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn gangs_of_open_mpi_run_by_plain_mpirun_and_pmc_launch() {
    rings_run(Mpi::debian("mpicc.openmpi"), &["mpirun.openmpi", &pmc_launch()]);
}

#[test]
#[ignore = "needs network namespaces and Open MPI 5: tests/run e2e"]
fn gangs_of_open_mpi_5_run_by_plain_mpirun_and_pmc_launch() {
    rings_run(Mpi::packaged("openmpi"), &["mpirun", &pmc_launch()]);
}

#[test]
#[ignore = "needs network namespaces and MPICH 5: tests/run e2e"]
fn gangs_of_mpich_5_run_by_plain_mpiexec_and_pmc_launch() {
    rings_run(Mpi::packaged("mpich"), &["mpiexec", &pmc_launch()]);
}

#[test]
#[ignore = "needs network namespaces and Intel MPI: tests/run e2e"]
fn gangs_of_intel_mpi_run_by_plain_mpirun_and_pmc_launch() {
    rings_run(Mpi::intel(), &["mpirun", &pmc_launch()]);
}

/// The programs are no MPI programs: over the TCP of UCX, those of MPICH of Debian hang at their end now and
/// then, whoever starts them.
#[test]
#[ignore = "needs network namespaces and MPICH: tests/run e2e"]
fn gangs_of_mpich_run_by_plain_mpiexec() {
    let dag = "TASK even -N 2 --ranks-per-node 2 -m 100 mpiexec.mpich ./where\n\
               TASK odd --ranks 3 --ranks-per-node 2 -m 100 mpiexec.mpich ./where\n\
               TASK all -N 3 -m 100 mpiexec.mpich ./where\n";
    let mut scene = Scene::new(Mpi::debian("mpicc.mpich"), dag);
    let script = "#!/bin/sh\necho \"rank on $(hostname)\"\necho \"number $PMI_RANK of $PMI_SIZE\"\n";
    fs::write(scene.path("where"), script).expect("a script");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(scene.path("where"), mode).expect("a mode");
    scene.start();
    scene.succeed();
    for (task, each) in [("even", vec![2, 2]), ("odd", vec![2, 1]), ("all", vec![1, 1, 1])] {
        let output = output(scene.folder.path(), task);
        assert_eq!(each_host(&output), each, "{task}: {output}");
        let count: usize = each.iter().sum();
        for number in 0..count {
            assert!(
                output.contains(&format!("number {number} of {count}\n")),
                "{task}: {output}"
            );
        }
    }
    scene.nothing_is_left(&["where", "hydra_pmi_proxy", "pmc-rsh"]);
}

/// Whatever is killed: nothing of the gang is left soon after, and the task is done in the end.
#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn nothing_is_left_of_a_gang_after_a_kill() {
    let dag = "TASK ring -t 3 -N 2 --ranks-per-node 2 -m 100 mpirun.openmpi ./ring go\n";
    let names = ["ring", "orted", "mpirun.openmpi", "mpirun"];
    // The launcher, the daemon of the member, and a rank.
    for victim in ["mpirun", "orted", "ring"] {
        let mut scene = Scene::new(Mpi::debian("mpicc.openmpi"), dag);
        scene.start();
        scene.wait_for_ranks();
        let before = scene.processes("ring");
        let launchers = || {
            let named = names.iter().filter(|name| name.starts_with(victim));
            named.flat_map(|name| scene.processes(name)).collect::<Vec<_>>()
        };
        let target = *launchers().first().expect(victim);
        kill(target, Signal::SIGKILL).expect("a signal");
        let begun = Instant::now();
        while before.iter().any(|pid| scene.processes("ring").contains(pid)) {
            assert!(begun.elapsed() < GONE, "{victim}: ranks are left");
            std::thread::sleep(Duration::from_millis(20));
        }
        // The next attempt.
        scene.wait_for_ranks();
        fs::write(scene.path("go"), "").expect("a file");
        scene.succeed();
        scene.nothing_is_left(&names);
    }
}

/// A lost node ends the gang, and the task runs on the others. That is no failure.
#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn a_gang_whose_node_is_lost_runs_again() {
    let dag = "TASK ring -N 2 --ranks-per-node 2 -m 100 mpirun.openmpi ./ring go\n";
    let mut scene = Scene::new(Mpi::debian("mpicc.openmpi"), dag);
    scene.start();
    scene.wait_for_ranks();
    let before = scene.processes("ring");
    // The first and the second node have it.
    drop(scene.nodes.remove(1));
    let begun = Instant::now();
    while before.iter().any(|pid| scene.processes("ring").contains(pid)) {
        assert!(begun.elapsed() < GONE * 3, "ranks are left");
        std::thread::sleep(Duration::from_millis(20));
    }
    scene.wait_for_ranks();
    fs::write(scene.path("go"), "").expect("a file");
    scene.succeed();
    assert_eq!(ranks(&output(scene.folder.path(), "ring")).len(), 2);
    scene.nothing_is_left(&["ring", "orted"]);
}

/// The gang goes on without a master, and the next one takes it over as it is.
#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn a_gang_outlives_its_master() {
    let dag = "TASK ring -N 2 --ranks-per-node 2 -m 100 mpirun.openmpi ./ring go\n\
               TASK after /bin/true\nEDGE ring after\n";
    let mut scene = Scene::new(Mpi::debian("mpicc.openmpi"), dag);
    scene.start();
    scene.wait_for_ranks();
    let before = scene.processes("ring");
    let mut master = scene.master.take().expect("a master");
    master.kill().expect("a signal");
    master.wait().expect("a status");
    std::thread::sleep(Duration::from_secs(1));
    scene.start_master();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(scene.processes("ring"), before, "{}", scene.said());
    scene.shows_the_stacks();
    assert_eq!(scene.processes("ring"), before, "{}", scene.said());
    fs::write(scene.path("go"), "").expect("a file");
    scene.succeed();
    assert_eq!(ranks(&output(scene.folder.path(), "ring")).len(), 2);
    assert!(!scene.path("ring.out.001").exists(), "there was one attempt");
    scene.nothing_is_left(&["ring", "orted"]);
}
