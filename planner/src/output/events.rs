//! The event file `B.static.bp` (section 7.6 of the planner's specification).

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, ScopedJoinHandle};

use monitord_compat::static_bp::Events;

use crate::model::{Arguments, FileUse, Job, JobIndex};
use crate::plan::PlanError;
use crate::profiles::Namespace;
use crate::refine::exec::{JobId, Task};

use super::Plan;
use super::command::Command;

/// Bytes of events that are written at once.
const CHUNK: usize = 1 << 18;
/// Jobs that go to the writer at once.
const BATCH: usize = 256;
/// Batches that wait for the writer at most.
const WAITING: usize = 16;

/// What the DAG says about a job.
struct Line {
    id: JobId,
    executable: String,
    arguments: String,
}

/// Events of executable jobs, which are written while the DAG is, by a thread of their own.
pub(crate) struct JobEvents<'scope> {
    /// Gives batches to the writer; an empty one tells that all went well.
    sender: SyncSender<Vec<Line>>,
    batch: Vec<Line>,
    writer: ScopedJoinHandle<'scope, Result<(), PlanError>>,
}

impl<'scope> JobEvents<'scope> {
    /// Creates the file and begins to write: first the events about the abstract workflow.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub(crate) fn create<'env>(
        scope: &'scope Scope<'scope, 'env>,
        plan: &'env Plan<'_>,
        path: &'env Path,
        time: &'env str,
    ) -> Result<Self, PlanError> {
        let file = File::create(path).map_err(|e| PlanError::io("write", path, e))?;
        let (sender, lines) = sync_channel(WAITING);
        let writer = Writer {
            events: Events {
                time,
                workflow: plan.uuid,
            },
            file,
            path,
            text: String::with_capacity(CHUNK + (1 << 12)),
            scratch: String::new(),
        };
        Ok(JobEvents {
            sender,
            batch: Vec::with_capacity(BATCH),
            writer: scope.spawn(move || writer.write(plan, &lines)),
        })
    }

    /// Adds the events of one executable job.
    pub(crate) fn job(&mut self, id: JobId, command: Command) {
        self.batch.push(Line {
            id,
            executable: command.program,
            arguments: command.arguments,
        });
        if self.batch.len() == BATCH {
            let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
            // A writer that has failed says so at the end.
            let _ = self.sender.send(batch);
        }
    }

    /// Waits until everything is written.
    ///
    /// # Errors
    /// A file that could not be written.
    pub(crate) fn finish(self) -> Result<(), PlanError> {
        if !self.batch.is_empty() {
            let _ = self.sender.send(self.batch);
        }
        let _ = self.sender.send(Vec::new());
        match self.writer.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// The thread that writes.
struct Writer<'a> {
    events: Events<'a>,
    file: File,
    path: &'a Path,
    text: String,
    scratch: String,
}

