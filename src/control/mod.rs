//! Control of a run from outside: other processes of its owner ask about it and change its course.
//!
//! The executor listens on a Unix socket beside the DAG, `NAME.dag.control`. A tool sends [`Request`]s, each
//! a line of JSON, and gets an [`Answer`] to each as another. A thread of its own does the talking; the
//! driver takes the requests between two messages ([`Control::take`]), so a slow tool holds up nothing.
//! Output of tasks comes in portions, one for each request, or as an open file: it waits nowhere in memory.
//!
//! The socket has the mode 0600, and the peer must be the same user or root. Without a socket, for example on
//! a file system that has none, the run goes on and cannot be controlled.

mod client;
mod connection;
mod read_ahead;
mod redirect;
mod server;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::protocol::{By, RedirectAnswer};
pub use crate::protocol::{Claim, Over, Overflow, Portion, Position, RedirectPoll};
use crate::relay::Relay;
pub use client::{ControlError, Ender, Redirect, Tool, ask};
pub use redirect::is_suitable as takes_output;
pub(crate) use server::Server;

/// What a tool asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Request {
    /// The hosts of the run.
    Nodes,
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
}

/// Weight of the first workflow of a run. Those of guests are relative to it.
pub const FIRST_WEIGHT: u32 = 100;

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
    /// Returns who delivers. A run that has room waits for output.
    pub(crate) fn by(&self) -> By {
        match self.to_files {
            false => By::Tool,
            true => By::Run {
                has_room: self.may_wait,
            },
        }
    }
}

/// A request for tasks that start later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailRequest {
    /// Names or patterns with `*` and `?`.
    pub patterns: Vec<String>,
    /// How they are redirected.
    pub claim: Claim,
}

/// The answer to [`Request::Tail`].
pub(crate) const TAILING: &str = "tasks that start from now on are redirected";

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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Answer {
    /// To [`Request::Nodes`].
    Nodes(Vec<NodeStatus>),
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
        streams: [PortionHead; 2],
        /// The redirect has ended.
        over: Option<Over>,
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
    /// To [`Request::Push`] and [`Request::Redirect`]: the task has not started; its state.
    NotYet(String),
    /// It is not possible with this task, now or later; why.
    NotSupported(String),
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
pub struct PortionHead {
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

/// What the driver answers.
#[derive(Debug)]
pub(crate) enum Reply {
    Answer(Answer),
    Output(Output),
    /// The relay of an attempt of a worker that is a thread of this process.
    Relay(Target, Relay),
    /// What an attempt of another worker answers.
    Redirected(Target, RedirectAnswer),
}

/// An attempt that a tool redirects.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) task: String,
    pub(crate) worker: u32,
    pub(crate) attempt: u64,
}

/// A host of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Host name.
    pub host: String,
    /// `joined` (the run has not begun), `preparing` (its host script runs), `working`, `silent`, `leaving`,
    /// `gone` or `set aside`.
    pub state: String,
    /// Workers, each of which runs one task at a time.
    pub slots: u32,
    /// Workers that run a task.
    pub busy: u32,
    /// CPUs.
    pub cpus: u32,
    /// CPUs that no task holds.
    pub free_cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Memory in MiB that no task holds.
    pub free_memory_mib: u64,
    /// It does not see the directory of the DAG file: it gets only jobs with directories of their own.
    pub away: bool,
}

/// A task of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// Name of the task.
    pub task: String,
    /// `waiting`, `ready`, `queued`, `sent`, `running`, `done` or `failed`.
    pub state: String,
    /// Number of its latest attempt, over all tasks of the run.
    pub attempt: Option<u64>,
    /// Host on which it runs.
    pub host: Option<String>,
    /// Parents that are not done, the first [`MAX_PARENTS`] of them.
    pub parents: Vec<String>,
    /// Number of all parents that are not done.
    pub parents_left: u32,
    /// What else it waits for, as the end of "it waits because".
    pub reason: Option<String>,
}

