//! Real connections over loopback: keys, cuts, and agents that do not come back.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use pmc_link::{
    Agent, Client, Closed, ConnectError, Endpoint, Hub, JoinError, Link, Listen, RunKey, Server, Service,
    SessionId, Timing,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn timing() -> Timing {
    Timing {
        heartbeat: Duration::from_millis(40),
        lease: Duration::from_millis(600),
        grace: Duration::from_millis(200),
    }
}

/// What the service saw.
#[derive(Debug, PartialEq)]
enum Seen {
    Joined(SessionId),
    Silent,
    Back,
    Lost,
    Ended,
}

/// Sends each message back.
struct Echo {
    hub: Arc<Hub>,
    seen: Mutex<mpsc::Sender<Seen>>,
}

impl Echo {
    fn note(&self, seen: Seen) {
        let _ = self.seen.lock().unwrap().send(seen);
    }
}

impl Service for Echo {
    fn join(&self, _: SessionId, hello: &[u8]) -> Result<Vec<u8>, JoinError> {
        if hello == b"bad" {
            return Err("no room".into());
        }
        if hello == b"early" {
            return Err(JoinError::Later("the disk is full".to_owned()));
        }
        Ok([b"hello ", hello].concat())
    }
    fn joined(&self, session: SessionId) {
        self.note(Seen::Joined(session));
    }
    fn message(&self, session: SessionId, body: &[u8]) {
        self.hub.settle(session, 1);
        self.hub.send(session, body.to_vec());
    }
    fn silent(&self, _: SessionId) {
        self.note(Seen::Silent);
    }
    fn back(&self, _: SessionId) {
        self.note(Seen::Back);
    }
    fn lost(&self, _: SessionId) {
        self.note(Seen::Lost);
    }
    fn ended(&self, _: SessionId) {
        self.note(Seen::Ended);
    }
}

struct Master {
    server: Server,
    seen: mpsc::Receiver<Seen>,
    key: RunKey,
}

impl Master {
    fn start() -> Self {
        let key = RunKey::generate().unwrap();
        let (sender, seen) = mpsc::channel();
        let server = Server::start(&key, (&Listen::default(), 0), 1, timing(), |hub| {
            Arc::new(Echo {
                hub: Arc::clone(hub),
                seen: Mutex::new(sender),
            })
        });
        Self {
            server: server.unwrap(),
            seen,
            key,
        }
    }

    fn endpoint(&self, port: u16) -> Endpoint {
        Endpoint {
            addresses: vec![format!("127.0.0.1:{port}")],
            epoch: 1,
            lease: timing().lease,
            key: self.key.clone(),
        }
    }

    fn next(&self) -> Seen {
        self.seen.recv_timeout(PATIENCE).unwrap()
    }
}

/// Counts what comes back, up to a number.
struct Count {
    got: Vec<u64>,
    until: usize,
    started: Instant,
}

impl Agent for Count {
    fn message(&mut self, body: &[u8]) {
        self.got.push(u64::from_le_bytes(body.try_into().unwrap()));
    }
    fn tick(&mut self) -> bool {
        self.got.len() >= self.until || self.started.elapsed() > PATIENCE
    }
}

fn count(until: usize) -> Count {
    Count {
        got: Vec::new(),
        until,
        started: Instant::now(),
    }
}

/// A relay whose connections can be cut.
fn relay(to: u16, cut: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for inbound in listener.incoming().map_while(Result::ok) {
            let Ok(outbound) = TcpStream::connect(("127.0.0.1", to)) else {
                continue;
            };
            for (mut from, mut to) in [
                (inbound.try_clone().unwrap(), outbound.try_clone().unwrap()),
                (outbound, inbound),
            ] {
                let cut = Arc::clone(&cut);
                std::thread::spawn(move || {
                    let mut buffer = [0; 700];
                    while let Ok(len @ 1..) = from.read(&mut buffer) {
                        let cut = cut.swap(false, Ordering::SeqCst);
                        // A cut comes in the middle of a frame.
                        let len = if cut { len / 2 } else { len };
                        if to.write_all(&buffer[..len]).is_err() || cut {
                            break;
                        }
                    }
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                });
            }
        }
    });
    port
}

