//! The event file `B.static.bp`.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use monitord_compat::static_bp::{Events, Group, Head};

use crate::error::PlanError;
use crate::exec::{JobId, SetupId, Task};
use crate::model::{Arguments, FileUse, Job, JobIndex, Workflow};
use crate::profiles::Namespace;

use crate::tasks::{Plan, PlannedJob, nested};

use super::in_order::in_order;
use super::task_line::Line;

/// Bytes of events in one write.
const WRITE_SIZE: usize = 1 << 18;
/// Jobs whose events are in one chunk.
const JOB_CHUNK: usize = 1024;
/// Edges whose events are in one chunk.
const EDGE_CHUNK: usize = 2048;

/// The event file while the events of jobs are written.
pub(crate) struct JobEvents<'a> {
    plan: &'a Plan<'a>,
    heads: &'a Prefixes,
    file: &'a File,
    path: &'a Path,
    /// Events that are not yet written.
    text: String,
}

/// The event file with the events of tasks of the abstract workflow, which come first.
pub(crate) struct Tasks {
    heads: Prefixes,
    file: File,
    path: PathBuf,
    time: String,
}

/// Prefixes of frequent events.
pub(crate) struct Prefixes {
    task: Head,
    task_edge: Head,
    task_meta: Head,
    file_meta: Head,
    file_map: Head,
    job: Head,
    task_of_job: Head,
    job_edge: Head,
}

impl Tasks {
    /// Creates the file and writes the events of tasks. One thread suffices, since refinement runs at the
    /// same time.
    ///
    /// # Errors
    /// A failed write.
    pub(crate) fn create(
        workflow: &Workflow,
        uuid: &str,
        path: PathBuf,
        time: String,
    ) -> Result<Self, PlanError> {
        let file = File::create(&path).map_err(|e| PlanError::io("write", &path, e))?;
        let events = Events {
            time: &time,
            workflow: uuid,
        };
        let heads = Prefixes {
            task: events.head("task.info"),
            task_edge: events.head("task.edge"),
            task_meta: events.head("task.meta"),
            file_meta: events.head("rc.meta"),
            file_map: events.head("wf.map.file"),
            job: events.head("job.info"),
            task_of_job: events.head("wf.map.task_job"),
            job_edge: events.head("job.edge"),
        };
        let (mut text, mut scratch) = (String::new(), String::new());
        let write = |text: &mut String| match text.len() {
            ..WRITE_SIZE => Ok(()),
            _ => JobEvents::append(&file, &path, text),
        };
        let Workflow { jobs, edges, .. } = workflow;
        for job in jobs {
            heads.task(job, &mut text, &mut scratch);
            write(&mut text)?;
        }
        let mut group = Group::default();
        for of_parent in edges.chunk_by(|a, b| a.0 == b.0) {
            let parent = ("parent.task.id", &*jobs[of_parent[0].0].id);
            group.begin(&heads.task_edge, parent, "child.task.id");
            for &(_, child) in of_parent {
                group.add(&mut text, &jobs[child].id);
                write(&mut text)?;
            }
        }
        JobEvents::append(&file, &path, &mut text)?;
        Ok(Tasks {
            heads,
            file,
            path,
            time,
        })
    }
}

impl<'a> JobEvents<'a> {
    /// Continues with the metadata of tasks.
    ///
    /// # Errors
    /// A failed write.
    pub(crate) fn new(plan: &'a Plan<'a>, tasks: &'a Tasks) -> Result<Self, PlanError> {
        let events = Events {
            time: &tasks.time,
            workflow: plan.uuid,
        };
        let mut this = JobEvents {
            plan,
            heads: &tasks.heads,
            file: &tasks.file,
            path: &tasks.path,
            text: String::new(),
        };
        events.begin(&mut this.text, "static.meta.start");
        for (key, value) in &plan.workflow.metadata {
            events
                .begin(&mut this.text, "xwf.meta")
                .with("key", key)
                .with("value", value);
        }
        for (job, n) in plan.exec.computing() {
            this.heads.metadata_of(plan, n, job.setup, &mut this.text);
            this.flush_text()?;
        }
        events.begin(&mut this.text, "static.meta.end");
        this.flush()?;
        Ok(this)
    }

