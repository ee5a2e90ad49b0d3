//! A run as an instance of WfFormat: its compute tasks, their files, and how they ran.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, Write};

use anyhow::Context as _;
use chrono::{DateTime, SecondsFormat};
use monitord_compat::job_output_reader::JobOutput;
use monitord_compat::record_reader::Record;
use pmc_monitor::events::Micros;
use pmc_monitor::failure::read_output;
use pmc_monitor::history::{Attempt, History, seconds};
use pmc_monitor::kinds::Kind;
use pmc_packed::TaskOutput;
use pmc_plan::model::{Link, Workflow};
use serde_json::{Value, json};

use super::workflow;
use crate::exit;
use crate::failure::{Failure, OrCode as _};
use crate::submit::{Submit, local_path};
use crate::wfformat::{Names, VERSION};

/// An instance, ready to be written.
pub struct Instance<'a> {
    history: &'a History,
    tasks: Vec<Task>,
    /// Bytes by identifier. The format wants a size; that of a file that is gone is 0.
    files: BTreeMap<String, u64>,
}

/// A task of the workflow, and how it ran.
#[derive(Debug, Default)]
struct Task {
    id: String,
    name: String,
    parents: Vec<usize>,
    children: Vec<usize>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    /// `None` if it has not succeeded.
    execution: Option<Value>,
}

impl<'a> Instance<'a> {
    /// Collects the tasks of a run: those of its workflow, or of its DAG if it has none.
    pub fn new(history: &'a History) -> Result<Self, Failure> {
        let mut instance = Self {
            history,
            tasks: Vec::new(),
            files: BTreeMap::new(),
        };
        let executed = match history.dir.braindump.contains_key("dax") {
            true => instance.add_jobs()?,
            false => instance.add_dag(),
        };
        instance.add_executions(&executed);
        for child in 0..instance.tasks.len() {
            for parent in instance.tasks[child].parents.clone() {
                instance.tasks[parent].children.push(child);
            }
        }
        Ok(instance)
    }

    /// Adds the jobs of the workflow. Returns their numbers by what invocation records call them.
    fn add_jobs(&mut self) -> Result<HashMap<String, usize>, Failure> {
        let user = workflow::owner(self.history)?;
        let (name, file) = workflow::open(self.history, user)?;
        let read = || {
            let temporary = tempfile::tempdir()?;
            let copy = temporary.path().join(&name);
            super::copy(&file, &copy)?;
            Ok::<_, io::Error>((temporary, copy))
        };
        let (_temporary, copy) = read()
            .context("cannot copy the workflow")
            .or_code(exit::NOT_RUN)?;
        let workflow = workflow::read(&copy)?;
        self.add_files(&workflow, user)?;
        let mut ids = Names::default();
        let mut numbers = HashMap::with_capacity(workflow.jobs.len());
        for (number, job) in workflow.jobs.iter().enumerate() {
            numbers.insert(job.id.clone(), number);
            let mut task = Task {
                id: ids.make(&job.id),
                name: job.transformation.to_string(),
                ..Task::default()
            };
            for usage in job.uses.iter().filter(|usage| usage.link != Link::Checkpoint) {
                let id = file_id(workflow.files.name(usage.file));
                if usage.link.reads() {
                    task.inputs.push(id.clone());
                }
                if usage.link.writes() {
                    task.outputs.push(id);
                }
            }
            self.tasks.push(task);
        }
        for &(parent, child) in &workflow.edges {
            self.tasks[child.index()].parents.push(parent.index());
        }
        Ok(numbers)
    }

    /// Adds all files with the sizes that workflow and stage-in jobs tell.
    fn add_files(&mut self, workflow: &Workflow, user: u32) -> Result<(), Failure> {
        for usage in workflow.jobs.iter().flat_map(|job| &job.uses) {
            let id = file_id(workflow.files.name(usage.file));
            let size = self.files.entry(id).or_default();
            *size = usage.size.unwrap_or_default().max(*size);
        }
        let submit = Submit::open(&self.history.dir.dir).or_code(exit::NOT_RUN)?;
        let jobs = submit.jobs();
        for file in submit.transferred(&jobs, Kind::StageIn) {
            let Some(size) = self.files.get_mut(&file_id(&file.lfn)) else {
                continue;
            };
            let places = file.sources.iter().filter_map(|url| local_path(url));
            let mut opened = places.filter_map(|path| pmc_files::open_for(&path, user).ok());
            if let Some(data) = opened.next().and_then(|file| file.metadata().ok()) {
                *size = data.len();
            }
        }
        Ok(())
    }

