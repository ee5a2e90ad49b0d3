//! Servers that answer slowly, or with something else than they should.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use super::common::{Case, content, list, transfer};
use super::server::{Reply, Server, body, file, status};

#[test]
fn trickling_servers_are_given_up() {
    let case = Case::new();
    // Data come more often than the time limit, but never many.
    let slow = Server::start(|_, _| Reply {
        trickle: Some(Duration::from_millis(20)),
        ..body(content(100_000))
    });
    let fast = Server::start(|_, _| body(content(100_000)));
    let start = Instant::now();
    let spec = list(&[transfer(&slow.url("/x"), "dst/x")]);
    let run = case.run(&spec, &["--timeout", "0.3", "-m", "1"]);
    run.expect_failed("Failed after 1 attempt")
        .expect_failed("the server sends fewer than 1000 bytes a second on average over 0 seconds");
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(case.names("dst"), [""; 0]);
    case.run(
        &list(&[transfer(&fast.url("/x"), "dst/x")]),
        &["--timeout", "0.3", "-m", "1"],
    )
    .expect_ok();
    // The limit can be lower.
    let patient = Server::start(|_, _| Reply {
        trickle: Some(Duration::from_millis(20)),
        ..body(content(40))
    });
    let spec = list(&[transfer(&patient.url("/y"), "dst/y")]);
    case.run(&spec, &["--timeout", "0.3", "-m", "1", "--min-rate", "10"])
        .expect_ok();
}

#[test]
fn a_file_that_ends_early_is_a_failure() {
    let case = Case::new();
    // 700,000 bytes are announced. Then the server says that there are only those which it has sent.
    let server = Server::start(|request, number| match number {
        0 => file(request, &content(700_000), "\"v1\"", Some(200_000)),
        _ if request.header("range").is_some() => status(416).with("Content-Range", "bytes */200000"),
        _ => status(404),
    });
    let run = case.run(
        &list(&[transfer(&server.url("/x"), "dst/x")]),
        &["-m", "1", "--retry-wait", "0.001"],
    );
    run.expect_failed("the server has announced 700000 bytes, and now says that the file has 200000");
    assert_eq!(case.names("dst"), [""; 0]);
    let server = Server::start(|request, number| {
        let size = if number == 0 { 700_000 } else { 500_000 };
        file(
            request,
            &content(size),
            "\"v1\"",
            (number == 0).then_some(200_000),
        )
    });
    let run = case.run(
        &list(&[transfer(&server.url("/x"), "dst/x")]),
        &["-m", "1", "--retry-wait", "0.001"],
    );
    run.expect_failed("the server has announced 700000 bytes, and now says that the file has 500000");
}

/// Answers to the request for the rest, after the first answer has broken off: `Content-Range` and the length
/// of the body. The file has 102,400 bytes, of which 50,000 have arrived.
pub const LYING_RANGES: [(&str, usize); 9] = [
    ("bytes 50000-50009/*", 10),
    ("bytes 50000-50009/50010", 10),
    ("bytes 50000-50009/102400", 10),
    ("bytes 50000-102399/102400", 10),
    ("bytes 50000-102399/*", 52_400),
    ("bytes 50000-102398/102399", 52_399),
    ("bytes 40000-102399/102400", 62_400),
    ("bytes 50000-102399", 52_400),
    ("bytes */102400", 52_400),
];

#[test]
fn a_rest_that_is_not_that_of_the_file_is_no_success() {
    for scheme in ["http", "webdav"] {
        for (range, length) in LYING_RANGES {
            let case = Case::new();
            let server = Server::start(move |request, _| match request.header("range") {
                None => file(request, &content(102_400), "\"v1\"", Some(50_000)),
                Some(_) => Reply {
                    status: 206,
                    ..body(content(length))
                        .with("Content-Range", range)
                        .with("ETag", "\"v1\"")
                },
            });
            let url = server.url("/x").replace("http", scheme);
            let spec = list(&[transfer(&url, "dst/x")]);
            let run = case.run(&spec, &["-m", "2", "--retry-wait", "0.001"]);
            run.expect_failed("Failed after 2 attempts");
            assert_eq!(case.names("dst"), [""; 0], "{scheme}: {range}");
        }
    }
}

/// What a server answers in later attempts. It has announced 700,000 bytes at first, and sent 200,000.
/// `ETag` of both, bytes of the later body, and whether that is a success.
pub const LATER_ATTEMPTS: [(Option<&str>, Option<&str>, usize, bool); 6] = [
    (Some("\"v1\""), Some("\"v1\""), 500_000, false),
    (Some("\"v1\""), None, 500_000, false),
    (None, None, 500_000, false),
    (None, Some("\"v1\""), 500_000, false),
    (Some("\"v1\""), Some("\"v2\""), 500_000, true),
    (None, None, 700_000, true),
];

/// What is said of them.
pub const SHORTENED: &str = "the server has announced 700000 bytes, and now says that the file has 500000";

/// Answers the first request as [`LATER_ATTEMPTS`] says, the second one with a status that asks for a new
/// attempt, and all others with what is said to be the whole file.
pub fn shortened(first: Option<&str>, later: Option<&str>, size: usize, number: usize) -> Reply {
    let tag = |reply: Reply, tag: Option<&str>| match tag {
        Some(tag) => reply.with("ETag", tag),
        None => reply,
    };
    match number {
        0 => Reply {
            cut: Some(200_000),
            ..tag(body(content(700_000)), first)
        },
        1 => status(503),
        _ => tag(body(content(size)), later),
    }
}

/// A cache on the way may take what has arrived for the whole file.
#[test]
fn a_later_attempt_gets_what_the_first_one_has_announced() {
    for scheme in ["http", "webdav"] {
        for (first, later, size, is_good) in LATER_ATTEMPTS {
            let case = Case::new();
            let server = Server::start(move |_, number| shortened(first, later, size, number));
            let url = server.url("/x").replace("http", scheme);
            let spec = list(&[transfer(&url, "dst/x")]);
            let run = case.run(&spec, &["-m", "4", "--retry-wait", "0.001"]);
            if is_good {
                run.expect_ok();
                continue;
            }
            run.expect_failed(SHORTENED);
            assert_eq!(case.names("dst"), [""; 0], "{scheme}: {first:?} {later:?}");
        }
    }
}

/// Bytes arrive all the time, but no data.
#[test]
fn headers_of_chunks_without_end_are_given_up() {
    let case = Case::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/x", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let mut sent = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for bytes in [&b"1;"[..]].into_iter().chain(std::iter::repeat(&b"x"[..])) {
                if sent.is_err() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
                sent = stream.write_all(bytes);
            }
        }
    });
    let start = Instant::now();
    let spec = list(&[transfer(&url, "dst/x")]);
    let run = case.run(&spec, &["--timeout", "0.5", "-m", "1"]);
    run.expect_failed("the server sends fewer than 1000 bytes a second on average");
    assert!(start.elapsed() < Duration::from_secs(10));
}
