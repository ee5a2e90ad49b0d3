//! A server whose executor has gone ends, whatever the moment.

use std::io::{PipeWriter, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// What the executor holds while a server runs.
struct Executor {
    socket: UnixStream,
    lifeline: PipeWriter,
}

/// Starts a server as the executor does, leader of a process group.
fn start() -> (Child, Executor) {
    let (socket, there) = UnixStream::pair().unwrap();
    let (watched, lifeline) = pipe().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_pegasus-kickstart-server"))
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

/// Waits for the end: nothing said, nobody left in the process group.
fn ends(mut child: Child, moment: &str) {
    let group = pid(&child);
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            let _ = killpg(group, Signal::SIGKILL);
            panic!("{moment}: the server stays");
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
        // It cannot greet before both are gone.
        kill(pid(&child), Signal::SIGSTOP).unwrap();
        match order {
            0 => drop((socket, lifeline)),
            1 => drop((lifeline, socket)),
            // The greeting still finds room, and nobody reads it.
            _ => {
                drop(lifeline);
                kill(pid(&child), Signal::SIGCONT).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                drop(socket);
            }
        }
        kill(pid(&child), Signal::SIGCONT).unwrap();
        ends(child, &format!("order {order}"));
    }
}

#[test]
fn a_server_ends_with_an_executor_that_dies_at_any_moment_of_its_start() {
    for round in 0..30 {
        let (child, executor) = start();
        std::thread::sleep(Duration::from_micros(round * 150));
        drop(executor);
        ends(child, &format!("round {round}"));
    }
}
