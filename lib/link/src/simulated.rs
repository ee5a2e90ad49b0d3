//! Connections through the network of a simulation. Sessions, leases and handshakes are the real ones; TLS, the
//! proof of the key and the framing are left out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use pmc_system::simulated::net::{self, Stream};
use pmc_system::simulated::{ThreadId, current_thread, park, unpark, waker};
use pmc_system::{clock, thread};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::client::{Carrier, Carry, Client, ConnectError, Connection};
use crate::server::{Accepted, HANDSHAKE, Hub, Line, Service, report, watch_interval};
use crate::stream::{Outgoing, Port, is_death};

impl Client {
    /// Connects to one address of the master.
    pub(crate) fn shake_hands_simulated(
        &self,
        address: &str,
        hello: &[u8],
        carry: Option<&Carry<'_>>,
    ) -> Result<Connection, ConnectError> {
        let limit = self.limit();
        let unreachable = |source| ConnectError::Unreachable {
            address: address.to_owned(),
            source,
        };
        let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        let stream = net::connect(port.unwrap_or(0), limit).map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => ConnectError::NobodyListens(address.to_owned()),
            _ => unreachable(error),
        })?;
        let first = self.first(hello, carry);
        stream.send(first.frame.clone());
        let answer = stream.receive(clock::now() + limit).map_err(unreachable)?;
        let answer = answer.ok_or_else(|| unreachable(io::ErrorKind::UnexpectedEof.into()))?;
        self.begin(&first, &answer, carry, Carrier::Simulated(stream))
    }
}

/// Like [`crate::stream::pump`].
pub(crate) fn pump(
    stream: Stream,
    mut frames: UnboundedReceiver<Outgoing>,
    interval: Option<Duration>,
    port: &mut impl Port,
) -> io::Result<()> {
    let ended = exchange(&stream, &mut frames, interval, port, &|| false);
    stream.close();
    ended
}

fn exchange(
    stream: &Stream,
    frames: &mut UnboundedReceiver<Outgoing>,
    interval: Option<Duration>,
    port: &mut impl Port,
    is_over: &dyn Fn() -> bool,
) -> io::Result<()> {
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    let mut next_tick = interval.map(|_| clock::now());
    while !is_over() {
        while let Some(received) = stream.try_receive() {
            match received? {
                Some(frame) => port.receive(frame)?,
                None => return Ok(()),
            }
        }
        loop {
            match frames.poll_recv(&mut context) {
                Poll::Ready(Some(outgoing)) => stream.send(outgoing.frame),
                Poll::Ready(None) => return Ok(()),
                Poll::Pending => break,
            }
        }
        if let (Some(tick), Some(interval)) = (next_tick, interval)
            && clock::now() >= tick
        {
            port.tick()?;
            next_tick = Some(clock::now() + interval);
        }
        park(next_tick);
    }
    Ok(())
}

/// Threads that serve a port, until this is dropped.
pub(crate) struct Listening {
    port: u16,
    is_over: Arc<AtomicBool>,
    threads: Arc<std::sync::Mutex<Vec<ThreadId>>>,
}

impl Listening {
    pub(crate) fn start<S: Service>(port: u16, hub: &Arc<Hub>, service: &Arc<S>) -> io::Result<Self> {
        let listener = net::Listener::bind(port);
        let listening = Self {
            port: listener.port(),
            is_over: Arc::default(),
            threads: Arc::default(),
        };
        let (hub, service) = (Arc::clone(hub), Arc::clone(service));
        let this = listening.clone_parts();
        let watched = (Arc::clone(&hub), Arc::clone(&service), this.clone_parts());
        thread::spawn("watch", move || {
            let (hub, service, this) = watched;
            this.enter();
            while !this.is_over() {
                report(&hub, service.as_ref());
                park(Some(clock::now() + watch_interval(&hub)));
            }
        })?;
        thread::spawn("agents", move || {
            this.enter();
            while !this.is_over() {
                while let Some(stream) = listener.try_accept() {
                    let (hub, service, parts) = (Arc::clone(&hub), Arc::clone(&service), this.clone_parts());
                    let started = thread::spawn("agent", move || {
                        parts.enter();
                        let _ = serve(stream, &hub, &service, &|| parts.is_over());
                    });
                    drop(started);
                }
                park(None);
            }
        })?;
        Ok(listening)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    fn clone_parts(&self) -> Parts {
        Parts {
            is_over: Arc::clone(&self.is_over),
            threads: Arc::clone(&self.threads),
        }
    }
}

/// What the threads know.
struct Parts {
    is_over: Arc<AtomicBool>,
    threads: Arc<std::sync::Mutex<Vec<ThreadId>>>,
}

impl Parts {
    fn clone_parts(&self) -> Self {
        Self {
            is_over: Arc::clone(&self.is_over),
            threads: Arc::clone(&self.threads),
        }
    }

    fn enter(&self) {
        let mut threads = self
            .threads
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        threads.extend(current_thread());
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let mut threads = self
            .threads
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *threads).into_iter().for_each(unpark);
    }
}

/// Like [`crate::server::serve`].
fn serve<S: Service>(
    stream: Stream,
    hub: &Arc<Hub>,
    service: &Arc<S>,
    is_over: &dyn Fn() -> bool,
) -> io::Result<()> {
    let Some(hello): Option<Bytes> = stream.receive(clock::now() + HANDSHAKE)? else {
        return Ok(());
    };
    let accepted = match hub.hello(&hello, service.as_ref()) {
        Ok(accepted) => accepted,
        Err(answer) => {
            stream.send(answer);
            stream.close();
            return Ok(());
        }
    };
    let Accepted {
        session,
        connection,
        mut frames,
        welcome,
        joined,
        back,
    } = accepted;
    let mut line = Line {
        hub: Arc::clone(hub),
        service: Arc::clone(service),
        session,
        connection,
    };
    stream.send(welcome);
    if joined {
        service.joined(session);
    }
    if back {
        service.back(session);
    }
    let ended = exchange(&stream, &mut frames, None, &mut line, is_over);
    if is_over() {
        // The system closes the socket of a thread that has ended.
        return ended;
    }
    stream.close();
    let died = ended.as_ref().is_err_and(is_death);
    if hub.closed(session, connection, died) {
        service.silent(session);
    }
    ended
}
