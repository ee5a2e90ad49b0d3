//! The command lines of all programs.

use clap::{Command, CommandFactory as _};

/// Returns the command line of every program that users call.
#[must_use]
pub fn all() -> Vec<Command> {
    vec![
        pegasus_transfer::program::Options::command(),
        pegasus_rc_client::program::Args::command(),
    ]
}
