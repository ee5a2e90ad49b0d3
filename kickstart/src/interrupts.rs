//! Signals that arrive while a job runs and that it should get too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Something to hand on to the running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// This signal, to the job.
    Forward(Signal),
    /// A child may have ended.
    Child,
}

/// A source of interrupts that can be polled. An executor implements it over its own way of cancelling a task.
pub trait Interrupts {
    /// Readable when [`Self::take`] has something; `None` if it never has.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// The next interrupt, without waiting.
    fn take(&mut self) -> Option<Interrupt>;

    /// True if [`Interrupt::Child`] comes whenever a child ends.
    fn reports_children(&self) -> bool {
        false
    }

    /// Readable or closed when nobody wants the job any more; `None` if that cannot happen.
    fn client(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called when nobody wants the job any more.
    fn abandoned(&self) {}
}

/// No interrupts.
#[derive(Clone, Copy, Debug)]
pub struct Uninterrupted;

impl Interrupts for Uninterrupted {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn take(&mut self) -> Option<Interrupt> {
        None
    }
}

/// The signals of a process with a single thread, read from a descriptor.
#[derive(Debug)]
pub struct ProcessSignals {
    descriptor: SignalFd,
    /// Those read and not yet taken, the next one last.
    read: Vec<Interrupt>,
    /// There were no others when they were read.
    drained: bool,
}

impl ProcessSignals {
    /// Signals that are handed on to the job. The original forwards the first three and dies of the others
    /// without a record.
    pub const FORWARDED: [Signal; 6] = [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGQUIT,
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ];

    /// Blocks the signals in the calling thread and reads them instead. To be called once, before any other
    /// thread exists; children start with nothing blocked.
    pub fn install() -> io::Result<Self> {
        // Inherited as ignored, it would make the system forget how children ended.
        #[expect(unsafe_code, reason = "the default action runs no code of ours")]
        unsafe {
            signal(Signal::SIGCHLD, SigHandler::SigDfl)?;
        }
        let mut set = SigSet::empty();
        set.add(Signal::SIGCHLD);
        for signal in Self::FORWARDED {
            set.add(signal);
        }
        set.thread_block()?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self {
            descriptor,
            read: Vec::new(),
            drained: false,
        })
    }

    /// Forgets the signals that have come.
    pub fn forget(&mut self) {
        self.read_pending();
        self.read.clear();
        self.drained = false;
    }

    /// Reads what has come: one call for all signals, since none comes twice before it is read.
    fn read_pending(&mut self) {
        const SIZE: usize = size_of::<libc::signalfd_siginfo>();
        const NUMBER: usize = std::mem::offset_of!(libc::signalfd_siginfo, ssi_signo);
        let mut buffer = [0; SIZE * (ProcessSignals::FORWARDED.len() + 2)];
        let count = loop {
            match nix::unistd::read(&self.descriptor, &mut buffer) {
                Err(Errno::EINTR) => {}
                Ok(count) => break count,
                Err(_) => return,
            }
        };
        self.drained = count < buffer.len();
        let numbers = buffer[..count]
            .chunks_exact(SIZE)
            .filter_map(|info| info[NUMBER..].first_chunk().copied().map(i32::from_ne_bytes));
        let interrupts =
            numbers
                .filter_map(|number| Signal::try_from(number).ok())
                .map(|signal| match signal {
                    Signal::SIGCHLD => Interrupt::Child,
                    signal => Interrupt::Forward(signal),
                });
        self.read.extend(interrupts);
        self.read.reverse();
    }
}

impl Interrupts for ProcessSignals {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }

    fn take(&mut self) -> Option<Interrupt> {
        if self.read.is_empty() && !std::mem::take(&mut self.drained) {
            self.read_pending();
        }
        self.read.pop()
    }

    fn reports_children(&self) -> bool {
        true
    }
}
