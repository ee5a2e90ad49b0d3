//! `pegasus-rc-client`: inserts, looks up and deletes entries of a replica catalog.
//!
//! Exit status: 0 done, 1 the catalog or the input is at fault, 2 wrong usage.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
