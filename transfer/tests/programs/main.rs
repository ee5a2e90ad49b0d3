//! The program `pegasus-transfer` on real files.

mod common;
mod failures;
mod integrity;
mod kill;
mod local;
