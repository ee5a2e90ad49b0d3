//! The standard streams of the jobs. All jobs of an invocation share them.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use monitord_compat::invocation_record::FileEntry;

use crate::cache::{InvocationCache, NullDevice};
use crate::context::Context;
use crate::names::Names;
use crate::options::{Existing, Input, Output};
use crate::payload;
use crate::pipes::{self, Waiting};
use crate::stat;
use crate::temporary::{self, Capture};

/// Where a job's output goes.
#[derive(Debug)]
enum Sink {
    /// A temporary file.
    Capture(Capture),
    /// Kickstart's own stream.
    Inherit,
    /// A file, or the error of opening it: then no job can be started.
    File(PathBuf, Result<File, io::Error>),
}

/// One of the two output streams.
#[derive(Debug)]
pub struct Stream {
    key: &'static str,
    number: i32,
    sink: Sink,
    /// True if a later invocation may use the capture.
    reusable: Cell<bool>,
}

/// Where the output streams are opened.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// Directory of the job.
    pub directory: &'a Path,
    /// Directories for temporary files.
    pub temporary: &'a [PathBuf],
    /// Files for reuse.
    pub cache: &'a InvocationCache,
    /// True captures in memory. Built-ins write a few lines; a file on a disk would cost more than their
    /// work.
    pub in_memory: bool,
}

impl Stream {
    /// Opens the standard output that `spec` asks for.
    ///
    /// # Errors
    /// No temporary file can be made.
    pub fn stdout(spec: &Output, places: Places<'_>, waiting: &mut Waiting<'_>) -> io::Result<Self> {
        Self::open(("stdout", 1), spec, places, waiting)
    }

    /// Opens the standard error that `spec` asks for.
    ///
    /// # Errors
    /// No temporary file can be made.
    pub fn stderr(spec: &Output, places: Places<'_>, waiting: &mut Waiting<'_>) -> io::Result<Self> {
        Self::open(("stderr", 2), spec, places, waiting)
    }

    fn open(
        (key, number): (&'static str, i32),
        spec: &Output,
        places: Places<'_>,
        waiting: &mut Waiting<'_>,
    ) -> io::Result<Self> {
        let sink = match spec {
            Output::Capture => Sink::Capture(capture(&key[3..], places)?),
            Output::Inherit => Sink::Inherit,
            Output::File { path, existing } => {
                let opened = open_file(&places.directory.join(path), *existing, waiting);
                Sink::File(path.clone(), opened)
            }
        };
        Ok(Self {
            key,
            number,
            sink,
            reusable: Cell::new(!places.in_memory),
        })
    }

    /// Returns a copy of the stream's descriptor for a job.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn for_job(&self, context: &Context<'_>) -> io::Result<OwnedFd> {
        match &self.sink {
            Sink::Capture(capture) => match context.cache.reopen(capture) {
                Some(file) => Ok(file),
                None => {
                    self.reusable.set(false);
                    capture.file.as_fd().try_clone_to_owned()
                }
            },
            Sink::File(_, Ok(file)) => file.as_fd().try_clone_to_owned(),
            Sink::Inherit => self.inherited(context).try_clone_to_owned(),
            Sink::File(path, Err(error)) => Err(io::Error::new(error.kind(), unwritable(path, error))),
        }
    }

    /// Returns why the time limit has passed before the stream was open, if that is so.
    pub fn too_late(&self) -> Option<String> {
        match &self.sink {
            Sink::File(path, Err(error)) if error.kind() == io::ErrorKind::TimedOut => {
                Some(unwritable(path, error))
            }
            _ => None,
        }
    }

