//! Copies a file, or a directory with its content.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::data::{self, DataError, Method};
use super::place::Place;
use super::tree;
use crate::cancel::Cancel;
use crate::error::TransferError;

/// Options of a copy.
#[derive(Debug, Clone, Default)]
pub struct CopyOptions {
    /// Compute the SHA-256 of the source while copying.
    pub hash: bool,
    /// Set to stop the copy.
    pub cancel: Cancel,
}

/// A finished copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// Size of the copy in bytes; for a directory, the sum of its files.
    pub bytes: u64,
    /// Path of the copy: the destination, or a file in a destination directory.
    pub path: PathBuf,
    /// How the bytes were copied; `None` for a directory, or if source and destination are the same file.
    pub method: Option<Method>,
    /// SHA-256 of the content, if requested and the source is a file.
    pub sha256: Option<[u8; 32]>,
}

/// Copies `source` to `destination`, following symbolic links on both sides.
///
/// * A missing directory of the destination is created.
/// * A file copied to a directory goes into it under its own name.
/// * An existing file is replaced in one step. Permissions are those of the source, reduced by the umask.
/// * A directory is copied with its content, and merged file by file into an existing directory.
/// * If both are the same file, nothing is done.
pub fn copy_path(source: &Path, destination: &Path, options: &CopyOptions) -> Result<Copied, TransferError> {
    let (mut file, meta) = open_source(source)?;
    if meta.is_dir() {
        let bytes = tree::copy(source, destination, options)?;
        return Ok(Copied {
            bytes,
            path: destination.to_owned(),
            method: None,
            sha256: None,
        });
    }
    if !meta.is_file() {
        return Err(TransferError::SpecialFile(source.to_owned()));
    }
    let hasher = options.hash.then(Sha256::new);
    match resolve(source, destination)? {
        Target::Same(path) => {
            let sha256 = if options.hash {
                hash_open(&mut file, source, &options.cancel)?
            } else {
                None
            };
            Ok(Copied {
                bytes: meta.len(),
                path,
                method: None,
                sha256,
            })
        }
        Target::Regular(path) => copy_regular(file, &meta, source, path, hasher, options),
        Target::Special(path) => copy_special(file, source, path, hasher, options),
    }
}

/// Computes the SHA-256 of a file; `None` for a directory.
pub(crate) fn hash_path(path: &Path, cancel: &Cancel) -> Result<Option<[u8; 32]>, TransferError> {
    let (mut file, meta) = open_source(path)?;
    if meta.is_dir() {
        return Ok(None);
    }
    hash_open(&mut file, path, cancel)
}

fn hash_open(file: &mut File, path: &Path, cancel: &Cancel) -> Result<Option<[u8; 32]>, TransferError> {
    match data::hash_file(file, cancel) {
        Ok(None) => Err(TransferError::Cancelled),
        Ok(hash) => Ok(hash),
        Err(error) => Err(TransferError::io("read", path, error)),
    }
}

/// Opens a file for reading; does not wait for the other end of a pipe.
pub(crate) fn open_source(source: &Path) -> Result<(File, fs::Metadata), TransferError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let open = || rustix::fs::open(source, flags, Mode::empty());
    let opened = match open() {
        Err(Errno::NOENT) => {
            refresh(source);
            open()
        }
        other => other,
    };
    match opened {
        Ok(fd) => {
            let file = File::from(fd);
            let meta = file
                .metadata()
                .map_err(|error| TransferError::io("examine", source, error))?;
            Ok((file, meta))
        }
        Err(Errno::NOENT) => Err(TransferError::SourceMissing(source.to_owned())),
        Err(Errno::NXIO) => Err(TransferError::SpecialFile(source.to_owned())),
        Err(errno) => Err(TransferError::io("open", source, errno)),
    }
}

/// Makes a network file system ask its server again about a missing name, by listing the directory. Such file
/// systems cache missing names, so a file that another host has just written may be invisible.
pub(super) fn refresh(path: &Path) {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    if let Ok(mut entries) = fs::read_dir(parent) {
        entries.next();
    }
}

