//! File entries of the record.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Local, Utc};
use monitord_compat::invocation_record::{FileEntry, Source, Stamp, Stat, StatLines};

use crate::names::Names;

/// Converts a time of the system to local time.
#[must_use]
pub fn stamp(seconds: i64, nanoseconds: u32) -> Stamp {
    let utc: DateTime<Utc> = DateTime::from_timestamp(seconds, nanoseconds).unwrap_or_default();
    utc.with_timezone(&Local).fixed_offset()
}

/// Converts a clock time to local time.
#[must_use]
pub fn stamp_of(time: SystemTime) -> Stamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => stamp(
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            since.subsec_nanos(),
        ),
        Err(_) => epoch(),
    }
}

/// Returns the start time of a job that was never started.
#[must_use]
pub fn epoch() -> Stamp {
    DateTime::<Utc>::UNIX_EPOCH.fixed_offset()
}

/// Converts a file status to the form of the record.
pub fn describe(status: &Metadata, names: &mut Names) -> StatLines {
    let key = [
        status.ino(),
        status.mtime().cast_unsigned(),
        status.mtime_nsec().cast_unsigned(),
        status.atime().cast_unsigned(),
        status.atime_nsec().cast_unsigned(),
        status.ctime().cast_unsigned(),
        status.ctime_nsec().cast_unsigned(),
        u64::from(status.mode()),
        status.size(),
        status.nlink(),
        status.blksize(),
        status.blocks(),
        u64::from(status.uid()),
        u64::from(status.gid()),
    ];
    if let Some(lines) = names.stats.get(&key) {
        return lines;
    }
    let time = |seconds, nanoseconds: i64| stamp(seconds, u32::try_from(nanoseconds).unwrap_or(0));
    let stat = Stat {
        mode: status.mode(),
        size: status.size(),
        inode: status.ino(),
        links: status.nlink(),
        block_size: status.blksize(),
        blocks: status.blocks(),
        modified: time(status.mtime(), status.mtime_nsec()),
        accessed: time(status.atime(), status.atime_nsec()),
        changed: time(status.ctime(), status.ctime_nsec()),
        uid: status.uid(),
        user: names.user(status.uid()),
        gid: status.gid(),
        group: names.group(status.gid()),
    };
    let lines = StatLines::from(&stat);
    // A failed lookup of a name may succeed later.
    if stat.user.is_some() && stat.group.is_some() {
        names.stats.insert(key, lines.clone());
    }
    lines
}

fn entry(
    key: &[u8],
    source: Source,
    status: Result<&Metadata, &io::Error>,
    names: &mut Names,
) -> FileEntry<'static> {
    let errno = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
    FileEntry {
        key: key.to_vec(),
        lfn: None,
        note: None,
        source,
        stat: status.map(|status| describe(status, names)).map_err(errno),
        output: None,
        payload: None,
    }
}

/// Makes the entry of the file `name` in `directory`, by its real name. A missing file has the given name.
pub fn named(key: &[u8], name: &Path, directory: &Path, names: &mut Names) -> FileEntry<'static> {
    let file = directory.join(name);
    let real = fs::canonicalize(&file).unwrap_or_else(|_| name.to_owned());
    let source = Source::Name(real.into_os_string().into_vec());
    entry(key, source, fs::metadata(&file).as_ref(), names)
}

/// Makes the entry of a program's file, by its real name.
pub fn program(file: &Path, status: &Metadata, names: &mut Names) -> FileEntry<'static> {
    let real = names.real(file, status).unwrap_or_else(|_| file.to_owned());
    let source = Source::Name(real.into_os_string().into_vec());
    entry(b"", source, Ok(status), names)
}

/// Makes the entry of an open temporary file called `name`.
pub fn temporary(
    key: &[u8],
    name: &Path,
    file: &File,
    status: Result<&Metadata, &io::Error>,
    names: &mut Names,
) -> FileEntry<'static> {
    let name = name.as_os_str().as_bytes().to_vec();
    let descriptor = file.as_raw_fd();
    entry(key, Source::Temporary { name, descriptor }, status, names)
}

/// Makes the entry of an open file whose real name is `name`.
pub fn open(key: &[u8], name: &Path, file: &File, names: &mut Names) -> FileEntry<'static> {
    let name = name.as_os_str().as_bytes().to_vec();
    entry(key, Source::Name(name), file.metadata().as_ref(), names)
}

/// Makes the entry of a descriptor that the jobs inherit as `number`.
pub fn descriptor(
    key: &[u8],
    number: i32,
    descriptor: BorrowedFd<'_>,
    names: &mut Names,
) -> FileEntry<'static> {
    let status = descriptor
        .try_clone_to_owned()
        .and_then(|copy| File::from(copy).metadata());
    entry(key, Source::Descriptor(number), status.as_ref(), names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_real_name() {
        let folder = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(folder.path()).unwrap().join("run");
        fs::create_dir_all(folder.join("sub")).unwrap();
        fs::write(folder.join("f"), "abc").unwrap();
        std::os::unix::fs::symlink("f", folder.join("link")).unwrap();
        let mut names = Names::default();
        for (name, real) in [("f", "f"), ("link", "f"), ("sub/../f", "f"), ("sub/", "sub")] {
            let entry = named(b"k", Path::new(name), &folder, &mut names);
            let real = folder.join(real).into_os_string().into_vec();
            assert!(entry.stat.is_ok(), "{name}");
            assert!(
                matches!(entry.source, Source::Name(shown) if shown == real),
                "{name}"
            );
        }
        let missing = named(b"k", Path::new("nofile"), &folder, &mut names);
        assert!(matches!(missing.source, Source::Name(name) if name == b"nofile"));
        assert_eq!(missing.stat.unwrap_err(), libc::ENOENT);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn descriptions_follow_changes() {
        let folder = tempfile::tempdir().unwrap();
        let mut names = Names::default();
        for round in 1..3 {
            for file in 0..40 {
                let path = folder.path().join(file.to_string());
                fs::write(&path, "x".repeat(100 * round + file)).unwrap();
                let status = fs::metadata(&path).unwrap();
                let sizes = [(); 2].map(|()| describe(&status, &mut names).size);
                assert_eq!(sizes, [status.size(); 2]);
            }
        }
    }

    #[test]
    fn the_epoch_is_in_utc() {
        assert_eq!(epoch().to_rfc3339(), "1970-01-01T00:00:00+00:00");
    }
}