    /// Returns kickstart's own stream of this number.
    fn inherited<'a>(&self, context: &Context<'a>) -> BorrowedFd<'a> {
        if self.number == 1 {
            context.stdout
        } else {
            context.stderr
        }
    }

    /// Adds a line as if a job had written it.
    pub fn write_line(&self, line: &str) {
        if let Sink::Capture(Capture { file, .. }) | Sink::File(_, Ok(file)) = &self.sink {
            let mut file = file;
            // The message goes to kickstart's standard error, too.
            let _ = writeln!(file, "{line}");
        }
    }

    /// Makes the entry of the record, with captured text if `limit` is given.
    pub fn finish(
        self,
        context: &Context<'_>,
        Places {
            directory,
            temporary,
            cache,
            ..
        }: Places<'_>,
        limit: Option<Option<usize>>,
        names: &mut Names,
    ) -> FileEntry<'static> {
        let key = self.key.as_bytes();
        match self.sink {
            Sink::Capture(capture) => {
                let Capture { file, name } = &capture;
                let status = file.metadata();
                let mut entry = stat::temporary(key, name, file, status.as_ref(), names);
                let size = status.map_or(0, |status| status.len());
                entry.payload = limit.and_then(|limit| payload::read(file, size, limit).ok().flatten());
                if self.reusable.get() {
                    cache.keep_capture(temporary, &self.key[3..], capture);
                }
                entry
            }
            Sink::Inherit => stat::descriptor(key, self.number, self.inherited(context), names),
            Sink::File(path, _) => stat::named(key, &path, directory, names),
        }
    }
}

fn unwritable(path: &Path, error: &io::Error) -> String {
    format!("cannot write {}: {error}", path.display())
}

fn capture(stream: &'static str, places: Places<'_>) -> io::Result<Capture> {
    if places.in_memory
        && let Ok(capture) = temporary::capture_in_memory(stream)
    {
        return Ok(capture);
    }
    places.cache.capture(places.temporary, stream)
}

fn open_file(path: &Path, existing: Existing, waiting: &mut Waiting<'_>) -> io::Result<File> {
    if existing == Existing::Preserve {
        preserve(path)?;
    }
    let mut options = OpenOptions::new();
    let file = pipes::open_output(path, options.append(true).create(true), waiting)?;
    // Truncate once, then append: the output of one job must not overwrite that of another.
    if existing == Existing::Truncate && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Renames an existing file to the first free name of `path.000` to `path.999`.
fn preserve(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    for number in 0..1000 {
        let name = pmc_files::with_suffix(path, format!(".{number:03}"));
        if fs::symlink_metadata(&name).is_err() {
            return fs::rename(path, name);
        }
    }
    Err(io::Error::other("all names from .000 to .999 are taken"))
}

/// Opens the standard input of a job.
///
/// # Errors
/// The file cannot be read.
pub fn input(
    spec: &Input,
    context: &Context<'_>,
    directory: &Path,
    waiting: &mut Waiting<'_>,
) -> io::Result<OwnedFd> {
    match spec {
        Input::Null => context.cache.null()?.file.as_fd().try_clone_to_owned(),
        Input::Inherit => context.stdin.try_clone_to_owned(),
        Input::File(path) => pipes::open_input(&directory.join(path), waiting)
            .map(OwnedFd::from)
            .map_err(|error| {
                io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
            }),
    }
}

/// Makes the record's entry of the standard input.
pub fn input_entry(
    spec: &Input,
    context: &Context<'_>,
    directory: &Path,
    names: &mut Names,
) -> FileEntry<'static> {
    match spec {
        Input::Null => match context.cache.null() {
            Ok(null) => stat::open(b"stdin", &null.name, &null.file, names),
            Err(_) => stat::named(b"stdin", Path::new(NullDevice::PATH), directory, names),
        },
        Input::Inherit => stat::descriptor(b"stdin", 0, context.stdin, names),
        Input::File(path) => stat::named(b"stdin", path, directory, names),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn existing_files_are_truncated_appended_to_or_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        let write = |existing, text: &str| {
            pipes::within(Duration::ZERO, |waiting| open_file(&file, existing, waiting))
                .unwrap()
                .write_all(text.as_bytes())
                .unwrap();
            fs::read_to_string(&file).unwrap()
        };
        assert_eq!(write(Existing::Truncate, "a"), "a");
        assert_eq!(write(Existing::Append, "b"), "ab");
        assert_eq!(write(Existing::Preserve, "c"), "c");
        assert_eq!(write(Existing::Preserve, "d"), "d");
        assert_eq!(fs::read_to_string(folder.path().join("f.000")).unwrap(), "ab");
        assert_eq!(fs::read_to_string(folder.path().join("f.001")).unwrap(), "c");
        assert_eq!(write(Existing::Truncate, "e"), "e");
    }
}
