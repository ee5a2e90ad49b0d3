//! What the next run does with the journal of one that was killed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use pmc_dag::{Dag, TaskId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::format::{self, Begin, Content};
use super::{JournalError, path_for, running_system};
use crate::durability::lock::lock_if_possible;
use crate::options::{folder, with_suffix};

/// Unit in which a file system may have lost data of a file whose length it has kept.
const BLOCK: usize = 4096;

/// What was found and done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Tasks that are done, whatever the rescue file says.
    pub done: Vec<TaskId>,
    /// Tasks whose lines were removed from the rescue file: it must be read again.
    pub not_done: Vec<TaskId>,
    path: PathBuf,
}

impl Recovered {
    /// Removes the journal, once the rescue file names the tasks that are done.
    ///
    /// # Errors
    /// It is still there.
    pub fn forget(self) -> Result<(), JournalError> {
        fs::remove_file(&self.path).map_err(|source| JournalError::Write {
            path: self.path,
            source,
        })
    }
}

/// Completes the targets of the journal that belongs to a rescue file, and corrects the rescue
/// file. Nothing if there is no journal.
///
/// # Errors
/// The journal cannot be read or is that of a run which goes on, or a file cannot be corrected. Nothing is lost: it can be tried again.
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
            // Held until the end, so that no other run does the same.
            journal = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(read_error)?;
            if !lock_if_possible(&journal) {
                return Err(JournalError::InUse { path });
            }
            let mut bytes = Vec::new();
            journal.read_to_end(&mut bytes).map_err(read_error)?;
            bytes
        }
    };
    let content = format::decode(&bytes).map_err(|error| read_error(io::Error::other(error)))?;
    tracing::info!(
        "The last run was killed: completing what {} tasks forwarded at its end",
        content.records.len()
    );
    let targets = targets(&content);
    for target in targets.values().filter(|target| target.whole) {
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
    match fs::read(rescue) {
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

/// Where lines of the rescue file begin that the disk may have got without the record in the journal.
fn doubtful_from(begin: &Begin, text: &[u8]) -> Option<usize> {
    if begin.system != 0 && begin.system == running_system() {
        return None;
    }
    let tail = usize::try_from(begin.rescue_len).ok()?;
    let unchanged = format::tail_checksum(text.get(..tail)?) == begin.rescue_tail;
    unchanged.then_some(tail)
}

/// Removes the lines of tasks that were entered into the rescue file, but not into the journal: the
/// machine died before their data was on the disk.
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
    // The part behind the length begins with the line feed of its first record.
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
    let mut file = File::create(&new)?;
    file.set_permissions(fs::metadata(rescue)?.permissions())?;
    file.write_all(&kept)?;
    file.sync_data()?;
    fs::rename(&new, rescue)?;
    File::open(folder(rescue))?.sync_all()?;
    Ok(lost)
}

/// A target and what the journal says about it.
struct Target<'a> {
    path: PathBuf,
    /// What is at `path` now; nothing if there is no file.
    file: Option<File>,
    start: u64,
    end: u64,
    data: Vec<&'a [u8]>,
    /// Nobody else has written to it, as far as the journal knows.
    whole: bool,
}

#[derive(PartialEq, Eq, Hash, Clone)]
enum Identity {
    File(u64, u64),
    Missing(Vec<u8>),
}

/// The pieces of each target; two names of one file are one target.
fn targets<'a>(content: &Content<'a>) -> FxHashMap<Identity, Target<'a>> {
    let mut by_name: FxHashMap<&[u8], Identity> = FxHashMap::default();
    let mut targets: FxHashMap<Identity, Target<'_>> = FxHashMap::default();
    for piece in content.records.iter().flat_map(|record| &record.pieces) {
        let identity = by_name.entry(piece.target).or_insert_with(|| {
            let path = Path::new(std::ffi::OsStr::from_bytes(piece.target));
            let (identity, file, usable) = look_at(path);
            targets.entry(identity.clone()).or_insert_with(|| Target {
                path: path.to_owned(),
                file,
                start: piece.at.unwrap_or(0),
                end: piece.at.unwrap_or(0),
                data: Vec::new(),
                whole: usable,
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
            target.whole = false;
        }
    }
    for target in targets.values().filter(|target| !target.whole) {
        target.leave("others write to it, too");
    }
    targets
}

/// Opens a target. The last value says whether it may be touched.
fn look_at(path: &Path) -> (Identity, Option<File>, bool) {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    // A pipe that somebody has put there must not stop the run.
    options.custom_flags(libc::O_NONBLOCK);
    let by_name = || Identity::Missing(path.as_os_str().as_bytes().to_vec());
    match options.open(path).and_then(|file| Ok((file.metadata()?, file))) {
        Ok((data, file)) => {
            let usable = data.is_file();
            (Identity::File(data.dev(), data.ino()), Some(file), usable)
        }
        Err(error) => (by_name(), None, error.kind() == io::ErrorKind::NotFound),
    }
}

impl Target<'_> {
    fn leave(&self, why: &str) {
        tracing::warn!(
            "Forwarded data in {} is not checked, and may be there twice or in part: {why}",
            self.path.display()
        );
    }

    /// Writes what is missing.
    fn complete(&self) -> Result<(), JournalError> {
        let done = match &self.file {
            Some(file) => self.complete_in(file),
            None if self.start == 0 => {
                let make = || {
                    fs::create_dir_all(folder(&self.path))?;
                    let mut options = OpenOptions::new();
                    options.read(true).write(true).create_new(true);
                    options.open(&self.path)
                };
                make().and_then(|file| self.complete_in(&file))
            }
            None => {
                self.leave("the file is not there any more");
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
            self.leave("it is not as long as the last run left it");
            return Ok(());
        }
        let wanted = self.data.concat();
        let mut found = vec![0; usize::try_from(len - self.start).map_err(io::Error::other)?];
        file.read_exact_at(&mut found, self.start)?;
        if !can_be_left_of(&wanted, &found, self.start) {
            self.leave("others have written to it since");
            return Ok(());
        }
        if found != wanted {
            file.write_all_at(&wanted, self.start)?;
            tracing::info!("Completed the forwarded data in {}", self.path.display());
        }
        file.sync_data()
    }
}

/// Whether `found`, which is not longer than `wanted`, can be what a crash has left of it: its
/// beginning, in which blocks may be lost. `start` is the offset of both in the file.
fn can_be_left_of(wanted: &[u8], found: &[u8], start: u64) -> bool {
    let mut at = 0;
    while at < found.len() {
        let into_block = (start % BLOCK as u64) as usize + at;
        let end = (at + BLOCK - into_block % BLOCK).min(found.len());
        let lost = found[at..end].iter().all(|byte| *byte == 0);
        if found[at..end] != wanted[at..end] && !lost {
            return false;
        }
        at = end;
    }
    true
}
