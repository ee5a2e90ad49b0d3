//! Opens files in directories that may belong to other users.
//!
//! A view of a run must neither wait for a FIFO, nor read a device, nor fill the memory, nor follow a link
//! that somebody else has planted. A program that writes a file must not be led to another one. Whose a file
//! is, is asked of the open file, never of its path.

mod destination;
mod lines;
mod place;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal as _, Read, Seek as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{CWD, FileType, Mode, Stat};
use rustix::io::Errno;

pub use destination::{Destination, Folder, Replacement};
pub use lines::LineReader;
pub use rustix::fs::OFlags;

use place::{Last, Place, may};

/// Whose a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The user of this process.
    User,
    /// Root, who is another user.
    Root,
    /// Another user.
    Other,
}

impl Owner {
    fn of(user: u32) -> Self {
        match user {
            user if user == rustix::process::geteuid().as_raw() => Self::User,
            0 => Self::Root,
            _ => Self::Other,
        }
    }
}

/// Opens a regular file, or `/dev/null`, for reading. Never waits.
///
/// A link is followed if it belongs to the user of this process or to root. A directory may also be the link
/// of another user to a directory of that user.
///
/// # Errors
/// The file cannot be opened, is not a regular file, or is the link of another user.
pub fn open(path: &Path) -> io::Result<File> {
    open_regular(&Place::find(path, Last::Follow)?)
}

/// Opens a regular file as [`open`] does, and returns who may have put it there: the owner of the file, or
/// another user who may put files into its directory.
///
/// # Errors
/// As [`open`].
pub fn open_with_owner(path: &Path) -> io::Result<(File, Owner)> {
    let place = Place::find(path, Last::Follow)?;
    let file = open_regular(&place)?;
    let owner = place.owner_of(&rustix::fs::fstat(&file)?)?;
    Ok((file, owner))
}

/// Opens a regular file as [`open`] does, if `user` may read it, too: for what a run of that user names. The
/// groups of the user do not count.
///
/// # Errors
/// As [`open`], or the user may not.
pub fn open_for(path: &Path, user: u32) -> io::Result<File> {
    if user == rustix::process::geteuid().as_raw() {
        return open(path);
    }
    let place = Place::find_for(path, user)?;
    let file = open_regular(&place)?;
    match may(user, &rustix::fs::fstat(&file)?, Mode::RUSR, Mode::ROTH) {
        true => Ok(file),
        false => Err(refused("its user may not read this file")),
    }
}

fn open_regular(place: &Place) -> io::Result<File> {
    // Opening a device can have effects.
    match place.kind() {
        None => return Err(Errno::NOENT.into()),
        Some(FileType::Symlink) => return Err(refused("is a link")),
        Some(_) => {}
    }
    let check = |data: &Stat| match is_null(data) {
        true => Ok(()),
        false => check_kind(FileType::from_raw_mode(data.st_mode)),
    };
    place.found.as_ref().map_or(Ok(()), check)?;
    let file = place.open(OFlags::RDONLY, Mode::empty())?;
    // It can have been replaced in between.
    check(&rustix::fs::fstat(&file)?)?;
    Ok(file.into())
}

/// Returns the path of a file or directory that is there, without links. Follows those that [`open`] follows,
/// so that a directory of another user does not lead to what belongs to a third one.
///
/// # Errors
/// It is missing, or the path leads through a link of another user.
pub fn real_path(path: &Path) -> io::Result<PathBuf> {
    match Folder::find(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            let file = Place::find(path, Last::Follow)?;
            file.found.ok_or(Errno::NOENT)?;
            file.path()
        }
        found => found?.real_path(),
    }
}

/// Appends a suffix to the last part of a path.
#[must_use]
pub fn with_suffix(path: &Path, suffix: impl AsRef<OsStr>) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Reads a regular file of at most `max` bytes. See [`open`].
///
/// # Errors
/// The file cannot be opened or read, or is larger.
pub fn read(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(refused(&format!("is larger than {max} bytes")));
    }
    Ok(bytes)
}

/// Reads a UTF-8 text like [`read`].
///
/// # Errors
/// The same, or the file is not UTF-8.
pub fn read_to_string(path: &Path, max: u64) -> io::Result<String> {
    String::from_utf8(read(path, max)?).map_err(|_| refused("is not UTF-8 text"))
}

