//! Connections whose other side has not shown yet that it knows the key of the run.
//!
//! Everybody in the network can open such connections, and each takes a descriptor. So their number is
//! limited, for each address and in all. A new connection never waits: the oldest one of the address that has
//! the most is closed for it. A member of the run needs a place for the time of one answer only, so strangers
//! cannot keep it out, however many connections they hold.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::IpAddr;
use std::rc::Rc;

use tokio::task::AbortHandle;

/// Maximum connections. A node of many agents that come at once needs few of them.
pub(crate) const MAX_CONNECTIONS: usize = 512;

/// Maximum connections from one address.
pub(crate) const MAX_OF_ADDRESS: usize = 128;

/// The connections of a server that have not shown the key.
#[derive(Default)]
pub(crate) struct Unauthenticated(RefCell<Connections>);

#[derive(Default)]
struct Connections {
    last: u64,
    count: usize,
    /// The tasks that serve them, by address. The oldest comes first.
    tasks: BTreeMap<IpAddr, BTreeMap<u64, AbortHandle>>,
}

/// The place of a connection. Drop it when the other side has shown the key.
pub(crate) struct Place {
    all: Rc<Unauthenticated>,
    address: IpAddr,
    number: u64,
}

impl Unauthenticated {
    /// Serves a new connection in a task of its own. Closes another one if there are too many.
    pub(crate) fn enter<F>(self: &Rc<Self>, from: IpAddr, serve: impl FnOnce(Place) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        let address = network(from);
        let mut connections = self.0.borrow_mut();
        connections.make_room(address);
        connections.last += 1;
        let number = connections.last;
        let place = Place {
            all: Rc::clone(self),
            address,
            number,
        };
        // The task does not begin before this function returns.
        let task = tokio::task::spawn_local(serve(place));
        let tasks = connections.tasks.entry(address).or_default();
        tasks.insert(number, task.abort_handle());
        connections.count += 1;
    }
}

impl Connections {
    fn make_room(&mut self, address: IpAddr) {
        let of_address = self.tasks.get(&address).map_or(0, BTreeMap::len);
        let from = if of_address >= MAX_OF_ADDRESS {
            Some(address)
        } else if self.count >= MAX_CONNECTIONS {
            let most = self.tasks.iter().max_by_key(|(_, tasks)| tasks.len());
            most.map(|(address, _)| *address)
        } else {
            None
        };
        let Some(from) = from else { return };
        let oldest = self.tasks.get(&from).and_then(|tasks| tasks.keys().next());
        if let Some(task) = oldest.copied().and_then(|oldest| self.remove(from, oldest)) {
            task.abort();
        }
    }

    fn remove(&mut self, address: IpAddr, number: u64) -> Option<AbortHandle> {
        let tasks = self.tasks.get_mut(&address)?;
        let task = tasks.remove(&number)?;
        if tasks.is_empty() {
            self.tasks.remove(&address);
        }
        self.count -= 1;
        Some(task)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It is no longer there if it was closed for another one.
        self.all.0.borrow_mut().remove(self.address, self.number);
    }
}

/// What counts as one address: with IPv6, a host can choose the last 64 bits.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let network = u128::from(address) & !u128::from(u64::MAX);
            std::net::Ipv6Addr::from(network).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::Duration;

    use super::*;

    fn stranger(number: usize) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 | u32::try_from(number).unwrap()).into()
    }

    /// Enters for this time. Notes whether it was left in order.
    fn enter(all: &Rc<Unauthenticated>, from: IpAddr, stay: Duration, ended: &Rc<Cell<usize>>) {
        let ended = Rc::clone(ended);
        all.enter(from, move |place| async move {
            tokio::time::sleep(stay).await;
            drop(place);
            ended.set(ended.get() + 1);
        });
    }

    fn in_order(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, test);
    }

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn an_address_with_many_connections_takes_no_place_of_others() {
        in_order(async {
            let (all, ended) = <(Rc<Unauthenticated>, Rc<Cell<usize>>)>::default();
            let agent: IpAddr = Ipv4Addr::new(192, 168, 0, 1).into();
            enter(&all, agent, LONG, &ended);
            // First one address. Then many addresses, until all places are taken.
            for number in 0..3 * MAX_OF_ADDRESS {
                enter(&all, stranger(0), LONG, &ended);
                assert!(all.0.borrow().count <= 1 + MAX_OF_ADDRESS, "{number}");
            }
            for number in 0..20 * MAX_OF_ADDRESS {
                enter(&all, stranger(number % 20), LONG, &ended);
            }
            assert_eq!(all.0.borrow().count, MAX_CONNECTIONS);
            assert_eq!(all.0.borrow().tasks[&agent].len(), 1);
            // Closed ones end.
            while Rc::strong_count(&all) > 1 + MAX_CONNECTIONS {
                tokio::task::yield_now().await;
            }
            assert_eq!(ended.get(), 0);
        });
    }

    #[test]
    fn many_members_come_in_one_after_the_other() {
        in_order(async {
            let (all, ended) = <(Rc<Unauthenticated>, Rc<Cell<usize>>)>::default();
            for number in 0..20 * MAX_OF_ADDRESS {
                enter(&all, stranger(number), Duration::ZERO, &ended);
                tokio::task::yield_now().await;
            }
            while all.0.borrow().count > 0 {
                tokio::task::yield_now().await;
            }
            assert!(all.0.borrow().tasks.is_empty());
            assert_eq!(ended.get(), 20 * MAX_OF_ADDRESS);
        });
    }

    #[test]
    fn a_host_with_many_addresses_of_ipv6_counts_as_one() {
        let host = |last| network(Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, last).into());
        assert_eq!(host(7), host(8));
        assert_ne!(
            host(7),
            network(Ipv6Addr::new(0xfd00, 1, 2, 4, 4, 5, 6, 7).into())
        );
        // A socket for both protocols gives addresses of IPv4 in this form.
        let [one, two] = [1, 2].map(|last| Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped());
        assert_ne!(network(one.into()), network(two.into()));
    }
}
