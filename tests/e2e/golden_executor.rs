//! The executor does what the original did in the golden cases, under both kinds of MPI. A plain `cargo test` compares
//! local workers.

use testutils::golden::{self, executor};

use crate::support::programs::Flavour;

#[track_caller]
fn check(flavour: Flavour) {
    let program = flavour.program("pegasus-mpi-cluster").display().to_string();
    let start = |ranks| {
        let mut words = flavour.launcher(ranks);
        words.push(program.clone());
        words
    };
    golden::check("executor", golden::processors(), |case| {
        executor::compare(case, &start)
    });
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn ranks_of_open_mpi_do_what_the_original_did() {
    check(Flavour::OpenMpi);
}

#[test]
#[ignore = "needs MPICH: tests/run e2e"]
fn ranks_of_mpich_do_what_the_original_did() {
    check(Flavour::Mpich);
}
