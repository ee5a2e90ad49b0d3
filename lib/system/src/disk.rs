//! Changes of files that must survive a crash.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

#[cfg(feature = "simulated")]
use crate::simulated::{Change, Fate};

#[cfg(feature = "simulated")]
fn fate(change: Change<'_>, before_death: impl FnOnce(usize)) -> Result<(), (io::Error, usize)> {
    match crate::simulated::fate_of(change) {
        Fate::Done => Ok(()),
        Fate::Fails(error, written) => Err((error, written)),
        Fate::Killed(written) => {
            before_death(written);
            crate::simulated::die();
            Err((io::Error::other("the process is dead"), 0))
        }
        Fate::Dead => Err((io::Error::other("the process is dead"), 0)),
    }
}

/// Asks the simulation, if there is one, whether to go on.
macro_rules! ask {
    ($change:expr) => {
        #[cfg(feature = "simulated")]
        if crate::is_simulated() {
            fate($change, |_| {}).map_err(|(error, _)| error)?;
        }
    };
}

/// [`std::io::Write::write_all`].
///
/// # Errors
/// Not everything was written.
pub fn write_all(mut file: &File, bytes: &[u8]) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if crate::is_simulated()
        && let Err((error, written)) = fate(Change::Write(file, bytes), |written| {
            let mut file = file;
            let _ = file.write_all(bytes.get(..written).unwrap_or(bytes));
        })
    {
        file.write_all(bytes.get(..written).unwrap_or(bytes))?;
        return Err(error);
    }
    file.write_all(bytes)
}

/// [`std::io::Write::write`].
///
/// # Errors
/// Nothing was written.
pub fn write(file: &File, bytes: &[u8]) -> io::Result<usize> {
    #[cfg(feature = "simulated")]
    if crate::is_simulated() {
        let before_death = |written: usize| {
            let mut file = file;
            let _ = file.write_all(bytes.get(..written).unwrap_or(bytes));
        };
        let mut file = file;
        return match fate(Change::Write(file, bytes), before_death) {
            Ok(()) => file.write(bytes),
            Err((error, 0)) => Err(error),
            Err((_, written)) => file.write(bytes.get(..written).unwrap_or(bytes)),
        };
    }
    let mut file = file;
    file.write(bytes)
}

/// [`std::os::unix::fs::FileExt::write_all_at`].
///
/// # Errors
/// Not everything was written.
pub fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    #[cfg(feature = "simulated")]
    if crate::is_simulated()
        && let Err((error, written)) = fate(Change::Write(file, bytes), |written| {
            let _ = file.write_all_at(bytes.get(..written).unwrap_or(bytes), at);
        })
    {
        file.write_all_at(bytes.get(..written).unwrap_or(bytes), at)?;
        return Err(error);
    }
    file.write_all_at(bytes, at)
}

/// [`File::set_len`].
///
/// # Errors
/// The length is the old one.
pub fn set_len(file: &File, len: u64) -> io::Result<()> {
    ask!(Change::SetLen(file, len));
    file.set_len(len)
}

/// [`File::sync_data`].
///
/// # Errors
/// The content may not be on the disk.
pub fn sync_data(file: &File) -> io::Result<()> {
    ask!(Change::Sync(file));
    file.sync_data()
}

/// [`File::sync_all`].
///
/// # Errors
/// The file may not be on the disk.
pub fn sync_all(file: &File) -> io::Result<()> {
    ask!(Change::Sync(file));
    file.sync_all()
}

/// [`File::sync_all`] of a directory.
///
/// # Errors
/// The names may not be on the disk.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    ask!(Change::SyncFolder(folder));
    File::open(folder)?.sync_all()
}

/// [`std::fs::rename`].
///
/// # Errors
/// The file has the old name.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    ask!(Change::Rename(from, to));
    std::fs::rename(from, to)
}

/// [`std::fs::remove_file`].
///
/// # Errors
/// The file is still there.
pub fn remove_file(path: &Path) -> io::Result<()> {
    ask!(Change::Remove(path));
    std::fs::remove_file(path)
}
