//! `pegasus-integrity`: computes and compares checksums of files.

fn main() -> std::process::ExitCode {
    pegasus_transfer::integrity_program::main()
}
