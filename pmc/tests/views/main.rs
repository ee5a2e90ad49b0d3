//! What people look at: `pmc status` and its like, with the real programs.
#![expect(clippy::panic, reason = "tests")]

mod analyzer;
#[path = "../../benches/generate/database.rs"]
mod database;
#[path = "../../benches/generate/mod.rs"]
mod generate;
mod statistics;
mod status;
#[path = "../support/mod.rs"]
mod support;
