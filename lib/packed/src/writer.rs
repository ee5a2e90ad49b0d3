//! Writes a pack.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use pmc_files::{OFlags, with_suffix};

use crate::entry::{self, Attempt, Extent};
use crate::{INDEX, folder};

/// Mode of the files, before the umask.
const FILE_MODE: u32 = 0o644;
/// Maximum bytes of an attempt that are written with one call. Larger ones are copied in parts of this size.
const PART_SIZE: usize = 1 << 20;
/// Packs of other processes that are passed by.
const MAX_LOCKED: u32 = 1000;

/// A pack that is written, with its index.
#[derive(Debug)]
pub struct Pack {
    path: PathBuf,
    file: File,
    index: File,
    /// Bytes at the end that belong to no attempt, when the pack was opened.
    left_over: u64,
    buffer: Vec<u8>,
}

impl Pack {
    /// Opens the pack of worker `rank` of a DAG file, or makes it. Another process that has the same rank,
    /// such as that of an agent that was cut off, keeps its own.
    ///
    /// # Errors
    /// The file that cannot be made or opened.
    pub fn open(dag: &Path, rank: u32) -> Result<Self, (PathBuf, io::Error)> {
        let beside = match dag.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let folder = folder(beside);
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err((folder, error)),
            _ => {}
        }
        let path = folder.join(dag.file_name().unwrap_or_default());
        let mut candidates = (0..MAX_LOCKED).map(|other| match other {
            0 => with_suffix(&path, format!(".{rank}")),
            _ => with_suffix(&path, format!(".{rank}-{other}")),
        });
        let opened = candidates.find_map(|path| match Self::open_path(&path) {
            Ok(None) => None,
            Ok(Some(pack)) => Some(Ok(pack)),
            Err(error) => Some(Err((path, error))),
        });
        let in_use = || {
            let error = io::Error::new(
                io::ErrorKind::ResourceBusy,
                "other processes write all packs of this worker",
            );
            Err((path, error))
        };
        opened.unwrap_or_else(in_use)
    }

    /// `None` if another process writes the pack.
    fn open_path(path: &Path) -> io::Result<Option<Self>> {
        let open = |path: &Path| {
            let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
            pmc_files::open_for_writing(path, flags, FILE_MODE)
        };
        let file = open(path)?;
        // Without locks in this file system, the lock of the run must do.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return Ok(None);
        }
        let mut index = open(&with_suffix(path, INDEX))?;
        let complete = end_of_last(&mut index)?;
        let length = file.metadata()?.len();
        Ok(Some(Self {
            path: path.to_owned(),
            file,
            index,
            left_over: length.saturating_sub(complete),
            buffer: Vec::new(),
        }))
    }

    /// Path of the pack.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of bytes that a killed writer has left at the end, unfinished. Readers skip them.
    #[must_use]
    pub fn left_over(&self) -> u64 {
        self.left_over
    }

    /// Appends the output of an attempt: what the files `out` and `err` hold, read from their beginning, and
    /// `record` after standard output. When this returns, readers see it.
    ///
    /// # Errors
    /// A file cannot be read or written. Readers do not see the attempt; the next one can be appended.
    pub fn append(&mut self, attempt: Attempt<'_>, out: &File, record: &[u8], err: &File) -> io::Result<()> {
        let (out_len, err_len) = (out.metadata()?.len(), err.metadata()?.len());
        let offset = self.file.seek(SeekFrom::End(0))?;
        let is_small = (out_len.saturating_add(err_len)) <= PART_SIZE as u64;
        let mut line = Vec::with_capacity(128 + attempt.task.len());
        self.buffer.clear();
        if is_small {
            // Both are at most the size of a part.
            let [out_len, err_len] = [out_len, err_len].map(|len| usize::try_from(len).unwrap_or(PART_SIZE));
            self.buffer.resize(out_len + record.len() + err_len, 0);
            let (out_bytes, err_bytes) = self.buffer.split_at_mut(out_len + record.len());
            out.read_exact_at(&mut out_bytes[..out_len], 0)?;
            out_bytes[out_len..].copy_from_slice(record);
            err.read_exact_at(err_bytes, 0)?;
            let extent = |bytes: &[u8]| Extent {
                len: bytes.len() as u64,
                crc: crc32fast::hash(bytes),
            };
            entry::write(&mut line, offset, attempt, extent(out_bytes), extent(err_bytes));
            self.buffer.splice(0..0, line.iter().copied());
            self.file.write_all(&self.buffer)?;
        } else {
            let mut out_extent = self.each_part(out, out_len, |_, _| Ok(()))?;
            let mut crc = crc32fast::Hasher::new_with_initial(out_extent.crc);
            crc.update(record);
            out_extent = Extent {
                len: out_extent.len + record.len() as u64,
                crc: crc.finalize(),
            };
            let err_extent = self.each_part(err, err_len, |_, _| Ok(()))?;
            entry::write(&mut line, offset, attempt, out_extent, err_extent);
            self.file.write_all(&line)?;
            self.each_part(out, out_len, |mut pack, part| pack.write_all(part))?;
            self.file.write_all(record)?;
            self.each_part(err, err_len, |mut pack, part| pack.write_all(part))?;
            self.buffer = Vec::new();
        }
        // The disk may have been full in the middle of the last line.
        end_torn_line(&mut self.index)?;
        self.index.write_all(&line)
    }

    /// Calls `take` with the first `len` bytes of a file, in parts. Returns their checksum.
    fn each_part(
        &mut self,
        from: &File,
        len: u64,
        take: impl Fn(&File, &[u8]) -> io::Result<()>,
    ) -> io::Result<Extent> {
        self.buffer.resize(PART_SIZE, 0);
        let mut crc = crc32fast::Hasher::new();
        let mut at = 0;
        while at < len {
            let size = usize::try_from(len - at).map_or(PART_SIZE, |left| left.min(PART_SIZE));
            let part = &mut self.buffer[..size];
            // What the task left behind may still write, but a file that got shorter is an error.
            from.read_exact_at(part, at)?;
            crc.update(part);
            take(&self.file, part)?;
            at += size as u64;
        }
        Ok(Extent {
            len,
            crc: crc.finalize(),
        })
    }
}

/// Ends the last line of an index if it is torn: readers skip it, and the next line begins behind it.
fn end_torn_line(index: &mut File) -> io::Result<()> {
    let length = index.seek(SeekFrom::End(0))?;
    let mut last = [b'\n'];
    if let Some(at) = length.checked_sub(1) {
        index.read_exact_at(&mut last, at)?;
    }
    match last {
        [b'\n'] => Ok(()),
        _ => index.write_all(b"\n"),
    }
}

/// Ends the last line of an index if it is torn. Returns where the last entry of the pack ends.
fn end_of_last(index: &mut File) -> io::Result<u64> {
    /// Lines are shorter, but for unusual names of tasks: then the end counts as unknown.
    const MAX_LINE: u64 = 1 << 16;
    end_torn_line(index)?;
    let length = index.seek(SeekFrom::End(0))?;
    index.seek(SeekFrom::Start(length.saturating_sub(MAX_LINE)))?;
    let mut tail = Vec::new();
    index.read_to_end(&mut tail)?;
    let lines = tail.split(|byte| *byte == b'\n').rev();
    let last = lines
        .filter_map(|line| Some((line.len() as u64 + 1, entry::read(line)?)))
        .next();
    Ok(last.map_or(0, |(line, entry)| {
        entry.offset + line + entry.out.len + entry.err.len
    }))
}
