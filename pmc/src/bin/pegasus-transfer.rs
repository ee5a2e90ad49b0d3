//! `pegasus-transfer`: copies, links and removes files.

fn main() -> std::process::ExitCode {
    pegasus_transfer::main()
}
