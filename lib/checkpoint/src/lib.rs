//! The checkpoint store: files in which tasks save their state, so that their next attempts go on there.
//!
//! A task saves one file for each *prefix*, and each rank of an MPI program one of its own. The files that
//! belong together are a *series*; series have numbers, counted up over all attempts of the task. A file
//! counts when its *sidecar* is there, which is renamed into place last.
//!
//! The store of a DAG file is the directory `NAME.dag.checkpoints` beside it:
//!
//! ```text
//! id                            what tells this store from others: 32 hexadecimal digits
//! notice                        what the run says to its tasks: see [`Notice`]
//! TASK/message                  the last message of the task
//! TASK/SERIES/PREFIX.RANK       the bytes as the task has written them
//! TASK/SERIES/PREFIX.RANK.json  the sidecar: see [`Sidecar`]
//! TASK/SERIES/PREFIX.RANK.part  a file that is open, or was so when its attempt was killed
//! TASK/SERIES/withheld          why the series is not given: a line of text
//! TASK/SERIES.new               files of a series that come in from nodes: they do not count
//! ```
//!
//! TASK is the name of the task as [`task_directory`] encodes it. `NAME.dag.checkpoints.jsonl` has a line for
//! each file that a task has closed: see [`FileRecord`].
//!
//! A node has the same in `PATH/pmc-checkpoints-UID/ID`: series of its own tasks, and copies of files of
//! other nodes ([`nodes`]).
//!
//! [`Series`], [`Interval`] and [`nodes`] are pure; only [`Store`], [`TaskStore`] and [`Settings`] open
//! files.

mod checksum;
mod due;
mod error;
mod name;
pub mod nodes;
mod notice;
mod own;
mod plan;
mod record;
mod saved_file;
mod seconds;
mod series;
mod settings;
mod sidecar;
mod store;
mod task_store;
mod usage;

pub use checksum::{BLOCK, BlockSums, verify};
pub use due::{Interval, NODE_HOURS, best_interval, is_due};
pub use error::StoreError;
pub use name::{InvalidName, MAX_PREFIX, Prefix, WATCHED, task_directory, task_name};
pub use notice::Notice;
pub use plan::{InvalidPlan, Plan};
pub use record::{FileRecord, Use};
pub use series::{AllSeries, Series};
pub use settings::{ComplexPath, Hosts, InvalidSetting, Settings, SettingsError};
pub use sidecar::{InvalidSidecar, Sidecar};
pub use store::Store;
pub use task_store::{Contents, TaskStore, Verified};
pub use usage::{TaskUsage, Usage};
