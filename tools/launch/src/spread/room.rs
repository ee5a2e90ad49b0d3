//! Room on a host for the files of a launch: a store of files with keys, in the RAM disk or elsewhere.
//!
//! Its directory is of this user alone. Files are locked while a launch uses them, and other launches of the
//! host share them. What nobody uses is removed at the end of each launch, and at the beginning of the next
//! one that sends files.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sys::statvfs::{FsFlags, statvfs};
use pmc_link::{Growing, Progress};
use pmc_node_files::store::{Access, Filling, Held, Limit, Store};

use super::files::{Checksum, open};
use super::messages::{Kind, Needs, Offer, OfferedFile};

/// Mode of files that come in. Later, only their owner can read and execute them.
const MODE: u32 = 0o700;

/// How many names are tried for a file of which another launch brings a copy at the same time.
const NAMES: u32 = 16;

/// The user who stands for all that a namespace does not know, such as root outside.
const UNKNOWN_USER: u32 = 65_534;

/// Returns the directories in which there may be room, those that come first in front. Those are the stores,
/// below these directories.
pub(crate) fn folders(wanted: Option<&OsStr>, temporary: Option<&OsStr>) -> Vec<PathBuf> {
    let bases = [
        wanted,
        Some(OsStr::new("/dev/shm")),
        temporary,
        Some(OsStr::new("/tmp")),
    ];
    let mut all: Vec<PathBuf> = Vec::new();
    for base in bases.into_iter().flatten().filter(|base| !base.is_empty()) {
        if let Some(folder) = usable(Path::new(base)).filter(|folder| !all.contains(folder)) {
            all.push(folder);
        }
    }
    all
}

/// The store in a directory, if programs can be executed there, and no other user can put another directory
/// in its place.
fn usable(base: &Path) -> Option<PathBuf> {
    let base = fs::canonicalize(base).ok()?;
    let status = fs::metadata(&base).ok()?;
    let user = nix::unistd::geteuid().as_raw();
    let is_sticky = status.mode() & 0o1000 != 0;
    let is_safe =
        [user, 0, UNKNOWN_USER].contains(&status.uid()) && (status.mode() & 0o022 == 0 || is_sticky);
    let runs_programs = !statvfs(&base).ok()?.flags().contains(FsFlags::ST_NOEXEC);
    (status.is_dir() && is_safe && runs_programs).then(|| base.join(format!("pmc-programs-{user}")))
}

/// Free bytes for a store.
pub(crate) fn free(folder: &Path) -> u64 {
    let space = folder.parent().and_then(|base| statvfs(base).ok());
    space.map_or(0, |space| {
        space.blocks_available().saturating_mul(space.fragment_size())
    })
}

/// Removes what nobody uses from these stores.
pub(crate) fn clear(folders: &[PathBuf]) {
    for folder in folders.iter().filter(|folder| folder.is_dir()) {
        // What cannot be removed stays for the next launch.
        let _ = Store::dissolve(folder.clone());
    }
}

/// Returns the path of a file, if this host sees the same one as the front end.
pub(crate) fn seen(file: &OfferedFile) -> Option<PathBuf> {
    let path = PathBuf::from(OsStr::from_bytes(&file.path.0));
    let found = open(&path).ok()?;
    let status = found.metadata().ok()?;
    let is_same = status.len() == file.bytes
        && ((status.ino(), status.mtime(), status.mtime_nsec()) == file.seen || has(&found, file));
    is_same.then_some(path)
}

/// True if a file has these bytes.
fn has(found: &File, file: &OfferedFile) -> bool {
    let mut checksum = Checksum::default();
    checksum.read_to(found, u64::MAX).is_ok() && checksum.finish().1 == file.sha256
}

/// Room for all that a host lacks.
#[derive(Debug)]
pub(crate) struct Space<'s> {
    /// Its directory has links to the files, with the names that ranks know. Nobody else uses it, and it goes
    /// when this is dropped.
    links: Filling<'s>,
    /// Files that are there, by number.
    there: BTreeMap<u32, Held>,
    /// Files that come in.
    pub(crate) coming: BTreeMap<u32, Coming<'s>>,
}

/// A file that comes in. Its bytes are reserved.
#[derive(Debug)]
pub(crate) struct Coming<'s> {
    filling: Filling<'s>,
    path: PathBuf,
    pub(crate) file: File,
    pub(crate) progress: Progress,
    pub(crate) growing: Growing,
}

