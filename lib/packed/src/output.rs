//! The output of an attempt, wherever it is.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use crate::packs::{Packed, Packs, PacksError, Stream};

/// A stream of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Standard output, and the records of the attempt.
    Out,
    /// Standard error.
    Err,
}

impl Channel {
    fn suffix(self) -> &'static str {
        match self {
            Self::Out => "out",
            Self::Err => "err",
        }
    }
}

/// Returns the file of a stream relative to the submit directory, if it has one: `TASK.out.NNN`.
#[must_use]
pub fn relative_file(task: &[u8], channel: Channel, number: u32) -> PathBuf {
    let mut name = task.to_vec();
    name.extend_from_slice(format!(".{}.{number:03}", channel.suffix()).as_bytes());
    OsString::from_vec(name).into()
}

/// The output of the attempts in a submit directory: in files, or in packs.
#[derive(Debug)]
pub struct TaskOutput {
    dir: PathBuf,
    packs: Packs,
    /// The packs were read.
    is_read: bool,
}

impl TaskOutput {
    /// The output in a submit directory. Reads nothing yet.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            packs: Packs::new(dir),
            is_read: false,
        }
    }

    /// Opens a stream of an attempt. Attempts count from 0, over all runs of the directory. Sees what was
    /// added since the last call.
    ///
    /// # Errors
    /// The stream cannot be opened; `NotFound` if there is neither a file nor an entry of a pack.
    pub fn open(&mut self, task: &[u8], channel: Channel, number: u32) -> io::Result<Stream> {
        let is_out = channel == Channel::Out;
        if let Some(stream) = self.packs.open(task, number, is_out) {
            return stream;
        }
        let file = pmc_files::open(&self.file(task, channel, number));
        match file {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A pack may have grown.
                self.refresh()
                    .map_err(|error| io::Error::other(error.to_string()))?;
                self.packs.open(task, number, is_out).unwrap_or(Err(error))
            }
            file => file.map(Stream::from),
        }
    }

    /// Returns the file or the pack with the standard output of an attempt, if there is one.
    #[must_use]
    pub fn place(&self, task: &[u8], number: u32) -> Option<PathBuf> {
        if let Some(pack) = self.pack(task, number) {
            return Some(pack.to_owned());
        }
        Some(self.file(task, Channel::Out, number)).filter(|file| file.exists())
    }

    /// Returns the pack with an attempt, as of the last reading.
    #[must_use]
    pub fn pack(&self, task: &[u8], number: u32) -> Option<&Path> {
        self.packs.path(task, number)
    }

    /// Returns the number of the latest attempt of a task with output. Packs that cannot be read count as
    /// empty.
    pub fn last(&mut self, task: &[u8]) -> Option<u32> {
        if !self.is_read {
            let _ = self.refresh();
        }
        let packed = self.packs.last(task);
        let exists = |number: &u32| self.file(task, Channel::Out, *number).exists();
        let from = packed.map_or(0, |last| last.saturating_add(1));
        (from..u32::MAX).take_while(exists).last().or(packed)
    }

    /// Forgets an attempt that will not be asked for again, so that memory does not grow with the run.
    pub fn forget(&mut self, task: &[u8], number: u32) {
        self.packs.forget(task, number);
    }

    /// Reads what was added to the packs.
    ///
    /// # Errors
    /// An index cannot be read.
    pub fn refresh(&mut self) -> Result<(), PacksError> {
        self.is_read = true;
        self.packs.refresh()
    }

    /// The attempts in packs, by name of the task and number, as of the last [`refresh`](Self::refresh).
    #[must_use]
    pub fn packed(&self) -> Vec<Packed> {
        self.packs.all()
    }

    /// Returns the packs that have bytes of attempts whose writer was killed, and how many bytes. The pack
    /// of a running worker may have some for a moment.
    #[must_use]
    pub fn left_over(&self) -> Vec<(PathBuf, u64)> {
        self.packs.left_over()
    }

    /// Returns the bytes of all packs together. Packs that claim a thousand times of what they take on disk,
    /// and more than 1 GiB, are sparse files, which no run writes: what they have beyond that does not count.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.packs.bytes()
    }

    fn file(&self, task: &[u8], channel: Channel, number: u32) -> PathBuf {
        // `Path::join` would take a name with a leading slash as absolute.
        let mut path = self.dir.as_os_str().as_bytes().to_vec();
        path.push(b'/');
        path.extend_from_slice(relative_file(task, channel, number).as_os_str().as_bytes());
        OsString::from_vec(path).into()
    }
}
