//! Messages and signals of a worker process, also while a task runs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pmc_system::clock;

use super::GRACE;
use super::running::RunningAttempt;
use super::watch::Watch;
use crate::bell::Bell;
use crate::interrupt::Interrupt;
use crate::protocol::{AttemptAnswer, AttemptRequest, ToMaster, ToWorker};
use crate::requests::OpenRequests;
use crate::transport::local::StopTask as _;
use crate::transport::{TransportError, WorkerTransport};

/// Interval between polls for messages while a task runs. Only an abort is urgent.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Time that a worker waits for the master after a signal. Usually the whole run gets the signal, and the
/// master ends it in good order.
const MASTER_TIMEOUT: Duration = Duration::from_secs(3);

/// Polls for messages of the master and for signals. A worker process has only one thread: handing each task
/// and its result to another thread would take longer than a small task.
pub(super) struct MessageWatch<'a, T> {
    transport: &'a mut T,
    current: &'a RunningAttempt,
    interrupt: &'a Interrupt,
    /// Messages that came while a task ran.
    early: VecDeque<ToWorker>,
    /// When the running task was asked to end.
    ending_since: Option<Instant>,
    /// When a signal was noticed.
    signalled_since: Option<Instant>,
    signal_reported: bool,
    /// The master knows that this worker was asked to end.
    drain_reported: bool,
    /// What tools ask of the task that runs, or has run.
    requests: OpenRequests,
    error: Option<TransportError>,
}

impl<'a, T: WorkerTransport> MessageWatch<'a, T> {
    pub(super) fn new(transport: &'a mut T, current: &'a RunningAttempt, interrupt: &'a Interrupt) -> Self {
        Self {
            transport,
            current,
            interrupt,
            early: VecDeque::new(),
            ending_since: None,
            signalled_since: None,
            signal_reported: false,
            drain_reported: false,
            requests: OpenRequests::default(),
            error: None,
        }
    }

    pub(super) fn send(&mut self, message: ToMaster) -> Result<(), TransportError> {
        // Before the result: with the last one, the run ends.
        self.answer_requests()?;
        if self.receive_early()? {
            // Before the result: with a result, the master regards the next task as started.
            self.give_back()?;
        }
        match self.early.front() {
            Some(ToWorker::Run(_)) => self.transport.send_deferred(message),
            _ => self.transport.send(message),
        }
    }

    /// Returns the next message. Waits at most `timeout`, or until a signal arrives.
    pub(super) fn receive(&mut self, timeout: Duration) -> Result<Option<ToWorker>, TransportError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if let Some(message) = self.early.pop_front() {
            return Ok(Some(message));
        }
        self.check_signal()?;
        if self.signalled_since.is_some() {
            // The transport does not wait any more.
            std::thread::sleep(Duration::from_millis(1));
        }
        self.answer_requests()?;
        let timeout = if self.requests.are_open() {
            timeout.min(POLL_INTERVAL)
        } else {
            timeout
        };
        match self.transport.receive(timeout)? {
            Some(ToWorker::Request(request)) => {
                self.take(*request)?;
                self.answer_requests()?;
                Ok(None)
            }
            message => Ok(message),
        }
    }

    /// Takes a request to the task that runs.
    fn take(&mut self, request: AttemptRequest) -> Result<(), TransportError> {
        let answer = self.requests.take(request, self.current);
        answer.map_or(Ok(()), |answer| self.answer(answer))
    }

    /// Sends the answers that are due.
    fn answer_requests(&mut self) -> Result<(), TransportError> {
        let answers = self.requests.answers(self.current, self.transport.bell());
        answers.into_iter().try_for_each(|answer| self.answer(answer))
    }

    fn answer(&mut self, answer: AttemptAnswer) -> Result<(), TransportError> {
        self.transport.send(ToMaster::Answer(Box::new(answer)))
    }

    /// Asks the running task to end, and lets no other one start.
    fn abort(&mut self) {
        if self.ending_since.is_none() {
            self.current.terminate();
            self.ending_since = Some(clock::now());
        }
    }

    fn check_signal(&mut self) -> Result<(), TransportError> {
        if self.interrupt.drain_signal().is_some() && !self.drain_reported {
            self.drain_reported = true;
            self.transport.send(ToMaster::Terminating)?;
        }
        let Some(signal) = self.interrupt.signal() else {
            return Ok(());
        };
        self.abort();
        let since = *self.signalled_since.get_or_insert_with(clock::now);
        if clock::elapsed(since) >= MASTER_TIMEOUT && !self.signal_reported {
            self.signal_reported = true;
            let message = format!("Stopped by signal {signal}");
            self.transport.send(ToMaster::Failed { message })?;
        }
        Ok(())
    }

    /// Receives all messages that have arrived. Returns true if the master retracts tasks.
    fn receive_early(&mut self) -> Result<bool, TransportError> {
        let mut retract = false;
        while let Some(message) = self.transport.receive(Duration::ZERO)? {
            match message {
                ToWorker::Retract => retract = true,
                ToWorker::Request(request) => self.take(*request)?,
                ToWorker::Abort => {
                    self.abort();
                    self.early.push_back(ToWorker::Abort);
                }
                other => self.early.push_back(other),
            }
        }
        Ok(retract)
    }

    fn poll_all(&mut self) -> Result<(), TransportError> {
        self.receive_early()?;
        // Other workers may be idle while the task here runs.
        self.give_back()?;
        self.answer_requests()?;
        self.check_signal()
    }

    /// Gives back the prefilled tasks.
    fn give_back(&mut self) -> Result<(), TransportError> {
        let mut submits = Vec::new();
        self.early.retain(|message| match message {
            ToWorker::Run(task) => {
                submits.push(task.submit);
                false
            }
            _ => true,
        });
        if submits.is_empty() {
            return Ok(());
        }
        self.transport.send(ToMaster::Retracted { submits })
    }
}

