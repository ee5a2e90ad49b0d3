//! `pegasus-exitcode`: judges the end of a job by its output, for DAGMan.

fn main() -> std::process::ExitCode {
    pegasus_exitcode::main()
}
