//! `pmc-rsh`: runs a command on another host of a task that holds several.

fn main() -> std::process::ExitCode {
    pmc_rsh::main()
}
