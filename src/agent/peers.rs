//! Gives the cached files of lite jobs to other nodes of the run, and gets theirs.
//!
//! Lite jobs of this node connect with the socket whose name is in the variable `PEGASUS_LITE_PEERS`
//! ([`pmc_wire::peers`]). The agent asks the master which node has what a job needs, and gets it from there.
//! Other nodes name a key, never a path: the job that has made an entry has said where it is. Whatever
//! fails, the job fetches the file from the staging site.

#[cfg(feature = "simulated")]
mod simulated;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pmc_files::OFlags;
use pmc_link::{
    Commands, Endpoint, Gang, Growing, Link, Listen, Offered, PeerServer, RunKey, Running, SilentAddresses,
};
use pmc_node_files::NodeFile;
use pmc_node_files::directory::{PeerAnswer, PeerRequest};
use pmc_node_files::offer::{self, Known};
use pmc_system::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use pmc_system::clock;
use pmc_wire::command::Call;
use pmc_wire::peers::{self, ToAgent, ToJob};

use crate::host;
use crate::transport::agents::messages;

/// How long a job waits at most for the one of another node that fetches what both need.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// Time between two looks whether the job is still there.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// From how many nodes a job tries to get an entry.
const MAX_SOURCES: u32 = 3;

/// Minimum bytes of a file that this node gives on while it comes in. A smaller one is there as soon as
/// others know of it.
const MIN_GROWING: u64 = 1 << 20;

/// Maximum jobs that talk to this agent at a time.
const MAX_JOBS: usize = 1 << 9;

/// What is known of other nodes.
pub(super) struct Peers {
    link: Arc<Link>,
    key: RunKey,
    /// Where it listens for other nodes.
    listen: Listen,
    /// Name of the socket for jobs.
    name: String,
    state: Mutex<State>,
    silent: SilentAddresses,
}

/// What else has files for other nodes.
pub(super) trait GivesFiles: Send + Sync {
    /// Opens the file with a key.
    fn find(&self, key: &str) -> Option<File>;
}

#[derive(Default)]
struct State {
    /// Address of this host as the master sees it.
    address: Option<IpAddr>,
    /// Serves other nodes. Started by the first job of lite, or the first gang.
    server: Option<PeerServer>,
    /// What tasks of this node have saved, once there are slots.
    checkpoints: Option<Weak<dyn GivesFiles>>,
    /// Runs commands of gangs, once there are slots.
    commands: Option<Arc<dyn Commands>>,
    /// A job has come: the master learns what this node has.
    has_begun: bool,
    files: Known,
    /// What is still coming in from other nodes, by key.
    growing: BTreeMap<String, (File, Growing)>,
    /// Who waits for answers of the master, by the numbers of the requests.
    asked: BTreeMap<u64, Sender<Vec<String>>>,
    last_number: u64,
    jobs: usize,
}

impl Peers {
    /// Listens for jobs.
    ///
    /// # Errors
    /// The system has no socket, no thread, or no random numbers.
    pub(super) fn start(link: &Arc<Link>, endpoint: &Endpoint) -> io::Result<Arc<Self>> {
        let random = getrandom::u64().map_err(io::Error::other)?;
        let name = format!("pmc-peers-{random:016x}");
        let listener = peers::listen(&name)?;
        let this = Arc::new(Self {
            link: Arc::clone(link),
            key: endpoint.key.clone(),
            listen: endpoint.listen_like_master(),
            name,
            state: Mutex::default(),
            silent: SilentAddresses::default(),
        });
        let own = Arc::clone(&this);
        let accept = move || {
            for job in listener.incoming() {
                match job {
                    Ok(job) => own.accept(job),
                    // Too many open files, perhaps: some will be closed.
                    Err(_) => std::thread::sleep(LOOK_INTERVAL),
                }
            }
        };
        std::thread::Builder::new()
            .name("lite-jobs".to_owned())
            .spawn(accept)?;
        Ok(this)
    }

    /// Name of the socket for jobs.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Notes a new connection to the master, which may know nothing of this node.
    pub(super) fn connected(self: &Arc<Self>, address: Option<IpAddr>) {
        let mut state = self.state();
        state.address = address.or(state.address);
        if state.has_begun {
            self.begin(&mut state);
        }
    }

