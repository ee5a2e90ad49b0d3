//! Messages between master and workers.
//!
//! The local transport passes these values unchanged; the MPI transport encodes them.

mod carried;
mod codec;
mod gang;
mod request;

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::time::Duration;

use monitord_compat::reason::Reason;
use pmc_checkpoint::nodes::{MasterSays, NodeSays};
use pmc_control::RedirectOptions;
use serde::{Deserialize, Serialize};

pub use carried::{Carried, CarriedFile, Returned};
pub use codec::{DecodeError, VERSION as ENCODING_VERSION};
pub use gang::{EarlierGang, EarlierMember, GangHost, GangStart, GangToken, Membership, Part};
pub use request::{
    AnswerBody, AttemptAnswer, AttemptRequest, Captures, Chunk, Deliverer, ReadRequest, RedirectAnswer,
    RedirectRequest, RequestBody, WriteAnswer, WriteRequest,
};

use crate::payload::Payload;

/// Number of a process of the run: 0 is the master, workers start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u32);

/// Number of an attempt, counted from 1 over all tasks of a run.
/// The monitoring logs call it "Condor id".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SubmitId(pub u64);

/// A message from a worker to the master.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToMaster {
    /// First message of a worker: its host and the host's resources.
    Register(Registration),
    /// The host is prepared: its host script has run, if it was this worker's turn to run it.
    /// Sent once after [`ToWorker::Setup`], only in runs with a host script.
    Ready,
    /// An attempt has ended.
    Finished(TaskResult),
    /// Prefilled tasks that the worker has not started and will not start.
    Retracted {
        /// Which attempts.
        submits: Vec<SubmitId>,
    },
    /// The worker cannot continue, for example because its files cannot be written. The run must be aborted.
    Failed {
        /// What happened, as a sentence for the user.
        message: String,
    },
    /// The worker was asked to end by SIGTERM: the run should drain. The worker continues until the master
    /// ends it.
    Terminating,
    /// The worker runs this attempt, which an earlier master started.
    Running(EarlierAttempt),
    /// The answer to [`ToWorker::Request`].
    Answer(Box<AttemptAnswer>),
    /// This has become of the worker's agent. The transport says it, or the agent itself.
    Node(NodeChange),
    /// Instead of [`ToMaster::Ready`]: the host script has failed.
    NotReady {
        /// What happened, as a sentence for the user.
        message: String,
    },
    /// The host is a member of the gang.
    Joined {
        /// Which attempt.
        submit: SubmitId,
        /// Where its agent takes commands: alternatives, the most likely one first.
        addresses: Vec<String>,
    },
    /// The host cannot be a member of the gang.
    NotJoined {
        /// Which attempt.
        submit: SubmitId,
        /// Why not, as a sentence for the user.
        why: String,
    },
    /// The answer to [`ToWorker::Leave`]: no process of the gang is on the host any more.
    Left {
        /// Which attempt.
        submit: SubmitId,
        /// The network has cut a connection between hosts of the gang.
        cut: bool,
        /// Programs that the gang had left there. They were killed.
        killed: Vec<String>,
    },
    /// The worker is a member of this gang, which an earlier master started.
    Member(Box<EarlierMember>),
    /// What its node says about checkpoints.
    Checkpoint(Box<NodeSays>),
}

impl ToMaster {
    /// Nothing of this attempt is on the host.
    #[must_use]
    pub fn left(submit: SubmitId) -> Self {
        Self::Left {
            submit,
            cut: false,
            killed: Vec::new(),
        }
    }
}

/// A running attempt that an earlier master started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlierAttempt {
    /// Its number.
    pub submit: SubmitId,
    /// Name of its task.
    #[serde(with = "serde_bytes")]
    pub task: Vec<u8>,
    /// Numbers of its CPUs, if it has a block of CPUs.
    pub cpu_set: Vec<u32>,
    /// Numbers of its GPUs.
    pub gpu_set: Vec<u32>,
    /// The DAG file of its sub-workflow, if it is in one.
    #[serde(with = "serde_bytes")]
    pub dag: Option<Vec<u8>>,
    /// Set if the worker is the lead of a gang.
    pub gang: Option<Box<EarlierGang>>,
}