impl<'s> Space<'s> {
    /// Reserves room for files that the host lacks. Those that are there already need none.
    ///
    /// # Errors
    /// There is no room, or the directory cannot be used.
    pub(crate) fn reserve(store: &'s Store, offer: &Offer, lacking: &[u32]) -> io::Result<Self> {
        let (mut there, mut fillings) = (BTreeMap::new(), Vec::new());
        for number in lacking {
            let Some(file) = offer.files.get(*number as usize) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            match access(store, &file.sha256, |held| {
                open(&held.file).is_ok_and(|found| has(&found, file))
            })? {
                Access::Held(held) => drop(there.insert(*number, held)),
                Access::Fill(filling) => fillings.push((*number, file, filling)),
                _ => return Err(io::ErrorKind::ResourceBusy.into()),
            }
        }
        // What killed launches have left makes room.
        let _ = store.clear();
        let links = match access(store, &format!("launch-{}", std::process::id()), |_| false)? {
            Access::Fill(links) => links,
            _ => return Err(io::ErrorKind::ResourceBusy.into()),
        };
        links.directory()?;
        let mut coming = BTreeMap::new();
        for (number, file, filling) in fillings {
            coming.insert(number, Coming::new(filling, file.bytes)?);
        }
        Ok(Self { links, there, coming })
    }

    /// Numbers of the files that come in.
    pub(crate) fn missing(&self) -> Vec<u32> {
        self.coming.keys().copied().collect()
    }

    /// Puts a file that has come in, and is verified, into its place. Its writer is closed: a file that is
    /// being written cannot be executed.
    ///
    /// # Errors
    /// It cannot be put there.
    pub(crate) fn finish(&mut self, number: u32, coming: Coming<'s>) -> io::Result<()> {
        let Coming {
            filling, path, file, ..
        } = coming;
        file.set_permissions(fs::Permissions::from_mode(MODE))?;
        drop(file);
        let held = filling.finish(&path, Limit::None, true)?;
        let held = held.ok_or_else(|| io::Error::other("another launch has removed it"))?;
        self.there.insert(number, held);
        Ok(())
    }

    /// Makes links to all that a program needs, and returns their directory. `seen` are files that the host
    /// has elsewhere.
    ///
    /// # Errors
    /// They cannot be made.
    pub(crate) fn link(&self, needs: &Needs, seen: &BTreeMap<u32, PathBuf>) -> io::Result<PathBuf> {
        let top = self.links.path().join(needs.program.to_string());
        for part in &needs.parts {
            let held = self.there.get(&part.file).map(|held| &held.file);
            let file = held.or(seen.get(&part.file)).ok_or(io::ErrorKind::NotFound)?;
            let folder = top.join(part.kind.folder());
            fs::create_dir_all(&folder)?;
            // Nothing of that name is there, or it is no link of this launch.
            std::os::unix::fs::symlink(file, folder.join(OsStr::from_bytes(&part.name.0)))?;
        }
        Ok(top)
    }
}

impl<'s> Coming<'s> {
    fn new(filling: Filling<'s>, bytes: u64) -> io::Result<Self> {
        let path = filling.directory()?.join("file");
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let length = i64::try_from(bytes).map_err(|_| Errno::EFBIG)?;
        // An empty file needs no room, and none can be had for it.
        let mut reserved = if length > 0 { Err(Errno::EINTR) } else { Ok(()) };
        while reserved == Err(Errno::EINTR) {
            reserved = posix_fallocate(&file, 0, length);
        }
        reserved?;
        let (progress, growing) = Growing::new(bytes, MODE);
        Ok(Self {
            filling,
            path,
            file,
            progress,
            growing,
        })
    }

    /// Opens the file for those to whom it is given on. They do not write it.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn reader(&self) -> io::Result<File> {
        File::open(&self.path)
    }
}

/// Returns an entry of the store that is there and good, or the right to bring it. Never waits for another
/// launch: two launches could wait for each other, each on another host. So a file that another one brings
/// just now gets another name.
fn access<'s>(store: &'s Store, key: &str, is_good: impl Fn(&Held) -> bool) -> io::Result<Access<'s>> {
    for number in 0..NAMES {
        let key = match number {
            0 => key.to_owned(),
            _ => format!("{key}-{}-{number}", std::process::id()),
        };
        match store.access(&key)? {
            Access::Held(held) if is_good(&held) => return Ok(Access::Held(held)),
            Access::Held(held) => {
                drop(held);
                if store.discard(&key)?
                    && let Access::Fill(filling) = store.access(&key)?
                {
                    return Ok(Access::Fill(filling));
                }
            }
            Access::Fill(filling) => return Ok(Access::Fill(filling)),
            _ => {}
        }
    }
    Ok(Access::Busy)
}

