//! Copies the bytes of one file by the cheapest method of the file systems, and keeps holes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::cancel::Cancel;

/// How the bytes were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Shared blocks, without a copy (`FICLONE`).
    Reflink,
    /// Inside the kernel, perhaps on the server (`copy_file_range`).
    CopyFileRange,
    /// Inside the kernel (`sendfile`).
    Sendfile,
    /// Through this process.
    ReadWrite,
}

/// Maximum size of a file that is copied through one buffer, with the fewest system calls; in bytes.
const MAX_SMALL_FILE: u64 = 64 << 10;
/// Minimum and maximum bytes of one system call.
const MIN_STEP: u64 = 1 << 20;
const MAX_STEP: u64 = 64 << 20;
/// Maximum intended duration of one system call. Short calls let a cancelled copy clean up before it is
/// killed, half a second later.
const STEP_DURATION: Duration = Duration::from_millis(50);
/// Size of the buffer for larger files, in bytes.
const BUFFER_SIZE: usize = 256 << 10;

/// A failure, by the file concerned.
pub(super) enum DataError {
    Read(io::Error),
    Write(io::Error),
    Cancelled,
}

/// Copies `source` from its start to the empty file `copy`. `size` and `blocks` (of 512 bytes) are those of
/// the source. With `hash` the bytes are also hashed. Returns the size of the copy in bytes.
pub(super) fn copy_bytes(
    source: &mut File,
    copy: &mut File,
    (size, blocks): (u64, u64),
    hash: Option<&mut Sha256>,
    cancel: &Cancel,
) -> Result<(u64, Method), DataError> {
    let mut job = Job {
        source,
        copy,
        hash,
        cancel,
        buffer: Vec::new(),
    };
    if size <= MAX_SMALL_FILE {
        return Ok((job.through_buffer(0, None)?, Method::ReadWrite));
    }
    if rustix::fs::ioctl_ficlone(&*job.copy, &*job.source).is_ok() {
        return Ok((job.hash_clone(size)?, Method::Reflink));
    }
    let sparse = blocks.saturating_mul(512) < size;
    let mut method = if job.hash.is_some() {
        Method::ReadWrite
    } else {
        Method::CopyFileRange
    };
    let mut position = 0;
    while position < size {
        let (start, end) = if sparse {
            job.next_data(position, size)?
        } else {
            (position, size)
        };
        job.hash_zeros(start - position)?;
        let copied = job.copy_extent(start, end, &mut method)?;
        position = start + copied;
        if copied < end - start {
            break; // the source became shorter; the caller notices by the size
        }
    }
    // Only setting the length creates a hole at the end.
    let length = job.copy.metadata().map_err(DataError::Write)?.len();
    if length < position {
        job.copy.set_len(position).map_err(DataError::Write)?;
    }
    // The source may have grown meanwhile.
    let more = if position >= size {
        job.through_buffer(position, None)?
    } else {
        0
    };
    Ok((position + more, method))
}

