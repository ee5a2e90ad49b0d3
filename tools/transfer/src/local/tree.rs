//! Copies a directory with its content.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use walkdir::WalkDir;

use super::copy::{CopyOptions, copy_path};
use super::place::Place;
use crate::error::TransferError;

/// Copies the directory `source` to `destination`; returns the total size of its files in bytes.
///
/// A new destination appears complete, in one step. In an existing one, each file is replaced in one step and
/// other files stay. So another copy after a failure gives the same result.
pub(super) fn copy(source: &Path, destination: &Path, options: &CopyOptions) -> Result<u64, TransferError> {
    match fs::metadata(destination) {
        Ok(meta) if meta.is_dir() => fill(source, destination, false, options),
        Ok(_) => Err(TransferError::NotADirectory(destination.to_owned())),
        Err(_) => {
            let place = Place::open(destination)?;
            let temporary = place.create_directory(Mode::from_raw_mode(0o777))?;
            let bytes = fill(source, &temporary.path(), true, options)?;
            temporary.publish()?;
            Ok(bytes)
        }
    }
}

/// Copies the content of `source` into the existing directory `target`; `new` if it was just created.
fn fill(source: &Path, target: &Path, new: bool, options: &CopyOptions) -> Result<u64, TransferError> {
    // A destination inside the source would be copied into itself endlessly.
    let (real_source, real_target) = (fs::canonicalize(source), fs::canonicalize(target));
    if let (Ok(real_source), Ok(real_target)) = (real_source, real_target) {
        if real_target == real_source {
            return Ok(0);
        }
        if real_target.starts_with(&real_source) {
            let cause = std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "it is inside the directory to be copied",
            );
            return Err(TransferError::io("copy to", target, cause));
        }
    }
    let mut bytes = 0;
    // Set permissions of directories last: they may forbid writing.
    let mut modes: Vec<(PathBuf, u32)> = Vec::new();
    for entry in WalkDir::new(source).follow_links(true).sort_by_file_name() {
        if options.cancel.is_cancelled() {
            return Err(TransferError::Cancelled);
        }
        let entry = entry.map_err(|error| {
            let path = error.path().unwrap_or(source).to_owned();
            // The message of the system error has no path, so the path appears only once.
            let whole = error.to_string();
            let cause = error.into_io_error();
            TransferError::io(
                "read",
                &path,
                cause.unwrap_or_else(|| std::io::Error::other(whole)),
            )
        })?;
        let relative = entry.path().strip_prefix(source).unwrap_or(Path::new(""));
        let path = if relative.as_os_str().is_empty() {
            target.to_owned()
        } else {
            target.join(relative)
        };
        if entry.file_type().is_dir() {
            let made = if path == target { new } else { !path.is_dir() };
            super::make_directory(&path)?;
            let meta = entry
                .metadata()
                .map_err(|error| TransferError::io("examine", entry.path(), error))?;
            if made {
                modes.push((path, meta.permissions().mode()));
            }
        } else {
            let file = CopyOptions {
                hash: false,
                cancel: options.cancel.clone(),
            };
            bytes += copy_path(entry.path(), &path, &file)?.bytes;
        }
    }
    for (path, mode) in modes.into_iter().rev() {
        set_mode(&path, mode)?;
    }
    Ok(bytes)
}

/// Removes from a new directory the permissions that its source does not have. The umask stays applied.
fn set_mode(path: &Path, mode: u32) -> Result<(), TransferError> {
    fs::metadata(path)
        .and_then(|meta| {
            fs::set_permissions(path, fs::Permissions::from_mode(meta.permissions().mode() & mode))
        })
        .map_err(|error| TransferError::io("set the permissions of", path, error))
}
