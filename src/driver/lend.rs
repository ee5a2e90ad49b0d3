//! The loop for workers that are threads: a worker that has a message does the master's work itself.

use std::collections::VecDeque;
use std::time::Instant;

use super::conclusion::End;
use super::{Driver, RunError};
use crate::protocol::{Rank, ToMaster};
use crate::transport::exchange::Turn;
use crate::transport::{LendingTransport, TransportError};

/// A driver and how its run ended.
struct Turns<'d, 'a, T> {
    driver: &'d mut Driver<'a, T>,
    end: Option<Result<End, RunError>>,
}

impl<T: LendingTransport> Driver<'_, T> {
    /// Lets the threads of the workers process their messages.
    pub(super) fn lend(&mut self) -> Result<End, RunError> {
        let exchange = self.out.transport.exchange();
        let mut turns = Turns {
            driver: self,
            end: None,
        };
        exchange.lend(&mut turns);
        let lost = || TransportError("A worker has ended in the middle of its work".to_owned());
        turns.end.unwrap_or_else(|| Err(lost().into()))
    }
}

impl<T: LendingTransport> Turn for Turns<'_, '_, T> {
    fn turn(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool {
        let driver = &mut *self.driver;
        let mut work = || {
            while let Some((from, message)) = messages.pop_front() {
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
