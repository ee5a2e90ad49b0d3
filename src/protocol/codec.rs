//! Messages as bytes.
//!
//! The first byte is the version of the encoding, the second the kind of message. Numbers are
//! written seven bits a byte, lowest first, the high bit set where more follow; byte strings and
//! lists have their length before them. Messages to the master and to workers have different
//! kinds, so that neither is ever taken for the other.
//!
//! Master and workers are the same program, started together; the version is there to tell a
//! mixed installation from a broken message.

use std::time::Duration;

use thiserror::Error;

use super::{
    Assignment, ForwardedData, Outcome, QuietAttempt, Registration, SubmitId, TaskResult, ToMaster, ToWorker,
};

/// Version of the encoding.
const VERSION: u8 = 4;

const REGISTER: u8 = 1;
const FINISHED: u8 = 2;
const FAILED: u8 = 3;
const READY: u8 = 4;
const RETRACTED: u8 = 5;
const SETUP: u8 = 17;
const RUN: u8 = 18;
const SHUTDOWN: u8 = 19;
const ABORT: u8 = 20;
const RETRACT: u8 = 21;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// From a program of another version.
    #[error(
        "the message has version {0} of the encoding, not {VERSION}: master and workers are different programs"
    )]
    Version(u8),
    /// No such kind of message in this direction.
    #[error("unknown kind of message {0}")]
    Kind(u8),
    /// The message ends too early.
    #[error("the message is cut off")]
    Truncated,
    /// There is more than one message.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
    /// A number is out of its range.
    #[error("a number in the message is out of range")]
    Number,
    /// A text is not UTF-8.
    #[error("a text in the message is not UTF-8")]
    Text,
}

impl ToMaster {
    /// Appends the message as bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.write(out);
    }

    /// Length of the message as bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let mut count = Count(0);
        self.write(&mut count);
        count.0
    }

    fn write(&self, out: &mut impl Sink) {
        out.bytes(&[VERSION]);
        match self {
            Self::Register(registration) => {
                out.bytes(&[REGISTER]);
                out.string(registration.host.as_bytes());
                out.number(registration.memory_mb);
                out.number(registration.threads.into());
                out.number(registration.cores.into());
                out.number(registration.sockets.into());
                out.number(registration.gpus.into());
            }
            Self::Finished(result) => {
                out.bytes(&[FINISHED]);
                out.number(result.submit.0);
                // The sign goes into the lowest bit, so that small statuses of both signs are short.
                let status = result.outcome.status;
                out.number(u64::from((status << 1 ^ status >> 31) as u32));
                out.number(result.outcome.runtime.as_secs());
                out.number(result.outcome.runtime.subsec_nanos().into());
                out.number(result.forwards.len() as u64);
                for forward in &result.forwards {
                    out.string(&forward.target);
                    out.string(&forward.data);
                }
                match result.outcome.quiet {
                    Some(quiet) => {
                        // 0 is none.
                        out.number(u64::from(quiet.file) + 1);
                        out.number(quiet.start_ms);
                    }
                    None => out.number(0),
                }
            }
            Self::Ready => out.bytes(&[READY]),
            Self::Retracted { submits } => {
                out.bytes(&[RETRACTED]);
                out.number(submits.len() as u64);
                for submit in submits {
                    out.number(submit.0);
                }
            }
            Self::Failed { message } => {
                out.bytes(&[FAILED]);
                out.string(message.as_bytes());
            }
        }
    }

    /// Reads one message.
    ///
    /// # Errors
    /// The bytes are not exactly one message to the master.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut input) = open(bytes)?;
        let message = match kind {
            REGISTER => Self::Register(Registration {
                host: input.text()?,
                memory_mb: input.number()?,
                threads: input.small()?,
                cores: input.small()?,
                sockets: input.small()?,
                gpus: input.small()?,
            }),
            FINISHED => {
                let submit = SubmitId(input.number()?);
                let bits: u32 = input.small()?;
                let status = (bits >> 1) as i32 ^ -((bits & 1) as i32);
                let seconds = input.number()?;
                let nanoseconds: u32 = input.small()?;
                if nanoseconds >= 1_000_000_000 {
                    return Err(DecodeError::Number);
                }
                let mut outcome = Outcome::new(status, Duration::new(seconds, nanoseconds));
                let forwards = input.list(2, |input| {
                    Ok(ForwardedData {
                        target: input.string()?.to_vec(),
                        data: input.string()?.to_vec(),
                    })
                })?;
                if let Some(file) = input.number()?.checked_sub(1) {
                    outcome.quiet = Some(QuietAttempt {
                        file: u32::try_from(file).map_err(|_| DecodeError::Number)?,
                        start_ms: input.number()?,
                    });
                }
                Self::Finished(TaskResult {
                    submit,
                    outcome,
                    forwards,
                })
            }
            FAILED => Self::Failed {
                message: input.text()?,
            },
            READY => Self::Ready,
            RETRACTED => Self::Retracted {
                submits: input.list(1, |input| Ok(SubmitId(input.number()?)))?,
            },
            other => return Err(DecodeError::Kind(other)),
        };
        input.close(message)
    }
}

