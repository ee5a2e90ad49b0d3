//! Requests to a run that goes on, and its answers: other processes of its owner ask about it and change its
//! course.
//!
//! The executor listens on a Unix socket beside the DAG, `NAME.dag.control`. A tool sends [`Request`]s, each
//! a line of JSON, and gets an [`Answer`] to each as another. Output of tasks comes in chunks, one for each
//! request, or as an open file. [`Tool`] is a tool's side; the server belongs to the executor.

mod client;
pub mod connection;
mod place;
mod redirect;
mod tasks;

use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use client::{ControlError, Redirect, RedirectHandle, Tool, ask};
pub use place::Place;
pub use pmc_stacks::HostStacks;
pub use pmc_status::{FIRST_WEIGHT, MAX_PARENTS, MAX_TASKS, NodeStatus, NodeTask, TaskStatus, memory};
pub use redirect::{
    OutputChunk, Overflow, Position, RedirectEnd, RedirectOptions, RedirectPoll, takes_output,
};
pub use tasks::{AddRequest, EndState, Ends, MAX_ADDED, MAX_ENDS, NewTask, TaskEnd};

/// What a tool asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Request {
    /// The hosts of the run.
    Nodes,
    /// What ends the run although tasks are left.
    Limits,
    /// Start no more tasks.
    Drain {
        /// From this number of seconds on; at once without it.
        after_seconds: Option<u64>,
    },
    /// Start no more tasks on a host, and let its workers go.
    DrainNode {
        /// Name of the host.
        host: String,
    },
    /// Reserve hosts, so that only tasks start there that name them, or open them again.
    ReserveNodes {
        /// Names of the hosts.
        hosts: Vec<String>,
        /// Reserve them.
        is_reserved: bool,
    },
    /// A host is lost: go on without it, and run its tasks elsewhere once they have ended there.
    NodeGone {
        /// Name of the host.
        host: String,
    },
    /// Send a signal to all tasks that run on a host.
    KillOnHost {
        /// Name of the host.
        host: String,
        /// Number of the signal.
        signal: i32,
    },
    /// Send a signal to the process group of a running task.
    Kill {
        /// Name of the task.
        task: String,
        /// Number of the signal.
        signal: i32,
    },
    /// Why a task does not run.
    Why {
        /// Name of the task.
        task: String,
    },
    /// What kickstart has captured of the output of a running task.
    Tap(TapRequest),
    /// The running tasks that take input from tools.
    InputTasks,
    /// Input for a task. Its bytes follow.
    Push(PushRequest),
    /// Output of a running task, instead of its files. With [`RedirectRequest::to_files`], two open files
    /// come with the line.
    Redirect(RedirectRequest),
    /// Tasks with these names that start from now on are redirected from their first byte, as long as the
    /// connection is open. It is closed if the tool does not repeat this request within five seconds.
    Tail(TailRequest),
    /// Run another workflow, too.
    Submit {
        /// Path of its DAG file, absolute.
        dag: String,
        /// Its weight; the first workflow has [`FIRST_WEIGHT`].
        weight: u32,
    },
    /// Run these tasks, too. They follow the line of the request.
    Add(AddRequest),
    /// The ends of these tasks, as far as they have ended; all, whatever their number.
    Ends {
        /// Names of tasks.
        tasks: Vec<String>,
    },
    /// The ends of tasks of this run from one on, in their order. Without any, the answer comes when there
    /// is one, or after some seconds.
    NextEnds {
        /// Number of the first one; `None` for the next one that comes, which is answered at once.
        from: Option<u64>,
    },
    /// Take no more tasks, and end when those that are there have ended.
    Stop,
    /// Where a running task runs: [`Answer::Workers`].
    Workers {
        /// Name of the task.
        task: String,
    },
    /// What the processes of a running task do on a host: [`Answer::Stacks`].
    Stacks(StacksRequest),
    /// Cancel these tasks: end those that run. Those that wait count as not run.
    Cancel {
        /// Names of tasks.
        tasks: Vec<String>,
    },
}

/// What ends a run although tasks are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLimits {
    /// Seconds that are left of its wall time, if it has one.
    pub wall_seconds_left: Option<u64>,
    /// It starts no more tasks.
    pub drains: bool,
}

/// Input for a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushRequest {
    /// Name of the task.
    pub task: String,
    /// Worker and attempt of an earlier answer. `None` for the attempt that runs.
    pub attempt: Option<(u32, u64)>,
    /// Number of bytes, at most [`MAX_INPUT`].
    pub length: usize,
    /// The input ends after them.
    pub is_end: bool,
    /// The bytes. They follow the line of the request.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

/// Maximum bytes of input in a request.
pub const MAX_INPUT: usize = 256 << 10;

/// A request for output of a task, instead of its files.
///
/// The tool repeats it: each request says what it has delivered of the answers before. When the redirect
/// ends, or the connection does, what it has not delivered goes to the files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedirectRequest {
    /// Name of the task.
    pub task: String,
    /// Worker and attempt of an earlier answer. `None` for the attempt that runs.
    pub attempt: Option<(u32, u64)>,
    /// What has been delivered, and whether the redirect ends.
    pub poll: RedirectPoll,
    /// The answer may come when there is output. Without it, it comes at once.
    pub may_wait: bool,
    /// The run writes the output to the files that come with the request, and what it has written counts as
    /// delivered, whatever becomes of the tool. Only pipes and regular files can be such files. The first
    /// answer says that the redirect has begun, the next one that it has ended. A tool that shuts down its
    /// sending side ends it.
    pub to_files: bool,
}

