//! Contents of files: bytes that depend on all inputs of the job.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

const BUFFER_SIZE: usize = 64 * 1024;

/// Checksum of the inputs of a job (FNV-1a over words of eight bytes).
#[derive(Clone, Copy)]
pub struct Digest(u64);

impl Digest {
    /// Returns the initial checksum.
    pub fn new() -> Self {
        Digest(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Adds the contents of a file and returns its size in bytes.
    pub fn add_file(&mut self, path: &Path) -> io::Result<u64> {
        let mut file = File::open(path)?;
        let mut buffer = vec![0; BUFFER_SIZE];
        let mut size = 0;
        loop {
            let count = match file.read(&mut buffer) {
                Ok(0) => return Ok(size),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.add(&buffer[..count]);
            size += count as u64;
        }
    }

    /// Writes a file of `size` bytes generated from the checksum (xorshift64*).
    pub fn write_file(self, path: &Path, size: u64) -> io::Result<()> {
        let mut file = File::create(path)?;
        let mut state = self.0 | 1;
        let mut buffer = vec![0; BUFFER_SIZE];
        let mut left = size;
        while left > 0 {
            let count = usize::try_from(left).unwrap_or(BUFFER_SIZE).min(BUFFER_SIZE);
            for chunk in buffer[..count].chunks_mut(8) {
                state ^= state >> 12;
                state ^= state << 25;
                state ^= state >> 27;
                let word = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
                chunk.copy_from_slice(&word[..chunk.len()]);
            }
            file.write_all(&buffer[..count])?;
            left -= count as u64;
        }
        Ok(())
    }
}
