//! Gives up connections on which data only trickles.

use std::cell::Cell;
use std::io::{self, Read};
use std::time::{Duration, Instant};

use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

/// The other side is too slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("fewer than {rate} bytes a second on average over {seconds} seconds")]
pub(crate) struct Slow {
    rate: u64,
    seconds: u64,
}

/// Time limits of connections.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Limit for name resolution, and for connecting.
    pub connect: Duration,
    /// Limit for the next bytes of a request or response.
    pub idle: Duration,
    /// Fewest bytes a second of a request or response, on average over `idle`; 0 for no limit.
    pub lowest_rate: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(60),
            idle: Duration::from_secs(300),
            lowest_rate: 1000,
        }
    }
}

/// Measures the rate of a connection. Only the time of waiting for the other side counts.
#[derive(Debug)]
struct Pace {
    limits: Timeouts,
    waited: Duration,
    bytes: u64,
}

impl Pace {
    fn new(limits: Timeouts) -> Self {
        Self {
            limits,
            waited: Duration::ZERO,
            bytes: 0,
        }
    }

    fn count(&mut self, waited: Duration, bytes: usize) -> Result<(), Slow> {
        self.waited += waited;
        self.bytes += bytes as u64;
        if self.waited < self.limits.idle {
            return Ok(());
        }
        let rate = self.limits.lowest_rate;
        if (self.bytes as f64) < rate as f64 * self.waited.as_secs_f64() {
            return Err(Slow {
                rate,
                seconds: self.waited.as_secs(),
            });
        }
        (self.waited, self.bytes) = (Duration::ZERO, 0);
        Ok(())
    }
}

/// Reader that fails if the other side sends too slowly.
pub(crate) struct Receiving<R> {
    inner: R,
    pace: Pace,
}

impl<R> Receiving<R> {
    pub(super) fn new(inner: R, limits: Timeouts) -> Self {
        let pace = Pace::new(limits);
        Self { inner, pace }
    }
}

impl<R: Read> Read for Receiving<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let start = Instant::now();
        let read = self.pace.limits.until(|| self.inner.read(buffer))?;
        // The end of the data is not slow.
        if read > 0 {
            self.pace.count(start.elapsed(), read).map_err(io::Error::other)?;
        }
        Ok(read)
    }
}

thread_local! {
    /// When the read of this thread that is in progress has taken too long, and why that is an error.
    static READ_ENDS: Cell<Option<(Instant, Slow)>> = const { Cell::new(None) };
}

impl Timeouts {
    /// Reads with a limit for the whole read: bytes may arrive for ever that are no data, such as the header
    /// of a chunk.
    fn until<T>(&self, read: impl FnOnce() -> T) -> T {
        let slow = Slow {
            rate: self.lowest_rate,
            seconds: self.idle.as_secs(),
        };
        let end = Instant::now().checked_add(self.idle);
        READ_ENDS.set(end.filter(|_| self.lowest_rate > 0).map(|end| (end, slow)));
        let result = read();
        READ_ENDS.set(None);
        result
    }
}

/// Adds the limit of reads to connections.
#[derive(Debug)]
pub(super) struct Limited;

/// A connection whose reads have a limit.
#[derive(Debug)]
pub(super) struct LimitedConnection<T>(T);

impl<In: Transport> Connector<In> for Limited {
    type Out = LimitedConnection<In>;

    fn connect(
        &self,
        _: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, ureq::Error> {
        Ok(chained.map(LimitedConnection))
    }
}

impl<T: Transport> Transport for LimitedConnection<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.0.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), ureq::Error> {
        self.0.transmit_output(amount, timeout)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, ureq::Error> {
        if let Some((end, slow)) = READ_ENDS.get()
            && Instant::now() >= end
        {
            return Err(io::Error::other(slow).into());
        }
        self.0.await_input(timeout)
    }

    fn is_open(&mut self) -> bool {
        self.0.is_open()
    }
}

/// Reader over data to send that fails if the other side takes them too slowly: the time between two reads.
pub(super) struct Sending<R> {
    inner: R,
    pace: Pace,
    last: Option<(Instant, usize)>,
}

impl<R> Sending<R> {
    pub(super) fn new(inner: R, limits: Timeouts) -> Self {
        let pace = Pace::new(limits);
        Self {
            inner,
            pace,
            last: None,
        }
    }
}

impl<R: Read> Read for Sending<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some((time, bytes)) = self.last {
            self.pace.count(time.elapsed(), bytes).map_err(io::Error::other)?;
        }
        let read = self.inner.read(buffer)?;
        self.last = Some((Instant::now(), read));
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_rates_are_noticed_after_the_time_limit() {
        let limits = Timeouts {
            idle: Duration::from_secs(10),
            lowest_rate: 100,
            ..Timeouts::default()
        };
        let mut pace = Pace::new(limits);
        for _ in 0..5 {
            // 200 bytes a second.
            assert_eq!(pace.count(Duration::from_secs(5), 1000), Ok(()));
        }
        assert_eq!(pace.count(Duration::from_secs(5), 1000), Ok(()));
        assert_eq!(pace.count(Duration::from_secs(9), 1), Ok(()));
        let slow = pace.count(Duration::from_secs(1), 1);
        assert_eq!(
            slow,
            Err(Slow {
                rate: 100,
                seconds: 10
            })
        );
        let mut unlimited = Pace::new(Timeouts {
            lowest_rate: 0,
            ..limits
        });
        assert_eq!(unlimited.count(Duration::from_secs(60), 0), Ok(()));
    }
}
