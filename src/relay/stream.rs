//! One stream of a task: to the file, or to the tool that redirects it.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use pmc_control::{OutputChunk, Overflow, RedirectEnd, RedirectOptions};

/// Maximum bytes of a chunk.
const MAX_CHUNK: usize = 256 << 10;
/// A redirect ends if nobody asks for this long.
const LEASE: Duration = Duration::from_secs(10);
/// When the time of a full buffer is over, the next poll of the tool ends the redirect: it says what was
/// delivered. A tool that does not ask is waited for this long.
const LAST_POLL: Duration = Duration::from_secs(1);
/// The same if the run delivers and has not said what became of all that it has got: its connection to this
/// agent is cut, and it says so when there is another one. An agent ends its tasks if that takes longer, with
/// the default of `--agent-timeout`.
const CUT_OFF: Duration = Duration::from_secs(40);
/// Times are kept that differ by this much, in microseconds.
const TIME_STEP: u64 = 500;

/// A stream of a task.
#[derive(Debug)]
pub(super) struct Stream<W> {
    file: W,
    redirection: Option<Redirection>,
    /// How the last redirect ended.
    over: Option<Ended>,
}

/// A redirect that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    token: u64,
    over: RedirectEnd,
    dropped: u64,
}

#[derive(Debug)]
struct Redirection {
    options: RedirectOptions,
    /// The run delivers, not the tool.
    by_run: bool,
    /// What was not delivered.
    bytes: VecDeque<u8>,
    /// Offset of the first one.
    start: u64,
    /// Number of those, from the first one on, that were sent. They may be delivered, so they are never
    /// dropped.
    sent: usize,
    /// Number of bytes that were dropped between those that were sent and the others.
    gap: u64,
    times: VecDeque<(u64, u64)>,
    polled: Instant,
    full_since: Option<Instant>,
    /// What comes is lost.
    discards: bool,
    dropped: u64,
    /// The redirect is to end as soon as the run says what it has delivered.
    end_requested: bool,
}

impl Redirection {
    fn new(options: RedirectOptions, by_run: bool, now: Instant) -> Self {
        Self {
            options,
            by_run,
            bytes: VecDeque::new(),
            start: 0,
            sent: 0,
            gap: 0,
            times: VecDeque::new(),
            polled: now,
            full_since: None,
            discards: false,
            dropped: 0,
            end_requested: false,
        }
    }

    fn capacity(&self) -> usize {
        self.options.buffer.clamp(1, RedirectOptions::MAX_BUFFER) as usize
    }

    fn patience(&self) -> Duration {
        Duration::from_millis(
            self.options
                .patience_ms
                .min(RedirectOptions::MAX_PATIENCE_MS)
                .into(),
        )
    }

    /// Number of bytes that count for the capacity. What was sent cannot be dropped, so it would keep a
    /// buffer full whose overflow is dropped.
    fn filling(&self) -> usize {
        match self.options.overflow {
            Overflow::File => self.bytes.len(),
            Overflow::DropOldest | Overflow::DropNewest => self.bytes.len() - self.sent,
        }
    }

    /// Offset of the byte that comes next.
    fn end(&self) -> u64 {
        self.start + self.gap + self.bytes.len() as u64
    }

    fn add(&mut self, bytes: &[u8], (now, time): (Instant, u64)) {
        if self.discards {
            self.dropped += bytes.len() as u64;
            return;
        }
        if self.times.back().is_none_or(|(_, last)| time >= last + TIME_STEP) {
            self.times.push_back((self.end(), time));
        }
        self.bytes.extend(bytes);
        if self.filling() >= self.capacity() {
            self.full_since.get_or_insert(now);
        }
    }

    /// Notes that this number of bytes have been delivered.
    fn remove(&mut self, count: usize) {
        self.bytes.drain(..count);
        self.start += count as u64;
        self.sent = self.sent.saturating_sub(count);
        if self.sent == 0 {
            self.start += std::mem::take(&mut self.gap);
        }
        while let Some((second, _)) = self.times.get(1)
            && *second <= self.start
        {
            self.times.pop_front();
        }
        self.note_room();
    }

    fn note_room(&mut self) {
        if self.filling() <= self.capacity() / 2 {
            self.full_since = None;
            self.discards = false;
        }
    }

