//! Well-formed inputs that bytes choose, and small changes of them. Random bytes alone are refused in the
//! first line of most formats.

/// Bytes from which choices are made. When they are used up, each choice is the first one.
pub struct Source<'d>(&'d [u8]);

impl<'d> Source<'d> {
    pub fn new(data: &'d [u8]) -> Self {
        Self(data)
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// A number below `end`, which is at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// True once in this many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    /// A number as a text, most often a small one.
    pub fn number(&mut self) -> String {
        match self.below(64) {
            60 => "-1".to_owned(),
            61 => u32::MAX.to_string(),
            62 => u64::MAX.to_string(),
            63 => "1".repeat(1 + self.below(40)),
            small => (1 + small % 12).to_string(),
        }
    }

    /// Changes a text at some places: bytes, numbers, lines.
    pub fn edit(&mut self, text: &mut Vec<u8>) {
        for _ in 0..self.below(5) {
            if text.is_empty() {
                return;
            }
            let at = (self.below(256) * 256 + self.below(256)) % text.len();
            let line_at = text[..at]
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |end| end + 1);
            let line_end = text[at..]
                .iter()
                .position(|byte| *byte == b'\n')
                .map_or(text.len(), |end| at + end);
            match self.below(7) {
                0 => text[at] = self.byte(),
                1 => text.insert(at, self.one_of(b"\"'\\$(){}[],;:=%#\n \0\xff")),
                2 => drop(text.drain(line_at..line_end)),
                3 => {
                    let line = [b"\n", &text[line_at..line_end]].concat();
                    text.splice(line_end..line_end, line.repeat(1 + self.below(4)));
                }
                4 => {
                    let is_digit = |byte: &u8| byte.is_ascii_digit();
                    let Some(from) = text[at..].iter().position(is_digit).map(|from| at + from) else {
                        continue;
                    };
                    let to = text[from..]
                        .iter()
                        .position(|byte| !is_digit(byte))
                        .map_or(text.len(), |to| from + to);
                    text.splice(from..to, self.number().into_bytes());
                }
                5 => text.truncate(at),
                _ => {
                    let word: Vec<u8> = text[line_at..at].to_vec();
                    text.splice(at..at, word);
                }
            }
        }
    }
}
