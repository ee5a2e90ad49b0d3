//! Listens in a thread of its own, and lets in who has the key of the run.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::key::{KeyError, RunKey};
use crate::proof::Proof;
use crate::stream::{buffered, limited};
use crate::unauthenticated::Unauthenticated;

/// Time until the next attempt to take a connection after one that has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection after its handshake.
pub(crate) type Secured = TlsStream<BufReader<TcpStream>>;

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The system refused the port or the thread.
    #[error("Unable to listen for agents: {}", pmc_dag::reason(.0))]
    Listen(#[from] io::Error),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// Where to listen. The default is a free port of all addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listen {
    /// The address; `None` stands for all.
    pub address: Option<IpAddr>,
    /// Ports to choose from; `None` stands for any free one.
    pub ports: Option<RangeInclusive<u16>>,
}

impl Listen {
    /// Only this machine.
    #[must_use]
    pub fn loopback() -> Self {
        Self {
            address: Some(Ipv4Addr::LOCALHOST.into()),
            ports: None,
        }
    }

    /// Listens on this port, if it may be used and is free, or on another one.
    fn open(&self, port: u16) -> io::Result<TcpListener> {
        let bind = |port: u16| match self.address {
            Some(address) => TcpListener::bind((address, port)),
            None => TcpListener::bind(("::", port)).or_else(|_| TcpListener::bind(("0.0.0.0", port))),
        };
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        let may_use = |port: &u16| self.ports.as_ref().is_none_or(|ports| ports.contains(port));
        let others = self.ports.clone().unwrap_or(0..=0);
        for port in Some(port).filter(may_use).into_iter().chain(others) {
            match bind(port) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    return Ok(listener);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A port that is open.
pub(crate) struct Acceptor {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    proof: Proof,
    port: u16,
}

/// A thread that serves a port, until this is dropped.
pub(crate) struct Listener {
    port: u16,
    /// Dropping it ends the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Acceptor {
    /// Listens on this port, or on another one if that is 0 or in use.
    ///
    /// # Errors
    /// No port can be had, or the key is unusable.
    pub(crate) fn open(key: &RunKey, listen: &Listen, port: u16) -> Result<Self, ServerError> {
        let acceptor = TlsAcceptor::from(Arc::new(key.server_config()?));
        let listener = listen.open(port)?;
        let port = listener.local_addr()?.port();
        Ok(Self {
            listener,
            acceptor,
            proof: Proof::new(key),
            port,
        })
    }

    /// Serves each connection in a task of its own, once its handshake has ended within `limit`. `who` comes,
    /// for messages. Returns only after an error.
    pub(crate) async fn let_in<F>(
        self,
        who: &str,
        limit: Duration,
        serve: impl Fn(Secured) -> F + 'static,
    ) -> io::Result<()>
    where
        F: Future<Output = io::Result<()>> + 'static,
    {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let (strangers, serve) = (Rc::new(Unauthenticated::default()), Rc::new(serve));
        loop {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Too many open files, perhaps: some will be closed.
                    tracing::warn!(
                        "Unable to take a connection of {who}: {}",
                        pmc_dag::reason(&error)
                    );
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (acceptor, proof, serve) = (self.acceptor.clone(), self.proof.clone(), Rc::clone(&serve));
            strangers.enter(from.ip(), |place| async move {
                let mut stream = stream;
                let handshake = async {
                    stream.set_nodelay(true)?;
                    proof.serve(&mut stream).await?;
                    // The other side knows the key.
                    drop(place);
                    acceptor.accept(buffered(stream)).await
                };
                let handshake = limited(limit, "the handshake takes too long", handshake);
                let served = match handshake.await {
                    Err(error) => Err(error),
                    Ok(secured) => serve(secured).await,
                };
                if let Err(error) = served {
                    tracing::debug!("Connection from {from}: {error}");
                }
            });
            // Connections that are there come before the next one: many new ones do not hold them up.
            tokio::task::yield_now().await;
        }
    }
}

impl Listener {
    /// Starts the thread. `serve` serves the acceptor, and its tasks run in this thread. `who` comes: the
    /// name of the thread, and for messages.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn start<F>(
        who: &'static str,
        acceptor: Acceptor,
        serve: impl FnOnce(Acceptor) -> F + Send + 'static,
    ) -> io::Result<Self>
    where
        F: Future<Output = io::Result<()>>,
    {
        let port = acceptor.port;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            let local = tokio::task::LocalSet::new();
            runtime.block_on(local.run_until(async {
                tokio::select! {
                    ended = serve(acceptor) => {
                        if let Err(error) = ended {
                            tracing::error!("Unable to listen for {who}: {}", pmc_dag::reason(&error));
                        }
                    }
                    _ = stopped => {}
                }
            }));
        };
        let thread = std::thread::Builder::new().name(who.to_owned()).spawn(run)?;
        Ok(Self {
            port,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::time::Instant;

    use super::*;

    /// A byte now and then does not make the time of a handshake longer.
    #[test]
    fn a_stranger_that_drips_is_dropped() {
        const LIMIT: Duration = Duration::from_millis(300);
        let key = RunKey::generate().unwrap();
        let acceptor = Acceptor::open(&key, &Listen::loopback(), 0).unwrap();
        let listener = Listener::start("agents", acceptor, |acceptor| {
            acceptor.let_in("agents", LIMIT, |_| async { Ok(()) })
        });
        let port = listener.as_ref().unwrap().port();
        let mut stranger = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stranger
            .set_read_timeout(Some(Duration::from_millis(20)))
            .unwrap();
        let begun = Instant::now();
        loop {
            // An end, or a reset: there were bytes that nobody has read.
            let ended = match stranger.read(&mut [0; 64]) {
                Ok(read) => read == 0,
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            };
            if ended || stranger.write_all(&[0]).is_err() {
                break;
            }
            // It sends less than an answer has.
            assert!(begun.elapsed() < 100 * LIMIT, "it is still served");
        }
        assert!(begun.elapsed() >= LIMIT - Duration::from_millis(50));
    }
}
