//! Real connections over loopback: keys, cuts, and agents that do not come back.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use pmc_link::{
    Agent, Client, Closed, ConnectError, Endpoint, Hub, Link, Listen, RunKey, Server, Service, SessionId,
    Timing,
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
    fn join(&self, _: SessionId, hello: &[u8]) -> Result<Vec<u8>, String> {
        if hello == b"bad" {
            return Err("no room".to_owned());
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

/// Its system closes the connection, and nothing was said before.
#[test]
fn an_agent_that_has_died_is_lost_before_its_lease_is_over() {
    let master = Master::start();
    let link = Link::new(timing());
    let client = Client::new(Arc::clone(&link)).unwrap();
    let endpoint = master.endpoint(master.server.port());
    for _ in 0..2 {
        let connection = client.connect(&endpoint, b"n1").unwrap();
        assert!(matches!(master.next(), Seen::Joined(_) | Seen::Back));
        drop(connection);
        assert_eq!(master.next(), Seen::Silent);
    }
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

/// Descriptors of this process.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Somebody in the network opens connections and says nothing.
#[test]
fn connections_of_strangers_take_few_descriptors_and_no_place_of_an_agent() {
    const STRANGERS: usize = 150;
    let master = Master::start();
    let endpoint = master.endpoint(master.server.port());
    let before = open_files();
    let address = ("127.0.0.1", master.server.port());
    let strangers: Vec<_> = (0..STRANGERS)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    // Other tests have some, too.
    let taken = open_files() - before - STRANGERS;
    assert!(taken < STRANGERS - 40, "{taken}");
    let link = Link::new(timing());
    let client = Client::new(Arc::clone(&link)).unwrap();
    let begun = Instant::now();
    while let Err(error) = client.connect(&endpoint, b"n1") {
        assert!(begun.elapsed() < PATIENCE, "{error}");
    }
    drop(strangers);
}
