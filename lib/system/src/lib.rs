//! What the logic of a run asks of the system: the time, threads, and waiting for each other.
//!
//! Without the feature `simulated`, each function is the one of the standard library that it names. With it,
//! threads on which a simulation runs find a simulated system: a virtual clock, coroutines in place of
//! threads, connections that lose what the simulation wants. So master, agents and their sessions run as they
//! are, all in one thread, and a seed determines everything.
//!
//! Code that a simulation runs must not wait by other means, nor while it holds a lock that others need.

pub mod channel;
pub mod clock;
pub mod disk;
pub mod planted;
pub mod process;
#[cfg(feature = "simulated")]
pub mod simulated;
pub mod sync;
pub mod thread;

/// Returns whether this thread runs a simulation.
#[must_use]
#[inline]
pub fn is_simulated() -> bool {
    #[cfg(feature = "simulated")]
    return simulated::is_running();
    #[cfg(not(feature = "simulated"))]
    false
}
