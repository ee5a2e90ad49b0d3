//! What a worker looks after while it waits for a task's process.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::GRACE;
use super::kill::KillSwitch;
use crate::interrupt::Interrupt;
use crate::protocol::{ToMaster, ToWorker};
use crate::transport::local::StopTask as _;
use crate::transport::{TransportError, WorkerTransport};

/// How often a worker looks for messages while its task runs; nothing but an abort is urgent.
const LOOK: Duration = Duration::from_millis(10);

/// How long a worker that was told by a signal to end waits for the master's word: mostly the
/// whole run is told so, and the master then ends it in good order.
const SIGNAL_PATIENCE: Duration = Duration::from_secs(3);

/// Something to be looked after in between.
pub(super) trait Watch {
    /// How often to look; never, if somebody else does.
    fn interval(&self) -> Option<Duration>;
    /// Looks.
    fn poll(&mut self);
}

/// Somebody else looks after everything.
pub(super) struct Nothing;

impl Watch for Nothing {
    fn interval(&self) -> Option<Duration> {
        None
    }

    fn poll(&mut self) {}
}

/// Messages of the master, and signals. A worker that is a process of its own has but one thread,
/// since handing each task and its result to another one would take longer than a small task.
pub(super) struct Messages<'a, T> {
    transport: &'a mut T,
    kill: &'a KillSwitch,
    interrupt: &'a Interrupt,
    /// Came while a task ran.
    early: VecDeque<ToWorker>,
    /// When the running task was asked to end.
    ending: Option<Instant>,
    /// When a signal was seen.
    signalled: Option<Instant>,
    told: bool,
    error: Option<TransportError>,
}

impl<'a, T: WorkerTransport> Messages<'a, T> {
    pub(super) fn new(transport: &'a mut T, kill: &'a KillSwitch, interrupt: &'a Interrupt) -> Self {
        Self {
            transport,
            kill,
            interrupt,
            early: VecDeque::new(),
            ending: None,
            signalled: None,
            told: false,
            error: None,
        }
    }

    pub(super) fn send(&mut self, message: ToMaster) -> Result<(), TransportError> {
        if self.pull()? {
            // Before the result: with that, the master takes the next task for begun.
            self.give_back()?;
        }
        match self.early.front() {
            Some(ToWorker::Run(_)) => self.transport.send_deferred(message),
            _ => self.transport.send(message),
        }
    }

    /// The next message. Waits at most `timeout`, or until there is a signal.
    pub(super) fn receive(&mut self, timeout: Duration) -> Result<Option<ToWorker>, TransportError> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if let Some(message) = self.early.pop_front() {
            return Ok(Some(message));
        }
        self.signals()?;
        if self.signalled.is_some() {
            // The transport does not wait any more.
            std::thread::sleep(Duration::from_millis(1));
        }
        self.transport.receive(timeout)
    }

    /// Asks the running task to end, and lets no other one start.
    pub(super) fn end(&mut self) {
        if self.ending.is_none() {
            self.kill.terminate();
            self.ending = Some(Instant::now());
        }
    }

    fn signals(&mut self) -> Result<(), TransportError> {
        let Some(signal) = self.interrupt.signal() else {
            return Ok(());
        };
        self.end();
        let since = *self.signalled.get_or_insert_with(Instant::now);
        if since.elapsed() >= SIGNAL_PATIENCE && !self.told {
            self.told = true;
            let message = format!("Stopped by signal {signal}");
            self.transport.send(ToMaster::Failed { message })?;
        }
        Ok(())
    }

    /// Takes the messages that are there. True if tasks are to be given back.
    fn pull(&mut self) -> Result<bool, TransportError> {
        let mut retract = false;
        while let Some(message) = self.transport.receive(Duration::ZERO)? {
            match message {
                ToWorker::Retract => retract = true,
                ToWorker::Abort => {
                    self.end();
                    self.early.push_back(ToWorker::Abort);
                }
                other => self.early.push_back(other),
            }
        }
        Ok(retract)
    }

    fn messages(&mut self) -> Result<(), TransportError> {
        self.pull()?;
        // Others may have nothing to do while the task here takes its time.
        self.give_back()?;
        self.signals()
    }

    /// Gives back the tasks that were sent in advance.
    pub(super) fn give_back(&mut self) -> Result<(), TransportError> {
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

impl<T: WorkerTransport> Watch for Messages<'_, T> {
    fn interval(&self) -> Option<Duration> {
        Some(LOOK)
    }

    fn poll(&mut self) {
        if let Err(error) = self.messages() {
            self.error = Some(error);
            self.end();
        }
        if self.ending.is_some_and(|since| since.elapsed() >= GRACE) {
            self.kill.kill();
        }
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
        ToWorker::Run(Box::new(Assignment {
            submit: SubmitId(submit),
            name: Vec::new(),
            id: None,
            command: Vec::new(),
            memory_mb: 0,
            cpus: 1,
            cpu_set: Vec::new(),
            gpu_set: Vec::new(),
            runtime_limit: None,
            pipe_forwards: Vec::new(),
            file_forwards: Vec::new(),
        }))
    }

    #[test]
    fn a_recall_comes_before_what_was_not_begun() {
        let (kill, interrupt) = (KillSwitch::new(), Interrupt::new());
        let mut fake = Fake::default();
        fake.inbound
            .extend([run(2), run(3), ToWorker::Retract, ToWorker::Shutdown]);
        let mut messages = Messages::new(&mut fake, &kill, &interrupt);
        // Stands for the result of the task before.
        messages.send(ToMaster::Ready).unwrap();
        assert_eq!(
            messages.receive(Duration::ZERO).unwrap(),
            Some(ToWorker::Shutdown)
        );
        let submits = vec![SubmitId(2), SubmitId(3)];
        assert_eq!(fake.sent, [ToMaster::Retracted { submits }, ToMaster::Ready]);
    }

    #[test]
    fn tasks_are_given_back_while_one_takes_its_time() {
        let (kill, interrupt) = (KillSwitch::new(), Interrupt::new());
        let mut fake = Fake::default();
        fake.inbound.extend([run(2), ToWorker::Abort]);
        let mut messages = Messages::new(&mut fake, &kill, &interrupt);
        messages.poll();
        assert!(kill.is_aborted());
        assert_eq!(messages.receive(Duration::ZERO).unwrap(), Some(ToWorker::Abort));
        let submits = vec![SubmitId(2)];
        assert_eq!(fake.sent, [ToMaster::Retracted { submits }]);
    }
}
