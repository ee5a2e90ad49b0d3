//! A worker's side.

use std::collections::VecDeque;
use std::time::Duration;

use super::MASTER;
use super::endpoint::{Endpoint, GOODBYE, MAX_BYTES, MAX_PAUSE, MESSAGE, PEER_CHECK_INTERVAL};
use crate::protocol::{Rank, ToMaster, ToWorker};
use crate::transport::error::Peer;
use crate::transport::parts;
use crate::transport::{TransportError, WorkerTransport};

/// Pause while the master has not taken the parts.
const PART_PAUSE: Duration = Duration::from_micros(20);

/// A worker's side.
pub struct MpiWorker<'a> {
    rank: Rank,
    endpoint: Endpoint<'a>,
    released: bool,
    /// The master was missing at the last check.
    suspects_master: bool,
    buffer: Vec<u8>,
    /// Messages that came while this side sent parts.
    early: VecDeque<ToWorker>,
}

impl<'a> MpiWorker<'a> {
    pub(super) fn new(endpoint: Endpoint<'a>, rank: Rank) -> Self {
        Self {
            rank,
            endpoint,
            released: false,
            suspects_master: false,
            buffer: Vec::new(),
            early: VecDeque::new(),
        }
    }

    /// Says goodbye when the worker has closed its files, and waits for the release by the master. The wait
    /// has pauses, while the end of MPI itself waits busily.
    ///
    /// # Errors
    /// The master has died.
    pub fn goodbye(&mut self) -> Result<(), TransportError> {
        self.endpoint.send(MASTER, GOODBYE, Vec::new())?;
        self.endpoint.ring(MASTER);
        while !self.released || !self.endpoint.has_sent_all() {
            match self.endpoint.poll(&mut self.buffer) {
                Some((_, tag)) => self.released |= tag == GOODBYE,
                None => {
                    self.check_master()?;
                    std::thread::sleep(MAX_PAUSE);
                }
            }
        }
        Ok(())
    }

    /// Sends forwarded data. Waits while the master has not taken earlier parts, unless it aborts the run.
    fn send_part(&mut self, part: &[u8]) -> Result<(), TransportError> {
        while !self.endpoint.send_part(MASTER, part)? {
            self.endpoint.ring(MASTER);
            let aborted = self.early.contains(&ToWorker::Abort);
            if self.released || aborted {
                return Ok(());
            }
            match self.endpoint.poll(&mut self.buffer) {
                Some((_, tag)) => {
                    let message = self.take(tag)?;
                    self.early.push_back(message);
                }
                None => {
                    self.check_master()?;
                    std::thread::sleep(PART_PAUSE);
                }
            }
        }
        Ok(())
    }

    /// Decodes the message in the buffer.
    fn take(&mut self, tag: mpi::Tag) -> Result<ToWorker, TransportError> {
        if tag == GOODBYE {
            self.released = true;
            return Ok(ToWorker::Shutdown);
        }
        ToWorker::decode(&self.buffer).map_err(|source| TransportError::Decode {
            from: Peer::Master,
            source,
        })
    }

    /// Reports a master of this host that has died: it must end after its workers.
    fn check_master(&mut self) -> Result<(), TransportError> {
        if !self.endpoint.is_peer_check_due() {
            return Ok(());
        }
        let is_gone = !self.released && self.endpoint.is_gone(MASTER);
        let was_gone = std::mem::replace(&mut self.suspects_master, is_gone);
        if was_gone && is_gone {
            return Err(TransportError::Died(Peer::Master));
        }
        Ok(())
    }
}

impl WorkerTransport for MpiWorker<'_> {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn send(&mut self, message: ToMaster) -> Result<(), TransportError> {
        self.send_deferred(message)?;
        self.endpoint.ring(MASTER);
        Ok(())
    }

    fn send_deferred(&mut self, mut message: ToMaster) -> Result<(), TransportError> {
        parts::send_ahead(&mut message, |data| {
            data.chunks(MAX_BYTES).try_for_each(|part| self.send_part(part))
        })?;
        let mut bytes = Vec::with_capacity(message.encoded_len());
        message.encode(&mut bytes);
        self.endpoint.send(MASTER, MESSAGE, bytes)
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<ToWorker>, TransportError> {
        if let Some(early) = self.early.pop_front() {
            return Ok(Some(early));
        }
        let received = self
            .endpoint
            .wait(timeout.min(PEER_CHECK_INTERVAL), &mut self.buffer);
        match received {
            None => {
                self.check_master()?;
                Ok(None)
            }
            Some((_, tag)) => self.take(tag).map(Some),
        }
    }
}
