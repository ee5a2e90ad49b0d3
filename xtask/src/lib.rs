//! Chores of the repository: generated files, and checks of the shape of the code.
//!
//! `cargo xtask generate` writes manual pages and completions below `share/`, `cargo xtask golden` turns
//! recorded golden cases into archives and back. The tests of this package fail when generated files are
//! stale, when folders import each other in a circle, when a file grows too long, or when a dependency is
//! unused.

pub mod chains;
pub mod crash;
pub mod golden;
pub mod manual;
pub mod modules;
pub mod node_faults;
pub mod programs;
pub mod simulation;
pub mod workspace;
