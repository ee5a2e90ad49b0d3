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

/// Computes the SHA-256 of `file` in hexadecimal: of the bytes that it has at this moment, however it grows
/// meanwhile. Returns the time it took, too.
///
/// # Errors
/// The file cannot be read, or is no regular file.
pub fn sha256(file: &Path) -> io::Result<(String, Duration)> {
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
    let hash = hash_of(file.take(size), size)?;
    let mut text = String::with_capacity(64);
    for byte in hash.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok((text, start.elapsed()))
}

fn hash_of(mut data: impl Read, size: u64) -> io::Result<Sha256> {
    let mut buffer = vec![0; usize::try_from(size).unwrap_or(CHUNK).clamp(1, CHUNK)];
    let mut hash = Sha256::new();
    loop {
        match data.read(&mut buffer) {
            Ok(0) => return Ok(hash),
            Ok(count) => hash.update(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns the checksum part of an output file's entry. Only regular files have a checksum.
#[must_use]
pub fn of_output(file: &Path, regular: bool) -> ChecksummedFile {
    if !regular {
        return ChecksummedFile::NotRegular;
    }
    match sha256(file) {
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
        assert_eq!(sha256(&file).unwrap().0, hello);
        std::fs::write(&file, "").unwrap();
        assert!(sha256(&file).unwrap().0.starts_with("e3b0c44298fc1c14"));
        std::fs::write(&file, vec![b'a'; 1_000_000]).unwrap();
        assert!(sha256(&file).unwrap().0.starts_with("cdc76e5c9914fb92"));
        assert!(matches!(
            of_output(folder.path(), false),
            ChecksummedFile::NotRegular
        ));
        // A file of the kernel can have the size 0 and still give bytes without end.
        assert!(
            sha256(Path::new("/proc/self/mountinfo"))
                .unwrap()
                .0
                .starts_with("e3b0c44298fc1c14")
        );
        let fifo = folder.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for name in ["no", "fifo"] {
            assert!(matches!(
                of_output(&folder.path().join(name), true),
                ChecksummedFile::Unreadable
            ));
        }
    }
}
