//! Reads packs.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pmc_files::with_suffix;
use rustc_hash::FxHashMap;

use crate::entry::{self, Entry, Extent};
use crate::{INDEX, folder};

/// Maximum length of a line of an index. Names of files, and so those of tasks, are shorter.
const MAX_LINE: u64 = 1 << 16;
/// Maximum bytes of all indexes: those of some ten million attempts.
const MAX_BYTES: u64 = 1 << 30;

/// Attempts of a task from which on they have to come in the order of their numbers. An index that
/// somebody has made takes a time that grows with its length only.
const MAX_UNSORTED: usize = 1 << 10;

/// How many times smaller a file system that compresses can make a pack. Sparse files have no such limit.
const MAX_RATIO: u64 = 1000;
/// Bytes that packs may have whatever they take on disk.
const MAX_FREE: u64 = 1 << 30;

/// Maximum packs that are held open.
const MAX_OPEN: usize = 64;

/// Why packs cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {}", path.display(), pmc_dag::reason(source))]
pub struct PacksError {
    /// File or folder.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Where the output of an attempt is.
#[derive(Clone, Copy, Debug)]
struct Place {
    number: u32,
    pack: usize,
    start_ms: u64,
    /// First byte of standard output. Standard error follows.
    data: u64,
    out: Extent,
    err: Extent,
}

/// A pack that is read.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    /// Bytes of the index that were read: complete lines.
    read: u64,
    /// Where the last known entry ends.
    end: u64,
    /// Bytes before it that belong to no known entry.
    gaps: u64,
}

/// The packs of a folder. What is appended to them is seen after [`refresh`](Self::refresh).
#[derive(Debug)]
pub(crate) struct Packs {
    folder: PathBuf,
    sources: Vec<Source>,
    known: FxHashMap<OsString, usize>,
    /// By task; those of a task by number.
    places: FxHashMap<Box<[u8]>, Vec<Place>>,
    open: FxHashMap<usize, Arc<File>>,
}

/// An attempt in a pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Name of the task.
    pub task: Vec<u8>,
    /// The number that the names of its files would have.
    pub number: u32,
}

impl Packs {
    /// The packs of the DAGs in a folder. Reads nothing yet.
    pub(crate) fn new(beside: &Path) -> Self {
        Self {
            folder: folder(beside),
            sources: Vec::new(),
            known: FxHashMap::default(),
            places: FxHashMap::default(),
            open: FxHashMap::default(),
        }
    }

