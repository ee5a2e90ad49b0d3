//! The lines of a DAG file, one at a time: for readers that need no [`Dag`](crate::Dag) in memory.

use std::borrow::Cow;

use crate::error::DagErrorKind;
use crate::gang::Gang;
use crate::options::{self, Request};
use crate::text::{cut, lossy, trim};
use crate::words::Words;

/// A line of a DAG file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    /// A task.
    Task(TaskRecord<'a>),
    /// An edge.
    Edge {
        /// Name of the parent.
        parent: &'a [u8],
        /// Name of the child.
        child: &'a [u8],
    },
    /// A `#@` line: what the next task is for Pegasus.
    Label {
        /// First word: a number.
        id: &'a [u8],
        /// Second word: the transformation.
        transformation: &'a [u8],
    },
    /// `MAXJOBS CATEGORY NUMBER`, as in an input file of HTCondor's DAGMan.
    MaxJobs {
        /// Name of the category.
        category: Cow<'a, [u8]>,
        /// Maximum tasks of the category that run at a time, at least 1.
        limit: u32,
    },
    /// `SUBDAG EXTERNAL NAME FILE [DIR DIRECTORY]`: a task that is a DAG of its own. `SUBDAG PLANNED` says
    /// that the planner makes it, and means the same. Pegasus' monitoring follows no `EXTERNAL`.
    Subdag {
        /// Name of the task.
        name: &'a [u8],
        /// The DAG file, relative to the directory of this one.
        dag: Cow<'a, [u8]>,
        /// Where its tasks run, relative to the directory of this DAG file.
        directory: Option<Cow<'a, [u8]>>,
    },
    /// `SCRIPT PRE NAME [OPTIONS] COMMAND`: makes the DAG file of the task with this name.
    PreScript(TaskRecord<'a>),
    /// `JOB NAME FILE`, after the SUBDAG line with this name. By the file, Pegasus' monitoring finds the
    /// logs of the sub-workflow.
    Job {
        /// Name of the task.
        name: &'a [u8],
        /// The file, relative to the directory of this DAG file.
        description: &'a [u8],
    },
    /// `#inputs NAME…`: logical names of files that the next task reads and that the cache of its node may
    /// have, because others read them, too. For the original, it is a comment.
    Inputs {
        /// The names, to be split into [`Words`]; not empty.
        names: &'a [u8],
    },
    /// An empty line or a comment.
    Nothing,
}

/// The line of a task. Options and command are not parsed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskRecord<'a> {
    /// Name of the task.
    pub name: &'a [u8],
    /// Options and command, not empty.
    pub rest: &'a [u8],
}

/// What a task asks for, and what it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskParts<'a> {
    /// The resources that it requests: for each rank if it is a task over several hosts.
    pub request: Request,
    /// What it needs if it is a task over several hosts.
    pub gang: Option<Gang>,
    /// Its command.
    pub command: &'a [u8],
}

impl<'a> Record<'a> {
    /// Parses a line without its line feed.
    ///
    /// # Errors
    /// The line is no record, or a part of it is missing.
    pub fn parse(line: &'a [u8]) -> Result<Self, DagErrorKind> {
        let line = trim(line);
        let words = || cut(cut(line).1);
        // As in the original, the keyword is only a prefix: `TASKS a cmd` is a task.
        if line.starts_with(b"TASK") {
            let (name, rest) = words();
            if rest.is_empty() {
                return Err(DagErrorKind::TaskRecord(lossy(line)));
            }
            Ok(Record::Task(TaskRecord { name, rest }))
        } else if line.starts_with(b"EDGE") {
            let (parent, child) = words();
            if child.is_empty() {
                return Err(DagErrorKind::EdgeRecord(lossy(line)));
            }
            Ok(Record::Edge { parent, child })
        } else if line.starts_with(b"#@") {
            let (id, rest) = words();
            let (transformation, last) = cut(rest);
            if last.is_empty() {
                return Err(DagErrorKind::PegasusRecord(lossy(line)));
            }
            Ok(Record::Label { id, transformation })
        } else if cut(line).0 == b"SUBDAG" {
            subdag(cut(line).1).ok_or_else(|| DagErrorKind::SubdagRecord(lossy(line)))
        } else if cut(line).0 == b"SCRIPT" {
            pre_script(cut(line).1).ok_or_else(|| DagErrorKind::ScriptRecord(lossy(line)))
        } else if cut(line).0 == b"JOB" && !cut(cut(cut(line).1).1).0.is_empty() {
            let (name, rest) = words();
            let description = cut(rest).0;
            Ok(Record::Job { name, description })
        } else if cut(line).0 == b"MAXJOBS" {
            max_jobs(cut(line).1).ok_or_else(|| DagErrorKind::MaxJobsRecord(lossy(line)))
        } else if line.is_empty() || line.starts_with(b"#") {
            match cut(line) {
                (b"#inputs", names) if !names.is_empty() => Ok(Record::Inputs { names }),
                _ => Ok(Record::Nothing),
            }
        } else {
            Err(DagErrorKind::Record(lossy(line)))
        }
    }
}

fn max_jobs(text: &[u8]) -> Option<Record<'_>> {
    let mut words = Words::new(text);
    let (category, limit) = (words.next()?, words.next()?);
    let limit = std::str::from_utf8(&limit).ok()?.parse().ok()?;
    (limit > 0 && words.next().is_none()).then_some(Record::MaxJobs { category, limit })
}

