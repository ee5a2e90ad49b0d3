//! Tests of relays with pipes and threads.

use std::io::Seek as _;

use pmc_control::Overflow;

use super::*;

const MOMENT: Duration = Duration::from_secs(20);

fn options(token: u64, streams: [bool; 2]) -> RedirectOptions {
    RedirectOptions {
        token,
        tool: format!("tool {token}"),
        streams,
        buffer: RedirectOptions::BUFFER,
        patience_ms: 200,
        overflow: Overflow::File,
    }
}

fn poll(options: &RedirectOptions, delivered: [u64; 2], is_end: bool) -> RedirectPoll {
    RedirectPoll {
        options: options.clone(),
        delivered,
        is_end,
    }
}

struct Place {
    files: [File; 2],
    thread: RelayThread,
    ends: Option<[File; 2]>,
}

impl Place {
    fn new(options: Option<&RedirectOptions>) -> Self {
        let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
        let (thread, WriteEnds(ends)) = start([&files[0], &files[1]], options).unwrap();
        Self {
            files,
            thread,
            ends: Some(ends.map(File::from)),
        }
    }

    fn write(&mut self, stream: usize, text: &[u8]) {
        self.ends.as_mut().unwrap()[stream].write_all(text).unwrap();
    }

    fn text(&mut self, stream: usize) -> String {
        let file = &mut self.files[stream];
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        text
    }

