//! What the record says about files.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Local, Utc};
use monitord_compat::invocation_record::{FileEntry, Source, Stamp, Stat, StatLines, Text};
use nix::unistd::{Gid, Group, Uid, User};

/// Real names that are kept.
const MOST_REAL: usize = 256;

/// Names of users and groups, each looked up once: a lookup may ask a server on the network. And the real names of
/// programs and working directories, which take a look at each directory of the path.
#[derive(Debug, Default)]
pub struct Names {
    users: HashMap<u32, Option<Text>>,
    groups: HashMap<u32, Option<Text>>,
    real: HashMap<PathBuf, Real>,
    programs: Programs,
    described: Described,
}

/// So many descriptions are kept: jobs share some files, such as their program and their empty streams.
const MOST_DESCRIBED: usize = 16;

/// Descriptions of files that may be as they were.
#[derive(Debug, Default)]
struct Described {
    /// With the facts that they were made from.
    kept: Vec<([u64; 14], StatLines)>,
    /// The one that is replaced next.
    next: usize,
}

impl Described {
    fn find(&self, facts: &[u64; 14]) -> Option<StatLines> {
        let kept = self.kept.iter().find(|(kept, _)| kept == facts);
        kept.map(|(_, lines)| lines.clone())
    }

    fn keep(&mut self, facts: [u64; 14], lines: StatLines) {
        if self.kept.len() < MOST_DESCRIBED {
            self.kept.push((facts, lines));
            return;
        }
        self.kept[self.next] = (facts, lines);
        self.next = (self.next + 1) % MOST_DESCRIBED;
    }
}

/// So many programs are kept in mind.
const MOST_PROGRAMS: usize = 8;

/// How long directories and links above a program are taken to be as they were.
const SETTLED: Duration = Duration::from_secs(1);

/// A change after so many seconds has another time than the one before, however coarse the file system's clock is.
const LONG_AGO: i64 = 3;

/// Programs that were found a moment ago. Their file has not changed since then if its status is the same: what
/// renames it or takes permission away is a change, too, and shows if the last one was not just before.
#[derive(Debug, Default)]
struct Programs {
    kept: Vec<Program>,
    /// The one that is replaced next.
    next: usize,
}

#[derive(Debug)]
struct Program {
    file: PathBuf,
    real: PathBuf,
    state: (FileId, u32, (i64, i64)),
    until: Instant,
}

impl Programs {
    fn state(status: &Metadata) -> (FileId, u32, (i64, i64)) {
        (id(status), status.mode(), (status.ctime(), status.ctime_nsec()))
    }

    fn find(&self, file: &Path, status: &Metadata) -> Option<&Program> {
        let state = Self::state(status);
        let same = |known: &&Program| known.state == state && known.file.as_os_str() == file.as_os_str();
        self.kept
            .iter()
            .find(same)
            .filter(|known| Instant::now() < known.until)
    }

    fn keep(&mut self, file: &Path, real: &Path, status: &Metadata) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if now.saturating_sub(status.ctime()) < LONG_AGO {
            return;
        }
        let program = Program {
            file: file.to_owned(),
            real: real.to_owned(),
            state: Self::state(status),
            until: Instant::now() + SETTLED,
        };
        if let Some(known) = self
            .kept
            .iter_mut()
            .find(|known| known.file.as_os_str() == file.as_os_str())
        {
            *known = program;
        } else if self.kept.len() < MOST_PROGRAMS {
            self.kept.push(program);
        } else {
            self.kept[self.next] = program;
            self.next = (self.next + 1) % MOST_PROGRAMS;
        }
    }
}

/// The real name of a file, and which it is.
#[derive(Debug)]
struct Real {
    name: PathBuf,
    id: FileId,
}

/// Device and inode.
type FileId = (u64, u64);

fn id(status: &Metadata) -> FileId {
    (status.dev(), status.ino())
}

impl Names {
    /// Forgets failed lookups: a server may answer later.
    pub fn forget_failures(&mut self) {
        self.users.retain(|_, name| name.is_some());
        self.groups.retain(|_, name| name.is_some());
    }

    /// The real name of a program's file or a directory, as long as name and real name mean what they meant before.
    pub fn real(&mut self, file: &Path, status: &Metadata) -> io::Result<PathBuf> {
        let still = |known: &&Real| {
            let named = || fs::symlink_metadata(&known.name);
            known.id == id(status) && named().is_ok_and(|named| id(&named) == known.id)
        };
        if let Some(known) = self.real.get(file).filter(still) {
            return Ok(known.name.clone());
        }
        if self.real.len() >= MOST_REAL {
            self.real.clear();
        }
        let name = fs::canonicalize(file)?;
        let real = Real {
            name: name.clone(),
            id: id(status),
        };
        self.real.insert(file.to_owned(), real);
        Ok(name)
    }

