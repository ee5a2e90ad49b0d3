//! What the tests of several crates share. Test code only: no program depends on it.

pub mod generated_run;
pub mod golden;
pub mod launcher;
pub mod programs;
mod random;
pub mod txtar;

pub use random::Random;
