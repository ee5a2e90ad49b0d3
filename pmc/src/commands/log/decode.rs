//! Takes the output of an attempt apart: what the task wrote, without the records around it.

use monitord_compat::record_reader::{Record, StreamFile};
use pmc_monitor::task_output::{Piece, Splitter};
use pmc_terminal::message;

use super::tap::Tap;
use super::{Stream, Take};

/// Takes the bytes of the files of an attempt, and those that kickstart captures.
pub struct Decoder {
    splitter: Splitter,
    state: State,
}

struct State {
    /// What kickstart captures.
    tap: Tap,
    /// Which streams somebody reads.
    wanted: [bool; 2],
    /// Name of the task in the last record of the executor.
    ended: Option<String>,
}

impl Decoder {
    /// For an attempt of which this is captured. What is lost of streams that are not `wanted` is not
    /// reported.
    pub fn new(tap: Tap, wanted: [bool; 2]) -> Self {
        Self {
            splitter: Splitter::default(),
            state: State {
                tap,
                wanted,
                ended: None,
            },
        }
    }

    /// What kickstart captures.
    pub fn tap(&mut self) -> &mut Tap {
        &mut self.state.tap
    }

    /// Takes the next bytes of a file.
    pub fn push(&mut self, stream: Stream, bytes: &[u8], take: &mut Take<'_>) {
        match stream {
            Stream::Out => self.splitter.push(bytes, |piece| self.state.piece(piece, take)),
            Stream::Err => take(Stream::Err, bytes),
        }
    }

    /// Takes the end of the files.
    pub fn finish(&mut self, take: &mut Take<'_>) {
        std::mem::take(&mut self.splitter).finish(|piece| self.state.piece(piece, take));
    }

    /// Returns whether the executor's record of this task has come, which is the end of its output.
    pub fn has_record_of(&self, task: &str) -> bool {
        self.state.ended.as_deref() == Some(task)
    }
}

impl State {
    fn piece(&mut self, piece: Piece<'_>, take: &mut Take<'_>) {
        match piece {
            Piece::Text(text) => take(Stream::Out, text),
            Piece::Record(record) => self.record(&record, take),
            Piece::LargeRecord => message("pmc: a record of kickstart is too large to be shown"),
            Piece::Task(task) => self.ended = task.name,
        }
    }

    fn record(&mut self, record: &Record, take: &mut Take<'_>) {
        let seen = self.tap.finish(&record.streams, take);
        let streams = [(&record.stdout, "output"), (&record.stderr, "error")];
        for (number, ((captured, name), seen)) in streams.into_iter().zip(seen).enumerate() {
            let file = &record.streams[number];
            if !self.wanted[number] {
                continue;
            }
            if let Some(path) = &file.name {
                message(format!(
                    "pmc: standard {name} of the program went to the file {path}"
                ));
            }
            let text = captured.as_deref().unwrap_or_default();
            let rest = rest(text, file, seen);
            if rest.lost > 0 {
                let all = file.size.unwrap_or_default();
                message(format!(
                    "pmc: {} of {all} bytes of standard {name} are missing here: kickstart has kept only the end",
                    rest.lost
                ));
            }
            take(Stream::ALL[number], rest.text.as_bytes());
        }
    }
}

/// The part of a captured text that has not been printed.
#[derive(Debug, PartialEq, Eq)]
struct Rest<'a> {
    text: &'a str,
    /// Bytes before it that nobody has.
    lost: u64,
}

/// Returns what is left of a captured text when the first `seen` bytes of its file are printed.
fn rest<'a>(text: &'a str, file: &StreamFile, seen: u64) -> Rest<'a> {
    let length = text.len() as u64;
    let size = file.size.unwrap_or(length);
    if seen == 0 {
        let lost = if file.is_truncated {
            size.saturating_sub(length)
        } else {
            0
        };
        return Rest { text, lost };
    }
    let left = size.saturating_sub(seen);
    let mut from = usize::try_from(length.saturating_sub(left)).unwrap_or(text.len());
    while !text.is_char_boundary(from) {
        from += 1;
    }
    Rest {
        text: &text[from..],
        lost: left.saturating_sub(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_adds_what_was_not_seen() {
        let file = |size, is_truncated| StreamFile {
            size: Some(size),
            is_truncated,
            ..StreamFile::default()
        };
        let shown = |text, file, seen| {
            let Rest { text, lost } = rest(text, &file, seen);
            (text, lost)
        };
        assert_eq!(shown("abcdef", file(6, false), 0), ("abcdef", 0));
        assert_eq!(shown("abcdef", file(6, false), 4), ("ef", 0));
        assert_eq!(shown("abcdef", file(6, false), 6), ("", 0));
        // The record has the last six of ten bytes.
        assert_eq!(shown("abcdef", file(10, true), 0), ("abcdef", 4));
        assert_eq!(shown("abcdef", file(10, true), 1), ("abcdef", 3));
        assert_eq!(shown("abcdef", file(10, true), 5), ("bcdef", 0));
        assert_eq!(shown("aé", file(3, false), 2), ("", 0));
        // Bytes that are no text are longer in the record.
        assert_eq!(shown("a\u{fffd}", file(2, false), 0), ("a\u{fffd}", 0));
    }
}