#[test]
fn messages_survive_cuts() {
    let master = Master::start();
    let cut = Arc::new(AtomicBool::new(false));
    let endpoint = master.endpoint(relay(master.server.port(), Arc::clone(&cut)));
    let link = Link::new(timing());
    let client = Client::new(Arc::clone(&link)).unwrap();
    let mut agent = count(300);
    let connections = Arc::new(AtomicUsize::new(0));
    let sender = std::thread::spawn({
        let (link, cut, connections) = (Arc::clone(&link), Arc::clone(&cut), Arc::clone(&connections));
        move || {
            for number in 0_u64..300 {
                // Some may wait; the order stays.
                let send = [Link::send, Link::send_soon, Link::send_soon][number as usize % 3];
                while !send(&link, number.to_le_bytes().to_vec()) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                if number % 60 == 30 {
                    let before = connections.load(Ordering::SeqCst);
                    cut.store(true, Ordering::SeqCst);
                    // The next cut is for another connection.
                    while connections.load(Ordering::SeqCst) == before {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            }
        }
    });
    loop {
        let connection = client.connect(&endpoint, b"n1");
        let Ok(connection) = connection else { continue };
        let before = connections.fetch_add(1, Ordering::SeqCst);
        assert_eq!(connection.joined, before == 0);
        if connection.joined {
            assert_eq!(connection.welcome, b"hello n1");
        }
        if let Closed::Asked = connection.run(&mut agent) {
            break;
        }
    }
    sender.join().unwrap();
    assert_eq!(agent.got, (0..300).collect::<Vec<u64>>());
    assert!(connections.load(Ordering::SeqCst) > 2);
    assert!(!link.lease_left().is_zero());
    assert_eq!(master.next(), Seen::Joined(1));
}

/// Closes its connection on purpose, and goes on.
struct Leaving;

impl Agent for Leaving {
    fn message(&mut self, _: &[u8]) {}

    fn tick(&mut self) -> bool {
        true
    }
}

#[test]
fn an_agent_that_does_not_come_back_is_lost() {
    let master = Master::start();
    let endpoint = master.endpoint(master.server.port());
    let link = Link::new(timing());
    let client = Client::new(Arc::clone(&link)).unwrap();
    let connection = client.connect(&endpoint, b"n1").unwrap();
    assert_eq!(master.next(), Seen::Joined(1));
    assert!(matches!(connection.run(&mut Leaving), Closed::Asked));
    assert_eq!(master.next(), Seen::Silent);
    // It comes back within the lease.
    let connection = client.connect(&endpoint, b"n1").unwrap();
    assert!(!connection.joined);
    assert_eq!(master.next(), Seen::Back);
    assert!(matches!(connection.run(&mut Leaving), Closed::Asked));
    assert_eq!(master.next(), Seen::Silent);
    assert_eq!(master.next(), Seen::Lost);
    assert_eq!(link.lease_left(), Duration::ZERO);
    assert!(matches!(
        client.connect(&endpoint, b"n1"),
        Err(ConnectError::Gone { epoch: 1 })
    ));
    // It joins as a new one.
    assert_eq!(link.abandon(), [] as [&[u8]; 0]);
    assert!(client.connect(&endpoint, b"n1").unwrap().joined);
    assert_eq!(master.next(), Seen::Joined(2));
    link.goodbye();
}

/// Its system closes the connection, and nothing was said before. One that has come back is not lost so
/// early, as long as it has said nothing: it may not have got the answer, and lives.
#[test]
fn an_agent_that_has_died_is_lost_before_its_lease_is_over() {
    let master = Master::start();
    let link = Link::new(timing());
    let client = Client::new(Arc::clone(&link)).unwrap();
    let endpoint = master.endpoint(master.server.port());
    let connection = client.connect(&endpoint, b"n1").unwrap();
    assert!(matches!(master.next(), Seen::Joined(_)));
    drop(connection);
    assert_eq!(master.next(), Seen::Silent);
    let died = Instant::now();
    assert_eq!(master.next(), Seen::Lost);
    assert!(died.elapsed() >= timing().grace - Duration::from_millis(50));
    assert!(died.elapsed() < timing().until_lost(), "{:?}", died.elapsed());
}

#[test]
fn goodbye_ends_a_session_at_once() {
    let master = Master::start();
    let link = Link::new(timing());
    let client = Client::new(Arc::clone(&link)).unwrap();
    let connection = client
        .connect(&master.endpoint(master.server.port()), b"n1")
        .unwrap();
    link.goodbye();
    assert!(matches!(connection.run(&mut count(1)), Closed::Broken(_)));
    assert_eq!((master.next(), master.next()), (Seen::Joined(1), Seen::Ended));
    assert_eq!(master.server.hub().agents(), 0);
}

#[test]
fn strangers_are_refused() {
    let master = Master::start();
    let port = master.server.port();
    let link = Link::new(timing());
    let client = Client::new(Arc::clone(&link)).unwrap();
    let stranger = Endpoint {
        key: RunKey::generate().unwrap(),
        ..master.endpoint(port)
    };
    let error = client.connect(&stranger, b"n1").err().unwrap();
    assert!(matches!(error, ConnectError::WrongKey(_)), "{error}");
    let error = client.connect(&master.endpoint(port), b"bad").err().unwrap();
    assert_eq!(error.to_string(), "the master refuses this agent: no room");
    let error = client.connect(&master.endpoint(port), b"early").err().unwrap();
    assert!(
        matches!(&error, ConnectError::Later(why) if why == "the disk is full"),
        "{error}"
    );
    // Words that are not TLS.
    let mut plain = TcpStream::connect(("127.0.0.1", port)).unwrap();
    plain.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    // Nobody listens on a port that was just closed.
    drop(master);
    let closed = Endpoint {
        addresses: vec![format!("127.0.0.1:{port}")],
        epoch: 1,
        lease: timing().lease,
        key: RunKey::generate().unwrap(),
    };
    let error = client.connect(&closed, b"n1").err().unwrap();
    assert!(matches!(error, ConnectError::NobodyListens(_)), "{error}");
}

/// Connections that the server at this port holds, as the system says.
fn held(port: u16) -> usize {
    let port = format!(":{port:04X}");
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap());
    let lines = tables.iter().flat_map(|table| table.lines());
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .filter(|words| words[1].ends_with(&port) && words[3] == "01")
        .count()
}

/// Opens connections that say nothing, or a byte now and then, until the flag is set, without a pause.
fn strangers(port: u16, stop: &Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    const AT_A_TIME: usize = 400;
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut held = VecDeque::new();
        while !stop.load(Ordering::SeqCst) {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                held.push_back(stream);
            }
            if held.len() > AT_A_TIME {
                held.pop_front();
            }
            // Some drip.
            for mut stream in held.iter().step_by(40) {
                let _ = stream.write(&[0]);
            }
        }
    })
}

