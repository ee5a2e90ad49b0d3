//! Runs the program and checks its records, streams and exit codes.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that fails may panic")]

mod common;
mod jobs;
mod record;
