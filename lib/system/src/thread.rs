//! Threads.

use std::io;
use std::time::Duration;

/// [`std::thread::sleep`].
pub fn sleep(time: Duration) {
    #[cfg(feature = "simulated")]
    if crate::is_simulated() {
        return crate::simulated::sleep(time);
    }
    std::thread::sleep(time);
}

/// A thread that was started.
#[derive(Debug)]
pub struct JoinHandle(Kind);

#[derive(Debug)]
enum Kind {
    Real(std::thread::JoinHandle<()>),
    #[cfg(feature = "simulated")]
    Simulated(crate::simulated::Thread),
}

impl JoinHandle {
    /// Waits for the end of the thread. What a panic said was printed.
    pub fn join(self) {
        match self.0 {
            Kind::Real(thread) => drop(thread.join()),
            #[cfg(feature = "simulated")]
            Kind::Simulated(thread) => thread.join(),
        }
    }
}

/// Starts a thread with a name.
///
/// # Errors
/// The system starts no more threads.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle> {
    #[cfg(feature = "simulated")]
    if crate::is_simulated() {
        return Ok(JoinHandle(Kind::Simulated(crate::simulated::spawn(name, run))));
    }
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
    Ok(JoinHandle(Kind::Real(thread)))
}
