//! Copies, links, makes and removes files and directories, as the transfer, create-dir and clean-up jobs
//! of a planned workflow ask.
//!
//! The program `pegasus-transfer` is a thin shell around [`program`]. The library prints nothing, never ends the
//! process and keeps no state between calls, so that another process can do the same work: [`inproc`] takes what the
//! program would be started with, [`engine::run`] a list of work. Remote protocols are handlers that
//! [`engine::run_with`] takes: see the module `remote`, which the feature of that name (on by default) brings in.
//! For single operations on local files call [`local`] directly.

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

pub use cli::{command, main};
