//! Signals that arrive while a job runs, to be forwarded to it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// An event for the running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// A signal to forward to the job.
    Forward(Signal),
    /// A child may have ended.
    Child,
}

/// A source of interrupts that can be polled.
pub trait Interrupts {
    /// Returns a descriptor that is readable when [`Self::take`] has an interrupt; `None` if it never has
    /// one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Takes the next interrupt, without waiting.
    fn take(&mut self) -> Option<Interrupt>;

    /// Waits for an interrupt, the end of the client, or the end of the pause. Returns `None` if the caller
    /// has to poll [`Self::descriptor`] and [`Self::client`] instead.
    fn pause(&mut self, _pause: Option<Duration>) -> Option<io::Result<()>> {
        None
    }

    /// Returns whether [`Interrupt::Child`] reports every end of a child.
    fn reports_children(&self) -> bool {
        false
    }

    /// Returns a descriptor that is readable or closed when the client has abandoned the job, if there is a
    /// client.
    fn client(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Called when the client has abandoned the job.
    fn abandoned(&self) {}
}

/// A source without interrupts.
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

/// The interrupts of another source for which the function returns true.
pub struct Filtered<'a, F>(pub &'a mut dyn Interrupts, pub F);

impl<F: FnMut(Interrupt) -> bool> Interrupts for Filtered<'_, F> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.descriptor()
    }

    fn take(&mut self) -> Option<Interrupt> {
        loop {
            let interrupt = self.0.take()?;
            if (self.1)(interrupt) {
                return Some(interrupt);
            }
        }
    }

    fn pause(&mut self, pause: Option<Duration>) -> Option<io::Result<()>> {
        self.0.pause(pause)
    }

    fn reports_children(&self) -> bool {
        self.0.reports_children()
    }

    fn client(&self) -> Option<BorrowedFd<'_>> {
        self.0.client()
    }

    fn abandoned(&self) {
        self.0.abandoned();
    }
}

/// Signals of a single-threaded process, read from a descriptor.
#[derive(Debug)]
pub struct ProcessSignals {
    descriptor: SignalFd,
    set: SigSet,
    /// Interrupts read but not taken, the next one last.
    read: Vec<Interrupt>,
    /// True if the descriptor was empty after the last read.
    drained: bool,
}

impl ProcessSignals {
    /// Signals forwarded to the job. The original forwards the first three and dies of the others without a
    /// record.
    pub const FORWARDED: [Signal; 6] = [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGQUIT,
        Signal::SIGHUP,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ];

    /// Blocks the signals in the calling thread and reads them instead. Call it once, before other threads
    /// exist.
    ///
    /// # Errors
    /// The system refuses the signal mask or the descriptor.
    pub fn install() -> io::Result<Self> {
        // If SIGCHLD is inherited as ignored, the system forgets how children ended.
        #[expect(unsafe_code, reason = "nix marks the call unsafe for handlers")]
        // SAFETY: the default action runs no code of this process.
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
            set,
            read: Vec::new(),
            drained: false,
        })
    }

    /// Blocks one more signal and returns it from [`Self::wait`], without forwarding it.
    ///
    /// # Errors
    /// The system refuses the signal mask.
    pub fn include(&mut self, signal: Signal) -> io::Result<()> {
        self.set.add(signal);
        self.set.thread_block()?;
        Ok(())
    }

    /// Waits for a signal, at most as long as the pause. This is cheaper than polling and reading the
    /// descriptor. Returns `None` after the pause or an interruption.
    ///
    /// # Errors
    /// The system call fails.
    pub fn wait(&mut self, pause: Option<Duration>) -> io::Result<Option<Signal>> {
        let limit = pause.map(|pause| libc::timespec {
            tv_sec: libc::time_t::try_from(pause.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: pause.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        #[expect(unsafe_code, reason = "nix has no sigtimedwait")]
        // SAFETY: the set and the time are valid; null pointers are allowed for the others.
        let number = unsafe { libc::sigtimedwait(self.set.as_ref(), ptr::null_mut(), limit) };
        match Errno::result(number) {
            Ok(number) => {
                let signal = Signal::try_from(number)?;
                self.read.extend(Self::interrupt(signal));
                // `take` reads no more signals this time.
                self.drained = true;
                Ok(Some(signal))
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn interrupt(signal: Signal) -> Option<Interrupt> {
        match signal {
            Signal::SIGCHLD => Some(Interrupt::Child),
            signal if Self::FORWARDED.contains(&signal) => Some(Interrupt::Forward(signal)),
            _ => None,
        }
    }

    /// Discards pending signals.
    pub fn discard(&mut self) {
        self.read_pending();
        self.read.clear();
        self.drained = false;
    }

    /// Reads all pending signals with one call: each signal is pending at most once.
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
        let signals = numbers.filter_map(|number| Signal::try_from(number).ok());
        let interrupts = signals.filter_map(Self::interrupt);
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

    fn pause(&mut self, pause: Option<Duration>) -> Option<io::Result<()>> {
        Some(self.wait(pause).map(drop))
    }

    fn reports_children(&self) -> bool {
        true
    }
}
