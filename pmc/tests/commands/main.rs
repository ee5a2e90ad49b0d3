//! Commands other than the views of a run.

mod comfort;
mod pegasus;
#[path = "../support/mod.rs"]
mod support;
