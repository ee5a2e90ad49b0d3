//! `pmc-launch`: starts the processes of a parallel program on the hosts of a task.

fn main() -> std::process::ExitCode {
    pmc_launch::main()
}