    /// Writes rendered events.
    ///
    /// # Errors
    /// A failed write.
    pub(crate) fn append(mut file: &File, path: &Path, text: &mut String) -> Result<(), PlanError> {
        file.write_all(text.as_bytes())
            .map_err(|e| PlanError::io("write", path, e))?;
        text.clear();
        Ok(())
    }

    /// Returns the file, its path and the prefixes, for use by several threads.
    pub(crate) fn parts(&self) -> (&'a File, &'a Path, &'a Prefixes) {
        (self.file, self.path, self.heads)
    }

    /// Writes the events of one executable job.
    ///
    /// # Errors
    /// A failed write.
    pub(crate) fn job(&mut self, id: JobId, line: &Line) -> Result<(), PlanError> {
        let mut name = String::new();
        self.heads.job(self.plan.at(id), line, &mut name, &mut self.text);
        self.flush_text()
    }

    fn flush_text(&mut self) -> Result<(), PlanError> {
        if self.text.len() < WRITE_SIZE {
            return Ok(());
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), PlanError> {
        Self::append(self.file, self.path, &mut self.text)
    }

    /// Renders events with several threads and writes them in order.
    fn write_all(
        &self,
        count: usize,
        size: usize,
        render: impl Fn(usize, &mut String, &mut String) + Sync,
    ) -> Result<(), PlanError> {
        in_order(
            count,
            size,
            || (String::new(), String::new()),
            |(text, scratch), range| {
                for n in range {
                    render(n, text, scratch);
                }
            },
            |(text, _)| Self::append(self.file, self.path, text),
        )
    }

    /// Writes the map of tasks to jobs and the edges, and closes the file. These follow all jobs, because
    /// monitoring loads events in batches and looks jobs up among loaded ones.
    ///
    /// # Errors
    /// A failed write.
    pub(crate) fn finish(mut self) -> Result<(), PlanError> {
        self.flush()?;
        let plan = self.plan;
        self.write_all(plan.order.len(), JOB_CHUNK, |n, text, _| {
            let job = plan.job(plan.order[n]);
            let members = match job.task {
                Task::Cluster(n, _) => {
                    let members = &plan.exec.clusters[n].members;
                    &plan.exec.members[members.clone()]
                }
                _ => std::slice::from_ref(job),
            };
            for member in members {
                if let Task::Compute(n) = member.task {
                    self.heads
                        .task_of_job
                        .begin(text)
                        .with("job.id", &job.name)
                        .with("task.id", &plan.workflow.jobs[n].id);
                }
            }
        })?;
        let edges = &plan.exec.edges;
        in_order(
            edges.len(),
            EDGE_CHUNK,
            || (String::new(), Group::default()),
            |(text, group), range| {
                for of_parent in edges[range].chunk_by(|a, b| a.0 == b.0) {
                    let parent = ("parent.job.id", &*plan.job(of_parent[0].0).name);
                    group.begin(&self.heads.job_edge, parent, "child.job.id");
                    for &(_, child) in of_parent {
                        group.add(text, &plan.job(child).name);
                    }
                }
            },
            |(text, _)| Self::append(self.file, self.path, text),
        )
    }
}

impl Prefixes {
    fn task(&self, job: &Job, text: &mut String, scratch: &mut String) {
        scratch.clear();
        job.transformation.push_to(scratch);
        let at = scratch.len();
        if let Arguments::Words(words) | Arguments::Exact(words) = &job.arguments {
            for (k, word) in words.iter().enumerate() {
                if k > 0 {
                    scratch.push(' ');
                }
                scratch.push_str(word);
            }
        }
        let (transformation, words) = scratch.split_at(at);
        let arguments = match &job.arguments {
            Arguments::Raw(raw) => raw,
            Arguments::Words(_) | Arguments::Exact(_) => words,
        };
        let (kind, description) = job.kind.event_type();
        let event = self
            .task
            .begin(text)
            .with("task.id", &job.id)
            .with_number("type", kind.into())
            .with("type_desc", description)
            .with("transformation", transformation);
        drop(if arguments.is_empty() {
            event
        } else {
            event.with("argv", arguments)
        });
    }

