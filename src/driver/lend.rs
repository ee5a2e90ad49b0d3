//! The loop around the master where workers are threads: each takes the messages that are there
//! to the master when it has one itself.

use std::collections::VecDeque;
use std::time::Instant;

use super::{Driver, End, RunError};
use crate::protocol::{Rank, ToMaster};
use crate::transport::combiner::Combine;
use crate::transport::{CombiningTransport, TransportError};

/// A driver, and how its run has ended.
struct Turns<'d, 'a, T> {
    driver: &'d mut Driver<'a, T>,
    end: Option<Result<End, RunError>>,
}

impl<T: CombiningTransport> Driver<'_, T> {
    /// Lets the workers' threads work off their messages.
    pub(super) fn lend(&mut self) -> Result<End, RunError> {
        let combiner = self.out.transport.combiner();
        let mut turns = Turns {
            driver: self,
            end: None,
        };
        combiner.run(&mut turns);
        turns
            .end
            .unwrap_or_else(|| Err(TransportError::CombinerPanicked.into()))
    }
}

impl<T: CombiningTransport> Combine for Turns<'_, '_, T> {
    fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool {
        let driver = &mut *self.driver;
        let mut work = || {
            while let Some((from, message)) = messages.pop_front() {
                driver
                    .master
                    .look_ahead(|n| messages.get(n).map(|(from, _)| *from));
                driver.out.transport.note_received(&message);
                driver.handle(from, message)?;
            }
            driver.advance()
        };
        self.end = work().transpose();
        self.end.is_some()
    }

    fn deadline(&self) -> Option<Instant> {
        self.driver.next_deadline()
    }
}
