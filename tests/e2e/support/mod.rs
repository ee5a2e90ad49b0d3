//! What the end-to-end tests share.

pub mod command;
pub mod golden;
pub mod pegasus;
pub mod programs;
pub mod slurm;
pub mod workflow;