#[test]
fn agents_join_at_once_while_strangers_hold_hundreds_of_connections() {
    let master = Master::start();
    let port = master.server.port();
    let stop = Arc::new(AtomicBool::new(false));
    let threads = [(); 2].map(|()| strangers(port, &stop));
    std::thread::sleep(Duration::from_millis(500));
    for number in 1..=20 {
        let link = Link::new(timing());
        let client = Client::new(Arc::clone(&link)).unwrap();
        // The first attempt counts.
        let connection = client.connect(&master.endpoint(port), b"n1").unwrap();
        assert!(connection.joined);
        while master.next() != Seen::Joined(number) {}
    }
    stop.store(true, Ordering::SeqCst);
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Nobody who does not know the key gets as far as TLS.
#[test]
fn a_master_says_nothing_of_itself_to_strangers() {
    let master = Master::start();
    let mut numbers = Vec::new();
    for _ in 0..2 {
        let mut stranger = TcpStream::connect(("127.0.0.1", master.server.port())).unwrap();
        let mut first = [0; 48];
        stranger.read_exact(&mut first).unwrap();
        // What it has said itself is no answer.
        stranger.write_all(&first[16..]).unwrap();
        let mut rest = Vec::new();
        let _ = stranger.read_to_end(&mut rest);
        assert_eq!(rest, b"");
        numbers.push(first);
    }
    assert_ne!(numbers[0], numbers[1]);
}

/// Somebody in the network opens connections and says nothing.
#[test]
fn connections_of_strangers_take_few_descriptors_and_no_place_of_an_agent() {
    const STRANGERS: usize = 400;
    let master = Master::start();
    let endpoint = master.endpoint(master.server.port());
    let address = ("127.0.0.1", master.server.port());
    let strangers: Vec<_> = (0..STRANGERS)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let begun = Instant::now();
    // Places for each address.
    while held(master.server.port()) > 128 {
        assert!(begun.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    let link = Link::new(timing());
    let client = Client::new(Arc::clone(&link)).unwrap();
    assert!(client.connect(&endpoint, b"n1").is_ok());
    drop(strangers);
}
