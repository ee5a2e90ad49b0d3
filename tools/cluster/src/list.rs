//! Reads the list line by line, so that its length does not matter.

use std::io::{self, BufRead, Read as _};

use pmc_dag::list::{ListError, split};

/// Longest line in bytes. The system starts no program with more arguments.
const MAX_LINE: u64 = 64 << 20;

/// The commands of a list.
pub struct List {
    reader: Box<dyn BufRead + Send>,
    /// Lines read.
    lines: u64,
    /// Commands read.
    commands: u64,
}

/// A command of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Number of the command, from 1.
    pub number: u64,
    /// Number of its line, from 1.
    pub line: u64,
    /// Words of the command, at least one; or why they cannot be parsed.
    pub words: Result<Vec<Vec<u8>>, ListError>,
}

impl List {
    /// Reads from a file or standard input.
    #[must_use]
    pub fn new(reader: Box<dyn BufRead + Send>) -> Self {
        Self {
            reader,
            lines: 0,
            commands: 0,
        }
    }

    /// Returns the number of lines read.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Reads the next command. Returns `None` at the end.
    ///
    /// # Errors
    /// The list cannot be read.
    pub fn next_command(&mut self) -> io::Result<Option<Listed>> {
        let mut line = Vec::new();
        loop {
            line.clear();
            if (&mut self.reader).take(MAX_LINE).read_until(b'\n', &mut line)? == 0 {
                return Ok(None);
            }
            self.lines += 1;
            if line.len() as u64 == MAX_LINE && !line.ends_with(b"\n") {
                let message = format!("line {} is longer than {} MiB", self.lines, MAX_LINE >> 20);
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            let words = split(&line);
            if words.as_ref().is_ok_and(Vec::is_empty) {
                continue;
            }
            self.commands += 1;
            return Ok(Some(Listed {
                number: self.commands,
                line: self.lines,
                words,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_limit() {
        let endless = io::BufReader::new(io::repeat(b'x'));
        let mut list = List::new(Box::new((&b"/bin/a\n"[..]).chain(endless)));
        assert!(list.next_command().unwrap().is_some());
        let error = list.next_command().unwrap_err();
        assert_eq!(error.to_string(), "line 2 is longer than 64 MiB");
        let longest = [b" ".repeat((64 << 20) - 1), b"\n/bin/b\n".to_vec()].concat();
        let mut list = List::new(Box::new(io::Cursor::new(longest)));
        assert_eq!(list.next_command().unwrap().map(|listed| listed.line), Some(2));
    }

    #[test]
    fn commands_have_numbers_and_lines() {
        let text: &[u8] = b"#@ 1 sim T1 \n/bin/a 1\r\n\n  # more\n/bin/b 'x\n/bin/c \"y z\" # end";
        let mut list = List::new(Box::new(text));
        let mut found = Vec::new();
        while let Some(listed) = list.next_command().unwrap() {
            found.push(listed);
        }
        let words = |text: &[&str]| Ok(text.iter().map(|w| w.as_bytes().to_vec()).collect());
        let expected = [
            (1, 2, words(&["/bin/a", "1"])),
            (2, 5, Err(ListError::Unclosed('\''))),
            (3, 6, words(&["/bin/c", "y z"])),
        ];
        let found: Vec<_> = found.into_iter().map(|l| (l.number, l.line, l.words)).collect();
        assert_eq!(found, expected);
        assert_eq!(list.lines(), 6);
    }
}
