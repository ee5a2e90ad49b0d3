//! Addresses that do not answer: a firewall may drop what is sent there, and each attempt takes seconds.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pmc_system::clock;

use crate::stream::limited;

/// How long an address is not tried again.
const SILENCE: Duration = Duration::from_secs(60);

/// Maximum addresses that are remembered.
const MAX_ADDRESSES: usize = 10_000;

/// Remembers addresses that did not answer, for a minute. All threads may use it.
#[derive(Debug, Default)]
pub struct SilentAddresses(Mutex<BTreeMap<String, Instant>>);

impl SilentAddresses {
    /// True if this address did not answer within the last minute.
    #[must_use]
    pub fn has(&self, address: &str) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known
            .get(address)
            .is_some_and(|since| clock::elapsed(*since) < SILENCE)
    }

    /// Remembers an address if it did not answer, as this error says. The first time, a warning says so.
    pub fn note(&self, address: &str, error: &io::Error) {
        use io::ErrorKind::{HostUnreachable, NetworkUnreachable, TimedOut};
        if !matches!(error.kind(), TimedOut | HostUnreachable | NetworkUnreachable) {
            return;
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_ADDRESSES {
            known.clear();
        }
        if known.insert(address.to_owned(), clock::now()).is_none() {
            let seconds = SILENCE.as_secs();
            tracing::warn!(
                "{address}: {}. It is tried again after {seconds} s, if there is another way",
                pmc_dag::reason(error)
            );
        }
    }
}

/// Looks up an address, `HOST:PORT`. Only a name takes time.
pub(crate) async fn resolve(address: &str, limit: Duration) -> io::Result<Vec<SocketAddr>> {
    if let Ok(numeric) = address.parse() {
        return Ok(vec![numeric]);
    }
    let (sender, found) = tokio::sync::oneshot::channel();
    let name = address.to_owned();
    // The system's search cannot be ended. It must hold up neither this thread nor the end of the process.
    std::thread::Builder::new()
        .name("name".to_owned())
        .spawn(move || {
            let found = name.to_socket_addrs().map(Iterator::collect);
            let _ = sender.send(found);
        })?;
    let found = async { found.await.map_err(io::Error::other)? };
    limited(limit, "the name is not found", found).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_does_not_answer_is_remembered() {
        let silent = SilentAddresses::default();
        silent.note("a:1", &io::ErrorKind::ConnectionRefused.into());
        assert!(!silent.has("a:1"));
        silent.note("a:1", &io::ErrorKind::TimedOut.into());
        assert!(silent.has("a:1") && !silent.has("b:1"));
    }

    /// The search of the system for a name can take much longer.
    #[test]
    fn a_name_takes_no_longer_than_the_limit() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let found = |address| runtime.block_on(resolve(address, Duration::ZERO));
        // A number needs no search.
        assert_eq!(found("[::1]:7").unwrap(), ["[::1]:7".parse().unwrap()]);
        let begun = Instant::now();
        assert!(found("name.invalid:7").is_err());
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
