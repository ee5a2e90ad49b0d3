//! The format of the journal. Numbers are little-endian.
//!
//! ```text
//! header   "PMCFWDJ1", u64 length of the rescue file, u32 CRC of its last bytes, u32 CRC of the
//!          boot id, u32 CRC of all these
//! record   u64 length of the body, u32 CRC of length and body, body
//! body     u32 length and bytes of the task's name, u32 number of pieces, pieces
//! piece    u32 length and bytes of the target's path, u8 kind, u64 offset, u64 length of the data,
//!          data (kind 1: known offset), or nothing (kind 0: recovery skips the file)
//! ```

/// First bytes of the file; the last one is the version.
const MAGIC: [u8; 8] = *b"PMCFWDJ1";

/// Bytes of the header.
pub(crate) const HEADER_LEN: usize = 28;

/// Bytes of length and checksum before a body.
pub(super) const FRAME_LEN: usize = 12;

/// Bytes of a piece beside its target and its data.
pub(super) const PIECE_HEAD_LEN: u64 = 21;

/// Data of one task for one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Absolute path of the file.
    pub target: &'a [u8],
    /// Offset of the data; `None` if other programs write the file, too, so that recovery skips it.
    pub at: Option<u64>,
    /// The data; empty in a decoded piece without offset.
    pub data: &'a [u8],
}

/// Data that one task forwards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Name of the task.
    pub task: &'a [u8],
    /// In the order of writing.
    pub pieces: Vec<Piece<'a>>,
}

/// State at the moment when the journal was begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Begin {
    /// Length of the rescue file, which was on the disk.
    pub rescue_len: u64,
    /// Checksum of its last bytes: see [`tail_checksum`].
    pub rescue_tail: u32,
    /// Checksum of the boot id; 0 if unknown.
    pub system: u32,
}

/// Returns the checksum of the last bytes before a position of the rescue file. It changes if the file has
/// been edited, which makes the position meaningless.
#[must_use]
pub fn tail_checksum(before: &[u8]) -> u32 {
    crc32fast::hash(&before[before.len().saturating_sub(TAIL_LEN)..])
}

/// Number of bytes in [`tail_checksum`].
pub(crate) const TAIL_LEN: usize = 4096;

/// A decoded journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content<'a> {
    /// State when the journal was begun.
    pub begin: Begin,
    /// All complete records, without a torn end.
    pub records: Vec<Record<'a>>,
}

/// The file has no header of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no forward journal of a version that this program knows")]
pub struct UnknownFormat;

/// Returns the header of a journal.
#[must_use]
pub fn header(begin: &Begin) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&begin.rescue_len.to_le_bytes());
    header[16..20].copy_from_slice(&begin.rescue_tail.to_le_bytes());
    header[20..24].copy_from_slice(&begin.system.to_le_bytes());
    let crc = crc32fast::hash(&header[..24]);
    header[24..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Appends a record to `out`.
pub fn encode(out: &mut Vec<u8>, task: &[u8], pieces: &[Piece<'_>]) {
    let mut record = Encoder::begin(out, task, pieces.len());
    for piece in pieces {
        let data = if piece.at.is_some() { piece.data } else { &[] };
        record.piece(piece.target, piece.at, data.len() as u64);
        record.data(data);
    }
    record.end();
}

/// Appends a record to a buffer.
pub(super) struct Encoder<'a> {
    out: &'a mut Vec<u8>,
    /// Where the record begins.
    start: usize,
}

impl<'a> Encoder<'a> {
    pub(super) fn begin(out: &'a mut Vec<u8>, task: &[u8], pieces: usize) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; FRAME_LEN]);
        out.extend_from_slice(&body_head(task, pieces));
        Self { out, start }
    }

    /// Begins a piece; its data, of this length, follows.
    pub(super) fn piece(&mut self, target: &[u8], at: Option<u64>, len: u64) {
        self.out.extend_from_slice(&piece_head(target, at, len));
    }

    pub(super) fn data(&mut self, data: &[u8]) {
        self.out.extend_from_slice(data);
    }

    pub(super) fn end(self) {
        let body = self.start + FRAME_LEN;
        let mut frame = Frame::new((self.out.len() - body) as u64);
        frame.update(&self.out[body..]);
        self.out[self.start..body].copy_from_slice(&frame.finish());
    }
}

/// Length and checksum of a body.
pub(super) struct Frame {
    len: [u8; 8],
    crc: crc32fast::Hasher,
}

impl Frame {
    /// The frame of a body of this length.
    pub(super) fn new(len: u64) -> Self {
        let len = len.to_le_bytes();
        let mut crc = crc32fast::Hasher::new();
        crc.update(&len);
        Self { len, crc }
    }

    /// Adds the next bytes of the body to the checksum.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
    }

    pub(super) fn finish(self) -> [u8; FRAME_LEN] {
        let mut frame = [0; FRAME_LEN];
        frame[..8].copy_from_slice(&self.len);
        frame[8..].copy_from_slice(&self.crc.finalize().to_le_bytes());
        frame
    }
}

