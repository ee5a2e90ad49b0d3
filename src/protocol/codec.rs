//! Messages as bytes.
//!
//! A message is the version of the encoding, the direction, and the message in the format of `postcard`. The
//! direction keeps a message to the master from being read as one to a worker. Master and workers are the
//! same program; the version distinguishes a mixed installation from a damaged message.

use postcard::ser_flavors::Size;
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::{ToMaster, ToWorker};

/// Version of the encoding.
pub const VERSION: u8 = 19;

/// Directions.
const TO_MASTER: u8 = 1;
const TO_WORKER: u8 = 2;

/// Why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The sender is a program of another version.
    #[error(
        "the message has version {0} of the encoding, not {VERSION}: master and workers are different programs"
    )]
    Version(u8),
    /// The message is for another receiver.
    #[error("the message has direction {0}")]
    Direction(u8),
    /// The bytes do not encode a message.
    #[error("the message is damaged: {0}")]
    Damaged(postcard::Error),
    /// Bytes follow the message.
    #[error("{0} bytes follow the message")]
    Trailing(usize),
}

macro_rules! codec {
    ($message:ty, $direction:expr) => {
        impl $message {
            /// Appends the encoded message.
            pub fn encode(&self, out: &mut Vec<u8>) {
                encode($direction, self, out);
            }

            /// Returns the length of the encoded message in bytes.
            #[must_use]
            pub fn encoded_len(&self) -> usize {
                2 + body_len(self)
            }

            /// Decodes one message. Lengths beyond the message are refused; a damaged length makes this
            /// allocate at most a megabyte too much.
            ///
            /// # Errors
            /// The bytes are not exactly one message in this direction.
            pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
                decode($direction, bytes)
            }
        }
    };
}

codec!(ToMaster, TO_MASTER);
codec!(ToWorker, TO_WORKER);

/// The messages have no field that can fail to encode.
const ENCODES: &str = "messages consist of numbers, strings and lists";

fn encode(direction: u8, message: &impl Serialize, out: &mut Vec<u8>) {
    out.extend([VERSION, direction]);
    let extended = postcard::to_extend(message, std::mem::take(out));
    *out = extended.expect(ENCODES);
}

fn body_len(message: &impl Serialize) -> usize {
    postcard::serialize_with_flavor(message, Size::default()).expect(ENCODES)
}

