//! Reads the submit directory of a run: progress, failures and their causes, use of hosts, statistics.
//!
//! Sources: [`dir`] finds the files, [`plan`] reads the DAG, [`events`] the log of the executor,
//! [`resources`] its log of free resources. [`history`] combines them, and reads new lines while a run is
//! active. Views: [`progress`] for `pmc status`, [`causes`] for `pmc analyzer`, [`timeline`] for `pmc
//! report`. [`task_output`] takes the output of a task apart, for `pmc log`. [`lite_data`] sums up what
//! lite jobs have moved, [`accounting`] what batch jobs have cost. [`statistics`] come from the STAMPEDE
//! database instead.
//!
//! Nothing here prints. An incomplete directory is fine: a missing file only removes the facts it holds.

pub mod accounting;
pub mod batch_output;
pub mod causes;
pub mod dir;
pub mod ending;
pub mod events;
pub mod failure;
pub mod history;
pub mod kinds;
pub mod lite_data;
pub mod plan;
pub mod progress;
pub mod resources;
pub mod statistics;
pub mod task_output;
pub mod timeline;