/// Computes the SHA-256 of an open file; `None` if cancelled.
pub(crate) fn hash_file(file: &mut File, cancel: &Cancel) -> io::Result<Option<[u8; 32]>> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER_SIZE];
    loop {
        if cancel.is_cancelled() {
            return Ok(None);
        }
        match file.read(&mut buffer) {
            Ok(0) => return Ok(Some(hasher.finalize().into())),
            Ok(read) => hasher.update(&buffer[..read]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

struct Job<'a> {
    source: &'a mut File,
    copy: &'a mut File,
    hash: Option<&'a mut Sha256>,
    cancel: &'a Cancel,
    buffer: Vec<u8>,
}

impl Job<'_> {
    fn check(&self) -> Result<(), DataError> {
        if self.cancel.is_cancelled() {
            Err(DataError::Cancelled)
        } else {
            Ok(())
        }
    }

    /// Returns start and end of the next data at or after `position`; both are `size` if there is none.
    fn next_data(&self, position: u64, size: u64) -> Result<(u64, u64), DataError> {
        match rustix::fs::seek(&*self.source, rustix::fs::SeekFrom::Data(position)) {
            Ok(start) if start >= size => Ok((size, size)),
            Ok(start) => {
                let end = rustix::fs::seek(&*self.source, rustix::fs::SeekFrom::Hole(start)).unwrap_or(size);
                Ok((start, end.clamp(start + 1, size)))
            }
            Err(Errno::NXIO) => Ok((size, size)),
            // The file system does not report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok((position, size)),
            Err(errno) => Err(DataError::Read(errno.into())),
        }
    }

    /// Copies the bytes from `start` to `end` to the same position. Falls back from method to method, and
    /// stores in `method` the one that worked. Returns fewer bytes only at the end of the source.
    fn copy_extent(&mut self, start: u64, end: u64, method: &mut Method) -> Result<u64, DataError> {
        let mut done = 0;
        let mut max_step = MIN_STEP;
        while start + done < end {
            self.check()?;
            let (from, left) = (start + done, end - start - done);
            let step = usize::try_from(left.min(max_step)).unwrap_or(BUFFER_SIZE);
            let clock = Instant::now();
            let answer = match method {
                Method::CopyFileRange => {
                    let (mut read, mut write) = (from, from);
                    rustix::fs::copy_file_range(
                        &*self.source,
                        Some(&mut read),
                        &*self.copy,
                        Some(&mut write),
                        step,
                    )
                }
                Method::Sendfile => {
                    self.copy.seek(SeekFrom::Start(from)).map_err(DataError::Write)?;
                    let mut read = from;
                    rustix::fs::sendfile(&*self.copy, &*self.source, Some(&mut read), step)
                }
                Method::ReadWrite | Method::Reflink => {
                    return Ok(done + self.through_buffer(from, Some(left))?);
                }
            };
            match answer {
                Ok(count) if count > 0 => {
                    done += count as u64;
                    max_step = if clock.elapsed() < STEP_DURATION / 2 {
                        max_step * 2
                    } else {
                        max_step / 2
                    };
                    max_step = max_step.clamp(MIN_STEP, MAX_STEP);
                }
                Err(Errno::INTR) => {}
                // The other methods fail on a full disk, too.
                Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                    return Err(DataError::Write(errno.into()));
                }
                // No progress, or another error: the next method shows whether it persists.
                _ => {
                    *method = match method {
                        Method::CopyFileRange => Method::Sendfile,
                        _ => Method::ReadWrite,
                    };
                }
            }
        }
        Ok(done)
    }

    /// Copies `limit` bytes from `start` through memory, or up to the end of the source.
    fn through_buffer(&mut self, start: u64, limit: Option<u64>) -> Result<u64, DataError> {
        let small = start == 0 && limit.is_none();
        let buffer_size = if small {
            MAX_SMALL_FILE as usize
        } else {
            BUFFER_SIZE
        };
        if self.buffer.len() < buffer_size {
            self.buffer.resize(buffer_size, 0);
        }
        let mut done = 0;
        while limit.is_none_or(|limit| done < limit) {
            self.check()?;
            let step = limit.map_or(buffer_size, |limit| {
                usize::try_from(limit - done)
                    .unwrap_or(buffer_size)
                    .min(buffer_size)
            });
            let read = match self.source.read_at(&mut self.buffer[..step], start + done) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(DataError::Read(error)),
            };
            let bytes = &self.buffer[..read];
            if let Some(hash) = &mut self.hash {
                hash.update(bytes);
            }
            self.copy
                .write_all_at(bytes, start + done)
                .map_err(DataError::Write)?;
            done += read as u64;
        }
        Ok(done)
    }

    /// Hashes a clone if requested, and returns its size.
    fn hash_clone(&mut self, size: u64) -> Result<u64, DataError> {
        if let Some(hash) = &mut self.hash {
            self.buffer.resize(BUFFER_SIZE, 0);
            let mut position = 0;
            loop {
                if self.cancel.is_cancelled() {
                    return Err(DataError::Cancelled);
                }
                match self.copy.read_at(&mut self.buffer, position) {
                    Ok(0) => break,
                    Ok(read) => {
                        hash.update(&self.buffer[..read]);
                        position += read as u64;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(DataError::Read(error)),
                }
            }
        }
        Ok(self.copy.metadata().map_or(size, |metadata| metadata.len()))
    }

    /// Hashes the zeros of a hole.
    fn hash_zeros(&mut self, mut count: u64) -> Result<(), DataError> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        if self.hash.is_none() {
            return Ok(());
        }
        while count > 0 {
            self.check()?;
            let step = usize::try_from(count).unwrap_or(ZEROS.len()).min(ZEROS.len());
            if let Some(hash) = &mut self.hash {
                hash.update(&ZEROS[..step]);
            }
            count -= step as u64;
        }
        Ok(())
    }
}

