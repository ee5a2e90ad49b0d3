//! Servers that tests talk to.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::command::{Run, Running};

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A server that is ended with the test.
pub struct Server(Option<Running>);

impl Server {
    /// Starts a program and waits until somebody listens on the port.
    pub fn start(run: Run, port: u16) -> Self {
        let mut running = run.limit(300).start();
        let start = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if !running.alive() || start.elapsed() > Duration::from_secs(60) {
                panic!("the server does not start: {}", running.wait().account());
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

/// A program that may be in a directory that only root has in its PATH.
pub fn system_program(name: &str) -> PathBuf {
    ["/usr/sbin", "/usr/bin", "/sbin"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{name} is missing: `tests/run packages` installs it"))
}
