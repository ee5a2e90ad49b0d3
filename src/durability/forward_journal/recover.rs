//! Recovery: the next run completes the journal of a run that was killed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use pmc_dag::{Dag, TaskId};
use pmc_files::OFlags;
use pmc_system::disk;
use rustc_hash::{FxHashMap, FxHashSet};

use super::format::{self, Begin, Content};
use super::{JournalError, path_for};
use crate::durability::lock::lock_if_possible;
use crate::host::running_system;
use crate::options::{folder, with_suffix};

/// Unit in which a file system may lose data but keep the length of the file.
const BLOCK: usize = 4096;

/// Bytes of a target that are compared at once: a number of blocks.
const SPAN: usize = 64 * BLOCK;

/// Result of a recovery.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Tasks that are done, even if the rescue file does not name them.
    pub done: Vec<TaskId>,
    /// Tasks whose lines were removed from the rescue file. It must be read again.
    pub not_done: Vec<TaskId>,
    path: PathBuf,
}

impl Recovered {
    /// Removes the journal. The rescue file must name the tasks that are done.
    ///
    /// # Errors
    /// The journal cannot be removed.
    pub fn remove_journal(self) -> Result<(), JournalError> {
        disk::remove_file(&self.path).map_err(|source| JournalError::Write {
            path: self.path,
            source,
        })
    }
}

/// Completes the targets of the journal of a rescue file, and corrects the rescue file. Returns `None` if
/// there is no journal.
///
/// # Errors
/// The journal cannot be read or belongs to a live run, or a file cannot be corrected. Recovery can be
/// repeated.
pub fn recover(rescue: &Path, dag: &Dag) -> Result<Option<Recovered>, JournalError> {
    let path = path_for(rescue);
    let read_error = |source| JournalError::Read {
        path: path.clone(),
        source,
    };
    let mut journal;
    let bytes = match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(read_error(error)),
        Ok(data) if !data.is_file() => return Err(read_error(io::Error::other("Not a regular file"))),
        Ok(_) => {
            // Locked until the end, so that only one run recovers.
            journal = pmc_files::open_for_writing(&path, OFlags::RDWR, 0).map_err(read_error)?;
            if !lock_if_possible(&journal) {
                return Err(JournalError::InUse { path });
            }
            read_whole(&mut journal).map_err(read_error)?
        }
    };
    let content = format::decode(&bytes).map_err(|error| read_error(io::Error::other(error)))?;
    tracing::info!(
        "The last run was killed: completing what {} tasks forwarded at its end",
        content.records.len()
    );
    let targets = targets(&content);
    for target in targets.values() {
        target.complete()?;
    }
    let rescue_error = |source| JournalError::Rescue {
        path: rescue.to_owned(),
        source,
    };
    let entered: FxHashSet<TaskId> = content
        .records
        .iter()
        .filter_map(|record| dag.find(record.task))
        .collect();
    let mut recovered = Recovered {
        path,
        ..Recovered::default()
    };
    match pmc_dag::rescue::text(rescue, dag) {
        Ok(text) if content.begin.rescue_len == 0 || !text.trim_ascii().is_empty() => {
            if let Some(tail) = doubtful_from(&content.begin, &text) {
                recovered.not_done = correct(rescue, &text, tail, dag, &entered).map_err(rescue_error)?;
            }
            recovered.done = entered.into_iter().collect();
            recovered.done.sort_unstable_by_key(|task| task.0);
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(rescue_error(error)),
        _ => tracing::warn!(
            "The rescue file of the run that was killed is not there: its tasks run again, and forward their \
             data again"
        ),
    }
    Ok(Some(recovered))
}

/// Returns where lines of the rescue file begin whose record in the journal may have been lost.
fn doubtful_from(begin: &Begin, text: &[u8]) -> Option<usize> {
    if begin.system != 0 && begin.system == running_system() {
        return None;
    }
    let tail = usize::try_from(begin.rescue_len).ok()?;
    let is_unchanged = format::tail_checksum(text.get(..tail)?) == begin.rescue_tail;
    is_unchanged.then_some(tail)
}

