//! SHA-256 of files.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use monitord_compat::invocation_record::ChecksummedFile;
use sha2::{Digest, Sha256};

/// Bytes per read.
const CHUNK: usize = 256 * 1024;
/// Reads between two looks for a signal.
const READS_PER_LOOK: u64 = 64;

/// Computes the SHA-256 of `file` in hexadecimal: of the bytes that it has at this moment, however it grows
/// meanwhile. Returns the time it took, too.
///
/// # Errors
/// The file cannot be read, is no regular file, or `is_over` says that there is no more time.
pub fn sha256(file: &Path, is_over: &mut dyn FnMut() -> bool) -> io::Result<(String, Duration)> {
    let start = Instant::now();
    // A process that the job has left may put something else in its place: a pipe never ends.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(file)?;
    let data = file.metadata()?;
    if !data.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let size = data.len();
    let hash = hash_of(file.take(size), size, is_over)?;
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok((text, start.elapsed()))
}

fn hash_of(mut data: impl Read, size: u64, is_over: &mut dyn FnMut() -> bool) -> io::Result<Sha256> {
    let mut buffer = vec![0; usize::try_from(size).unwrap_or(CHUNK).clamp(1, CHUNK)];
    let mut hash = Sha256::new();
    for reads in 1_u64.. {
        // A job decides how long that takes: the file may be sparse.
        if reads.is_multiple_of(READS_PER_LOOK) && is_over() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match data.read(&mut buffer) {
            Ok(0) => return Ok(hash),
            Ok(count) => hash.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hash)
}

/// Returns the checksum part of an output file's entry. Only regular files have a checksum.
#[must_use]
pub fn of_output(file: &Path, regular: bool, is_over: &mut dyn FnMut() -> bool) -> ChecksummedFile {
    if !regular {
        return ChecksummedFile::NotRegular;
    }
    match sha256(file, is_over) {
        Ok((sha256, took)) => ChecksummedFile::Checksum { sha256, took },
        Err(_) => ChecksummedFile::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_sha256sum() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("f");
        std::fs::write(&file, "hello\n").unwrap();
        let hello = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let sha256 = |file: &Path| sha256(file, &mut || false).unwrap().0;
        let of_output = |file: &Path, regular| of_output(file, regular, &mut || false);
        assert_eq!(sha256(&file), hello);
        std::fs::write(&file, "").unwrap();
        assert!(sha256(&file).starts_with("e3b0c44298fc1c14"));
        std::fs::write(&file, vec![b'a'; 1_000_000]).unwrap();
        assert!(sha256(&file).starts_with("cdc76e5c9914fb92"));
        assert!(matches!(
            of_output(folder.path(), false),
            ChecksummedFile::NotRegular
        ));
        // A file of the kernel can have the size 0 and still give bytes without end.
        assert!(sha256(Path::new("/proc/self/mountinfo")).starts_with("e3b0c44298fc1c14"));
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for name in ["no", "fifo"] {
            assert!(matches!(
                of_output(&folder.path().join(name), true),
                ChecksummedFile::Unreadable
            ));
        }
    }

    #[test]
    fn a_file_without_end_is_given_up() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 42).unwrap();
        let mut looks = 0;
        let mut is_over = || {
            looks += 1;
            true
        };
        let error = sha256(file.path(), &mut is_over).unwrap_err();
        assert_eq!((error.kind(), looks), (io::ErrorKind::TimedOut, 1));
    }
}
