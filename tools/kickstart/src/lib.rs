//! Runs one program, with up to four side jobs, and describes the run in an invocation record.
//!
//! The program `pegasus-kickstart` and the task server are built on this library. The library changes no
//! state of its process: no working directory, environment variable, file mode mask or signal handler. What
//! an invocation inherits is in a [`context::Context`], and what it was asked for in [`options::Options`].
//!
//! Modules import in one direction, to the right:
//!
//! ```text
//! cli → invoke → stdio → context → builtins, cache → lookup, stat, temporary → names, environment
//!              → spawn, checksum, limits, machine, payload → environment, words, network
//!              → stdio, lists → pipes → wait → interrupts, usage
//!     → options
//! ```

pub mod builtins;
pub mod cache;
pub mod checksum;
pub mod cli;
pub mod context;
pub mod environment;
pub mod exit;
pub mod interrupts;
pub mod invoke;
pub mod limits;
pub mod lists;
pub mod lookup;
pub mod machine;
pub mod names;
pub mod network;
pub mod options;
pub mod payload;
pub mod pipes;
mod program;
pub mod spawn;
pub mod stat;
pub mod stdio;
pub mod temporary;
pub mod usage;
pub mod wait;
pub mod words;

pub use program::main;
