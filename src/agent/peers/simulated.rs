//! Files of simulated hosts: who asks whom is real, the jobs and their copies are those of the simulation.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pmc_link::{Endpoint, Link, PeerError, SilentAddresses};
use pmc_node_files::NodeFile;
use pmc_node_files::directory::PeerRequest;
use pmc_system::planted::{Planted, is_planted};
use pmc_system::thread;

use super::{Asked, GetError, LOOK_INTERVAL, Peers, State};
use crate::worker::simulated::{Inputs, SimulatedTask, host};

/// Bytes of each file.
const BYTES: u64 = 1 << 20;

impl Peers {
    /// Those of an agent on a simulated host.
    pub(in crate::agent) fn simulated(link: &Arc<Link>, endpoint: &Endpoint) -> io::Result<Arc<Self>> {
        let host = host().ok_or(io::ErrorKind::Unsupported)?;
        let this = Arc::new(Self {
            link: Arc::clone(link),
            key: endpoint.key.clone(),
            listen: endpoint.listen_like_master(),
            name: host.0.registration().host,
            state: Mutex::<State>::default(),
            silent: SilentAddresses::default(),
        });
        host.bring_with(Box::new(Arc::clone(&this)));
        Ok(this)
    }

    /// Does what [`Peers::get`] does for a job.
    fn bring_input(self: &Arc<Self>, key: &str, task: SimulatedTask) {
        let Some(host) = host() else { return };
        {
            let mut state = self.state();
            if !state.has_begun {
                self.begin(&mut state);
            }
        }
        // As the lock of its place in the cache.
        while !host.0.begin_file(key) {
            if host.0.ended(task).is_some() {
                return;
            }
            thread::sleep(LOOK_INTERVAL);
        }
        if !host.0.has_file(key) {
            let asked = Asked::new(self, key);
            let is_there = || host.0.ended(task).is_none();
            let fetch = |address: &str| {
                let copied = host.0.copy(address, key);
                let failed = |error| GetError::Peer(PeerError::System(error));
                match copied.map_err(failed)? {
                    true => Ok(BYTES),
                    false => Err(GetError::Missing),
                }
            };
            let request = PeerRequest::Ask {
                number: asked.number,
                key: key.to_owned(),
            };
            let copied = self.say(&request) && asked.source(&is_there, &fetch).is_some();
            if !copied {
                host.0.fetch(key);
            }
            // Before the master hears that the request has ended.
            self.note_file(key);
        }
        self.note_file(key);
        host.0.end_file(key);
        host.0.take_input(task, key);
    }

    fn note_file(&self, key: &str) {
        if !is_planted(Planted::UnsaidFile) {
            self.have(NodeFile {
                key: key.to_owned(),
                lock: PathBuf::new(),
                file: PathBuf::new(),
                name: format!("f{key}"),
                bytes: BYTES,
            });
        }
    }
}

impl Inputs for Arc<Peers> {
    fn bring(&self, keys: Vec<String>, task: SimulatedTask) {
        let this = Arc::clone(self);
        let job = move || keys.iter().for_each(|key| this.bring_input(key, task));
        // Without a thread, the task waits in vain: the simulation finds it.
        let _ = thread::spawn("lite-job", job);
    }
}
