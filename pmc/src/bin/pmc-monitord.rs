//! `pmc-monitord`: loads a run into the STAMPEDE database.

fn main() -> std::process::ExitCode {
    pmc_stampede::main()
}
