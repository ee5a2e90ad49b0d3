//! Runs one program, with up to four side jobs, and describes the run in an invocation record.
//!
//! The program `pegasus-kickstart` is a thin rim around this library. [`serve`] runs task after task for an executor
//! in one process. Nothing here changes the state of the process: no working directory, environment
//! variable, file mode mask or signal handler is set. What the program inherits is in a [`context::Context`],
//! and what it was asked for is in [`options::Options`].
//!
//! ```text
//! options ─┐
//! context ─┼→ invoke::run → Report { record, exit_code } → Report::write_to
//! host ────┘     ├ words, lists, lookup      what to run and which files to look at
//!                ├ stdio, temporary          the streams of the jobs
//!                ├ spawn, wait, interrupts   one child process at a time
//!                ├ inside                    pegasus-transfer and pegasus-rc-client without a process, for a server
//!                └ stat, checksum, payload, machine, limits, usage
//! ```

pub mod checksum;
pub mod context;
pub mod environment;
pub mod inside;
pub mod interrupts;
pub mod invoke;
pub mod limits;
pub mod lists;
pub mod lookup;
pub mod machine;
pub mod network;
pub mod options;
pub mod payload;
pub mod program;
pub mod serve;
pub mod spares;
pub mod spawn;
pub mod stat;
pub mod stdio;
pub mod temporary;
pub mod usage;
pub mod wait;
pub mod words;