    /// Adds the tasks of a DAG without a workflow.
    fn add_dag(&mut self) -> HashMap<String, usize> {
        let plan = &self.history.plan;
        let mut ids = Names::default();
        let mut numbers = HashMap::with_capacity(plan.len());
        for task in (0..).take(plan.len()) {
            let name = plan.text_name(task);
            self.tasks.push(Task {
                id: ids.make(&name),
                name: name.clone(),
                ..Task::default()
            });
            numbers.insert(name, self.tasks.len() - 1);
        }
        for &(parent, child) in plan.edges() {
            self.tasks[child as usize].parents.push(parent as usize);
        }
        numbers
    }

    /// Adds how the tasks ran, from their records, else from the log.
    fn add_executions(&mut self, numbers: &HashMap<String, usize>) {
        let history = self.history;
        let mut place = TaskOutput::new(&history.dir.dir);
        let succeeded = history.attempts.iter().filter(|attempt| attempt.succeeded());
        for attempt in succeeded {
            let task = attempt.task;
            let is_job =
                history.plan.class(task).kind == Kind::Compute || history.plan.subdag(task).is_some();
            if !is_job {
                continue;
            }
            let name = history.plan.text_name(task);
            let (_, output, _) = read_output(&mut place, &name, false);
            let records = JobOutput::read(&output).invocations;
            let of_jobs = records.iter().filter_map(|record| {
                let job = record.derivation.as_deref()?;
                Some((*numbers.get(job)?, record))
            });
            let mut has_record = false;
            for (number, record) in of_jobs {
                has_record = true;
                self.add_outputs(record);
                self.tasks[number].execution = Some(self.execution(attempt, Some(record)));
            }
            if !has_record && let Some(number) = find_job(&name, numbers) {
                self.tasks[number].execution = Some(self.execution(attempt, None));
            }
        }
    }

    /// Takes the sizes of files that a job wrote.
    fn add_outputs(&mut self, record: &Record) {
        for file in &record.outputs {
            let size = file.size.as_deref().and_then(|size| size.parse().ok());
            if let (Some(known), Some(size)) = (self.files.get_mut(&file_id(&file.lfn)), size) {
                *known = size;
            }
        }
    }

    fn execution(&self, attempt: &Attempt, record: Option<&Record>) -> Value {
        let history = self.history;
        let main = record.map(|record| &record.main);
        let by_log = attempt.duration().map_or(0.0, seconds);
        let runtime = main.and_then(|main| main.duration).unwrap_or(by_log);
        let start = main.and_then(|main| main.start);
        let start = start.map_or(attempt.start, |start| (start * 1e6) as Micros);
        let mut value = json!({
            "runtimeInSeconds": runtime,
            "executedAt": time(start),
            "coreCount": history.plan.request(attempt.task).cpus.max(1),
        });
        if let Some(host) = history.hosts.name(attempt.host).filter(|name| !name.is_empty()) {
            value["machines"] = json!([host]);
        }
        let Some(main) = main else { return value };
        if let Some(program) = main.executable.as_deref().filter(|program| !program.is_empty()) {
            let arguments: Vec<&String> = main.arguments.iter().filter(|word| !word.is_empty()).collect();
            value["command"] = json!({"program": program, "arguments": arguments});
        }
        if let (Some(user), Some(system)) = (main.user_time, main.system_time)
            && runtime > 0.0
        {
            value["avgCPU"] = json!(100.0 * (user + system) / runtime);
        }
        if let Some(kib) = main.max_rss.filter(|kib| *kib > 0) {
            value["memoryInBytes"] = json!(kib * 1024);
        }
        value
    }

