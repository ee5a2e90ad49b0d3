//! Batch systems: how jobs are submitted, asked for and cancelled, which nodes they have, how long they still
//! run, how processes start on their nodes, and how a host of a running job is reached from a login node.
//!
//! Only [`submit`] and [`ask`] run programs. Everything else is words out of values, and values out of text.

pub mod ask;
pub mod condor;
pub mod job;
pub mod launch;
pub mod node_states;
pub mod nodes;
pub mod reach;
pub mod scheduler;
pub mod status;
pub mod submit;

pub use job::BatchJob;
pub use scheduler::{Scheduler, Script};