impl RedirectRequest {
    /// The first request for the output of a task: nothing has been delivered. The answer comes at once.
    #[must_use]
    pub fn first(task: String, options: RedirectOptions) -> Self {
        Self {
            task,
            attempt: None,
            poll: RedirectPoll {
                options,
                delivered: [0, 0],
                is_end: false,
            },
            may_wait: false,
            to_files: false,
        }
    }
}

/// A request for the stacks of a task on a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StacksRequest {
    /// Name of the task.
    pub task: String,
    /// Worker and attempt, as [`Answer::Workers`] names them.
    pub attempt: (u32, u64),
    /// Also of threads other than the first one of a process.
    pub all_threads: bool,
}

/// A request for tasks that start later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailRequest {
    /// Names or patterns with `*` and `?`.
    pub patterns: Vec<String>,
    /// How they are redirected.
    #[serde(rename = "claim")]
    pub options: RedirectOptions,
}

/// The answer to [`Request::Tail`].
pub const TAILING: &str = "tasks that start from now on are redirected";

/// A request for output of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TapRequest {
    /// Name of the task.
    pub task: String,
    /// Worker and attempt of an earlier answer: also output of that attempt after its end. `None` for the
    /// attempt that runs.
    pub attempt: Option<(u32, u64)>,
    /// What the tool has of standard output and standard error.
    pub after: [Position; 2],
    /// The output of the attempt itself, if it goes to a pack at the end. Without it, what kickstart
    /// captures.
    pub is_own: bool,
    /// The answer may come when there is output. Without it, it comes at once.
    pub may_wait: bool,
}

/// What the run answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Request::Nodes`].
    Nodes(Vec<NodeStatus>),
    /// To [`Request::Limits`].
    Limits(RunLimits),
    /// To [`Request::Why`].
    Task(TaskStatus),
    /// To [`Request::Tap`]. What it announces follows.
    Output {
        /// The worker of the attempt.
        worker: u32,
        /// Number of the attempt, over all tasks of the run.
        attempt: u64,
        /// Standard output and standard error.
        streams: [StreamHead; 2],
    },
    /// To [`Request::Redirect`]. The bytes that it announces follow.
    Redirected {
        /// The worker of the attempt.
        worker: u32,
        /// Number of the attempt, over all tasks of the run.
        attempt: u64,
        /// Standard output and standard error.
        streams: [OutputChunkHead; 2],
        /// The redirect has ended.
        over: Option<RedirectEnd>,
    },
    /// To [`Request::InputTasks`]: their names.
    Tasks(Vec<String>),
    /// To [`Request::Push`]: what the task has taken. The rest is to be pushed again, some time later.
    Taken {
        /// The worker of the attempt.
        worker: u32,
        /// Number of the attempt, over all tasks of the run.
        attempt: u64,
        /// Number of bytes. If these are all, the end is taken, too.
        count: u64,
    },
    /// To [`Request::Workers`].
    Workers {
        /// Number of the attempt, over all tasks of the run.
        attempt: u64,
        /// The workers that take part and their hosts, the one first that runs the command.
        workers: Vec<(u32, String)>,
    },
    /// To [`Request::Stacks`].
    Stacks(HostStacks),
    /// To [`Request::Push`] and [`Request::Redirect`]: the task has not started; its state.
    NotYet(String),
    /// It is not possible with this task, now or later; why.
    NotSupported(String),
    /// To [`Request::Add`]: the names of the tasks, in the order of the request.
    Added(Vec<String>),
    /// To [`Request::Ends`] and [`Request::NextEnds`].
    Ends(Ends),
    /// It is done; a sentence about it.
    Done(String),
    /// It is not possible; why.
    Refused(String),
}

/// What follows an [`Answer::Output`] for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamHead {
    /// Nothing: it has no new output, or kickstart does not capture it.
    None,
    /// The open file that captures it. The tool reads it by itself, from whatever position.
    File,
    /// Bytes.
    Bytes {
        /// Position of the first one.
        position: Position,
        /// Their number.
        length: usize,
    },
}

/// What follows an [`Answer::Redirected`] for a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputChunkHead {
    /// Bytes of the redirect before these.
    pub offset: u64,
    /// Number of bytes.
    pub length: usize,
    /// When the worker read them: offsets, and microseconds since the epoch from there on.
    pub times: Vec<(u64, u64)>,
    /// Bytes of the redirect that were lost so far, by its overflow rule.
    pub dropped: u64,
}

/// Output of a task.
#[derive(Debug)]
pub struct Output {
    /// The worker of the attempt.
    pub worker: u32,
    /// Number of the attempt, over all tasks of the run.
    pub attempt: u64,
    /// Standard output and standard error.
    pub streams: [StreamOutput; 2],
}

/// Output of a task in a stream.
#[derive(Debug)]
pub enum StreamOutput {
    /// As [`StreamHead::None`].
    None,
    /// As [`StreamHead::File`].
    File(File),
    /// As [`StreamHead::Bytes`].
    Bytes {
        /// Position of the first one.
        position: Position,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

/// Returns the path of the socket of a DAG.
#[must_use]
pub fn socket(dag: &Path) -> PathBuf {
    pmc_files::with_suffix(dag, ".control")
}

/// An address of at most 107 bytes for a path of any length: through a descriptor of its directory.
pub struct ShortPath {
    _directory: pmc_files::Folder,
    path: PathBuf,
}

impl ShortPath {
    /// Opens the directory of a path. Follows links as [`pmc_files::open`] does.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn new(path: &Path) -> std::io::Result<Self> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = pmc_files::Folder::find(parent.unwrap_or(Path::new(".")))?;
        Ok(Self {
            path: directory.path().join(path.file_name().unwrap_or_default()),
            _directory: directory,
        })
    }

    /// Returns the short path, which is valid as long as this value.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        &self.path
    }
}