/// Returns the beginning of a body.
pub(super) fn body_head(task: &[u8], pieces: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(8 + task.len());
    put_short(&mut head, task);
    head.extend_from_slice(&(pieces as u32).to_le_bytes());
    head
}

/// Returns what precedes the data of a piece.
pub(super) fn piece_head(target: &[u8], at: Option<u64>, len: u64) -> Vec<u8> {
    let mut head = Vec::with_capacity(PIECE_HEAD_LEN as usize + target.len());
    put_short(&mut head, target);
    head.push(u8::from(at.is_some()));
    head.extend_from_slice(&at.unwrap_or(0).to_le_bytes());
    head.extend_from_slice(&len.to_le_bytes());
    head
}

/// Decodes a journal up to the first incomplete record.
///
/// # Errors
/// The header is invalid.
pub fn decode(bytes: &[u8]) -> Result<Content<'_>, UnknownFormat> {
    let mut rest = Reader(bytes);
    let begin = rest.begin().filter(|begin| bytes.starts_with(&header(begin)));
    let begin = begin.ok_or(UnknownFormat)?;
    let mut records = Vec::new();
    while let Some(record) = rest.record() {
        records.push(record);
    }
    Ok(Content { begin, records })
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

    /// Reads the header without checking it.
    fn begin(&mut self) -> Option<Begin> {
        self.u64()?;
        let begin = Begin {
            rescue_len: self.u64()?,
            rescue_tail: self.u32()?,
            system: self.u32()?,
        };
        self.u32()?;
        Some(begin)
    }

    /// Reads the next complete record.
    fn record(&mut self) -> Option<Record<'a>> {
        let len = self.take(8)?;
        let crc = self.u32()?;
        let body = self.take(u64::from_le_bytes(len.try_into().ok()?))?;
        let mut frame = Frame::new(body.len() as u64);
        frame.update(body);
        if frame.finish()[8..] != crc.to_le_bytes() {
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
        // Refuses offsets that no file can have, which would overflow later.
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
    use proptest::sample::Index;

    use super::*;

    type Owned = (Vec<u8>, Vec<(Vec<u8>, Option<u32>, Vec<u8>)>);

    fn records() -> impl Strategy<Value = Vec<Owned>> {
        let bytes = || vec(any::<u8>(), 0..40);
        let piece = (bytes(), any::<Option<u32>>(), bytes());
        vec((bytes(), vec(piece, 0..4)), 0..6)
    }

    fn begin(rescue_len: u64) -> Begin {
        Begin {
            rescue_len,
            rescue_tail: 3,
            system: 4,
        }
    }

    fn journal(records: &[Owned], rescue_len: u64) -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header(&begin(rescue_len)).to_vec();
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
        fn a_torn_end_loses_only_its_record(records in records(), cut in any::<Index>(), len: u64) {
            let (bytes, ends) = journal(&records, len);
            let cut = HEADER_LEN + cut.index(bytes.len() - HEADER_LEN + 1);
            let content = decode(&bytes[..cut]).unwrap();
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            prop_assert_eq!(content.begin, begin(len));
            prop_assert_eq!(content.records.len(), whole);
            for (found, (task, pieces)) in content.records.iter().zip(&records) {
                prop_assert_eq!(found.task, task.as_slice());
                prop_assert_eq!(&found.pieces, &pieces.iter().map(piece).collect::<Vec<_>>());
            }
        }

        #[test]
        fn decoding_ends_at_a_changed_byte(records in records(), at in any::<Index>(), change in 1_u8..) {
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
        fn garbage_after_the_header_is_ignored(garbage in vec(any::<u8>(), 0..200)) {
            let mut bytes = header(&begin(1)).to_vec();
            bytes.extend_from_slice(&garbage);
            prop_assert!(decode(&bytes).is_ok());
            let _ = decode(&garbage);
        }
    }
}
