//! `pmc mcp`: answers a program that speaks the Model Context Protocol on standard input and output.
//!
//! Each tool is a command of this program and runs as a process of its own: it says what the command says,
//! and a run that does not answer holds up nothing else.

#[cfg(feature = "mcp")]
mod server;
#[cfg(feature = "mcp")]
mod tools;

use crate::cli;
use crate::failure::Failure;

/// Serves the program at the other end until it closes standard input. Returns the exit code.
#[cfg(feature = "mcp")]
pub fn mcp(arguments: &cli::Mcp) -> Result<u8, Failure> {
    server::serve(arguments)
}

/// Refuses: the protocol is not there.
#[cfg(not(feature = "mcp"))]
pub fn mcp(_: &cli::Mcp) -> Result<u8, Failure> {
    let error = anyhow::anyhow!("mcp: this program was built without the feature `mcp`");
    Err(Failure::new(crate::exit::NOT_SUPPORTED, error)
        .hint("the packages have it; or build with --features mcp"))
}
