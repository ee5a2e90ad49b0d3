//! A Slurm cluster of three virtual nodes on this machine, with its own configuration, key, ports
//! and processes. It does not affect a Slurm that is installed on the machine.
//!
//! Every node is a `slurmd` in its own mount, host name and process namespaces. The nodes have
//! different names and their own `/dev/shm`, so MPI treats them as different hosts. All processes
//! of a job end with its node. This requires root. Where even root cannot create namespaces (some
//! containers), the nodes share the machine's name.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::command::{CommandResult, Program, Running};
use super::pegasus::only_file;
use super::programs::Build;
use super::workflow::Planned;

/// Names of the nodes.
const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Name of the controller among the daemons.
const CONTROLLER: &str = "slurmctld";
/// Runs a program in its own namespaces.
const NAMESPACES: &str = "unshare --mount --uts --pid --fork --mount-proc --kill-child=KILL";
/// Time limit until the nodes are ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a job.
const JOB_TIMEOUT: Duration = Duration::from_secs(180);

/// Returns options of the planner so that its batch scripts use all nodes.
pub fn batch_options() -> Vec<String> {
    ["--nodes", "3", "--ntasks-per-node", "2", "--walltime", "10"]
        .map(str::to_owned)
        .into()
}

/// The running cluster. It stops when it is dropped.
pub struct Cluster {
    directory: TempDir,
    /// True if each node has its own host name and `/dev/shm`.
    has_own_hosts: bool,
    // With the names of nodes, in the order in which they stop.
    daemons: Vec<(String, Running)>,
}

impl Cluster {
    /// Starts the cluster and waits until its nodes accept jobs.
    pub fn start() -> Self {
        Self::configured("")
    }

    /// The same, with more lines in its configuration.
    pub fn configured(lines: &str) -> Self {
        Self::with(lines, &Addresses::one())
    }

    /// Starts a cluster whose nodes have different addresses. Launchers that start their processes by
    /// themselves take nodes with the same address for one.
    pub fn with_own_addresses() -> Self {
        Self::with("", &Addresses::own())
    }

