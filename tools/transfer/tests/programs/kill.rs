//! A program that is killed at any moment leaves no partial file under a final name.

use std::fs;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::common::{Case, list, send_signal, transfer, with_option};
use nix::sys::signal::Signal;

/// Returns random bytes, so that every part of a file is different.
fn random_bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

#[test]
fn killed_copies_leave_no_partial_files() {
    let case = Case::new();
    let (old, new) = (random_bytes(1, 1_000_000), random_bytes(2, 16_000_000));
    case.write("new", &new)
        .write("tree/1", &new)
        .write("tree/2", &new);
    let hashed = with_option(&transfer("new", "dst/hashed"), "generate_checksum", true);
    let spec = list(&[
        transfer("new", "dst/fresh"),
        transfer("new", "dst/old"),
        hashed,
        transfer("tree", "dst/tree"),
    ]);
    case.write("in", spec);
    let unnamed_files = case.supports_unnamed_files();
    let mut stopped_early = 0;
    for round in 0..30u64 {
        let _ = fs::remove_dir_all(case.path("dst"));
        case.write("dst/old", &old);
        let mut command = case.command();
        command
            .args(["-f", "in", "-n", "3"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("start");
        // The moments spread over the whole run.
        std::thread::sleep(Duration::from_micros(500 + round * 3_100));
        send_signal(&child, Signal::SIGKILL);
        child.wait().expect("wait");
        let read = |name: &str| fs::read(case.path(name)).ok();
        assert!(
            read("dst/fresh").is_none_or(|bytes| bytes == new),
            "round {round}"
        );
        assert!(
            read("dst/hashed").is_none_or(|bytes| bytes == new),
            "round {round}"
        );
        let kept = read("dst/old").expect("never missing");
        if unnamed_files {
            // Directories have a temporary name until they are complete. Files have none, but for the moment
            // in which a whole one takes the place of another.
            let is_part = |name: &&String| {
                let path = case.path("dst").join(name);
                name.starts_with('.') && !path.is_dir() && fs::read(path).ok().as_ref() != Some(&new)
            };
            assert_eq!(case.names("dst").iter().find(is_part), None, "round {round}");
        }
        assert!(kept == old || kept == new, "round {round}");
        if case.path("dst/tree").exists() {
            assert!(read("dst/tree/1") == Some(new.clone()) && read("dst/tree/2") == Some(new.clone()));
        } else {
            stopped_early += 1;
        }
    }
    assert!(stopped_early > 0, "the kills came too late to test anything");
    // Leftovers of a killed run do not disturb the next run.
    case.run("", &["-f", "in"]).expect_ok();
    assert!(fs::read(case.path("dst/old")).expect("read") == new);
}

/// Returns whether the program has opened `big`.
fn has_opened_big(case: &Case, child: &Child) -> bool {
    let descriptors = fs::read_dir(format!("/proc/{}/fd", child.id())).expect("a running process");
    descriptors
        .flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|path| path == case.path("big")))
}

#[test]
fn terminated_runs_clean_up_and_fail() {
    let case = Case::new();
    // A sparse file takes no space, but its checksum takes long.
    fs::File::create(case.path("big"))
        .and_then(|file| file.set_len(200 << 30))
        .expect("sparse file");
    let spec = list(&[with_option(
        &transfer("big", "dst/big"),
        "generate_checksum",
        true,
    )]);
    case.write("in", spec);
    let mut command = case.command();
    command.args(["-f", "in"]).stdin(Stdio::null());
    let child = command.spawn().expect("start");
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !has_opened_big(&case, &child) {
        assert!(std::time::Instant::now() < deadline, "the copy never started");
        std::thread::sleep(Duration::from_millis(5));
    }
    send_signal(&child, Signal::SIGTERM);
    let output = child.wait_with_output().expect("wait");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("Failed after 1 attempt: file://big -> file://dst/big: interrupted"),
        "{stderr}"
    );
    assert!(stderr.contains("Stopped by a signal."), "{stderr}");
    assert_eq!(case.names("dst"), [""; 0]);
}
