//! What master and agents say to each other, beside the messages of workers.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pmc_node_files::directory::PeerRequest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::options::{WorkerOptions, own_kickstart};
use crate::protocol::{CacheNews, Rank};

/// What an agent says when it joins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentHello {
    /// Name of its host.
    pub host: String,
    /// Tasks that it can run at a time.
    pub slots: u32,
    /// The same at most, whatever the master wants: its system allows no more open files.
    pub max_slots: u32,
    /// Number among the agents that the master has started.
    pub number: Option<u32>,
    /// The session that it had before: epoch and number.
    pub before: Option<(u64, u64)>,
    /// First of the ranks that it keeps, with their tasks: the master of that session has died. Otherwise all
    /// tasks of that session have ended.
    pub first_rank: Option<u32>,
}

/// What the master says to an agent that joins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentWelcome {
    /// Rank of its first slot; the others follow.
    pub first_rank: u32,
    /// Its slots.
    pub slots: u32,
    /// How long to wait for another master if this one has died.
    pub master_timeout: Duration,
    /// How long tasks may run after a signal to drain, while there is no master.
    pub drain_grace: Duration,
    /// What to print; see [`crate::logging::init`].
    pub verbosity: i32,
    /// Settings of its workers.
    pub settings: WorkerSettings,
}

/// The part of [`WorkerOptions`] that is the same on all hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerSettings {
    /// Working directory of the master. Relative paths start there.
    directory: Bytes,
    dag: Bytes,
    per_task_stdio: bool,
    worker_files: Bytes,
    lock_worker_files: bool,
    host_memory: u32,
    host_cpus: u32,
    host_gpus: u32,
    strict_limits: bool,
    watch_memory: bool,
    set_affinity: bool,
    host_script: Option<Bytes>,
    runtime_limit: Option<Duration>,
    forward_limit: u64,
    has_task_server: bool,
}

/// A path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Bytes(#[serde(with = "serde_bytes")] Vec<u8>);

impl From<&Path> for Bytes {
    fn from(path: &Path) -> Self {
        Self(path.as_os_str().as_bytes().to_vec())
    }
}

impl From<&Bytes> for PathBuf {
    fn from(bytes: &Bytes) -> Self {
        OsString::from_vec(bytes.0.clone()).into()
    }
}

impl WorkerSettings {
    /// The settings of a run whose master has this working directory.
    #[must_use]
    pub fn new(options: &WorkerOptions, directory: &Path) -> Self {
        Self {
            directory: directory.into(),
            dag: options.dag.as_path().into(),
            per_task_stdio: options.per_task_stdio,
            worker_files: options.worker_files.as_path().into(),
            lock_worker_files: options.lock_worker_files,
            host_memory: options.host_memory,
            host_cpus: options.host_cpus,
            host_gpus: options.host_gpus,
            strict_limits: options.strict_limits,
            watch_memory: options.watch_memory,
            set_affinity: options.set_affinity,
            host_script: options.host_script.as_deref().map(Bytes::from),
            runtime_limit: options.runtime_limit,
            forward_limit: options.forward_limit,
            has_task_server: options.kickstart.is_some(),
        }
    }

    /// Working directory of the master.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        PathBuf::from(&self.directory)
    }

    /// Returns the options of the workers of this host. What `own` says about the host counts first.
    #[must_use]
    pub fn options(&self, own: &HostOptions, environment: Vec<(OsString, OsString)>) -> WorkerOptions {
        let [memory, cpus, gpus] = own.environment;
        let first = |numbers: [u32; 3]| numbers.into_iter().find(|number| *number > 0).unwrap_or(0);
        WorkerOptions {
            dag: PathBuf::from(&self.dag),
            per_task_stdio: self.per_task_stdio,
            worker_files: PathBuf::from(&self.worker_files),
            lock_worker_files: self.lock_worker_files,
            host_name: own.name.clone(),
            host_memory: first([own.memory, self.host_memory, memory]),
            host_cpus: first([own.cpus, self.host_cpus, cpus]),
            host_gpus: first([own.gpus, self.host_gpus, gpus]),
            strict_limits: self.strict_limits,
            watch_memory: self.watch_memory,
            set_affinity: self.set_affinity,
            host_script: self.host_script.as_ref().map(PathBuf::from),
            runtime_limit: self.runtime_limit,
            forward_limit: self.forward_limit,
            kickstart: self.has_task_server.then(own_kickstart).flatten(),
            environment,
            away: None,
            channels: None,
            nodes: None,
        }
    }
}

/// Returns what an agent says about the files of its node, for the choice of hosts.
#[must_use]
pub fn news(request: &PeerRequest) -> Option<CacheNews> {
    match request {
        PeerRequest::Begin { .. } => Some(CacheNews::Begins),
        PeerRequest::Have { name, bytes, .. } => Some(CacheNews::Has {
            name: name.clone(),
            bytes: *bytes,
        }),
        _ => None,
    }
}

/// What the command line of an agent says about its host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostOptions {
    /// Name instead of the system's.
    pub name: Option<String>,
    /// Memory in MB; 0 means unknown.
    pub memory: u32,
    /// CPUs; 0 means unknown.
    pub cpus: u32,
    /// GPUs; 0 means unknown.
    pub gpus: u32,
    /// Memory, CPUs and GPUs of its environment, which count last.
    pub environment: [u32; 3],
}

/// Encodes what is said in a handshake.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    // Such messages consist of numbers, strings and lists, so they have no field that can fail to encode.
    postcard::to_allocvec(message).unwrap_or_default()
}

/// Decodes what is said in a handshake.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

/// Puts the rank of a worker before its message.
pub fn address(rank: Rank, encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut body = rank.0.to_le_bytes().to_vec();
    encode(&mut body);
    body
}

/// Marks the rank before a part of forwarded data.
const PART: u32 = 1 << 31;

/// What follows a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A message.
    Message(&'a [u8]),
    /// Forwarded data of the next message of this worker.
    Part(&'a [u8]),
}

/// Puts the rank of a worker before a part of forwarded data.
pub fn address_part(rank: Rank, part: &[u8]) -> Vec<u8> {
    let mut body = (rank.0 | PART).to_le_bytes().to_vec();
    body.extend_from_slice(part);
    body
}

/// Splits a message or part into the rank of its worker and the rest.
pub fn addressed(body: &[u8]) -> Option<(Rank, Content<'_>)> {
    let (rank, rest) = body.split_first_chunk()?;
    let rank = u32::from_le_bytes(*rank);
    let content = if rank & PART == 0 {
        Content::Message(rest)
    } else {
        Content::Part(rest)
    };
    Some((Rank(rank & !PART), content))
}