    fn with(lines: &str, addresses: &Addresses) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "only root can start a Slurm cluster for tests"
        );
        let directory = tempfile::Builder::new()
            .prefix("pmc-slurm.")
            .tempdir()
            .expect("a temporary directory");
        let has_own_hosts = Program::from_line(NAMESPACES).arg("true").run().code() == 0;
        let top = directory.path();
        // munged requires directories that all can read, and a key that only its user can read.
        fs::set_permissions(top, fs::Permissions::from_mode(0o755)).expect("a mode");
        let key = top.join("munge.key");
        fs::write(&key, random_key()).expect("a key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("a mode");
        let [control, first, second, third] = free_ports();
        fs::write(
            top.join("slurm.conf"),
            lines.to_owned() + &configuration(top, has_own_hosts, control, [first, second, third], addresses),
        )
        .expect("a configuration");
        fs::write(top.join("hosts"), &addresses.hosts).expect("a list of hosts");
        fs::create_dir(top.join("state")).expect("a directory");

        let mut cluster = Self {
            directory,
            has_own_hosts,
            daemons: Vec::new(),
        };
        let munged = Program::from_line("munged --foreground --num-threads=2")
            .arg(cluster.option("--key-file=", "munge.key"))
            .arg(cluster.option("--socket=", "munge.socket"))
            .arg(cluster.option("--pid-file=", "munge.pid"))
            .arg(cluster.option("--log-file=", "munge.log"))
            .arg(cluster.option("--seed-file=", "munge.seed"));
        cluster.start_daemon("", munged);
        wait_for(READY_TIMEOUT, "munged's socket", || {
            cluster.directory.path().join("munge.socket").exists()
        });
        cluster.start_controller();
        for node in NODES {
            for name in ["spool", "tmp"] {
                fs::create_dir(cluster.directory.path().join(format!("{name}.{node}"))).expect("a directory");
            }
            cluster.start_node(node);
        }
        let ready = || {
            let result = cluster
                .command("sinfo")
                .args(["--noheader", "--Node", "--partition=main", "--format=%T"])
                .run();
            result
                .stdout
                .split_whitespace()
                .filter(|state| *state == "idle")
                .count()
                == NODES.len()
        };
        let started = Instant::now();
        while !ready() {
            assert!(
                started.elapsed() < READY_TIMEOUT,
                "the nodes do not become ready:\n{}",
                cluster.logs()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
        cluster
    }

    /// Returns a program of Slurm that uses this cluster.
    fn command(&self, program: &str) -> Program {
        Program::new(program).env("SLURM_CONF", self.directory.path().join("slurm.conf"))
    }

    /// Returns a program that submits to this cluster, with the environment that Open MPI needs in a job.
    pub fn job_command(&self, program: impl AsRef<Path>) -> Program {
        let run = Program::new(program.as_ref())
            .env("SLURM_CONF", self.directory.path().join("slurm.conf"))
            .envs(&Build::OpenMpi.environment())
            // The nodes share /tmp, and their process numbers overlap. PMIx' table in shared memory sometimes
            // confuses processes then ("gds_ds12_lock_pthread.c"). A table in each process cannot.
            .env("PMIX_MCA_gds", "hash");
        if self.has_own_hosts {
            run
        } else {
            // The nodes share /dev/shm, and the names of Open MPI's segments would collide.
            run.env("OMPI_MCA_btl", "self,tcp")
        }
    }

    /// Returns a job that has been submitted.
    pub fn job(&self, number: &str) -> Job<'_> {
        Job {
            cluster: self,
            number: number.to_owned(),
        }
    }

    /// Returns the host names that programs see on the nodes.
    pub fn node_names(&self) -> Vec<String> {
        if self.has_own_hosts {
            NODES.map(str::to_owned).into()
        } else {
            vec![host_name()]
        }
    }

    /// Submits the Slurm script of a planned workflow.
    #[track_caller]
    pub fn sbatch(&self, planned: &Planned) -> Job<'_> {
        self.submit("sbatch", planned, ".sbatch")
    }

    /// Submits the PBS script of a planned workflow, with Slurm's own wrapper.
    #[track_caller]
    pub fn qsub(&self, planned: &Planned) -> Job<'_> {
        self.submit("qsub", planned, ".pbs")
    }

    /// Submits a script for all nodes, with the environment of a program.
    #[track_caller]
    pub fn sbatch_script(&self, environment: Program, script: &str) -> Job<'_> {
        let nodes = format!("--nodes={}", NODES.len());
        let submitted = environment
            .env("SLURM_CONF", self.directory.path().join("slurm.conf"))
            .args([
                "--parsable",
                &nodes,
                "--ntasks-per-node=2",
                "--time=60",
                "--wrap",
                script,
            ])
            .run()
            .ok();
        self.job(submitted.stdout.trim())
    }

    #[track_caller]
    fn submit(&self, program: &str, planned: &Planned, ending: &str) -> Job<'_> {
        let script = only_file(planned.submit(), ending);
        let result = self
            .job_command(program)
            .arg(script)
            .in_directory(planned.submit())
            .run()
            .ok();
        let number = result.stdout.split_whitespace().next_back().unwrap_or_default();
        let number = number.split('.').next().unwrap_or_default();
        assert!(
            number.parse::<u32>().is_ok(),
            "no job number: {}",
            result.details()
        );
        self.job(number)
    }

    /// Returns the numbers of the jobs that wait or run.
    pub fn queue(&self) -> Vec<String> {
        let result = self
            .command("squeue")
            .args(["--noheader", "--format=%A"])
            .run()
            .ok();
        result.stdout.split_whitespace().map(str::to_owned).collect()
    }

    /// Waits until the job has left the queue. Returns Slurm's description of it.
    fn wait(&self, job: &str) -> CommandResult {
        let started = Instant::now();
        loop {
            let result = self.command("scontrol").args(["show", "job", job]).run().ok();
            if !["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"]
                .contains(&field(&result, "JobState="))
            {
                return result;
            }
            assert!(
                started.elapsed() < JOB_TIMEOUT,
                "the job does not end: {}\n{}",
                result.details(),
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Returns the last lines of the daemons' logs for the message of a failed test.
    pub fn logs(&self) -> String {
        let mut all = String::new();
        for name in ["slurmctld", "slurmd.n1", "slurmd.n2", "slurmd.n3", "munge"] {
            let path = self.directory.path().join(format!("{name}.log"));
            let text = fs::read_to_string(path).unwrap_or_default();
            let _ = writeln!(all, "--- {name}\n{}", last_lines(&text, 15));
        }
        all
    }

    fn option(&self, name: &str, file: &str) -> String {
        format!("{name}{}", self.directory.path().join(file).display())
    }

    /// Switches a node off: all of its processes are killed.
    pub fn kill_node(&mut self, node: &str) {
        assert!(self.has_own_hosts, "nodes cannot be killed by themselves");
        let before = self.daemons.len();
        self.daemons.retain(|(name, _)| name != node);
        assert!(self.daemons.len() < before, "there is no node {node}");
    }

    /// Switches a node on, if it is off.
    pub fn start_node(&mut self, node: &str) {
        if self.daemons.iter().any(|(name, _)| name == node) {
            return;
        }
        if !self.has_own_hosts {
            self.start_daemon(node, Program::from_line("slurmd -D -N").arg(node));
            return;
        }
        let script = format!(
            "hostname {node} && mount -t tmpfs -o size=512m tmpfs /dev/shm \
             && mount --bind '{}' /etc/hosts && exec slurmd -D -N {node}",
            self.directory.path().join("hosts").display()
        );
        self.start_daemon(node, Program::from_line(NAMESPACES).args(["sh", "-c", &script]));
    }

    /// Kills the controller.
    pub fn stop_controller(&mut self) {
        self.daemons.retain(|(name, _)| name != CONTROLLER);
    }

    /// Starts the controller. It knows what was there before.
    pub fn start_controller(&mut self) {
        self.start_daemon(CONTROLLER, Program::from_line("slurmctld -D"));
    }

    /// Changes a job or a node. It may have ended.
    pub fn control(&self, words: &[&str]) {
        self.command("scontrol").args(words).run();
    }

    /// Returns the number of a job that runs.
    pub fn running_job(&self) -> Option<String> {
        let result = self
            .command("squeue")
            .args(["--noheader", "--states=RUNNING", "--format=%A"])
            .run();
        result.stdout.split_whitespace().next().map(str::to_owned)
    }

    /// Cancels the job that runs, as its user would; between two jobs, the next one.
    pub fn cancel_first(&self) {
        let job = self.running_job().or_else(|| self.queue().into_iter().min());
        if let Some(job) = job {
            self.command("scancel").arg(job).run().ok();
        }
    }

    fn start_daemon(&mut self, name: &str, program: Program) {
        // The daemon is killed with the test's thread, even if the thread cannot clean up.
        let program = Program::from_line("setpriv --pdeathsig KILL")
            .args(program.words())
            .env("SLURM_CONF", self.directory.path().join("slurm.conf"))
            .in_directory(self.directory.path());
        self.daemons.insert(0, (name.to_owned(), program.start()));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Stops the nodes first, so that no process writes to the directory while it is removed.
        self.daemons.clear();
    }
}

/// A submitted job.
pub struct Job<'a> {
    cluster: &'a Cluster,
    number: String,
}

impl Job<'_> {
    /// Its number.
    pub fn number(&self) -> &str {
        &self.number
    }

    /// Sends a signal to the batch script, as `sbatch --signal=B:…` does.
    #[track_caller]
    pub fn signal(&self, signal: &str) {
        self.cluster
            .command("scancel")
            .args(["--batch", "--signal", signal, &self.number])
            .run()
            .ok();
    }

    /// Cancels the job and waits for its end.
    pub fn cancel(&self) {
        self.cluster.command("scancel").arg(&self.number).run().ok();
        self.cluster.wait(&self.number);
    }

    /// Kills all processes of the job at once.
    #[track_caller]
    pub fn kill(&self) {
        self.cluster
            .command("scancel")
            .args(["--full", "--signal=KILL", &self.number])
            .run()
            .ok();
    }

    /// Returns a value in Slurm's description of the job, such as that of `BatchHost`.
    #[track_caller]
    pub fn value(&self, name: &str) -> String {
        let result = self
            .cluster
            .command("scontrol")
            .args(["show", "job", &self.number])
            .run()
            .ok();
        field(&result, &format!("{name}=")).to_owned()
    }

    /// Waits until the job ends and asserts its state, such as `COMPLETED`.
    #[track_caller]
    pub fn assert_ends_as(&self, expected: &str) {
        let result = self.cluster.wait(&self.number);
        if field(&result, "JobState=") == expected {
            return;
        }
        let mut all = result.details();
        for name in ["StdOut=", "StdErr="] {
            let text = fs::read_to_string(field(&result, name)).unwrap_or_default();
            let _ = writeln!(all, "--- {name}\n{}", last_lines(&text, 40));
        }
        panic!("the job should end as {expected}: {all}{}", self.cluster.logs());
    }
}

