//! A Slurm cluster of three virtual nodes on this machine, with its own configuration, key, ports
//! and processes; a Slurm that the machine may have is neither used nor disturbed.
//!
//! Every node is a `slurmd` in its own mount, host name and process namespaces: the nodes have
//! different names and their own `/dev/shm`, so MPI takes them for different hosts, and whatever
//! jobs leave behind ends with the node. That takes root. Where even root may not make namespaces
//! (some containers), the nodes share the machine's name.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::command::{Run, Running, Said};
use super::pegasus::only_file;
use super::programs::Flavour;
use super::workflow::Planned;

/// Names of the nodes.
const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Runs a program in namespaces that end with it.
const NAMESPACES: &str = "unshare --mount --uts --pid --fork --mount-proc --kill-child=KILL";
/// How long the nodes may take to be ready, and a job to end.
const READY: Duration = Duration::from_secs(60);
const JOB: Duration = Duration::from_secs(180);

/// What the planner is told so that its batch scripts use all nodes.
pub fn batch_options() -> Vec<String> {
    ["--nodes", "3", "--ntasks-per-node", "2", "--walltime", "10"]
        .map(str::to_owned)
        .into()
}

/// The running cluster; it ends with this value.
pub struct Cluster {
    folder: TempDir,
    apart: bool,
    // In the order in which they are ended.
    daemons: Vec<Running>,
}

impl Cluster {
    /// Starts the cluster and waits until its nodes take jobs.
    pub fn start() -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "a Slurm cluster for tests can only be started by root"
        );
        let folder = tempfile::Builder::new()
            .prefix("pmc-slurm.")
            .tempdir()
            .expect("a temporary folder");
        let apart = Run::line(NAMESPACES).arg("true").go().code() == 0;
        let top = folder.path();
        // munged wants its folders open to all and its key to none but its user.
        fs::set_permissions(top, fs::Permissions::from_mode(0o755)).expect("a mode");
        let key = top.join("munge.key");
        fs::write(&key, seed()).expect("a key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("a mode");
        let [control, first, second, third] = free_ports();
        fs::write(
            top.join("slurm.conf"),
            configuration(top, apart, control, [first, second, third]),
        )
        .expect("a configuration");
        fs::write(
            top.join("hosts"),
            format!("127.0.0.1 localhost {} {}\n", host(), NODES.join(" ")),
        )
        .expect("a list of hosts");
        fs::create_dir(top.join("state")).expect("a folder");

        let mut cluster = Self {
            folder,
            apart,
            daemons: Vec::new(),
        };
        let munged = Run::line("munged --foreground --num-threads=2")
            .arg(cluster.option("--key-file=", "munge.key"))
            .arg(cluster.option("--socket=", "munge.socket"))
            .arg(cluster.option("--pid-file=", "munge.pid"))
            .arg(cluster.option("--log-file=", "munge.log"))
            .arg(cluster.option("--seed-file=", "munge.seed"));
        cluster.daemon(munged);
        wait_for(READY, "munged's socket", || {
            cluster.folder.path().join("munge.socket").exists()
        });
        cluster.daemon(Run::line("slurmctld -D"));
        for node in NODES {
            for name in ["spool", "tmp"] {
                fs::create_dir(cluster.folder.path().join(format!("{name}.{node}"))).expect("a folder");
            }
            if !apart {
                cluster.daemon(Run::line("slurmd -D -N").arg(node));
                continue;
            }
            let script = format!(
                "hostname {node} && mount -t tmpfs -o size=512m tmpfs /dev/shm \
                 && mount --bind '{}' /etc/hosts && exec slurmd -D -N {node}",
                cluster.folder.path().join("hosts").display()
            );
            cluster.daemon(Run::line(NAMESPACES).args(["sh", "-c", &script]));
        }
        let ready = || {
            let said = cluster
                .command("sinfo")
                .args(["--noheader", "--Node", "--format=%T"])
                .go();
            said.stdout
                .split_whitespace()
                .filter(|state| *state == "idle")
                .count()
                == NODES.len()
        };
        let begin = Instant::now();
        while !ready() {
            assert!(
                begin.elapsed() < READY,
                "the nodes do not get ready:\n{}",
                cluster.logs()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
        cluster
    }

    /// A program of Slurm that talks to this cluster.
    fn command(&self, program: &str) -> Run {
        Run::new(program).env("SLURM_CONF", self.folder.path().join("slurm.conf"))
    }

    /// A program that submits to this cluster, with the environment that a job with Open MPI needs.
    pub fn job_command(&self, program: impl AsRef<Path>) -> Run {
        let run = Run::new(program.as_ref())
            .env("SLURM_CONF", self.folder.path().join("slurm.conf"))
            .envs(&Flavour::OpenMpi.environment())
            // The nodes share /tmp and number their processes alike. Now and then PMIx' table in shared memory
            // then takes one for the other ("gds_ds12_lock_pthread.c"); a table of each process' own cannot.
            .env("PMIX_MCA_gds", "hash");
        if self.apart {
            run
        } else {
            // The nodes share /dev/shm, and the names of Open MPI's segments would collide.
            run.env("OMPI_MCA_btl", "self,tcp")
        }
    }

    /// A job that has been submitted.
    pub fn job(&self, number: &str) -> Job<'_> {
        Job {
            cluster: self,
            number: number.to_owned(),
        }
    }

    /// Host names that programs see on the nodes.
    pub fn node_names(&self) -> Vec<String> {
        if self.apart {
            NODES.map(str::to_owned).into()
        } else {
            vec![host()]
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

    #[track_caller]
    fn submit(&self, program: &str, planned: &Planned, ending: &str) -> Job<'_> {
        let script = only_file(planned.submit(), ending);
        let said = self
            .job_command(program)
            .arg(script)
            .within(planned.submit())
            .go()
            .ok();
        let number = said.stdout.split_whitespace().next_back().unwrap_or_default();
        let number = number.split('.').next().unwrap_or_default();
        assert!(number.parse::<u32>().is_ok(), "no job number: {}", said.account());
        self.job(number)
    }

    /// Waits until the job has left the queue; all that Slurm says about it then.
    fn wait(&self, job: &str) -> Said {
        let begin = Instant::now();
        loop {
            let said = self.command("scontrol").args(["show", "job", job]).go().ok();
            if !["PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED"]
                .contains(&field(&said, "JobState="))
            {
                return said;
            }
            assert!(
                begin.elapsed() < JOB,
                "the job does not end: {}\n{}",
                said.account(),
                self.logs()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The ends of the daemons' logs, for the message of a failed test.
    fn logs(&self) -> String {
        let mut all = String::new();
        for name in ["slurmctld", "slurmd.n1", "slurmd.n2", "slurmd.n3", "munge"] {
            let path = self.folder.path().join(format!("{name}.log"));
            let text = fs::read_to_string(path).unwrap_or_default();
            let _ = writeln!(all, "--- {name}\n{}", end_of(&text, 15));
        }
        all
    }

    fn option(&self, name: &str, file: &str) -> String {
        format!("{name}{}", self.folder.path().join(file).display())
    }

    fn daemon(&mut self, run: Run) {
        // Ends with the test's thread, even if that has no time to clean up.
        let run = Run::line("setpriv --pdeathsig KILL")
            .args(run.words())
            .env("SLURM_CONF", self.folder.path().join("slurm.conf"))
            .within(self.folder.path());
        self.daemons.insert(0, run.start());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The nodes first, so that nothing below the folder is written while it is removed.
        self.daemons.clear();
    }
}

/// A job that was submitted.
pub struct Job<'a> {
    cluster: &'a Cluster,
    number: String,
}

impl Job<'_> {
    /// Sends a signal to the batch script and what it has become, as `sbatch --signal=B:…` does.
    #[track_caller]
    pub fn signal(&self, signal: &str) {
        self.cluster
            .command("scancel")
            .args(["--batch", "--signal", signal, &self.number])
            .go()
            .ok();
    }

    /// Waits for the end of the job and demands this state, such as `COMPLETED`.
    #[track_caller]
    pub fn ends_as(&self, wanted: &str) {
        let said = self.cluster.wait(&self.number);
        if field(&said, "JobState=") == wanted {
            return;
        }
        let mut all = said.account();
        for name in ["StdOut=", "StdErr="] {
            let text = fs::read_to_string(field(&said, name)).unwrap_or_default();
            let _ = writeln!(all, "--- {name}\n{}", end_of(&text, 40));
        }
        panic!("the job should end as {wanted}: {all}{}", self.cluster.logs());
    }
}

/// A value in what Slurm says of a job.
fn field<'a>(said: &'a Said, name: &str) -> &'a str {
    let value = said
        .stdout
        .split_whitespace()
        .find_map(|word| word.strip_prefix(name));
    value.unwrap_or_else(|| panic!("no {name}: {}", said.account()))
}

