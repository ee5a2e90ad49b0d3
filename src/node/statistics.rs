//! The statistics of checkpoint files: a line for each file that a task has closed.

use std::io::{self, Write as _};
use std::path::Path;

use pmc_checkpoint::FileRecord;
use pmc_files::OFlags;
use rustix::fs::FlockOperation;

/// Permissions of the file, before the umask.
const MODE: u32 = 0o644;

/// Appends a line. Workers of several hosts write into the file.
pub(super) fn append(dag: &Path, record: &FileRecord) {
    if let Err(error) = write(&FileRecord::path(dag), record) {
        tracing::debug!(
            "The statistics of checkpoints lack a line: {}",
            pmc_dag::reason(&error)
        );
    }
}

fn write(path: &Path, record: &FileRecord) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
    let mut file = pmc_files::open_for_writing(path, flags, MODE)?;
    // On some network file systems, lines of two hosts would overwrite each other.
    let _ = rustix::fs::flock(&file, FlockOperation::LockExclusive);
    file.write_all(record.line().as_bytes())
}
