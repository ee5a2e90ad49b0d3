//! Runs a workflow DAG as one batch job; see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    pegasus_mpi_cluster::main(std::env::args_os().collect(), std::env::vars_os().collect())
}
