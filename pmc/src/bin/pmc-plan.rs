//! `pmc-plan`: plans a workflow into a submit directory.

fn main() -> std::process::ExitCode {
    pmc_plan::main()
}
