//! Collects data whose length is not known: within a bound in memory, beyond it in files without names.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pmc_dag::reason;

use super::{Payload, Section};

/// Why data cannot be stored.
#[derive(Debug, thiserror::Error)]
#[error("Unable to store forwarded data in {}: {}", folder.display(), reason(source))]
pub struct SpoolError {
    folder: PathBuf,
    source: io::Error,
}

/// The bound that several queues share, and where their files are.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    /// Maximum bytes in memory.
    memory: usize,
    /// Bytes in memory now.
    held: usize,
}

/// Data that has been collected so far.
#[derive(Debug, Default)]
pub struct Queue {
    memory: Vec<u8>,
    /// All data, once the memory did not suffice.
    file: Option<File>,
    len: u64,
}

impl Spool {
    /// A spool with its files in `folder`, which keeps at most `memory` bytes in memory.
    #[must_use]
    pub fn new(folder: &Path, memory: usize) -> Self {
        Self {
            folder: folder.to_owned(),
            memory,
            held: 0,
        }
    }

    /// Appends data to a queue.
    ///
    /// # Errors
    /// The file cannot be written. The queue is then of no use any more.
    pub fn add(&mut self, queue: &mut Queue, data: &[u8]) -> Result<(), SpoolError> {
        queue.len += data.len() as u64;
        let fits = queue.file.is_none() && self.held + data.len() <= self.memory;
        // Without memory, there may still be room on the disk.
        if fits && queue.memory.try_reserve(data.len()).is_ok() {
            queue.memory.extend_from_slice(data);
            self.held += data.len();
            return Ok(());
        }
        self.write(queue, data).map_err(|source| SpoolError {
            folder: self.folder.clone(),
            source,
        })
    }

    fn write(&mut self, queue: &mut Queue, data: &[u8]) -> io::Result<()> {
        if queue.file.is_none() {
            let mut file = tempfile::tempfile_in(&self.folder)?;
            file.write_all(&queue.memory)?;
            self.held -= std::mem::take(&mut queue.memory).len();
            queue.file = Some(file);
        }
        match &mut queue.file {
            Some(file) => file.write_all(data),
            None => Ok(()),
        }
    }

    /// Ends a queue, and returns its data.
    #[must_use]
    pub fn take(&mut self, queue: Queue) -> Payload {
        self.held -= queue.memory.len();
        match queue.file {
            None => Payload::Bytes(queue.memory),
            Some(file) => Payload::Section(Section {
                file: Arc::new(file),
                start: 0,
                len: queue.len,
            }),
        }
    }
}

impl Payload {
    /// Splits off the first `len` bytes, or what there is.
    #[must_use]
    pub fn split_off_front(&mut self, len: u64) -> Self {
        let len = len.min(self.len());
        match self {
            Self::Bytes(bytes) => {
                let rest = bytes.split_off(usize::try_from(len).unwrap_or(bytes.len()));
                Self::Bytes(std::mem::replace(bytes, rest))
            }
            Self::Section(section) => {
                let front = Section {
                    len,
                    ..section.clone()
                };
                section.start += len;
                section.len -= len;
                Self::Section(front)
            }
            Self::Sent(left) => {
                *left -= len;
                Self::Sent(len)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn content(payload: &Payload) -> Vec<u8> {
        let mut all = Vec::new();
        let collect = |chunk: &[u8]| {
            all.extend_from_slice(chunk);
            Ok(())
        };
        payload.for_each_chunk(collect).unwrap();
        all
    }

    proptest! {
        #[test]
        fn data_is_the_same_in_memory_and_in_files(
            pieces in vec((0..3_usize, vec(any::<u8>(), 0..50)), 0..40),
            memory in 0..400_usize,
            at in 0..500_u64,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut spool = Spool::new(folder.path(), memory);
            let (mut queues, mut expected) = ([(); 3].map(|()| Queue::default()), [(); 3].map(|()| Vec::new()));
            for (queue, data) in &pieces {
                spool.add(&mut queues[*queue], data).unwrap();
                expected[*queue].extend_from_slice(data);
                prop_assert!(spool.held <= memory);
            }
            prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files have no names");
            for (queue, expected) in queues.into_iter().zip(expected) {
                let mut payload = spool.take(queue);
                prop_assert_eq!(payload.len(), expected.len() as u64);
                prop_assert_eq!(&content(&payload), &expected);
                let front = payload.split_off_front(at);
                let at = expected.len().min(at as usize);
                prop_assert_eq!(content(&front), &expected[..at]);
                prop_assert_eq!(content(&payload), &expected[at..]);
            }
            prop_assert_eq!(spool.held, 0);
        }
    }

    #[test]
    fn error_names_the_folder() {
        let mut spool = Spool::new(Path::new("no-such-folder"), 2);
        let mut queue = Queue::default();
        spool.add(&mut queue, b"ab").unwrap();
        let error = spool.add(&mut queue, b"c").unwrap_err().to_string();
        assert_eq!(
            error,
            "Unable to store forwarded data in no-such-folder: No such file or directory"
        );
    }

    #[test]
    fn data_that_has_not_arrived_cannot_be_read() {
        assert!(Payload::Sent(3).for_each_chunk(|_| Ok(())).is_err());
    }
}
