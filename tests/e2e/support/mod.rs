//! Code shared by the end-to-end tests.

pub mod browser;
pub mod command;
pub mod harness;
pub mod nginx;
pub mod pegasus;
pub mod programs;
pub mod server;
pub mod slurm;
pub mod sshd;
pub mod users;
pub mod workflow;
