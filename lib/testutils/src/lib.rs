//! What the tests of several crates share. Test code only: no program depends on it.

pub mod generated_run;
pub mod launcher;
pub mod programs;
mod random;

pub use random::Random;