    fn wait_for(&mut self, stream: usize, text: &str) {
        let begun = Instant::now();
        while self.files[stream].metadata().unwrap().len() < text.len() as u64 {
            assert!(begun.elapsed() < MOMENT);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn finish(&mut self) {
        self.ends = None;
        self.thread.end();
        assert!(self.thread.wait(MOMENT));
    }
}

fn texts(answer: RedirectAnswer) -> [String; 2] {
    let RedirectAnswer::Chunks(chunks) = answer else {
        panic!("{answer:?}")
    };
    chunks.map(|chunk| String::from_utf8(chunk.bytes).unwrap())
}

#[test]
fn output_goes_to_the_files_and_for_a_while_to_a_tool() {
    let mut place = Place::new(None);
    place.write(0, b"one\n");
    place.write(1, b"err\n");
    place.wait_for(0, "one\n");
    let (first, second) = (options(1, [true, false]), options(2, [true, true]));
    let relay = place.thread.relay();
    assert_eq!(
        texts(relay.poll(&poll(&first, [0, 0], false), Deliverer::Tool, Duration::ZERO)),
        ["", ""]
    );
    place.write(0, b"two\nthree\n");
    place.write(1, b"more\n");
    let got = texts(relay.poll(&poll(&first, [0, 0], false), Deliverer::Tool, MOMENT));
    assert_eq!(got, ["two\nthree\n", ""]);
    let taken = relay.poll(&poll(&second, [0, 0], false), Deliverer::Tool, Duration::ZERO);
    assert_eq!(taken, RedirectAnswer::TakenBy("tool 1".to_owned()));
    // It has printed one of the lines.
    let over = relay.poll(&poll(&first, [4, 0], true), Deliverer::Tool, Duration::ZERO);
    assert_eq!(over, RedirectAnswer::Ended(RedirectEnd::Detached, [0, 0]));
    place.write(0, b"four\n");
    place.finish();
    assert_eq!(place.text(0), "one\nthree\nfour\n");
    assert_eq!(place.text(1), "err\nmore\n");
    let late = relay.poll(&poll(&second, [0, 0], false), Deliverer::Tool, Duration::ZERO);
    assert_eq!(late, RedirectAnswer::NotRunning);
    assert!(place.thread.error().is_none());
}

#[test]
fn a_claimed_attempt_waits_a_moment_for_its_tool_at_the_end() {
    let tool = options(1, [true, true]);
    let mut place = Place::new(Some(&tool));
    place.write(0, b"first");
    place.write(1, b"second");
    place.ends = None;
    place.thread.end();
    let relay = place.thread.relay();
    let got = loop {
        let got = texts(relay.poll(&poll(&tool, [0, 0], false), Deliverer::Tool, MOMENT));
        if got.iter().all(|text| !text.is_empty()) {
            break got;
        }
    };
    assert_eq!(got, ["first", "second"]);
    assert!(!place.thread.wait(Duration::from_millis(1)));
    texts(relay.poll(&poll(&tool, [5, 6], false), Deliverer::Tool, Duration::ZERO));
    assert!(place.thread.wait(MOMENT));
    let over = relay.poll(&poll(&tool, [5, 6], false), Deliverer::Tool, Duration::ZERO);
    assert_eq!(over, RedirectAnswer::Ended(RedirectEnd::TaskEnded, [0, 0]));
    assert_eq!([place.text(0), place.text(1)], ["", ""]);
    // Nobody comes.
    let mut place = Place::new(Some(&tool));
    place.write(0, b"first");
    place.finish();
    assert_eq!(place.text(0), "first");
}

#[test]
fn a_run_that_delivers_is_asked_before_the_redirect_ends() {
    let mut place = Place::new(None);
    let tool = RedirectOptions {
        buffer: 8,
        ..options(1, [true, true])
    };
    let relay = place.thread.relay();
    let (full, free) = (
        Deliverer::Run { has_room: false },
        Deliverer::Run { has_room: true },
    );
    assert_eq!(
        texts(relay.poll(&poll(&tool, [0, 0], false), full, Duration::ZERO)),
        ["", ""]
    );
    place.write(0, b"0123456789");
    let (mut got, begun) = (String::new(), Instant::now());
    loop {
        // What was not sent cannot be delivered.
        let delivered = u64::from(!got.is_empty());
        match relay.poll(
            &poll(&tool, [delivered, 0], false),
            free,
            Duration::from_millis(5),
        ) {
            RedirectAnswer::EndRequested => break,
            chunks => got += &texts(chunks)[0],
        }
        assert!(begun.elapsed() < MOMENT);
    }
    // At most a buffer, and the byte that was delivered.
    assert!("0123456789".starts_with(&got) && got.len() <= 9, "{got}");
    // It has delivered more meanwhile.
    let over = relay.poll(&poll(&tool, [3, 0], true), full, Duration::ZERO);
    assert_eq!(over, RedirectAnswer::Ended(RedirectEnd::TooSlow, [0, 0]));
    place.finish();
    assert_eq!(place.text(0), "3456789");
}

#[test]
fn a_bell_rings_when_something_has_come() {
    let mut place = Place::new(None);
    let (relay, bell) = (place.thread.relay(), Bell::new().unwrap());
    let tool = options(1, [true, false]);
    let poll = || relay.poll_or_ring(&poll(&tool, [0, 0], false), Deliverer::Tool, Some(&bell));
    assert!(poll().is_empty() && !bell.silence());
    place.write(0, b"x");
    let begun = Instant::now();
    while !bell.silence() {
        assert!(begun.elapsed() < MOMENT);
    }
    assert!(!poll().is_empty());
}

#[test]
fn a_process_that_holds_the_pipes_does_not_hold_up_the_end() {
    let mut place = Place::new(None);
    place.write(0, b"said");
    place.thread.end();
    assert!(place.thread.wait(MOMENT));
    assert_eq!(place.text(0), "said");
    let error = place.ends.as_mut().unwrap()[0].write(b"x").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_full_disk_is_told() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (thread, WriteEnds(ends)) = start([&full, &full], None).unwrap();
    let [mut out, _err] = ends.map(File::from);
    let _ = out.write_all(b"x");
    thread.end();
    assert!(thread.wait(MOMENT));
    assert_eq!(thread.error().unwrap().kind(), io::ErrorKind::StorageFull);
}

#[test]
fn an_aborted_run_waits_for_no_tool() {
    let tool = options(1, [true, true]);
    let mut place = Place::new(Some(&RedirectOptions {
        patience_ms: RedirectOptions::MAX_PATIENCE_MS,
        ..tool
    }));
    place.write(0, b"x");
    let Place { files, thread, ends } = place;
    drop(thread);
    drop(ends);
    let [mut out, _] = files;
    out.rewind().unwrap();
    let mut text = String::new();
    out.read_to_string(&mut text).unwrap();
    assert_eq!(text, "x");
}
