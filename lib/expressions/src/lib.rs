//! Expressions by which the requests of a task change after an attempt that failed.
//!
//! They are the profiles `pegasus::memory.expr` and its like of Pegasus 5.1: one expression in the syntax of
//! Python, whose variables describe the job and the attempt. The planner checks them and hands them on as
//! options of the task; the executor evaluates them before the next attempt.
//!
//! The language is that of minijinja's expressions, which is Python's but for names with a dot, lists that
//! are built in loops, and functions other than those of [`FUNCTIONS`]. Only powers group otherwise:
//! `2 ** 3 ** n` is `(2 ** 3) ** n`, and `-2 ** n` is `(-2) ** n`.

mod amounts;
mod evaluate;
mod lists;

pub use evaluate::{ExpressionError, FUNCTIONS, check, evaluate, evaluate_text, mentions};

/// Longest expression, in bytes. A real one has a hundred.
pub const MAX_LENGTH: usize = 4096;

/// A request that an expression may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Amount {
    /// CPUs.
    Cores,
    /// GPUs.
    Gpus,
    /// Memory in MB.
    Memory,
    /// Disk space in MB. No request of the executor: only a value for the next expressions.
    Diskspace,
    /// Expected run time in seconds. No request of the executor either.
    Runtime,
}

impl Amount {
    /// All of them, in the order in which they are evaluated.
    pub const ALL: [Self; 5] = [
        Self::Cores,
        Self::Gpus,
        Self::Memory,
        Self::Diskspace,
        Self::Runtime,
    ];

    /// Its name in profiles and task options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cores => "cores",
            Self::Gpus => "gpus",
            Self::Memory => "memory",
            Self::Diskspace => "diskspace",
            Self::Runtime => "runtime",
        }
    }

    /// The variable with what the attempt that failed had requested.
    #[must_use]
    pub fn variable(self) -> &'static str {
        match self {
            Self::Cores => "pegasus_cores",
            Self::Gpus => "pegasus_gpus",
            Self::Memory => "pegasus_memory_mb",
            Self::Diskspace => "pegasus_diskspace_mb",
            Self::Runtime => "pegasus_job_runtime",
        }
    }

    /// Returns the amount with a name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|amount| amount.name() == name)
    }
}

/// The variables of the plan: their values stand in the options of the task.
pub const PLAN_VARIABLES: &[&str] = &[
    "pegasus_generator",
    "pegasus_root_wf_uuid",
    "pegasus_wf_uuid",
    "pegasus_version",
    "pegasus_wf_name",
    "pegasus_wf_xformation",
    "pegasus_wf_dax_job_id",
    "pegasus_job_class",
    "pegasus_site",
    "pegasus_cluster_size",
    "pegasus_project",
    "pegasus_queue",
    "pegasus_glite_arguments",
    // What the first attempt requests of things that the executor does not count.
    "pegasus_diskspace_mb",
    "pegasus_job_runtime",
];

/// The variables of the attempt that failed. The executor knows their values.
pub const ATTEMPT_VARIABLES: &[&str] = &[
    "pegasus_cores",
    "pegasus_gpus",
    "pegasus_memory_mb",
    "job_retry",
    "job_runtime",
    "exitcode",
    "duration",
    "user",
    "maxrss",
];

/// Variables of Pegasus without a value here: they stand in the record of the attempt, which the executor
/// does not read.
pub const RECORD_VARIABLES: &[&str] = &["hostaddr", "total_ip_size_mb", "total_op_size_mb"];

/// Variables that hold numbers, also where their value is written as text.
const NUMBERS: &[&str] = &[
    "pegasus_cluster_size",
    "pegasus_diskspace_mb",
    "pegasus_job_class",
    "pegasus_job_runtime",
];

/// The values of variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Variables(Vec<(String, VariableValue)>);

#[derive(Clone, Debug, PartialEq)]
enum VariableValue {
    Whole(u64),
    Number(f64),
    Text(String),
}

impl Variables {
    /// Sets a whole number. The last value of a variable counts.
    pub fn set_whole(&mut self, name: &str, value: u64) {
        self.0.push((name.to_owned(), VariableValue::Whole(value)));
    }

    /// Sets a number.
    pub fn set_number(&mut self, name: &str, value: f64) {
        self.0.push((name.to_owned(), VariableValue::Number(value)));
    }

    /// Sets the value of a variable of the plan, which is a number if the variable holds numbers.
    pub fn set_text(&mut self, name: &str, text: &str) {
        let number = text.trim().parse().ok().filter(|_| NUMBERS.contains(&name));
        let value = match number {
            Some(number) => VariableValue::Whole(number),
            None => VariableValue::Text(text.to_owned()),
        };
        self.0.push((name.to_owned(), value));
    }
}