/// Copies `source` into a special file (a device, a pipe).
pub(super) fn copy_stream(
    source: &mut File,
    sink: &mut File,
    mut hash: Option<&mut Sha256>,
    cancel: &Cancel,
) -> Result<u64, DataError> {
    let mut buffer = vec![0; BUFFER_SIZE];
    let mut done = 0;
    loop {
        if cancel.is_cancelled() {
            return Err(DataError::Cancelled);
        }
        let read = match source.read(&mut buffer) {
            Ok(0) => return Ok(done),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(DataError::Read(error)),
        };
        if let Some(hash) = &mut hash {
            hash.update(&buffer[..read]);
        }
        sink.write_all(&buffer[..read]).map_err(DataError::Write)?;
        done += read as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::fs::MetadataExt;

    fn copy_of(source: &mut File, hash: bool) -> (File, Option<[u8; 32]>, Method) {
        let meta = source.metadata().expect("metadata");
        let mut copy = tempfile::tempfile().expect("temporary file");
        let mut hasher = hash.then(Sha256::new);
        let answer = copy_bytes(
            source,
            &mut copy,
            (meta.len(), meta.blocks()),
            hasher.as_mut(),
            &Cancel::new(),
        );
        let Ok((bytes, method)) = answer else {
            panic!("copy failed")
        };
        assert_eq!(bytes, meta.len());
        (copy, hasher.map(|h| h.finalize().into()), method)
    }

    fn content(file: &mut File) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.rewind().expect("rewind");
        file.read_to_end(&mut bytes).expect("read");
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        /// Any layout of data and holes gives the same bytes and the same hash.
        #[test]
        fn copies_equal_their_source(
            parts in proptest::collection::vec((any::<bool>(), 1u64..300_000, any::<u8>()), 0..8),
            hash in any::<bool>(),
        ) {
            let mut source = tempfile::tempfile().expect("temporary file");
            let mut end = 0;
            for (data, length, byte) in parts {
                if data {
                    source.write_all_at(&vec![byte; length as usize], end).expect("write");
                }
                end += length;
            }
            source.set_len(end).expect("length");
            let (mut copy, hashed, _) = copy_of(&mut source, hash);
            let bytes = content(&mut source);
            prop_assert!(content(&mut copy) == bytes);
            if let Some(hashed) = hashed {
                let expected: [u8; 32] = Sha256::digest(&bytes).into();
                prop_assert_eq!(hashed, expected);
            }
        }
    }

    #[test]
    fn holes_stay_holes() {
        for hash in [false, true] {
            let mut source = tempfile::tempfile().expect("temporary file");
            source.write_all_at(b"start", 0).expect("write");
            source.write_all_at(b"middle", 32 << 20).expect("write");
            source.set_len(64 << 20).expect("length");
            let (copy, ..) = copy_of(&mut source, hash);
            let meta = copy.metadata().expect("metadata");
            assert_eq!(meta.len(), 64 << 20);
            assert!(meta.blocks() * 512 < 1 << 20, "{} blocks", meta.blocks());
        }
    }

    #[test]
    fn every_method_copies() {
        for first in [Method::CopyFileRange, Method::Sendfile, Method::ReadWrite] {
            let mut source = tempfile::tempfile().expect("temporary file");
            let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
            source.write_all(&bytes).expect("write");
            let mut copy = tempfile::tempfile().expect("temporary file");
            let cancel = Cancel::new();
            let mut job = Job {
                source: &mut source,
                copy: &mut copy,
                hash: None,
                cancel: &cancel,
                buffer: Vec::new(),
            };
            let mut method = first;
            let Ok(count) = job.copy_extent(1000, 3_000_000, &mut method) else {
                panic!("{first:?}")
            };
            assert_eq!(count, 2_999_000, "{first:?}");
            assert!(content(&mut copy)[1000..] == bytes[1000..], "{first:?}");
        }
    }

    #[test]
    fn files_without_a_size_are_read_to_their_end() {
        let mut source = File::open("/proc/self/status").expect("proc");
        let mut copy = tempfile::tempfile().expect("temporary file");
        let Ok((bytes, _)) = copy_bytes(&mut source, &mut copy, (0, 0), None, &Cancel::new()) else {
            panic!("copy failed")
        };
        assert!(bytes > 100);
    }

    #[test]
    fn cancellation_stops_the_copy() {
        let mut source = tempfile::tempfile().expect("temporary file");
        source.set_len(1 << 20).expect("length");
        let mut copy = tempfile::tempfile().expect("temporary file");
        let cancel = Cancel::new();
        cancel.cancel();
        let hash = &mut Sha256::new();
        let answer = copy_bytes(&mut source, &mut copy, (1 << 20, 2048), Some(hash), &cancel);
        assert!(matches!(answer, Err(DataError::Cancelled)));
    }
}
