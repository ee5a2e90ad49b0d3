//! Frames over an encrypted stream.

use std::future::Future;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use pmc_system::planted::{Planted, is_planted};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::frame::MAX_FRAME;

/// Bytes that are read from a socket at a time. TLS alone reads four kilobytes. Memory that was not needed so
/// far is not taken by the system.
const READ: usize = 64 << 10;

/// Maximum frames that are written before they are flushed.
const BATCH: usize = 64;

/// How long a frame that may wait does so for others. A batch costs the processes on both sides one wake-up.
const LINGER: Duration = Duration::from_millis(2);

/// Maximum time to say that a connection is closed on purpose.
const CLOSE: Duration = Duration::from_millis(200);

/// A frame to write.
pub(crate) struct Outgoing {
    pub(crate) frame: Bytes,
    may_wait: bool,
}

impl Outgoing {
    /// A frame that may wait for [`LINGER`].
    pub(crate) fn soon(frame: Bytes) -> Self {
        Self {
            frame,
            may_wait: true,
        }
    }
}

impl From<Bytes> for Outgoing {
    fn from(frame: Bytes) -> Self {
        Self {
            frame,
            may_wait: false,
        }
    }
}

/// Prepares a connection for TLS.
pub(crate) fn buffered(stream: TcpStream) -> BufReader<TcpStream> {
    BufReader::with_capacity(READ, stream)
}

pub(crate) fn framed<S: AsyncRead + AsyncWrite>(stream: S) -> Framed<S, LengthDelimitedCodec> {
    let codec = LengthDelimitedCodec::builder()
        .max_frame_length(MAX_FRAME)
        .new_codec();
    Framed::new(stream, codec)
}

/// What a connection has to do besides reading frames.
pub(crate) trait FrameHandler {
    /// Takes a frame. An error closes the connection.
    fn receive(&mut self, frame: Bytes) -> io::Result<()>;

    /// Called now and then. An error closes the connection.
    fn tick(&mut self) -> io::Result<()>;
}

/// Reads and writes frames until the connection ends. Returns why it ended: `Ok` if the other side, or
/// [`FrameHandler`], closed it in order, or if there is nothing more to write.
///
/// If this side ends the connection, it says so. Without that, the process on this side has died: see
/// [`is_death`].
pub(crate) async fn pump<S: AsyncRead + AsyncWrite>(
    framed: Framed<S, LengthDelimitedCodec>,
    mut frames: UnboundedReceiver<Outgoing>,
    interval: Option<Duration>,
    handler: &mut impl FrameHandler,
) -> io::Result<()> {
    // Reading and writing must not wait for each other: both sides may have much to send.
    let (mut sink, mut stream) = framed.split();
    let write = async {
        let mut batch = Vec::new();
        while frames.recv_many(&mut batch, BATCH).await > 0 {
            if batch.iter().all(|outgoing| outgoing.may_wait) {
                tokio::time::sleep(LINGER).await;
                while let Ok(next) = frames.try_recv() {
                    batch.push(next);
                }
            }
            for outgoing in batch.drain(..) {
                sink.feed(outgoing.frame).await?;
            }
            sink.flush().await?;
        }
        Ok(())
    };
    let read = async move {
        let mut ticks = interval.map(tokio::time::interval);
        loop {
            let frame = match &mut ticks {
                None => stream.next().await,
                Some(ticks) => tokio::select! {
                    biased;
                    frame = stream.next() => frame,
                    _ = ticks.tick() => {
                        handler.tick()?;
                        continue;
                    }
                },
            };
            match frame {
                Some(frame) => handler.receive(frame?.freeze())?,
                None => return Ok(()),
            }
        }
    };
    let ended = tokio::select! {
        ended = read => ended,
        ended = write => ended,
    };
    // The other side may not answer.
    let _ = tokio::time::timeout(CLOSE, sink.close()).await;
    ended
}

/// True if a connection has ended because the process on the other side has: its system closed the socket,
/// and nothing was said before. A connection that was reset is no death: a device on the way can do that
/// while the process goes on.
pub(crate) fn is_death(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
        || is_planted(Planted::ResetIsDeath) && error.kind() == io::ErrorKind::ConnectionReset
}

/// Ends a wait that takes too long.
pub(crate) async fn limited<T>(
    limit: Duration,
    what: &'static str,
    wait: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    match tokio::time::timeout(limit, wait).await {
        Ok(result) => result,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, what)),
    }
}
