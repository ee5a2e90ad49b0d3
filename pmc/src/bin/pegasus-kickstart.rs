//! `pegasus-kickstart`: runs one program and prints its invocation record.

fn main() -> std::process::ExitCode {
    pegasus_kickstart::main()
}
