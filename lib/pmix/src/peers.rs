//! The connections of tools: whose they are, and whether they take more.
//!
//! The library offers neither. The process has no other TCP connections than those of its tools, so they are
//! found among its open descriptors.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, SockaddrStorage, getpeername, getsockname, shutdown};

/// A connection to a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Connection {
    descriptor: RawFd,
    local: SocketAddr,
    peer: SocketAddr,
}

/// What is known of connections.
#[derive(Debug, Default)]
struct Known {
    admitted: HashSet<Connection>,
    /// Number of those that have not asked to be admitted.
    unclaimed: usize,
    /// Connections that were cut after their requests: no other request comes from them.
    refused: HashSet<Connection>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// Time for a connection to appear in the tables of the system. A table that changes while it is read may
/// miss an entry.
const APPEAR_TIMEOUT: Duration = Duration::from_millis(100);
/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Returns whether the tool that asks to be admitted is one of this user or root. It is one of those that
/// have connected since the last call, and states this user number. Connections of others are cut.
///
/// If a tool of another user could have lied, all new connections are cut: which of them asks is not known.
pub(crate) fn admit(stated: Option<u32>) -> bool {
    let now: HashSet<Connection> = connections().into_iter().collect();
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.admitted.retain(|connection| now.contains(connection));
    known.refused.retain(|connection| now.contains(connection));
    let is_new = |connection: &&Connection| {
        !known.admitted.contains(*connection) && !known.refused.contains(*connection)
    };
    let new: Vec<Connection> = now.iter().filter(is_new).copied().collect();
    let own = nix::unistd::geteuid().as_raw();
    let is_own = |user: Option<u32>| user.is_some_and(|user| user == own || user == 0);
    let owners = owners(&new);
    let others: Vec<Connection> = new
        .iter()
        .zip(&owners)
        .filter(|(_, owner)| !is_own(**owner))
        .map(|(connection, _)| *connection)
        .collect();
    let is_stranger = stated.is_some() && !is_own(stated);
    if others.is_empty() && !is_stranger {
        // With the first request of several new connections, all are admitted. Without any, the tool has
        // gone.
        let unclaimed = known.unclaimed.min(known.admitted.len()) + new.len();
        known.admitted.extend(new);
        known.unclaimed = unclaimed.saturating_sub(1);
        return unclaimed > 0;
    }
    // Nobody takes another user's name to be refused.
    let suspects = if is_stranger { others } else { new };
    cut(&suspects);
    if let [asking] = *suspects {
        known.refused.insert(asking);
    }
    false
}

/// Returns the user numbers of the other ends of connections, as far as they are open.
fn owners(connections: &[Connection]) -> Vec<Option<u32>> {
    let end = Instant::now() + APPEAR_TIMEOUT;
    loop {
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
        let owner_of = |connection| tables.iter().find_map(|table| owner(table, connection));
        let owners: Vec<Option<u32>> = connections.iter().map(owner_of).collect();
        if !owners.contains(&None) || Instant::now() >= end {
            return owners;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the connections whose buffers are full.
pub(crate) fn full() -> Vec<Connection> {
    let mut connections = connections();
    connections.retain(|connection| !has_room(connection.descriptor));
    connections
}

/// Cuts connections.
pub(crate) fn cut(connections: &[Connection]) {
    for connection in connections {
        // The library may have closed it, and the number may stand for another one.
        if Connection::of(connection.descriptor) == Some(*connection) {
            // A connection that has ended needs no end.
            let _ = shutdown(connection.descriptor, Shutdown::Both);
        }
    }
}

/// Returns all connections.
pub(crate) fn connections() -> Vec<Connection> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let descriptors = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    descriptors.filter_map(Connection::of).collect()
}

impl Connection {
    fn of(descriptor: RawFd) -> Option<Self> {
        let local = address(&getsockname::<SockaddrStorage>(descriptor).ok()?)?;
        let peer = address(&getpeername::<SockaddrStorage>(descriptor).ok()?)?;
        Some(Self {
            descriptor,
            local,
            peer,
        })
    }
}

fn address(address: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(v4) = address.as_sockaddr_in() {
        return Some(SocketAddr::new(v4.ip().into(), v4.port()));
    }
    let v6 = address.as_sockaddr_in6()?;
    Some(SocketAddr::new(v6.ip().to_canonical(), v6.port()))
}

#[expect(unsafe_code, reason = "the descriptor belongs to the library")]
fn has_room(descriptor: RawFd) -> bool {
    // SAFETY: it is used for one call of `poll`, which reports a descriptor that has been closed.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let mut entries = [PollFd::new(descriptor, PollFlags::POLLOUT)];
    // Closed is as good as empty: the library does not wait for it.
    poll(&mut entries, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Returns the user number of the other end of a connection, from the table of the system. An end that its
/// process has closed has none, although the table says that it is root's.
fn owner(table: &str, connection: &Connection) -> Option<u32> {
    let mut lines = table.lines().skip(1);
    lines.find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (local, peer) = (entry(words.next()?)?, entry(words.next()?)?);
        if (local, peer) != (connection.peer, connection.local) {
            return None;
        }
        let user = words.nth(4)?.parse().ok()?;
        let inode = words.nth(1)?;
        (inode != "0").then_some(user)
    })
}

/// Reads an address of the table: words of 32 bits in the order of this machine, each in hexadecimal digits.
fn entry(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    if !matches!(address.len(), 8 | 32) {
        return None;
    }
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    for word in address.as_bytes().chunks(8) {
        let word = u32::from_str_radix(std::str::from_utf8(word).ok()?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let address: IpAddr = if let Ok(v4) = <[u8; 4]>::try_from(&*bytes) {
        Ipv4Addr::from(v4).into()
    } else {
        let v6 = <[u8; 16]>::try_from(&*bytes).ok()?;
        Ipv6Addr::from(v6).to_canonical()
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_owner_of_the_other_end_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tool = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        use std::os::fd::AsRawFd as _;
        let connection = Connection::of(server.as_raw_fd()).unwrap();
        assert_eq!(connection.peer, tool.local_addr().unwrap());
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        assert_eq!(owner(&table, &connection), Some(nix::unistd::geteuid().as_raw()));
        assert!(admit(Some(nix::unistd::geteuid().as_raw())) && has_room(server.as_raw_fd()));
        assert!(!admit(Some(54321)), "its tool says that it is another user's");
        // The same in the words of another user.
        let other = table.replace(&format!(" {:>5} ", nix::unistd::geteuid().as_raw()), " 54321 ");
        assert_eq!(owner(&other, &connection), Some(54321));
        // The process has closed its end: whose it was is not known.
        drop(tool);
        assert_eq!(owners(&[connection]), [None]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_of_both_kinds_are_read() {
        assert_eq!(entry("0100007F:1F90").unwrap().to_string(), "127.0.0.1:8080");
        let mapped = "0000000000000000FFFF00000100007F:0016";
        assert_eq!(entry(mapped).unwrap().to_string(), "127.0.0.1:22");
        assert_eq!(
            entry("00000000000000000000000001000000:0001")
                .unwrap()
                .to_string(),
            "[::1]:1"
        );
        for wrong in ["", "0100007F", "01:1", "zz:1", "0100007F:12345"] {
            assert!(entry(wrong).is_none(), "{wrong}");
        }
    }
}
