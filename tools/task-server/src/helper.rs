//! The thread that runs built-in jobs, and how the server waits for it.

use std::io::{self, PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use monitord_compat::invocation_record::Status;
use nix::sys::signal::Signal;
use pegasus_kickstart::interrupts::{Interrupt, Interrupts};
use pegasus_kickstart::wait::{failure, poll_interrupts, signal_text};
use pegasus_transfer::cancel::Cancel;

use crate::task::{Task, Tool, Worker};

/// How long a cancelled transfer may clean up.
const CLEANUP_LIMIT: Duration = Duration::from_secs(2);

/// Bytes of the thread's stack, as much as a process usually has.
const STACK_BYTES: usize = 8 << 20;

/// Exit code of a job that did not end when it was cancelled.
const STOPPED: u8 = 1;

/// Exit code of a Rust program that panics.
const PANICKED: u8 = 101;

/// A thread that runs one job after the other. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Helper {
    tasks: Sender<Task>,
    outcomes: Receiver<Option<u8>>,
    /// Has a byte when there is an outcome. Is at its end when the thread has ended.
    ended: OwnedFd,
    /// True if the thread has its own working directory, instead of that of the process.
    has_directory: bool,
}

/// How a job ended.
pub(crate) enum End {
    /// The exit code, or `None` if the program is needed; and the thread, if it can run another job.
    Outcome(Option<u8>, Option<Helper>),
    /// The job goes on in the thread, but counts as ended with this status.
    Abandoned(Status),
}

impl Helper {
    pub(crate) fn start(worker: fn() -> Worker) -> io::Result<Self> {
        let (tasks, queue) = channel();
        let (results, outcomes) = channel();
        let (ended, bell): (PipeReader, PipeWriter) = io::pipe()?;
        let builder = thread::Builder::new()
            .name("built-in".into())
            .stack_size(STACK_BYTES);
        builder.spawn(move || serve(&queue, &mut worker(), &results, bell))?;
        Ok(Self {
            tasks,
            outcomes,
            ended: ended.into(),
            has_directory: false,
        })
    }

    /// Returns whether the thread has the CPUs and the directory for the task.
    pub(crate) fn can_run(&self, task: &Task) -> bool {
        // A new thread has the CPUs of the one that starts it. If these are unknown, only a new thread has
        // the right ones.
        task.cpus.is_some() && (task.directory.is_some() || !self.has_directory)
    }

    pub(crate) fn run(mut self, task: Task, interrupts: &mut dyn Interrupts) -> End {
        self.has_directory |= task.directory.is_some();
        let (tool, cancel) = (task.tool, task.cancel.clone());
        if self.tasks.send(task).is_err() {
            return End::Outcome(None, None);
        }
        match self.wait(tool, &cancel, interrupts) {
            Some(status) => {
                cancel.cancel();
                End::Abandoned(status)
            }
            None => self.outcome(),
        }
    }

    /// Waits for the end of the job. Returns its status if it has to be abandoned.
    fn wait(&self, tool: Tool, cancel: &Cancel, interrupts: &mut dyn Interrupts) -> Option<Status> {
        let mut until: Option<Instant> = None;
        loop {
            let pause = until.map(|until| until.saturating_duration_since(Instant::now()));
            match poll_interrupts(pause, Some(&self.ended), interrupts) {
                Ok(wakeup) if wakeup.watched => return None,
                Ok(wakeup) if wakeup.abandoned => interrupts.abandoned(),
                Ok(_) => {}
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    return Some(failure(-42, errno));
                }
            }
            let stopped = Status::Exited { code: STOPPED };
            while let Some(interrupt) = interrupts.take() {
                match interrupt {
                    Interrupt::Child => {}
                    Interrupt::Forward(Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP)
                        if tool == Tool::Transfer =>
                    {
                        if until.is_some() {
                            return Some(stopped);
                        }
                        cancel.cancel();
                        until = Some(Instant::now() + CLEANUP_LIMIT);
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
        let read = nix::unistd::read(self.ended.as_fd(), &mut [0]);
        match self.outcomes.recv() {
            Ok(code) => End::Outcome(code, (read == Ok(1)).then_some(self)),
            // The panic has printed its message.
            Err(_) => End::Outcome(Some(PANICKED), None),
        }
    }
}

/// Runs tasks in the thread. If one panics, the thread ends, and with it the pipe.
fn serve(queue: &Receiver<Task>, work: &mut Worker, results: &Sender<Option<u8>>, mut bell: PipeWriter) {
    for task in queue {
        let outcome = work(task);
        if results.send(outcome).is_err() || bell.write_all(&[1]).is_err() {
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
    use pegasus_kickstart::interrupts::Uninterrupted;

    /// Makes a task that [`work`] runs.
    fn task(order: &str, directory: Option<PathBuf>) -> Task {
        Task {
            tool: Tool::Transfer,
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
            Some(code) => Some(code.parse().expect("a panic on purpose")),
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
    fn the_thread_is_reused_until_a_job_panics() {
        let mut helper = Helper::start(|| Box::new(work)).unwrap();
        for (order, expected) in [("0", Some(0)), ("refuse", None), ("7", Some(7))] {
            let (code, again) = run(helper, order);
            assert_eq!(code, expected);
            helper = again.expect("the thread goes on");
        }
        let (code, helper) = run(helper, "nonsense");
        assert_eq!((code, helper.is_none()), (Some(PANICKED), true));
    }

    #[test]
    fn a_thread_with_its_own_directory_runs_no_job_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let own = || task("0", Some(folder.path().to_owned()));
        let helper = Helper::start(|| Box::new(work)).unwrap();
        assert!(helper.can_run(&task("0", None)) && helper.can_run(&own()));
        let End::Outcome(Some(0), Some(helper)) = helper.run(own(), &mut Uninterrupted) else {
            panic!("the job ends");
        };
        assert!(!helper.can_run(&task("0", None)) && helper.can_run(&own()));
        let unknown = Task { cpus: None, ..own() };
        assert!(!helper.can_run(&unknown));
    }

    /// Forwards SIGTERM once for each byte in a pipe.
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
    fn a_second_signal_abandons_a_transfer() {
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
