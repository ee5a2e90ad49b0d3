//! `pegasus-kickstart-server`: runs task after task for an executor.

fn main() -> std::process::ExitCode {
    pegasus_task_server::main()
}
