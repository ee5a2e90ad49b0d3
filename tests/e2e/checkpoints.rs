//! Programs that save their state with `libtcsio.so` and `libtcsiof.so`: killed, they go on, with the right
//! numbers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testutils::Random;

use crate::support::programs::{Build, project};

/// Time limit for a run.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Kills of a run: 2, or what this variable says.
fn kills() -> u32 {
    let wanted = std::env::var("PMC_TEST_KILLS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(2)
}

/// An MPI program: each rank saves two files every fifth step, and the numbers of all must be those of one
/// series.
const RANKS: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
#include "tcsio.h"

static long fields[1000], particles = 0, count = 1000, one = 1;

static int all(int file, int reads, void *data, long *length)
{
    static int keep = 0, size = 8;
    if (file < 0) return 1;
    if (reads ? tcs_read_(&file, data, length, &size) : tcs_write_(&file, data, length, &size)) return 1;
    return tcs_close_(&file, &keep);
}

int main(int argc, char **argv)
{
    int rank;
    long sums[2], least, most;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (tcs_init_(0)) return 2;
    if (tcs_jobrestarted_()) {
        if (all(tcs_open_read_("fields"), 1, fields, &count)) return 3;
        if (all(tcs_open_read_("particles"), 1, &particles, &one)) return 4;
    }
    MPI_Allreduce(&particles, &least, 1, MPI_LONG, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&particles, &most, 1, MPI_LONG, MPI_MAX, MPI_COMM_WORLD);
    if (least != most || fields[999] != particles * (rank + 1)) return 5;
    if (rank == 0) printf("begins after %ld\n", particles);
    while (particles < 40) {
        particles++;
        for (int i = 0; i < 1000; i++) fields[i] += rank + 1;
        usleep(50000);
        MPI_Barrier(MPI_COMM_WORLD);
        if (particles % 5 == 0) {
            int first = tcs_open_write_("fields"), second = tcs_open_write_("particles");
            if (all(first, 0, fields, &count) || all(second, 0, &particles, &one)) return 6;
        }
    }
    sums[0] = fields[999];
    MPI_Reduce(sums, sums + 1, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("The sum is %ld\n", sums[1]);
    if (tcs_finalize_()) return 7;
    MPI_Finalize();
    return 0;
}
"#;

/// Compiles a program with one of the libraries.
fn compile(compiler: &[&str], source: &Path, library: &str, program: &Path) {
    let libraries = std::env::current_exe().expect("the path of this test");
    let libraries = libraries
        .ancestors()
        .nth(2)
        .expect("the directory of the profile");
    let status = Command::new(compiler[0])
        .args(&compiler[1..])
        .arg(source)
        .arg("-I")
        .arg(project().join("lib/tcsio/include"))
        .arg("-L")
        .arg(libraries)
        .arg(format!("-l{library}"))
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .arg("-o")
        .arg(program)
        .status()
        .expect("a compiler");
    assert!(status.success(), "{compiler:?} {}", source.display());
}

/// The processes that run a program.
fn processes(program: &Path) -> Vec<Pid> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let is_it = fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == program);
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        found.extend(pid.filter(|_| is_it).map(Pid::from_raw));
    }
    found
}

/// Runs a program as a task. A process of it is killed at random moments. Returns what the task has printed.
fn run_with_kills(directory: &Path, command: &str, program: &Path, seed: u64) -> String {
    let dag = directory.join("w.dag");
    let attempts = kills() + 7;
    fs::write(&dag, format!("TASK a -t {attempts} {command}\n")).expect("a DAG");
    let mut child = Command::new(Build::Local.program("pegasus-mpi-cluster"))
        .args(["--workers", "1", "--per-task-stdio", "w.dag"])
        .envs(Build::OpenMpi.environment())
        .current_dir(directory)
        .stdout(Stdio::null())
        .spawn()
        .expect("the executor");
    let mut random = Random(seed);
    let mut left = kills();
    let end = Instant::now() + TIMEOUT * kills().max(1);
    let status = loop {
        if let Some(status) = child.try_wait().expect("the executor") {
            break status;
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("{command} takes too long");
        }
        std::thread::sleep(Duration::from_millis(300 + random.below(1200)));
        if left > 0
            && let Some(pid) = processes(program).first()
        {
            let _ = kill(*pid, Signal::SIGKILL);
            left -= 1;
        }
    };
    let output = (0..attempts)
        .filter_map(|number| fs::read_to_string(directory.join(format!("a.out.{number:03}"))).ok());
    let output: String = output.collect();
    assert!(status.success(), "{output}");
    assert!(
        !directory.join("w.dag.checkpoints").exists(),
        "checkpoints are left"
    );
    output
}

