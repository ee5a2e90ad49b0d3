//! The statistics of checkpoint files: a line for each file that a task has closed.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use pmc_checkpoint::{FileRecord, Settings};
use pmc_files::OFlags;
use pmc_system::clock;
use rustix::fs::FlockOperation;

/// Permissions of the file, before the umask.
const FILE_MODE: u32 = 0o644;

/// Maximum time that a line waits for those of other hosts.
const LOCK_TIMEOUT: Duration = Duration::from_millis(200);

/// Time between two tries to lock the file.
const LOCK_INTERVAL: Duration = Duration::from_millis(2);

/// Returns whether there are statistics of files beside the DAG file: `TCS_IOLOG`.
pub(super) fn are_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    // If settings cannot be read, the library says so when a file is saved.
    let find = || Settings::find(|name| std::env::var(name).ok()).map_or(true, |settings| settings.logs);
    *WANTED.get_or_init(find)
}

/// Appends a line. Workers of several hosts write into the file.
pub(crate) fn append(dag: &Path, record: &FileRecord) {
    if let Err(error) = write(&FileRecord::path(dag), record) {
        tracing::debug!(
            "The statistics of checkpoints lack a line: {}",
            pmc_dag::reason(&error)
        );
    }
}

fn write(path: &Path, record: &FileRecord) -> io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
    let mut file = pmc_files::open_for_writing(path, flags, FILE_MODE)?;
    lock(&file);
    file.write_all(record.line().as_bytes())
}

/// Locks the file: on some network file systems, lines of two hosts would overwrite each other. Everybody who
/// may read the file may lock it as well, so that a task does not wait for long.
fn lock(file: &File) {
    let end = clock::now() + LOCK_TIMEOUT;
    while rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_err() && clock::now() < end {
        std::thread::sleep(LOCK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use pmc_checkpoint::{Prefix, Use};

    use super::*;

    #[test]
    fn a_reader_that_locks_the_file_holds_nobody_up() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("w.dag.checkpoints.jsonl");
        std::fs::write(&path, "").unwrap();
        let reader = File::open(&path).unwrap();
        rustix::fs::flock(&reader, FlockOperation::LockExclusive).unwrap();
        let record = FileRecord {
            task: "t".to_owned(),
            submit: 1,
            rank: 0,
            prefix: Prefix::try_from("p").unwrap(),
            series: 1,
            usage: Use::Written,
            bytes: 1,
            open: 0.0,
            read: 0.0,
            write: 0.0,
            close: 0.0,
            errors: 0,
            closed: 1.0,
            elapsed: 1.0,
            host: "n1".to_owned(),
            complete: true,
        };
        let begun = Instant::now();
        write(&path, &record).unwrap();
        assert!(begun.elapsed() >= LOCK_TIMEOUT);
        drop(reader);
        write(&path, &record).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), record.line().repeat(2));
    }
}
