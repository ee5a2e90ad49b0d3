//! A network: connections that carry frames in order, as TCP does, until something cuts them.
//!
//! A link between two hosts may be cut in one direction or both. Then frames wait, as TCP sends them
//! again, and come when the link is there again. A host without power says nothing: the other side of its
//! connections does not notice, until it sends something after the host has come again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{HostId, ProcessId, ThreadId, at, current_process, current_thread, now, park, unpark, with};

/// How long a host waits before it tries again to connect.
const RETRY: Duration = Duration::from_millis(300);

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The process has said that it closes it.
    Orderly,
    /// The system has closed it, because its process has ended.
    Death,
    /// The system knows nothing of it.
    Reset,
}

enum Packet {
    Frame(Bytes),
    End(End),
}

#[derive(Default)]
struct Side {
    inbox: VecDeque<Packet>,
    waiting: Option<ThreadId>,
    is_closed: bool,
    process: Option<ProcessId>,
    /// When the last packet to this side comes.
    last_arrival: Duration,
    /// Packets that a cut holds up.
    held: Vec<Packet>,
}

struct Connection {
    hosts: [HostId; 2],
    /// How often each host had been started when this was made.
    boots: [u32; 2],
    sides: [Side; 2],
}

#[derive(Default)]
struct Port {
    host: Option<HostId>,
    process: Option<ProcessId>,
    is_open: bool,
    accepted: VecDeque<u64>,
    waiting: Option<ThreadId>,
}

/// All connections, and what is wrong with the network.
#[derive(Default)]
pub(super) struct Network {
    next: u64,
    connections: BTreeMap<u64, Connection>,
    ports: BTreeMap<u16, Port>,
    cut: BTreeSet<(HostId, HostId)>,
    off: BTreeSet<HostId>,
    boots: BTreeMap<HostId, u32>,
    /// Longest delay of a frame, in microseconds.
    max_delay: u64,
}

impl Network {
    fn is_reachable(&self, from: HostId, to: HostId) -> bool {
        !self.cut.contains(&(from, to)) && !self.off.contains(&from) && !self.off.contains(&to)
    }

    pub(super) fn boots(&self, host: HostId) -> u32 {
        self.boots.get(&host).copied().unwrap_or(0)
    }
}

/// Sets the longest delay of a frame.
pub fn set_max_delay(delay: Duration) {
    with(|state| state.network.max_delay = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX));
}

/// Cuts the way from one host to another, or repairs it.
pub fn set_cut(from: HostId, to: HostId, is_cut: bool) {
    let repaired = with(|state| {
        let network = &mut state.network;
        if is_cut {
            network.cut.insert((from, to));
            return Vec::new();
        }
        network.cut.remove(&(from, to));
        let ways = network.connections.iter_mut().flat_map(|(id, connection)| {
            let hosts = connection.hosts;
            let sides = connection.sides.iter_mut().enumerate();
            sides.filter_map(move |(to_side, side)| {
                let is_it = (hosts[1 - to_side], hosts[to_side]) == (from, to);
                is_it.then(|| (*id, to_side, std::mem::take(&mut side.held)))
            })
        });
        ways.collect()
    });
    for (connection, side, held) in repaired.unwrap_or_default() {
        held.into_iter().for_each(|packet| post(connection, side, packet));
    }
}

/// Takes a host off the network without a word, or brings it back with none of its connections. Its
/// processes are to be killed after that.
pub fn set_power(host: HostId, is_on: bool) {
    with(|state| {
        let network = &mut state.network;
        if is_on {
            network.off.remove(&host);
        } else {
            network.off.insert(host);
            *network.boots.entry(host).or_default() += 1;
        }
    });
}

/// Returns whether a host has power.
#[must_use]
pub fn is_on(host: HostId) -> bool {
    with(|state| !state.network.off.contains(&host)).unwrap_or(false)
}

/// Breaks all connections between two hosts, as a device on the way can.
pub fn reset(a: HostId, b: HostId) {
    let broken = with(|state| {
        let connections = state.network.connections.iter();
        let between =
            connections.filter(|(_, connection)| connection.hosts == [a, b] || connection.hosts == [b, a]);
        between.map(|(id, _)| *id).collect::<Vec<_>>()
    });
    for connection in broken.unwrap_or_default() {
        for side in 0..2 {
            deliver(connection, side, Packet::End(End::Reset));
        }
    }
}

