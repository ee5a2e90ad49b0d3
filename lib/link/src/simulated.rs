//! Connections through the network of a simulation. Sessions, leases and handshakes are the real ones; TLS,
//! the proof of the key and the framing are left out.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use pmc_system::simulated::net::{self, Stream};
use pmc_system::simulated::{ThreadId, current_thread, park, unpark, waker};
use pmc_system::{clock, thread};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::stream::{FrameHandler, Outgoing};

/// Like [`crate::stream::pump`].
pub(crate) fn pump(
    stream: Stream,
    mut frames: UnboundedReceiver<Outgoing>,
    interval: Option<Duration>,
    handler: &mut impl FrameHandler,
) -> io::Result<()> {
    let ended = exchange(&stream, &mut frames, interval, handler, &|| false);
    stream.close();
    ended
}

/// Reads and writes frames until the connection ends, or `is_over`.
pub(crate) fn exchange(
    stream: &Stream,
    frames: &mut UnboundedReceiver<Outgoing>,
    interval: Option<Duration>,
    handler: &mut impl FrameHandler,
    is_over: &dyn Fn() -> bool,
) -> io::Result<()> {
    let waker = waker();
    let mut context = Context::from_waker(&waker);
    let mut next_tick = interval.map(|_| clock::now());
    while !is_over() {
        while let Some(received) = stream.try_receive() {
            match received? {
                Some(frame) => handler.receive(frame)?,
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
            handler.tick()?;
            next_tick = Some(clock::now() + interval);
        }
        park(next_tick);
    }
    Ok(())
}

/// Threads that serve a port, until this is dropped.
pub(crate) struct Listening {
    port: u16,
    parts: Parts,
}

impl Listening {
    /// Starts the threads: one calls `watch` at intervals, one accepts connections, and each of these has one
    /// that calls `serve`, with what says whether to end.
    pub(crate) fn start(
        port: u16,
        (interval, watch): (Duration, impl Fn() + Send + 'static),
        serve: impl Fn(Stream, &dyn Fn() -> bool) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = net::Listener::bind(port);
        let (port, parts) = (listener.port(), Parts::default());
        let this = parts.clone();
        thread::spawn("watch", move || {
            this.enter();
            while !this.is_over() {
                watch();
                park(Some(clock::now() + interval));
            }
        })?;
        let (this, serve) = (parts.clone(), Arc::new(serve));
        thread::spawn("agents", move || {
            this.enter();
            while !this.is_over() {
                while let Some(stream) = listener.try_accept() {
                    let (parts, serve) = (this.clone(), Arc::clone(&serve));
                    let started = thread::spawn("agent", move || {
                        parts.enter();
                        serve(stream, &|| parts.is_over());
                    });
                    drop(started);
                }
                park(None);
            }
        })?;
        Ok(Self { port, parts })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

/// What the threads know.
#[derive(Clone, Default)]
struct Parts {
    is_over: Arc<AtomicBool>,
    threads: Arc<std::sync::Mutex<Vec<ThreadId>>>,
}

impl Parts {
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
        self.parts.is_over.store(true, Ordering::Release);
        let mut threads = self
            .parts
            .threads
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *threads).into_iter().for_each(unpark);
    }
}
