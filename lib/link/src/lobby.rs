//! Connections whose other side has not proved yet that it has the key of the run.
//!
//! Everybody in the network can open such connections, and each takes a descriptor. So their number is
//! limited. A member of the run proves the key within moments: while there is no room for another connection,
//! the oldest one is closed when it has had [`PATIENCE`].

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// Maximum connections in a lobby.
const MAX_CONNECTIONS: usize = 64;

/// Time that a connection has for its handshake when others wait.
const PATIENCE: Duration = Duration::from_secs(2);

/// The connections of a server that have not proved the key.
#[derive(Default)]
pub(crate) struct Lobby {
    connections: RefCell<Connections>,
    /// Notes that one has left.
    left: Notify,
}

#[derive(Default)]
struct Connections {
    last: u64,
    /// The tasks that serve them, and since when. The oldest comes first.
    tasks: BTreeMap<u64, (Instant, AbortHandle)>,
}

/// The place of a connection. Drop it when the other side has proved the key.
pub(crate) struct Place {
    lobby: Rc<Lobby>,
    number: u64,
}

impl Lobby {
    /// Waits until there is room for another connection.
    pub(crate) async fn room(&self) {
        while let Some(since) = self.oldest_if_full() {
            let left = PATIENCE.saturating_sub(since.elapsed());
            if left.is_zero() {
                self.close_oldest();
                return;
            }
            // A timeout is as good.
            let _ = tokio::time::timeout(left, self.left.notified()).await;
        }
    }

    /// Serves a new connection in a task of its own.
    pub(crate) fn enter<F>(self: &Rc<Self>, serve: impl FnOnce(Place) -> F)
    where
        F: Future<Output = ()> + 'static,
    {
        let mut connections = self.connections.borrow_mut();
        connections.last += 1;
        let number = connections.last;
        let place = Place {
            lobby: Rc::clone(self),
            number,
        };
        // The task does not begin before this function returns.
        let task = tokio::task::spawn_local(serve(place));
        let entry = (Instant::now(), task.abort_handle());
        connections.tasks.insert(number, entry);
    }

    fn oldest_if_full(&self) -> Option<Instant> {
        let connections = self.connections.borrow();
        let (_, (since, _)) = connections.tasks.first_key_value()?;
        (connections.tasks.len() >= MAX_CONNECTIONS).then_some(*since)
    }

    fn close_oldest(&self) {
        let oldest = self.connections.borrow_mut().tasks.pop_first();
        if let Some((_, (_, task))) = oldest {
            task.abort();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.lobby.connections.borrow_mut().tasks.remove(&self.number);
        self.lobby.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Enters the lobby for this time. Notes whether it was left in order.
    fn enter(lobby: &Rc<Lobby>, stay: Duration, ended: &Rc<Cell<usize>>) {
        let ended = Rc::clone(ended);
        lobby.enter(move |place| async move {
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

    #[test]
    fn a_full_lobby_closes_the_oldest_connection_after_a_while() {
        in_order(async {
            let (lobby, ended) = <(Rc<Lobby>, Rc<Cell<usize>>)>::default();
            let begun = Instant::now();
            for _ in 0..MAX_CONNECTIONS + 3 {
                lobby.room().await;
                enter(&lobby, Duration::from_secs(600), &ended);
            }
            assert!(begun.elapsed() >= PATIENCE);
            assert_eq!(lobby.connections.borrow().tasks.len(), MAX_CONNECTIONS);
            // Its task ends, too.
            while Rc::strong_count(&lobby) > 1 + MAX_CONNECTIONS {
                tokio::task::yield_now().await;
            }
            assert_eq!(ended.get(), 0);
        });
    }

    #[test]
    fn many_members_come_in_one_after_the_other() {
        in_order(async {
            let (lobby, ended) = <(Rc<Lobby>, Rc<Cell<usize>>)>::default();
            for _ in 0..20 * MAX_CONNECTIONS {
                lobby.room().await;
                enter(&lobby, Duration::ZERO, &ended);
            }
            while !lobby.connections.borrow().tasks.is_empty() {
                tokio::task::yield_now().await;
            }
            assert_eq!(ended.get(), 20 * MAX_CONNECTIONS);
        });
    }
}
