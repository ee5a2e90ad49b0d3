//! The example with a parallel program on one machine, on hosts that SSH reaches, and in a batch job.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testutils::node_faults::network::Network;

use crate::support::command::Program;
use crate::support::pegasus::only_file;
use crate::support::programs::{Build, project};
use crate::support::server::system_program;
use crate::support::slurm::Cluster;

/// Longest time until a server takes connections.
const LIMIT: Duration = Duration::from_secs(60);

/// Open MPI as root, and without shared memory: all nodes are one machine.
const OPEN_MPI: [(&str, &str); 3] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_btl", "tcp,self"),
];

fn open_mpi() -> [(String, String); 3] {
    OPEN_MPI.map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// A copy of the example.
fn example() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary directory");
    Program::from_line("cp -r")
        .arg(project().join("examples/mpi"))
        .arg(folder.path())
        .run()
        .ok();
    folder
}

/// Asserts what the last job has written: hosts with two ranks each.
#[track_caller]
fn assert_summary(file: &Path, hosts: &[&str]) {
    let text = fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut expected: String = hosts.iter().map(|host| format!("2 ranks on {host}\n")).collect();
    expected += "mean temperature 50.000\n";
    assert_eq!(text, expected);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn the_mpi_example_runs_on_one_machine() {
    let folder = example();
    let result = Program::new(Build::Local.program("pmc"))
        .args(["run", "mpi/workflow.yml"])
        .in_directory(folder.path())
        .envs(&open_mpi())
        .run()
        .ok();
    let note = "simulate_ID0000002 asks for 2 nodes: its 4 ranks run on this machine";
    assert!(result.stderr.contains(note), "{}", result.details());
    let summary = folder.path().join("pmc-runs/mpi/latest/output/summary.txt");
    let text = fs::read_to_string(summary).expect("the summary");
    assert!(text.starts_with("4 ranks on "), "{text}");
    assert!(text.ends_with("mean temperature 50.000\n"), "{text}");
}

#[test]
#[ignore = "needs network namespaces, Open MPI and an SSH server: tests/run e2e"]
fn the_mpi_example_runs_on_two_hosts() {
    let folder = example();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("hosts"), "127.0.0.1 localhost\n10.77.0.2 n1\n10.77.0.3 n2\n").expect("names");
    for name in ["host", "key"] {
        let keygen = Program::from_line("ssh-keygen -q -t ed25519 -N").args(["", "-f"]);
        keygen.arg(path(name)).run().ok();
    }
    let mut set: Vec<String> = OPEN_MPI
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    // Files there have the names of host, user and process: those of other tests have the same.
    fs::create_dir(path("tmp")).expect("a directory");
    set.push(format!("TMPDIR={}", path("tmp").display()));
    let server = format!(
        "HostKey {0}/host\nAuthorizedKeysFile {0}/key.pub\nPidFile none\nStrictModes no\nUsePAM no\nSetEnv {1}\n",
        folder.path().display(),
        set.join(" ")
    );
    fs::write(path("sshd_config"), server).expect("a configuration");
    fs::create_dir_all("/run/sshd").expect("the directory that sshd needs");
    let client = format!(
        "Host n1\n HostName 10.77.0.2\nHost n2\n HostName 10.77.0.3\nHost *\n IdentityFile {}\n \
         StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n",
        path("key").display()
    );
    fs::write(path("ssh_config"), client).expect("a configuration");
    let ssh = "#!/bin/sh\nexec /usr/bin/ssh -F \"${0%/*}/ssh_config\" \"$@\"\n";
    fs::write(path("ssh"), ssh).expect("a script");
    fs::set_permissions(path("ssh"), fs::Permissions::from_mode(0o755)).expect("its mode");

    let mut network = Network::new().expect("network namespaces");
    let line = format!(
        "mount --bind hosts /etc/hosts && exec {} -D -e -f {}",
        system_program("sshd").display(),
        path("sshd_config").display()
    );
    let words = ["/bin/sh", "-c", &line].map(OsStr::new);
    let nodes = ["n1", "n2"].map(|name| network.start_node(name, folder.path(), "sshd.log", &words));
    let nodes = nodes.map(|node| node.expect("a node"));
    let search = std::env::var("PATH").unwrap_or_default();
    for name in ["n1", "n2"] {
        // Until the server takes connections.
        let answers = || {
            let mut ssh = network.on_master();
            ssh.arg(path("ssh")).args(["-o", "BatchMode=yes", name, "true"]);
            ssh.stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        };
        let begun = Instant::now();
        while !answers() {
            assert!(begun.elapsed() < LIMIT, "{name} does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    let mut run = network.on_master();
    run.arg(Build::Local.program("pmc"))
        .args([
            "run",
            "--hosts",
            "n1,n2",
            "-w",
            "2",
            "--host-cpus",
            "2",
            "mpi/workflow.yml",
        ])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{search}", folder.path().display()));
    let result = run.output().expect("pmc");
    let said =
        String::from_utf8_lossy(&result.stderr).into_owned() + &String::from_utf8_lossy(&result.stdout);
    assert!(result.status.success(), "{said}");
    assert_summary(&path("pmc-runs/mpi/latest/output/summary.txt"), &["n1", "n2"]);
    drop(nodes);
}

/// The script is submitted as the planner has written it.
#[test]
#[ignore = "needs Slurm and Open MPI: tests/run e2e"]
fn the_mpi_example_runs_in_a_batch_job() {
    let cluster = Cluster::with_own_addresses();
    for launcher in ["mpirun.openmpi", "srun"] {
        let folder = example();
        let submit = folder.path().join("submit/run");
        Program::new(Build::Local.program("pmc-plan"))
            .in_directory(folder.path())
            .args(["--sites", "local", "--output-sites", "local", "--cleanup", "none"])
            .args(["--dir", "submit", "--relative-submit-dir", "run"])
            .args([
                "--nodes",
                "2",
                "--ntasks-per-node",
                "2",
                "--walltime",
                "10",
                "--batch",
                "slurm",
            ])
            .arg("mpi/workflow.yml")
            .run()
            .ok();
        let submitted = cluster
            .job_command("sbatch")
            .args([
                OsStr::new("--parsable"),
                only_file(&submit, ".sbatch").as_os_str(),
            ])
            .in_directory(&submit)
            .env("MPICC", "mpicc.openmpi")
            .env("MPIRUN", launcher)
            .run()
            .ok();
        cluster.job(submitted.stdout.trim()).assert_ends_as("COMPLETED");
        let summary = only_file(folder.path(), "output").join("summary.txt");
        assert_summary(&summary, &["n1", "n2"]);
    }
}
