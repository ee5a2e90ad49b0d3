//! Tests of a stream without a clock.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

pub(super) fn options(overflow: Overflow) -> RedirectOptions {
    RedirectOptions {
        token: 7,
        tool: "a test".to_owned(),
        streams: [true, true],
        buffer: 16,
        patience_ms: 1000,
        overflow,
    }
}

/// A stream in a redirect, and the time at which it began.
fn redirected(overflow: Overflow) -> (Stream<Vec<u8>>, Instant) {
    let (mut stream, now) = (Stream::new(Vec::new()), Instant::now());
    stream.begin(&options(overflow), false, now);
    (stream, now)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_slow_tool_is_waited_for_and_then_the_file_gets_the_rest() {
    let (mut stream, now) = redirected(Overflow::File);
    stream.add(b"0123456789abcdef", (now, 0)).unwrap();
    assert_eq!(stream.room(), 0);
    // Less than half was taken: the task still waits.
    stream.note_delivered(3, now + SECOND / 2, None).unwrap();
    assert_eq!((stream.room(), stream.chunk().offset), (0, 3));
    stream.note_delivered(5, now + SECOND, None).unwrap();
    assert_eq!(stream.over(7), Some(RedirectEnd::TooSlow));
    assert_eq!(
        (stream.file.as_slice(), stream.room()),
        (&b"56789abcdef"[..], usize::MAX)
    );
    // Another tool may come, and this one does not learn of its end.
    stream.begin(
        &RedirectOptions {
            token: 8,
            ..options(Overflow::File)
        },
        false,
        now,
    );
    assert_eq!((stream.over(7), stream.other_tool(7)), (None, Some("a test")));
}

#[test]
fn a_tool_that_does_not_ask_is_given_up() {
    let (mut stream, now) = redirected(Overflow::File);
    stream.add(b"0123456789abcdef", (now, 0)).unwrap();
    assert_eq!(
        stream.check(now + SECOND, None).unwrap(),
        Some(now + SECOND + LAST_POLL)
    );
    stream.check(now + SECOND + LAST_POLL, None).unwrap();
    assert_eq!(
        (stream.over(7), stream.file.len()),
        (Some(RedirectEnd::TooSlow), 16)
    );
    let (mut stream, now) = redirected(Overflow::File);
    stream.add(b"x", (now, 0)).unwrap();
    assert_eq!(stream.check(now, None).unwrap(), Some(now + LEASE));
    stream.check(now + LEASE, None).unwrap();
    assert_eq!(
        (stream.over(7), stream.file.as_slice()),
        (Some(RedirectEnd::Silent), &b"x"[..])
    );
}

#[test]
fn after_the_end_of_the_attempt_the_tool_has_a_moment() {
    let (mut stream, now) = redirected(Overflow::DropOldest);
    stream.add(b"xyz", (now, 0)).unwrap();
    stream.note_delivered(1, now + SECOND / 2, Some(now)).unwrap();
    assert!(stream.is_waiting());
    stream.note_delivered(2, now + SECOND, Some(now)).unwrap();
    assert_eq!((stream.file.as_slice(), stream.is_waiting()), (&b"z"[..], false));
}

#[test]
fn what_is_dropped_is_counted() {
    let (mut stream, now) = redirected(Overflow::DropOldest);
    stream.add(b"0123456789abcdef", (now, 0)).unwrap();
    stream.check(now + SECOND, None).unwrap();
    let chunk = stream.chunk();
    assert_eq!(
        (chunk.offset, &*chunk.bytes, chunk.dropped),
        (8, &b"89abcdef"[..], 8)
    );
    let (mut stream, now) = redirected(Overflow::DropNewest);
    stream.add(b"0123456789abcdef", (now, 0)).unwrap();
    stream.check(now + SECOND, None).unwrap();
    stream.add(b"lost", (now, 0)).unwrap();
    stream.note_delivered(8, now + SECOND, None).unwrap();
    stream.add(b"kept", (now, 0)).unwrap();
    let chunk = stream.chunk();
    assert_eq!(
        (chunk.offset, &*chunk.bytes, chunk.dropped),
        (8, &b"89abcdefkept"[..], 4)
    );
}

#[test]
fn bytes_have_the_time_at_which_they_were_read() {
    let (mut stream, now) = redirected(Overflow::File);
    stream.add(b"ab", (now, 1_000)).unwrap();
    stream.add(b"c", (now, 1_001)).unwrap();
    stream.add(b"de", (now, 5_000)).unwrap();
    assert_eq!(stream.chunk().times, [(0, 1_000), (3, 5_000)]);
    stream.note_delivered(4, now, None).unwrap();
    assert_eq!(stream.chunk().times, [(3, 5_000)]);
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Deliver(usize),
    Begin,
    End,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1_usize..30).prop_map(Step::Write),
        (0_usize..30).prop_map(Step::Deliver),
        Just(Step::Begin),
        Just(Step::End),
        (0_u64..3000).prop_map(Step::Wait),
    ]
}

