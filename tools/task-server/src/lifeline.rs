//! The executor's pipe, which ends when the executor has gone or has abandoned the running task.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{getpgrp, getpid};
use pegasus_kickstart::interrupts::{Interrupt, Interrupts, ProcessSignals};

use crate::children;

/// The pipe. The system reports its end by `SIGIO`. The socket would send a signal for each request.
pub(crate) struct Lifeline(OwnedFd);

impl Lifeline {
    pub(crate) fn new(pipe: OwnedFd) -> io::Result<Self> {
        #[expect(unsafe_code, reason = "nix has no F_SETOWN")]
        // SAFETY: the descriptor is open, and the call only sets the receiver of the pipe's signal.
        let result = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETOWN, getpid().as_raw()) };
        Errno::result(result)?;
        fcntl(&pipe, FcntlArg::F_SETFL(OFlag::O_ASYNC))?;
        Ok(Self(pipe))
    }

    fn has_ended(&self) -> bool {
        let mut source = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut source, PollTimeout::ZERO), Ok(1..))
    }
}

/// Interrupts of a task: signals of the process, and the end of the lifeline.
pub(crate) struct TaskInterrupts<'a> {
    pub(crate) signals: &'a mut ProcessSignals,
    pub(crate) lifeline: &'a Lifeline,
    /// A signal was passed on to the job.
    pub(crate) has_forwarded: bool,
}

impl Interrupts for TaskInterrupts<'_> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.signals.descriptor()
    }

    fn take(&mut self) -> Option<Interrupt> {
        let interrupt = self.signals.take();
        self.has_forwarded |= matches!(interrupt, Some(Interrupt::Forward(_)));
        interrupt
    }

    fn pause(&mut self, pause: Option<Duration>) -> Option<io::Result<()>> {
        Some(self.signals.wait(pause).map(|signal| {
            if signal == Some(Signal::SIGIO) && self.lifeline.has_ended() {
                self.abandoned();
            }
        }))
    }

    fn reports_children(&self) -> bool {
        self.signals.reports_children()
    }

    fn client(&self) -> Option<BorrowedFd<'_>> {
        Some(self.lifeline.0.as_fd())
    }

    fn abandoned(&self) {
        // Some may have left the group.
        children::end();
        // The group includes this process.
        let _ = killpg(getpgrp(), Signal::SIGKILL);
    }
}