    /// Writes the instance, one task a line.
    pub fn write(&self, now: Micros, out: &mut dyn Write) -> io::Result<()> {
        let history = self.history;
        let ids = |numbers: &[usize]| -> Vec<&str> {
            numbers
                .iter()
                .map(|&number| self.tasks[number].id.as_str())
                .collect()
        };
        let head = json!({
            "name": history.dir.label,
            "description": "Written by pmc report",
            "createdAt": time(now),
            "schemaVersion": VERSION,
            "runtimeSystem": {
                "name": "pegasus-mpi-cluster",
                "version": env!("CARGO_PKG_VERSION"),
            },
        });
        let head = head.to_string();
        let head = head.strip_suffix('}').unwrap_or(&head);
        write!(
            out,
            "{head},\n\"workflow\": {{\"specification\": {{\"tasks\": [\n"
        )?;
        let tasks = self.tasks.iter().map(|task| {
            json!({
                "name": task.name,
                "id": task.id,
                "parents": ids(&task.parents),
                "children": ids(&task.children),
                "inputFiles": task.inputs,
                "outputFiles": task.outputs,
            })
        });
        list(out, tasks)?;
        out.write_all(b"],\n\"files\": [\n")?;
        list(
            out,
            self.files
                .iter()
                .map(|(id, size)| json!({"id": id, "sizeInBytes": size})),
        )?;
        out.write_all(b"]}")?;
        if self.tasks.iter().any(|task| task.execution.is_some()) {
            self.write_execution(out)?;
        }
        out.write_all(b"}}\n")
    }

    fn write_execution(&self, out: &mut dyn Write) -> io::Result<()> {
        let history = self.history;
        let first = history.attempts.iter().map(|attempt| attempt.start).min();
        let ended = history
            .attempts
            .iter()
            .filter(|attempt| attempt.duration().is_some());
        let last = ended.map(|attempt| attempt.end).max();
        let (first, last) = (first.unwrap_or_default(), last.unwrap_or_default());
        let makespan = seconds((last - first).max(0));
        write!(
            out,
            ",\n\"execution\": {{\"makespanInSeconds\": {makespan}, \"executedAt\": {}, \"tasks\": [\n",
            json!(time(first))
        )?;
        let executions = self.tasks.iter().filter_map(|task| {
            let mut execution = task.execution.clone()?;
            execution["id"] = json!(task.id);
            Some(execution)
        });
        list(out, executions)?;
        out.write_all(b"]")?;
        let mut seen = BTreeSet::new();
        let hosts = history.hosts.all().iter();
        let mut hosts = hosts
            .filter(|host| !host.name.is_empty() && seen.insert(host.name.as_str()))
            .peekable();
        if hosts.peek().is_some() {
            out.write_all(b",\n\"machines\": [\n")?;
            list(
                out,
                hosts.map(|host| {
                    let mut machine = json!({"nodeName": host.name, "system": "linux"});
                    if host.capacity.memory_mb > 0 {
                        machine["memoryInBytes"] = json!(host.capacity.memory_mb << 20);
                    }
                    if host.capacity.cpus > 0 {
                        machine["cpu"] = json!({"coreCount": host.capacity.cpus});
                    }
                    machine
                }),
            )?;
            out.write_all(b"]")?;
        }
        out.write_all(b"}")
    }
}

/// Writes values, one a line, with commas between them.
fn list(out: &mut dyn Write, values: impl Iterator<Item = Value>) -> io::Result<()> {
    let mut separator = "";
    for value in values {
        write!(out, "{separator}{value}")?;
        separator = ",\n";
    }
    Ok(())
}

/// Returns the job of a task whose output has no record: the name of the task ends with that of the job.
fn find_job(name: &str, numbers: &HashMap<String, usize>) -> Option<usize> {
    let ends = name.match_indices('_').map(|(at, _)| &name[at + 1..]);
    let mut names = std::iter::once(name).chain(ends);
    names.find_map(|name| numbers.get(name).copied())
}

/// Returns an identifier of a file: the format has letters, digits and `-_./:#`.
fn file_id(lfn: &str) -> String {
    let is_valid = |c: &char| c.is_ascii_alphanumeric() || "-_./:#".contains(*c);
    lfn.chars().map(|c| if is_valid(&c) { c } else { '_' }).collect()
}

/// Returns a time in ISO 8601.
fn time(micros: Micros) -> String {
    let time = DateTime::from_timestamp_micros(micros).unwrap_or_default();
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}
