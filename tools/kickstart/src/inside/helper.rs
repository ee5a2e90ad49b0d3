//! The thread that does the jobs, and how others wait for it.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use monitord_compat::invocation_record::Status;
use nix::sys::signal::Signal;
use pegasus_transfer::cancel::Cancel;

use super::{Program, Task};
use crate::interrupts::{Interrupt, Interrupts};
use crate::wait::{pause_for, signal_text};

/// How long a transfer may go on after it was asked to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// Stack of the thread, as much as a process usually has.
const STACK: usize = 8 << 20;

/// The exit code after a second request to end, and that of a program of ours that has a defect.
const STOPPED: u8 = 1;
const DEFECT: u8 = 101;

/// What does jobs: the exit code, or nothing if the program is needed.
pub(super) type Worker = Box<dyn FnMut(Task) -> Option<u8>>;

/// A thread that does one job after the other, and ends when this is dropped.
#[derive(Debug)]
pub(super) struct Helper {
    tasks: Sender<Task>,
    outcomes: Receiver<Option<u8>>,
    /// Has a byte when there is an outcome, and is at its end when the thread is gone.
    ended: OwnedFd,
    /// Whether it has a working directory of its own, instead of that of the process.
    parted: bool,
}

/// How a job ended, or that it did not.
pub(super) enum End {
    /// The exit code, or nothing if the program is needed; and the thread, if it can do another job.
    Outcome(Option<u8>, Option<Helper>),
    Abandoned(Status),
}

impl Helper {
    pub(super) fn start(worker: fn() -> Worker) -> io::Result<Self> {
        let (tasks, queue) = channel();
        let (told, outcomes) = channel();
        let (ended, bell): (PipeReader, PipeWriter) = io::pipe()?;
        let builder = thread::Builder::new().name("inside".into()).stack_size(STACK);
        builder.spawn(move || serve(&queue, &mut worker(), &told, bell))?;
        Ok(Self {
            tasks,
            outcomes,
            ended: ended.into(),
            parted: false,
        })
    }

    /// Whether it has what the task needs.
    pub(super) fn can_do(&self, task: &Task) -> bool {
        // Where the CPUs are not known, a new thread has those of the one that starts it.
        task.cpus.is_some() && (task.directory.is_some() || !self.parted)
    }

    pub(super) fn run(mut self, task: Task, interrupts: &mut dyn Interrupts) -> End {
        self.parted |= task.directory.is_some();
        let (program, cancel) = (task.program, task.cancel.clone());
        if self.tasks.send(task).is_err() {
            return End::Outcome(None, None);
        }
        match self.wait(program, &cancel, interrupts) {
            Some(status) => {
                cancel.cancel();
                End::Abandoned(status)
            }
            None => self.outcome(),
        }
    }

    /// Waits for the end of the job. The status that it is to have, if it did not end.
    fn wait(&self, program: Program, cancel: &Cancel, interrupts: &mut dyn Interrupts) -> Option<Status> {
        let mut until: Option<Instant> = None;
        loop {
            let pause = until.map(|until| until.saturating_duration_since(Instant::now()));
            match pause_for(pause, Some(&self.ended), interrupts) {
                Ok(woken) if woken.ended => return None,
                Ok(woken) if woken.abandoned => interrupts.abandoned(),
                Ok(_) => {}
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    return Some(crate::invoke::failure(-42, errno));
                }
            }
            let stopped = Status::Exited { code: STOPPED };
            while let Some(interrupt) = interrupts.take() {
                match interrupt {
                    Interrupt::Child => {}
                    Interrupt::Forward(Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP)
                        if program == Program::Transfer =>
                    {
                        if until.is_some() {
                            return Some(stopped);
                        }
                        cancel.cancel();
                        until = Some(Instant::now() + PATIENCE);
                    }
                    Interrupt::Forward(signal) => {
                        let signal = signal as i32;
                        return Some(Status::Signalled {
                            signal,
                            name: signal_text(signal),
                            core: false,
                        });
                    }
                }
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Some(stopped);
            }
        }
    }

    fn outcome(self) -> End {
        let rung = nix::unistd::read(self.ended.as_fd(), &mut [0]);
        match self.outcomes.recv() {
            Ok(code) => End::Outcome(code, (rung == Ok(1)).then_some(self)),
            // The system has told the user about the defect.
            Err(_) => End::Outcome(Some(DEFECT), None),
        }
    }
}

