//! The DAG file of pegasus-mpi-cluster, its word splitting, and the rescue file beside it.
//!
//! A DAG file is lines of text:
//!
//! ```text
//! #@ 1 preprocess:4.0 ID0000001
//! TASK preprocess_ID0000001 -m 2048 -c 1 /usr/bin/pegasus-kickstart -n preprocess:4.0 /bin/preprocess -i f.a
//! EDGE preprocess_ID0000001 findrange_ID0000002
//! SUBDAG EXTERNAL sub_ID0000003 sub/sub-0.dag DIR sub
//! SCRIPT PRE sub_ID0000003 -m 1024 /usr/bin/pmc-plan --dir sub sub.yml
//! ```
//!
//! The last two lines are a task that is a DAG of its own, and the command that makes the file of this DAG.
//! The original has no such tasks.
//!
//! [`Dag`] reads it into arrays of integers over one buffer, so that a workflow of a million tasks needs
//! little more memory than its file. [`record`] reads a line at a time. [`words`] splits a command into
//! arguments, [`mod@write`] writes the lines, [`trailer`] shows whether a file is complete, [`growth`] lets a
//! DAG have more tasks while it runs, [`rescue`] keeps the list of done tasks, and [`cycle`] finds tasks that
//! can never run.

mod checkpoint;
pub mod cycle;
mod dag;
mod error;
mod gang;
pub mod growth;
pub mod list;
mod names;
pub mod number;
mod one_host;
mod options;
pub mod pattern;
mod reader;
pub mod record;
pub mod rescue;
mod retry_delay;
mod text;
pub mod trailer;
pub mod words;
pub mod write;

pub use checkpoint::{Checkpoint, CheckpointSignal, checkpoint_exit};
pub use dag::{Dag, Subdag, Task};
pub use error::{DagError, DagErrorKind, reason};
pub use gang::{Gang, GangError, GangId, GangOptions, Layout, MAX_NODES, MAX_RANKS};
pub use number::factor;
pub use options::{AbortOn, CategoryId, Forward, OptionSet, Request, Stdin};
pub use retry_delay::RetryDelay;

/// Identifier and transformation of tasks that an earlier plan of the submit directory had and the present
/// one has not. They are done, and stay in the DAG because the logs name them.
pub const EARLIER_PLAN: &str = "pegasus::earlier-plan";

/// Number of a task, in the order of the TASK lines of the DAG file, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u32);

impl TaskId {
    /// Returns the number as an index into arrays over all tasks.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