    /// Whether the program's file was found to be executable a moment ago.
    #[must_use]
    pub fn is_program(&self, file: &Path, status: &Metadata) -> bool {
        self.programs.find(file, status).is_some()
    }

    /// As [`Self::real`] for a file that was found to be executable.
    fn program(&mut self, file: &Path, status: &Metadata) -> PathBuf {
        if let Some(known) = self.programs.find(file, status) {
            return known.real.clone();
        }
        let Ok(real) = self.real(file, status) else {
            return file.to_owned();
        };
        self.programs.keep(file, &real, status);
        real
    }

    /// The name of a user.
    pub fn user(&mut self, uid: u32) -> Option<Text> {
        let find = || {
            User::from_uid(Uid::from_raw(uid))
                .ok()
                .flatten()
                .map(|user| user.name.into_bytes())
        };
        self.users.entry(uid).or_insert_with(find).clone()
    }

    /// The name of a group.
    pub fn group(&mut self, gid: u32) -> Option<Text> {
        let find = || {
            Group::from_gid(Gid::from_raw(gid))
                .ok()
                .flatten()
                .map(|group| group.name.into_bytes())
        };
        self.groups.entry(gid).or_insert_with(find).clone()
    }
}

/// A time of the system with the local offset of that moment.
#[must_use]
pub fn stamp(seconds: i64, nanoseconds: u32) -> Stamp {
    let utc: DateTime<Utc> = DateTime::from_timestamp(seconds, nanoseconds).unwrap_or_default();
    utc.with_timezone(&Local).fixed_offset()
}

/// A clock time with the local offset of that moment.
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

/// The start of a job that was never started.
#[must_use]
pub fn epoch() -> Stamp {
    DateTime::<Utc>::UNIX_EPOCH.fixed_offset()
}

/// The data of one file.
pub fn describe(status: &Metadata, names: &mut Names) -> StatLines {
    let facts = [
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
    if let Some(lines) = names.described.find(&facts) {
        return lines;
    }
    let stat = stat_of(status, names);
    let lines = StatLines::from(&stat);
    // A name that cannot be found now may be found later.
    if stat.user.is_some() && stat.group.is_some() {
        names.described.keep(facts, lines.clone());
    }
    lines
}

fn stat_of(status: &Metadata, names: &mut Names) -> Stat {
    let time = |seconds, nanoseconds: i64| stamp(seconds, u32::try_from(nanoseconds).unwrap_or(0));
    Stat {
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
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn entry(
    key: &[u8],
    source: Source,
    status: Result<&Metadata, &io::Error>,
    names: &mut Names,
) -> FileEntry<'static> {
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

/// The entry of the file `name` in `directory`: its real name, or the one given if there is no such file.
///
/// `directory` is a real name, too, or not absolute.
pub fn named(key: &[u8], name: &Path, directory: &Path, names: &mut Names) -> FileEntry<'static> {
    let file = directory.join(name);
    if let Some((name, status)) = in_known_directory(name, &file, directory, names) {
        let name = name.into_os_string().into_vec();
        return entry(key, Source::Name(name), Ok(&status), names);
    }
    let real = fs::canonicalize(&file);
    let shown = real.as_deref().unwrap_or(name).as_os_str().as_bytes().to_vec();
    entry(key, Source::Name(shown), fs::metadata(&file).as_ref(), names)
}

/// The real name of `file`, which is `name` in `directory`, if only its directory's had to be found out: that is mostly
/// known, and the file is no link.
fn in_known_directory(
    name: &Path,
    file: &Path,
    directory: &Path,
    names: &mut Names,
) -> Option<(PathBuf, Metadata)> {
    let plain = name.file_name()?;
    // With a slash or a dot behind it, the last word is that of a directory.
    if !directory.is_absolute() || !name.as_os_str().as_bytes().ends_with(plain.as_bytes()) {
        return None;
    }
    let file = if plain == name.as_os_str() {
        file.to_owned()
    } else {
        let parent = file.parent()?;
        names.real(parent, &fs::metadata(parent).ok()?).ok()?.join(plain)
    };
    let status = fs::symlink_metadata(&file).ok()?;
    (!status.is_symlink()).then_some((file, status))
}

/// The entry of a program's file: as [`named`], with a status that is known.
pub fn program(file: &Path, status: &Metadata, names: &mut Names) -> FileEntry<'static> {
    let name = names.program(file, status).into_os_string().into_vec();
    entry(b"", Source::Name(name), Ok(status), names)
}

/// The entry of an open temporary file called `name`.
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

/// The entry of an open file of which the real name is known.
pub fn open(key: &[u8], name: &Path, file: &File, names: &mut Names) -> FileEntry<'static> {
    let name = name.as_os_str().as_bytes().to_vec();
    entry(key, Source::Name(name), file.metadata().as_ref(), names)
}