    fn metadata_of(&self, plan: &Plan<'_>, n: JobIndex, setup: SetupId, text: &mut String) {
        let job = &plan.workflow.jobs[n];
        let entry = plan.exec.setups[setup].entry.map(|e| &plan.catalog.entries[e]);
        // The most frequent case.
        if job.metadata.is_empty() && job.profiles.is_empty() && entry.is_none_or(|e| e.metadata.is_empty()) {
            return;
        }
        let mut all: Vec<(&str, &str)> = Vec::new();
        let job_metadata = job.metadata.iter().map(|(k, v)| (k as &str, v as &str));
        let profiles = job.profiles.of(Namespace::Metadata);
        let program = entry
            .iter()
            .flat_map(|e| e.metadata.iter())
            .map(|(k, v)| (k as &str, v as &str));
        for (key, value) in job_metadata.chain(profiles).chain(program) {
            if !all.iter().any(|(k, _)| *k == key) {
                all.push((key, value));
            }
        }
        for (key, value) in &all {
            self.task_meta
                .begin(text)
                .with("task.id", &job.id)
                .with("key", key)
                .with("value", value);
        }
        // Pegasus writes no metadata of files for jobs without metadata.
        if all.is_empty() {
            return;
        }
        let inputs = job.uses.iter().filter(|u| u.link.reads());
        let outputs = job.uses.iter().filter(|u| u.link.writes() && !u.link.reads());
        for file_use in inputs.chain(outputs) {
            self.metadata_of_file(plan, job, file_use, text);
        }
    }

    fn metadata_of_file(&self, plan: &Plan<'_>, job: &Job, file_use: &FileUse, text: &mut String) {
        let lfn = plan.workflow.files.name(file_use.file);
        for (key, value) in file_use.metadata.iter() {
            self.file_meta
                .begin(text)
                .with("lfn.id", lfn)
                .with("key", key)
                .with("value", value);
        }
        let is_registered = file_use.link.writes() && file_use.register;
        if !file_use.metadata.is_empty() || is_registered {
            self.file_map
                .begin(text)
                .with("task.id", &job.id)
                .with("lfn.id", lfn);
        }
    }

    /// Renders the events of one executable job. `scratch` is a buffer.
    pub(crate) fn job(&self, job: PlannedJob<'_>, line: &Line, scratch: &mut String, text: &mut String) {
        let plan = job.plan;
        let (kind, description) = plan.exec.event_type(&job);
        let profiles = &job.setup.profiles;
        let retries = match job.task {
            Task::NoOp => "0",
            _ => profiles.get(Namespace::Dagman, "retry").map_or("1", str::trim),
        };
        let (clustered, tasks) = match job.task {
            Task::Cluster(n, _) => ("1", plan.exec.clusters[n].members.len() as u64),
            Task::Compute(_) if !job.is_nested() => ("0", 1),
            _ => ("0", 0),
        };
        scratch.clear();
        for part in [plan.layout.of(job.id), "/", &job.name, ".sub"] {
            scratch.push_str(part);
        }
        let event = self
            .job
            .begin(text)
            .with("job.id", &job.name)
            .with("submit_file", scratch)
            .with_number("type", kind.into())
            .with("type_desc", description)
            .with("clustered", clustered)
            .with("max_retries", retries)
            .with("executable", line.program());
        let event = match nested::is_ready(job) {
            true => event,
            false => event.with("argv", line.arguments()),
        };
        event.with_number("task_count", tasks);
    }
}
