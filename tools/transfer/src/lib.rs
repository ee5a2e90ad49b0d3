//! Copies, links, creates and removes files and directories for the transfer, create-dir and clean-up jobs of
//! a planned workflow.
//!
//! The program `pegasus-transfer` is a thin shell around [`program`]. The library prints nothing, never ends
//! the process and keeps no state between calls, so other processes can embed it: [`inproc`] takes the
//! arguments of the program, [`engine::run`] a list of work. Remote protocols are handlers for
//! [`engine::run_with`], in the module `remote` (feature `remote`, on by default). [`local`] has the single
//! operations on local files.

pub mod cancel;
mod cli;
pub mod engine;
pub mod error;
pub mod inproc;
pub mod integrity;
pub mod integrity_program;
pub mod local;
pub mod multipart;
pub mod observer;
pub mod program;
pub mod protocol;
#[cfg(feature = "remote")]
pub mod remote;
pub mod report;
pub mod shown;
pub mod spec;
pub mod url;

pub use cli::{command, main, registry};