/// The entry of a descriptor shared with the jobs, which they know as `number`.
pub fn descriptor(
    key: &[u8],
    number: i32,
    open: std::os::fd::BorrowedFd<'_>,
    names: &mut Names,
) -> FileEntry<'static> {
    let status = open
        .try_clone_to_owned()
        .map(File::from)
        .and_then(|file| file.metadata());
    entry(key, Source::Descriptor(number), status.as_ref(), names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_real_name() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("f"), "abc").unwrap();
        std::os::unix::fs::symlink("f", folder.path().join("link")).unwrap();
        let mut names = Names::default();
        let entry = named(b"k", Path::new("link"), folder.path(), &mut names);
        assert_eq!(entry.stat.unwrap().size, 3);
        assert!(matches!(entry.source, Source::Name(name) if name.ends_with(b"/f")));
        let missing = named(b"k", Path::new("nofile"), folder.path(), &mut names);
        assert!(matches!(missing.source, Source::Name(name) if name == b"nofile"));
        assert_eq!(missing.stat.unwrap_err(), libc::ENOENT);
    }

    #[test]
    fn short_cuts_lead_to_the_real_name() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(real.join("sub")).unwrap();
        fs::write(real.join("f"), "abc").unwrap();
        std::os::unix::fs::symlink("f", real.join("link")).unwrap();
        std::os::unix::fs::symlink(".", real.join("way")).unwrap();
        let mut names = Names::default();
        for name in [
            "f",
            "link",
            "./f",
            "sub",
            "sub/",
            "sub/.",
            "sub/..",
            "sub/../f",
            "f/",
            ".",
            "..",
            "way/f",
            "way/link",
            "way/nothing",
            "way",
        ] {
            let entry = named(b"k", Path::new(name), &real, &mut names);
            let expected = fs::canonicalize(real.join(name)).unwrap_or_else(|_| name.into());
            assert!(
                matches!(entry.source, Source::Name(shown) if shown == expected.as_os_str().as_bytes()),
                "{name}"
            );
            assert_eq!(entry.stat.is_ok(), real.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn files_are_described_as_they_are_now() {
        let folder = tempfile::tempdir().unwrap();
        let mut names = Names::default();
        // Twice as many as are kept, each before and after a change.
        for round in 1..3 {
            for file in 0..2 * MOST_DESCRIBED {
                let path = folder.path().join(file.to_string());
                fs::write(&path, "x".repeat(100 * round + file)).unwrap();
                let status = fs::metadata(&path).unwrap();
                let before = describe(&status, &mut names);
                let again = describe(&status, &mut names);
                assert_eq!((before.size, again.size), (status.size(), status.size()));
            }
        }
        assert!(names.described.kept.len() <= MOST_DESCRIBED);
    }

    #[test]
    fn programs_keep_their_real_name_as_long_as_it_is_right() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other, link] = ["one", "other", "link"].map(|name| folder.path().join(name));
        fs::write(&one, "1").unwrap();
        fs::write(&other, "2").unwrap();
        std::os::unix::fs::symlink("one", &link).unwrap();
        let mut names = Names::default();
        let mut real = || {
            let status = fs::metadata(&link).unwrap();
            let real = names.real(&link, &status).unwrap();
            real.file_name().unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!([real(), real()], ["one", "one"]);
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("other", &link).unwrap();
        assert_eq!(real(), "other");
        fs::rename(&other, folder.path().join("moved")).unwrap();
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("moved", &link).unwrap();
        assert_eq!(real(), "moved");
    }

    #[test]
    fn programs_are_kept_in_mind_until_they_change() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink("file", &link).unwrap();
        let mut names = Names::default();
        // One that has just been made may change without a later time.
        fs::write(&file, "1").unwrap();
        let status = fs::metadata(&link).unwrap();
        let real = names.program(&link, &status);
        assert_eq!(real.file_name().unwrap(), "file");
        assert!(!names.is_program(&link, &status));
        // An old one is known by each name that it was found by, with its permissions.
        let (old, status) = (Path::new("/bin/sh"), fs::metadata("/bin/sh").unwrap());
        let real = names.program(old, &status);
        assert_eq!(real, fs::canonicalize(old).unwrap());
        assert!(names.is_program(old, &status) && !names.is_program(&link, &status));
        assert!(!names.is_program(old, &fs::metadata(&file).unwrap()));
        assert_eq!(names.program(old, &status), real);
        for known in &mut names.programs.kept {
            known.until = Instant::now();
        }
        assert!(!names.is_program(old, &status));
        assert_eq!(names.program(old, &status), real);
        assert_eq!(names.programs.kept.len(), 1);
        assert!(names.is_program(old, &status));
    }

    #[test]
    fn the_epoch_is_in_utc() {
        assert_eq!(epoch().to_rfc3339(), "1970-01-01T00:00:00+00:00");
    }
}
