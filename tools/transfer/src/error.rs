//! Errors of a transfer, and whether another attempt can help.

use std::io;
use std::path::{Path, PathBuf};

use crate::shown;

/// Whether and how soon another attempt makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// The same attempt would fail in the same way.
    Never,
    /// The cause may disappear within seconds (a busy file system).
    Soon,
    /// The cause is a remote service that may need minutes.
    Later,
}

/// Failure of one transfer, directory or removal.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// A system call on a local file failed.
    #[error("cannot {action} {}: {source}", shown::path(path))]
    Io {
        /// The failed action, as a verb: "open", "create the directory".
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The source does not exist.
    #[error("Expected local file does not exist: {}", shown::path(.0))]
    SourceMissing(PathBuf),
    /// The target of a new link does not exist.
    #[error("Symlink source ({}) does not exist", shown::path(.0))]
    LinkSourceMissing(PathBuf),
    /// The source is a device, pipe or socket.
    #[error("{} is neither a file nor a directory", shown::path(.0))]
    SpecialFile(PathBuf),
    /// The destination is a symbolic link to nothing; writing through it would create a file somewhere else.
    #[error("{} is a symbolic link to a file that does not exist; remove the link", shown::path(.0))]
    DanglingDestination(PathBuf),
    /// A file is in the place of a directory.
    #[error("{} exists and is not a directory", shown::path(.0))]
    NotADirectory(PathBuf),
    /// A removal that is not recursive found a directory.
    #[error("{} is a directory; the removal is not recursive", shown::path(.0))]
    IsADirectory(PathBuf),
    /// The removal must be a mistake: the root, or a name ending in `.` or `..`.
    #[error("refusing to remove {}", shown::path(.0))]
    RefusedRemoval(PathBuf),
    /// The copy does not have the size of the source.
    #[error(
        "{} has {copied} bytes after the copy, but its source had {expected}",
        shown::path(path)
    )]
    SizeMismatch {
        /// The copy.
        path: PathBuf,
        /// Size of the source, bytes.
        expected: u64,
        /// Size of the copy, bytes.
        copied: u64,
    },
    /// The checksum of a file differs from its metadata.
    #[error("checksum of {} is {actual}, but {expected} was expected", shown::path(path))]
    ChecksumMismatch {
        /// The file.
        path: PathBuf,
        /// SHA-256 in the metadata, hexadecimal.
        expected: String,
        /// SHA-256 of the file, hexadecimal.
        actual: String,
    },
    /// The metadata files of the working directory have no checksum of the file.
    #[error("no checksum in the metadata for {}", shown::bytes(.0))]
    ChecksumUnknown(Vec<u8>),
    /// No handler for this pair of protocols.
    #[error("{}", unsupported(from, to, url))]
    Unsupported {
        /// Protocol of the source; empty for a directory or a removal.
        from: String,
        /// Protocol of the destination.
        to: String,
        /// The URL without a handler.
        url: String,
    },
    /// Not attempted, because of earlier failures.
    #[error("not attempted: {0}")]
    Skipped(&'static str),
    /// The run was cancelled.
    #[error("interrupted")]
    Cancelled,
    /// A server or the network failed.
    #[error("{message}")]
    Remote {
        /// The answer or the problem.
        message: String,
        /// Whether another attempt can help.
        retry: Retry,
    },
    /// A host failed several times in a row.
    #[error("not attempted: {host} failed {failures} times in a row")]
    HostGivenUp {
        /// Protocol and host.
        host: String,
        /// Failures in a row.
        failures: u32,
    },
    /// Credentials are missing or unusable.
    #[error("{0}")]
    Credentials(String),
    /// A program that a protocol needs is not installed.
    #[error("{program} is needed for {protocol} URLs, but is not found in PATH")]
    ProgramMissing {
        /// The program, or several alternatives.
        program: String,
        /// The protocol.
        protocol: String,
    },
    /// An external program failed.
    #[error("{program} failed: {message}")]
    External {
        /// Name of the program.
        program: String,
        /// Its exit status and the end of its output.
        message: String,
        /// Whether another attempt can help.
        retry: Retry,
    },
}