/// Removes the lines of tasks that are in the rescue file, but not in the journal: the machine failed before
/// their data was on the disk. Returns these tasks.
fn correct(
    rescue: &Path,
    text: &[u8],
    tail: usize,
    dag: &Dag,
    entered: &FxHashSet<TaskId>,
) -> io::Result<Vec<TaskId>> {
    let task_of = |line: &[u8]| dag.find(line.trim_ascii().strip_prefix(b"DONE ")?.trim_ascii());
    let certain: FxHashSet<TaskId> = text[..tail].split(|b| *b == b'\n').filter_map(task_of).collect();
    let is_lost = |line: &[u8]| {
        task_of(line).filter(|task| {
            let line = dag.task(*task);
            let forwards = !line.pipe_forwards.is_empty() || !line.file_forwards.is_empty();
            forwards && !entered.contains(task) && !certain.contains(task)
        })
    };
    let mut lost = Vec::new();
    let mut kept = text[..tail].to_vec();
    // The part after this length begins with the line feed of its first record.
    for (number, line) in text[tail..].split(|b| *b == b'\n').enumerate() {
        if let Some(task) = is_lost(line) {
            lost.push(task);
            continue;
        }
        if number > 0 {
            kept.push(b'\n');
        }
        kept.extend_from_slice(line);
    }
    if lost.is_empty() {
        return Ok(lost);
    }
    for task in &lost {
        tracing::warn!(
            "Task {} runs again: the machine failed before its forwarded data was safe",
            String::from_utf8_lossy(dag.name(*task))
        );
    }
    let new = with_suffix(rescue, ".new");
    let file = pmc_files::create_anew(&new)?;
    file.set_permissions(fs::metadata(rescue)?.permissions())?;
    disk::write_all(&file, &kept)?;
    disk::sync_data(&file)?;
    disk::rename(&new, rescue)?;
    disk::sync_folder(folder(rescue))?;
    Ok(lost)
}

/// A target with its data in the journal.
struct Target<'a> {
    path: PathBuf,
    /// The file at `path`, if there is one.
    file: Option<File>,
    start: u64,
    end: u64,
    data: Vec<&'a [u8]>,
    /// False if the journal shows that other programs have written to it.
    is_own: bool,
}

#[derive(PartialEq, Eq, Hash, Clone)]
enum Identity {
    File(u64, u64),
    Missing(Vec<u8>),
}

/// Collects the pieces of each target. Two names of one file are one target.
fn targets<'a>(content: &Content<'a>) -> FxHashMap<Identity, Target<'a>> {
    let mut by_name: FxHashMap<&[u8], Identity> = FxHashMap::default();
    let mut targets: FxHashMap<Identity, Target<'_>> = FxHashMap::default();
    for piece in content.records.iter().flat_map(|record| &record.pieces) {
        let identity = by_name.entry(piece.target).or_insert_with(|| {
            let path = Path::new(std::ffi::OsStr::from_bytes(piece.target));
            let (identity, file, is_usable) = inspect(path);
            targets.entry(identity.clone()).or_insert_with(|| Target {
                path: path.to_owned(),
                file,
                start: piece.at.unwrap_or(0),
                end: piece.at.unwrap_or(0),
                data: Vec::new(),
                is_own: is_usable,
            });
            identity
        });
        let Some(target) = targets.get_mut(identity) else {
            continue;
        };
        if piece.at == Some(target.end) {
            target.end += piece.data.len() as u64;
            target.data.push(piece.data);
        } else {
            target.is_own = false;
        }
    }
    targets
}

/// Opens a target. The last value is true if recovery may write it.
fn inspect(path: &Path) -> (Identity, Option<File>, bool) {
    let by_name = || Identity::Missing(path.as_os_str().as_bytes().to_vec());
    let opened = pmc_files::open_output(path, OFlags::RDWR, 0);
    match opened.and_then(|file| Ok((file.metadata()?, file))) {
        Ok((data, file)) => {
            let is_usable = data.is_file();
            (Identity::File(data.dev(), data.ino()), Some(file), is_usable)
        }
        Err(error) => (by_name(), None, error.kind() == io::ErrorKind::NotFound),
    }
}