/// True if the ranks of a program need no directory: the host sees the program, and nothing but libraries
/// beside it, which its loader finds.
pub(crate) fn is_all_seen(needs: &Needs, seen: &BTreeMap<u32, PathBuf>) -> bool {
    let is_seen = |part: &super::messages::Part| part.kind != Kind::Other && seen.contains_key(&part.file);
    needs.parts.iter().all(is_seen)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::files::Files;
    use super::super::messages::Secret;
    use super::*;

    fn offer(folder: &Path, text: &str) -> Offer {
        let program = folder.join("program");
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut files = Files::default();
        files.add(&program, false, &[&program]).unwrap();
        Offer {
            secret: Secret(Vec::new()),
            folder: None,
            takes_seen: true,
            files: files.offered.clone(),
            programs: files.needs.clone(),
        }
    }

    fn bring(space: &mut Space<'_>, text: &str) {
        let (number, mut coming) = space.coming.pop_first().unwrap();
        coming.file.write_all(text.as_bytes()).unwrap();
        space.finish(number, coming).unwrap();
    }

    fn store(base: &Path) -> (PathBuf, Store) {
        let folder = usable(base).unwrap();
        let store = Store::open(folder.clone()).unwrap().0;
        (folder, store)
    }

    #[test]
    fn what_is_there_is_not_sent_and_goes_with_its_last_launch() {
        let folder = tempfile::tempdir().unwrap();
        let offer = offer(folder.path(), "program");
        let (place, first) = store(folder.path());
        let mut space = Space::reserve(&first, &offer, &[0]).unwrap();
        assert_eq!(space.missing(), [0]);
        let reserved = space.coming[&0].file.metadata().unwrap();
        assert_eq!(reserved.len(), 7);
        // Another launch brings its own copy meanwhile, and does not wait.
        let mut other = Space::reserve(&first, &offer, &[0]).unwrap();
        assert_eq!(other.missing(), [0]);
        bring(&mut space, "program");
        bring(&mut other, "program");
        let top = space.link(&offer.programs[0], &BTreeMap::new()).unwrap();
        let program = fs::metadata(top.join("bin/program")).unwrap();
        assert_eq!((program.len(), program.mode() & 0o777), (7, 0o500));
        assert!(top.join("files/program").exists());
        drop(other);
        // A third one takes that of the first one.
        let (_, third) = store(folder.path());
        let later = Space::reserve(&third, &offer, &[0]).unwrap();
        assert!(later.missing().is_empty());
        drop(space);
        clear(std::slice::from_ref(&place));
        assert!(place.exists() && !top.exists());
        assert!(later.link(&offer.programs[0], &BTreeMap::new()).is_ok());
        drop(later);
        clear(std::slice::from_ref(&place));
        assert!(!place.exists());
    }

    #[test]
    fn a_file_of_the_store_that_is_not_what_it_should_be_is_brought_again() {
        let folder = tempfile::tempdir().unwrap();
        let offer = offer(folder.path(), "program");
        let (_, first) = store(folder.path());
        let mut space = Space::reserve(&first, &offer, &[0]).unwrap();
        bring(&mut space, "PROGRAM");
        // Somebody uses it: it stays, and the right one has another name.
        let other = Space::reserve(&first, &offer, &[0]).unwrap();
        assert_eq!(other.missing(), [0]);
        drop((other, space));
        assert_eq!(Space::reserve(&first, &offer, &[0]).unwrap().missing(), [0]);
    }

    #[test]
    fn what_killed_launches_have_left_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let offer = offer(folder.path(), "program");
        let (place, first) = store(folder.path());
        fs::create_dir_all(place.join("dead/new")).unwrap();
        fs::write(place.join("dead/new/file"), "half").unwrap();
        fs::write(place.join("dead.lock"), "").unwrap();
        let space = Space::reserve(&first, &offer, &[0]).unwrap();
        assert!(!place.join("dead").exists() && !place.join("dead.lock").exists());
        drop(space);
        clear(&[place]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_another_user_can_change_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |mode: u32| {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            usable(folder.path())
        };
        assert!(mode(0o755).is_some() && mode(0o1777).is_some());
        assert!(mode(0o777).is_none() && mode(0o770).is_none());
        mode(0o755);
        let place = usable(folder.path()).unwrap();
        // Someone else was faster, with a link or a directory for all.
        std::os::unix::fs::symlink("/tmp", &place).unwrap();
        assert!(Store::open(place.clone()).is_err());
        clear(std::slice::from_ref(&place));
        fs::remove_file(&place).unwrap();
        fs::create_dir(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(place.join("x.lock"), "").unwrap();
        clear(std::slice::from_ref(&place));
        assert!(Store::open(place.clone()).is_err() && place.join("x.lock").exists());
        let twice = folders(Some(OsStr::new("/dev/shm")), Some(OsStr::new("")));
        assert_eq!(twice.iter().filter(|at| at.starts_with("/dev/shm")).count(), 1);
    }

    #[test]
    fn a_host_sees_the_same_file_whatever_its_times_are() {
        let folder = tempfile::tempdir().unwrap();
        let offer = offer(folder.path(), "program");
        let mut file = offer.files[0].clone();
        assert!(seen(&file).is_some());
        file.seen = (0, 0, 0);
        assert!(seen(&file).is_some());
        fs::write(folder.path().join("program"), "PROGRAM").unwrap();
        assert!(seen(&file).is_none());
        fs::remove_file(folder.path().join("program")).unwrap();
        assert!(seen(&file).is_none());
    }
}