/// What the thread does. If a task has a defect, the thread ends, and with it the pipe.
fn serve(queue: &Receiver<Task>, work: &mut Worker, told: &Sender<Option<u8>>, mut bell: PipeWriter) {
    for task in queue {
        let outcome = work(task);
        if told.send(outcome).is_err() || bell.write_all(&[1]).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::BorrowedFd;
    use std::path::PathBuf;

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sched::sched_getaffinity;
    use nix::unistd::Pid;

    use super::*;
    use crate::interrupts::Uninterrupted;

    /// A task that the tests' [`work`] does.
    fn task(order: &str, directory: Option<PathBuf>) -> Task {
        Task {
            program: Program::Transfer,
            arguments: vec![order.into()],
            environment: Vec::new(),
            directory,
            stdin: File::open("/dev/null").unwrap(),
            stderr: File::open("/dev/null").unwrap(),
            cancel: Cancel::new(),
            cpus: sched_getaffinity(Pid::from_raw(0)).ok(),
        }
    }

    fn work(task: Task) -> Option<u8> {
        match task.arguments[0].to_str() {
            Some("refuse") => None,
            Some("stubborn") => loop {
                thread::park();
            },
            Some("wait") => {
                while !task.cancel.is_cancelled() {
                    thread::sleep(Duration::from_millis(1));
                }
                Some(3)
            }
            Some(code) => Some(code.parse().expect("a defect on purpose")),
            None => None,
        }
    }

    fn run(helper: Helper, order: &str) -> (Option<u8>, Option<Helper>) {
        match helper.run(task(order, None), &mut Uninterrupted) {
            End::Outcome(code, helper) => (code, helper),
            End::Abandoned(status) => panic!("{status:?}"),
        }
    }

    #[test]
    fn one_job_follows_the_other_until_one_has_a_defect() {
        let mut helper = Helper::start(|| Box::new(work)).unwrap();
        for (order, expected) in [("0", Some(0)), ("refuse", None), ("7", Some(7))] {
            let (code, again) = run(helper, order);
            assert_eq!(code, expected);
            helper = again.expect("the thread goes on");
        }
        let (code, helper) = run(helper, "nonsense");
        assert_eq!((code, helper.is_none()), (Some(DEFECT), true));
    }

    #[test]
    fn a_thread_with_a_directory_of_its_own_does_no_job_of_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let own = || task("0", Some(folder.path().to_owned()));
        let helper = Helper::start(|| Box::new(work)).unwrap();
        assert!(helper.can_do(&task("0", None)) && helper.can_do(&own()));
        let End::Outcome(Some(0), Some(helper)) = helper.run(own(), &mut Uninterrupted) else {
            panic!("the job ends");
        };
        assert!(!helper.can_do(&task("0", None)) && helper.can_do(&own()));
        let unknown = Task { cpus: None, ..own() };
        assert!(!helper.can_do(&unknown));
    }

    /// Hands on SIGTERM, as many times as there are bytes in a pipe.
    struct Terminated(PipeReader);

    impl Interrupts for Terminated {
        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }

        fn take(&mut self) -> Option<Interrupt> {
            let mut ready = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            let any = poll(&mut ready, PollTimeout::ZERO).unwrap() > 0;
            (any && self.0.read(&mut [0]).unwrap() > 0).then_some(Interrupt::Forward(Signal::SIGTERM))
        }
    }

    #[test]
    fn a_transfer_may_clean_up_once() {
        let (reader, mut writer) = io::pipe().unwrap();
        let mut interrupts = Terminated(reader);
        writer.write_all(&[1]).unwrap();
        let helper = Helper::start(|| Box::new(work)).unwrap();
        let End::Outcome(Some(3), Some(helper)) = helper.run(task("wait", None), &mut interrupts) else {
            panic!("the job ends by itself");
        };
        writer.write_all(&[1, 1]).unwrap();
        let End::Abandoned(status) = helper.run(task("stubborn", None), &mut interrupts) else {
            panic!("the job goes on");
        };
        assert_eq!(status, Status::Exited { code: STOPPED });
    }
}
