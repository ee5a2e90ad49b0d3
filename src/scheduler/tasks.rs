//! State of each task.

/// Stands for no task in fields that hold task numbers.
pub(crate) const NO_TASK: u32 = u32::MAX;

/// State of a task; see the picture in the module `scheduler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// A parent is not done.
    Waiting,
    /// The next `schedule` queues it.
    Ready,
    /// An attempt of an earlier master may run.
    Expected,
    /// It waits for some time before its next attempt.
    Resting,
    Queued,
    /// Held back: the run ends before it would.
    Late,
    /// Sent to a worker that has not started it.
    Prefilled,
    /// A gang that holds its hosts, and whose command does not run yet.
    Joining,
    Running,
    /// A gang whose command has ended, and that holds some of its hosts.
    Leaving,
    /// A sub-workflow whose DAG runs, or is about to.
    Nested,
    Done,
    Failed,
    /// A tool has cancelled it before it ran.
    Cancelled,
}

impl State {
    /// Returns the word that people read.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Expected => "expected",
            Self::Resting => "resting before its next attempt",
            Self::Queued => "queued",
            Self::Late => "held back",
            Self::Prefilled => "sent",
            Self::Joining => "waiting for its hosts to join",
            Self::Running => "running",
            Self::Leaving => "leaving its hosts",
            Self::Nested => "sub-workflow running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a task does when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its command.
    Task,
    /// Its command, then the DAG that the command has made.
    Prepared,
    /// A DAG.
    Subdag,
}

/// One task, in half a cache line: with a million tasks, each access is a cache miss.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Node {
    /// Latest submit number.
    pub(crate) submit: u64,
    /// Place in the order of queued tasks; 0 if the next one is at the end.
    pub(crate) place: u32,
    /// Next task of the chain, while the task is queued.
    pub(crate) next: u32,
    /// Chain of the queue for tasks like this one.
    pub(crate) chain: u32,
    /// Number of parents that are not done.
    pub(crate) parents_left: u32,
    /// Set of its inputs that others read, too.
    pub(crate) inputs: u32,
    pub(crate) state: State,
    pub(crate) kind: Kind,
}

const _: () = assert!(size_of::<Node>() == 32);
