//! Reads the directory of a run into facts: what is done, what runs and where, what failed and why, how
//! hosts were used.
//!
//! One module a source of facts: [`dir`] finds the files, [`plan`] reads the DAG, [`events`] the log of
//! the executor, [`resources`] its log of free resources. [`history`] puts them together, reading on
//! from where it was while a run goes on. The views follow: [`progress`] for `pmc status`,
//! [`causes`] for `pmc analyzer`, [`timeline`] for `pmc report`. [`statistics`] come from the STAMPEDE database instead. Nothing here prints, and
//! nothing needs a complete directory: a file that is missing costs what it would tell.

pub mod causes;
pub mod dir;
pub mod ending;
pub mod events;
pub mod failure;
pub mod history;
pub mod kinds;
pub mod lines;
pub mod plan;
pub mod progress;
pub mod resources;
pub mod statistics;
pub mod timeline;
