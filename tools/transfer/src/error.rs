//! What can go wrong with one transfer, and whether trying again can help.

use std::io;
use std::path::{Path, PathBuf};

use crate::shown;

/// Whether, and how soon, another attempt makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retry {
    /// The same attempt would fail in the same way.
    Never,
    /// The cause may go away within seconds (a busy file system).
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
        /// What was being done, as a verb: "open", "create the directory".
        action: &'static str,
        /// The file it was done to.
        path: PathBuf,
        /// The answer of the system.
        source: io::Error,
    },
    /// The source is not there.
    #[error("Expected local file does not exist: {}", shown::path(.0))]
    SourceMissing(PathBuf),
    /// The target of a link to be made is not there.
    #[error("Symlink source ({}) does not exist", shown::path(.0))]
    LinkSourceMissing(PathBuf),
    /// The source is a device, pipe or socket.
    #[error("{} is neither a file nor a directory", shown::path(.0))]
    SpecialFile(PathBuf),
    /// The destination is a symbolic link to nothing; writing through it would create a file somewhere else.
    #[error("{} is a symbolic link to a file that does not exist; remove the link", shown::path(.0))]
    DanglingDestination(PathBuf),
    /// A directory shall replace a file or the other way round.
    #[error("{} exists and is not a directory", shown::path(.0))]
    NotADirectory(PathBuf),
    /// A removal that did not ask for directories met one.
    #[error("{} is a directory; the removal is not recursive", shown::path(.0))]
    IsADirectory(PathBuf),
    /// Removing this could only be a mistake: the root, or a name ending in `.` or `..`.
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
    /// A file's content is not what the metadata promises.
    #[error("checksum of {} is {actual}, but {expected} was expected", shown::path(path))]
    ChecksumMismatch {
        /// The file.
        path: PathBuf,
        /// SHA-256 in the metadata, hexadecimal.
        expected: String,
        /// SHA-256 of the file, hexadecimal.
        actual: String,
    },
    /// The metadata files of the working directory do not know the file.
    #[error("no checksum in the metadata for {}", shown::bytes(.0))]
    ChecksumUnknown(Vec<u8>),
    /// No handler for this pair of protocols.
    #[error("{}", unsupported(from, to, url))]
    Unsupported {
        /// Protocol of the source; empty for a directory or a removal.
        from: String,
        /// Protocol of the destination.
        to: String,
        /// The URL that needs the missing handler.
        url: String,
    },
    /// Not tried, because of failures before.
    #[error("not attempted: {0}")]
    Skipped(&'static str),
    /// The program was asked to stop.
    #[error("interrupted")]
    Cancelled,
    /// A server, or the way to it, failed.
    #[error("{message}")]
    Remote {
        /// What was answered or happened.
        message: String,
        /// Whether another attempt can help.
        retry: Retry,
    },
    /// A host failed again and again.
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
        /// The program, or several that would do.
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
        "see the protocols in the manual page"
    };
    if from.is_empty() {
        format!("Unable to find handlers for '{to}': {url} ({hint})")
    } else {
        format!("Unable to find handlers for '{from}' to '{to}' transfers: {url} ({hint})")
    }
}

impl TransferError {
    /// An [`Io`](Self::Io) error about `path`.
    pub fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            source: source.into(),
        }
    }

    /// A failure of a server.
    #[must_use]
    pub fn remote(message: impl Into<String>, retry: Retry) -> Self {
        Self::Remote {
            message: message.into(),
            retry,
        }
    }

    /// Whether another attempt can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Io { source, .. } => io_retry(source),
            Self::SizeMismatch { .. } | Self::ChecksumMismatch { .. } => Retry::Soon,
            Self::External { retry, .. } | Self::Remote { retry, .. } => *retry,
            // Other entries may find the host well again.
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

/// Sorts the answers of a local or network file system. Names, kinds of files and permissions stay as they
/// are; space, handles and servers come back.
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
    fn full_disks_are_worth_another_attempt_and_wrong_names_are_not() {
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
