//! The loop for workers that are threads: a worker that has a message does the master's work itself.

use std::collections::VecDeque;
use std::time::Instant;

use super::conclusion::End;
use super::{Driver, RunError};
use crate::protocol::{Rank, ToMaster};
use crate::transport::combiner::Combine;
use crate::transport::{CombiningTransport, TransportError};

/// A driver and how its run ended.
struct CombinedLoop<'d, 'a, T> {
    driver: &'d mut Driver<'a, T>,
    end: Option<Result<End, RunError>>,
}

impl<T: CombiningTransport> Driver<'_, T> {
    /// Lets the threads of the workers process their messages.
    pub(super) fn combine(&mut self) -> Result<End, RunError> {
        let combiner = self.run.out.transport.combiner();
        let mut combined = CombinedLoop {
            driver: self,
            end: None,
        };
        combiner.run(&mut combined);
        combined
            .end
            .unwrap_or_else(|| Err(TransportError::CombinerPanicked.into()))
    }
}

impl<T: CombiningTransport> Combine for CombinedLoop<'_, '_, T> {
    fn combine(&mut self, messages: &mut VecDeque<(Rank, ToMaster)>) -> bool {
        let driver = &mut *self.driver;
        let mut work = || {
            while let Some((from, message)) = messages.pop_front() {
                driver.run.out.transport.note_received(from, &message);
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