fn end_of(text: &str, number: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(number)..].join("\n")
}

fn configuration(top: &Path, apart: bool, control: u16, ports: [u16; 3]) -> String {
    let place = |name: &str| -> PathBuf { top.join(name) };
    let mut text = format!(
        "ClusterName=virtual\n\
         SlurmctldHost={host}(127.0.0.1)\n\
         SlurmctldPort={control}\n\
         SlurmUser=root\n\
         AuthType=auth/munge\n\
         AuthInfo=socket={socket}\n\
         CryptoType=crypto/munge\n\
         CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n\
         ProctrackType=proctrack/linuxproc\n\
         TaskPlugin=task/none\n\
         SwitchType=switch/none\n\
         SelectType=select/cons_tres\n\
         SelectTypeParameters=CR_Core\n\
         # The nodes are not what the machine is.\n\
         SlurmdParameters=config_overrides\n\
         ReturnToService=2\n\
         # Open MPI's way; MPICH wants srun --mpi=pmi2.\n\
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
         # PMIx keeps its sockets there; nodes must not share it.\n\
         TmpFS={tmp}\n",
        host = host(),
        socket = place("munge.socket").display(),
        state = place("state").display(),
        pid = place("slurmctld.pid").display(),
        log = place("slurmctld.log").display(),
        nodepid = place("slurmd.%n.pid").display(),
        nodelog = place("slurmd.%n.log").display(),
        spool = place("spool.%n").display(),
        tmp = place("tmp.%n").display(),
    );
    let name = if apart {
        String::new()
    } else {
        format!(" NodeHostname={}", host())
    };
    for (node, port) in NODES.iter().zip(ports) {
        let _ = writeln!(
            text,
            "NodeName={node}{name} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000"
        );
    }
    let _ = writeln!(
        text,
        "PartitionName=main Nodes={} Default=YES MaxTime=INFINITE",
        NODES.join(",")
    );
    text
}

/// The machine's name, without its domain.
fn host() -> String {
    let name = nix::unistd::gethostname()
        .expect("a host name")
        .to_string_lossy()
        .into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Ports that nothing listens on just now.
fn free_ports() -> [u16; 4] {
    let listeners = [(); 4].map(|()| TcpListener::bind(("127.0.0.1", 0)).expect("a port"));
    listeners.map(|listener| listener.local_addr().expect("an address").port())
}

/// Bytes for munged's key.
fn seed() -> Vec<u8> {
    use std::io::Read;
    let mut bytes = vec![0; 1024];
    fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .expect("random bytes");
    bytes
}

fn wait_for(limit: Duration, what: &str, done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < limit, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
