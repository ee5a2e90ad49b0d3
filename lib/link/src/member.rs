//! A connection of one member of the run with another one, and what it wants there.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use crate::client::open;
use crate::key::{KeyError, RunKey};
use crate::proof::Proof;
use crate::stream::{buffered, limited};

/// Maximum bytes of a frame.
pub(crate) const CHUNK: usize = 256 << 10;

/// Maximum time for a connection and its handshake.
pub(crate) const CONNECT: Duration = Duration::from_secs(5);

/// Number of a gang. It is secret: a process that knows it may run commands.
pub type Gang = u128;

/// The connection of the one who wants something.
pub(crate) type Peer = Framed<TlsStream<BufReader<TcpStream>>, LengthDelimitedCodec>;

/// What the one who connects wants.
#[derive(Serialize, Deserialize)]
pub(crate) enum Wanted<'a> {
    /// The file with this key.
    File { key: &'a str },
    /// To run a command in this gang.
    Command { gang: Gang },
}

pub(crate) fn framed<S: AsyncRead + AsyncWrite>(stream: S) -> Framed<S, LengthDelimitedCodec> {
    let codec = LengthDelimitedCodec::builder()
        .max_frame_length(CHUNK)
        .new_codec();
    Framed::new(stream, codec)
}

/// Connects with members of a run.
pub(crate) struct Connector {
    proof: Proof,
    tls: TlsConnector,
}

impl Connector {
    pub(crate) fn new(key: &RunKey) -> Result<Self, KeyError> {
        Ok(Self {
            proof: Proof::new(key),
            tls: TlsConnector::from(Arc::new(key.client_config()?)),
        })
    }

    pub(crate) async fn connect(&self, address: &str) -> io::Result<Peer> {
        let mut stream = open(address, CONNECT).await?;
        // The name is not checked: the key identifies a member.
        let name = ServerName::try_from("peer").map_err(io::Error::other)?;
        let handshake = async {
            self.proof.show(&mut stream).await?;
            self.tls.connect(name, buffered(stream)).await
        };
        Ok(framed(
            limited(CONNECT, "the handshake takes too long", handshake).await?,
        ))
    }
}
