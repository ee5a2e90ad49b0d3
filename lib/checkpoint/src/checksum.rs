//! Checksums of files, one for each block.

use std::io::{self, Read};

/// Bytes of a block.
pub const BLOCK: usize = 1 << 20;

/// Computes the CRC-32 of each block of what is written.
#[derive(Debug, Default)]
pub struct BlockSums {
    sums: Vec<u32>,
    /// The block that is not full.
    last: crc32fast::Hasher,
    bytes: u64,
}

impl BlockSums {
    /// Adds bytes.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = BLOCK - self.in_last();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.last.update(now);
            self.bytes += now.len() as u64;
            if self.in_last() == 0 {
                self.sums.push(std::mem::take(&mut self.last).finalize());
            }
            bytes = later;
        }
    }

    /// Bytes in the block that is not full.
    fn in_last(&self) -> usize {
        usize::try_from(self.bytes % BLOCK as u64).unwrap_or(0)
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the checksums: one for each block that has begun.
    #[must_use]
    pub fn finish(mut self) -> Vec<u32> {
        if self.in_last() > 0 {
            self.sums.push(self.last.finalize());
        }
        self.sums
    }
}

/// Returns whether a file has this many bytes, and these checksums.
///
/// # Errors
/// It cannot be read.
pub fn verify(mut file: impl Read, bytes: u64, crc32: &[u32]) -> io::Result<bool> {
    if crc32.len() as u64 != bytes.div_ceil(BLOCK as u64) {
        return Ok(false);
    }
    let mut block = vec![0; BLOCK.min(usize::try_from(bytes).unwrap_or(BLOCK)).max(1)];
    let (mut left, mut expected) = (bytes, crc32.iter());
    while left > 0 {
        let length = block.len().min(usize::try_from(left).unwrap_or(BLOCK));
        let Some(part) = block.get_mut(..length) else {
            return Ok(false);
        };
        match file.read_exact(part) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        if Some(&crc32fast::hash(part)) != expected.next() {
            return Ok(false);
        }
        left -= length as u64;
    }
    // A file that has become longer is another one.
    Ok(file.read(&mut [0])? == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums(data: &[u8], piece: usize) -> (u64, Vec<u32>) {
        let mut sums = BlockSums::default();
        data.chunks(piece.max(1)).for_each(|piece| sums.add(piece));
        (sums.bytes(), sums.finish())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn a_changed_file_is_noticed(
            length in 0_usize..(3 * BLOCK),
            piece in 1_usize..(2 * BLOCK),
            at in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let mut data: Vec<u8> = (0..length).map(|at| (at * 31 % 251) as u8).collect();
            let (bytes, crcs) = sums(&data, piece);
            prop_assert_eq!(&sums(&data, BLOCK).1, &crcs);
            prop_assert!(verify(&data[..], bytes, &crcs).unwrap());
            let longer = [&data[..], &[0]].concat();
            prop_assert!(!verify(&longer[..], bytes, &crcs).unwrap());
            if length > 0 {
                prop_assert!(!verify(&data[..at.index(length)], bytes, &crcs).unwrap());
                data[at.index(length)] ^= 1 << bit;
                prop_assert!(!verify(&data[..], bytes, &crcs).unwrap());
            }
        }
    }

    #[test]
    fn checksums_must_be_as_many_as_blocks() {
        assert!(verify(&b""[..], 0, &[]).unwrap());
        assert!(!verify(&b""[..], 0, &[0]).unwrap());
        assert!(!verify(&b"a"[..], u64::MAX, &[0]).unwrap());
    }
}
