//! `pegasus-lite`: runs one job in a directory of its own.

fn main() -> std::process::ExitCode {
    pegasus_lite::main()
}
