//! Finds the output of a task.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use monitord_compat::cluster_record_reader as cluster;
use pmc_files::LineReader;

use crate::dir::RunDir;

/// The files of an attempt with its own files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptFiles {
    /// Standard output.
    pub out: PathBuf,
    /// Standard error.
    pub err: PathBuf,
}

impl AttemptFiles {
    /// Returns the files of an attempt. Attempts count from 0, over all runs of the directory.
    #[must_use]
    pub fn new(dir: &RunDir, task: &[u8], attempt: u32) -> Self {
        let file = |stream: &str| {
            // `Path::join` would take a name with a leading slash as absolute.
            let mut path = dir.dir.as_os_str().as_bytes().to_vec();
            path.push(b'/');
            path.extend_from_slice(task);
            path.extend_from_slice(format!(".{stream}.{attempt:03}").as_bytes());
            PathBuf::from(OsString::from_vec(path))
        };
        Self {
            out: file("out"),
            err: file("err"),
        }
    }
}

/// The standard output of an attempt in the file of a worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The file.
    pub file: PathBuf,
    /// The file with the standard error of all tasks of the worker.
    pub err: PathBuf,
    /// Its first byte.
    pub start: u64,
    /// The byte after it. The record of the attempt begins there.
    pub end: u64,
    /// Start of the attempt: seconds since the epoch, by the clock of its host.
    started: f64,
}

/// Returns the parts of the workers' files that hold standard output of a task, in the order of its attempts.
/// The executor merges and removes these files at the end of a run.
///
/// # Errors
/// A file cannot be read.
pub fn parts(dir: &RunDir, task: &[u8]) -> Result<Vec<Part>, (PathBuf, io::Error)> {
    let task = String::from_utf8_lossy(task);
    let mut parts = Vec::new();
    for rank in 1_u32.. {
        let file = dir.beside_dag(&format!(".out.{rank}"));
        match read_worker(&file, &task) {
            Ok(found) => parts.extend(found.into_iter().map(|(start, end, started)| Part {
                file: file.clone(),
                err: dir.beside_dag(&format!(".err.{rank}")),
                start,
                end,
                started,
            })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err((file, error)),
        }
    }
    parts.sort_by(|a, b| a.started.total_cmp(&b.started));
    Ok(parts)
}

/// Returns start, end and time of each attempt of a task in the file of a worker.
fn read_worker(file: &Path, task: &str) -> io::Result<Vec<(u64, u64, f64)>> {
    let mut found = Vec::new();
    // Each attempt begins after the record of the one before.
    let mut start = 0;
    LineReader::open(file)?.read(|at, line| {
        let Some(column) = memchr::memmem::find(line, cluster::TASK.as_bytes()) else {
            return;
        };
        let text = String::from_utf8_lossy(&line[column..]);
        let Some(record) = cluster::task(text.trim_end()) else {
            return;
        };
        // Records of pegasus-cluster, which is a task itself, have no name.
        let Some(name) = record.name else { return };
        let next = at + line.len() as u64 + 1;
        let from = std::mem::replace(&mut start, next);
        if name == task {
            found.push((from, at + column as u64, record.start.unwrap_or(0.0)));
        }
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run(files: &[(&str, &str)]) -> (tempfile::TempDir, RunDir) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("w.dag"), "").unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let run = RunDir::open(dir.path()).unwrap();
        (dir, run)
    }

    #[test]
    fn files_are_in_the_submit_directory() {
        let (_dir, run) = run(&[]);
        assert!(AttemptFiles::new(&run, b"/x", 7).err.starts_with(&run.dir));
    }

    #[test]
    fn parts_of_workers_files_are_found() {
        let record = |name: &str, second: u32| {
            format!(
                "[cluster-task name={name}, start=\"2026-11-21T07:28:{second:02}.084+00:00\", status=0, app=\"x\"]\n"
            )
        };
        let first = format!("other\n{}second{}", record("b", 1), record("a", 9));
        let second = format!("first\n[cluster-task id=1]\n{}", record("a", 5));
        let (_dir, run) = run(&[("w.dag.out.1", &first), ("w.dag.out.2", &second)]);
        let texts: Vec<String> = parts(&run, b"a")
            .unwrap()
            .iter()
            .map(|part| {
                let text = fs::read_to_string(&part.file).unwrap();
                text[part.start as usize..part.end as usize].to_owned()
            })
            .collect();
        assert_eq!(texts, ["first\n[cluster-task id=1]\n", "second"]);
        assert!(parts(&run, b"none").unwrap().is_empty());
    }
}
