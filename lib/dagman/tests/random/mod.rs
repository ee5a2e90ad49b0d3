//! Random words for tests of quoting, the same ones for the same seed.

/// What words are made of: blanks, quotes, signs of macros and shells, letters of several bytes.
const PARTS: [&str; 40] = [
    "a", "b", "Z", "0", "7", " ", "\t", "'", "\"", "''", "\"\"", "\\", "\\\\", "$", "$$", "$(", "$(a)",
    "$$(a)", "(", ")", "{", "}", "%", "=", ",", ";", ":", "#", "&", "*", "?", "<", ">", "|", "~", "`", "!",
    "é", "語", "/",
];

/// A generator of random words.
pub struct Random(u64);

impl Random {
    /// Makes a generator.
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }

    /// Returns a word, which may be empty.
    pub fn word(&mut self) -> String {
        (0..self.below(10))
            .map(|_| PARTS[self.below(PARTS.len())])
            .collect()
    }

    /// Returns words.
    pub fn words(&mut self) -> Vec<String> {
        (0..self.below(6)).map(|_| self.word()).collect()
    }

    /// Returns variables: names and values.
    pub fn variables(&mut self) -> Vec<(String, String)> {
        (0..self.below(6))
            .map(|n| (format!("Q{n}"), self.word()))
            .collect()
    }
}