    /// Notes that the connection to the master has ended: nobody answers.
    pub(super) fn disconnected(&self) {
        self.state().asked.clear();
    }

    /// Takes what the master says.
    pub(super) fn answer(self: &Arc<Self>, body: &[u8]) {
        let mut state = self.state();
        match messages::decode(body) {
            Some(PeerAnswer::Source { number, addresses }) => {
                if let Some(job) = state.asked.get(&number) {
                    // A job that does not wait any more says so itself.
                    job.send(addresses);
                }
            }
            Some(PeerAnswer::Again) => {
                state.asked.clear();
                if state.has_begun {
                    self.begin(&mut state);
                }
            }
            None => tracing::error!("Invalid message about caches from the master"),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is valid at every moment, even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, request: &PeerRequest) -> bool {
        self.link.unnumbered(&messages::encode(request))
    }

    /// Reports to the master what this node has.
    fn begin(self: &Arc<Self>, state: &mut State) {
        state.has_begun = true;
        let addresses = self.listen(state);
        self.say(&PeerRequest::Begin { addresses });
        for entry in state.files.files() {
            self.say(&said(entry));
        }
    }

    /// Listens for other nodes. Returns the addresses at which they find this one; none if it cannot.
    fn listen(self: &Arc<Self>, state: &mut State) -> Vec<String> {
        if pmc_system::is_simulated() {
            return vec![self.name.clone()];
        }
        if state.server.is_none() {
            let own = Arc::downgrade(self);
            let find = move |key: &str| own.upgrade()?.find(key);
            let commands = Box::new(CommandDoor(Arc::downgrade(self)));
            match PeerServer::start(&self.key, &self.listen, find, commands) {
                Ok(server) => state.server = Some(server),
                Err(error) => tracing::debug!("This node serves no others: {error}"),
            }
        }
        let port = state.server.as_ref().map(PeerServer::port);
        port.map_or_else(Vec::new, |port| addresses_of(state.address, port))
    }

    /// The same.
    pub(super) fn addresses(self: &Arc<Self>) -> Vec<String> {
        self.listen(&mut self.state())
    }

    /// Serves no others any more.
    #[cfg(test)]
    pub(super) fn close(&self) {
        let server = self.state().server.take();
        drop(server);
    }

    /// The key of the run.
    pub(super) fn key(&self) -> &RunKey {
        &self.key
    }

    /// Runs commands for other nodes.
    pub(super) fn serve(&self, commands: Arc<dyn Commands>) {
        self.state().commands = Some(commands);
    }

    /// Gives checkpoints to other nodes.
    pub(super) fn give_checkpoints(&self, checkpoints: Weak<dyn GivesFiles>) {
        self.state().checkpoints = Some(checkpoints);
    }

    /// Gets the bytes with a key from another node. `None` if it has none.
    ///
    /// # Errors
    /// The node cannot be reached, or the bytes cannot be written.
    pub(super) fn fetch(&self, address: &str, key: &str, into: &mut File) -> Result<Option<u64>, String> {
        if self.silent.has(address) {
            return Err("it does not answer".to_owned());
        }
        let fetched = pmc_link::fetch(&self.key, address, key, into, &|| true, &|_| {});
        fetched.map_err(|error| {
            if let pmc_link::PeerError::System(error) = &error {
                self.silent.note(address, error);
            }
            error.to_string()
        })
    }

    /// Returns an entry for another node.
    fn find(&self, key: &str) -> Option<Offered> {
        let checkpoints = self.state().checkpoints.as_ref().and_then(Weak::upgrade);
        if let Some(file) = checkpoints.and_then(|checkpoints| checkpoints.find(key)) {
            return Some(Offered {
                file,
                lock: None,
                growing: None,
            });
        }
        let known = {
            let state = self.state();
            if let Some((file, growing)) = state.growing.get(key) {
                return Some(Offered {
                    file: file.try_clone().ok()?,
                    lock: None,
                    growing: Some(growing.clone()),
                });
            }
            state.files.get(key)?.clone()
        };
        let (file, lock) = offer::open(&known).ok()?;
        Some(Offered {
            file,
            lock: Some(lock),
            growing: None,
        })
    }

    fn accept(self: &Arc<Self>, job: UnixStream) {
        if peers::check_owner(&job).is_err() || self.state().jobs >= MAX_JOBS {
            return;
        }
        self.state().jobs += 1;
        let own = Arc::clone(self);
        let talk = move || {
            if let Err(error) = own.talk(&job) {
                tracing::debug!("A lite job: {error}");
            }
            own.state().jobs -= 1;
        };
        if std::thread::Builder::new().spawn(talk).is_err() {
            self.state().jobs -= 1;
        }
    }

    fn talk(self: &Arc<Self>, job: &UnixStream) -> io::Result<()> {
        {
            let mut state = self.state();
            if !state.has_begun {
                self.begin(&mut state);
            }
        }
        match peers::receive(job)? {
            ToAgent::Have(entry) => self.have(entry),
            ToAgent::Want { key, into } => self.get(job, &key, &into)?,
            ToAgent::Wrong | ToAgent::TooLarge => {}
        }
        Ok(())
    }

    fn have(&self, entry: NodeFile) {
        let have = said(&entry);
        if self.state().files.add(entry) {
            self.say(&have);
        }
    }

    /// Gets an entry for a job from another node, or lets the job fetch it.
    fn get(self: &Arc<Self>, job: &UnixStream, key: &str, into: &Path) -> io::Result<()> {
        let mut asked = Asked::new(self, key);
        let request = PeerRequest::Ask {
            number: asked.number,
            key: key.to_owned(),
        };
        let is_there = || !has_gone(job);
        let fetch = |address: &str| asked.fetch(address, into, &is_there);
        let mut answer = match self.say(&request).then(|| asked.source(&is_there, &fetch)) {
            Some(Some(bytes)) => ToJob::Got { bytes },
            Some(None) | None => ToJob::Fetch,
        };
        loop {
            peers::send(job, &answer)?;
            match peers::receive(job)? {
                ToAgent::Wrong => {
                    asked.give_no_more();
                    // Another node may have a right one, but it is the staging site that counts.
                    self.say(&PeerRequest::Failed { number: asked.number });
                    self.say(&PeerRequest::Alone { number: asked.number });
                    answer = ToJob::Fetch;
                }
                ToAgent::Have(entry) => {
                    self.have(entry);
                    return Ok(());
                }
                ToAgent::TooLarge => {
                    asked.is_too_large = true;
                    return Ok(());
                }
                ToAgent::Want { .. } => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }
}

/// Passes commands of other nodes on to those who run them at present.
struct CommandDoor(Weak<Peers>);

impl CommandDoor {
    fn commands(&self) -> Result<Arc<dyn Commands>, String> {
        let commands = self.0.upgrade().and_then(|peers| peers.state().commands.clone());
        commands.ok_or_else(|| "its agent runs no tasks".to_owned())
    }
}

impl Commands for CommandDoor {
    fn knows(&self, gang: Gang) -> Result<bool, String> {
        self.commands()?.knows(gang)
    }

    fn learn(&self, gang: Gang, context: &[u8]) -> Result<(), String> {
        self.commands()?.learn(gang, context)
    }

    fn start(&self, gang: Gang, call: &Call) -> Result<Running, String> {
        self.commands()?.start(gang, call)
    }

    fn cut(&self, gang: Gang) {
        if let Ok(commands) = self.commands() {
            commands.cut(gang);
        }
    }
}

/// The message that this node has an entry.
fn said(entry: &NodeFile) -> PeerRequest {
    PeerRequest::Have {
        key: entry.key.clone(),
        name: entry.name.clone(),
        bytes: entry.bytes,
    }
}

/// A request to the master. Its end is reported when it is dropped.
struct Asked<'a> {
    peers: &'a Peers,
    number: u64,
    key: String,
    answers: Receiver<Vec<String>>,
    is_too_large: bool,
}

impl<'a> Asked<'a> {
    fn new(peers: &'a Peers, key: &str) -> Self {
        let (sender, answers) = unbounded();
        let mut state = peers.state();
        state.last_number += 1;
        let number = state.last_number;
        state.asked.insert(number, sender);
        Self {
            peers,
            number,
            key: key.to_owned(),
            answers,
            is_too_large: false,
        }
    }

    /// Waits for the entry on another node and gets it with `fetch` from an address there. Returns its bytes,
    /// or `None` if the job is to fetch it.
    fn source(
        &self,
        is_there: &dyn Fn() -> bool,
        fetch: &dyn Fn(&str) -> Result<u64, GetError>,
    ) -> Option<u64> {
        for _ in 0..MAX_SOURCES {
            let addresses = self.wait(is_there)?;
            let silent = &self.peers.silent;
            for address in addresses.iter().filter(|address| !silent.has(address)) {
                match fetch(address) {
                    Ok(bytes) => return Some(bytes),
                    Err(error) => {
                        if let GetError::Peer(pmc_link::PeerError::System(error)) = &error {
                            silent.note(address, error);
                        }
                        tracing::debug!("Getting {} from {address}: {error}", self.key);
                    }
                }
            }
            self.give_no_more();
            self.peers.say(&PeerRequest::Failed { number: self.number });
        }
        self.peers.say(&PeerRequest::Alone { number: self.number });
        None
    }

    /// Waits until the master says who has the entry. `None` if the job is to fetch it.
    fn wait(&self, is_there: &dyn Fn() -> bool) -> Option<Vec<String>> {
        let end = clock::now() + MAX_WAIT;
        while clock::now() < end && is_there() {
            match self.answers.recv_timeout(LOOK_INTERVAL) {
                Ok(addresses) => return Some(addresses).filter(|addresses| !addresses.is_empty()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
        self.peers.say(&PeerRequest::Alone { number: self.number });
        None
    }

    fn fetch(&self, address: &str, into: &Path, is_there: &dyn Fn() -> bool) -> Result<u64, GetError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
        let mut file = pmc_files::open_for_writing(into, flags, 0o666)?;
        let copy = file.try_clone()?;
        let grows = |growing: Growing| self.give_on(&copy, growing);
        let bytes = pmc_link::fetch(&self.peers.key, address, &self.key, &mut file, is_there, &grows)?;
        bytes.ok_or(GetError::Missing)
    }

    /// Lets other nodes have the file while it comes in. They verify it themselves.
    fn give_on(&self, file: &File, growing: Growing) {
        if growing.bytes() < MIN_GROWING {
            return;
        }
        let Ok(file) = file.try_clone() else { return };
        let before = self
            .peers
            .state()
            .growing
            .insert(self.key.clone(), (file, growing));
        if before.is_none() {
            self.peers.say(&PeerRequest::Gives { number: self.number });
        }
    }

    /// What has come in is not the file, or no more of it comes.
    fn give_no_more(&self) {
        self.peers.state().growing.remove(&self.key);
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.peers.state();
            state.asked.remove(&self.number);
            state.growing.remove(&self.key);
        }
        self.peers.say(&PeerRequest::End {
            number: self.number,
            is_too_large: self.is_too_large,
        });
    }
}

/// Why an entry does not come from a node.
#[derive(Debug, thiserror::Error)]
enum GetError {
    #[error("it has the entry no more")]
    Missing,
    #[error("{}", pmc_dag::reason(.0))]
    File(#[from] io::Error),
    #[error(transparent)]
    Peer(#[from] pmc_link::PeerError),
}

/// Returns the addresses at which other hosts find a port of this one: first that in the network of the
/// master.
fn addresses_of(own: Option<IpAddr>, port: u16) -> Vec<String> {
    let numeric = own.map(|own| SocketAddr::new(own, port).to_string());
    let named = format!("{}:{port}", host::name());
    match (numeric, own.is_some_and(|own| own.is_loopback())) {
        // Only agents on the same host find it there.
        (Some(numeric), true) => vec![named, numeric],
        (Some(numeric), false) => vec![numeric, named],
        (None, _) => vec![named],
    }
}

/// Returns whether a job has closed its connection.
fn has_gone(mut job: &UnixStream) -> bool {
    if job.set_nonblocking(true).is_err() {
        return true;
    }
    // A job says nothing while it waits.
    let read = job.read(&mut [0]);
    let is_open = matches!(read, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    job.set_nonblocking(false).is_err() || !is_open
}
