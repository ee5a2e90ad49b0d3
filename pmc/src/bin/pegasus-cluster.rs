//! `pegasus-cluster`: runs a list of commands as one job.

fn main() -> std::process::ExitCode {
    pegasus_cluster::main()
}