    /// Drops the oldest bytes that were not sent, until half of the buffer is free.
    fn drop_oldest(&mut self) {
        let count = self.filling() - self.capacity() / 2;
        self.bytes.drain(self.sent..self.sent + count);
        self.dropped += count as u64;
        self.gap += count as u64;
        self.remove(0);
    }

    fn note_delivered(&mut self, delivered: u64, now: Instant) {
        self.polled = now;
        let count = usize::try_from(delivered.saturating_sub(self.start)).unwrap_or(usize::MAX);
        // Dropped bytes do not count as delivered.
        let known = if self.gap > 0 { self.sent } else { self.bytes.len() };
        self.remove(count.min(known));
    }

    /// Returns the next chunk: of all that was not delivered, or, if the run delivers, of what was not
    /// sent.
    fn chunk(&mut self) -> OutputChunk {
        let from = if self.by_run { self.sent } else { 0 };
        let known = if self.gap > 0 { self.sent } else { self.bytes.len() };
        let to = known.min(from + MAX_CHUNK);
        let mut bytes = Vec::with_capacity(to - from);
        let (first, second) = self.bytes.as_slices();
        let split = first.len();
        bytes.extend_from_slice(&first[from.min(split)..to.min(split)]);
        bytes.extend_from_slice(&second[from.saturating_sub(split)..to.saturating_sub(split)]);
        self.sent = self.sent.max(to);
        self.note_room();
        let (offset, end) = (self.start + from as u64, self.start + to as u64);
        // The time of the first byte is that of the last change before it.
        let first = self.times.iter().rposition(|(change, _)| *change <= offset);
        let times = self.times.range(first.unwrap_or(0)..);
        let times = times.take_while(|(change, _)| *change < end);
        OutputChunk {
            offset,
            bytes,
            times: times.copied().collect(),
            dropped: self.dropped,
        }
    }

    /// Returns whether only the run knows what was delivered. When its end is requested, it says so in a last
    /// request, for whose answer it waits.
    fn is_out(&self) -> bool {
        self.by_run && (self.sent > 0 || self.end_requested)
    }
}

impl<W: Write> Stream<W> {
    /// A stream that goes to a file.
    pub(super) fn new(file: W) -> Self {
        Self {
            file,
            redirection: None,
            over: None,
        }
    }

    /// Returns the name of the tool that redirects it, unless it is the one with this token.
    pub(super) fn other_tool(&self, token: u64) -> Option<&str> {
        let options = &self.redirection.as_ref()?.options;
        (options.token != token).then_some(&*options.tool)
    }

    /// Returns whether the redirect with this token has ended, and how.
    pub(super) fn over(&self, token: u64) -> Option<RedirectEnd> {
        let ended = self.over.filter(|ended| ended.token == token)?;
        self.redirection.is_none().then_some(ended.over)
    }

    /// Returns the bytes that the redirect with this token has lost, if it has ended.
    pub(super) fn dropped(&self, token: u64) -> u64 {
        let ended = self.over.filter(|ended| ended.token == token);
        ended.map_or(0, |ended| ended.dropped)
    }

    /// Begins a redirect.
    pub(super) fn begin(&mut self, options: &RedirectOptions, by_run: bool, now: Instant) {
        if self.redirection.is_none() {
            self.redirection = Some(Redirection::new(options.clone(), by_run, now));
        }
    }

    /// Takes note of who delivers: a redirect may have begun before its tool has asked for the first time.
    pub(super) fn set_by_run(&mut self, by_run: bool) {
        if let Some(redirection) = &mut self.redirection {
            redirection.by_run = by_run;
        }
    }

    /// Returns whether the redirect with this token is to end as soon as the run says what it has delivered.
    pub(super) fn is_end_requested(&self, token: u64) -> bool {
        let redirection = self.redirection.as_ref();
        redirection.is_some_and(|redirection| redirection.options.token == token && redirection.end_requested)
    }

    /// Returns whether the tool with this token redirects it.
    pub(super) fn is_of(&self, token: u64) -> bool {
        let redirection = self.redirection.as_ref();
        redirection.is_some_and(|redirection| redirection.options.token == token)
    }

