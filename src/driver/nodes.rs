//! Workers that come and go.

use std::time::Instant;

use super::{Driver, RunError};
use crate::protocol::{NodeChange, Rank};
use crate::scheduler::{Event, MasterError};
use crate::transport::MasterTransport;

/// What the loop knows about workers that come and go.
#[derive(Debug, Default)]
pub(super) struct Nodes {
    /// When to look for awaited workers next.
    pub(super) next_check: Option<Instant>,
    /// Since when nothing that is left fits on a host that is there.
    stranded_since: Option<Instant>,
}

impl<T: MasterTransport> Driver<'_, T> {
    /// Tells the scheduler what has become of a worker's agent.
    pub(super) fn note_change(&mut self, from: Rank, change: &NodeChange) -> Result<(), RunError> {
        let event = match change {
            NodeChange::Silent => Event::Silent(from),
            NodeChange::Back => Event::Back(from),
            NodeChange::Leaving => Event::Retire(from),
            NodeChange::Lost => Event::Lost(from),
        };
        match self.master.handle(event, &mut self.out) {
            // Its agent was there, but the worker has not registered.
            Err(MasterError::UnknownRank(_)) => Ok(()),
            handled => Ok(handled?),
        }
    }

    /// Looks whether awaited workers have come.
    pub(super) fn check_nodes(&mut self) -> Result<(), RunError> {
        self.nodes.next_check = self.out.transport.check()?;
        Ok(())
    }

    /// Ends the run if nothing that is left can run on the workers that are there, and no others come.
    pub(super) fn check_stranded(&mut self) -> Result<(), RunError> {
        let Some(task) = self.master.stranded() else {
            self.nodes.stranded_since = None;
            return Ok(());
        };
        let name = || String::from_utf8_lossy(self.out.dag.name(task)).into_owned();
        let now = Instant::now();
        let patience = self.out.transport.patience();
        if self.nodes.stranded_since.is_none() && !patience.is_zero() {
            tracing::warn!(
                "Task {} fits on no host that is there: waiting {} s for others",
                name(),
                patience.as_secs()
            );
        }
        let since = *self.nodes.stranded_since.get_or_insert(now);
        if now.saturating_duration_since(since) < patience {
            let next = since.checked_add(patience);
            self.nodes.next_check = self.nodes.next_check.into_iter().chain(next).min();
            return Ok(());
        }
        Err(MasterError::NoCapableHost { task: name() }.into())
    }

    /// Fails if a task fits on no host, once all workers have come.
    pub(super) fn check_fit(&self) -> Result<(), RunError> {
        if !self.out.transport.is_dynamic() || !self.out.transport.patience().is_zero() {
            return Ok(());
        }
        match self.master.task_without_host() {
            None => Ok(()),
            Some(task) => {
                let task = String::from_utf8_lossy(self.out.dag.name(task)).into_owned();
                Err(MasterError::NoCapableHost { task }.into())
            }
        }
    }
}
