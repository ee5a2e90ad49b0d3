//! Where bytes go that are measured.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of one read.
const CHUNK: usize = 256 << 10;

/// A thread that reads bytes and compares them.
pub struct Sink(JoinHandle<Instant>);

impl Sink {
    pub fn start(mut source: impl Read + Send + 'static, expected: Vec<u8>) -> Self {
        Self(std::thread::spawn(move || {
            let mut buffer = vec![0; CHUNK];
            let mut at = 0;
            while at < expected.len() {
                let count = source.read(&mut buffer).expect("it can be read");
                assert!(count > 0, "it ends after {at} bytes");
                let bytes = &buffer[..count];
                assert!(expected[at..].starts_with(bytes), "byte {at} and more are wrong");
                at += count;
            }
            Instant::now()
        }))
    }

    /// Waits until all bytes have come. Returns when.
    pub fn wait(self) -> Instant {
        self.0.join().expect("the bytes are right")
    }
}

/// Time that `cat` of a file through a socket of this machine takes.
pub fn through_socket(file: &Path, expected: &[u8]) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let peer = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    let (source, _) = listener.accept().expect("a connection");
    let sink = Sink::start(source, expected.to_vec());
    let begun = Instant::now();
    let status = Command::new("cat")
        .arg(file)
        .stdin(Stdio::null())
        .stdout(OwnedFd::from(peer))
        .status();
    assert!(status.is_ok_and(|status| status.success()), "cat must run");
    sink.wait().duration_since(begun)
}

/// Writes a file in which no two blocks are the same.
pub fn write_data(path: &Path, mib: usize) {
    let mut file = File::create(path).expect("a file");
    let mut random = testutils::Random(7);
    let block: Vec<u8> = (0..128 << 10)
        .flat_map(|_| random.number().to_le_bytes())
        .collect();
    for number in 0..mib {
        file.write_all(&number.to_le_bytes()).expect("room for a file");
        file.write_all(&block[8..]).expect("room for a file");
    }
    drop(file);
    assert_eq!(fs::metadata(path).expect("it is there").len(), (mib << 20) as u64);
}

/// Calls a function at each line that comes.
pub fn lines(source: impl Read, take: impl Fn(&str) -> f64) -> Vec<f64> {
    let mut source = BufReader::new(source);
    let (mut taken, mut line) = (Vec::new(), String::new());
    while source.read_line(&mut line).expect("text") > 0 {
        taken.push(take(&line));
        line.clear();
    }
    taken
}
