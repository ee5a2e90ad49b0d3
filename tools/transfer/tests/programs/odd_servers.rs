//! Servers that answer slowly, or with something else than they should.

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
