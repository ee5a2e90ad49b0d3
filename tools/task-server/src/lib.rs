//! The task server: one process that runs the tasks of a worker one after the other, so that no task pays for
//! starting a kickstart.
//!
//! Each task runs as if it had its own kickstart. The server leads a process group that includes the jobs. A
//! signal to the group reaches both, and the server forwards it. The jobs are its children. When the executor
//! has gone, the group is killed. Jobs that are `pegasus-transfer` or `pegasus-rc-client` run in a thread of
//! the server. It also stands in for `pegasus-lite`, and starts it if a job needs its own process.
//!
//! The server is a process of its own, not a part of the executor, for two reasons. The peak memory of a
//! child counts from that of its parent until it executes its program, so records of small jobs would show
//! the size of the executor. And what kills kickstart, or its group, must not kill the executor.
//!
//! ```text
//! server → lifeline → children
//!        → process
//!        → builtins → helper → task
//! ```

pub mod builtins;
mod children;
mod helper;
mod lifeline;
mod process;
mod program;
pub mod server;
mod task;

pub use program::main;
pub use server::run;
