//! WfFormat of WfCommons: a workflow and, if it has run, its execution, as one JSON document.
//!
//! Source: the JSON Schema of the versions 1.5 and 1.6 (<https://github.com/wfcommons/WfFormat>). 1.6 only
//! adds sums that can be computed from the rest.

mod commands;
mod dag;

use std::collections::{HashMap, HashSet};
use std::io::{BufReader, Read as _};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde::Deserialize;

pub use commands::{StandIn, commands};
pub use dag::{Recorded, recorded};

/// Version that is written.
pub const VERSION: &str = "1.6";
/// Versions that are read.
const VERSIONS: [&str; 2] = ["1.5", "1.6"];
/// Maximum bytes of an instance.
const MAX_BYTES: u64 = 4 << 30;
/// Maximum bytes of a name that is a part of file names.
const MAX_NAME: usize = 100;

/// A workflow.
#[derive(Debug, Deserialize)]
pub struct Instance {
    /// Its name.
    pub name: String,
    #[serde(rename = "schemaVersion")]
    version: String,
    workflow: Workflow,
}

#[derive(Debug, Deserialize)]
struct Workflow {
    specification: Specification,
    #[serde(default)]
    execution: Option<Execution>,
}

#[derive(Debug, Deserialize)]
struct Specification {
    tasks: Vec<Task>,
    #[serde(default)]
    files: Vec<File>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Task {
    id: String,
    name: String,
    #[serde(default)]
    parents: Vec<String>,
    #[serde(default)]
    children: Vec<String>,
    #[serde(default)]
    input_files: Vec<String>,
    #[serde(default)]
    output_files: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    id: String,
    size_in_bytes: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Execution {
    makespan_in_seconds: f64,
    tasks: Vec<ExecutedTask>,
    #[serde(default)]
    machines: Vec<serde::de::IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecutedTask {
    id: String,
    runtime_in_seconds: f64,
    #[serde(default)]
    core_count: Option<f64>,
}

/// Enough of a document to know whether it is an instance.
#[derive(Deserialize)]
struct Head {
    #[serde(rename = "schemaVersion")]
    version: Option<serde::de::IgnoredAny>,
    workflow: Option<serde::de::IgnoredAny>,
}

impl Instance {
    /// Reads a file, if it is one of WfFormat: JSON with `schemaVersion` and `workflow`.
    ///
    /// # Errors
    /// The file cannot be read, or it is of WfFormat and not valid.
    pub fn read(path: &Path) -> Result<Option<Self>> {
        let is_json = path
            .extension()
            .is_some_and(|name| name.eq_ignore_ascii_case("json"));
        if !is_json || !path.is_file() {
            return Ok(None);
        }
        let reading = || format!("cannot read {}", path.display());
        let file = pmc_files::open_input(path).with_context(reading)?;
        let mut text = Vec::new();
        let mut limited = BufReader::new(file).take(MAX_BYTES + 1);
        limited.read_to_end(&mut text).with_context(reading)?;
        let name = path.display();
        ensure!(
            text.len() as u64 <= MAX_BYTES,
            "{name}: more than {MAX_BYTES} bytes"
        );
        match serde_json::from_slice::<Head>(&text) {
            Ok(Head {
                version: Some(_),
                workflow: Some(_),
            }) => {}
            // The planner says what is wrong with it.
            _ => return Ok(None),
        }
        Self::parse(&text)
            .map(Some)
            .map_err(|error| anyhow!("{name}: {error:#}"))
    }

    fn parse(text: &[u8]) -> Result<Self> {
        let instance: Instance = serde_json::from_slice(text)?;
        ensure!(
            VERSIONS.contains(&instance.version.as_str()),
            "WfFormat {} is not known, only {}: convert the file with the migration tool of WfFormat",
            instance.version,
            VERSIONS.join(" and ")
        );
        let tasks = &instance.workflow.specification.tasks;
        ensure!(!tasks.is_empty(), "the workflow has no tasks");
        let mut ids = HashSet::with_capacity(tasks.len());
        for task in tasks {
            ensure!(ids.insert(task.id.as_str()), "two tasks have the id {}", task.id);
        }
        for task in tasks {
            for other in task.parents.iter().chain(&task.children) {
                ensure!(
                    ids.contains(other.as_str()),
                    "the task {} names the task {other}, which is not there",
                    task.id
                );
            }
        }
        for task in instance.workflow.execution.iter().flat_map(|run| &run.tasks) {
            ensure!(
                task.runtime_in_seconds.is_finite() && task.runtime_in_seconds >= 0.0,
                "the run time of the task {} is {}",
                task.id,
                task.runtime_in_seconds
            );
        }
        Ok(instance)
    }

    fn tasks(&self) -> &[Task] {
        &self.workflow.specification.tasks
    }

    /// Returns how each task ran, in the order of the tasks.
    fn executed(&self) -> Vec<Option<&ExecutedTask>> {
        let run = self.workflow.execution.iter().flat_map(|run| &run.tasks);
        let by_id: HashMap<&str, &ExecutedTask> = run.map(|task| (task.id.as_str(), task)).collect();
        let tasks = self.tasks().iter();
        tasks.map(|task| by_id.get(task.id.as_str()).copied()).collect()
    }

    /// Returns the parents of each task, in the order of the tasks. A document may name an edge at its
    /// parent, at its child, or at both.
    fn parents(&self) -> Vec<Vec<usize>> {
        let tasks = self.tasks();
        let by_id: HashMap<&str, usize> = tasks.iter().map(|task| task.id.as_str()).zip(0..).collect();
        let mut parents = vec![Vec::new(); tasks.len()];
        for (number, task) in tasks.iter().enumerate() {
            parents[number].extend(task.parents.iter().map(|id| by_id[id.as_str()]));
            for child in &task.children {
                parents[by_id[child.as_str()]].push(number);
            }
        }
        for list in &mut parents {
            list.sort_unstable();
            list.dedup();
        }
        parents
    }

    /// Returns a name for each task that can be a part of file names, in the order of the tasks.
    fn task_names(&self) -> Vec<String> {
        let mut names = Names::default();
        self.tasks().iter().map(|task| names.make(&task.id)).collect()
    }
}

impl ExecutedTask {
    /// Whole CPUs.
    fn cpus(&self) -> u32 {
        self.core_count
            .map_or(1, |count| count.ceil().clamp(1.0, f64::from(u32::MAX)) as u32)
    }
}

/// Makes names of letters, digits, `.`, `_` and `-`, each only once.
#[derive(Debug, Default)]
pub struct Names {
    used: HashSet<String>,
}

impl Names {
    /// Returns a name that looks like the text.
    pub fn make(&mut self, text: &str) -> String {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let bytes = text.bytes().take(MAX_NAME - 20);
        let mut name: String = bytes
            .map(|byte| if is_valid(byte) { byte as char } else { '_' })
            .collect();
        if !name.bytes().any(|byte| byte.is_ascii_alphabetic()) || name.starts_with(['.', '-']) {
            name.insert(0, 'n');
        }
        if self.used.contains(&name) {
            let number = self.used.len();
            name = format!("{name}-{number}");
            while self.used.contains(&name) {
                name.push('x');
            }
        }
        self.used.insert(name.clone());
        name
    }
}

#[cfg(test)]
mod tests;
