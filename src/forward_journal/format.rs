//! The bytes of the journal. Numbers are little endian.
//!
//! ```text
//! header   "PMCFWDJ1", u64 length of the rescue file, u32 CRC of both
//! record   u64 length of the body, u32 CRC of length and body, body
//! body     u32 length and bytes of the task's name, u32 number of pieces, pieces
//! piece    u32 length and bytes of the target's path, u8 kind, u64 offset, u64 length of the data,
//!          data (kind 1: known offset), or nothing (kind 0: the file is left alone)
//! ```

/// First bytes of the file; the last one is the version.
const MAGIC: [u8; 8] = *b"PMCFWDJ1";

/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 20;

const FRAME_LEN: usize = 12;

/// Data of one task for one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Absolute path of the file.
    pub target: &'a [u8],
    /// Where the data begins; nothing if others write the file, too, so that it is left alone.
    pub at: Option<u64>,
    /// The data; empty in a decoded piece without offset.
    pub data: &'a [u8],
}

/// What one task forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Name of the task.
    pub task: &'a [u8],
    /// In the order of writing.
    pub pieces: Vec<Piece<'a>>,
}

/// A journal as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content<'a> {
    /// Length of the rescue file when the journal was begun.
    pub rescue_len: u64,
    /// All whole records; a torn end is left out.
    pub records: Vec<Record<'a>>,
}

/// The file does not begin as a journal does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no forward journal of a version that this program knows")]
pub struct UnknownFormat;

/// Header of a journal that is begun when the rescue file has this length.
#[must_use]
pub fn header(rescue_len: u64) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&rescue_len.to_le_bytes());
    let crc = crc32fast::hash(&header[..16]);
    header[16..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Appends a record to `out`.
pub fn encode(out: &mut Vec<u8>, task: &[u8], pieces: &[Piece<'_>]) {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_LEN]);
    put_short(out, task);
    out.extend_from_slice(&(pieces.len() as u32).to_le_bytes());
    for piece in pieces {
        put_short(out, piece.target);
        out.push(u8::from(piece.at.is_some()));
        out.extend_from_slice(&piece.at.unwrap_or(0).to_le_bytes());
        let data = if piece.at.is_some() { piece.data } else { &[] };
        out.extend_from_slice(&(data.len() as u64).to_le_bytes());
        out.extend_from_slice(data);
    }
    let len = (out.len() - start - FRAME_LEN) as u64;
    out[start..start + 8].copy_from_slice(&len.to_le_bytes());
    let crc = frame_crc(&out[start..start + 8], &out[start + FRAME_LEN..]);
    out[start + 8..start + FRAME_LEN].copy_from_slice(&crc.to_le_bytes());
}

/// Reads a journal up to the first record that is not whole.
///
/// # Errors
/// It does not begin as a journal does.
pub fn decode(bytes: &[u8]) -> Result<Content<'_>, UnknownFormat> {
    let rescue_len = bytes
        .get(8..16)
        .and_then(|part| part.try_into().ok())
        .map(u64::from_le_bytes)
        .filter(|len| bytes.starts_with(&header(*len)))
        .ok_or(UnknownFormat)?;
    let mut records = Vec::new();
    let mut rest = Reader(&bytes[HEADER_LEN..]);
    while let Some(record) = rest.record() {
        records.push(record);
    }
    Ok(Content { rescue_len, records })
}

fn frame_crc(len: &[u8], body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(len);
    crc.update(body);
    crc.finalize()
}

fn put_short(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: u64) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(head)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len.into())
    }

    /// The next whole record.
    fn record(&mut self) -> Option<Record<'a>> {
        let len = self.take(8)?;
        let crc = self.u32()?;
        let body = self.take(u64::from_le_bytes(len.try_into().ok()?))?;
        if frame_crc(len, body) != crc {
            return None;
        }
        let mut body = Reader(body);
        let task = body.short()?;
        let count = body.u32()?;
        let mut pieces = Vec::new();
        for _ in 0..count {
            pieces.push(body.piece()?);
        }
        body.0.is_empty().then_some(Record { task, pieces })
    }

    fn piece(&mut self) -> Option<Piece<'a>> {
        let target = self.short()?;
        let known = match self.take(1)? {
            [0] => false,
            [1] => true,
            _ => return None,
        };
        let at = self.u64()?;
        let len = self.u64()?;
        let data = self.take(len)?;
        // An end beyond what a file can have would overflow sums later on.
        at.checked_add(len).filter(|end| *end <= i64::MAX as u64)?;
        Some(Piece {
            target,
            at: known.then_some(at),
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    type Owned = (Vec<u8>, Vec<(Vec<u8>, Option<u32>, Vec<u8>)>);

    fn records() -> impl Strategy<Value = Vec<Owned>> {
        let bytes = || vec(any::<u8>(), 0..40);
        let piece = (bytes(), any::<Option<u32>>(), bytes());
        vec((bytes(), vec(piece, 0..4)), 0..6)
    }

    fn journal(records: &[Owned], rescue_len: u64) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header(rescue_len).to_vec();
        let mut ends = vec![bytes.len()];
        for (task, pieces) in records {
            let pieces: Vec<Piece<'_>> = pieces.iter().map(piece).collect();
            encode(&mut bytes, task, &pieces);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    fn piece((target, at, data): &(Vec<u8>, Option<u32>, Vec<u8>)) -> Piece<'_> {
        Piece {
            target,
            at: at.map(u64::from),
            data: if at.is_some() { data } else { &[] },
        }
    }

    proptest! {
        #[test]
        fn a_torn_end_takes_only_its_record(records in records(), cut in any::<prop::sample::Index>(), len: u64) {
            let (bytes, ends) = journal(&records, len);
            let cut = HEADER_LEN + cut.index(bytes.len() - HEADER_LEN + 1);
            let content = decode(&bytes[..cut]).unwrap();
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            prop_assert_eq!(content.rescue_len, len);
            prop_assert_eq!(content.records.len(), whole);
            for (found, (task, pieces)) in content.records.iter().zip(&records) {
                prop_assert_eq!(found.task, task.as_slice());
                prop_assert_eq!(&found.pieces, &pieces.iter().map(piece).collect::<Vec<_>>());
            }
        }

        #[test]
        fn a_changed_byte_ends_the_reading(records in records(), at in any::<prop::sample::Index>(), change in 1_u8..) {
            let (mut bytes, ends) = journal(&records, 7);
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            match decode(&bytes) {
                Err(UnknownFormat) => prop_assert!(at < HEADER_LEN),
                Ok(content) => {
                    let before = ends.iter().filter(|end| **end <= at).count() - 1;
                    prop_assert_eq!(content.records.len(), before);
                }
            }
        }

        #[test]
        fn anything_may_follow_the_header(garbage in vec(any::<u8>(), 0..200)) {
            let mut bytes = header(1).to_vec();
            bytes.extend_from_slice(&garbage);
            prop_assert!(decode(&bytes).is_ok());
            let _ = decode(&garbage);
        }
    }
}
