//! Tasks that tools cancel: those that wait do not run, those that run are ended and not tried again.

use pmc_control::Answer;
use pmc_dag::TaskId;
use signal_hook::consts::SIGTERM;

use super::ends::End;
use super::{Run, Serving};
use crate::protocol::{Rank, SubmitId};
use crate::scheduler::Cancelled;
use crate::transport::MasterTransport;

/// A task that is to be cancelled, and that a worker has.
#[derive(Debug)]
pub(super) struct Cancelling {
    task: TaskId,
    /// The attempt that has got the signal.
    signalled: Option<(u32, u64)>,
}

impl Serving {
    /// Cancels tasks: all of them, or none if one is not known. Returns the answer to the tool.
    pub(in crate::driver) fn cancel<T: MasterTransport>(
        &mut self,
        run: &mut Run<'_, T>,
        names: &[String],
    ) -> Answer {
        let dag = run.own_dag();
        let mut tasks = Vec::with_capacity(names.len());
        for name in names {
            match dag.find(name.as_bytes()) {
                Some(task) => tasks.push(task),
                None => return Answer::Refused(format!("the run has no task {name}")),
            }
        }
        let (mut stopped, mut ended) = (0, 0);
        let busy = self.cancelling.len();
        for task in tasks {
            match self.cancel_task(run, task) {
                Cancelled::Now => stopped += 1,
                Cancelled::Over => ended += 1,
                Cancelled::Busy if self.cancelling.iter().any(|known| known.task == task) => {}
                Cancelled::Busy => self.cancelling.push(Cancelling {
                    task,
                    signalled: None,
                }),
            }
        }
        let busy = self.cancelling.len() - busy;
        self.go_on_cancelling(run);
        self.tell(run);
        Answer::Done(format!(
            "{stopped} will not run, {busy} that run are asked to end, {ended} had ended"
        ))
    }

    /// Goes on with tasks that a worker had. It has given them back, or they run, perhaps once more.
    pub(super) fn go_on_cancelling<T: MasterTransport>(&mut self, run: &mut Run<'_, T>) {
        for mut known in std::mem::take(&mut self.cancelling) {
            if self.cancel_task(run, known.task) != Cancelled::Busy {
                continue;
            }
            let attempt = run.attempt_of(known.task);
            if let Some((rank, submit)) = attempt.filter(|_| attempt != known.signalled) {
                run.signal(Rank(rank), SubmitId(submit), SIGTERM);
                known.signalled = attempt;
            }
            self.cancelling.push(known);
        }
    }

    fn cancel_task<T: MasterTransport>(&mut self, run: &mut Run<'_, T>, task: TaskId) -> Cancelled {
        let cancelled = run.master.cancel(task);
        // What comes after a task that has failed was told of then.
        if cancelled == Cancelled::Now && self.unreachable.insert(task) {
            self.end(End::cancelled(task));
            self.note_children(run, task);
        }
        cancelled
    }
}
