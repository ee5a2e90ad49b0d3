//! Reads a DAG file, complete or not.

use std::io;
use std::path::Path;

use pmc_dag::EARLIER_PLAN;

use super::names::NameTable;
use super::request::{Request, skip_options};
use super::{Class, Plan, TaskNumber};
use crate::kinds::Kind;
use crate::lines::{LineReader, word};

/// Typical size of a task with its edges in the file.
const BYTES_PER_TASK: u64 = 512;

/// Reads a DAG. Ignores lines that it does not understand. A missing file has no tasks.
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
    plan.names = NameTable::with_capacity(usize::try_from(size / BYTES_PER_TASK).unwrap_or(0));
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
        if line.starts_with(b"TASK") {
            self.task(position, line);
        } else if line.starts_with(b"EDGE") {
            self.edge(line);
        } else if let Some(rest) = line.strip_prefix(b"#@ ") {
            // `#@ 3 transformation id`
            self.transformation.clear();
            self.transformation.extend_from_slice(word(word(rest).1).0);
        }
    }

    fn task(&mut self, position: u64, line: &[u8]) {
        let (name, rest) = word(word(line).1);
        if name.is_empty() || rest.is_empty() {
            return;
        }
        if self.transformation == EARLIER_PLAN.as_bytes() {
            self.transformation.clear();
            return;
        }
        let transformation = if self.transformation.is_empty() {
            program_name(rest)
        } else {
            &self.transformation
        };
        let class = Class {
            transformation: String::from_utf8_lossy(transformation).into_owned(),
            kind: Kind::of_task(transformation, name),
        };
        self.plan.add(name, class, Request::read(rest), position);
        self.transformation.clear();
    }

    fn edge(&mut self, line: &[u8]) {
        let (parent, child) = word(word(line).1);
        // The edges of a parent are usually adjacent.
        let last: Option<TaskNumber> = self.plan.edges.last().map(|(parent, _)| *parent);
        let parent = last
            .filter(|last| self.plan.name(*last) == parent)
            .or_else(|| self.plan.find(parent));
        if let (Some(parent), Some(child)) = (parent, self.plan.find(child.trim_ascii_end())) {
            self.plan.edges.push((parent, child));
        }
    }
}

/// Returns the file name of the program, for a task without a transformation.
fn program_name(rest: &[u8]) -> &[u8] {
    let program = word(skip_options(rest)).0;
    let name = program.rsplit(|byte| *byte == b'/').next().unwrap_or(program);
    if name.is_empty() { b"unknown" } else { name }
}