#[derive(Clone, Debug)]
enum RunStep {
    Write(usize),
    /// This many milliseconds later.
    Ask(u64),
    Deliver(usize),
}

fn run_step() -> impl Strategy<Value = RunStep> {
    prop_oneof![
        (1_usize..30).prop_map(RunStep::Write),
        (0_u64..3000).prop_map(RunStep::Ask),
        (0_usize..30).prop_map(RunStep::Deliver),
    ]
}

proptest! {
    /// File and tools together have every byte once, and the tools have theirs in order.
    #[test]
    fn no_byte_is_lost_or_doubled(steps in vec(step(), 0..60)) {
        let (mut stream, mut now) = (Stream::new(Vec::new()), Instant::now());
        let (mut written, mut token, mut taken, mut delivered) = (0_u32, 0, Vec::new(), 0_u64);
        for step in steps {
            match step {
                Step::Write(count) => for _ in 0..count.min(stream.room()) {
                    stream.add(&written.to_le_bytes()[..1], (now, 0)).unwrap();
                    written += 1;
                },
                Step::Deliver(count) if stream.is_of(token) => {
                    let chunk = stream.chunk();
                    prop_assert_eq!(chunk.offset, delivered);
                    let bytes = &chunk.bytes[..count.min(chunk.bytes.len())];
                    taken.extend_from_slice(bytes);
                    delivered += bytes.len() as u64;
                    stream.note_delivered(delivered, now, None).unwrap();
                }
                Step::Deliver(_) => {}
                Step::Begin => if !stream.is_of(token) {
                    (token, delivered) = (token + 1, 0);
                    stream.begin(&RedirectOptions { token, ..options(Overflow::File) }, false, now);
                },
                Step::End => stream.end(RedirectEnd::Detached).unwrap(),
                Step::Wait(ms) => {
                    now += Duration::from_millis(ms);
                    stream.check(now, None).unwrap();
                }
            }
        }
        stream.end(RedirectEnd::Detached).unwrap();
        let mut all = [taken, stream.file].concat();
        all.sort_unstable();
        let mut expected: Vec<u8> = (0..written).map(|number| number.to_le_bytes()[0]).collect();
        expected.sort_unstable();
        prop_assert_eq!(all, expected);
    }

    /// The same if the run delivers: it has got more than it has delivered, and its requests are late.
    /// What overflows is counted.
    #[test]
    fn what_the_run_has_got_is_delivered_or_in_the_file(
        steps in vec(run_step(), 0..120),
        overflow in prop_oneof![
            Just(Overflow::File), Just(Overflow::DropOldest), Just(Overflow::DropNewest)
        ],
    ) {
        let (mut stream, mut now) = (Stream::new(Vec::new()), Instant::now());
        stream.begin(&options(overflow), true, now);
        let (mut written, mut got, mut taken, mut delivered) = (0_u32, VecDeque::new(), Vec::new(), 0);
        for step in steps {
            match step {
                RunStep::Write(count) => for _ in 0..count.min(stream.room()) {
                    stream.add(&written.to_le_bytes()[..1], (now, 0)).unwrap();
                    written += 1;
                },
                RunStep::Ask(late) => {
                    now += Duration::from_millis(late);
                    stream.check(now, None).unwrap();
                    stream.note_delivered(delivered, now, None).unwrap();
                    let OutputChunk { offset, bytes, .. } = stream.chunk();
                    got.extend((offset..).zip(bytes));
                }
                RunStep::Deliver(count) => for _ in 0..count.min(got.len()) {
                    let Some((offset, byte)) = got.pop_front() else { break };
                    prop_assert!(offset >= delivered);
                    taken.push(byte);
                    delivered = offset + 1;
                },
            }
        }
        // What the last requests say is exact, whether the redirect was to end or not.
        if stream.is_of(7) {
            prop_assert!(stream.over(7).is_none());
            stream.note_delivered(delivered, now, None).unwrap();
            stream.end(RedirectEnd::Detached).unwrap();
        } else {
            prop_assert!(got.is_empty(), "it has ended while the run had something");
        }
        let lost = stream.dropped(7);
        let all = [taken, stream.file].concat();
        prop_assert_eq!(all.len() as u64 + lost, u64::from(written));
        let mut expected = (0..written).map(|number| number.to_le_bytes()[0]);
        prop_assert!(all.iter().all(|byte| expected.any(|next| next == *byte)), "the order is wrong");
    }
}
