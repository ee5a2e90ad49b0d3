//! `pmc status`, `analyzer`, `statistics` and `report` with real programs.
#![expect(clippy::panic, reason = "tests")]

mod analyzer;
mod attach;
mod data;
mod ended;
mod hostile;
mod log;
mod packed;
mod real_cause;
mod reasons;
mod redirect;
mod report;
mod secrets;
mod statistics;
mod status;
mod submit;
#[path = "../support/mod.rs"]
mod support;
mod two_users;