impl ToWorker {
    /// Appends the message as bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.write(out);
    }

    /// Length of the message as bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let mut count = Count(0);
        self.write(&mut count);
        count.0
    }

    fn write(&self, out: &mut impl Sink) {
        out.bytes(&[VERSION]);
        match self {
            Self::Setup { host_rank } => {
                out.bytes(&[SETUP]);
                out.number((*host_rank).into());
            }
            Self::Run(assignment) => {
                out.bytes(&[RUN]);
                out.number(assignment.submit.0);
                out.string(&assignment.name);
                match &assignment.id {
                    Some(id) => {
                        out.number(1);
                        out.string(id);
                    }
                    None => out.number(0),
                }
                out.string(&assignment.command);
                out.number(assignment.memory_mb);
                out.number(assignment.cpus.into());
                for set in [&assignment.cpu_set, &assignment.gpu_set] {
                    out.number(set.len() as u64);
                    for number in set {
                        out.number((*number).into());
                    }
                }
                // 0 is no limit, so that others are one more.
                out.number(assignment.runtime_limit.map_or(0, |limit| {
                    u64::try_from(limit.as_millis()).map_or(u64::MAX, |limit| limit.saturating_add(1))
                }));
                for forwards in [&assignment.pipe_forwards, &assignment.file_forwards] {
                    out.number(forwards.len() as u64);
                    for (from, to) in forwards {
                        out.string(from);
                        out.string(to);
                    }
                }
            }
            Self::Shutdown => out.bytes(&[SHUTDOWN]),
            Self::Abort => out.bytes(&[ABORT]),
            Self::Retract => out.bytes(&[RETRACT]),
        }
    }

    /// Reads one message.
    ///
    /// # Errors
    /// The bytes are not exactly one message to a worker.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut input) = open(bytes)?;
        let message = match kind {
            SETUP => Self::Setup {
                host_rank: input.small()?,
            },
            RUN => Self::Run(Box::new(Assignment {
                submit: SubmitId(input.number()?),
                name: input.string()?.to_vec(),
                id: match input.number()? {
                    0 => None,
                    1 => Some(input.string()?.to_vec()),
                    _ => return Err(DecodeError::Number),
                },
                command: input.string()?.to_vec(),
                memory_mb: input.number()?,
                cpus: input.small()?,
                cpu_set: input.list(1, Input::small)?,
                gpu_set: input.list(1, Input::small)?,
                runtime_limit: input.number()?.checked_sub(1).map(Duration::from_millis),
                pipe_forwards: input.list(2, Input::pair)?,
                file_forwards: input.list(2, Input::pair)?,
            })),
            SHUTDOWN => Self::Shutdown,
            ABORT => Self::Abort,
            RETRACT => Self::Retract,
            other => return Err(DecodeError::Kind(other)),
        };
        input.close(message)
    }
}

/// Where bytes go: into a buffer, or only counted.
trait Sink {
    fn bytes(&mut self, bytes: &[u8]);

    fn number(&mut self, mut number: u64) {
        let mut buffer = [0; 10];
        let mut len = 0;
        while number >= 0x80 {
            buffer[len] = number as u8 | 0x80;
            number >>= 7;
            len += 1;
        }
        buffer[len] = number as u8;
        self.bytes(&buffer[..=len]);
    }

