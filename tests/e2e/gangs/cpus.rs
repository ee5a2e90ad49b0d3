//! CPUs of two gangs on the same hosts, and commands on other hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use super::{Mpi, Scene, output, pmc_launch};
use crate::support::command::Program;
use crate::support::programs::Build;
use crate::support::sshd::Sshd;

/// Waits until the other gang runs, and says which CPUs its ranks may use: after the MPI library has bound
/// them, if it does.
const PLACES: &str = r#"
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        fclose(fopen(argv[1], "w"));
    for (int go_on = 1; go_on; usleep(10000)) {
        go_on = access(argv[2], F_OK) != 0;
        MPI_Bcast(&go_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    char host[256], text[8192];
    gethostname(host, sizeof host);
    int size = snprintf(text, sizeof text, "CPUs of %s:", host);
    cpu_set_t cpus;
    sched_getaffinity(0, sizeof cpus, &cpus);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus))
            size += snprintf(text + size, sizeof text - size, " %d", cpu);
    size += snprintf(text + size, sizeof text - size, "\n");
    // At once: other ranks write to the same file, and some libraries take the buffer away.
    if (write(STDOUT_FILENO, text, size) != size)
        return 1;
    MPI_Finalize();
    return 0;
}
"#;

/// CPUs of the ranks on each host.
fn cpus(output: &str) -> BTreeMap<&str, BTreeSet<u32>> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("CPUs of "));
    let lines = lines.filter_map(|line| line.split_once(':'));
    let numbers = |text: &str| {
        text.split_whitespace()
            .filter_map(|cpu| cpu.parse().ok())
            .collect()
    };
    lines.map(|(host, text)| (host, numbers(text))).collect()
}

/// Runs pairs of gangs with each launcher, as many as `PMC_TEST_PAIRS` says. One may fail and run again: two
/// daemons of Open MPI 4 that begin at the same moment on a host may fail, as both make the same directory.
fn pairs_have_cpus_of_their_own(mpi: Mpi, launchers: &[&str]) {
    if std::thread::available_parallelism().is_ok_and(|count| count.get() < 2) {
        println!("this machine has too few CPUs");
        return;
    }
    let rounds = std::env::var("PMC_TEST_PAIRS").ok();
    let rounds: usize = rounds.and_then(|text| text.parse().ok()).unwrap_or(2);
    let rounds = rounds * launchers.len();
    let mut dag = String::new();
    for (number, launcher) in (0..rounds).zip(launchers.iter().cycle()) {
        for (own, other) in [("a", "b"), ("b", "a")] {
            dag += &format!(
                "TASK {own}{number} -t 3 --on n[1-2] -N 2 -c 1 -m 100 {launcher} \
                 ./places {own}{number}.there {other}{number}.there\n"
            );
        }
        if let Some(before) = number.checked_sub(1) {
            for (parent, child) in [("a", "a"), ("a", "b"), ("b", "a"), ("b", "b")] {
                dag += &format!("EDGE {parent}{before} {child}{number}\n");
            }
        }
    }
    let mut scene = Scene::new(mpi, &dag);
    scene.cpus = &["--set-affinity"];
    scene.mpi.compile(scene.folder.path(), "places", PLACES);
    scene.start();
    scene.succeed();
    for number in 0..rounds {
        let [a, b] = ["a", "b"].map(|name| output(scene.folder.path(), &format!("{name}{number}")));
        let (of_a, of_b) = (cpus(&a), cpus(&b));
        for host in ["n1", "n2"] {
            let both = of_a.get(host).zip(of_b.get(host));
            let is_right = both
                .is_some_and(|(one, other)| !one.is_empty() && !other.is_empty() && one.is_disjoint(other));
            assert!(is_right, "round {number}, {host}\n{a}\n{b}");
        }
    }
    println!("{rounds} pairs, each with CPUs of its own");
}

#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn two_gangs_of_open_mpi_have_cpus_of_their_own() {
    pairs_have_cpus_of_their_own(Mpi::debian("mpicc.openmpi"), &["mpirun.openmpi"]);
}

#[test]
#[ignore = "needs network namespaces and Open MPI 5: tests/run e2e"]
fn two_gangs_of_open_mpi_5_have_cpus_of_their_own() {
    pairs_have_cpus_of_their_own(Mpi::packaged("openmpi"), &["mpirun"]);
}

#[test]
#[ignore = "needs network namespaces and MPICH 5: tests/run e2e"]
fn two_gangs_of_mpich_5_have_cpus_of_their_own() {
    pairs_have_cpus_of_their_own(Mpi::packaged("mpich"), &["mpiexec", &pmc_launch()]);
}

#[test]
#[ignore = "needs network namespaces and Intel MPI: tests/run e2e"]
fn two_gangs_of_intel_mpi_have_cpus_of_their_own() {
    pairs_have_cpus_of_their_own(Mpi::intel(), &["mpirun", &pmc_launch()]);
}

