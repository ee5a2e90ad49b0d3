//! Data of an attempt that is too large for a message travels in parts ahead of it: what is forwarded, and
//! the output of hosts that do not see the directory of the DAG file.

use std::io;
use std::path::Path;

use rustc_hash::FxHashMap;

use super::TransportError;
use crate::payload::{Payload, Queue, Spool};
use crate::protocol::{Rank, ToMaster};

/// Maximum forwarded data inside a message.
const MAX_INLINE: u64 = 16 << 10;

/// Maximum data of all workers in the memory of the master.
const MEMORY_BYTES: usize = 64 << 20;

/// Passes large data of a message to `send`, in order, a chunk at a time. The message then only names the
/// lengths. If data cannot be read, the receiver notices that it is missing, and the attempt fails.
pub(crate) fn send_ahead(
    message: &mut ToMaster,
    mut send: impl FnMut(&[u8]) -> Result<(), TransportError>,
) -> Result<(), TransportError> {
    let ToMaster::Finished(result) = message else {
        return Ok(());
    };
    let mut inline = 0;
    for data in result.payloads_mut() {
        let len = data.len();
        if matches!(data, Payload::Bytes(_)) && inline + len <= MAX_INLINE {
            inline += len;
            continue;
        }
        let mut failure = None;
        let read = data.for_each_chunk(|chunk| {
            send(chunk).map_err(|error| {
                failure = Some(error);
                io::Error::other("not sent")
            })
        });
        if let Some(failure) = failure {
            return Err(failure);
        }
        if let Err(error) = read {
            tracing::error!("Unable to read forwarded data: {}", pmc_dag::reason(&error));
        }
        *data = Payload::Sent(len);
    }
    Ok(())
}

/// Data that has come ahead of its message.
#[derive(Debug)]
pub(crate) struct Arrivals {
    spool: Spool,
    /// Data of each sender; `None` if it could not be stored.
    queues: FxHashMap<Rank, Option<Queue>>,
}

impl Arrivals {
    /// Large data is in files without names in `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            spool: Spool::new(folder, MEMORY_BYTES),
            queues: FxHashMap::default(),
        }
    }

    /// Stores a part. If that fails, the attempt will fail; the reason is logged.
    pub(crate) fn add(&mut self, from: Rank, part: &[u8]) {
        let queue = self.queues.entry(from).or_insert_with(|| Some(Queue::default()));
        if let Some(stored) = queue
            && let Err(error) = self.spool.add(stored, part)
        {
            tracing::error!("Worker {}: {error}", from.0);
            *queue = None;
        }
    }

    /// Puts the data into the message that it belongs to. Data that is missing stays [`Payload::Sent`].
    pub(crate) fn complete(&mut self, from: Rank, message: &mut ToMaster) {
        let ToMaster::Finished(result) = message else {
            return;
        };
        let Some(queue) = self.queues.remove(&from).flatten() else {
            return;
        };
        let mut data = self.spool.take(queue);
        let sent = |payload: &Payload| matches!(payload, Payload::Sent(_)).then(|| payload.len());
        // A worker may claim any lengths.
        let expected = result.payloads().filter_map(sent).try_fold(0, u64::checked_add);
        if expected != Some(data.len()) {
            return;
        }
        for piece in result.payloads_mut() {
            if let Some(len) = sent(piece) {
                *piece = data.split_off_front(len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::{ForwardedData, Outcome, Returned, SubmitId, TaskResult};

    fn result(pieces: &[Payload]) -> ToMaster {
        let forwards = pieces.iter().map(|data| ForwardedData {
            target: b"target".to_vec(),
            data: data.clone(),
        });
        ToMaster::Finished(TaskResult {
            submit: SubmitId(1),
            outcome: Outcome::new(0, Duration::ZERO),
            forwards: forwards.collect(),
            returned: None,
        })
    }

    /// Sends a message and receives it; `lose` drops the first part.
    fn transfer(message: &ToMaster, lose: bool) -> (ToMaster, usize) {
        let mut message = message.clone();
        let mut parts = Vec::new();
        let send = |part: &[u8]| {
            parts.push(part.to_vec());
            Ok(())
        };
        send_ahead(&mut message, send).unwrap();
        let mut encoded = Vec::new();
        message.encode(&mut encoded);
        let mut arrivals = Arrivals::new(Path::new("."));
        for part in &parts[usize::from(lose)..] {
            arrivals.add(Rank(3), part);
        }
        let mut received = ToMaster::decode(&encoded).unwrap();
        arrivals.complete(Rank(2), &mut received);
        arrivals.complete(Rank(3), &mut received);
        (received, encoded.len())
    }

    #[test]
    fn returned_files_go_with_forwarded_data() {
        let ToMaster::Finished(mut result) = result(&[vec![1; 20_000].into()]) else {
            panic!("not a result");
        };
        result.returned = Some(Box::new(Returned {
            out: vec![2; 300_000].into(),
            err: vec![3; 10].into(),
            files: vec![ForwardedData {
                target: b"file".to_vec(),
                data: vec![4; 17_000].into(),
            }],
        }));
        let message = ToMaster::Finished(result);
        let (received, len) = transfer(&message, false);
        assert!(received == message && len < 300);
    }

    #[test]
    fn large_data_goes_ahead_of_its_message() {
        let (small, large) = (vec![1; 100], vec![2; 500_000]);
        let message = result(&[
            small.clone().into(),
            large.into(),
            small.into(),
            vec![3; 16_300].into(),
        ]);
        let (received, len) = transfer(&message, false);
        assert!(received == message && len < 300);
        let (received, _) = transfer(&message, true);
        let ToMaster::Finished(received) = received else {
            panic!("not the same message");
        };
        assert_eq!(received.forwards[1].data, Payload::Sent(500_000));
        let small = result(&[vec![1; 16 << 10].into()]);
        assert!(transfer(&small, false).0 == small);
    }
    #[test]
    fn lengths_that_overflow_are_those_of_no_data() {
        let mut message = result(&[Payload::Sent(u64::MAX), Payload::Sent(2)]);
        let sent = message.clone();
        let mut arrivals = Arrivals::new(Path::new("."));
        arrivals.add(Rank(1), b"x");
        arrivals.complete(Rank(1), &mut message);
        assert!(message == sent);
        let ToMaster::Finished(sent) = sent else {
            panic!("not a result");
        };
        assert_eq!(sent.stored_len(), u64::MAX);
    }
}
