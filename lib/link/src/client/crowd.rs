//! Many agents in one thread, for benchmarks of a master: each has a connection and a session of its own.

use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::LocalSet;
use tokio_rustls::TlsConnector;

use super::connection::SessionSocket;
use super::{Agent, Carrier, Client, Connection, Link};
use crate::endpoint::Endpoint;
use crate::proof::Proof;
use crate::stream::pump;

/// How many shake hands at a time.
const CONNECTING: usize = 16;

/// An agent of a crowd.
pub trait CrowdAgent: Agent {
    /// What the master says when the agent has joined.
    fn joined(&mut self, welcome: &[u8]);
}

/// What an agent of a crowd needs.
pub struct Member {
    /// Its link, without a session.
    pub link: Arc<Link>,
    /// What it says when it joins.
    pub hello: Vec<u8>,
    /// What it does.
    pub agent: Box<dyn CrowdAgent>,
}

/// Lets all agents join, and serves them until their connections end.
///
/// # Errors
/// One of them cannot join.
pub fn run_crowd(endpoint: &Endpoint, members: Vec<Member>) -> io::Result<()> {
    let runtime = super::runtime()?;
    let address = endpoint.addresses.first().cloned().unwrap_or_default();
    let config = endpoint.key.client_config().map_err(io::Error::other)?;
    let crowd = Rc::new(Crowd {
        address,
        proof: Proof::new(&endpoint.key),
        connector: TlsConnector::from(Arc::new(config)),
        places: Semaphore::new(CONNECTING),
    });
    let local = LocalSet::new();
    let started: Vec<_> = members
        .into_iter()
        .map(|member| {
            let client = Client::with_runtime(Arc::clone(&runtime), Arc::clone(&member.link));
            local.spawn_local(Rc::clone(&crowd).serve(client, member))
        })
        .collect();
    local.block_on(&runtime, async {
        for task in started {
            task.await.map_err(io::Error::other)??;
        }
        Ok(())
    })
}

struct Crowd {
    address: String,
    proof: Proof,
    connector: TlsConnector,
    places: Semaphore,
}

impl Crowd {
    async fn serve(self: Rc<Self>, client: Client, mut member: Member) -> io::Result<()> {
        let place = self.places.acquire().await;
        let key = (&self.proof, self.connector.clone());
        let connection = client.shake_hands(&self.address, key, &member.hello, None).await;
        let connection = connection.map_err(io::Error::other)?;
        drop(place);
        member.agent.joined(&connection.welcome);
        let Connection {
            link,
            carrier,
            frames,
            ..
        } = connection;
        let interval = link.timing.heartbeat / 4;
        let mut socket = SessionSocket {
            link: &link,
            agent: &mut *member.agent,
            next_beat: link.now(),
            asked: false,
        };
        match carrier {
            // The master closes it.
            Carrier::Tls(framed) => drop(pump(*framed, frames, Some(interval), &mut socket).await),
            #[cfg(feature = "simulated")]
            Carrier::Simulated(_) => {}
        }
        Ok(())
    }
}