fn subdag(text: &[u8]) -> Option<Record<'_>> {
    let (kind, rest) = cut(text);
    let (name, rest) = cut(rest);
    let mut words = Words::new(rest);
    let dag = words.next()?;
    let directory = match words.next() {
        None => None,
        Some(word) if *word == *b"DIR" => Some(words.next()?),
        Some(_) => return None,
    };
    let is_complete = !dag.is_empty() && directory.as_ref().is_none_or(|path| !path.is_empty());
    let is_subdag = matches!(kind, b"EXTERNAL" | b"PLANNED") && is_complete && words.next().is_none();
    is_subdag.then_some(Record::Subdag { name, dag, directory })
}

fn pre_script(text: &[u8]) -> Option<Record<'_>> {
    let (kind, rest) = cut(text);
    let (name, rest) = cut(rest);
    let is_script = kind == b"PRE" && !rest.is_empty();
    is_script.then_some(Record::PreScript(TaskRecord { name, rest }))
}

impl<'a> TaskRecord<'a> {
    /// Parses the options. Returns the resources that the task requests, and its command.
    ///
    /// # Errors
    /// An option is unknown or has an invalid value, or there is no command.
    pub fn request(&self) -> Result<(Request, &'a [u8]), DagErrorKind> {
        self.parts().map(|parts| (parts.request, parts.command))
    }

    /// Parses the options. Returns what they ask for.
    ///
    /// # Errors
    /// As [`TaskRecord::request`].
    pub fn parts(&self) -> Result<TaskParts<'a>, DagErrorKind> {
        let (options, command) = options::parse(self.name, self.rest)?;
        Ok(TaskParts {
            request: options.request(),
            gang: options.gang(self.name)?,
            command,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_records() {
        let task = TaskRecord {
            name: b"a",
            rest: b"-c 2 -m 1.5 /bin/x  y",
        };
        let line = b" TASK\ta  -c 2 -m 1.5 /bin/x  y \r";
        assert_eq!(Record::parse(line).unwrap(), Record::Task(task));
        let gang = TaskRecord {
            name: b"a",
            rest: b"-N 2 --exclusive x",
        };
        assert!(gang.parts().unwrap().gang.is_some_and(|gang| gang.exclusive));
        assert_eq!(task.parts().unwrap().gang, None);
        let (request, command) = task.request().unwrap();
        assert_eq!((request.cpus, request.memory_mb, request.gpus), (2, 2, 0));
        assert_eq!(command, b"/bin/x  y");
        let (parent, child) = (&b"a"[..], &b"b"[..]);
        assert_eq!(
            Record::parse(b"EDGE a b").unwrap(),
            Record::Edge { parent, child }
        );
        let (id, transformation) = (&b"3"[..], &b"work:1.0"[..]);
        let label = Record::Label { id, transformation };
        assert_eq!(Record::parse(b"#@ 3 work:1.0 ID7").unwrap(), label);
        let (category, limit) = (Cow::from(&b"net"[..]), 4);
        assert_eq!(
            Record::parse(b"MAXJOBS net 4").unwrap(),
            Record::MaxJobs { category, limit }
        );
        assert_eq!(Record::parse(b"# text").unwrap(), Record::Nothing);
        let names = &b"a 'b c'"[..];
        assert_eq!(
            Record::parse(b"#inputs a 'b c' ").unwrap(),
            Record::Inputs { names }
        );
        for comment in [&b"#inputs"[..], b"# inputs a", b"#inputs: a"] {
            assert_eq!(Record::parse(comment).unwrap(), Record::Nothing);
        }
        let job = Record::Job {
            name: b"a",
            description: b"b/a.sub",
        };
        assert_eq!(Record::parse(b"JOB a b/a.sub").unwrap(), job);
        for bad in [&b"TASK a"[..], b"EDGE a", b"#@ 1 x", b"JOB a", b"MAXJOBS a 0"] {
            assert!(Record::parse(bad).is_err(), "{}", lossy(bad));
        }
    }

    #[test]
    fn sub_workflows_have_two_lines() {
        let subdag = |directory: Option<&'static [u8]>| Record::Subdag {
            name: b"s",
            dag: Cow::from(&b"sub dir/s.dag"[..]),
            directory: directory.map(Cow::from),
        };
        let read = |line: &'static str| Record::parse(line.as_bytes());
        assert_eq!(
            read(" SUBDAG EXTERNAL  s 'sub dir/s.dag'\r").unwrap(),
            subdag(None)
        );
        for kind in ["EXTERNAL", "PLANNED"] {
            let line = format!("SUBDAG {kind} s 'sub dir/s.dag' DIR /sub/dir");
            assert_eq!(Record::parse(line.as_bytes()).unwrap(), subdag(Some(b"/sub/dir")));
        }
        let (name, rest) = (&b"s"[..], &b"-m 5 /bin/plan  x"[..]);
        let script = Record::PreScript(TaskRecord { name, rest });
        assert_eq!(read("SCRIPT PRE s -m 5 /bin/plan  x").unwrap(), script);
        for bad in [
            "SUBDAG",
            "SUBDAG EXTERNAL s",
            "SUBDAG INTERNAL s s.dag",
            "SUBDAG EXTERNAL s s.dag NOOP",
            "SUBDAG EXTERNAL s s.dag DIR",
            "SUBDAG EXTERNAL s s.dag DIR ''",
            "SUBDAG EXTERNAL s s.dag DIR d more",
            "SUBDAG EXTERNAL s ''",
            "SCRIPT PRE s",
            "SCRIPT POST s /bin/true",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