/// What has become of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeChange {
    /// It does not answer, but may come back.
    Silent,
    /// It answers again.
    Back,
    /// It was asked to end: it gets no more tasks.
    Leaving,
    /// It will not come back, and its tasks have ended.
    Lost,
    /// The cache of its host has changed.
    Cache(CacheNews),
}

/// What the cache of a host holds for lite jobs, as its agent says it. Such news may get lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheNews {
    /// The agent reports all of it from now on. Nothing that was known before holds.
    Begins,
    /// It holds a file.
    Has {
        /// Logical name of the file.
        name: String,
        /// Its size.
        bytes: u64,
    },
}

/// A worker's host and its resources.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// Host name. Workers with the same host name share memory and CPUs.
    pub host: String,
    /// Memory of the host in MB.
    pub memory_mb: u64,
    /// CPUs (hardware threads) of the host.
    pub threads: u32,
    /// Cores of the host.
    pub cores: u32,
    /// Sockets of the host.
    pub sockets: u32,
    /// GPUs that the worker may use.
    pub gpus: u32,
    /// It does not see the directory of the DAG file: see [`Request::anywhere`](pmc_dag::Request::anywhere).
    pub away: bool,
}

/// Status of an attempt that the executor itself failed: as if the process had exited with 1.
pub const EXECUTOR_FAILURE: i32 = 256;

/// The end of one attempt, as its worker reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskResult {
    /// Which attempt.
    pub submit: SubmitId,
    /// How it ended.
    pub outcome: Outcome,
    /// Data that the task wants appended to shared files, in the order of writing.
    pub forwards: Vec<ForwardedData>,
    /// Set if the host does not see the directory of the DAG file, and the attempt has started.
    pub returned: Option<Box<Returned>>,
}

impl TaskResult {
    /// A result without data.
    #[must_use]
    pub fn new(submit: SubmitId, outcome: Outcome) -> Self {
        Self {
            submit,
            outcome,
            forwards: Vec::new(),
            returned: None,
        }
    }

    /// All data, in the order in which it is sent.
    pub fn payloads(&self) -> impl Iterator<Item = &Payload> {
        let returned = self.returned.iter().flat_map(|returned| {
            let files = returned.files.iter().map(|file| &file.data);
            [&returned.out, &returned.err].into_iter().chain(files)
        });
        self.forwards.iter().map(|piece| &piece.data).chain(returned)
    }

    /// The same, to be changed.
    pub fn payloads_mut(&mut self) -> impl Iterator<Item = &mut Payload> {
        let returned = self.returned.iter_mut().flat_map(|returned| {
            let Returned { out, err, files } = &mut **returned;
            let files = files.iter_mut().map(|file| &mut file.data);
            [out, err].into_iter().chain(files)
        });
        self.forwards
            .iter_mut()
            .map(|piece| &mut piece.data)
            .chain(returned)
    }

    /// Bytes of data that are not part of the encoded message.
    #[must_use]
    pub fn stored_len(&self) -> u64 {
        let stored = self.payloads().filter(|data| !matches!(data, Payload::Bytes(_)));
        // A worker may claim any lengths.
        stored.map(Payload::len).fold(0, u64::saturating_add)
    }
}

/// How an attempt ended. The same value goes from the worker to the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Raw wait status, as `waitpid` returns it, or [`EXECUTOR_FAILURE`].
    pub status: i32,
    /// Wall time from start to end of the process.
    pub runtime: Duration,
    /// Set if the attempt used more memory than it requested, or ran out of memory; and if it failed and its
    /// peak is known.
    pub memory: Option<MemoryUse>,
    /// Why it ended, if that is known beyond its status.
    pub cause: Option<EndCause>,
    /// The process succeeded, but its data could not be forwarded. Set by the master; never encoded.
    #[serde(skip)]
    pub not_forwarded: bool,
    /// The task failed because this number of its workers were lost; 0 if that is not the reason. Set by the
    /// master; never encoded.
    #[serde(skip)]
    pub evictions: u32,
}

impl Outcome {
    /// An outcome with this wait status.
    #[must_use]
    pub fn new(status: i32, runtime: Duration) -> Self {
        Self {
            status,
            runtime,
            memory: None,
            cause: None,
            not_forwarded: false,
            evictions: 0,
        }
    }

    /// True if the reason for a failure is known, and is not the host.
    #[must_use]
    pub fn has_own_cause(&self) -> bool {
        let is_out_of_memory = self.memory.is_some_and(|used| used.out_of_memory);
        self.evictions > 0 || self.not_forwarded || is_out_of_memory
    }

