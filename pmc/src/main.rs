//! The program `pmc`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pmc::main()
}
