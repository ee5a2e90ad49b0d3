//! Tests of the programs `pegasus-transfer` and `pegasus-integrity`.

mod checksums;
mod common;
#[cfg(feature = "remote")]
mod external;
mod failures;
#[cfg(feature = "remote")]
mod http;
mod integrity_program;
mod kill;
mod local;
#[cfg(feature = "remote")]
mod odd_servers;
#[cfg(feature = "remote")]
mod server;
#[cfg(feature = "remote")]
mod stores;