impl<T: WorkerTransport> Watch for MessageWatch<'_, T> {
    fn interval(&self) -> Option<Duration> {
        Some(self.requests.interval().unwrap_or(POLL_INTERVAL))
    }

    fn poll(&mut self) {
        if let Err(error) = self.poll_all() {
            self.error = Some(error);
            self.abort();
        }
        if self
            .ending_since
            .is_some_and(|since| clock::elapsed(since) >= GRACE)
        {
            self.current.kill();
        }
    }

    fn bell(&self) -> Option<&Bell> {
        self.transport.bell()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Assignment, Rank, SubmitId};

    #[derive(Default)]
    struct Fake {
        inbound: VecDeque<ToWorker>,
        sent: Vec<ToMaster>,
    }

    impl WorkerTransport for Fake {
        fn rank(&self) -> Rank {
            Rank(1)
        }

        fn send(&mut self, message: ToMaster) -> Result<(), TransportError> {
            self.sent.push(message);
            Ok(())
        }

        fn receive(&mut self, _: Duration) -> Result<Option<ToWorker>, TransportError> {
            Ok(self.inbound.pop_front())
        }
    }

    fn run(submit: u64) -> ToWorker {
        ToWorker::Run(Box::new(Assignment::empty(SubmitId(submit))))
    }

    #[test]
    fn retracted_tasks_are_given_back_before_the_result() {
        let (current, interrupt) = (RunningAttempt::new(), Interrupt::new());
        let mut fake = Fake::default();
        fake.inbound
            .extend([run(2), run(3), ToWorker::Retract, ToWorker::Shutdown]);
        let mut messages = MessageWatch::new(&mut fake, &current, &interrupt);
        // Any message, in place of a result.
        messages.send(ToMaster::Ready).unwrap();
        assert_eq!(
            messages.receive(Duration::ZERO).unwrap(),
            Some(ToWorker::Shutdown)
        );
        let submits = vec![SubmitId(2), SubmitId(3)];
        assert_eq!(fake.sent, [ToMaster::Retracted { submits }, ToMaster::Ready]);
    }

    /// The task keeps running: only the master knows how much time is left.
    #[test]
    fn the_first_sigterm_is_passed_on_to_the_master() {
        let (current, interrupt) = (RunningAttempt::new(), Interrupt::new());
        let mut fake = Fake::default();
        let mut messages = MessageWatch::new(&mut fake, &current, &interrupt);
        interrupt.drain(15);
        messages.poll();
        messages.poll();
        assert_eq!(messages.receive(Duration::ZERO).unwrap(), None);
        assert!(!current.is_aborted());
        interrupt.drain(15);
        messages.poll();
        assert!(current.is_aborted());
        assert_eq!(fake.sent, [ToMaster::Terminating]);
    }

    #[test]
    fn prefilled_tasks_are_given_back_while_a_task_runs() {
        let (current, interrupt) = (RunningAttempt::new(), Interrupt::new());
        let mut fake = Fake::default();
        fake.inbound.extend([run(2), ToWorker::Abort]);
        let mut messages = MessageWatch::new(&mut fake, &current, &interrupt);
        messages.poll();
        assert!(current.is_aborted());
        assert_eq!(messages.receive(Duration::ZERO).unwrap(), Some(ToWorker::Abort));
        let submits = vec![SubmitId(2)];
        assert_eq!(fake.sent, [ToMaster::Retracted { submits }]);
    }
}
