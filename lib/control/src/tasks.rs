//! Tasks that tools add to a run which takes some, and how these end.

use serde::{Deserialize, Serialize};

/// Maximum bytes of tasks in a request.
pub const MAX_ADDED: usize = 8 << 20;
/// Maximum tasks that an answer tells the end of.
pub const MAX_ENDS: usize = 1000;

/// A request for more tasks. Those of a request are accepted together, or none of them is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddRequest {
    /// Number of bytes that follow the line of the request, at most [`MAX_ADDED`]: a line of JSON for each
    /// task.
    pub length: usize,
    /// The tasks.
    #[serde(skip)]
    pub tasks: Vec<NewTask>,
}

/// A task to add.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTask {
    /// Its name. Without one, it gets its number in the run, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Names of the tasks that must be done before: earlier ones of this run or of this request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// The kind of task, for statistics: a word.
    pub transformation: String,
    /// Options in the syntax of a TASK line; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub options: String,
    /// Program and arguments in the syntax of a TASK line.
    pub command: String,
}

/// How a task has ended. This is also what `pmc wait` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskEnd {
    /// Its name.
    pub id: String,
    /// How.
    pub state: EndState,
    /// Exit code, if it has ended by itself.
    pub exit_code: Option<i32>,
    /// Number of the signal that has ended it.
    pub signal: Option<i32>,
    /// Run time of its last attempt, if that was in this run of the executor.
    pub seconds: Option<f64>,
    /// Why it has failed, if more is known than its exit code.
    pub reason: Option<String>,
}

/// The state of a task that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndState {
    /// It is done.
    Done,
    /// It has failed in all of its attempts.
    Failed,
    /// It will not run, because it was cancelled, or a task before it was or has failed.
    NotRun,
}

/// The answer to questions about the ends of tasks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// Those that are asked for, at most [`MAX_ENDS`].
    pub ends: Vec<TaskEnd>,
    /// Number of the next end of the run.
    pub next: u64,
    /// Tasks of the run that have not ended.
    pub left: u64,
    /// The run ends: nothing comes any more.
    pub is_over: bool,
}
