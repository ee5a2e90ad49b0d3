//! The engine with a stub handler: order, sets, attempts and giving up.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use std::fs;
use std::time::Duration;

use super::*;
use crate::observer::Silent;
use crate::protocol::Done;
use crate::spec;
use crate::spec::Location;

/// A handler whose results depend on the path of the source: `/ok`, `/never`, `/soon`, `/later`,
/// `/full`, or `/heals/N`, which fails N times.
#[derive(Default)]
struct Stub {
    sets: Mutex<Vec<Vec<String>>>,
    calls: AtomicUsize,
    failures: Mutex<HashMap<String, u32>>,
}

fn external(retry: Retry) -> TransferError {
    TransferError::External {
        program: "stub".into(),
        message: "no".into(),
        retry,
    }
}

impl Stub {
    fn answer(&self, path: &str) -> Result<Done, TransferError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let mut parts = path.split('/').skip(1);
        match (parts.next(), parts.next()) {
            (Some("never"), _) => Err(external(Retry::Never)),
            (Some("soon"), _) => Err(external(Retry::Soon)),
            (Some("later"), _) => Err(external(Retry::Later)),
            (Some("full"), _) => {
                let full = std::io::ErrorKind::StorageFull;
                Err(TransferError::io("write", std::path::Path::new("/x"), full))
            }
            (Some("heals"), Some(times)) => {
                let mut failures = lock(&self.failures);
                let count = failures.entry(path.to_owned()).or_insert(0);
                *count += 1;
                if *count > times.parse().unwrap_or(0) {
                    Ok(Done::default())
                } else {
                    Err(external(Retry::Soon))
                }
            }
            _ => Ok(Done {
                bytes: Some(10),
                ..Done::default()
            }),
        }
    }
}

/// A handle to a stub that the test inspects.
struct Handle(&'static Stub);

impl Handler for Handle {
    fn transfers(&self, from: &str, to: &str) -> bool {
        from.starts_with("stub") && to == "file"
    }

    fn manages(&self, scheme: &str) -> bool {
        scheme == "stub"
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn set_size(&self) -> usize {
        5
    }

    fn transfer_set(&self, _: &Context<'_>, pairs: &[Pair<'_>]) -> Vec<Result<Done, TransferError>> {
        lock(&self.0.sets).push(pairs.iter().map(|pair| pair.source.url.shown()).collect());
        pairs
            .iter()
            .map(|pair| self.0.answer(&pair.source.url.path().to_string_lossy()))
            .collect()
    }

    fn make_directory(&self, _: &Context<'_>, place: &Location) -> Result<(), TransferError> {
        self.0.answer(&place.url.path().to_string_lossy()).map(drop)
    }

    fn remove(&self, _: &Context<'_>, place: &Location, _: bool) -> Result<(), TransferError> {
        self.0.answer(&place.url.path().to_string_lossy()).map(drop)
    }
}

fn run_stub(spec: &str, threads: usize) -> (Report, &'static Stub) {
    run_stub_with(
        spec,
        Settings {
            threads,
            ..Settings::default()
        },
    )
}

fn run_stub_with(spec: &str, settings: Settings) -> (Report, &'static Stub) {
    let stub: &'static Stub = Box::leak(Box::default());
    let registry = Registry::new(vec![Box::new(Handle(stub))]);
    let millisecond = Duration::from_millis(1);
    let waits = Waits {
        soon: millisecond,
        later: millisecond,
        longest: millisecond,
    };
    let settings = Settings { waits, ..settings };
    let work = spec::parse(spec.as_bytes(), &|_| None, &mut || 1).expect("valid");
    (run_with(&registry, &work, &settings, &Silent), stub)
}

/// Formats a specification of transfers, each with its sources in the given order.
fn transfers(sources: &[&[&str]]) -> String {
    let entries: Vec<_> = sources
        .iter()
        .map(|urls| {
            let places: Vec<_> = urls
                .iter()
                .map(|url| serde_json::json!({"site_label": "s", "url": url, "priority": 1}))
                .collect();
            serde_json::json!({"type": "transfer", "src_urls": places,
                "dest_urls": [{"site_label": "d", "url": "/x"}]})
        })
        .collect();
    serde_json::Value::from(entries).to_string()
}

fn failures(report: &Report) -> Vec<(usize, u32, &str)> {
    report
        .failures
        .iter()
        .map(|failure| (failure.entry, failure.attempts, failure.description.as_str()))
        .collect()
}

#[test]
fn attempts_depend_on_the_failure() {
    for threads in [1, 4] {
        let (report, _) = run_stub(
            &transfers(&[
                &["stub://h/never"],
                &["stub://h/soon"],
                &["stub://h/heals/2"],
                &["stub://h/heals/3"],
                &["stub://h/ok"],
            ]),
            threads,
        );
        assert_eq!(
            failures(&report),
            [
                (0, 1, "stub://h/never -> file:///x"),
                (1, 3, "stub://h/soon -> file:///x"),
                (3, 3, "stub://h/heals/3 -> file:///x"),
            ]
        );
        assert_eq!(report.attempts.len(), 1 + 3 + 3 + 3 + 1);
    }
}

#[test]
fn sources_take_turns_within_a_round_and_permanent_failures_are_dropped() {
    let (report, stub) = run_stub(
        &transfers(&[&["stub://h/never", "stub://h/heals/1", "stub://h/later"]]),
        3,
    );
    assert!(report.success());
    let attempted: Vec<_> = lock(&stub.sets).concat();
    assert_eq!(
        attempted,
        [
            "stub://h/never",
            "stub://h/heals/1",
            "stub://h/later",
            "stub://h/heals/1"
        ]
    );
    // The failure most worth another attempt is reported.
    let (report, _) = run_stub(
        &transfers(&[&["stub://h/later", "stub://h/soon", "stub://h/never"]]),
        1,
    );
    assert_eq!(failures(&report), [(0, 7, "stub://h/later -> file:///x")]);
}

#[test]
fn sets_have_one_pair_of_protocols_and_a_share_of_the_work() {
    let (one, two) = ("stub://h/ok", "stub2://h/ok");
    let (report, stub) = run_stub(
        &transfers(&[&[one], &[two], &[one], &[two], &[one], &[one], &[one], &[one]]),
        1,
    );
    assert!(report.success());
    let sets: Vec<_> = lock(&stub.sets).clone();
    assert_eq!(sets, [vec![one; 5], vec![two; 2], vec![one; 1]]);
}

#[test]
fn mass_failure_ends_the_run_early() {
    let urls = vec![&["stub://h/soon"][..]; 400];
    let (report, stub) = run_stub(&transfers(&urls), 2);
    assert_eq!(report.failures.len(), 400);
    let calls = stub.calls.load(Ordering::Relaxed);
    assert!((11..=20).contains(&calls), "{calls} calls");
    let given_up = report
        .failures
        .iter()
        .filter(|failure| failure.attempts == 0)
        .count();
    assert_eq!(given_up + calls, 400);
}

#[test]
fn host_that_keeps_failing_gets_no_more_work() {
    let mut urls = vec![&["stub://h/later"][..]; 30];
    urls.push(&["stub://h/later", "stub://well/ok"]);
    let (report, stub) = run_stub(&transfers(&urls), 1);
    assert_eq!(report.failures.len(), 30);
    // One set of five in each of the three rounds, and the entry with another source.
    let sets: Vec<_> = lock(&stub.sets).iter().map(Vec::len).collect();
    assert_eq!(sets.iter().sum::<usize>(), 16, "{sets:?}");
    let skipped = report
        .failures
        .iter()
        .filter(|failure| matches!(failure.error, TransferError::HostGivenUp { .. }));
    assert_eq!(skipped.count(), 30 - 5);
}

#[test]
fn directories_come_first_and_removals_last() {
    let spec = r#"[{"type":"remove","target":{"site_label":"s","url":"stub://h/ok"}},
        {"type":"transfer","src_urls":[{"site_label":"s","url":"stub://h/never"}],"dest_urls":[{"site_label":"s","url":"/x"}]},
        {"type":"mkdir","target":{"site_label":"s","url":"stub://h/heals/1"}}]"#;
    let (report, stub) = run_stub(spec, 8);
    assert_eq!(
        failures(&report),
        [
            (0, 0, "remove stub://h/ok"),
            (1, 1, "stub://h/never -> file:///x")
        ]
    );
    assert_eq!(stub.calls.load(Ordering::Relaxed), 3);
}

