//! The standard streams of the jobs. All jobs of an invocation share them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use monitord_compat::invocation_record::FileEntry;

use crate::context::Context;
use crate::options::{Existing, Input, Output};
use crate::payload;
use crate::spares::{Null, Spares};
use crate::spawn::Handle;
use crate::stat::{self, Names};
use crate::temporary::Capture;

/// Where a job's output goes.
#[derive(Debug)]
enum Sink {
    /// A temporary file.
    Capture(Capture),
    /// Kickstart's own stream.
    Inherit,
    /// A file, or why there is none: then no job can be started.
    File(PathBuf, Result<File, io::Error>),
}

/// One of the two output streams.
#[derive(Debug)]
pub struct Stream {
    key: &'static str,
    number: i32,
    sink: Sink,
    writer: Writer,
}

/// Who writes to the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// Processes of the job.
    Processes,
    /// This process, above all.
    Own,
}

/// What the output streams are made of.
#[derive(Clone, Copy, Debug)]
pub struct Places<'a> {
    /// The directory of the job.
    pub directory: &'a Path,
    /// Directories for temporary files.
    pub temporary: &'a [PathBuf],
    /// Files to use again.
    pub spares: &'a Spares,
    /// Who will write.
    pub writer: Writer,
}

impl Stream {
    /// The standard output that `spec` asks for.
    pub fn stdout(spec: &Output, places: Places<'_>) -> io::Result<Self> {
        Self::open("stdout", 1, spec, places)
    }

    /// The standard error that `spec` asks for.
    pub fn stderr(spec: &Output, places: Places<'_>) -> io::Result<Self> {
        Self::open("stderr", 2, spec, places)
    }

    fn open(key: &'static str, number: i32, spec: &Output, places: Places<'_>) -> io::Result<Self> {
        let Places {
            temporary,
            spares,
            writer,
            ..
        } = places;
        let sink = match (spec, writer) {
            (Output::Capture, Writer::Processes) => Sink::Capture(spares.capture(temporary, &key[3..])?),
            (Output::Capture, Writer::Own) => Sink::Capture(spares.own_capture(temporary, &key[3..])?),
            (Output::Inherit, _) => Sink::Inherit,
            (Output::File { path, existing }, _) => {
                Sink::File(path.clone(), open_file(&places.directory.join(path), *existing))
            }
        };
        Ok(Self {
            key,
            number,
            sink,
            writer,
        })
    }

    /// The stream for a child.
    pub fn for_child(&self, context: &Context<'_>) -> io::Result<Handle<'static>> {
        let own = match &self.sink {
            Sink::Capture(capture) => context.spares.open(capture),
            Sink::Inherit | Sink::File(..) => self.lent(context)?.try_clone_to_owned(),
        };
        own.map(Handle::Own)
    }

    /// The stream for a part of this process.
    pub fn lent<'a>(&'a self, context: &Context<'a>) -> io::Result<BorrowedFd<'a>> {
        match &self.sink {
            Sink::Capture(capture) => Ok(capture.file.as_fd()),
            Sink::Inherit if self.number == 1 => Ok(context.stdout),
            Sink::Inherit => Ok(context.stderr),
            Sink::File(_, Ok(file)) => Ok(file.as_fd()),
            Sink::File(path, Err(error)) => Err(io::Error::new(
                error.kind(),
                format!("cannot write {}: {error}", path.display()),
            )),
        }
    }

    /// Adds a line as if a job had written it.
    pub fn write_line(&self, line: &str) {
        if let Sink::Capture(Capture { file, .. }) | Sink::File(_, Ok(file)) = &self.sink {
            // There is nobody left to tell.
            let mut file = file;
            let _ = writeln!(file, "{line}");
        }
    }

    /// The entry of the record; with the text captured if `limit` is given. A later invocation may have the
    /// temporary file.
    pub fn finish(
        self,
        context: &Context<'_>,
        directory: &Path,
        temporary: &Rc<[PathBuf]>,
        limit: Option<Option<usize>>,
        names: &mut Names,
    ) -> FileEntry<'static> {
        let key = self.key.as_bytes();
        match self.sink {
            Sink::Capture(capture) => {
                let state = context.spares.look(&capture.file);
                let mut entry = stat::temporary(key, &capture.name, &capture.file, state.status(), names);
                entry.payload =
                    limit.and_then(|limit| payload::read(&capture.file, state.size(), limit).ok().flatten());
                let spares = context.spares;
                match self.writer {
                    Writer::Processes => spares.keep_capture(temporary, &self.key[3..], capture, &state),
                    Writer::Own => spares.keep_own_capture(&self.key[3..], capture, &state),
                }
                entry
            }
            Sink::Inherit => {
                let own = if self.number == 1 {
                    context.stdout
                } else {
                    context.stderr
                };
                stat::descriptor(key, self.number, own, names)
            }
            Sink::File(path, _) => stat::named(key, &path, directory, names),
        }
    }
}

fn open_file(path: &Path, existing: Existing) -> io::Result<File> {
    match existing {
        Existing::Truncate => {
            // Emptied now, appended to by each job: output of one job must not overwrite that of another.
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(path)?;
        }
        Existing::Append => {}
        Existing::Preserve => preserve(path)?,
    }
    OpenOptions::new().append(true).create(true).open(path)
}

/// Renames an existing file to the first of `path.000` to `path.999` that is free.
fn preserve(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    for number in 0..1000 {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{number:03}"));
        if fs::symlink_metadata(&name).is_err() {
            return fs::rename(path, name);
        }
    }
    Err(io::Error::other("all of the names .000 to .999 are taken"))
}

/// The standard input for a child.
pub fn input<'a>(spec: &Input, context: &Context<'a>, directory: &Path) -> io::Result<Handle<'a>> {
    match spec {
        Input::Null => Ok(Handle::Lent(context.spares.null()?.file.as_fd())),
        Input::Inherit => context.stdin.try_clone_to_owned().map(Handle::Own),
        Input::File(path) => match File::open(directory.join(path)) {
            Ok(file) => Ok(Handle::Own(file.into())),
            Err(error) => Err(io::Error::new(
                error.kind(),
                format!("cannot read {}: {error}", path.display()),
            )),
        },
    }
}

/// The entry of the record for the standard input.
pub fn input_entry(
    spec: &Input,
    context: &Context<'_>,
    directory: &Path,
    names: &mut Names,
) -> FileEntry<'static> {
    match spec {
        Input::Null => match context.spares.null() {
            Ok(null) => stat::open(b"stdin", &null.name, &null.file, names),
            Err(_) => stat::named(b"stdin", Path::new(Null::FILE), directory, names),
        },
        Input::Inherit => stat::descriptor(b"stdin", 0, context.stdin, names),
        Input::File(path) => stat::named(b"stdin", path, directory, names),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_files_are_emptied_kept_or_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        let write = |existing, text: &str| {
            open_file(&file, existing)
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
