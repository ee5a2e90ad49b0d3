//! `pegasus-mpi-cluster`: runs a DAG as one batch job.

fn main() -> std::process::ExitCode {
    pegasus_mpi_cluster::main(std::env::args_os().collect(), std::env::vars_os().collect())
}
