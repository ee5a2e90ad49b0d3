//! Plans and runs a Pegasus workflow on this machine.

mod cli;
mod exit;
mod failure;
mod kinds;
mod layout;
mod programs;
mod progress;
mod record;
mod summary;
mod text;

fn main() {}
