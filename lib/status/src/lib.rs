//! What a run says of its hosts and tasks: to the tools that ask, and to the driver.

use serde::{Deserialize, Serialize};

/// Weight of the first workflow of a run. Those of guests are relative to it.
pub const FIRST_WEIGHT: u32 = 100;

/// A host of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Host name.
    pub host: String,
    /// `joined` (the run has not begun), `preparing` (its host script runs), `working`, `reserved` (a person
    /// has reserved it: only tasks that name it start), `silent`, `leaving`, `gone` or `set aside`.
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
    /// The task for which a part of it is reserved: one that needs several hosts at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_for: Option<String>,
    /// What runs there, also with a part of it, the longest first: the first [`MAX_TASKS`] of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<NodeTask>,
}

/// A task that runs on a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeTask {
    /// Name of the task.
    pub task: String,
    /// When it began, in seconds since the epoch. If an earlier master has begun it, when this one took over.
    pub start_time: f64,
}

/// Maximum tasks that a [`NodeStatus`] names.
pub const MAX_TASKS: usize = 4;

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

/// Formats an amount of memory in MiB for people: below 1 GiB in MiB, else in GiB with as many digits as it
/// needs to differ from others, at most three after the point. All views and messages use this.
#[must_use]
pub fn memory(mib: u64) -> String {
    if mib < 1024 {
        return format!("{mib} MiB");
    }
    let text = format!("{:.3}", mib as f64 / 1024.0);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} GiB")
}

#[cfg(test)]
mod tests {
    use super::memory;

    #[test]
    fn memory_has_the_unit_of_its_size() {
        for (mib, text) in [
            (0, "0 MiB"),
            (1, "1 MiB"),
            (1023, "1023 MiB"),
            (1025, "1.001 GiB"),
            (2000, "1.953 GiB"),
            (2048, "2 GiB"),
            (1 << 20, "1024 GiB"),
            (10 << 20, "10240 GiB"),
        ] {
            assert_eq!(memory(mib), text);
        }
    }
}
