//! The process that runs a task: one started for it, or a task server.

use std::io;

use pmc_spawn::Child;

use super::ended::{Ended, reap_with_peak};
use super::memory::own_peak_kib;
use super::running::Leader;
use super::task_server::TaskServer;

/// The process that runs a task.
pub(super) enum Process {
    /// Started for this task.
    Own(Child),
    /// A task server.
    Served(TaskServer),
}

impl Process {
    pub(super) fn leader(&self) -> &dyn Leader {
        match self {
            Self::Own(child) => child,
            Self::Served(server) => server,
        }
    }

    /// Why the program could not be executed.
    pub(super) fn failure(&self) -> Option<&io::Error> {
        match self {
            Self::Own(child) => child.failure.as_ref(),
            Self::Served(_) => None,
        }
    }

    /// Returns how the task ended, after its end.
    pub(super) fn conclude(&mut self) -> io::Result<Ended> {
        match self {
            Self::Own(child) => {
                let (status, peak_kib) = reap_with_peak(child.pid)?;
                Ok(Ended {
                    status,
                    // Until it executes its program, a child counts the memory of this process as its own.
                    peak_kib: if peak_kib > own_peak_kib() { peak_kib } else { 0 },
                    is_reusable: false,
                    server_died: false,
                })
            }
            Self::Served(server) => server.conclude(),
        }
    }
}
