//! Commands other than the views of a run.
#![expect(clippy::panic, reason = "tests")]

mod comfort;
mod commands;
mod dagman;
#[cfg(feature = "mcp")]
mod mcp;
mod pegasus;
mod schemas;
mod serve;
mod simulate;
#[path = "../support/mod.rs"]
mod support;
mod wfformat;