    /// True if SIGTERM or SIGKILL has ended the attempt, or a process of it whose end it reports.
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        self.is_ended_by(libc::SIGTERM) || self.is_ended_by(libc::SIGKILL)
    }

    /// True if the task is done.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.status == 0
    }

    /// Returns why an attempt failed, if more is known than its status says.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        if self.succeeded() {
            return None;
        }
        if self.evictions > 0 {
            return Some(Reason::Lost {
                attempts: self.evictions,
            });
        }
        if self.not_forwarded {
            return Some(Reason::NotForwarded);
        }
        let memory = self.memory.filter(|used| used.out_of_memory);
        memory.map(|used| used.reason()).or(match self.cause {
            Some(EndCause::Known(reason)) => Some(reason),
            _ => None,
        })
    }

    /// True if the batch system has ended the attempt, or the attempt has saved itself: its task runs again.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        !self.succeeded() && matches!(self.cause, Some(EndCause::Interrupted | EndCause::Saved))
    }

    /// True if this signal has ended the attempt, or a process of it whose end it reports.
    #[must_use]
    pub fn is_ended_by(&self, number: i32) -> bool {
        let signal = self.status & 0x7f;
        let code = if signal == 0 {
            self.status >> 8 & 0xff
        } else {
            128 + signal
        };
        code == 128 + number && !self.has_own_cause()
    }
}

/// Why an attempt ended, as far as its worker knows that from its own doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EndCause {
    /// The batch system ends the job, or this part of it. The attempt is evicted, and has not failed.
    Interrupted,
    /// The program is missing on the host of the worker, or cannot be executed there. Others may have it.
    CannotRun,
    /// It was over its time, or did not start.
    Known(Reason),
    /// It has saved itself, or was ended by the signal that asked for it. The attempt is evicted, and has not
    /// failed. Set by the master.
    Saved,
    /// The network has cut a connection between the hosts of its gang.
    Cut,
}

/// The memory of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Peak of its resident memory in MiB, rounded up; 0 if it is unknown.
    pub peak_mib: u64,
    /// What it had requested, in MiB; 0 without a request.
    pub requested_mib: u64,
    /// It was ended because there was no more memory, or because it exceeded its request.
    pub out_of_memory: bool,
}

impl MemoryUse {
    /// True if it used more than it had requested.
    #[must_use]
    pub fn is_excess(self) -> bool {
        self.requested_mib > 0 && self.peak_mib > self.requested_mib
    }

    fn reason(self) -> Reason {
        Reason::OutOfMemory {
            used_mib: self.peak_mib,
            requested_mib: self.requested_mib,
        }
    }
}

/// Data of one task for one shared file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForwardedData {
    /// Path of the shared file, as the DAG names it.
    #[serde(with = "serde_bytes")]
    pub target: Vec<u8>,
    /// What is appended to it.
    pub data: Payload,
}

/// A message from the master to a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToWorker {
    /// Answer to the registration.
    Setup {
        /// Number of this worker among those of its host, from 0.
        host_rank: u32,
    },
    /// Run this task, after the one that is running, if any.
    Run(Box<Assignment>),
    /// Give back the prefilled tasks that have not started.
    Retract,
    /// Do what a tool asks of an attempt, at once, also while a task runs.
    Request(Box<AttemptRequest>),
    /// No more tasks: close the files and exit.
    Shutdown,
    /// Stop at once: kill the running task and exit.
    Abort,
    /// Become a member of a gang. The worker runs nothing else until it has left.
    Join(Box<Membership>),
    /// Kill all processes of the gang, and be no member of it any more. The lead ends its attempt.
    Leave {
        /// Which attempt.
        submit: SubmitId,
    },
    /// What the master says to its node about checkpoints.
    Checkpoint(Box<MasterSays>),
}

