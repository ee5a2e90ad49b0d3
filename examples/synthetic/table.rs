//! The table of jobs: what each task reads and writes. Lines of text, so that a task finds its own
//! lines without parsing a whole workflow.
//!
//! ```text
//! job MILLISECONDS TASK
//! r BYTES FILE
//! w BYTES FILE
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};

use crate::dax::Job;

/// What one task does.
#[derive(Debug, Default, PartialEq)]
pub struct Entry {
    /// How long it lasts.
    pub milliseconds: u64,
    /// Files it reads, with their sizes in bytes.
    pub reads: Vec<(String, u64)>,
    /// Files it writes, with their sizes in bytes.
    pub writes: Vec<(String, u64)>,
}

/// Sizes of all files: those that their producers give, for raw inputs the largest that a reader gives.
/// Published descriptions are not always of one mind.
pub fn sizes(jobs: &[Job]) -> BTreeMap<&str, u64> {
    let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, size) in jobs.iter().flat_map(|job| &job.inputs) {
        let entry = sizes.entry(name).or_default();
        *entry = (*entry).max(*size);
    }
    for (name, size) in jobs.iter().flat_map(|job| &job.outputs) {
        sizes.insert(name, *size);
    }
    sizes
}

/// Name of the task that a planner makes of a job.
pub fn task_name(job: &Job) -> String {
    format!("{}_{}", job.name, job.id).replace(['.', ' ', '+'], "_")
}

/// The table as text. `size` gives the scaled size of a file, `milliseconds` the length of a job.
pub fn write(jobs: &[Job], size: impl Fn(&str) -> u64, milliseconds: impl Fn(&Job) -> u64) -> String {
    let mut text = String::new();
    for job in jobs {
        let _ = writeln!(text, "job {} {}", milliseconds(job), task_name(job));
        for (name, _) in &job.inputs {
            let _ = writeln!(text, "r {} {name}", size(name));
        }
        for (name, _) in &job.outputs {
            let _ = writeln!(text, "w {} {name}", size(name));
        }
    }
    text
}

/// The entry of a task, or `None` if the table has no such task.
pub fn find(text: &str, task: &str) -> Result<Option<Entry>> {
    let mut entry: Option<Entry> = None;
    for (number, line) in text.lines().enumerate() {
        let bad = || format!("line {} of the table of jobs: \"{line}\"", number + 1);
        let mut words = line.splitn(3, ' ');
        let (Some(kind), Some(value), Some(name)) = (words.next(), words.next(), words.next()) else {
            anyhow::bail!(bad());
        };
        if kind == "job" {
            if entry.is_some() {
                break;
            }
            if name == task {
                let milliseconds = value.parse().with_context(bad)?;
                entry = Some(Entry {
                    milliseconds,
                    ..Entry::default()
                });
            }
        } else if let Some(entry) = &mut entry {
            let list = if kind == "r" {
                &mut entry.reads
            } else {
                &mut entry.writes
            };
            list.push((name.to_owned(), value.parse().with_context(bad)?));
        }
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, inputs: &[(&str, u64)], outputs: &[(&str, u64)]) -> Job {
        let own = |list: &[(&str, u64)]| {
            list.iter()
                .map(|(name, size)| ((*name).to_owned(), *size))
                .collect()
        };
        Job {
            id: id.into(),
            name: "m.Add".into(),
            inputs: own(inputs),
            outputs: own(outputs),
            ..Job::default()
        }
    }

    #[test]
    fn a_task_finds_what_was_written() {
        let jobs = [
            job("1", &[("raw file", 7)], &[("x", 20)]),
            job("2", &[("x", 19)], &[("y", 0)]),
        ];
        let sizes = sizes(&jobs);
        let text = write(&jobs, |name| sizes[name], |_| 5);
        let entry = find(&text, "m_Add_2")
            .expect("the table is well formed")
            .expect("the task is there");
        assert_eq!(
            entry,
            Entry {
                milliseconds: 5,
                reads: vec![("x".into(), 20)],
                writes: vec![("y".into(), 0)]
            }
        );
        let first = find(&text, "m_Add_1").expect("well formed").expect("there");
        assert_eq!(first.reads, [("raw file".to_owned(), 7)]);
        assert_eq!(find(&text, "m_Add_3").expect("well formed"), None);
    }
}