impl Target<'_> {
    fn warn_skipped(&self, why: &str) {
        tracing::warn!(
            "Forwarded data in {} is not checked, and may be there twice or in part: {why}",
            self.path.display()
        );
    }

    /// Writes missing data, unless others write to the file.
    fn complete(&self) -> Result<(), JournalError> {
        if !self.is_own {
            self.warn_skipped("others write to it, too");
            return Ok(());
        }
        let done = match &self.file {
            Some(file) => self.complete_in(file),
            None if self.start == 0 => {
                let create = || {
                    fs::create_dir_all(folder(&self.path))?;
                    let mut options = OpenOptions::new();
                    options.read(true).write(true).create_new(true);
                    options.open(&self.path)
                };
                create().and_then(|file| self.complete_in(&file))
            }
            None => {
                self.warn_skipped("the file is not there any more");
                Ok(())
            }
        };
        done.map_err(|source| JournalError::Complete {
            path: self.path.clone(),
            source,
        })
    }

    fn complete_in(&self, file: &File) -> io::Result<()> {
        let len = file.metadata()?.len();
        if len < self.start || len > self.end {
            self.warn_skipped("it is not as long as the last run left it");
            return Ok(());
        }
        let mut is_complete = len == self.end;
        for (at, expected) in self.spans() {
            let mut found = vec![
                0;
                usize::try_from(len.saturating_sub(at))
                    .map_or(SPAN, |left| left.min(expected.len()))
            ];
            file.read_exact_at(&mut found, at)?;
            if !can_be_left_of(&expected, &found, at) {
                self.warn_skipped("others have written to it since");
                return Ok(());
            }
            is_complete &= found == expected;
        }
        if !is_complete {
            let mut at = self.start;
            for data in &self.data {
                disk::write_all_at(file, data, at)?;
                at += data.len() as u64;
            }
            tracing::info!("Completed the forwarded data in {}", self.path.display());
        }
        disk::sync_data(file)
    }

    /// Returns the data in spans that end where a block of the file ends, and where each begins.
    fn spans(&self) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
        let mut pieces = self.data.iter().copied();
        let mut rest: &[u8] = &[];
        let mut at = self.start;
        std::iter::from_fn(move || {
            let mut span = Vec::new();
            let end = SPAN - (at % BLOCK as u64) as usize;
            while span.len() < end {
                if rest.is_empty() {
                    let Some(piece) = pieces.next() else { break };
                    rest = piece;
                }
                let (head, tail) = rest.split_at(rest.len().min(end - span.len()));
                span.extend_from_slice(head);
                rest = tail;
            }
            let begin = at;
            at += span.len() as u64;
            (!span.is_empty()).then_some((begin, span))
        })
    }
}

/// Reads the rest of a file. Without enough memory, that is an error.
fn read_whole(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    bytes.try_reserve_exact(len + 1).map_err(io::Error::other)?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// True if a crash can have left `found` of `expected`: its beginning, with lost blocks. `found` is not
/// longer, and `start` is the offset of both in the file.
fn can_be_left_of(expected: &[u8], found: &[u8], start: u64) -> bool {
    let mut at = 0;
    while at < found.len() {
        let into_block = (start % BLOCK as u64) as usize + at;
        let end = (at + BLOCK - into_block % BLOCK).min(found.len());
        let lost = found[at..end].iter().all(|byte| *byte == 0);
        if found[at..end] != expected[at..end] && !lost {
            return false;
        }
        at = end;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_loses_whole_blocks_and_the_end() {
        const START: u64 = 3 * BLOCK as u64 + 100;
        let expected = vec![b'x'; 3 * BLOCK];
        let first = BLOCK - 100;
        let found = |lost: std::ops::Range<usize>| {
            let mut found = expected.clone();
            found[lost].fill(0);
            found
        };
        let can_be = |found: &[u8]| can_be_left_of(&expected, found, START);
        assert!(can_be(&expected) && can_be(&[]) && can_be(&expected[..BLOCK + 7]));
        for lost in [0..first, first..first + BLOCK, first + BLOCK..first + 2 * BLOCK] {
            assert!(can_be(&found(lost.clone())), "the block at {lost:?}");
        }
        for changed in [0..1, 0..first - 1, first..first + 1, first + 1..first + BLOCK] {
            assert!(!can_be(&found(changed.clone())), "a part of a block: {changed:?}");
        }
        assert!(
            can_be(&found(first..3 * BLOCK)[..first + 9]),
            "lost up to the end"
        );
        let mut other = expected.clone();
        other[2 * BLOCK] = b'y';
        assert!(!can_be(&other) && !can_be(b"y"));
    }

    #[test]
    fn spans_end_where_blocks_end() {
        let data: Vec<u8> = (0..3 * SPAN).map(|at| (at % 251) as u8).collect();
        for start in [0, 1, BLOCK as u64 - 1, BLOCK as u64, 5 * BLOCK as u64 + 17] {
            let (head, rest) = data.split_at(SPAN / 2);
            let target = Target {
                path: PathBuf::new(),
                file: None,
                start,
                end: start + data.len() as u64,
                data: vec![head, &[], rest],
                is_own: true,
            };
            let mut at = start;
            let mut whole = Vec::new();
            for (begin, span) in target.spans() {
                assert_eq!(begin, at, "without gaps");
                assert!(span.len() <= SPAN);
                at += span.len() as u64;
                whole.extend(span);
                let is_at_end = whole.len() == data.len();
                assert!(is_at_end || at.is_multiple_of(BLOCK as u64), "{start}: {at}");
            }
            assert_eq!(whole, data);
        }
    }
}
