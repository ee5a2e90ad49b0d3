//! Packed output: Pegasus' own monitoring sees a run after `pmc unpack` as if it had made files.

use crate::support::command::Program;
use crate::support::programs::Build;
use crate::support::workflow::{Format, Request};

fn run_and_unpack(build: Build) {
    let planned = Request::new(build, Format::Yaml).plan();
    planned.executor(3).arg("--packed-output").run().ok();
    let unpack = Program::new(Build::Local.program("pmc"));
    let result = unpack.arg("unpack").arg(planned.submit()).run().ok();
    assert!(
        result.stdout.starts_with("92 new files of 46 packed attempts"),
        "{}",
        result.details()
    );
    planned.assert_complete_for_pegasus();
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn unpacked_run_is_complete_for_pegasus() {
    run_and_unpack(Build::Local);
}

#[test]
#[ignore = "needs all programs built: tests/run e2e"]
fn unpacked_run_of_agents_is_complete_for_pegasus() {
    run_and_unpack(Build::Agents);
}

#[test]
#[ignore = "needs Open MPI: tests/run e2e"]
fn unpacked_run_under_open_mpi_is_complete_for_pegasus() {
    run_and_unpack(Build::OpenMpi);
}
