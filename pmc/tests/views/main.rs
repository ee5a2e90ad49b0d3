//! What people look at: `pmc status` and its like, with the real programs.
#![expect(clippy::panic, reason = "tests")]

mod analyzer;
mod statistics;
mod status;
#[path = "../support/mod.rs"]
mod support;