enum Target {
    /// Source and destination are one file.
    Same(PathBuf),
    /// A regular file or a new name: replaced by renaming.
    Regular(PathBuf),
    /// A device: written directly.
    Special(PathBuf),
}

/// Finds the file to replace. Follows links and enters directories.
fn resolve(source: &Path, destination: &Path) -> Result<Target, TransferError> {
    let mut path = destination.to_owned();
    if destination.as_os_str().as_encoded_bytes().ends_with(b"/") {
        super::make_directory(destination)?;
    }
    // At most two steps: a directory, then a file in it.
    for _ in 0..2 {
        let meta = match fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return if fs::symlink_metadata(&path).is_ok() {
                    Err(TransferError::DanglingDestination(path))
                } else {
                    Ok(Target::Regular(path))
                };
            }
            Err(error) => return Err(TransferError::io("examine", &path, error)),
        };
        if is_same(source, &meta) {
            return Ok(Target::Same(path));
        }
        if meta.is_dir() {
            let Some(name) = source.file_name() else { break };
            path.push(name);
        } else if meta.is_file() {
            return Ok(Target::Regular(path));
        } else if meta.file_type().is_socket() || meta.file_type().is_fifo() {
            // Nobody may ever read what is written there.
            return Err(TransferError::SpecialFile(path));
        } else {
            return Ok(Target::Special(path));
        }
    }
    Err(TransferError::io(
        "write to",
        &path,
        io::Error::from(Errno::ISDIR),
    ))
}

/// Returns whether `meta` belongs to the file at `path`.
pub(super) fn is_same(path: &Path, meta: &fs::Metadata) -> bool {
    fs::metadata(path).is_ok_and(|other| other.ino() == meta.ino() && other.dev() == meta.dev())
}

fn copy_regular(
    mut file: File,
    meta: &fs::Metadata,
    source: &Path,
    path: PathBuf,
    mut hasher: Option<Sha256>,
    options: &CopyOptions,
) -> Result<Copied, TransferError> {
    let place = Place::of_file(&path)?;
    let (temporary, mut copy) = place.create_file(Mode::from_raw_mode(meta.permissions().mode() & 0o777))?;
    let extent = (meta.len(), meta.blocks());
    let (bytes, method) = data::copy_bytes(&mut file, &mut copy, extent, hasher.as_mut(), &options.cancel)
        .map_err(|error| data_error(error, source, &path))?;
    let size = copy
        .metadata()
        .map_err(|error| TransferError::io("examine", &path, error))?
        .len();
    if size != bytes || bytes < meta.len() {
        return Err(TransferError::SizeMismatch {
            path,
            expected: meta.len().max(bytes),
            copied: size,
        });
    }
    temporary.finish(copy)?;
    Ok(Copied {
        bytes,
        path,
        method: Some(method),
        sha256: hasher.map(|hasher| hasher.finalize().into()),
    })
}

fn copy_special(
    mut file: File,
    source: &Path,
    path: PathBuf,
    mut hasher: Option<Sha256>,
    options: &CopyOptions,
) -> Result<Copied, TransferError> {
    let mut sink = pmc_files::open_output(&path, OFlags::WRONLY, 0)
        .map_err(|error| TransferError::io("open", &path, error))?;
    let bytes = data::copy_stream(&mut file, &mut sink, hasher.as_mut(), &options.cancel)
        .map_err(|error| data_error(error, source, &path))?;
    let method = Some(Method::ReadWrite);
    Ok(Copied {
        bytes,
        path,
        method,
        sha256: hasher.map(|hasher| hasher.finalize().into()),
    })
}

fn data_error(error: DataError, source: &Path, copy: &Path) -> TransferError {
    match error {
        DataError::Read(error) => TransferError::io("read", source, error),
        DataError::Write(error) => TransferError::io("write", copy, error),
        DataError::Cancelled => TransferError::Cancelled,
    }
}
