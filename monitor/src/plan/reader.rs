//! Reads a DAG file, complete or not.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use pmc_dag::record::{Record, TaskRecord};
use pmc_dag::{EARLIER_PLAN, Request};
use pmc_files::LineReader;

use super::names::NameTable;
use super::{Class, NO_REQUEST, Plan, TaskNumber};
use crate::events::word;
use crate::kinds::Kind;

/// Typical size of a task with its edges in the file.
const BYTES_PER_TASK: u64 = 512;
/// Maximum tasks for which memory is reserved before they are read: a file may be large and have none.
const MAX_RESERVED: u64 = 1 << 22;

/// Reads a DAG. Ignores lines that are no records. A missing file has no tasks.
pub(super) fn read(path: &Path) -> io::Result<Plan> {
    let mut plan = Plan {
        path: path.to_owned(),
        ..Plan::default()
    };
    let mut lines = match LineReader::open(path) {
        Ok(lines) => lines,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(plan),
        Err(error) => return Err(error),
    };
    let size = path.metadata().map_or(0, |metadata| metadata.len());
    let tasks = (size / BYTES_PER_TASK).min(MAX_RESERVED);
    plan.names = NameTable::with_capacity(usize::try_from(tasks).unwrap_or(0));
    let mut reader = Reader {
        plan,
        transformation: Vec::new(),
    };
    lines.read(|position, line| reader.line(position, line))?;
    Ok(reader.plan)
}

struct Reader {
    plan: Plan,
    /// Transformation of the next task; empty if there is no comment line for it.
    transformation: Vec<u8>,
}

impl Reader {
    fn line(&mut self, position: u64, line: &[u8]) {
        match Record::parse(line) {
            Ok(Record::Task(record)) => self.task(position, record),
            Ok(Record::Edge { parent, child }) => self.edge(parent, child),
            Ok(Record::Label { transformation, .. }) => {
                self.transformation.clear();
                self.transformation.extend_from_slice(transformation);
            }
            Ok(Record::Subdag { name, dag, .. }) => {
                self.add(position, name, NO_REQUEST, b"");
                // A repeated name is no other task.
                let task = self.plan.find(name);
                let last = self.plan.subdags.last().map(|(task, _)| *task);
                if let Some(task) = task.filter(|task| last.is_none_or(|last| last < *task)) {
                    let dag = PathBuf::from(OsStr::from_bytes(&dag));
                    self.plan.subdags.push((task, dag));
                }
            }
            Ok(
                Record::MaxJobs { .. }
                | Record::PreScript(_)
                | Record::Job { .. }
                | Record::Inputs { .. }
                | Record::Nothing,
            )
            | Err(_) => {}
        }
    }

    fn task(&mut self, position: u64, record: TaskRecord<'_>) {
        if self.transformation == EARLIER_PLAN.as_bytes() {
            self.transformation.clear();
            return;
        }
        let Ok(parts) = record.parts() else {
            self.add(position, record.name, NO_REQUEST, b"");
            return;
        };
        let task = self.add(position, record.name, parts.request, parts.command);
        if let (Some(task), Some(gang)) = (task, parts.gang) {
            self.plan.gangs.insert(task, gang);
        }
    }

    fn add(&mut self, position: u64, name: &[u8], request: Request, command: &[u8]) -> Option<TaskNumber> {
        let transformation = if self.transformation.is_empty() {
            program_name(command)
        } else {
            &self.transformation
        };
        let class = Class {
            transformation: String::from_utf8_lossy(transformation).into_owned(),
            kind: Kind::of_task(transformation, name),
        };
        self.transformation.clear();
        self.plan.add(name, class, request, position)
    }

    fn edge(&mut self, parent: &[u8], child: &[u8]) {
        // The edges of a parent are usually adjacent.
        let last: Option<TaskNumber> = self.plan.edges.last().map(|(parent, _)| *parent);
        let parent = last
            .filter(|last| self.plan.name(*last) == parent)
            .or_else(|| self.plan.find(parent));
        if let (Some(parent), Some(child)) = (parent, self.plan.find(child)) {
            self.plan.edges.push((parent, child));
        }
    }
}

/// Returns the file name of the program, for a task without a transformation.
fn program_name(command: &[u8]) -> &[u8] {
    let program = word(command).0;
    let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or(program);
    if name.is_empty() { b"unknown" } else { name }
}
