//! Rows of the database, with the columns that the loader fills.

/// A row of `workflow`.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct WorkflowRow {
    pub wf_uuid: String,
    pub dag_file_name: Option<String>,
    pub timestamp: i64,
    pub submit_hostname: Option<String>,
    pub submit_dir: Option<String>,
    pub planner_arguments: Option<String>,
    pub user: Option<String>,
    pub grid_dn: Option<String>,
    pub planner_version: Option<String>,
    pub dax_label: Option<String>,
    pub dax_version: Option<String>,
    pub dax_file: Option<String>,
    /// UUIDs of the workflow around it and of the outermost one, if it is a nested sub-workflow.
    pub around: Option<Around>,
}

/// Where a nested sub-workflow belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Around {
    /// UUID of the workflow of which it is a job.
    pub parent: String,
    /// UUID of the outermost workflow.
    pub root: String,
}

/// Start or end of a run of the workflow.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkflowState {
    /// `WORKFLOW_STARTED` or `WORKFLOW_TERMINATED`.
    pub state: &'static str,
    /// Seconds since the epoch.
    pub timestamp: f64,
    /// Number of earlier runs.
    pub restart_count: i64,
    /// Exit status, at the end.
    pub status: Option<i64>,
}

/// A row of `job`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct JobRow<'a> {
    pub exec_job_id: &'a str,
    pub submit_file: &'a str,
    pub type_desc: &'a str,
    pub clustered: bool,
    pub max_retries: i64,
    pub executable: &'a str,
    pub argv: Option<&'a str>,
    pub task_count: i64,
}

/// A row of `invocation`.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct InvocationRow {
    pub task_submit_seq: i64,
    pub start_time: f64,
    pub remote_duration: f64,
    pub remote_cpu_time: Option<f64>,
    pub exitcode: i64,
    pub transformation: String,
    pub executable: String,
    pub abs_task_id: Option<String>,
    pub maxrss: Option<i64>,
    pub avg_cpu: Option<f64>,
}

/// A row of `host`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct HostRow {
    pub site: String,
    pub hostname: String,
    pub ip: String,
    pub uname: Option<String>,
    pub total_memory: Option<i64>,
}

/// Columns of `job_instance` that an attempt gets at its end.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct AttemptEnd {
    pub site: String,
    pub user: Option<String>,
    pub work_dir: Option<String>,
    pub cluster_start: Option<f64>,
    pub cluster_duration: Option<f64>,
    pub local_duration: Option<i64>,
    pub stdout_file: String,
    pub stdout_text: Option<String>,
    pub stderr_file: String,
    pub stderr_text: Option<String>,
    pub exitcode: i64,
}

/// An attempt in the database (`job_instance`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct StoredAttempt {
    pub job_instance_id: i64,
    pub job_submit_seq: i64,
    pub sched_id: Option<String>,
    pub stdout_file: Option<String>,
}

/// An attempt of a job that is a nested sub-workflow.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the columns of the tables")]
pub struct NestedAttempt {
    pub exec_job_id: String,
    pub job_id: i64,
    pub submit_file: String,
    pub attempt: StoredAttempt,
}
