//! Publishes a new database together with its first entries, in one step.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pmc_files::Destination;
use rusqlite::{Connection, MAIN_DB, Transaction, TransactionBehavior};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// Mode that SQLite gives to new databases, before the umask.
const FILE_MODE: u32 = 0o644;

/// Returns whether `path` is free for a new database. Remains of an earlier database belong to SQLite, and so
/// do its special names.
pub(super) fn can_create(path: &Path) -> bool {
    let name = path.as_os_str().as_bytes();
    let missing = |suffix: &str| {
        // A dangling link also takes the name.
        fs::symlink_metadata(pmc_files::with_suffix(path, suffix))
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    !name.starts_with(b"file:")
        && !name.starts_with(b":")
        && ["", "-journal", "-wal"].into_iter().all(missing)
}

/// Creates a database with what `fill` puts into it. It waits for the disk only once.
///
/// Returns false if there is no new database, or another process was faster. The caller then opens the
/// database in the usual way, which also reports the reason.
pub(super) fn create(path: &Path, fill: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>) -> bool {
    can_create(path) && try_create(path, fill).is_ok()
}

fn try_create(
    path: &Path,
    fill: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    let mut connection = Connection::open_in_memory()?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    fill(&transaction)?;
    transaction.commit()?;
    publish(path, &connection.serialize(MAIN_DB)?)?;
    Ok(())
}

/// Writes a file that appears under its name only when it is complete. Fails if the name is taken. Where the
/// file system supports files without a name, a killed process leaves nothing behind.
fn publish(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (directory, name) = Destination::named(path)?.into_parts();
    let write = |mut file: &File| file.write_all(bytes).and_then(|()| file.sync_data());
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::openat(&directory, ".", flags, Mode::from_raw_mode(FILE_MODE)) {
        let file = File::from(file);
        write(&file)?;
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::linkat(CWD, &*source, &directory, &name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
            // No /proc, or a file system without links.
            Err(_) => {}
        }
    }
    let destination = Destination::named(path)?;
    let file = destination.replacement(".pegasus-rc-client-", FILE_MODE)?;
    write(file.file())?;
    file.publish_new()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INSERT: &str = "CREATE TABLE rc_lfn (lfn); INSERT INTO rc_lfn VALUES ('f')";

    fn count_rows(path: &Path) -> i64 {
        let database = Connection::open(path).unwrap();
        let sql = "SELECT count(*) FROM rc_lfn";
        database.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn database_is_created_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        assert!(!create(&path, |db| db.execute_batch("nonsense")));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(create(&path, |db| db.execute_batch(INSERT)));
        assert!(!create(&path, |db| db.execute_batch(INSERT)));
        assert_eq!(count_rows(&path), 1);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn faster_process_wins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("y.db");
        let other_process = |_: &Transaction<'_>| {
            assert!(create(&path, |db| db.execute_batch(INSERT)));
            Ok(())
        };
        assert!(!create(&path, other_process));
        assert_eq!(count_rows(&path), 1);
    }

    #[test]
    fn remains_and_special_names_are_left_to_sqlite() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["z.db-journal", "w.db-wal"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("nowhere", folder.path().join("v.db")).unwrap();
        for name in ["z.db", "w.db", "v.db"] {
            assert!(!create(&folder.path().join(name), |_| Ok(())), "{name}");
        }
        assert!(!can_create(Path::new("file:x.db")) && !can_create(Path::new(":memory:")));
    }
}
