//! The commands, one module each.

mod execute;
pub mod resume;
pub mod run;
pub mod status;