    /// Takes what the task has written.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn add(&mut self, bytes: &[u8], times: (Instant, u64)) -> io::Result<()> {
        match &mut self.redirection {
            None => self.file.write_all(bytes),
            Some(redirection) => {
                redirection.add(bytes, times);
                Ok(())
            }
        }
    }

    /// Takes note of what the tool has delivered. The time of a full buffer may be over, or that after the
    /// end of the attempt.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn note_delivered(
        &mut self,
        delivered: u64,
        now: Instant,
        ended_at: Option<Instant>,
    ) -> io::Result<()> {
        let Some(redirection) = &mut self.redirection else {
            return Ok(());
        };
        redirection.note_delivered(delivered, now);
        let is_out = redirection.is_out();
        match self.deadline(ended_at) {
            Some(deadline) if deadline <= now && is_out => {
                // The run may have delivered more since it has sent this poll.
                if let Some(redirection) = &mut self.redirection {
                    redirection.end_requested = true;
                }
                Ok(())
            }
            Some(deadline) if deadline <= now => self.end(RedirectEnd::TooSlow),
            _ => Ok(()),
        }
    }

    /// Returns what comes next.
    pub(super) fn chunk(&mut self) -> OutputChunk {
        self.redirection
            .as_mut()
            .map_or_else(OutputChunk::default, Redirection::chunk)
    }

    /// Ends the redirect: what was not delivered goes to the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn end(&mut self, over: RedirectEnd) -> io::Result<()> {
        let Some(redirection) = self.redirection.take() else {
            return Ok(());
        };
        self.over = Some(Ended {
            token: redirection.options.token,
            over,
            dropped: redirection.dropped,
        });
        let (first, second) = redirection.bytes.as_slices();
        self.file.write_all(first)?;
        self.file.write_all(second)
    }

    /// Returns how many bytes may come.
    pub(super) fn room(&self) -> usize {
        match &self.redirection {
            Some(redirection) if !redirection.discards => match redirection.full_since {
                Some(_) => 0,
                None => redirection.capacity().saturating_sub(redirection.filling()),
            },
            _ => usize::MAX,
        }
    }

    /// Returns whether output was sent of which nobody has said whether it is delivered.
    pub(super) fn is_out(&self) -> bool {
        self.redirection
            .as_ref()
            .is_some_and(|redirection| redirection.sent > 0)
    }

    /// Asks the run to end the redirect with this token.
    pub(super) fn request_end(&mut self, token: u64) {
        let redirection = self.redirection.as_mut();
        if let Some(redirection) = redirection.filter(|redirection| redirection.options.token == token) {
            redirection.end_requested = true;
        }
    }

    /// Returns whether something waits for the tool, or the run for the end of the redirect.
    pub(super) fn is_waiting(&self) -> bool {
        self.redirection
            .as_ref()
            .is_some_and(|redirection| !redirection.bytes.is_empty() || redirection.end_requested)
    }

    /// Returns when the redirect is to end, because the buffer is full or the attempt has ended.
    fn deadline(&self, ended_at: Option<Instant>) -> Option<Instant> {
        let redirection = self.redirection.as_ref()?;
        let by_rule = redirection.options.overflow == Overflow::File;
        let full = redirection.full_since.filter(|_| by_rule);
        let ended = ended_at.filter(|_| !redirection.bytes.is_empty());
        let since = [full, ended].into_iter().flatten().min()?;
        Some(since + redirection.patience())
    }

    /// Does what is due. Returns when this is to be called next.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn check(&mut self, now: Instant, ended_at: Option<Instant>) -> io::Result<Option<Instant>> {
        let deadline = self.deadline(ended_at);
        let Some(redirection) = &mut self.redirection else {
            return Ok(None);
        };
        let (last_poll, lease) = match redirection.is_out() {
            true => (CUT_OFF, CUT_OFF),
            false => (LAST_POLL, LEASE),
        };
        let last_poll = deadline.map(|deadline| deadline + last_poll);
        let lease = redirection.polled + lease;
        if last_poll.is_some_and(|at| at <= now) {
            self.end(RedirectEnd::TooSlow)?;
            return Ok(None);
        }
        if lease <= now {
            self.end(RedirectEnd::Silent)?;
            return Ok(None);
        }
        let full = redirection.full_since.map(|since| since + redirection.patience());
        if full.is_some_and(|at| at <= now) {
            match redirection.options.overflow {
                Overflow::File => {}
                Overflow::DropOldest => redirection.drop_oldest(),
                Overflow::DropNewest => redirection.discards = true,
            }
        }
        let full = full.filter(|at| *at > now);
        Ok([Some(lease), last_poll, full].into_iter().flatten().min())
    }
}

#[cfg(test)]
mod tests;
