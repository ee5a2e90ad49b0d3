//! What the tests of several crates share. Test code only: no program depends on it.

#![expect(clippy::panic, reason = "a test reports a problem by a panic")]

pub mod chains;
pub mod crash;
pub mod fuzz;
pub mod generated_run;
pub mod golden;
pub mod launcher;
pub mod node_faults;
pub mod processes;
pub mod programs;
mod random;
pub mod redirected;
pub mod txtar;

pub use random::Random;
