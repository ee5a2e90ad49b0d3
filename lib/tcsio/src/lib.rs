//! The side of a task that saves its state in the checkpoint store of its run.
//!
//! [`Connection`] speaks with the node service; [`Library`] is what the C functions do, with numbers for
//! files and messages on standard error. `libtcsio.so` and `libtcsiof.so` are thin layers above it, and `pmc
//! checkpoint` uses the connection.

pub mod api;
mod connection;
mod functions;
mod library;
mod process;

pub use connection::{ClientError, Connection, Given, Reading, Writing};
pub use library::{KeepDirectory, Library};
pub use process::Process;
