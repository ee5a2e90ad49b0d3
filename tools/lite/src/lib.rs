//! `pegasus-lite`: runs one job of a plan without a shared file system, in a directory of its own on the
//! node.
//!
//! It does what the job scripts of Pegasus (`PegasusLite`) do, in this order: find and make the directory,
//! fetch the inputs, verify their checksums, run the program through kickstart, deliver the outputs, remove
//! the directory. The program may run in a container, and then this program a second time, inside. Its
//! messages and its exit code are those that Pegasus' monitoring reads. Transfers and
//! kickstart run inside this process; no shell and no other program is needed. The process may be a task
//! server ([`inproc`]), so a job changes no state of it.
//!
//! ```text
//! inproc → program → job → inputs → cache → peers → data, task → job_context → messages → description
//!                        → container ↗    → directory
//!                        → inputs → kept ↗
//! ```

mod cache;
mod container;
mod data;
mod directory;
pub mod inproc;
mod inputs;
mod job;
mod job_context;
mod kept;
mod messages;
mod peers;
mod program;
mod task;

pub use job::Outcome;
pub use program::{command, main};
