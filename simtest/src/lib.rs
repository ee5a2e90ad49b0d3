//! Whole runs on simulated hosts, disks and networks: the real master with its scheduler, driver and files,
//! real agents with their sessions and slots, and what is known of guards. All of it is in one thread, under
//! a virtual clock.
//!
//! A seed determines a run ([`Plan::of_seed`]): the workflow, the hosts, and the faults. [`run`] runs it,
//! checks what must always hold, and in the end what must be done.

mod agents;
mod checks;
mod disk;
mod faults;
mod files;
mod gangs;
mod held_files;
mod kinds;
mod machine;
mod masters;
mod memberships;
mod parts;
mod plan;
mod round;
mod shrink;
mod tools;
mod users;
mod world;

use std::io;
use std::path::{Path, PathBuf};

pub use kinds::{Part, PartKind};
pub use plan::{Fault, FaultKind, GangPlan, HostPlan, Plan, Task, Way};
pub use round::{run, run_with};
pub use shrink::shrink;
pub use world::Report;

/// Reads a plan that was saved.
///
/// # Errors
/// The file cannot be read, or is no plan.
pub fn read(path: &Path) -> io::Result<Plan> {
    Ok(serde_json::from_slice(&std::fs::read(path)?)?)
}

/// Saves a plan.
///
/// # Errors
/// The file cannot be written.
pub fn save(plan: &Plan, path: &Path) -> io::Result<()> {
    std::fs::write(path, serde_json::to_string_pretty(plan)? + "\n")
}

/// The folder of plans that have found something once. Tests run them all.
#[must_use]
pub fn saved() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("saved")
}