/// Sends a packet to a side of a connection.
fn post(connection: u64, to: usize, packet: Packet) {
    let when = with(|state| {
        let delay = state.network.max_delay;
        let delay = Duration::from_micros(20 + state.random.below(delay.max(1)));
        let now = now().unwrap_or_default();
        let entry = state.network.connections.get_mut(&connection)?;
        let side = &mut entry.sides[to];
        side.last_arrival = side.last_arrival.max(now + delay);
        Some(side.last_arrival)
    });
    if let Some(when) = when.flatten() {
        at(when, move || deliver(connection, to, packet));
    }
}

fn deliver(connection: u64, to: usize, packet: Packet) {
    let waiting = with(|state| {
        let network = &mut state.network;
        let entry = network.connections.get(&connection)?;
        let (hosts, boots) = (entry.hosts, entry.boots);
        let (from_host, to_host) = (hosts[1 - to], hosts[to]);
        let is_of_now = network.boots(to_host) == boots[to];
        let is_off = network.off.contains(&to_host) || network.off.contains(&from_host);
        let is_cut = network.cut.contains(&(from_host, to_host));
        let is_dead = !is_of_now;
        let entry = network.connections.get_mut(&connection)?;
        if is_cut {
            entry.sides[to].held.push(packet);
            return None;
        }
        if is_off {
            return None;
        }
        if is_dead || entry.sides[to].is_closed {
            // The system of the receiver knows nothing of the connection.
            let is_frame = matches!(packet, Packet::Frame(_));
            return is_frame.then_some((None, true));
        }
        let side = &mut entry.sides[to];
        side.inbox.push_back(packet);
        Some((side.waiting.take(), false))
    });
    match waiting.flatten() {
        Some((_, true)) => post(connection, 1 - to, Packet::End(End::Reset)),
        Some((Some(thread), false)) => unpark(thread),
        _ => {}
    }
}

/// One side of a connection. Dropping it without [`Stream::close`] looks like the death of the process.
#[derive(Debug)]
pub struct Stream {
    connection: u64,
    side: usize,
}

impl Stream {
    /// Sends a frame.
    pub fn send(&self, frame: Bytes) {
        post(self.connection, 1 - self.side, Packet::Frame(frame));
    }

    /// Returns the next frame that has come; `None` after the other side has closed the connection in order.
    /// If none has come, the thread that runs is woken when one does.
    ///
    /// # Errors
    /// The connection has ended otherwise.
    pub fn try_receive(&self) -> Option<io::Result<Option<Bytes>>> {
        let packet = with(|state| {
            let current = state.current;
            let entry = state.network.connections.get_mut(&self.connection)?;
            let side = &mut entry.sides[self.side];
            let packet = side.inbox.pop_front();
            if packet.is_none() {
                side.waiting = current;
            }
            packet
        });
        Some(match packet.flatten()? {
            Packet::Frame(frame) => Ok(Some(frame)),
            Packet::End(End::Orderly) => Ok(None),
            Packet::End(End::Death) => Err(io::ErrorKind::UnexpectedEof.into()),
            Packet::End(End::Reset) => Err(io::ErrorKind::ConnectionReset.into()),
        })
    }

    /// Returns the next frame. Waits until `until`.
    ///
    /// # Errors
    /// The connection has ended, or nothing has come.
    pub fn receive(&self, until: Instant) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(received) = self.try_receive() {
                return received;
            }
            if super::now_instant() >= until || !super::is_current_alive() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            park(Some(until));
        }
    }

    /// Says that this side closes the connection.
    pub fn close(self) {
        self.end(End::Orderly);
    }

    fn end(&self, end: End) {
        let is_new = with(|state| {
            let host_is_off = {
                let network = &state.network;
                let host = network
                    .connections
                    .get(&self.connection)
                    .map(|entry| entry.hosts[self.side]);
                host.is_none_or(|host| network.off.contains(&host))
            };
            let entry = state.network.connections.get_mut(&self.connection)?;
            let was_closed = std::mem::replace(&mut entry.sides[self.side].is_closed, true);
            Some(!was_closed && !host_is_off)
        });
        if is_new.flatten() == Some(true) {
            post(self.connection, 1 - self.side, Packet::End(end));
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.end(End::Death);
    }
}