/// Opens an input that the user has named: a regular file, a terminal, `/dev/null`, or a pipe that is no trap
/// of another user. Follows links.
///
/// # Errors
/// The file cannot be opened, is a device that may never end, or is not a regular file and belongs to another
/// user than root.
pub fn open_input(path: &Path) -> io::Result<File> {
    let about = rustix::fs::stat(path)?;
    let kind = FileType::from_raw_mode(about.st_mode);
    if !kind.is_file() && !is_trusted(about.st_uid) {
        check_kind(kind)?;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    let about = rustix::fs::fstat(&file)?;
    let kind = FileType::from_raw_mode(about.st_mode);
    if kind.is_file() {
        return Ok(file.into());
    }
    let file = File::from(file);
    let may_end = kind.is_fifo() || is_null(&about) || file.is_terminal();
    if !may_end || !is_trusted(about.st_uid) {
        check_kind(kind)?;
    }
    // Without a writer, a pipe would be at its end at once.
    rustix::event::poll(&mut [PollFd::new(&file, PollFlags::IN)], None)?;
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Largest list that a tool reads, in bytes: that of some million transfers.
pub const MAX_LIST: u64 = 1 << 30;

/// Reads the rest of a file of any kind, also a pipe, of at most `max` bytes.
///
/// # Errors
/// The file cannot be read, or is larger. The size of a regular file is known before it is read.
pub fn read_rest(mut file: &File, max: u64) -> io::Result<Vec<u8>> {
    let data = file.metadata()?;
    if data.is_file() && data.len().saturating_sub(file.stream_position()?) > max {
        return Err(too_large(max));
    }
    read_at_most(file, max)
}

/// Reads all that is left, at most `max` bytes.
///
/// # Errors
/// It cannot be read, or is more.
pub fn read_at_most(input: impl Read, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(too_large(max));
    }
    Ok(bytes)
}

fn too_large(max: u64) -> io::Error {
    refused(&format!("larger than {} MiB, the most that is read", max >> 20))
}

/// Opens a regular file for writing. The umask reduces `mode` of a new one. Never waits, follows no link at
/// the end of the path, and no link of others before. The file has no other name that somebody else may have
/// chosen.
///
/// # Errors
/// The file cannot be opened, is not a regular file, or is a link.
pub fn open_for_writing(path: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    open_place(&Place::find(path, Last::Keep)?, flags, mode)
}

fn open_place(place: &Place, flags: OFlags, mode: u32) -> io::Result<File> {
    if place.is_link() {
        return Err(refused("is a link"));
    }
    let file = place.open(flags - OFlags::TRUNC, Mode::from_raw_mode(mode))?;
    check_open(&file)?;
    let file = File::from(file);
    if file.metadata()?.nlink() > 1 && place.is_shared()? {
        return Err(refused("has several names, where other users may write"));
    }
    if flags.contains(OFlags::TRUNC) {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens an output that the user has named for writing: a regular file, or a device such as `/dev/null`. The
/// umask reduces `mode` of a new one. Follows links of the user and of root. Never waits for the reader of a
/// FIFO, which is refused.
///
/// # Errors
/// The file cannot be opened, is a FIFO, or the path leads through a link of another user.
pub fn open_output(path: &Path, flags: OFlags, mode: u32) -> io::Result<File> {
    let place = Place::find(path, Last::Follow)?;
    let is_device = |kind| matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
    match place.kind() {
        Some(kind) if is_device(kind) => {
            let file = place.open(flags - OFlags::TRUNC, Mode::empty())?;
            rustix::fs::fcntl_setfl(&file, flags & OFlags::APPEND)?;
            Ok(file.into())
        }
        Some(kind) => check_kind(kind).and_then(|()| open_place(&place, flags, mode)),
        None => open_place(&place, flags, mode),
    }
}

/// Creates a file instead of the one that an interrupted program may have left. Follows no link.
///
/// # Errors
/// The file cannot be removed or created.
pub fn create_anew(path: &Path) -> io::Result<File> {
    Destination::named(path)?.create_anew(0o666)
}

/// Renames a file in its directory. A link is renamed itself.
///
/// # Errors
/// It cannot be renamed, or the path leads through a link of another user.
pub fn rename(path: &Path, name: &OsStr) -> io::Result<()> {
    let place = Place::find(path, Last::Keep)?;
    Ok(rustix::fs::renameat(
        &place.directory,
        &place.name,
        &place.directory,
        name,
    )?)
}

/// Returns whether links of a user are followed.
fn is_trusted(user: u32) -> bool {
    Owner::of(user) != Owner::Other
}

/// Returns whether a file is `/dev/null`.
fn is_null(data: &Stat) -> bool {
    FileType::from_raw_mode(data.st_mode) == FileType::CharacterDevice
        && data.st_rdev == rustix::fs::makedev(1, 3)
}

fn check_open(file: &OwnedFd) -> io::Result<()> {
    check_kind(FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode))
}

fn check_kind(kind: FileType) -> io::Result<()> {
    let kind = match kind {
        FileType::RegularFile => return Ok(()),
        // As the system says it of a file that is to be written. Logs have the number.
        FileType::Directory => return Err(Errno::ISDIR.into()),
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "a device",
    };
    Err(refused(&format!("is {kind}, not a regular file")))
}

fn refused(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

#[cfg(test)]
mod tests;
