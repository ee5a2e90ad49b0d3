//! What the master keeps for each task.

/// "No task", where the number of one could be.
pub(crate) const NO_TASK: u32 = u32::MAX;

/// Where a task is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Some parent is not done.
    Waiting,
    /// Will be queued by the next `schedule`.
    Ready,
    Queued,
    /// Sent to a worker that has not started it.
    Prefilled,
    Running,
    Done,
    Failed,
}

/// State of one task. All of it is in one place, half a cache line: with a million tasks every
/// access is a cache miss.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Node {
    /// Submit number of the last time the task was queued.
    pub(crate) submit: u64,
    /// Next task in the chain, while the task is queued.
    pub(crate) next: u32,
    /// Which chain of the queue the task belongs to.
    pub(crate) chain: u32,
    /// Parents that are not done.
    pub(crate) parents_left: u32,
    pub(crate) state: State,
}
