//! Kinds of tasks that are not in the DAG file of the run when it starts.

use serde::{Deserialize, Serialize};

/// A part of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its number, from 1. The tasks of the run's own DAG file have 0.
    pub number: u32,
    /// What it is.
    pub kind: PartKind,
}

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartKind {
    /// The DAG of the sub-workflow that this task is.
    Subworkflow {
        /// The task.
        task: u32,
        /// A command is to make the DAG.
        is_prepared: bool,
    },
    /// A workflow that a tool hands to the run.
    Guest {
        /// When it does so first, in milliseconds.
        at: u64,
        /// Its weight.
        weight: u32,
    },
    /// Tasks that a tool adds to the run's own DAG.
    Addition {
        /// When it does so first, in milliseconds.
        at: u64,
    },
}