    /// Reads what was added to the indexes.
    pub(crate) fn refresh(&mut self) -> Result<(), PacksError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| PacksError { path, source }
        };
        let entries = match self.folder.read_dir() {
            Ok(entries) => entries,
            // There are no packs. A file with this name has another purpose.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(());
            }
            Err(error) => return Err(failed(&self.folder)(error)),
        };
        let mut new = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed(&self.folder))?.file_name();
            if name.as_encoded_bytes().ends_with(INDEX.as_bytes()) && !self.known.contains_key(&name) {
                new.push(name);
            }
        }
        new.sort();
        for name in new {
            let path = self.folder.join(&name).with_extension("");
            self.known.insert(name, self.sources.len());
            self.sources.push(Source {
                path,
                read: 0,
                end: 0,
                gaps: 0,
            });
        }
        (0..self.sources.len()).try_for_each(|pack| {
            let index = with_suffix(&self.sources[pack].path, INDEX);
            self.read_index(pack, &index).map_err(failed(&index))
        })
    }

    fn read_index(&mut self, pack: usize, path: &Path) -> io::Result<()> {
        let length = fs::metadata(path)?.len();
        if length <= self.sources[pack].read {
            return Ok(());
        }
        let read: u64 = self.sources.iter().map(|source| source.read).sum();
        if read.saturating_add(length - self.sources[pack].read) > MAX_BYTES {
            return Err(damaged(
                "is larger than 1 GiB with the indexes before it, and so no index of a pack",
            ));
        }
        let mut file = pmc_files::open(path)?;
        file.seek(SeekFrom::Start(self.sources[pack].read))?;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut line = Vec::new();
        loop {
            line.clear();
            (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line)?;
            let is_complete = line.last() == Some(&b'\n');
            if !is_complete && (line.len() as u64) < MAX_LINE {
                // The rest is not written yet.
                return Ok(());
            }
            self.sources[pack].read += line.len() as u64;
            if is_complete && let Some(entry) = entry::read(&line[..line.len() - 1]) {
                self.add(pack, line.len() as u64, entry);
            }
        }
    }

    fn add(&mut self, pack: usize, line: u64, entry: Entry) {
        let source = &mut self.sources[pack];
        source.gaps += entry.offset.saturating_sub(source.end);
        let data = entry.offset + line;
        source.end = data + entry.out.len + entry.err.len;
        let place = Place {
            number: entry.number,
            pack,
            start_ms: entry.start_ms,
            data,
            out: entry.out,
            err: entry.err,
        };
        let places = self.places.entry(entry.task.into()).or_default();
        match places.binary_search_by_key(&place.number, |other| other.number) {
            // Runs that know nothing of each other have given the number twice.
            Ok(at) if places[at].start_ms <= place.start_ms => places[at] = place,
            Ok(_) => {}
            // Numbers grow, but for those of other packs.
            Err(at) if at == places.len() || places.len() < MAX_UNSORTED => places.insert(at, place),
            Err(_) => {}
        }
    }

    /// Returns the path of the pack with an attempt.
    pub(crate) fn path(&self, task: &[u8], number: u32) -> Option<&Path> {
        Some(&self.sources[self.place(task, number)?.pack].path)
    }

    /// Returns the highest known number of an attempt of a task.
    pub(crate) fn last(&self, task: &[u8]) -> Option<u32> {
        self.places.get(task)?.last().map(|place| place.number)
    }

    /// Forgets an attempt.
    pub(crate) fn forget(&mut self, task: &[u8], number: u32) {
        if let Some(places) = self.places.get_mut(task) {
            places.retain(|place| place.number != number);
            if places.is_empty() {
                self.places.remove(task);
            }
        }
    }

    /// All known attempts, by name of the task and number.
    pub(crate) fn all(&self) -> Vec<Packed> {
        let packed = |(task, place): (&[u8], &Place)| Packed {
            task: task.to_vec(),
            number: place.number,
        };
        let places = self.places.iter();
        let places = places.flat_map(|(task, places)| places.iter().map(move |place| (&**task, place)));
        let mut all: Vec<_> = places.map(packed).collect();
        all.sort_unstable_by(|a, b| (&a.task, a.number).cmp(&(&b.task, b.number)));
        all
    }

    /// The packs with bytes that belong to no known attempt, and how many.
    pub(crate) fn left_over(&self) -> Vec<(PathBuf, u64)> {
        let left = |source: &Source| {
            let length = fs::metadata(&source.path).map_or(0, |data| data.len());
            source.gaps + length.saturating_sub(source.end)
        };
        let sources = self
            .sources
            .iter()
            .map(|source| (source.path.clone(), left(source)));
        sources.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Bytes of all packs together, at most [`MAX_FREE`] and [`MAX_RATIO`] times what they take on disk.
    pub(crate) fn bytes(&self) -> u64 {
        let packs = self.sources.iter().map(|source| fs::metadata(&source.path));
        let (mut length, mut on_disk) = (0_u64, 0_u64);
        for data in packs.flatten() {
            length = length.saturating_add(data.len());
            on_disk = on_disk.saturating_add(data.blocks().saturating_mul(512));
        }
        length.min(on_disk.saturating_mul(MAX_RATIO).saturating_add(MAX_FREE))
    }

    fn place(&self, task: &[u8], number: u32) -> Option<&Place> {
        let places = self.places.get(task)?;
        let at = places.binary_search_by_key(&number, |place| place.number);
        places.get(at.ok()?)
    }

    /// Opens a stream of an attempt: standard output, or else standard error. `None` if the attempt is not
    /// known.
    pub(crate) fn open(&mut self, task: &[u8], number: u32, is_out: bool) -> Option<io::Result<Stream>> {
        let place = *self.place(task, number)?;
        let (start, extent) = match is_out {
            true => (place.data, place.out),
            false => (place.data + place.out.len, place.err),
        };
        Some(self.file(place.pack).map(|file| {
            Stream(Inner::Packed(Section {
                file,
                start,
                extent,
                at: 0,
                crc: Some(crc32fast::Hasher::new()),
            }))
        }))
    }

    fn file(&mut self, pack: usize) -> io::Result<Arc<File>> {
        if let Some(file) = self.open.get(&pack) {
            return Ok(Arc::clone(file));
        }
        if self.open.len() >= MAX_OPEN {
            self.open.clear();
        }
        let file = Arc::new(pmc_files::open(&self.sources[pack].path)?);
        self.open.insert(pack, Arc::clone(&file));
        Ok(file)
    }
}

/// Standard output or error of an attempt.
#[derive(Debug)]
pub struct Stream(Inner);

#[derive(Debug)]
enum Inner {
    File(File),
    Packed(Section),
}

/// A part of a pack.
#[derive(Debug)]
struct Section {
    file: Arc<File>,
    start: u64,
    extent: Extent,
    /// Bytes before the next one to read.
    at: u64,
    /// Checksum of the bytes so far; `None` if not all of them were read.
    crc: Option<crc32fast::Hasher>,
}

impl Stream {
    /// Length in bytes.
    ///
    /// # Errors
    /// The system does not say it.
    pub fn size(&self) -> io::Result<u64> {
        match &self.0 {
            Inner::File(file) => Ok(file.metadata()?.len()),
            Inner::Packed(section) => Ok(section.extent.len),
        }
    }
}

impl From<File> for Stream {
    fn from(file: File) -> Self {
        Self(Inner::File(file))
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::File(file) => file.read(buffer),
            Inner::Packed(section) => section.read(buffer),
        }
    }
}

impl Seek for Stream {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match &mut self.0 {
            Inner::File(file) => file.seek(to),
            Inner::Packed(section) => section.seek(to),
        }
    }
}

impl Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.extent.len.saturating_sub(self.at);
        let size = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        if size == 0 {
            return Ok(0);
        }
        let read = self.file.read_at(&mut buffer[..size], self.start + self.at)?;
        if read == 0 {
            return Err(damaged("the pack is shorter than its index says"));
        }
        self.at += read as u64;
        if let Some(crc) = &mut self.crc {
            crc.update(&buffer[..read]);
            if self.at == self.extent.len
                && self
                    .crc
                    .take()
                    .is_some_and(|crc| crc.finalize() != self.extent.crc)
            {
                return Err(damaged("the pack is damaged here: the checksum does not match"));
            }
        }
        Ok(read)
    }

    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.extent.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let before = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the start");
        let target = target.ok_or_else(before)?;
        if target != self.at {
            self.crc = None;
        }
        self.at = target;
        Ok(target)
    }
}

fn damaged(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}
