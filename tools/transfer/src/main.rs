//! `pegasus-transfer`: reads a list of transfers, directories and removals, and carries it out.
//!
//! The log goes to stderr. Exit status 0 if everything succeeded, else 1.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