/// Closes the connections of a process that has ended.
pub(super) fn close_all_of(process: ProcessId) {
    with(|state| {
        for port in state.network.ports.values_mut() {
            if port.process == Some(process) {
                port.is_open = false;
                port.accepted.clear();
            }
        }
        // Those that nobody has accepted are found out by the first frame.
        for connection in state.network.connections.values_mut() {
            for side in &mut connection.sides {
                if side.process == Some(process) {
                    side.is_closed = true;
                }
            }
        }
    });
}

/// Connects to a port of a host.
///
/// # Errors
/// Nobody listens there, or the host cannot be reached within `limit`.
pub fn connect(port: u16, limit: Duration) -> io::Result<Stream> {
    let until = super::now_instant() + limit;
    loop {
        super::sleep(delay());
        let made = with(|state| {
            let process = state.current.map(|thread| state.threads[&thread].process)?;
            let from = state.processes[&process].host;
            let network = &mut state.network;
            let known = network.ports.get(&port).and_then(|entry| entry.host);
            let Some(to) = known else {
                return Some(Err(io::ErrorKind::ConnectionRefused));
            };
            if !network.is_reachable(from, to) || !network.is_reachable(to, from) {
                return None;
            }
            let boots = [network.boots(from), network.boots(to)];
            let entry = network.ports.get_mut(&port)?;
            if !entry.is_open {
                return Some(Err(io::ErrorKind::ConnectionRefused));
            }
            network.next += 1;
            let id = network.next;
            entry.accepted.push_back(id);
            let mut sides = [Side::default(), Side::default()];
            (sides[0].process, sides[1].process) = (Some(process), entry.process);
            let connection = Connection {
                hosts: [from, to],
                boots,
                sides,
            };
            network.connections.insert(id, connection);
            Some(Ok((id, entry.waiting.take())))
        });
        match made.flatten() {
            Some(Ok((connection, waiting))) => {
                waiting.into_iter().for_each(unpark);
                return Ok(Stream { connection, side: 0 });
            }
            Some(Err(kind)) => return Err(kind.into()),
            None if super::now_instant() + RETRY < until && super::is_current_alive() => super::sleep(RETRY),
            None => {
                super::sleep(until.saturating_duration_since(super::now_instant()));
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

fn delay() -> Duration {
    let micros = with(|state| {
        let max = state.network.max_delay;
        20 + state.random.below(max.max(1))
    });
    Duration::from_micros(micros.unwrap_or(0))
}

/// Accepts connections to a port.
#[derive(Debug)]
pub struct Listener {
    port: u16,
}

impl Listener {
    /// Listens at this port, or at a free one if that is 0 or in use.
    #[must_use]
    pub fn bind(port: u16) -> Self {
        let process = current_process();
        let port = with(|state| {
            let host = process.map(|process| state.processes[&process].host);
            let ports = &mut state.network.ports;
            let is_used = |port: &u16| {
                ports
                    .get(port)
                    .is_some_and(|entry| entry.is_open || entry.host != host)
            };
            let mut port = if port == 0 { 1024 } else { port };
            while is_used(&port) {
                port += 1;
            }
            let entry = ports.entry(port).or_default();
            *entry = Port {
                host,
                process,
                is_open: true,
                accepted: VecDeque::new(),
                waiting: None,
            };
            port
        });
        Self {
            port: port.unwrap_or(0),
        }
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns a new connection, if one has come. Otherwise the thread that runs is woken when one does.
    #[must_use]
    pub fn try_accept(&self) -> Option<Stream> {
        let current = current_thread();
        let accepted = with(|state| {
            let entry = state.network.ports.get_mut(&self.port)?;
            let accepted = entry.accepted.pop_front();
            if accepted.is_none() {
                entry.waiting = current;
            }
            accepted
        });
        let connection = accepted.flatten()?;
        Some(Stream { connection, side: 1 })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let refused = with(|state| {
            let entry = state.network.ports.get_mut(&self.port)?;
            entry.is_open = false;
            Some(std::mem::take(&mut entry.accepted))
        });
        for connection in refused.flatten().unwrap_or_default() {
            drop(Stream { connection, side: 1 });
        }
    }
}
