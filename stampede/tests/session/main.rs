//! The program `pmc-monitord` on small runs.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that fails may panic")]

mod follow;
mod mutated;
mod nested;
#[cfg(feature = "postgresql")]
mod postgresql;
mod replay;
#[cfg(feature = "postgresql")]
mod server;
mod support;
#[cfg(feature = "postgresql")]
mod tls;