impl Writer<'_> {
    fn write(mut self, plan: &Plan<'_>, lines: &Receiver<Vec<Line>>) -> Result<(), PlanError> {
        self.tasks(plan)?;
        self.metadata(plan)?;
        // Without the empty batch at the end the plan has failed elsewhere.
        while let Ok(batch) = lines.recv() {
            if batch.is_empty() {
                return self.finish(plan);
            }
            for line in &batch {
                self.job(plan, line)?;
            }
        }
        Ok(())
    }

    fn flush_text(&mut self) -> Result<(), PlanError> {
        if self.text.len() < CHUNK {
            return Ok(());
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), PlanError> {
        self.file
            .write_all(self.text.as_bytes())
            .map_err(|e| PlanError::io("write", self.path, e))?;
        self.text.clear();
        Ok(())
    }

    fn tasks(&mut self, plan: &Plan<'_>) -> Result<(), PlanError> {
        let jobs = &plan.workflow.jobs;
        for job in jobs {
            self.scratch.clear();
            argument_text(job, &mut self.scratch);
            let at = self.scratch.len();
            // Writing into a String cannot fail.
            let _ = write!(self.scratch, "{}", job.transformation);
            let (arguments, transformation) = self.scratch.split_at(at);
            let event = self
                .events
                .begin(&mut self.text, "task.info")
                .with("task.id", &job.id)
                .with("type", "1")
                .with("type_desc", "compute")
                .with("transformation", transformation);
            drop(if arguments.is_empty() {
                event
            } else {
                event.with("argv", arguments)
            });
            self.flush_text()?;
        }
        for &(parent, child) in &plan.workflow.edges {
            self.events
                .begin(&mut self.text, "task.edge")
                .with("parent.task.id", &jobs[parent.0 as usize].id)
                .with("child.task.id", &jobs[child.0 as usize].id);
            self.flush_text()?;
        }
        Ok(())
    }

    fn metadata(&mut self, plan: &Plan<'_>) -> Result<(), PlanError> {
        self.events.begin(&mut self.text, "static.meta.start");
        for (key, value) in &plan.workflow.metadata {
            self.events
                .begin(&mut self.text, "xwf.meta")
                .with("key", key)
                .with("value", value);
        }
        for (job, n) in plan.exec.computing() {
            self.metadata_of(plan, n, job.setup);
            self.flush_text()?;
        }
        self.events.begin(&mut self.text, "static.meta.end");
        self.flush_text()
    }

    fn metadata_of(&mut self, plan: &Plan<'_>, n: JobIndex, setup: u32) {
        let job = &plan.workflow.jobs[n.0 as usize];
        let entry = plan.exec.setups[setup as usize]
            .entry
            .map(|e| &plan.catalog.entries[e as usize]);
        let mut all: Vec<(&str, &str)> = Vec::new();
        let own = job.metadata.iter().map(|(k, v)| (k as &str, v as &str));
        let profiles = job.profiles.of(Namespace::Metadata);
        let program = entry
            .iter()
            .flat_map(|e| e.metadata.iter())
            .map(|(k, v)| (k as &str, v as &str));
        for (key, value) in own.chain(profiles).chain(program) {
            if !all.iter().any(|(k, _)| *k == key) {
                all.push((key, value));
            }
        }
        for (key, value) in &all {
            self.events
                .begin(&mut self.text, "task.meta")
                .with("task.id", &job.id)
                .with("key", key)
                .with("value", value);
        }
        // The reference is silent about files of jobs without metadata of their own.
        if all.is_empty() {
            return;
        }
        let inputs = job.uses.iter().filter(|u| u.link.reads());
        let outputs = job.uses.iter().filter(|u| u.link.writes() && !u.link.reads());
        for file_use in inputs.chain(outputs) {
            self.metadata_of_file(plan, job, file_use);
        }
    }

    fn metadata_of_file(&mut self, plan: &Plan<'_>, job: &Job, file_use: &FileUse) {
        let lfn = plan.workflow.files.name(file_use.file);
        for (key, value) in file_use.metadata.iter() {
            self.events
                .begin(&mut self.text, "rc.meta")
                .with("lfn.id", lfn)
                .with("key", key)
                .with("value", value);
        }
        let is_registered = file_use.link.writes() && file_use.register;
        if !file_use.metadata.is_empty() || is_registered {
            self.events
                .begin(&mut self.text, "wf.map.file")
                .with("task.id", &job.id)
                .with("lfn.id", lfn);
        }
    }

    fn job(&mut self, plan: &Plan<'_>, line: &Line) -> Result<(), PlanError> {
        let id = line.id;
        let job = plan.job(id);
        let (kind, description) = job.task.kind();
        let profiles = &plan.exec.setups[job.setup as usize].profiles;
        let retries = profiles.get(Namespace::Dagman, "retry").map_or("1", str::trim);
        let (clustered, tasks) = match job.task {
            Task::Cluster(n, _) => ("1", plan.exec.clusters[n as usize].members.len() as u64),
            Task::Compute(_) => ("0", 1),
            _ => ("0", 0),
        };
        self.scratch.clear();
        for part in [plan.layout.of(id), "/", &job.name, ".sub"] {
            self.scratch.push_str(part);
        }
        self.events
            .begin(&mut self.text, "job.info")
            .with("job.id", &job.name)
            .with("submit_file", &self.scratch)
            .with_number("type", kind.into())
            .with("type_desc", description)
            .with("clustered", clustered)
            .with("max_retries", retries)
            .with("executable", &line.executable)
            .with("argv", &line.arguments)
            .with_number("task_count", tasks);
        self.flush_text()
    }

    /// Adds which job runs which task, then the edges, and closes the file. The monitoring loads in
    /// batches and looks jobs up in what is loaded already, so these follow all jobs.
    fn finish(mut self, plan: &Plan<'_>) -> Result<(), PlanError> {
        for &id in &plan.order {
            let job = plan.job(id);
            let members = match job.task {
                Task::Cluster(n, _) => {
                    let members = &plan.exec.clusters[n as usize].members;
                    &plan.exec.members[members.start as usize..members.end as usize]
                }
                _ => std::slice::from_ref(job),
            };
            for member in members {
                if let Task::Compute(n) = member.task {
                    self.events
                        .begin(&mut self.text, "wf.map.task_job")
                        .with("job.id", &job.name)
                        .with("task.id", &plan.workflow.jobs[n.0 as usize].id);
                    self.flush_text()?;
                }
            }
        }
        for &(parent, child) in &plan.exec.edges {
            self.events
                .begin(&mut self.text, "job.edge")
                .with("parent.job.id", &plan.job(parent).name)
                .with("child.job.id", &plan.job(child).name);
            self.flush_text()?;
        }
        self.flush()
    }
}

/// Arguments of a job of the abstract workflow as one text.
fn argument_text(job: &Job, text: &mut String) {
    match &job.arguments {
        Arguments::Raw(raw) => text.push_str(raw),
        Arguments::Words(words) => {
            for (k, word) in words.iter().enumerate() {
                if k > 0 {
                    text.push(' ');
                }
                text.push_str(word);
            }
        }
    }
}
