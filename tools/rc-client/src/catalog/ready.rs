//! A new database with its first entries. To make 24 tables and their indexes by SQL takes a millisecond, most of what a
//! small registration takes, so the empty database is kept ready, and written as it is.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, MAIN_DB, Transaction, TransactionBehavior};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

/// The database that the schema makes, without its longer stretches of zeros: again and again the number of zeros, the
/// number of bytes after them (both of four bytes, little-endian), and these bytes. The test below makes it.
const READY: &[u8] = include_bytes!("ready.bin");

/// Stands in [`READY`] for the time at which the database was made. SQLite stores it in six bytes, big-endian.
const TIME: i64 = 0x7a7b_7c7d_7e7f;

/// Whether nothing of a database is there. What is left of an earlier one belongs to SQLite, and so do special names.
pub(super) fn can_be_made(path: &Path) -> bool {
    let name = path.as_os_str().as_bytes();
    let missing = |ending: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(ending);
        // A link that leads nowhere is there, too.
        fs::symlink_metadata(name).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    !name.starts_with(b"file:")
        && !name.starts_with(b":")
        && ["", "-journal", "-wal"].into_iter().all(missing)
}

/// Makes a database that `work` has changed. It appears with all that is in it, so that it waits for the disk only
/// once. False if there is none now or somebody else was faster: then SQLite is to do it, or to say why it cannot.
pub(super) fn make(path: &Path, work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>) -> bool {
    can_be_made(path) && try_make(path, work).is_ok()
}

fn try_make(
    path: &Path,
    work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
) -> Result<(), Box<dyn std::error::Error>> {
    let empty = packed(SystemTime::now());
    let size = size(&empty).ok_or("damaged")?;
    let mut connection = Connection::open_in_memory()?;
    // SQLite keeps a gigabyte in memory at most; more is left to the way without this.
    connection.deserialize_read_exact(MAIN_DB, Unpacked::new(&empty), size, false)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    work(&transaction)?;
    transaction.commit()?;
    publish(path, &connection.serialize(MAIN_DB)?)?;
    Ok(())
}

/// What SQLite gives to new databases; the umask is applied.
const MODE: u32 = 0o644;

/// Writes a file that nobody sees before it is whole, unless there is one of its name. Where the file system can hold files
/// without a name, nothing is left of it however this process ends.
fn publish(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let write = |file: &mut File| file.write_all(bytes).and_then(|()| file.sync_data());
    let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(directory, flags, Mode::from_raw_mode(MODE)) {
        let mut file = File::from(file);
        write(&mut file)?;
        let source = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::linkat(CWD, &*source, CWD, path, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
            // No /proc, or a file system without links.
            Err(_) => {}
        }
    }
    let mut file = tempfile::Builder::new()
        .prefix(".pegasus-rc-client-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(MODE))
        .tempfile_in(directory)?;
    write(file.as_file_mut())?;
    file.persist_noclobber(path)?;
    Ok(())
}

/// Where [`TIME`] stands.
const TIME_AT: usize = {
    let (marker, mut at) = (bytes_of(TIME.cast_unsigned()), 0);
    loop {
        let mut same = 0;
        while same < marker.len() && READY[at + same] == marker[same] {
            same += 1;
        }
        if same == marker.len() {
            break at;
        }
        at += 1;
    }
};

/// A time as SQLite stores it.
const fn bytes_of(seconds: u64) -> [u8; 6] {
    let [_, _, six @ ..] = seconds.to_be_bytes();
    six
}

/// The database without entries, as [`READY`] has it.
fn packed(made: SystemTime) -> Vec<u8> {
    let seconds = made.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut packed = READY.to_vec();
    for (byte, of_time) in packed.iter_mut().skip(TIME_AT).zip(bytes_of(seconds)) {
        *byte = of_time;
    }
    packed
}

/// The next zeros and bytes.
fn next_part(packed: &[u8]) -> Option<(usize, &[u8], &[u8])> {
    let (&zeros, rest) = packed.split_first_chunk()?;
    let (&count, rest) = rest.split_first_chunk()?;
    let (text, rest) = rest.split_at_checked(u32::from_le_bytes(count) as usize)?;
    Some((u32::from_le_bytes(zeros) as usize, text, rest))
}

/// How many bytes it is; nothing if it is damaged.
fn size(mut packed: &[u8]) -> Option<usize> {
    let mut size = 0;
    while !packed.is_empty() {
        let (zeros, text, rest) = next_part(packed)?;
        size += zeros + text.len();
        packed = rest;
    }
    Some(size)
}

/// Reads it: SQLite gets it without a copy in between.
struct Unpacked<'a> {
    zeros: usize,
    text: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Unpacked<'a> {
    fn new(packed: &'a [u8]) -> Self {
        Self {
            zeros: 0,
            text: &[],
            rest: packed,
        }
    }
}

