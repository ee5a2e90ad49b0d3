//! `pegasus-rc-client`: inserts, looks up and deletes entries of a replica catalog.

fn main() -> std::process::ExitCode {
    pegasus_rc_client::main()
}
