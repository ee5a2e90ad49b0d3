//! Directories and files of a store. They are the user's own, also where other users may write.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use pmc_files::{Destination, Folder, Owner};

use crate::StoreError;
use crate::error::at;

/// Maximum bytes of the files `id`, `withheld` and `message`.
pub(crate) const MAX_TEXT: u64 = 4 << 10;

/// Permissions of directories.
const DIRECTORY_MODE: u32 = 0o700;

/// Permissions of files.
pub(crate) const FILE_MODE: u32 = 0o600;

/// How often something is done whose directory was removed meanwhile.
const MAX_TRIES: u32 = 100;

/// Opens a directory of the store. Where other users may write, one of them can have put something else in
/// its place since the store was opened.
pub(crate) fn own_folder(path: &Path) -> Result<Folder, StoreError> {
    let folder = Folder::find(path).map_err(at(path))?;
    check_owner(&folder, path)?;
    Ok(folder)
}

/// `None` for a directory that is missing.
pub(crate) fn found(folder: Result<Folder, StoreError>) -> Result<Option<Folder>, StoreError> {
    match folder {
        Err(StoreError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        folder => folder.map(Some),
    }
}

pub(crate) fn check_owner(folder: &Folder, path: &Path) -> Result<(), StoreError> {
    match folder.owner().map_err(at(path))? {
        Owner::User => Ok(()),
        Owner::Root | Owner::Other => Err(StoreError::OtherUser(path.to_owned())),
    }
}

/// Makes a directory that is missing.
pub(crate) fn make_directory(path: &Path) -> Result<(), StoreError> {
    match DirBuilder::new().mode(DIRECTORY_MODE).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(at(path)(error)),
        _ => {}
    }
    own_folder(path).map(drop)
}

/// Makes the directories that are missing, each of which is in the one before. An agent that ends on the same
/// host may remove empty ones meanwhile.
pub(crate) fn make_directories(paths: &[&Path]) -> Result<(), StoreError> {
    again_while_missing(|| paths.iter().try_for_each(|path| make_directory(path)))
}

/// Does something again, but not for ever, when a directory was missing.
pub(crate) fn again_while_missing<R>(
    mut act: impl FnMut() -> Result<R, StoreError>,
) -> Result<R, StoreError> {
    let mut tries = 1;
    loop {
        match act() {
            Err(StoreError::System { source, .. })
                if source.kind() == io::ErrorKind::NotFound && tries < MAX_TRIES =>
            {
                tries += 1;
            }
            result => return result,
        }
    }
}

/// Returns whether there is nothing with this name, not even a link.
pub(crate) fn is_gone(path: &Path) -> bool {
    let found = fs::symlink_metadata(path);
    found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// Removes the directory with this path from its folder. A link that has its name is removed itself.
pub(crate) fn remove_directory(folder: &Folder, path: &Path) -> Result<(), StoreError> {
    let name = path.file_name().unwrap_or_default();
    match fs::remove_dir_all(folder.path().join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes a file that must not exist, as a whole.
pub(crate) fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    let destination = Destination::named(path)?;
    let new = destination.replacement(".new-", FILE_MODE)?;
    new.file().write_all(text)?;
    new.publish_new()
}

/// Whether a file must be on the disk before it gets its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    Yes,
    No,
}

/// Writes a file as a whole and to the disk, in place of an older one.
pub(crate) fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    write_anew(path, text, Sync::Yes)
}

/// Writes a file as a whole, in place of an older one.
pub(crate) fn write_anew(path: &Path, text: &[u8], sync: Sync) -> io::Result<()> {
    let destination = Destination::named(path)?;
    let new = destination.replacement(".new-", FILE_MODE)?;
    new.file().write_all(text)?;
    if sync == Sync::Yes {
        new.file().sync_all()?;
    }
    new.publish()
}
