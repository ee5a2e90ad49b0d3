//! The commands, one module each.

pub mod analyzer;
mod execute;
pub mod report;
pub mod resume;
pub mod run;
pub mod statistics;
pub mod status;
