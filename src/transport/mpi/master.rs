//! The master's side.

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use super::endpoint::{Endpoint, GOODBYE, MAX_PAUSE, MESSAGE, PART, PEER_CHECK_INTERVAL};
use super::patience::Patience;
use crate::protocol::{Rank, ToMaster, ToWorker};
use crate::transport::error::Peer;
use crate::transport::parts::Arrivals;
use crate::transport::{MasterTransport, Traffic, TransportError, WaitPolicy};

/// Maximum parts taken before the caller can do something else.
const MAX_PARTS_AT_ONCE: u32 = 256;

/// The master's side.
pub struct MpiMaster<'a> {
    endpoint: Endpoint<'a>,
    workers: u32,
    /// Messages that came while [`MasterTransport::close`] waited.
    early: VecDeque<(Rank, ToMaster)>,
    /// Workers that have said goodbye.
    goodbyes: Vec<bool>,
    /// A worker that was missing at the last check.
    suspect: Option<Rank>,
    traffic: Traffic,
    buffer: Vec<u8>,
    arrivals: Arrivals,
}

impl<'a> MpiMaster<'a> {
    pub(super) fn new(endpoint: Endpoint<'a>, workers: u32, folder: &Path) -> Self {
        Self {
            endpoint,
            workers,
            early: VecDeque::new(),
            goodbyes: vec![false; workers as usize],
            suspect: None,
            traffic: Traffic::default(),
            buffer: Vec::new(),
            arrivals: Arrivals::new(folder),
        }
    }

    /// Lets the workers end: they wait for this after their goodbye.
    pub fn release(&mut self) {
        for rank in 1..=self.workers {
            // A worker that cannot be reached needs no release.
            let _ = self.endpoint.send(Rank(rank), GOODBYE, Vec::new());
            self.endpoint.ring(Rank(rank));
        }
    }

    /// Reports workers of this host that have died. The launcher usually ends all processes then, but not
    /// always.
    fn check_workers(&mut self) -> Result<(), TransportError> {
        if !self.endpoint.is_peer_check_due() {
            return Ok(());
        }
        let missing = self.missing().next();
        // The time between two checks is enough to receive what the worker sent before its end.
        match missing {
            Some(rank) if missing == self.suspect => Err(TransportError::Died(Peer::Worker(rank))),
            _ => {
                self.suspect = missing;
                Ok(())
            }
        }
    }

    /// Workers that have not said goodbye.
    fn silent(&self) -> impl Iterator<Item = Rank> + '_ {
        let all = (1..).map(Rank).zip(&self.goodbyes);
        all.filter(|(_, goodbye)| !**goodbye).map(|(rank, _)| rank)
    }

    /// Workers of this host that have ended without a goodbye.
    fn missing(&self) -> impl Iterator<Item = Rank> + '_ {
        self.silent().filter(|rank| self.endpoint.is_gone(*rank))
    }

    /// Decodes the message in the buffer. Returns `None` for a goodbye and for a part, and notes them.
    fn take(&mut self, from: Rank, tag: mpi::Tag) -> Result<Option<(Rank, ToMaster)>, TransportError> {
        self.traffic.received += self.buffer.len() as u64;
        if tag == GOODBYE {
            if let Some(goodbye) = self.goodbyes.get_mut(from.0.wrapping_sub(1) as usize) {
                *goodbye = true;
            }
            return Ok(None);
        }
        if tag == PART {
            self.arrivals.add(from, &self.buffer);
            return Ok(None);
        }
        let mut message = ToMaster::decode(&self.buffer).map_err(|source| TransportError::Decode {
            from: Peer::Worker(from),
            source,
        })?;
        self.arrivals.complete(from, &mut message);
        Ok(Some((from, message)))
    }
}

impl MasterTransport for MpiMaster<'_> {
    fn workers(&self) -> u32 {
        self.workers
    }

    fn send(&mut self, to: Rank, message: ToWorker) -> Result<(), TransportError> {
        let mut bytes = Vec::with_capacity(message.encoded_len());
        message.encode(&mut bytes);
        self.traffic.sent += bytes.len() as u64;
        self.endpoint.send(to, MESSAGE, bytes)?;
        self.endpoint.ring(to);
        Ok(())
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<(Rank, ToMaster)>, TransportError> {
        if let Some(early) = self.early.pop_front() {
            return Ok(Some(early));
        }
        for _ in 0..MAX_PARTS_AT_ONCE {
            let received = self
                .endpoint
                .wait(timeout.min(PEER_CHECK_INTERVAL), &mut self.buffer);
            let Some((from, tag)) = received else {
                self.check_workers()?;
                return Ok(None);
            };
            if let Some(message) = self.take(from, tag)? {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    fn set_wait_policy(&mut self, policy: WaitPolicy) {
        self.endpoint.set_wait_policy(policy);
    }

    fn supports_prefill(&self) -> bool {
        true
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn close(&mut self, timeout: Duration) -> Vec<Rank> {
        let mut patience = Patience::new(timeout);
        let mut is_waiting = true;
        while is_waiting && !patience.is_over() {
            let received = self.endpoint.poll(&mut self.buffer);
            match received.map(|(from, tag)| self.take(from, tag)) {
                Some(Ok(Some(message))) => self.early.push_back(message),
                // Invalid messages do not matter any more.
                Some(Ok(None) | Err(_)) => {}
                None => std::thread::sleep(MAX_PAUSE),
            }
            // Dead workers are not waited for.
            if self.endpoint.is_peer_check_due() || !self.goodbyes.contains(&false) {
                is_waiting = self.missing().count() < self.silent().count();
            }
        }
        self.silent().collect()
    }
}
