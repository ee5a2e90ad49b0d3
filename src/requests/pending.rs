//! Requests that workers have not answered.

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use pmc_system::clock;

use crate::control::{Reply, Target};
use crate::protocol::Rank;

/// A request is forgotten if its worker does not answer within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after an answer in which a tool asks for more if it has not seen all.
const NEXT_READ_TIMEOUT: Duration = Duration::from_millis(300);
/// Maximum time for which tools keep a run that has nothing else to do.
const LAST_READS_TIMEOUT: Duration = Duration::from_secs(20);

/// Requests to workers by their numbers, and whether the run waits for those who read.
#[derive(Debug, Default)]
pub(crate) struct PendingRequests {
    last_number: u64,
    pending: BTreeMap<u64, (Instant, PendingRequest)>,
    /// When a tool has got output.
    got_at: Option<Instant>,
    /// When the run had nothing else to do.
    idle_since: Option<Instant>,
    /// Until when the run waits for the next request.
    awaited_until: Option<Instant>,
}

/// A request to a worker.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) target: Target,
    /// It reads output that ends with the workers.
    pub(crate) is_read: bool,
    pub(crate) answer: SyncSender<Reply>,
}

impl PendingRequests {
    /// Notes a request. Returns its number.
    pub(crate) fn add(&mut self, request: PendingRequest) -> u64 {
        let now = clock::now();
        self.pending
            .retain(|_, (at, _)| now.duration_since(*at) < ANSWER_TIMEOUT);
        self.last_number += 1;
        self.pending.insert(self.last_number, (now, request));
        self.last_number
    }

    /// Removes the request with this number, unless it is forgotten or went to another worker.
    pub(crate) fn take(&mut self, from: Rank, number: u64) -> Option<PendingRequest> {
        let (_, request) = self.pending.get(&number)?;
        if request.target.worker != from.0 {
            return None;
        }
        self.pending.remove(&number).map(|(_, request)| request)
    }

    /// Notes that a tool has got output.
    pub(crate) fn note_output(&mut self) {
        self.got_at = Some(clock::now());
    }

    /// Returns whether a tool reads captured output of a task that has ended, now that the run has nothing
    /// else to do: that output ends with the workers. A tool that is slow, or stopped, is not waited for.
    pub(crate) fn keep_the_run(&mut self) -> bool {
        let now = clock::now();
        let idle_since = *self.idle_since.get_or_insert(now);
        let since = now.checked_sub(NEXT_READ_TIMEOUT).unwrap_or(now);
        let got_at = self.got_at.filter(|at| *at > since);
        let is_new_read = |(at, request): &(Instant, PendingRequest)| request.is_read && *at > since;
        let last = got_at.or_else(|| self.pending.values().any(is_new_read).then_some(now));
        let until = last.map(|at| (at + NEXT_READ_TIMEOUT).min(idle_since + LAST_READS_TIMEOUT));
        self.awaited_until = until.filter(|until| *until > now);
        self.awaited_until.is_some()
    }

    /// Returns when to look again for tools that are waited for.
    pub(crate) fn next_check(&self) -> Option<Instant> {
        self.awaited_until
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    fn request(worker: u32) -> PendingRequest {
        let target = Target {
            task: "t".into(),
            worker,
            attempt: 7,
        };
        PendingRequest {
            target,
            is_read: true,
            answer: sync_channel(1).0,
        }
    }

    #[test]
    fn the_answer_of_another_worker_is_left_out() {
        let mut pending = PendingRequests::default();
        let (first, second) = (pending.add(request(1)), pending.add(request(2)));
        assert!(pending.take(Rank(2), first).is_none());
        assert_eq!(pending.take(Rank(1), first).unwrap().target.worker, 1);
        assert!(pending.take(Rank(1), first).is_none(), "it is answered");
        assert!(pending.take(Rank(2), second + 1).is_none());
        assert!(pending.take(Rank(2), second).is_some());
    }

    #[test]
    fn those_who_read_keep_the_run_for_a_moment() {
        let mut pending = PendingRequests::default();
        assert!(!pending.keep_the_run() && pending.next_check().is_none());
        let mut write = request(1);
        write.is_read = false;
        pending.add(write);
        assert!(!pending.keep_the_run());
        let number = pending.add(request(1));
        assert!(pending.keep_the_run() && pending.next_check().is_some());
        assert!(pending.take(Rank(1), number).is_some());
        assert!(!pending.keep_the_run());
        pending.note_output();
        assert!(pending.keep_the_run());
    }
}
