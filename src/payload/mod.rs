//! Forwarded data of any size: small data is in memory, large data in a file without a name.

mod spool;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

pub use spool::{Queue, Spool, SpoolError};

/// Bytes that are read from a file at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Forwarded data.
///
/// In an encoded message, a [`Payload::Section`] is a [`Payload::Sent`] of its length.
#[derive(Clone, Debug, PartialEq)]
pub enum Payload {
    /// In memory.
    Bytes(Vec<u8>),
    /// In a file.
    Section(Section),
    /// Number of bytes that came before the message, or should have come.
    Sent(u64),
}

/// A part of a file without a name. The file goes when its last section is dropped.
#[derive(Clone, Debug)]
pub struct Section {
    file: Arc<File>,
    /// Where it begins.
    start: u64,
    len: u64,
}

impl PartialEq for Section {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.file, &other.file) && (self.start, self.len) == (other.start, other.len)
    }
}

impl Payload {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Section(section) => section.len,
            Self::Sent(len) => *len,
        }
    }

    /// Returns whether there is no data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Passes the data to `take`, in order, a chunk at a time.
    ///
    /// # Errors
    /// The file cannot be read, the data has not arrived, or `take` failed.
    pub fn for_each_chunk(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => take(bytes),
            Self::Section(section) => section.for_each_chunk(take),
            Self::Sent(_) => Err(io::Error::other("the data has not arrived")),
        }
    }
}

/// Files up to this length are read into memory.
const SMALL_FILE: u64 = 16 << 10;

impl Payload {
    /// The content of a file, which must not get shorter.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_file(file: File) -> io::Result<Self> {
        let section = Section {
            start: 0,
            len: file.metadata()?.len(),
            file: Arc::new(file),
        };
        if section.len > SMALL_FILE {
            return Ok(Self::Section(section));
        }
        let mut bytes = Vec::new();
        section.for_each_chunk(|chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(Self::Bytes(bytes))
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl Section {
    fn for_each_chunk(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK_BYTES.min(usize::try_from(self.len).unwrap_or(CHUNK_BYTES))];
        let mut done = 0;
        while done < self.len {
            let count = usize::try_from(self.len - done).map_or(buffer.len(), |left| left.min(buffer.len()));
            self.file.read_exact_at(&mut buffer[..count], self.start + done)?;
            take(&buffer[..count])?;
            done += count as u64;
        }
        Ok(())
    }
}

#[derive(Serialize)]
enum Encoded<'a> {
    Bytes(&'a Bytes),
    Sent(u64),
}

#[derive(Deserialize)]
enum Decoded {
    Bytes(ByteBuf),
    Sent(u64),
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let encoded = match self {
            Self::Bytes(bytes) => Encoded::Bytes(Bytes::new(bytes)),
            Self::Section(_) | Self::Sent(_) => Encoded::Sent(self.len()),
        };
        encoded.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match Decoded::deserialize(deserializer)? {
            Decoded::Bytes(bytes) => Self::Bytes(bytes.into_vec()),
            Decoded::Sent(len) => Self::Sent(len),
        })
    }
}