/// Maximum parents that a [`TaskStatus`] names.
pub const MAX_PARENTS: usize = 20;

/// A request and where its answer goes.
pub(crate) struct Pending {
    pub(crate) request: Request,
    pub(crate) answer: SyncSender<Reply>,
    /// The guest whose socket it came by.
    pub(crate) guest: Option<u32>,
}

/// Requests that the driver has not taken.
#[derive(Clone, Default)]
pub(crate) struct Control {
    shared: Arc<Queue>,
    /// The guest whose requests this adds.
    guest: Option<u32>,
}

#[derive(Default)]
struct Queue {
    has_some: AtomicBool,
    requests: Mutex<VecDeque<Pending>>,
    /// Redirects of which only the thread of the connection knows what was delivered.
    redirects: AtomicU32,
    /// The run is about to end its tasks.
    ends: AtomicBool,
}

/// A redirect that [`Control::end_redirects`] ends.
pub(crate) struct OpenRedirect(Arc<Queue>);

impl OpenRedirect {
    /// Returns whether the run is about to end its tasks: it waits for a moment until nothing more is
    /// delivered and all workers know what was.
    pub(crate) fn is_to_end(&self) -> bool {
        self.0.ends.load(Ordering::SeqCst)
    }
}

impl Drop for OpenRedirect {
    fn drop(&mut self) {
        self.0.redirects.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Control {
    /// The same requests, for the socket of a guest.
    pub(crate) fn of_guest(&self, guest: u32) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            guest: Some(guest),
        }
    }

    /// Notes a redirect that begins.
    pub(crate) fn open_redirect(&self) -> OpenRedirect {
        // It counts before it looks whether it is to end.
        self.shared.redirects.fetch_add(1, Ordering::SeqCst);
        OpenRedirect(Arc::clone(&self.shared))
    }

    /// Asks all redirects to end, and lets no other one begin. Each passes a last request on.
    pub(crate) fn end_redirects(&self) {
        self.shared.ends.store(true, Ordering::SeqCst);
    }

    /// Returns whether a redirect has not ended.
    pub(crate) fn has_redirects(&self) -> bool {
        self.shared.redirects.load(Ordering::SeqCst) > 0
    }

    /// Forgets the requests of its socket: nobody takes them any more.
    fn clear(&self) {
        let requests = self.shared.requests.lock();
        let mut requests = requests.unwrap_or_else(PoisonError::into_inner);
        requests.retain(|pending| pending.guest != self.guest);
    }

    /// Takes the next request.
    pub(crate) fn take(&self) -> Option<Pending> {
        if !self.shared.has_some.load(Ordering::Acquire) {
            return None;
        }
        let mut requests = self
            .shared
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let next = requests.pop_front();
        self.shared
            .has_some
            .store(!requests.is_empty(), Ordering::Release);
        next
    }

    fn push(&self, request: Request, answer: SyncSender<Reply>) {
        let mut requests = self
            .shared
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        requests.push_back(Pending {
            request,
            answer,
            guest: self.guest,
        });
        self.shared.has_some.store(true, Ordering::Release);
    }
}

/// Returns the path of the socket of a DAG.
#[must_use]
pub fn socket(dag: &Path) -> PathBuf {
    let mut path = OsString::from(dag);
    path.push(".control");
    path.into()
}

/// An address of at most 107 bytes for a path of any length: through a descriptor of its directory.
pub(crate) struct ShortPath {
    _directory: std::fs::File,
    path: PathBuf,
}

impl ShortPath {
    pub(crate) fn new(path: &Path) -> std::io::Result<Self> {
        use std::os::fd::AsRawFd as _;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = std::fs::File::open(parent.unwrap_or(Path::new(".")))?;
        let name = path.file_name().unwrap_or_default();
        let path = Path::new("/proc/self/fd")
            .join(directory.as_raw_fd().to_string())
            .join(name);
        Ok(Self {
            _directory: directory,
            path,
        })
    }

    pub(crate) fn as_path(&self) -> &Path {
        &self.path
    }
}
