//! Whole runs on simulated hosts, disks and networks: the real master with its scheduler, driver and files, real
//! agents with their sessions and slots, and what is known of guards, in one thread under a virtual clock.
//!
//! A seed determines a run ([`Plan::of_seed`]): the workflow, the hosts, and the faults. [`run`] runs it, checks
//! what must always hold, and in the end what must be done.

mod checks;
mod disk;
mod plan;
mod shrink;
mod world;

pub use plan::{Fault, FaultKind, HostPlan, Plan, Task, Way};
pub use shrink::shrink;
pub use world::{Report, run, run_with};

/// Seeds that have found something once.
pub fn saved_seeds() -> impl Iterator<Item = u64> {
    let lines = include_str!("../seeds.txt").lines();
    lines.filter_map(|line| line.split_once(' ')?.0.parse().ok())
}
