//! The small files beside the database by which other tools know what monitoring does.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Local};

use crate::loader::Loader;

/// The files of one loader.
#[derive(Clone, Debug)]
pub struct Markers {
    dir: PathBuf,
    prefix: String,
}

impl Markers {
    /// Files in the submit directory, or elsewhere, where their names begin with the workflow's
    /// identifier.
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

    /// Path of a file of this kind.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{}{name}", self.prefix))
    }

    /// The loader begins. `monitord.recover` makes Pegasus' own monitoring, should it be started after
    /// this one was killed, load everything anew.
    ///
    /// # Errors
    /// The path that cannot be written, and why.
    pub fn started(&self, now: DateTime<Local>) -> Result<(), (PathBuf, io::Error)> {
        let text = format!("pid {}\ntimestamp {}\n", std::process::id(), stamp(now));
        self.put("monitord.started", |out| out.write_all(text.as_bytes()))?;
        self.put("monitord.recover", |out| out.write_all(b"line_processed 0\n"))?;
        self.remove("monitord.done")
    }

    /// What Pegasus' own monitoring would go on with: `monitord.info`. `lines` is the number of lines of
    /// the log.
    ///
    /// # Errors
    /// The path that cannot be written, and why.
    pub fn info(&self, loader: &Loader, lines: u64) -> Result<(), (PathBuf, io::Error)> {
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

    /// All is loaded and on disk. `seconds` is the time the loader was at work.
    ///
    /// # Errors
    /// The path that cannot be written, and why.
    pub fn done(&self, now: DateTime<Local>, seconds: f64) -> Result<(), (PathBuf, io::Error)> {
        self.remove("monitord.recover")?;
        self.put("monitord.done", |out| {
            writeln!(out, "{} {seconds:.3}", stamp(now))
        })
    }

    fn put(
        &self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<(), (PathBuf, io::Error)> {
        let path = self.path(name);
        let part = self.path(&format!("{name}.part"));
        let all = || {
            let mut out = BufWriter::new(File::create(&part)?);
            write(&mut out)?;
            out.flush()?;
            fs::rename(&part, &path)
        };
        all().map_err(|error| {
            let _ = fs::remove_file(&part);
            (path, error)
        })
    }

    fn remove(&self, name: &str) -> Result<(), (PathBuf, io::Error)> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err((path, error)),
            _ => Ok(()),
        }
    }
}

/// `2026-11-21T06:11:18+0000`.
#[must_use]
pub fn stamp(now: DateTime<Local>) -> String {
    now.format("%Y-%m-%dT%H:%M:%S%z").to_string()
}

/// Renames a file to the next free of `.000`, `.001`, …, unless it is the one that standard error goes
/// to.
///
/// # Errors
/// It cannot be renamed.
pub fn rotate(path: &Path) -> io::Result<()> {
    let Ok(old) = fs::metadata(path) else {
        return Ok(());
    };
    let mine = fs::metadata("/dev/stderr");
    if mine.is_ok_and(|mine| (mine.dev(), mine.ino()) == (old.dev(), old.ino())) {
        return Ok(());
    }
    for number in 0_u32.. {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number:03}"));
        if fs::symlink_metadata(&name).is_err() {
            return fs::rename(path, name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_by_rotating() {
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
