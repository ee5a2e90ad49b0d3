//! Commands other than the views of a run.
#![expect(clippy::panic, reason = "tests")]

mod comfort;
mod dagman;
mod pegasus;
#[path = "../support/mod.rs"]
mod support;
