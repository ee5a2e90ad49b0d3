use std::borrow::Cow;

use chrono::DateTime;
use proptest::prelude::*;

use super::*;
use crate::invocation_record::{Payload, Stage};

/// Returns the value of the line `k: value`.
fn line(write: impl Fn(&mut Emitter<Vec<u8>>) -> io::Result<()>) -> String {
    let mut out = Emitter::new(Vec::new());
    write(&mut out).unwrap();
    let line = String::from_utf8(out.into_inner()).unwrap();
    line.strip_prefix("k: ").unwrap().trim_end().to_owned()
}

proptest! {
    #[test]
    fn times_are_those_of_the_pattern(
        seconds in prop_oneof![0..4_000_000_000_i64, -100_000_000_000..300_000_000_000_i64],
        nanoseconds in 0..1_000_000_000_u32,
        offset in prop_oneof![(-14 * 4..14 * 4).prop_map(|quarter| quarter * 900), -80_000..80_000],
    ) {
        let zone = chrono::FixedOffset::east_opt(offset).unwrap();
        let stamp = DateTime::from_timestamp(seconds, nanoseconds).unwrap().with_timezone(&zone);
        let pattern = stamp.format("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string();
        prop_assert_eq!(line(|out| write_time(out, "k", &stamp, true)), pattern);
        let pattern = stamp.format("%Y-%m-%dT%H:%M:%S%:z").to_string();
        prop_assert_eq!(line(|out| write_time(out, "k", &stamp, false)), pattern);
    }
}

fn stamp() -> Stamp {
    DateTime::parse_from_rfc3339("2026-11-21T07:13:11.6309+05:30").unwrap()
}

fn file(key: &str, source: Source) -> FileEntry<'static> {
    let stat = Stat {
        mode: 0o100_644,
        size: 5,
        inode: 7,
        links: 1,
        block_size: 4096,
        blocks: 8,
        modified: stamp(),
        accessed: stamp(),
        changed: stamp(),
        uid: 1000,
        user: Some(b"u".to_vec()),
        gid: 100,
        group: None,
    };
    let key = key.as_bytes().to_vec();
    FileEntry {
        key,
        lfn: None,
        note: None,
        source,
        stat: Ok((&stat).into()),
        output: None,
        payload: None,
    }
}

fn invocation() -> Invocation<'static> {
    Invocation {
        start: stamp(),
        duration: Duration::from_millis(8),
        transformation: Some(b"ns::tr:1.0".to_vec()),
        derivation: Some(b"ID1".to_vec()),
        resource: Some(Vec::new()),
        wf_label: None,
        wf_stamp: None,
        identity: (&Identity {
            host_address: "192.0.2.2".into(),
            umask: 0o22,
            pid: 9,
            user: Some(b"123".to_vec()),
            ..Identity::default()
        })
            .into(),
        jobs: vec![(
            Stage::Main,
            Job {
                start: stamp(),
                duration: Duration::ZERO,
                pid: Some(10),
                usage: Usage {
                    user_time: Duration::from_millis(3),
                    max_rss_kib: 1612,
                    ..Usage::default()
                },
                status: Status::Exited { code: 3 },
                executable: file("", Source::Name(b"/usr/bin/a: b".to_vec())),
                arguments: vec![b"-c".to_vec(), b"a \"b\"\\\n\xff".to_vec()],
            },
        )],
        job_ids: JobIds::default(),
        cwd: b"/scratch/run".to_vec(),
        usage: Usage::default(),
        machine: None,
        files: vec![
            file("*x", Source::Name(b"/f".to_vec())),
            file("stdin", Source::Descriptor(0)),
        ],
        integrity_data: Cow::Borrowed(b"    k:\n      size: 6\n"),
        environment: Some(vec![(b"A\"B".to_vec(), b"c\\d".to_vec())]),
        limits: Some(vec![("RLIMIT_CORE".into(), Some(0), None)]),
    }
}

fn text(invocation: &Invocation<'_>) -> String {
    let mut out = Vec::new();
    invocation.write_to(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn fields_are_formatted_as_readers_expect() {
    let text = text(&invocation());
    for lines in [
        "- invocation: True\n  version: 3.0\n  start: 2026-11-21T07:13:11.630+05:30\n  duration: 0.008\n",
        "  derivation: \"ID1\"\n  hostaddr: 192.0.2.2\n  pid: 9\n  uid: 0\n  user: \"123\"\n  gid: 0\n  umask: 0o0022\n",
        "    duration: 0.003\n    pid: 10\n    usage:\n      utime: 0.003\n      stime: 0.000\n      maxrss: 1612\n",
        "    status:\n      raw: 768\n      regular_exitcode: 3\n    executable:\n      file_name: \"/usr/bin/a: b\"\n",
        "      mode: 0o100644\n      size: 5\n      inode: 7\n      nlink: 1\n      blksize: 4096\n      blocks: 8\n",
        "      mtime: 2026-11-21T07:13:11+05:30\n",
        "    argument_vector:\n      - \"-c\"\n      - \"a \\\"b\\\"\\\\\\n\u{fffd}\"\n    procs:\n  jobids:\n",
        "  files:\n    \"*x\":\n      file_name: /f\n",
        "      gid: 100\n    k:\n      size: 6\n    stdin:\n      descriptor_number: 0\n",
        "  environment:\n    \"A\\\"B\": \"c\\\\d\"\n  limits:\n    RLIMIT_CORE_soft: 0\n    RLIMIT_CORE_hard: unlimited\n",
    ] {
        assert!(text.contains(lines), "{lines}\nnot in\n{text}");
    }
    assert!(text.lines().skip(1).all(|line| line.starts_with("  ")));
}

#[test]
fn statuses_are_encoded_like_wait_does() {
    let killed = Status::Signalled {
        signal: 11,
        name: "Segmentation fault".into(),
        core: true,
    };
    assert_eq!(killed.raw(), 139);
    let failed = Status::Failed {
        raw: -127,
        errno: 2,
        text: "No such file or directory".into(),
    };
    let mut invocation = invocation();
    for (status, lines) in [
        (
            killed,
            "raw: 139\n      signalled_signal: 11\n      singalled_name: \"Segmentation fault\"\n",
        ),
        (
            failed,
            "raw: -127\n      failure_error: 2   No such file or directory\n",
        ),
    ] {
        invocation.jobs[0].1.status = status;
        assert!(text(&invocation).contains(lines), "{lines}");
    }
}

#[test]
fn outputs_have_checksums_and_streams_text() {
    let mut invocation = invocation();
    let checksum = |sha256: &str| {
        Some(ChecksummedFile::Checksum {
            sha256: sha256.into(),
            took: Duration::from_millis(14),
        })
    };
    invocation.files[0].output = checksum("5891b5b522d5df08");
    invocation.files[1].payload = Some(Payload {
        truncated: false,
        text: "a\n b\n".into(),
    });
    let plain = text(&invocation);
    assert!(
        plain.contains("      output: True\n      sha256: 5891b5b522d5df08\n      checksum_timing: 0.01\n")
    );
    assert!(
        plain.contains("      data_truncated: false\n      data: |\n        a\n         b\n"),
        "{plain}"
    );
    invocation.files[0].output = checksum("12e4");
    assert!(text(&invocation).contains("sha256: \"12e4\"\n"));
    invocation.files[0].output = Some(ChecksummedFile::Unreadable);
    assert!(text(&invocation).contains("integrity_error: failed creating a checksum\n"));
}