impl Read for Unpacked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let free = &mut buffer[filled..];
            if self.zeros > 0 {
                let count = self.zeros.min(free.len());
                free[..count].fill(0);
                self.zeros -= count;
                filled += count;
            } else if self.text.is_empty() {
                let Some((zeros, text, rest)) = next_part(self.rest) else {
                    break;
                };
                *self = Self { zeros, text, rest };
            } else {
                filled += self.text.read(free)?;
            }
        }
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use monitord_compat::database::{INDEXES, TABLES};

    use super::*;
    use crate::catalog::sqlite::insert_version;

    fn expand(packed: &[u8]) -> Option<Vec<u8>> {
        let (size, mut bytes) = (size(packed)?, Vec::new());
        Unpacked::new(packed).read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), size);
        Some(bytes)
    }

    /// The inverse of [`expand`].
    fn pack(bytes: &[u8]) -> Vec<u8> {
        let (mut packed, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let zeros = bytes[at..].iter().take_while(|&&byte| byte == 0).count();
            let text = &bytes[at + zeros..];
            let count = text.windows(8).position(|part| part == [0; 8]);
            let count = count.unwrap_or(text.len());
            for number in [zeros, count] {
                packed.extend(u32::try_from(number).unwrap().to_le_bytes());
            }
            packed.extend(&text[..count]);
            at += zeros + count;
        }
        packed
    }

    /// The tables and indexes of a database, where they are, and the version of the schema.
    #[derive(Debug, PartialEq)]
    struct Content {
        schema: Vec<[Option<String>; 5]>,
        versions: Vec<Version>,
    }

    /// A row: identifier, number, text, seconds.
    type Version = (i64, i64, String, i64);

    fn content(file: &Path) -> Content {
        let database = Connection::open(file).unwrap();
        let healthy: String = database
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .unwrap();
        assert_eq!(healthy, "ok");
        let sql = "SELECT type, name, tbl_name, CAST(rootpage AS TEXT), sql FROM sqlite_schema";
        let mut schema = database.prepare(sql).unwrap();
        let row =
            |row: &rusqlite::Row<'_>| Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?]);
        let schema = schema.query_map([], row).unwrap().map(Result::unwrap).collect();
        let sql = "SELECT id, version_number, version, version_timestamp FROM dbversion";
        let mut versions = database.prepare(sql).unwrap();
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        let versions = versions.query_map([], row).unwrap().map(Result::unwrap).collect();
        Content { schema, versions }
    }

    #[test]
    fn the_ready_database_is_that_of_the_schema() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sql.db");
        let mut database = Connection::open(&file).unwrap();
        let transaction = database.transaction().unwrap();
        transaction.execute_batch(TABLES).unwrap();
        transaction.execute_batch(INDEXES).unwrap();
        insert_version(&transaction, TIME).unwrap();
        transaction.commit().unwrap();
        database.close().unwrap();
        let wanted = content(&file);
        let packed = pack(&fs::read(&file).unwrap());
        assert_eq!(expand(&packed).unwrap(), fs::read(&file).unwrap());

        let seconds = 1_800_000_000;
        let ready = expand(&super::packed(UNIX_EPOCH + Duration::from_secs(seconds)));
        let found = ready.map(|ready| {
            fs::write(&file, ready).unwrap();
            let mut found = content(&file);
            for (.., time) in &mut found.versions {
                assert_eq!(*time, seconds.cast_signed());
                *time = TIME;
            }
            found
        });
        if found.as_ref() != Some(&wanted) {
            let new = std::env::temp_dir().join("ready.bin");
            fs::write(&new, packed).unwrap();
            panic!(
                "the schema has changed: copy {} to src/catalog/ready.bin",
                new.display()
            );
        }
    }

    #[test]
    fn what_is_damaged_is_not_used() {
        assert_eq!(expand(&[1, 0, 0, 0, 1, 0, 0, 0, 7]), Some(vec![0, 7]));
        for bad in [&[1][..], &[1, 0, 0, 0, 1, 0, 0, 0], &[0, 0, 0, 0, 1]] {
            assert_eq!(expand(bad), None);
        }
    }

    #[test]
    fn a_database_is_made_once_and_only_where_nothing_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let lfn = "INSERT INTO rc_lfn (lfn) VALUES ('f')";
        assert!(!make(&path, |db| db.execute_batch("nonsense")));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(make(&path, |db| db.execute_batch(lfn)));
        assert!(!make(&path, |db| db.execute_batch(lfn)));
        let count = |path: &Path| -> i64 {
            let database = Connection::open(path).unwrap();
            let sql = "SELECT count(*) FROM rc_lfn";
            database.query_row(sql, [], |row| row.get(0)).unwrap()
        };
        assert_eq!(count(&path), 1);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // Somebody else makes it meanwhile.
        let path = folder.path().join("y.db");
        let other = |_: &Transaction<'_>| {
            assert!(make(&path, |db| db.execute_batch(lfn)));
            Ok(())
        };
        assert!(!make(&path, other));
        assert_eq!(count(&path), 1);
        for name in ["z.db-journal", "w.db-wal"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("nowhere", folder.path().join("v.db")).unwrap();
        for name in ["z.db", "w.db", "v.db"] {
            assert!(!make(&folder.path().join(name), |_| Ok(())), "{name}");
        }
        assert!(!can_be_made(Path::new("file:x.db")) && !can_be_made(Path::new(":memory:")));
    }
}
