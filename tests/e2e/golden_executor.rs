//! The executor reproduces the golden cases under both kinds of MPI. A plain `cargo test` compares local
//! workers.

use testutils::golden::{self, executor};

use crate::support::programs::Build;

#[track_caller]
fn check(build: Build) {
    let program = build.program("pegasus-mpi-cluster").display().to_string();
    let start = |ranks| {
        let mut words = build.launcher(ranks);
        words.push(program.clone());
        words
    };
    golden::check("executor", golden::processors(), |case| {
        executor::compare(case, &start)
    });
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn ranks_of_open_mpi_reproduce_the_golden_cases() {
    check(Build::OpenMpi);
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn ranks_of_mpich_reproduce_the_golden_cases() {
    check(Build::Mpich);
}
