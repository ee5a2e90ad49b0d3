//! `pmc`: plans, runs and shows workflows.

fn main() -> std::process::ExitCode {
    pmc::main()
}
