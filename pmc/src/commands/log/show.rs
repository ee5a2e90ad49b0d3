//! Prints the output of a task.

use monitord_compat::record_reader::{Record, StreamFile};
use pmc_monitor::task_output::{Piece, Splitter};
use pmc_terminal::{CopyWriter, message};

use super::tap::Tap;
use crate::cli;

/// A file of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// That of standard output, which also holds the records.
    Out,
    /// That of standard error.
    Err,
}

/// Prints what a task wrote, without the records around it.
pub struct Show {
    splitter: Splitter,
    printer: Printer,
}

/// Where the streams go; `None` for nowhere.
struct Printer {
    out: Option<CopyWriter>,
    err: Option<CopyWriter>,
    /// What kickstart captures.
    tap: Tap,
    /// Name of the task in the last record of the executor.
    ended: Option<String>,
}

impl Show {
    pub fn new(arguments: &cli::Log, tap: Tap) -> Self {
        let (out, err) = match (arguments.stdout, arguments.stderr) {
            (true, _) => (Some(CopyWriter::to_stdout()), None),
            (_, true) => (None, Some(CopyWriter::to_stdout())),
            _ => (Some(CopyWriter::to_stdout()), Some(CopyWriter::to_stderr())),
        };
        Self {
            splitter: Splitter::default(),
            printer: Printer {
                out,
                err,
                tap,
                ended: None,
            },
        }
    }

    /// Prints what kickstart has captured since the last call. Returns whether there was anything.
    pub fn tap(&mut self) -> bool {
        let Printer { out, err, tap, .. } = &mut self.printer;
        tap.poll(&mut |stream, bytes| write(if stream == 0 { out } else { err }, bytes))
    }

    /// Takes the next bytes of a file.
    pub fn push(&mut self, stream: Stream, bytes: &[u8]) {
        let printer = &mut self.printer;
        match stream {
            Stream::Out => self.splitter.push(bytes, |piece| printer.piece(piece)),
            Stream::Err => write(&mut printer.err, bytes),
        }
    }

    /// Takes the end of the files.
    pub fn finish(&mut self) {
        let printer = &mut self.printer;
        std::mem::take(&mut self.splitter).finish(|piece| printer.piece(piece));
    }

    /// Returns whether the executor's record of this task has come, which is the end of its output.
    pub fn has_record_of(&self, task: &str) -> bool {
        self.printer.ended.as_deref() == Some(task)
    }

    /// Returns whether nobody reads what is printed.
    pub fn is_closed(&self) -> bool {
        let writers = [&self.printer.out, &self.printer.err];
        !writers.into_iter().flatten().any(CopyWriter::is_open)
    }

    /// Ends the printed streams.
    pub fn end(self) {
        [self.printer.out, self.printer.err]
            .into_iter()
            .flatten()
            .for_each(CopyWriter::end);
    }
}

impl Printer {
    fn piece(&mut self, piece: Piece<'_>) {
        match piece {
            Piece::Text(text) => write(&mut self.out, text),
            Piece::Record(record) => self.record(&record),
            Piece::LargeRecord => message("pmc: a record of kickstart is too large to be shown"),
            Piece::Task(task) => self.ended = task.name,
        }
    }

    fn record(&mut self, record: &Record) {
        let Self { out, err, tap, .. } = self;
        let seen = tap.finish(&record.streams, &mut |stream, bytes| {
            write(if stream == 0 { out } else { err }, bytes);
        });
        let streams = [(out, &record.stdout, "output"), (err, &record.stderr, "error")];
        for ((stream, (to, captured, name)), seen) in streams.into_iter().enumerate().zip(seen) {
            let file = &record.streams[stream];
            if to.is_none() {
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
            write(to, rest.text.as_bytes());
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

fn write(to: &mut Option<CopyWriter>, bytes: &[u8]) {
    if let Some(writer) = to
        && !bytes.is_empty()
    {
        writer.write(bytes);
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
