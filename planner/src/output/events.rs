//! The event file `B.static.bp` (section 7.6 of the planner's specification).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use monitord_compat::static_bp::Events;

use crate::model::{Arguments, FileUse, Job, JobIndex};
use crate::plan::PlanError;
use crate::profiles::Namespace;
use crate::refine::exec::{JobId, Task};

use super::Plan;
use super::command::Command;

/// Events of executable jobs, which are written while the DAG is.
pub(crate) struct JobEvents<'a> {
    events: Events<'a>,
    out: BufWriter<File>,
    path: PathBuf,
    text: String,
}

impl<'a> JobEvents<'a> {
    /// Creates the file and writes the events about the abstract workflow.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn create(plan: &Plan<'a>, path: &Path, time: &'a str) -> Result<Self, PlanError> {
        let file = File::create(path).map_err(|e| PlanError::io("write", path, e))?;
        let mut this = JobEvents {
            events: Events {
                time,
                workflow: plan.uuid,
            },
            out: BufWriter::with_capacity(1 << 16, file),
            path: path.to_owned(),
            text: String::new(),
        };
        this.tasks(plan)?;
        this.metadata(plan)?;
        Ok(this)
    }

    fn flush_text(&mut self) -> Result<(), PlanError> {
        self.out
            .write_all(self.text.as_bytes())
            .map_err(|e| PlanError::io("write", &self.path, e))?;
        self.text.clear();
        Ok(())
    }

    fn tasks(&mut self, plan: &Plan<'_>) -> Result<(), PlanError> {
        let jobs = &plan.workflow.jobs;
        for job in jobs {
            let arguments = argument_text(job);
            let event = self
                .events
                .begin(&mut self.text, "task.info")
                .with("task.id", &job.id)
                .with("type", "1")
                .with("type_desc", "compute")
                .with("transformation", &job.transformation.to_string());
            drop(if arguments.is_empty() {
                event
            } else {
                event.with("argv", &arguments)
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

    /// Adds the events of one executable job.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn job(&mut self, plan: &Plan<'_>, id: JobId, command: &Command) -> Result<(), PlanError> {
        let job = plan.job(id);
        let (kind, description) = job.task.kind();
        let profiles = &plan.exec.setups[job.setup as usize].profiles;
        let retries = profiles.get(Namespace::Dagman, "retry").map_or("1", str::trim);
        let (clustered, tasks) = match job.task {
            Task::Cluster(n, _) => ("1", plan.exec.clusters[n as usize].members.len() as u64),
            Task::Compute(_) => ("0", 1),
            _ => ("0", 0),
        };
        self.events
            .begin(&mut self.text, "job.info")
            .with("job.id", &job.name)
            .with("submit_file", &format!("{}/{}.sub", plan.layout.of(id), job.name))
            .with_number("type", kind.into())
            .with("type_desc", description)
            .with("clustered", clustered)
            .with("max_retries", retries)
            .with("executable", &command.program)
            .with("argv", &command.arguments)
            .with_number("task_count", tasks);
        self.flush_text()
    }

    /// Adds which job runs which task, then the edges, and closes the file. The monitoring loads in
    /// batches and looks jobs up in what is loaded already, so these follow all jobs.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(crate) fn finish(mut self, plan: &Plan<'_>) -> Result<(), PlanError> {
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
        let path = self.path;
        self.out
            .into_inner()
            .map_err(std::io::IntoInnerError::into_error)
            .and_then(|file| file.sync_all())
            .map_err(|e| PlanError::io("write", &path, e))
    }
}

/// Arguments of a job of the abstract workflow as one text.
fn argument_text(job: &Job) -> String {
    match &job.arguments {
        Arguments::Raw(text) => text.clone(),
        Arguments::Words(words) => {
            let mut text = String::new();
            for (k, word) in words.iter().enumerate() {
                if k > 0 {
                    text.push(' ');
                }
                text.push_str(word);
            }
            text
        }
    }
}
