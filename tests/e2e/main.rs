//! End-to-end tests: the built programs with real MPI launchers, a real Slurm and the monitoring of
//! Pegasus.
//!
//! All are ignored by default, because they need programs that `cargo test` neither installs nor builds.
//! `tests/run e2e` prepares everything and runs them. A missing program then fails the test.

#![expect(clippy::panic, reason = "a test fails by a panic")]

mod bad_input;
mod broadcast;
mod chains;
mod checkpoints;
mod checkpoints_on_nodes;
mod clusters;
mod containers;
mod crash;
mod dashboard;
mod evicted;
mod failure;
mod first_run;
mod foreign_plans;
mod gangs;
mod golden_executor;
mod hosts;
mod kill;
mod launch;
mod launches;
mod lite;
mod lite_nodes;
mod lite_peers;
mod log;
mod mpi_example;
mod nested;
mod networks;
mod node_faults;
mod packed;
mod pegasus_api;
mod plans_run;
mod planted_socket;
mod pmix;
mod postgresql;
mod records;
mod recovery;
mod report;
mod ro_crate;
mod security;
mod served;
mod sessions;
mod shared_directory;
mod snakemake;
mod stampede;
mod submit;
mod support;
mod tags;
mod third_user;
mod transfer;
mod two_users;
mod views;
