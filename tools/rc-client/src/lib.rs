//! Replica catalogs: the locations of files.
//!
//! Register jobs add the outputs of a workflow to a catalog, and users look them up. [`catalog::open`] opens
//! the catalog of the properties, [`entry`] parses the lines of register jobs, [`meta`] the metadata of
//! finished jobs. [`program`] is `pegasus-rc-client` without its process, [`inproc`] runs it inside another
//! process.

pub mod catalog;
mod cli;
pub mod entry;
pub mod inproc;
pub mod meta;
pub mod program;
pub use monitord_compat::properties;

pub use cli::{command, main};