    fn string(&mut self, string: &[u8]) {
        self.number(string.len() as u64);
        self.bytes(string);
    }
}

impl Sink for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

struct Count(usize);

impl Sink for Count {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

fn open(bytes: &[u8]) -> Result<(u8, Input<'_>), DecodeError> {
    match bytes {
        [VERSION, kind, rest @ ..] => Ok((*kind, Input(rest))),
        [] | [VERSION] => Err(DecodeError::Truncated),
        [other, ..] => Err(DecodeError::Version(*other)),
    }
}

/// What is left of a message.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit only.
            if bits << shift >> shift != bits {
                return Err(DecodeError::Number);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(DecodeError::Number)
    }

    fn small(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.number()?).map_err(|_| DecodeError::Number)
    }

    fn string(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.number()?;
        self.take(usize::try_from(len).map_err(|_| DecodeError::Truncated)?)
    }

    fn text(&mut self) -> Result<String, DecodeError> {
        String::from_utf8(self.string()?.to_vec()).map_err(|_| DecodeError::Text)
    }

    fn pair(&mut self) -> Result<(Vec<u8>, Vec<u8>), DecodeError> {
        Ok((self.string()?.to_vec(), self.string()?.to_vec()))
    }

    /// A list whose elements have at least `least` bytes each: a length that the message cannot
    /// hold is refused before anything is allocated for it.
    fn list<T>(
        &mut self,
        least: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let len = usize::try_from(self.number()?).map_err(|_| DecodeError::Truncated)?;
        if len > self.0.len() / least {
            return Err(DecodeError::Truncated);
        }
        (0..len).map(|_| element(self)).collect()
    }

    fn close<T>(self, message: T) -> Result<T, DecodeError> {
        if self.0.is_empty() {
            Ok(message)
        } else {
            Err(DecodeError::Trailing(self.0.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        vec(any::<u8>(), 0..40)
    }

    fn to_master() -> impl Strategy<Value = ToMaster> {
        let registration = (
            any::<String>(),
            any::<u64>(),
            any::<u32>(),
            any::<u32>(),
            any::<u32>(),
            any::<u32>(),
        )
            .prop_map(|(host, memory_mb, threads, cores, sockets, gpus)| {
                ToMaster::Register(Registration {
                    host,
                    memory_mb,
                    threads,
                    cores,
                    sockets,
                    gpus,
                })
            });
        let forwards = vec(
            (bytes(), bytes()).prop_map(|(target, data)| ForwardedData { target, data }),
            0..4,
        );
        let result = (
            any::<u64>(),
            any::<i32>(),
            any::<u64>(),
            0..1_000_000_000_u32,
            forwards,
            proptest::option::of((any::<u32>(), any::<u64>())),
        )
            .prop_map(|(submit, status, seconds, nanoseconds, forwards, quiet)| {
                let mut outcome = Outcome::new(status, Duration::new(seconds, nanoseconds));
                outcome.quiet = quiet.map(|(file, start_ms)| QuietAttempt { file, start_ms });
                ToMaster::Finished(TaskResult {
                    submit: SubmitId(submit),
                    outcome,
                    forwards,
                })
            });
        prop_oneof![
            registration,
            result,
            Just(ToMaster::Ready),
            vec(any::<u64>().prop_map(SubmitId), 0..9).prop_map(|submits| ToMaster::Retracted { submits }),
            any::<String>().prop_map(|message| ToMaster::Failed { message })
        ]
    }

    fn to_worker() -> impl Strategy<Value = ToWorker> {
        let forwards = || vec((bytes(), bytes()), 0..4);
        let run = (
            (any::<u64>(), bytes(), proptest::option::of(bytes()), bytes()),
            (
                any::<u64>(),
                any::<u32>(),
                (vec(any::<u32>(), 0..9), vec(any::<u32>(), 0..9)),
                proptest::option::of(0..u64::MAX),
                forwards(),
                forwards(),
            ),
        )
            .prop_map(
                |(
                    (submit, name, id, command),
                    (memory_mb, cpus, (cpu_set, gpu_set), limit, pipe_forwards, file_forwards),
                )| {
                    ToWorker::Run(Box::new(Assignment {
                        submit: SubmitId(submit),
                        name,
                        id,
                        command,
                        memory_mb,
                        cpus,
                        cpu_set,
                        gpu_set,
                        runtime_limit: limit.map(Duration::from_millis),
                        pipe_forwards,
                        file_forwards,
                    }))
                },
            );
        prop_oneof![
            any::<u32>().prop_map(|host_rank| ToWorker::Setup { host_rank }),
            run,
            Just(ToWorker::Shutdown),
            Just(ToWorker::Abort),
            Just(ToWorker::Retract),
        ]
    }

    proptest! {
        #[test]
        fn messages_to_the_master_come_back(message in to_master()) {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            prop_assert_eq!(encoded.len(), message.encoded_len());
            prop_assert_eq!(ToMaster::decode(&encoded), Ok(message));
            prop_assert!(ToWorker::decode(&encoded).is_err(), "taken for a message to a worker");
            for len in 0..encoded.len() {
                prop_assert!(ToMaster::decode(&encoded[..len]).is_err(), "{len} bytes are enough");
            }
            encoded.push(0);
            prop_assert_eq!(ToMaster::decode(&encoded), Err(DecodeError::Trailing(1)));
        }

        #[test]
        fn messages_to_workers_come_back(message in to_worker()) {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            prop_assert_eq!(encoded.len(), message.encoded_len());
            prop_assert_eq!(ToWorker::decode(&encoded), Ok(message));
            prop_assert!(ToMaster::decode(&encoded).is_err(), "taken for a message to the master");
            for len in 0..encoded.len() {
                prop_assert!(ToWorker::decode(&encoded[..len]).is_err(), "{len} bytes are enough");
            }
            encoded.push(0);
            prop_assert_eq!(ToWorker::decode(&encoded), Err(DecodeError::Trailing(1)));
        }

        #[test]
        fn any_bytes_are_survived(kind in 0_u8..25, mut rest in vec(any::<u8>(), 0..200)) {
            let _ = (ToMaster::decode(&rest), ToWorker::decode(&rest));
            rest.splice(0..0, [VERSION, kind]);
            let _ = (ToMaster::decode(&rest), ToWorker::decode(&rest));
        }

        #[test]
        fn changed_messages_are_survived(message in to_worker(), at in any::<prop::sample::Index>(), byte: u8) {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            *at.get_mut(&mut encoded) = byte;
            let _ = ToWorker::decode(&encoded);
        }
    }

    #[test]
    fn lengths_that_the_message_cannot_hold_are_refused() {
        // A result that claims 2^62 pieces of forwarded data.
        let mut bytes = vec![VERSION, FINISHED, 1, 0, 0, 0];
        bytes.number(1 << 62);
        assert_eq!(ToMaster::decode(&bytes), Err(DecodeError::Truncated));
        let mut bytes = vec![VERSION, FAILED];
        bytes.number(u64::MAX);
        assert_eq!(ToMaster::decode(&bytes), Err(DecodeError::Truncated));
    }

    #[test]
    fn other_versions_and_kinds_are_named() {
        assert_eq!(ToMaster::decode(&[9, REGISTER]), Err(DecodeError::Version(9)));
        assert_eq!(ToMaster::decode(&[VERSION, 99]), Err(DecodeError::Kind(99)));
        assert_eq!(
            ToMaster::decode(&[VERSION, SHUTDOWN]),
            Err(DecodeError::Kind(SHUTDOWN))
        );
        assert_eq!(ToWorker::decode(&[]), Err(DecodeError::Truncated));
        let too_long = [&[VERSION, SETUP][..], &[0xff; 9], &[0x02]].concat();
        assert_eq!(ToWorker::decode(&too_long), Err(DecodeError::Number));
        assert_eq!(
            ToMaster::decode(&[VERSION, FAILED, 1, 0xff]),
            Err(DecodeError::Text)
        );
    }

    #[test]
    fn a_small_result_is_small() {
        let result = TaskResult {
            submit: SubmitId(1_000_000),
            outcome: Outcome::new(256, Duration::from_millis(5)),
            forwards: Vec::new(),
        };
        assert!(ToMaster::Finished(result).encoded_len() <= 14);
    }
}
