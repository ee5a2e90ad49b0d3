//! What the master and the workers say to each other.
//!
//! The local transport hands these values over as they are; the MPI transport sends them encoded.

mod codec;

use std::time::Duration;

pub use codec::DecodeError;

/// Number of a process of the run: 0 is the master, workers count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rank(pub u32);

/// Number of one execution of a task in this run, counted from 1; every try has its own.
/// It is the "Condor id" of the monitoring logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubmitId(pub u64);

/// From a worker to the master.
#[derive(Clone, Debug, PartialEq)]
pub enum ToMaster {
    /// First message of a worker: where it runs and what its host has.
    Register(Registration),
    /// The host is prepared: its host script has run, where this worker is the one to run it.
    /// Sent once after [`ToWorker::Setup`], in runs with a host script only.
    Ready,
    /// A task has ended.
    Finished(TaskResult),
    /// These tasks, which were sent in advance, were not begun and will not be.
    Returned {
        /// Which executions.
        submits: Vec<SubmitId>,
    },
    /// The worker cannot go on (its files cannot be written, say); the run must be aborted.
    Failed {
        /// What happened, as a sentence for the user.
        message: String,
    },
}

/// A worker's host and what it has.
#[derive(Clone, Debug, PartialEq)]
pub struct Registration {
    /// Host name; workers of one name share memory and CPUs.
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
}

/// How one execution of a task ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskResult {
    /// Which execution.
    pub submit: SubmitId,
    /// Raw wait status, as `waitpid` gives it; failures of the executor itself are 256.
    pub status: i32,
    /// Wall time from start to end of the process.
    pub runtime: Duration,
    /// Data that the task wants appended to shared files, in the order of writing.
    pub forwards: Vec<ForwardedData>,
    /// What is in its files, if the master wants to know and it is nothing but its record.
    pub silent: Option<Silent>,
}

/// A try that printed nothing, so that its own files hold its record and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Number of its files.
    pub file: u32,
    /// When it began, as its record says: milliseconds since the epoch.
    pub start_ms: u64,
}

/// Data of one task for one shared file.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardedData {
    /// Path of the shared file, as the DAG names it.
    pub target: Vec<u8>,
    /// What is appended to it.
    pub data: Vec<u8>,
}

/// From the master to a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum ToWorker {
    /// Answer to the registration.
    Setup {
        /// Number of this worker among those of its host, from 0.
        host_rank: u32,
    },
    /// Run this task; if one runs, after it.
    Run(Box<Assignment>),
    /// Give back the tasks that were not begun.
    Recall,
    /// No more tasks: close the files and end.
    Shutdown,
    /// Stop at once: kill what runs and end.
    Abort,
}

/// One execution of a task, with all that a worker needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// Number of this execution.
    pub submit: SubmitId,
    /// Name of the task in the DAG.
    pub name: Vec<u8>,
    /// Identifier from the `#@` line before the task, if there was one.
    pub id: Option<Vec<u8>>,
    /// Program and arguments as written in the DAG, not yet split into words.
    pub command: Vec<u8>,
    /// Memory granted, in MB; 0 where the task asks for none.
    pub memory_mb: u64,
    /// CPUs granted.
    pub cpus: u32,
    /// Numbers of the CPUs granted, where the task got a block of its own.
    pub cpu_set: Vec<u32>,
    /// Which of the GPUs of the worker were granted, counted from 0.
    pub gpu_set: Vec<u32>,
    /// How long it may take, if the task says so; zero for as long as it wants. In milliseconds when
    /// encoded.
    pub runtime_limit: Option<Duration>,
    /// `-f VAR=PATH` of the task.
    pub pipe_forwards: Vec<(Vec<u8>, Vec<u8>)>,
    /// `-F SRC=DEST` of the task.
    pub file_forwards: Vec<(Vec<u8>, Vec<u8>)>,
}
