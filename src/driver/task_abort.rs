//! Tasks whose end ends the run: the option `--abort-on`.

use super::{Aborted, Run};
use crate::protocol::{Rank, TaskResult};
use crate::transport::MasterTransport;

impl<T: MasterTransport> Run<'_, T> {
    /// Returns the exit code of the run if the end of this attempt ends the run. Call it before the scheduler
    /// handles the result.
    pub(super) fn abort_exit(&self, from: Rank, result: &TaskResult) -> Option<u8> {
        let (task, submit) = self.master.running_on(from)?;
        // DAGs that join have no such tasks.
        let (None, task) = self.out.dags.locate(task) else {
            return None;
        };
        let abort_on = self.out.dags.root.dag.abort_on(task)?;
        let ends = submit == result.submit
            && !result.outcome.is_evicted()
            && abort_on.applies_to(result.outcome.status);
        ends.then_some(abort_on.exit)
    }

    /// Notes that the run ends with this exit code. The first task decides.
    pub(super) fn abort_with(&mut self, exit: u8) {
        if self.task_abort.is_none() {
            tracing::error!(
                "This ends the run with exit code {exit}, as the option --abort-on of the task says"
            );
            self.task_abort = Some(Aborted::Task { exit });
        }
    }
}
