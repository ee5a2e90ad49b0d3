//! Local files of remote transfers: sources of uploads, destinations of downloads.

use std::fs::File;
use std::path::Path;

use crate::error::TransferError;
use crate::local::{IncomingDirectory, open_source};
use crate::protocol::Done;

/// Opens the source of an upload, a regular file. Returns it with its size in bytes.
pub(super) fn open_upload(path: &Path) -> Result<(File, u64), TransferError> {
    let (file, meta) = open_source(path)?;
    if !meta.is_file() {
        return Err(TransferError::SpecialFile(path.to_owned()));
    }
    Ok((file, meta.len()))
}

/// Returns the result of an upload of `bytes`.
pub(super) fn uploaded(bytes: u64) -> Done {
    Done {
        bytes: Some(bytes),
        ..Done::default()
    }
}

/// Moves a downloaded file from its temporary directory to its destination.
pub(super) fn publish(
    directory: &IncomingDirectory,
    name: &Path,
    destination: &Path,
) -> Result<Done, TransferError> {
    let (path, bytes) = directory.publish(name, destination)?;
    Ok(Done {
        bytes: Some(bytes),
        path: Some(path),
        ..Done::default()
    })
}
