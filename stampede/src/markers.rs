//! The small files beside the database that tell other tools about the loader.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Local};
use pmc_files::Destination;

use crate::loader::Loader;

/// A file cannot be written or removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", path.display())]
pub struct MarkerError {
    /// File.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Writes the files of one loader.
#[derive(Clone, Debug)]
pub struct Markers {
    dir: PathBuf,
    prefix: String,
}

impl Markers {
    /// Writes into the submit directory, or `elsewhere` with the UUID of the workflow before each name.
    #[must_use]
    pub fn new(submit_dir: &Path, elsewhere: Option<&Path>, uuid: &str) -> Self {
        match elsewhere {
            Some(dir) => Self {
                dir: dir.to_owned(),
                prefix: format!("{uuid}-"),
            },
            None => Self {
                dir: submit_dir.to_owned(),
                prefix: String::new(),
            },
        }
    }

    /// Returns the path of a file with this name.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{}{name}", self.prefix))
    }

    /// The loader begins. If it is killed, `monitord.recover` makes Pegasus' own monitoring start anew.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn started(&self, now: DateTime<Local>) -> Result<(), MarkerError> {
        let text = format!("pid {}\ntimestamp {}\n", std::process::id(), timestamp(now));
        self.put("monitord.started", |out| out.write_all(text.as_bytes()))?;
        self.put("monitord.recover", |out| out.write_all(b"line_processed 0\n"))?;
        self.remove("monitord.done")
    }

    /// Writes `monitord.info`, from which Pegasus' own monitoring would continue. `lines` is the number of
    /// lines of the log.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn info(&self, loader: &Loader, lines: u64) -> Result<(), MarkerError> {
        self.put("monitord.info", |out| {
            writeln!(out, "monitord_job_sequence {}", loader.last_sequence() + 1)?;
            writeln!(out, "monitord_dagman_out_sequence {lines}")?;
            writeln!(out, "monitord_workflow_restart_count {}", loader.starts())?;
            let mut result = Ok(());
            let all = loader.store().attempts_by_job(&mut |job, attempts| {
                if result.is_ok() {
                    result = writeln!(out, "{job} {}", attempts - 1);
                }
            });
            all.map_err(io::Error::other).and(result)
        })
    }

    /// Everything is loaded and on disk. `seconds` is how long the loader ran.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn done(&self, now: DateTime<Local>, seconds: f64) -> Result<(), MarkerError> {
        self.remove("monitord.recover")?;
        self.put("monitord.done", |out| {
            writeln!(out, "{} {seconds:.3}", timestamp(now))
        })
    }

    fn put(
        &self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    ) -> Result<(), MarkerError> {
        let path = self.path(name);
        let write_all = || {
            let destination = Destination::named(&path)?;
            let part = destination.only_replacement(&format!("{name}.part"), 0o666)?;
            let mut out = BufWriter::new(part.file());
            write(&mut out)?;
            out.flush()?;
            drop(out);
            part.publish()
        };
        write_all().map_err(|source| MarkerError { path, source })
    }

    fn remove(&self, name: &str) -> Result<(), MarkerError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(MarkerError { path, source }),
            _ => Ok(()),
        }
    }
}

/// Formats a time as `2026-11-21T06:11:18+0000`.
#[must_use]
pub fn timestamp(now: DateTime<Local>) -> String {
    now.format("%Y-%m-%dT%H:%M:%S%z").to_string()
}

/// Renames a file to the next free of `.000`, `.001`, …, unless standard error goes to it.
///
/// # Errors
/// The file cannot be renamed.
pub fn rotate(path: &Path) -> io::Result<()> {
    let Ok(old) = fs::metadata(path) else {
        return Ok(());
    };
    let stderr = fs::metadata("/dev/stderr");
    if stderr.is_ok_and(|stderr| (stderr.dev(), stderr.ino()) == (old.dev(), old.ino())) {
        return Ok(());
    }
    for number in 0_u32.. {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{number:03}"));
        if fs::symlink_metadata(path.with_file_name(&name)).is_err() {
            return pmc_files::rename(path, &name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotated_files_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        rotate(&path).unwrap();
        for text in ["one", "two", "three"] {
            fs::write(&path, text).unwrap();
            rotate(&path).unwrap();
        }
        let read = |number: &str| fs::read_to_string(dir.path().join(format!("x.log.{number}"))).unwrap();
        assert_eq!([read("000"), read("001"), read("002")], ["one", "two", "three"]);
        assert!(!path.exists());
    }
}