/// Returns a value in Slurm's description of a job.
fn field<'a>(result: &'a CommandResult, name: &str) -> &'a str {
    let value = result
        .stdout
        .split_whitespace()
        .find_map(|word| word.strip_prefix(name));
    value.unwrap_or_else(|| panic!("no {name}: {}", result.details()))
}

fn last_lines(text: &str, number: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(number)..].join("\n")
}

/// Where nodes are reached.
struct Addresses {
    nodes: [&'static str; 3],
    /// The file with the addresses of names.
    hosts: String,
    /// What sockets are bound to.
    parameters: &'static str,
}

impl Addresses {
    /// All are this machine.
    fn one() -> Self {
        Self {
            nodes: ["127.0.0.1"; 3],
            hosts: format!("127.0.0.1 localhost {} {}\n", host_name(), NODES.join(" ")),
            parameters: "NoInAddrAny,NoCtldInAddrAny",
        }
    }

    fn own() -> Self {
        let nodes = ["127.0.0.11", "127.0.0.12", "127.0.0.13"];
        let mut hosts = format!("127.0.0.1 localhost {}\n", host_name());
        for (name, address) in NODES.iter().zip(nodes) {
            let _ = writeln!(hosts, "{address} {name}");
        }
        Self {
            nodes,
            hosts,
            // Nodes answer to the address from which a step was started: 127.0.0.1.
            parameters: "NoCtldInAddrAny",
        }
    }
}

fn configuration(
    top: &Path,
    has_own_hosts: bool,
    control: u16,
    ports: [u16; 3],
    addresses: &Addresses,
) -> String {
    let place = |name: &str| -> PathBuf { top.join(name) };
    let mut text = format!(
        "ClusterName=virtual\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmctldPort={control}\n\
         SlurmUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={socket},cred_expire=20\n\
         CryptoType=crypto/munge\n\
         CommunicationParameters={parameters}\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         SwitchType=switch/none\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\n\
         # The nodes differ from the machine.\n\
         SlurmdParameters=config_overrides\n\
         ReturnToService=2\n\
         # For Open MPI; MPICH needs srun --mpi=pmi2.\n\
         MpiDefault=pmix\n\
         AccountingStorageType=accounting_storage/none\n\
         JobAcctGatherType=jobacct_gather/none\n\
         SchedulerParameters=batch_sched_delay=0,sched_interval=1\n\
         StateSaveLocation={state}\n\
         SlurmctldPidFile={pid}\n\
         SlurmctldLogFile={log}\n\
         SlurmdPidFile={nodepid}\n\
         SlurmdLogFile={nodelog}\n\
         SlurmdSpoolDir={spool}\n\
         # PMIx keeps its sockets here; nodes must not share it.\n\
         TmpFS={tmp}\n",
        host = host_name(),
        parameters = addresses.parameters,
        socket = place("munge.socket").display(),
        state = place("state").display(),
        pid = place("slurmctld.pid").display(),
        log = place("slurmctld.log").display(),
        nodepid = place("slurmd.%n.pid").display(),
        nodelog = place("slurmd.%n.log").display(),
        spool = place("spool.%n").display(),
        tmp = place("tmp.%n").display(),
    );
    let name = if has_own_hosts {
        String::new()
    } else {
        format!(" NodeHostname={}", host_name())
    };
    for ((node, address), port) in NODES.iter().zip(addresses.nodes).zip(ports) {
        let _ = writeln!(
            text,
            "NodeName={node}{name} NodeAddr={address} Port={port} CPUs=2 RealMemory=4000"
        );
    }
    let _ = writeln!(
        text,
        "PartitionName=main Nodes={} Default=YES MaxTime=INFINITE",
        NODES.join(",")
    );
    text
}

/// Returns the name of the machine without its domain.
fn host_name() -> String {
    let name = nix::unistd::gethostname()
        .expect("a host name")
        .to_string_lossy()
        .into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Returns ports that are free at present.
fn free_ports() -> [u16; 4] {
    let listeners = [(); 4].map(|()| TcpListener::bind(("127.0.0.1", 0)).expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

/// Returns random bytes for munged's key.
fn random_key() -> Vec<u8> {
    use std::io::Read;
    let mut bytes = vec![0; 1024];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .expect("random bytes");
    bytes
}

fn wait_for(limit: Duration, what: &str, done: impl Fn() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < limit, "timeout while waiting for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
