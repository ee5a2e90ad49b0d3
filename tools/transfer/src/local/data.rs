//! The bytes of one file: by the cheapest way the file systems offer, holes kept.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use sha2::{Digest, Sha256};

use crate::cancel::Cancel;

/// How the bytes came to the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Shared blocks; nothing was copied (`FICLONE`).
    Reflink,
    /// Inside the kernel, perhaps on the server (`copy_file_range`).
    CopyFileRange,
    /// Inside the kernel (`sendfile`).
    Sendfile,
    /// Through this process.
    ReadWrite,
}

/// Files up to this size go through one buffer: fewer system calls than any other way.
const SMALL: u64 = 64 << 10;
/// Least and most bytes of one system call.
const STEPS: [u64; 2] = [1 << 20, 64 << 20];
/// How long one system call should take: whoever asks for an end kills half a second later.
const SOON: Duration = Duration::from_millis(50);
/// Bytes of the buffer of larger files.
const BUFFER: usize = 256 << 10;

/// A failure, and which file it concerns.
pub(super) enum DataError {
    Read(io::Error),
    Write(io::Error),
    Cancelled,
}

/// Copies everything from the start of `source` to the empty file `copy`. `size` and `blocks` (of 512
/// bytes) are those of the source; with `hash` the bytes are also hashed on their way. Returns the number
/// of bytes of the copy.
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
    if size <= SMALL {
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
        let copied = job.extent(start, end, &mut method)?;
        position = start + copied;
        if copied < end - start {
            break; // the source became shorter; the caller sees it by the size
        }
    }
    // A hole at the end is only made by setting the length.
    let length = job.copy.metadata().map_err(DataError::Write)?.len();
    if length < position {
        job.copy.set_len(position).map_err(DataError::Write)?;
    }
    // A file that is still being written has grown meanwhile.
    let more = if position >= size {
        job.through_buffer(position, None)?
    } else {
        0
    };
    Ok((position + more, method))
}

/// The SHA-256 of a whole file.
pub(crate) fn hash_file(file: &mut File, cancel: &Cancel) -> io::Result<Option<[u8; 32]>> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; BUFFER];
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

    /// Start and end of the next part with data at or after `position`; start is `size` if there is none.
    fn next_data(&self, position: u64, size: u64) -> Result<(u64, u64), DataError> {
        match rustix::fs::seek(&*self.source, rustix::fs::SeekFrom::Data(position)) {
            Ok(start) if start >= size => Ok((size, size)),
            Ok(start) => {
                let end = rustix::fs::seek(&*self.source, rustix::fs::SeekFrom::Hole(start)).unwrap_or(size);
                Ok((start, end.clamp(start + 1, size)))
            }
            Err(Errno::NXIO) => Ok((size, size)),
            // The file system does not tell where its holes are.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => Ok((position, size)),
            Err(errno) => Err(DataError::Read(errno.into())),
        }
    }

    /// Copies the bytes from `start` to `end` to the same place; falls back from way to way and remembers
    /// in `method` what worked. Returns less than asked only at the end of the source.
    fn extent(&mut self, start: u64, end: u64, method: &mut Method) -> Result<u64, DataError> {
        let mut done = 0;
        let mut most = STEPS[0];
        while start + done < end {
            self.check()?;
            let (from, left) = (start + done, end - start - done);
            let step = usize::try_from(left.min(most)).unwrap_or(BUFFER);
            let began = Instant::now();
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
                    most = if began.elapsed() < SOON / 2 {
                        most * 2
                    } else {
                        most / 2
                    };
                    most = most.clamp(STEPS[0], STEPS[1]);
                }
                Err(Errno::INTR) => {}
                // A full disk stays full for the other ways.
                Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => {
                    return Err(DataError::Write(errno.into()));
                }
                // No progress or any other refusal: the next way finds out whether it is a real error.
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

    /// Copies through memory from `start` for `limit` bytes, or to the end of the source.
    fn through_buffer(&mut self, start: u64, limit: Option<u64>) -> Result<u64, DataError> {
        let small = start == 0 && limit.is_none();
        let wanted = if small { SMALL as usize } else { BUFFER };
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        let mut done = 0;
        while limit.is_none_or(|limit| done < limit) {
            self.check()?;
            let step = limit.map_or(wanted, |limit| {
                usize::try_from(limit - done).unwrap_or(wanted).min(wanted)
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

    /// Hashes a clone's source; returns the size of the clone.
    fn hash_clone(&mut self, size: u64) -> Result<u64, DataError> {
        if let Some(hash) = &mut self.hash {
            self.buffer.resize(BUFFER, 0);
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

    /// Hashes a hole.
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

/// Writes all of `source` into a file that is no regular file (a device, a pipe).
pub(super) fn copy_stream(
    source: &mut File,
    sink: &mut File,
    mut hash: Option<&mut Sha256>,
    cancel: &Cancel,
) -> Result<u64, DataError> {
    let mut buffer = vec![0; BUFFER];
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
        /// Any layout of data and holes gives the same bytes, the same hash, and no more blocks.
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
    fn every_way_copies() {
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
            let Ok(count) = job.extent(1000, 3_000_000, &mut method) else {
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
    fn a_request_to_stop_is_seen() {
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
