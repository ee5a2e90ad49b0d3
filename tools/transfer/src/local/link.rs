//! Symbolic links and renames.

use std::fs;
use std::path::{Path, PathBuf};

use super::copy::{Copied, CopyOptions, copy_path, is_same, open_source, refresh};
use super::place::Place;
use crate::error::TransferError;

/// Creates or replaces the symbolic link `link` to `target`.
///
/// With `verify`, the target must exist and be readable. If both paths are the same file already, nothing
/// changes. If `link` is a directory, the link is created in it under the name of the target. A relative
/// target is relative to the working directory, so the link gets its absolute path. Returns the size of the
/// target in bytes, 0 if it does not exist.
pub fn symlink(target: &Path, link: &Path, verify: bool) -> Result<u64, TransferError> {
    if verify {
        open_source(target).map_err(|error| match error {
            TransferError::SourceMissing(path) => TransferError::LinkSourceMissing(path),
            other => other,
        })?;
    }
    let size = fs::metadata(target).map_or(0, |meta| meta.len());
    let mut link = link.to_owned();
    if let Ok(meta) = fs::metadata(&link) {
        if is_same(target, &meta) {
            return Ok(size);
        }
        if meta.is_dir() {
            link.push(target.file_name().unwrap_or_default());
            if fs::metadata(&link).is_ok_and(|meta| is_same(target, &meta)) {
                return Ok(size);
            }
        }
    }
    let target = absolute(target)?;
    let place = Place::open(&link)?;
    place.create_link(&target)?.publish()?;
    Ok(size)
}

fn absolute(path: &Path) -> Result<PathBuf, TransferError> {
    std::path::absolute(path).map_err(|error| TransferError::io("find the absolute path of", path, error))
}

/// Moves a file or directory; across file systems by copying.
pub fn move_path(source: &Path, destination: &Path, options: &CopyOptions) -> Result<Copied, TransferError> {
    let meta = match fs::symlink_metadata(source) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            refresh(source);
            fs::symlink_metadata(source)
        }
        other => other,
    };
    let meta = meta.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => TransferError::SourceMissing(source.to_owned()),
        _ => TransferError::io("examine", source, error),
    })?;
    let mut path = destination.to_owned();
    if fs::metadata(&path).is_ok_and(|meta| meta.is_dir()) {
        path.push(source.file_name().unwrap_or_default());
    }
    let place = Place::open(&path)?;
    match place.take(rustix::fs::CWD, source) {
        Ok(()) => Ok(Copied {
            bytes: meta.len(),
            path,
            method: None,
            sha256: None,
        }),
        Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {
            let copied = copy_path(source, &path, options)?;
            super::remove(source, true)?;
            Ok(copied)
        }
        Err(error) => Err(TransferError::io("move", source, error)),
    }
}
