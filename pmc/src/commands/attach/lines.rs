//! Lines of a stream.

/// Maximum bytes of a line. A longer one is passed on in pieces.
const MAX_LINE: usize = 256 << 10;
/// Maximum bytes that are kept of lines from before the start.
const MAX_TAIL: usize = 1 << 20;

/// Puts lines together from any portions.
#[derive(Debug, Default)]
pub struct Lines {
    /// The start of a line.
    rest: Vec<u8>,
}

impl Lines {
    /// Passes the lines on that are complete, without their ends, and `false`; or a piece of a very long line
    /// and `true`.
    pub fn push(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8], bool)) {
        let mut left = bytes;
        while let Some(end) = memchr(left) {
            let (line, after) = left.split_at(end);
            left = &after[1..];
            if self.rest.is_empty() {
                take(line, false);
            } else {
                self.rest.extend_from_slice(line);
                take(&self.rest, false);
                self.rest.clear();
            }
        }
        self.rest.extend_from_slice(left);
        if self.rest.len() >= MAX_LINE {
            take(&self.rest, true);
            self.rest.clear();
        }
    }

    /// Passes the last line on if it has no end.
    pub fn finish(&mut self, mut take: impl FnMut(&[u8], bool)) {
        if !self.rest.is_empty() {
            take(&std::mem::take(&mut self.rest), true);
        }
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

/// The last lines of what a task wrote before the tool came.
#[derive(Debug)]
pub struct Tail {
    lines: usize,
    bytes: Vec<u8>,
}

impl Tail {
    /// Keeps this number of lines.
    pub fn new(lines: usize) -> Self {
        Self {
            lines,
            bytes: Vec::new(),
        }
    }

    /// Takes the next bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.lines == 0 {
            return;
        }
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > 2 * MAX_TAIL {
            let from = self.bytes.len() - MAX_TAIL;
            self.bytes.drain(..from);
        }
    }

    /// Returns the last lines.
    pub fn finish(mut self) -> Vec<u8> {
        let mut ends = self.bytes.iter().enumerate().rev();
        // The end of the last line begins no other one.
        let last = self.bytes.len().saturating_sub(1);
        let mut starts = ends.by_ref().filter(|(at, byte)| **byte == b'\n' && *at < last);
        if let Some(before) = self.lines.checked_sub(1)
            && let Some((end, _)) = starts.nth(before)
        {
            self.bytes.drain(..=end);
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tail(lines: usize, text: &str) -> String {
        let mut tail = Tail::new(lines);
        tail.push(text.as_bytes());
        String::from_utf8(tail.finish()).unwrap()
    }

    #[test]
    fn the_last_lines_are_kept() {
        assert_eq!(tail(0, "a\nb\n"), "");
        assert_eq!(tail(1, "a\nb\n"), "b\n");
        assert_eq!(tail(1, "a\nb"), "b");
        assert_eq!(tail(2, "a\nb\nc"), "b\nc");
        assert_eq!(tail(9, "a\nb\n"), "a\nb\n");
        assert_eq!(tail(1, ""), "");
        assert_eq!(tail(1, "\n"), "\n");
    }

    #[test]
    fn memory_is_bounded() {
        let (mut tail, mut lines, mut length) = (Tail::new(3), Lines::default(), 0);
        for _ in 0..100 {
            let bytes = vec![b'x'; 100 << 10];
            tail.push(&bytes);
            lines.push(&bytes, |piece, is_part| {
                assert!(is_part);
                length += piece.len();
            });
            assert!(tail.bytes.len() <= 2 * MAX_TAIL && lines.rest.len() < MAX_LINE);
        }
        lines.finish(|piece, _| length += piece.len());
        assert_eq!(length, 100 * (100 << 10));
    }

    proptest! {
        #[test]
        fn portions_make_no_difference(text in "[ab\n]{0,40}", size in 1_usize..9) {
            let (mut lines, mut found) = (Lines::default(), String::new());
            let mut take = |line: &[u8], is_part: bool| {
                found.push_str(std::str::from_utf8(line).unwrap());
                if !is_part {
                    found.push('\n');
                }
            };
            for portion in text.as_bytes().chunks(size) {
                lines.push(portion, &mut take);
            }
            lines.finish(&mut take);
            prop_assert_eq!(found, text);
        }
    }
}
