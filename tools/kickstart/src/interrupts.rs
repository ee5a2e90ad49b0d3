//! Signals that arrive while a job runs and that it should get too.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

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

    /// Waits until [`Self::take`] has something, nobody wants the job any more, or the pause is over. `None` if that
    /// takes polling [`Self::descriptor`] and [`Self::client`].
    fn pause(&mut self, _pause: Option<Duration>) -> Option<io::Result<()>> {
        None
    }

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
    /// Those that are waited for.
    set: SigSet,
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
            set,
            read: Vec::new(),
            drained: false,
        })
    }

    /// Blocks one more signal, which [`Self::wait`] also waits for. Nothing is handed on because of it.
    pub fn include(&mut self, signal: Signal) -> io::Result<()> {
        self.set.add(signal);
        self.set.thread_block()?;
        Ok(())
    }

    /// Waits for a signal as long as the pause; gives it, or nothing if there is reason to look again. Cheaper than
    /// polling and reading a descriptor.
    pub fn wait(&mut self, pause: Option<Duration>) -> io::Result<Option<Signal>> {
        let limit = pause.map(|pause| libc::timespec {
            tv_sec: libc::time_t::try_from(pause.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: pause.subsec_nanos().into(),
        });
        let limit = limit.as_ref().map_or(ptr::null(), ptr::from_ref);
        #[expect(unsafe_code, reason = "the call reads a set and a time, or no time")]
        let number = unsafe { libc::sigtimedwait(self.set.as_ref(), ptr::null_mut(), limit) };
        match Errno::result(number) {
            Ok(number) => {
                let signal = Signal::try_from(number)?;
                self.read.extend(Self::interrupt(signal));
                // Others are taken the next time.
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
