//! The table of jobs: inputs and outputs of each task. It consists of lines of text, so that a task
//! finds its lines without parsing a whole workflow.
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

/// Entry of one task.
#[derive(Debug, Default, PartialEq)]
pub struct Entry {
    /// Duration.
    pub milliseconds: u64,
    /// Inputs with their sizes in bytes.
    pub reads: Vec<(String, u64)>,
    /// Outputs with their sizes in bytes.
    pub writes: Vec<(String, u64)>,
}

/// Returns the sizes of all files: those of their producers, for raw inputs the largest of all readers.
/// Published descriptions are not always consistent.
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

/// Returns the name of the task that a planner makes of a job.
pub fn task_name(job: &Job) -> String {
    format!("{}_{}", job.name, job.id).replace(['.', ' ', '+'], "_")
}

/// Formats the table. `size` gives the scaled size of a file, `milliseconds` the duration of a job.
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

/// Returns the entry of a task, or `None` if the table has no such task.
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
    fn a_written_entry_is_found() {
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
