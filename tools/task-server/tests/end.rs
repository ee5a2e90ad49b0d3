//! The server ends when its executor has gone, at whatever moment.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that fails may panic")]

use std::io::{PipeWriter, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// The executor's ends of socket and lifeline.
struct Executor {
    socket: UnixStream,
    lifeline: PipeWriter,
}

/// Starts a server as the executor does: as leader of a process group.
fn start() -> (Child, Executor) {
    let (socket, there) = UnixStream::pair().unwrap();
    let (watched, lifeline) = pipe().unwrap();
    let child = Command::new(testutils::programs::path("pegasus-kickstart-server"))
        .stdin(OwnedFd::from(there))
        .stdout(watched)
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    (child, Executor { socket, lifeline })
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap())
}

/// Waits until the server has ended without a message and without a process in its group.
fn assert_ends(mut child: Child, moment: &str) {
    let group = pid(&child);
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = killpg(group, Signal::SIGKILL);
            panic!("{moment}: the server does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{moment}");
    assert_eq!(
        killpg(group, None),
        Err(Errno::ESRCH),
        "{moment}: a process is left"
    );
}

#[test]
fn a_server_ends_with_an_executor_that_dies_before_its_greeting() {
    for order in 0..3 {
        let (child, Executor { socket, lifeline }) = start();
        // It cannot greet before both are closed.
        kill(pid(&child), Signal::SIGSTOP).unwrap();
        match order {
            0 => drop((socket, lifeline)),
            1 => drop((lifeline, socket)),
            // The greeting fits into the socket, but is never read.
            _ => {
                drop(lifeline);
                kill(pid(&child), Signal::SIGCONT).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                drop(socket);
            }
        }
        kill(pid(&child), Signal::SIGCONT).unwrap();
        assert_ends(child, &format!("order {order}"));
    }
}

#[test]
fn a_server_ends_with_an_executor_that_dies_at_any_moment_of_its_start() {
    for round in 0..30 {
        let (child, executor) = start();
        std::thread::sleep(Duration::from_micros(round * 150));
        drop(executor);
        assert_ends(child, &format!("round {round}"));
    }
}
