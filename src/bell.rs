//! Wakes a thread that waits for a descriptor.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

/// A bell: its descriptor can be read after a ring.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<[File; 2]>);

impl Bell {
    /// Makes a bell.
    ///
    /// # Errors
    /// The system refuses a pipe.
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write): (OwnedFd, OwnedFd) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        Ok(Self(Arc::new([read.into(), write.into()])))
    }

    /// Wakes the thread that waits, or that waits next.
    pub(crate) fn ring(&self) {
        // If the pipe is full, the thread wakes anyway.
        let _ = (&self.0[1]).write(&[0]);
    }

    /// Forgets all rings. Returns whether there were any.
    pub(crate) fn silence(&self) -> bool {
        let (mut bytes, mut has_rung) = ([0; 64], false);
        while let Ok(count @ 1..) = (&self.0[0]).read(&mut bytes) {
            has_rung = true;
            if count < bytes.len() {
                break;
            }
        }
        has_rung
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0[0].as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    #[test]
    fn a_ring_wakes_until_it_is_forgotten() {
        let bell = Bell::new().unwrap();
        let is_ringing = || {
            let mut polled = [PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
            poll(&mut polled, PollTimeout::ZERO).unwrap() > 0
        };
        assert!(!is_ringing());
        let other = bell.clone();
        (0..100).for_each(|_| other.ring());
        assert!(is_ringing());
        assert!(bell.silence() && !bell.silence());
        assert!(!is_ringing());
    }
}