fn unsupported(from: &str, to: &str, url: &str) -> String {
    let hint = if from == "hpss" || to == "hpss" {
        "run htar or hsi in a job of the workflow, and transfer what it wrote"
    } else {
        let needs_network = [from, to].iter().any(|side| !matches!(*side, "" | "file"));
        if needs_network && !cfg!(feature = "remote") {
            "this program was built without the feature `remote`; build it with `--features full`"
        } else {
            "see the protocols in the manual page"
        }
    };
    if from.is_empty() {
        format!("Unable to find handlers for '{to}': {url} ({hint})")
    } else {
        format!("Unable to find handlers for '{from}' to '{to}' transfers: {url} ({hint})")
    }
}

impl TransferError {
    /// Creates an [`Io`](Self::Io) error about `path`.
    pub fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// Creates a [`Remote`](Self::Remote) error.
    #[must_use]
    pub fn remote(message: impl Into<String>, retry: Retry) -> Self {
        Self::Remote {
            message: message.into(),
            retry,
        }
    }

    /// Returns whether a file system of this machine, or the user's quota of it, is full.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        use io::ErrorKind as K;
        matches!(self, Self::Io { source, .. } if matches!(source.kind(), K::StorageFull | K::QuotaExceeded))
    }

    /// Returns whether another attempt can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Io { source, .. } => io_retry(source),
            Self::SizeMismatch { .. } | Self::ChecksumMismatch { .. } => Retry::Soon,
            Self::External { retry, .. } | Self::Remote { retry, .. } => *retry,
            // The host may recover meanwhile.
            Self::HostGivenUp { .. } => Retry::Later,
            Self::SourceMissing(_)
            | Self::LinkSourceMissing(_)
            | Self::SpecialFile(_)
            | Self::DanglingDestination(_)
            | Self::NotADirectory(_)
            | Self::IsADirectory(_)
            | Self::RefusedRemoval(_)
            | Self::ChecksumUnknown(_)
            | Self::Unsupported { .. }
            | Self::Credentials(_)
            | Self::ProgramMissing { .. }
            | Self::Skipped(_)
            | Self::Cancelled => Retry::Never,
        }
    }
}

/// Classifies errors of local and network file systems. Wrong names, kinds of files and permissions persist;
/// missing space, handles and servers may come back.
fn io_retry(error: &io::Error) -> Retry {
    use io::ErrorKind as K;
    match error.kind() {
        K::NotFound
        | K::PermissionDenied
        | K::NotADirectory
        | K::IsADirectory
        | K::InvalidInput
        | K::InvalidFilename
        | K::ReadOnlyFilesystem
        | K::FileTooLarge
        | K::Unsupported
        | K::TooManyLinks => Retry::Never,
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => Retry::Never,
        _ => Retry::Soon,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disks_are_retried_and_wrong_names_are_not() {
        let io =
            |e: rustix::io::Errno| TransferError::io("write", Path::new("/x"), io::Error::from(e)).retry();
        use rustix::io::Errno as E;
        for errno in [
            E::NOSPC,
            E::DQUOT,
            E::IO,
            E::STALE,
            E::MFILE,
            E::AGAIN,
            E::TIMEDOUT,
            E::NOTEMPTY,
        ] {
            assert_eq!(io(errno), Retry::Soon, "{errno}");
        }
        for errno in [
            E::NOENT,
            E::ACCESS,
            E::PERM,
            E::ROFS,
            E::NAMETOOLONG,
            E::LOOP,
            E::NOTDIR,
            E::ISDIR,
        ] {
            assert_eq!(io(errno), Retry::Never, "{errno}");
        }
    }
}
