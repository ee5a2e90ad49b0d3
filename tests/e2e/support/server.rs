//! Servers that tests connect to.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::command::{Program, Running};

/// Returns a port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A server that stops when it is dropped.
pub struct Server(Option<Running>);

impl Server {
    /// Starts a program and waits until it listens on the port.
    pub fn start(program: Program, port: u16) -> Self {
        let mut running = program.limit(300).start();
        let start = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if !running.is_running() || start.elapsed() > Duration::from_secs(60) {
                panic!("the server does not start: {}", running.wait().details());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Self(Some(running))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            running.signal(nix::sys::signal::Signal::SIGTERM);
            drop(running.wait());
        }
    }
}

/// Returns the path of a program that may be in a directory on the `PATH` of root only.
pub fn system_program(name: &str) -> PathBuf {
    ["/usr/sbin", "/usr/bin", "/sbin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{name} is missing: `tests/run packages` installs it"))
}
