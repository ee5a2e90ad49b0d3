//! What Pegasus' monitoring stores after our executor and our kickstart ran a planned workflow is
//! what it stores after Pegasus' own ran it.

use crate::support::golden::golden;
use crate::support::programs::{Flavour, python, venv_bin};

fn check(flavour: Flavour, prefix: &str) {
    let bin = flavour.bin();
    let said = python()
        .arg("-I")
        .arg(golden("tools/stampede_dump.py"))
        .arg("--golden")
        .arg(golden("stampede"))
        .arg("--monitord")
        .arg(venv_bin().join("pegasus-monitord"))
        // The golden runs were made on a machine without a name for its address.
        .args([
            "--ignore",
            "host/*/hostname",
            "--ignore",
            "job_instance/*/host/hostname",
            "--rerun",
        ])
        .arg(prefix.replace("PMC", &bin.join("pegasus-mpi-cluster").display().to_string()))
        .arg("--bin")
        .arg(&bin)
        .envs(&flavour.environment())
        .limit(600)
        .go()
        .ok();
    assert!(said.stdout.contains("\n5 passed, 0 failed"), "{}", said.account());
}

#[test]
#[ignore = "needs Pegasus' monitoring: tests/run e2e"]
fn database_after_local_runs_is_the_golden_one() {
    check(Flavour::Local, "\"PMC\" --workers 3");
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn database_after_runs_under_open_mpi_is_the_golden_one() {
    check(
        Flavour::OpenMpi,
        "mpiexec.openmpi --oversubscribe -n {np} \"PMC\"",
    );
}
