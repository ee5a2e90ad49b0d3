//! The end of a run that is told to start nothing new.

use std::time::Instant;

use signal_hook::consts::SIGTERM;

use super::{Aborted, Driver, RunError};
use crate::logging::FATAL;
use crate::scheduler::Event;
use crate::transport::MasterTransport;

/// Nothing new is started any more.
pub(super) struct Drain {
    /// The signal that asked for it.
    pub(super) signal: i32,
    /// When the running tasks are ended, too, if they have not by themselves.
    pub(super) until: Option<Instant>,
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Whether the run is to be given up before its first task: then nothing has to be waited for.
    pub(super) fn aborted_early(&self) -> Option<Aborted> {
        let drain = self.interrupt.drain_signal().map(Aborted::Signal);
        self.aborted().or(drain)
    }

    /// Begins to drain when somebody has asked for it.
    pub(super) fn drain_if_asked(&mut self) -> Result<(), RunError> {
        let Some(signal) = self.interrupt.drain_signal() else {
            return Ok(());
        };
        if self.drain.is_some() || self.interrupt.signal().is_some() {
            return Ok(());
        }
        // After SIGTERM comes SIGKILL; everything must have been written by then.
        let grace = (signal == SIGTERM).then_some(self.options.drain_grace);
        let until = grace.and_then(|grace| Instant::now().checked_add(grace));
        tracing::error!(target: FATAL, "Caught signal {signal}");
        let running = self.master.running();
        // Of SIGTERM the original says no more; programs compare.
        if grace.is_none() {
            tracing::info!("Starting no more tasks, waiting for the {running} that run");
        } else {
            tracing::debug!("Starting no more tasks, waiting for the {running} that run");
        }
        self.master.handle(Event::Drain, &mut self.out)?;
        self.drain = Some(Drain { signal, until });
        Ok(())
    }
}