fn decode<T: DeserializeOwned>(direction: u8, bytes: &[u8]) -> Result<T, DecodeError> {
    let body = match bytes {
        [VERSION, found, body @ ..] if *found == direction => body,
        [VERSION, found, ..] => return Err(DecodeError::Direction(*found)),
        [] | [VERSION] => return Err(DecodeError::Damaged(postcard::Error::DeserializeUnexpectedEnd)),
        [other, ..] => return Err(DecodeError::Version(*other)),
    };
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(DecodeError::Trailing(rest.len())),
        Err(error) => Err(DecodeError::Damaged(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::*;
    use crate::payload::Payload;
    use crate::protocol::{
        AnswerBody, Assignment, AttemptAnswer, AttemptRequest, Carried, CarriedFile, Chunk, Deliverer,
        EarlierAttempt, EarlierGang, EarlierMember, EndCause, ForwardedData, GangHost, GangStart, GangToken,
        Membership, MemoryUse, Outcome, Output, Part, Place, ReadRequest, RedirectAnswer, RedirectRequest,
        Registration, RequestBody, Returned, Stdin, SubmitId, TaskResult, WriteAnswer, WriteRequest,
    };
    use pmc_checkpoint::nodes::{Given, GivenFile, MasterSays, NodeSays, SavedFile};
    use pmc_checkpoint::{Notice, Prefix};
    use pmc_control::{OutputChunk, Overflow, Position, RedirectEnd, RedirectOptions, RedirectPoll};

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        vec(any::<u8>(), 0..40)
    }

    fn options(token: u64) -> RedirectOptions {
        RedirectOptions {
            token,
            tool: "a tool".to_owned(),
            streams: [token.is_multiple_of(2), true],
            buffer: 5,
            patience_ms: 7,
            overflow: Overflow::DropOldest,
        }
    }

    fn carried() -> Carried {
        Carried {
            description: b"{}".to_vec(),
            files: vec![CarriedFile {
                path: "a".into(),
                data: vec![0, 255],
            }],
        }
    }

    fn position() -> impl Strategy<Value = Position> {
        any::<(u64, u64)>().prop_map(|(file, offset)| Position { file, offset })
    }

    fn durations() -> impl Strategy<Value = Duration> {
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos))
    }

    fn part() -> impl Strategy<Value = Part> {
        let numbers = || vec(any::<u32>(), 0..9);
        (any::<[u32; 2]>(), any::<u64>(), numbers(), numbers()).prop_map(
            |([ranks, cpus], memory_mb, cpu_set, gpu_set)| Part {
                ranks,
                cpus,
                memory_mb,
                cpu_set,
                gpu_set,
            },
        )
    }

    /// What nodes say about checkpoints.
    fn of_checkpoints() -> impl Strategy<Value = NodeSays> {
        let begin = (vec(any::<String>(), 0..3), vec(any::<String>(), 0..3));
        let begin = begin.prop_map(|(addresses, runs)| NodeSays::Begin { addresses, runs });
        let want = (any::<[u64; 2]>(), bytes()).prop_map(|([number, submit], task)| NodeSays::Want {
            number,
            dag: task.clone(),
            task,
            submit,
        });
        let has = saved_file().prop_flat_map(|file| {
            prop_oneof![Just(NodeSays::Has(file.clone())), Just(NodeSays::HasNot(file))]
        });
        let withhold =
            any::<([String; 3], u64)>().prop_map(|([run, task, reason], series)| NodeSays::Withhold {
                run,
                task,
                series,
                reason,
            });
        let message = (bytes(), any::<String>()).prop_map(|(task, text)| NodeSays::Message {
            dag: task.clone(),
            task,
            text,
        });
        let flushed = (any::<u64>(), saved_file(), any::<Option<String>>());
        let flushed = flushed.prop_map(|(transfer, file, failed)| NodeSays::Flushed {
            transfer,
            file,
            failed,
        });
        let leaves = Just(NodeSays::Leaves);
        prop_oneof![begin, want, has, withhold, message, flushed, leaves]
    }

    /// What the master says about them.
    fn of_master_about_checkpoints() -> impl Strategy<Value = MasterSays> {
        let sources = || vec(vec(any::<String>(), 0..2), 0..2);
        let given = (
            any::<[u64; 3]>(),
            saved_file(),
            sources(),
            any::<Option<String>>(),
        );
        let given = given.prop_map(|([number, last, series], file, sources, refused)| {
            let run = file.run.clone();
            let file = GivenFile {
                file,
                is_here: number % 2 == 0,
                sources,
            };
            let series = Some((series, vec![file]));
            let given = refused.map_or(Ok(Given { run, last, series }), Err);
            MasterSays::Given { number, given }
        });
        let copy = (saved_file(), sources()).prop_map(|(file, sources)| MasterSays::Copy { file, sources });
        let drop = any::<([String; 2], u64)>().prop_map(|([run, task], below)| MasterSays::Drop {
            run,
            task,
            below,
        });
        let safe = any::<([String; 2], u64)>().prop_map(|([run, task], series)| MasterSays::Safe {
            run,
            task,
            series,
        });
        let flush = (bytes(), any::<u64>(), saved_file(), sources());
        let flush = flush.prop_map(|(dag, transfer, file, sources)| MasterSays::Flush {
            dag,
            transfer,
            file,
            sources,
        });
        let tell = any::<String>().prop_map(|run| MasterSays::Tell { run });
        prop_oneof![
            given,
            copy,
            drop,
            safe,
            tell,
            flush,
            Just(MasterSays::MayGo),
            saved_file().prop_map(MasterSays::Discard)
        ]
    }

    fn saved_file() -> impl Strategy<Value = SavedFile> {
        (
            any::<[String; 2]>(),
            any::<[u64; 3]>(),
            any::<[u32; 2]>(),
            -1e9..1e9,
        )
            .prop_map(
                |([run, task], [submit, series, bytes], [rank, ranks], closed)| SavedFile {
                    run,
                    task,
                    submit,
                    series,
                    prefix: Prefix::try_from("fields0").unwrap(),
                    rank,
                    ranks,
                    bytes,
                    closed,
                },
            )
    }

    /// What members and leads of gangs say.
    fn of_gangs() -> impl Strategy<Value = ToMaster> {
        let submit = || any::<u64>().prop_map(SubmitId);
        let texts = || vec(any::<String>(), 0..3);
        let dag = proptest::option::of(bytes());
        let member = (submit(), bytes(), dag, part()).prop_map(|(submit, task, dag, part)| {
            ToMaster::Member(Box::new(EarlierMember {
                submit,
                task,
                dag,
                part,
            }))
        });
        let lead = (submit(), bytes(), texts(), part()).prop_map(|(submit, task, members, part)| {
            let Part {
                ranks,
                cpus,
                cpu_set,
                gpu_set,
                ..
            } = part;
            ToMaster::Running(EarlierAttempt {
                submit,
                task,
                cpu_set,
                gpu_set,
                dag: None,
                gang: Some(Box::new(EarlierGang { members, ranks, cpus })),
            })
        });
        prop_oneof![
            (submit(), texts()).prop_map(|(submit, addresses)| ToMaster::Joined { submit, addresses }),
            (submit(), any::<String>()).prop_map(|(submit, why)| ToMaster::NotJoined { submit, why }),
            (submit(), any::<bool>(), texts()).prop_map(|(submit, cut, killed)| ToMaster::Left {
                submit,
                cut,
                killed
            }),
            member,
            lead,
        ]
    }

    fn gang(token: u64, names: &[Vec<u8>]) -> GangStart {
        let host = |name: &Vec<u8>| GangHost {
            name: String::from_utf8_lossy(name).into_owned(),
            ranks: name.len() as u32,
            addresses: vec!["[::1]:7".to_owned()],
        };
        GangStart {
            token: GangToken(u128::from(token) << 64),
            hosts: names.iter().map(host).collect(),
            exclusive: token.is_multiple_of(2),
        }
    }

    fn result() -> impl Strategy<Value = ToMaster> {
        let forwards = vec(
            (
                bytes(),
                prop_oneof![
                    bytes().prop_map(Payload::Bytes),
                    any::<u64>().prop_map(Payload::Sent)
                ],
            )
                .prop_map(|(target, data)| ForwardedData { target, data }),
            0..4,
        );
        let memory = proptest::option::of((any::<u64>(), any::<u64>(), any::<bool>()));
        let numbers = (any::<u64>(), any::<i32>(), durations());
        (numbers, forwards, memory, any::<bool>()).prop_map(
            |((submit, status, runtime), forwards, memory, is_away)| {
                let mut outcome = Outcome::new(status, runtime);
                outcome.memory = memory.map(|(peak_mib, requested_mib, out_of_memory)| MemoryUse {
                    peak_mib,
                    requested_mib,
                    out_of_memory,
                });
                outcome.cause = memory.map(|_| EndCause::CannotRun);
                ToMaster::Finished(TaskResult {
                    submit: SubmitId(submit),
                    outcome,
                    forwards,
                    returned: is_away.then(|| Box::new(Returned::default())),
                })
            },
        )
    }

    fn to_master() -> impl Strategy<Value = ToMaster> {
        let registration = (any::<String>(), any::<u64>(), any::<[u32; 4]>(), any::<bool>()).prop_map(
            |(host, memory_mb, [threads, cores, sockets, gpus], away)| {
                ToMaster::Register(Registration {
                    host,
                    memory_mb,
                    threads,
                    cores,
                    sockets,
                    gpus,
                    away,
                })
            },
        );
        let chunk = || (position(), bytes()).prop_map(|(position, bytes)| Chunk { position, bytes });
        let taken = proptest::option::of(any::<u64>());
        let taken = taken.prop_map(|count| count.map_or(WriteAnswer::Closed, WriteAnswer::Taken));
        let output = || {
            let times = vec((any::<u64>(), any::<u64>()), 0..3);
            (any::<u64>(), bytes(), times).prop_map(|(offset, bytes, times)| OutputChunk {
                offset,
                bytes,
                times,
                dropped: offset / 2,
            })
        };
        let redirected = prop_oneof![
            [output(), output()].prop_map(|chunks| RedirectAnswer::Chunks(Box::new(chunks))),
            Just(RedirectAnswer::Ended(RedirectEnd::TooSlow, [0, 7])),
            any::<String>().prop_map(RedirectAnswer::TakenBy),
        ];
        let body = prop_oneof![
            [chunk(), chunk()].prop_map(AnswerBody::Read),
            taken.prop_map(AnswerBody::Written),
            redirected.prop_map(AnswerBody::Redirected),
            any::<String>().prop_map(|why| AnswerBody::Stacks(Err(why))),
            Just(AnswerBody::Stacks(Ok(Box::default()))),
        ];
        let answer = (any::<u64>(), body)
            .prop_map(|(number, body)| ToMaster::Answer(Box::new(AttemptAnswer { number, body })));
        prop_oneof![
            registration,
            result(),
            answer,
            of_gangs(),
            of_checkpoints().prop_map(|said| ToMaster::Checkpoint(Box::new(said))),
            Just(ToMaster::Ready),
            ".*".prop_map(|message| ToMaster::NotReady { message }),
            Just(ToMaster::Terminating),
            vec(any::<u64>().prop_map(SubmitId), 0..9).prop_map(|submits| ToMaster::Retracted { submits }),
            any::<String>().prop_map(|message| ToMaster::Failed { message })
        ]
    }

    #[expect(clippy::too_many_lines, reason = "an arm for each message")]
    fn to_worker() -> impl Strategy<Value = ToWorker> {
        let forwards = || vec((bytes(), bytes()), 0..4);
        let numbers = || vec(any::<u32>(), 0..9);
        let texts = (bytes(), proptest::option::of(bytes()), bytes());
        let resources = (any::<u64>(), any::<u32>(), numbers(), numbers());
        let limit = proptest::option::of(durations());
        let messages = (
            vec(bytes(), 0..3),
            vec(bytes(), 0..3),
            proptest::option::of(any::<u32>()),
            proptest::option::of(prop_oneof![Just(Stdin::Push), bytes().prop_map(Stdin::File)]),
        );
        let run = (
            any::<u64>(),
            texts,
            resources,
            limit,
            (forwards(), forwards()),
            messages,
        )
            .prop_map(
                |(submit, (name, id, command), resources, runtime_limit, forwards, messages)| {
                    let (memory_mb, cpus, cpu_set, gpu_set) = resources;
                    let (pipe_forwards, file_forwards) = forwards;
                    let (failure_messages, success_messages, packed, stdin) = messages;
                    let place = packed.map(|_| {
                        let (dag, directory) = (command.clone(), name.clone());
                        Box::new(Place { dag, directory })
                    });
                    ToWorker::Run(Box::new(Assignment {
                        submit: SubmitId(submit),
                        attempt: cpus,
                        name,
                        id,
                        command,
                        memory_mb,
                        cpus,
                        cpu_set,
                        gpu_set,
                        runtime_limit,
                        pipe_forwards,
                        file_forwards,
                        output: match packed {
                            None => Output::Merged,
                            Some(number) if number % 2 == 0 => Output::Packed(number),
                            Some(_) => Output::Away(Some(Box::new(carried()))),
                        },
                        stdin,
                        relay: packed.is_none(),
                        redirect: packed.map(|_| Box::new(options(submit))),
                        gang: packed.map(|_| Box::new(gang(submit, &failure_messages))),
                        failure_messages,
                        success_messages,
                        place,
                        restarts: cpus,
                    }))
                },
            );
        let read = ([position(), position()], any::<[bool; 2]>()).prop_map(|(after, [is_own, may_wait])| {
            RequestBody::Read(ReadRequest {
                after,
                is_own,
                may_wait,
            })
        });
        let write = (bytes(), any::<bool>())
            .prop_map(|(bytes, is_end)| RequestBody::Write(WriteRequest { bytes, is_end }));
        let redirect = (any::<u64>(), any::<[u64; 2]>(), any::<bool>());
        let redirect = redirect.prop_map(|(token, delivered, may_wait)| {
            RequestBody::Redirect(RedirectRequest {
                poll: RedirectPoll {
                    options: options(token),
                    delivered,
                    is_end: !may_wait,
                },
                may_wait,
                by: if token % 3 == 0 {
                    Deliverer::Tool
                } else {
                    Deliverer::Run { has_room: may_wait }
                },
            })
        });
        let body = prop_oneof![
            any::<i32>().prop_map(RequestBody::Signal),
            any::<bool>().prop_map(|all_threads| RequestBody::Stacks { all_threads }),
            read,
            write,
            redirect
        ];
        let request = (any::<u64>(), any::<u64>(), body).prop_map(|(number, submit, body)| {
            let submit = SubmitId(submit);
            ToWorker::Request(Box::new(AttemptRequest { number, submit, body }))
        });
        let join = (any::<u64>(), any::<u128>(), bytes(), part(), any::<bool>()).prop_map(
            |(submit, token, task, part, is_nested)| {
                ToWorker::Join(Box::new(Membership {
                    submit: SubmitId(submit),
                    token: GangToken(token),
                    place: is_nested.then(|| {
                        let (dag, directory) = (task.clone(), b"d".to_vec());
                        Box::new(Place { dag, directory })
                    }),
                    task,
                    part,
                }))
            },
        );
        prop_oneof![
            request,
            join,
            any::<u64>().prop_map(|submit| ToWorker::Leave {
                submit: SubmitId(submit)
            }),
            any::<u32>().prop_map(|host_rank| ToWorker::Setup { host_rank }),
            of_master_about_checkpoints().prop_map(|said| ToWorker::Checkpoint(Box::new(said))),
            run,
            Just(ToWorker::Shutdown),
            Just(ToWorker::Abort),
            Just(ToWorker::Retract),
        ]
    }

    proptest! {
        #[test]
        fn messages_to_the_master_round_trip(message in to_master()) {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            prop_assert_eq!(encoded.len(), message.encoded_len());
            prop_assert_eq!(ToWorker::decode(&encoded), Err(DecodeError::Direction(TO_MASTER)));
            prop_assert_eq!(ToMaster::decode(&encoded), Ok(message));
            for len in 0..encoded.len() {
                prop_assert!(ToMaster::decode(&encoded[..len]).is_err(), "{len} bytes are enough");
            }
            encoded.push(0);
            prop_assert_eq!(ToMaster::decode(&encoded), Err(DecodeError::Trailing(1)));
        }

        #[test]
        fn messages_to_workers_round_trip(message in to_worker()) {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            prop_assert_eq!(encoded.len(), message.encoded_len());
            prop_assert_eq!(ToMaster::decode(&encoded), Err(DecodeError::Direction(TO_WORKER)));
            prop_assert_eq!(ToWorker::decode(&encoded), Ok(message));
            for len in 0..encoded.len() {
                prop_assert!(ToWorker::decode(&encoded[..len]).is_err(), "{len} bytes are enough");
            }
            encoded.push(0);
            prop_assert_eq!(ToWorker::decode(&encoded), Err(DecodeError::Trailing(1)));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(mut body in vec(any::<u8>(), 0..200)) {
            let _ = (ToMaster::decode(&body), ToWorker::decode(&body));
            body.splice(0..0, [VERSION, TO_MASTER]);
            let _ = ToMaster::decode(&body);
            body[1] = TO_WORKER;
            let _ = ToWorker::decode(&body);
        }

        #[test]
        fn damaged_messages_do_not_panic(message in to_worker(), at in any::<Index>(), byte: u8) {
            let mut encoded = Vec::new();
            message.encode(&mut encoded);
            *at.get_mut(&mut encoded) = byte;
            let _ = ToWorker::decode(&encoded);
        }
    }

    #[test]
    fn lengths_beyond_the_message_are_refused() {
        let mut encoded = Vec::new();
        ToMaster::Retracted { submits: Vec::new() }.encode(&mut encoded);
        assert_eq!(encoded.pop(), Some(0), "the length of the list is last");
        // 2^62 elements.
        encoded.extend([0x80; 8]);
        encoded.push(0x40);
        let error = DecodeError::Damaged(postcard::Error::DeserializeUnexpectedEnd);
        assert_eq!(ToMaster::decode(&encoded), Err(error));
    }

    #[test]
    fn other_versions_are_named() {
        let other = VERSION + 1;
        assert_eq!(
            ToMaster::decode(&[other, TO_MASTER, 0]),
            Err(DecodeError::Version(other))
        );
        assert!(matches!(ToWorker::decode(&[]), Err(DecodeError::Damaged(_))));
        assert!(matches!(
            ToWorker::decode(&[VERSION, TO_WORKER, 99]),
            Err(DecodeError::Damaged(_))
        ));
    }

    #[test]
    fn a_time_that_is_no_number_is_damage() {
        for (seconds, is_whole) in [(5.0, true), (f64::NAN, false), (f64::INFINITY, false)] {
            let notice = Notice {
                drained: Some(seconds),
                ends: None,
            };
            let mut bytes = Vec::new();
            ToWorker::Checkpoint(Box::new(MasterSays::Notice(notice.into()))).encode(&mut bytes);
            assert_eq!(ToWorker::decode(&bytes).is_ok(), is_whole, "{seconds}");
        }
    }

    #[test]
    fn a_small_result_is_small() {
        let result = TaskResult {
            submit: SubmitId(1_000_000),
            outcome: Outcome::new(256, Duration::from_millis(5)),
            forwards: Vec::new(),
            returned: None,
        };
        assert!(ToMaster::Finished(result).encoded_len() <= 19);
    }
}
