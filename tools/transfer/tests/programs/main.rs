//! The program `pegasus-transfer` on real files.

mod checks;
mod common;
#[cfg(feature = "remote")]
mod external;
mod failures;
#[cfg(feature = "remote")]
mod http;
mod integrity;
mod kill;
mod local;
#[cfg(feature = "remote")]
mod server;
#[cfg(feature = "remote")]
mod stores;