/// Runs a command many times, and says how many microseconds each took.
const TIMES: &str = r#"#!/bin/sh
count=$1
shift
for i in $(seq $count); do
    begun=$(date +%s%N)
    "$@" || exit 1
    echo "$((($(date +%s%N) - begun) / 1000)) us"
done
"#;

/// The median and the least of the times that a task says.
fn times(scene: &Scene, task: &str) -> (u64, u64) {
    let said = output(scene.folder.path(), task);
    let lines = said.lines().filter_map(|line| line.strip_suffix(" us"));
    let mut times: Vec<u64> = lines.map(|line| line.parse().expect("a time")).collect();
    times.sort_unstable();
    (times[times.len() / 2], times[0])
}

/// Says how long a command on another host takes, beside one on the same host. `PMC_TEST_CALLS` is the number
/// of them.
#[test]
#[ignore = "needs network namespaces and Open MPI: tests/run e2e"]
fn commands_run_on_the_other_host_one_after_the_other() {
    let calls = std::env::var("PMC_TEST_CALLS").unwrap_or_else(|_| "5".to_owned());
    let rsh = Build::Local.program("pmc-rsh");
    let dag = format!(
        "TASK there --on n[1-2] -N 2 ./there {calls} {}\nTASK here ./times {calls} /bin/sh -c true\n\
         EDGE there here\n",
        rsh.display()
    );
    let mut scene = Scene::new(Mpi::debian("mpicc.openmpi"), &dag);
    let there = "#!/bin/sh\nexec ./times $1 $2 $(tail -n 1 \"$PMC_NODEFILE\") true\n";
    for (name, script) in [("times", TIMES), ("there", there)] {
        fs::write(scene.path(name), script).expect("a script");
        fs::set_permissions(scene.path(name), fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    scene.start();
    scene.succeed();
    let (there, here) = (times(&scene, "there"), times(&scene, "here"));
    println!(
        "median and least in us of {calls} commands: on another host {there:?}, on the same one {here:?}"
    );
}

/// Says how fast bytes go to a command on another host and come from it, in MiB/s, beside SSH on this
/// machine. `PMC_TEST_MIB` is their number.
#[test]
#[ignore = "needs network namespaces, Open MPI and SSH: tests/run e2e"]
fn bytes_go_to_the_other_host_and_come_from_it() {
    let mib: u64 = std::env::var("PMC_TEST_MIB").map_or(8, |mib| mib.parse().expect("a number"));
    let bytes = mib << 20;
    let mut scene = Scene::new(
        Mpi::debian("mpicc.openmpi"),
        &format!(
            "TASK bytes --on n[1-2] -N 2 ./bytes {bytes} {}\n",
            Build::Local.program("pmc-rsh").display()
        ),
    );
    let script = "#!/bin/sh\nother=$(tail -n 1 \"$PMC_NODEFILE\")\nnow() { date +%s%N; }\nbegun=$(now)\n\
                  echo \"came $($2 $other head -c $1 /dev/zero | wc -c) $((($(now) - begun) / 1000)) us\"\n\
                  begun=$(now)\n\
                  echo \"went $(head -c $1 /dev/zero | $2 $other wc -c) $((($(now) - begun) / 1000)) us\"\n";
    fs::write(scene.path("bytes"), script).expect("a script");
    fs::set_permissions(scene.path("bytes"), fs::Permissions::from_mode(0o755)).expect("a mode");
    scene.start();
    scene.succeed();
    let said = output(scene.folder.path(), "bytes");
    let rates: Vec<u64> = ["came", "went"]
        .iter()
        .map(|way| {
            let begin = format!("{way} {bytes} ");
            let time = said
                .lines()
                .find_map(|line| line.strip_prefix(&*begin)?.strip_suffix(" us"));
            let time: u64 = time
                .unwrap_or_else(|| panic!("all bytes: {said}"))
                .parse()
                .expect("a time");
            mib * 1_000_000 / time.max(1)
        })
        .collect();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let sshd = Sshd::start(folder.path());
    let begun = Instant::now();
    let options = "-q -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null";
    let (key, port) = (sshd.key.display(), sshd.port);
    let come = format!("ssh {options} -i {key} -p {port} 127.0.0.1 'head -c {bytes} /dev/zero' | wc -c");
    let result = Program::new("sh").args(["-c", &come]).run().ok();
    assert_eq!(result.stdout.trim(), bytes.to_string(), "{}", result.details());
    let ssh = mib * 1_000_000 / begun.elapsed().as_micros() as u64;
    println!(
        "MiB/s: from the other host {}, to it {}, by SSH {ssh}",
        rates[0], rates[1]
    );
}
