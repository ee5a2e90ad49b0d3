//! Replica catalogs: which files exist where.
//!
//! Register jobs add the outputs of a workflow to a catalog; people look them up. [`catalog::open`] gives
//! the catalog that properties name; [`entry`] reads the lines of register jobs, [`meta`] the metadata that
//! finished jobs left. [`program`] is `pegasus-rc-client` without its process, [`inproc`] the same inside another process.

pub mod catalog;
mod cli;
pub mod entry;
pub mod inproc;
pub mod meta;
pub mod program;
pub use monitord_compat::properties;

pub use cli::{command, main};
