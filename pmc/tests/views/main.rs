//! What people look at: `pmc status`, with the real programs.
#![expect(clippy::panic, reason = "tests")]

mod status;
#[path = "../support/mod.rs"]
mod support;