/// Where the standard input of a task comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stdin {
    /// From tools.
    Push,
    /// From a file.
    File(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// One attempt of a task, with everything that a worker needs to run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// Number of this attempt.
    pub submit: SubmitId,
    /// Number of this attempt among those of the task in this run, from 1. Lost attempts do not count.
    pub attempt: u32,
    /// Name of the task in the DAG.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Identifier from the `#@` line before the task, if there is one.
    #[serde(with = "serde_bytes")]
    pub id: Option<Vec<u8>>,
    /// Program and arguments as written in the DAG, not split into words.
    #[serde(with = "serde_bytes")]
    pub command: Vec<u8>,
    /// Memory granted in MB; 0 if the task requests none.
    pub memory_mb: u64,
    /// CPUs granted.
    pub cpus: u32,
    /// Numbers of the CPUs granted, if the task got a block of CPUs.
    pub cpu_set: Vec<u32>,
    /// Numbers of the GPUs granted, counted from 0.
    pub gpu_set: Vec<u32>,
    /// Limit of the run time, if the task has one; zero means no limit.
    pub runtime_limit: Option<Duration>,
    /// `-f VAR=PATH` of the task.
    pub pipe_forwards: Vec<(Vec<u8>, Vec<u8>)>,
    /// `-F SRC=DEST` of the task.
    pub file_forwards: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the output of the attempt goes.
    pub output: Output,
    /// Standard input of the task, if it is not empty.
    pub stdin: Option<Stdin>,
    /// Output of the task goes through a relay, so that a tool can redirect it.
    pub relay: bool,
    /// A tool redirects the output from the first byte. This implies `relay`.
    pub redirect: Option<Box<RedirectOptions>>,
    /// `--failure-message` of the task.
    pub failure_messages: Vec<Vec<u8>>,
    /// `--success-message` of the task.
    pub success_messages: Vec<Vec<u8>>,
    /// Set if the task is of a sub-workflow.
    pub place: Option<Box<Place>>,
    /// Set if the attempt holds several hosts, or is to see the variables of such attempts: the worker is its
    /// lead.
    pub gang: Option<Box<GangStart>>,
    /// How often the task was started before, in this run and in earlier ones.
    pub restarts: u32,
}

impl Assignment {
    /// Returns whether the output of the task goes through a relay.
    #[must_use]
    pub fn has_relay(&self) -> bool {
        self.relay || self.redirect.is_some()
    }

    /// The first attempt of a task without a name, a command and options, on one CPU.
    #[cfg(test)]
    pub(crate) fn empty(submit: SubmitId) -> Self {
        Self {
            submit,
            attempt: 1,
            name: Vec::new(),
            id: None,
            command: Vec::new(),
            memory_mb: 0,
            cpus: 1,
            cpu_set: Vec::new(),
            gpu_set: Vec::new(),
            runtime_limit: None,
            pipe_forwards: Vec::new(),
            file_forwards: Vec::new(),
            output: Output::Own,
            stdin: None,
            relay: false,
            redirect: None,
            failure_messages: Vec::new(),
            success_messages: Vec::new(),
            place: None,
            gang: None,
            restarts: 0,
        }
    }
}

/// Where the output of an attempt goes at its end. While it runs, a relay may carry it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Into the files of the worker, which all of its tasks share.
    Merged,
    /// Into files of the attempt, beside the DAG file.
    Own,
    /// Into the pack of the worker. The number says how often the task was submitted before, over all runs of
    /// the DAG.
    Packed(u32),
    /// Back to the master: the host of the worker does not see the directory of the DAG file. What the
    /// attempt reads there comes with it, unless that could not be read.
    Away(Option<Box<Carried>>),
}

/// Where the tasks of a sub-workflow run, and where their output goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Its DAG file: absolute, or relative to the working directory of the run. Output that is not merged
    /// goes beside it.
    #[serde(with = "serde_bytes")]
    pub dag: Vec<u8>,
    /// The working directory of its tasks, likewise.
    #[serde(with = "serde_bytes")]
    pub directory: Vec<u8>,
}

impl Place {
    /// The place of a DAG file whose tasks run in this directory.
    #[must_use]
    pub fn new(dag: &Path, directory: &Path) -> Self {
        let bytes = |path: &Path| path.as_os_str().as_bytes().to_vec();
        Self {
            dag: bytes(dag),
            directory: bytes(directory),
        }
    }

    /// Returns a path that a task names, as the run sees it.
    #[must_use]
    pub fn target(&self, path: &[u8]) -> Vec<u8> {
        let directory = Path::new(OsStr::from_bytes(&self.directory));
        directory
            .join(OsStr::from_bytes(path))
            .into_os_string()
            .into_vec()
    }
}