#[test]
#[ignore = "needs compilers: tests/run e2e"]
fn programs_in_c_cpp_and_fortran_go_on_after_a_kill() {
    let examples = project().join("examples/checkpoint");
    let cases: [(&[&str], &str, &str); 3] = [
        (&["cc", "-Wall", "-Werror"], "sum.c", "tcsio"),
        (&["c++", "-Wall", "-Werror"], "sum.cpp", "tcsio"),
        (&["gfortran", "-Wall"], "sum.f90", "tcsiof"),
    ];
    for (number, (compiler, source, library)) in (0..).zip(cases) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let program = directory.path().join("sum");
        compile(compiler, &examples.join(source), library, &program);
        let command = format!("{} 100", program.display());
        let output = run_with_kills(directory.path(), &command, &program, number);
        assert!(output.contains("The sum is 5050\n"), "{source}: {output}");
    }
}

/// Another user can neither use the service of a run, nor put a store in the way.
#[test]
#[ignore = "needs two users: tests/run e2e"]
fn other_users_are_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    let pmc = Build::Local.program("pmc");
    let script = format!(
        "#!/bin/sh\necho 1 >n\nsetpriv --reuid 65534 --clear-groups {0} checkpoint put n n 2>theirs; echo $? >>theirs\n\
         {0} checkpoint put n n; echo $? >own\n",
        pmc.display()
    );
    fs::write(path("task.sh"), script).expect("a script");
    fs::write(path("w.dag"), "TASK a /bin/sh ./task.sh\n").expect("a DAG");
    let run = || {
        let executor = Build::Local.program("pegasus-mpi-cluster");
        let status = Command::new(executor)
            .args(["--workers", "1", "--per-task-stdio", "--skip-rescue", "w.dag"])
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .status();
        assert!(status.expect("the executor").success());
        let read = |name: &str| fs::read_to_string(path(name)).expect("the task has written it");
        (read("theirs"), read("own"))
    };
    // Programs may lie where the other user cannot see them.
    let (theirs, own) = run();
    assert!(!theirs.ends_with("\n0\n") && own == "0\n", "{theirs}");
    // A store of another user.
    fs::create_dir(path("w.dag.checkpoints")).expect("a directory");
    std::os::unix::fs::chown(path("w.dag.checkpoints"), Some(65534), None).expect("root may do this");
    assert_eq!(run().1, "4\n");
    let left = fs::read_dir(path("w.dag.checkpoints"))
        .expect("a directory")
        .count();
    assert_eq!(left, 0, "nothing is written there");
}

#[test]
#[ignore = "needs MPI: tests/run e2e"]
fn ranks_go_on_together_after_a_kill() {
    for (seed, build, compiler) in [
        (3, Build::OpenMpi, "mpicc.openmpi"),
        (4, Build::Mpich, "mpicc.mpich"),
    ] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (source, program): (PathBuf, PathBuf) =
            (directory.path().join("ranks.c"), directory.path().join("ranks"));
        fs::write(&source, RANKS).expect("a program");
        compile(&[compiler], &source, "tcsio", &program);
        let command = format!("{} {}", build.launcher(4).join(" "), program.display());
        let output = run_with_kills(directory.path(), &command, &program, seed);
        // 40 steps of 1 + 2 + 3 + 4.
        assert!(output.contains("The sum is 400\n"), "{compiler}: {output}");
    }
}
