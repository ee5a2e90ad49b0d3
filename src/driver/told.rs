//! Tells the writer of the database what need not be read from files.

use std::time::Duration;

use pmc_dag::{Dag, TaskId};

use crate::protocol::{Rank, Silent, SubmitId, TaskResult};

/// Takes the results of silent tries to who waits for them, if anybody does.
#[derive(Default)]
pub(super) struct Teller {
    #[cfg(feature = "stampede")]
    listener: Option<crate::database::Listener>,
    /// The execution whose end the master is told now.
    now: Option<(SubmitId, Duration, i32, Silent)>,
}

impl Teller {
    #[cfg(feature = "stampede")]
    pub(super) fn new(listener: Option<crate::database::Listener>) -> Self {
        Self { listener, now: None }
    }

    /// Where the worker of this number runs.
    pub(super) fn registered(&mut self, rank: Rank, host: &str) {
        #[cfg(feature = "stampede")]
        if let Some(listener) = &mut self.listener {
            listener.registered(rank, host);
        }
        #[cfg(not(feature = "stampede"))]
        let _ = (rank, host);
    }

    /// The master will be told of this end.
    pub(super) fn finished(&mut self, result: &TaskResult) {
        self.now = result
            .silent
            .map(|silent| (result.submit, result.runtime, result.status, silent));
    }

    /// The master has taken note of an end; the log does not tell of it yet.
    pub(super) fn ended(&mut self, rank: Rank, submit: SubmitId, dag: &Dag, task: TaskId) {
        let Some((_, runtime, status, silent)) = self.now.take_if(|(now, ..)| *now == submit) else {
            return;
        };
        #[cfg(feature = "stampede")]
        if let Some(listener) = &mut self.listener {
            listener.ended(rank, submit, dag.task(task), status, runtime, silent);
        }
        #[cfg(not(feature = "stampede"))]
        let _ = (rank, dag, task, runtime, status, silent);
    }
}