#[test]
fn cancelled_run_attempts_nothing() {
    let settings = Settings::default();
    settings.cancel.cancel();
    let work = spec::parse(transfers(&[&["/a"], &["/b"]]).as_bytes(), &|_| None, &mut || 1).expect("valid");
    let report = run(&work, &settings, &Silent);
    assert_eq!((report.failures.len(), report.attempts.len()), (2, 0));
    assert!(
        report
            .failures
            .iter()
            .all(|failure| matches!(failure.error, TransferError::Cancelled))
    );
}

#[test]
fn a_full_disk_may_be_final() {
    for (full_disk_is_final, attempts) in [(false, 6), (true, 2)] {
        let settings = Settings {
            full_disk_is_final,
            ..Settings::default()
        };
        let spec = transfers(&[&["stub://h/full", "stub://h/full/2"]]);
        let (report, _) = run_stub_with(&spec, settings);
        assert!(report.failures[0].error.is_full_disk());
        // Each source once, in each round.
        assert_eq!(report.failures[0].attempts, attempts, "{full_disk_is_final}");
    }
}

#[test]
fn relative_paths_start_at_the_base() {
    let dir = tempfile::tempdir().expect("directory");
    fs::write(dir.path().join("a"), "1").expect("write");
    let settings = Settings {
        base: Some(dir.path().to_owned()),
        ..Settings::default()
    };
    let work = spec::parse(
        transfers(&[&["a"]]).replace("/x", "sub/x").as_bytes(),
        &|_| None,
        &mut || 1,
    );
    let report = run(&work.expect("valid"), &settings, &Silent);
    assert!(report.success(), "{:?}", report.failures);
    assert_eq!(fs::read_to_string(dir.path().join("sub/x")).expect("read"), "1");
}

#[test]
fn waits_grow_up_to_the_maximum() {
    let waits = Waits {
        soon: Duration::from_secs(2),
        later: Duration::from_secs(60),
        longest: Duration::from_secs(300),
    };
    for (round, retry, min, max) in [
        (1, Retry::Soon, 1, 2),
        (2, Retry::Soon, 4, 8),
        (1, Retry::Later, 30, 60),
        (9, Retry::Later, 150, 300),
    ] {
        let wait = waits.before_next(round, retry);
        assert!(
            wait >= Duration::from_secs(min) && wait <= Duration::from_secs(max),
            "{wait:?}"
        );
    }
    assert!(waits.before_next(u32::MAX, Retry::Soon) <= waits.longest);
}
